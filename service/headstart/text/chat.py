"""Chats to token ids, by the model's own template, without letting a message forge a control token.

Message contents, and the strings in tool definitions, enter the template as `Content`, which carries through it which
characters came from outside; roles are taken from a list. The tokenizer then makes control tokens only of what the
template itself wrote. For chats without control strings the ids are those of `transformers.apply_chat_template`.

Templates come with the model and are never taken from a request. Rendering is bounded but may take many milliseconds:
call it off the event loop. A `ChatTemplate` is immutable and may be used from any thread.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError

from headstart.errors import FailedPreconditionError, InvalidRequestError, ModelError
from headstart.text.content import Content, joined, outside_value, plain_text
from headstart.text.sandbox import Budget, Sandbox, compile_template, variables_of
from headstart.text.tokenizer import Tokenizer, check_text

ROLES = ("system", "developer", "user", "assistant", "tool")

_TAIL = "\ud801"
"""Marks where the final message ends when it is to be continued. A lone surrogate: no valid content holds it."""

_MAX_SOURCE_CHARS = 1_000_000
_MAX_MESSAGE_CHARS = 500


class ChatMessage(NamedTuple):
    """One turn. `content` is the text of all its parts, joined."""

    role: str
    content: str


class ChatTemplate:
    """A model's compiled template; `has_template` says at start whether chats can be served at all, `reads_tools`
    whether tool definitions would be seen."""

    def __init__(
        self,
        source: str | None,
        *,
        tool_source: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
        max_cpu_s: float = 0.5,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        """`tool_source` is used for chats with tools where the model has a template of its own for them.

        `special_tokens` (`bos_token` and so on) are the template's variables. One render takes at most `max_cpu_s`
        seconds on `clock`. Raises ModelError for a template that does not compile or leaves the sandbox.
        """
        self.has_template = source is not None
        self._special_tokens = dict(special_tokens or {})
        self._max_cpu_s = max_cpu_s
        self._clock = clock
        self._templates = {
            has_tools: (_compile(text), _wants_date(text))
            for has_tools, text in ((False, source), (True, tool_source or source))
            if text is not None
        }
        self.reads_tools = reads_tools(tool_source or source)
        for has_tools in self._templates:
            self._probe(has_tools)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> ChatTemplate:
        """The template that belongs to the tokenizer. Raises ModelError."""
        return cls(tokenizer.template, tool_source=tokenizer.tool_template, special_tokens=tokenizer.special_tokens)

    def render_ids(
        self,
        messages: Sequence[ChatMessage],
        tokenizer: Tokenizer,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[str] = (),
    ) -> list[int]:
        """The prompt of a chat. `tools` are JSON objects as text.

        Raises FailedPreconditionError without a template, and InvalidRequestError for what the caller can put right:
        an empty chat, an unknown role, broken text or JSON, tools that the template would drop in silence, and whatever
        the template itself refuses.
        """
        if not self.has_template:
            raise FailedPreconditionError("this model has no chat template: send text or token ids instead")
        if continue_final_message and add_generation_prompt:
            raise InvalidRequestError("chat.continue_final_message", "it excludes add_generation_prompt")
        turns = _checked_turns(messages)
        num_chars = sum(len(turn["content"]) for turn in turns) + sum(map(len, tools))
        if continue_final_message:
            turns[-1]["content"] = joined((turns[-1]["content"], Content.outside(_TAIL + " ")))
        variables = {
            "messages": turns,
            "tools": self._definitions(tools) or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        text = self._render(variables, has_tools=bool(tools), max_chars=1_000_000 + 8 * num_chars)
        if continue_final_message:
            text = _cut_at_tail(text)
        return tokenizer.encode_marked(text.plain, text.is_outside)

    def _definitions(self, tools: Sequence[str]) -> list[Any]:
        definitions = _checked_tools(tools)
        if definitions and not self.reads_tools:
            raise InvalidRequestError("chat.tools_json", "this model's chat template does not read tools: send none")
        return definitions

    def _render(self, variables: dict[str, Any], *, has_tools: bool, max_chars: int) -> Content:
        try:
            return Content.of(self._run(variables, has_tools=has_tools, max_chars=max_chars))
        except TemplateError as error:
            raise InvalidRequestError("chat", _readable(error)) from error
        except Exception as error:  # a template may fail in any way that Python can
            raise InvalidRequestError("chat", "the chat template cannot render these messages") from error

    def _run(self, variables: dict[str, Any], *, has_tools: bool, max_chars: int) -> str:
        code, wants_date = self._templates[has_tools]
        budget = Budget(max_chars=max_chars, max_steps=200_000, max_cpu_s=self._max_cpu_s, clock=self._clock)
        return Sandbox(budget, has_fixed_date=wants_date).run(code, self._special_tokens | variables)

    def _probe(self, has_tools: bool) -> None:
        """A template that tries to leave the sandbox is refused at start, not at the first chat."""
        turns = [{"role": "user", "content": Content.outside("hi")}]
        variables = {"messages": turns, "tools": None, "documents": None, "add_generation_prompt": True}
        try:
            self._run(variables, has_tools=has_tools, max_chars=1_000_000)
        except SecurityError as error:
            raise ModelError(f"the chat template is not safe: {_readable(error)}") from error
        except Exception:
            # It may want other messages than this one; a request will tell.
            return


def reads_tools(source: str | None) -> bool:
    """Whether a template looks at `tools` at all. False for one that does not compile."""
    try:
        return source is not None and "tools" in variables_of(source)
    except (TemplateError, UnicodeEncodeError, RecursionError):
        return False


def _compile(source: str) -> CodeType:
    if len(source) > _MAX_SOURCE_CHARS:
        raise ModelError("the chat template is larger than a million characters")
    try:
        source.encode()
        return compile_template(source)
    except (TemplateError, UnicodeEncodeError, RecursionError) as error:
        raise ModelError(f"the chat template does not compile: {error}") from error


def _wants_date(source: str) -> bool:
    """Whether it calls `strftime_now` without asking first whether there is one."""
    return "strftime_now" in source and "strftime_now is defined" not in source


def _checked_turns(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    if not messages:
        raise InvalidRequestError("chat.messages", "a chat needs at least one message")
    turns: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        if message.role not in ROLES:
            raise InvalidRequestError(f"chat.messages[{i}].role", f"it must be one of {', '.join(ROLES)}")
        if not isinstance(message.content, str):
            raise InvalidRequestError(f"chat.messages[{i}].content", "it must be text")
        check_text(message.content, f"chat.messages[{i}].content")
        turns.append({"role": message.role, "content": Content.outside(message.content)})
    return turns


def _checked_tools(tools: Sequence[str]) -> list[Any]:
    checked = []
    for i, tool in enumerate(tools):
        field = f"chat.tools_json[{i}]"
        try:
            definition = json.loads(tool, parse_constant=_refuse_constant)
            checked.append(outside_value(definition, partial(check_text, field=field)))
        except (ValueError, RecursionError):
            raise InvalidRequestError(field, "it is no valid JSON") from None
        if not isinstance(definition, dict):
            raise InvalidRequestError(field, "it must be a JSON object")
    return checked


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _cut_at_tail(text: Content) -> Content:
    """Everything before the end of the final message. What the template trims from a message stays trimmed."""
    end = text.rfind(_TAIL)
    if end < 0:
        raise InvalidRequestError("chat.continue_final_message", "the chat template does not end with that message")
    is_trimmed = not text.startswith(_TAIL + " ", end)
    return text[:end].rstrip() if is_trimmed else text[:end]


def _readable(error: Exception) -> str:
    message = plain_text(str(error)).replace(_TAIL, "")
    return message[:_MAX_MESSAGE_CHARS] or "the chat template refuses these messages"
