"""Chats to ids, equal to those of `transformers`, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from headstart.errors import FailedPreconditionError, InvalidRequestError, ModelError
from headstart.text.chat import ChatMessage, ChatTemplate, reads_tools
from headstart.text.tokenizer import Tokenizer
from hypothesis import given
from hypothesis import strategies as st
from support.chat_families import Family

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "How <warm> it is, in \"°C\" & 'K'\n🌶",
            "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": [None, True, 1.5, -3]}}},
        },
    },
    {"type": "function", "function": {"name": "Größe"}},
]

TEXTS = st.one_of(
    st.text(st.sampled_from("ab <|/>[]\n\t é🌶1{}\"'\\\\%"), max_size=15),
    st.sampled_from(["", "  padded  ", "/help me", "why[thought]\n\nso", "Größe 123", "\n\nx\n\n", "a\tb"]),
)


def has_control(family: Family, *texts: str) -> bool:
    names = [family.tokenizer.token_bytes(i).decode() for i in family.tokenizer.control_ids]
    return any(name in text for name in names for text in texts)


@pytest.mark.parametrize("name", ["smollm", "llama_like", "qwen_like", "mistral_like"])
@given(
    texts=st.lists(TEXTS, min_size=1, max_size=5),
    system=st.none() | TEXTS,
    prompt=st.booleans(),
    with_tools=st.booleans(),
)
def test_ids_are_those_of_transformers(
    families: dict[str, Family], name: str, texts: list[str], system: str | None, prompt: bool, with_tools: bool
) -> None:
    family = families[name]
    chat = [("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(texts)]
    if system is not None:
        chat.insert(0, ("system", system))
    tools = TOOLS if with_tools else None
    if has_control(family, *texts, system or ""):
        return
    if with_tools and not family.template.reads_tools:
        return
    ids = family.render(chat, add_generation_prompt=prompt, tools=[json.dumps(tool) for tool in tools or ()])
    assert ids == family.expect(chat, tools, add_generation_prompt=prompt)


@pytest.mark.parametrize("name", ["smollm", "llama_like", "qwen_like", "mistral_like"])
@pytest.mark.parametrize("partial", ["I would", "I would ", "  I", "and\n", "x " * 20])
def test_a_continued_message_stays_open_as_in_transformers(
    families: dict[str, Family], name: str, partial: str
) -> None:
    family = families[name]
    chat = [("user", "Go on?"), ("assistant", partial)]
    flags = {"add_generation_prompt": False, "continue_final_message": True}
    ids = family.render(chat, **flags)
    assert ids == family.expect(chat, **flags)
    assert ids[-1] not in family.tokenizer.control_ids


def test_consecutive_tool_answers_share_a_turn_as_in_transformers(families: dict[str, Family]) -> None:
    family = families["qwen_like"]
    chat = [("user", "a"), ("assistant", "b"), ("tool", "1"), ("tool", "2"), ("assistant", "c")]
    assert family.render(chat) == family.expect(chat, add_generation_prompt=True)


def test_the_built_in_chat_hi_has_31_tokens_and_chats_share_one_block(smollm: Tokenizer) -> None:
    template = ChatTemplate.of(smollm)
    one = template.render_ids([ChatMessage("user", "hi")], smollm)
    other = template.render_ids([ChatMessage("user", "Tell me about the sea, please.")], smollm)
    assert len(one) == 31
    num_common = next(i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert num_common // 16 == 1


def test_the_generation_prompt_is_added_once(smollm: Tokenizer) -> None:
    template = ChatTemplate.of(smollm)
    chat = [ChatMessage("user", "hi"), ChatMessage("assistant", "yes")]
    closed = template.render_ids(chat, smollm, add_generation_prompt=False)
    assert smollm.decode(closed, skip_special=False).endswith("yes<|im_end|>\n")
    opened = template.render_ids(chat, smollm)
    assert smollm.decode(opened, skip_special=False).endswith("yes<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "chat.messages"),
        ([("user", None)], "chat.messages[0].content"),
        ([("user", ["a"])], "chat.messages[0].content"),
        ([("user", "a"), ("root", "b")], "chat.messages[1].role"),
        ([("<|im_end|>", "b")], "chat.messages[0].role"),
        ([("user", "a\0")], "chat.messages[0].content"),
        ([("user", "a\udfff")], "chat.messages[0].content"),
    ],
)
def test_a_broken_chat_is_the_callers_error_and_names_the_field(smollm: Tokenizer, messages: Any, field: str) -> None:
    template = ChatTemplate.of(smollm)
    with pytest.raises(InvalidRequestError) as caught:
        template.render_ids([ChatMessage(*message) for message in messages], smollm)
    assert caught.value.field == field
    assert len(template.render_ids([ChatMessage("user", "hi")], smollm)) == 31


@pytest.mark.parametrize("tool", ["{", "[]", '"x"', '{"a": NaN}', "[" * 100_000, '{"a": "\\ud800"}', '{"\\u0000": 1}'])
def test_a_broken_tool_definition_is_the_callers_error(smollm: Tokenizer, tool: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplate.of(smollm).render_ids([ChatMessage("user", "hi")], smollm, tools=["{}", tool])
    assert caught.value.field == "chat.tools_json[1]"


@pytest.mark.parametrize(("name", "reads"), [("llama_like", True), ("qwen_like", True), ("mistral_like", False)])
def test_tools_that_the_template_would_drop_are_refused(families: dict[str, Family], name: str, *, reads: bool) -> None:
    family = families[name]
    assert family.template.reads_tools is reads
    if reads:
        assert family.render([("user", "hi")], tools=["{}"]) != family.render([("user", "hi")])
        return
    with pytest.raises(InvalidRequestError) as caught:
        family.render([("user", "hi")], tools=["{}"])
    assert caught.value.field == "chat.tools_json"


@pytest.mark.parametrize(
    ("source", "tool_source", "expected"),
    [
        (None, None, False),
        ("{% if %}", None, False),
        ("the word tools alone", None, False),
        ("{% for tools in messages %}{{ tools.content }}{% endfor %}", None, False),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", None, True),
        ("{% macro f() %}{{ tools | tojson }}{% endmacro %}{{ f() }}", None, True),
        ("plain", "{{ tools }}", True),
        ("{{ tools }}", "plain", False),
    ],
)
def test_whether_a_template_reads_tools_is_known_before_a_chat_comes(
    source: str | None, tool_source: str | None, *, expected: bool
) -> None:
    assert reads_tools(tool_source or source) is expected


def test_continuing_and_prompting_exclude_each_other(smollm: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="continue_final_message"):
        ChatTemplate.of(smollm).render_ids(
            [ChatMessage("assistant", "x")], smollm, add_generation_prompt=True, continue_final_message=True
        )


def test_a_template_that_drops_the_final_message_cannot_continue_it(smollm: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="continue_final_message"):
        ChatTemplate("{{ messages[0].content }}").render_ids(
            [ChatMessage("user", "a"), ChatMessage("assistant", "b")],
            smollm,
            add_generation_prompt=False,
            continue_final_message=True,
        )


def test_the_templates_own_complaint_reaches_the_caller(families: dict[str, Family]) -> None:
    with pytest.raises(InvalidRequestError, match=r"must take turns: again <é>$"):
        families["mistral_like"].render([("user", "a"), ("user", "again <é>")])


def test_without_a_template_a_chat_is_a_failed_precondition_known_at_start(smollm: Tokenizer) -> None:
    template = ChatTemplate(None)
    assert not template.has_template
    with pytest.raises(FailedPreconditionError):
        template.render_ids([ChatMessage("user", "hi")], smollm)


@pytest.mark.parametrize(
    "source",
    ["{% if %}", "{{ x | nonsense }}", "{{ ''.__class__.__mro__ }}", "{{ messages.__init__.__globals__ }}", "\ud800"],
)
def test_a_template_that_cannot_work_is_refused_at_start(source: str) -> None:
    with pytest.raises(ModelError):
        ChatTemplate(source)
    with pytest.raises(ModelError):
        ChatTemplate("ok", tool_source=source)


def test_a_tool_template_is_used_for_chats_with_tools_only(smollm: Tokenizer) -> None:
    template = ChatTemplate("plain", tool_source="tools {{ tools | length }}")
    chat = [ChatMessage("user", "hi")]
    assert smollm.decode(template.render_ids(chat, smollm)) == "plain"
    assert smollm.decode(template.render_ids(chat, smollm, tools=["{}", "{}"])) == "tools 2"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}no clock{% endif %}", "no clock"),
    ],
)
def test_a_chat_renders_the_same_on_any_day(smollm: Tokenizer, source: str, expected: str) -> None:
    ids = ChatTemplate(source).render_ids([ChatMessage("user", "hi")], smollm)
    assert smollm.decode(ids) == expected
