import asyncio
import threading

import pytest
import pytest_asyncio
from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.prompts import PromptReader
from headstart.errors import FailedPreconditionError, InvalidRequestError, UnavailableError


class Tokenizer:
    """Bytes as ids, when it is let; it notes the threads that it runs on."""

    def __init__(self):
        self.gate = threading.Event()
        self.gate.set()
        self.threads = set()

    def encode(self, text):
        self.threads.add(threading.current_thread())
        assert self.gate.wait(10)
        if "\0" in text:
            raise InvalidRequestError("text", "holds a NUL")
        return list(text.encode())


class Template:
    """Notes what it is asked for."""

    def __init__(self):
        self.calls = []

    def render_ids(self, messages, tokenizer, **flags):
        self.calls.append((messages, flags))
        return [1]


@pytest.fixture
def tokenizer():
    return Tokenizer()


@pytest.fixture
def template():
    return Template()


@pytest_asyncio.fixture
async def prompts(tokenizer, template):
    reader = PromptReader(tokenizer, template, max_waiting=2)
    yield reader
    tokenizer.gate.set()
    reader.close()


def text(content="abc"):
    return pb.GenerateRequest(text=content)


async def test_text_is_tokenised_on_a_thread_of_its_own(prompts, tokenizer):
    assert await prompts.read(text()) == [97, 98, 99]
    assert threading.main_thread() not in tokenizer.threads


async def test_token_ids_need_no_tokenizer():
    reader = PromptReader(None, None)
    assert list(await reader.read(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5, 6])))) == [5, 6]
    with pytest.raises(FailedPreconditionError):
        await reader.read(text())
    reader.close()


async def test_refusals_of_the_tokenizer_come_through(prompts):
    with pytest.raises(InvalidRequestError, match="NUL"):
        await prompts.read(text("a\0"))


async def test_parts_of_a_message_are_joined_in_order_and_the_tools_passed_on(prompts, template):
    parts = [pb.ContentPart(text="a"), pb.ContentPart(text="b")]
    chat = pb.Chat(messages=[pb.Message(role="user", content=parts)], tools_json=["{}"])
    await prompts.read(pb.TokenizeRequest(chat=chat))
    ((messages, flags),) = template.calls
    assert [(message.role, message.content) for message in messages] == [("user", "ab")]
    assert list(flags["tools"]) == ["{}"]


@pytest.mark.parametrize(
    ("fields", "adds"),
    [
        ({}, True),
        ({"add_generation_prompt": False}, False),
        ({"continue_final_message": True}, False),
        ({"continue_final_message": True, "add_generation_prompt": False}, False),
    ],
)
async def test_the_generation_prompt_is_added_unless_the_last_message_stays_open(prompts, template, fields, adds):
    chat = pb.Chat(messages=[pb.Message(role="user", content=[pb.ContentPart(text="a")])], **fields)
    await prompts.read(pb.TokenizeRequest(chat=chat))
    ((_, flags),) = template.calls
    assert flags["add_generation_prompt"] is adds
    assert flags["continue_final_message"] is fields.get("continue_final_message", False)


async def test_too_many_waiting_prompts_are_refused_and_the_count_comes_back_also_after_a_cancel(prompts, tokenizer):
    tokenizer.gate.clear()
    waiting = [asyncio.ensure_future(prompts.read(text())) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(UnavailableError):
        await prompts.read(text())
    waiting[0].cancel()
    tokenizer.gate.set()
    assert await waiting[1] == [97, 98, 99]
    await asyncio.sleep(0)
    assert [await prompts.read(text()) for _ in range(5)] == [[97, 98, 99]] * 5
