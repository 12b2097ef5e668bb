"""Where resumed tokens end a choice: the same place at which the engine would have ended it."""

import grpc
import pytest
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.request import GenerateSpec
from headstart.core.step import Finish, FinishReason
from headstart.server.resumed import find_resumed_end
from service.server.conftest import byte_tokenizer

EOS = 257
TOKENIZER = byte_tokenizer()
STOP, LENGTH = Finish(FinishReason.STOP), Finish(FinishReason.LENGTH)


def end_of(emitted, *, tokenizer=TOKENIZER, max_len=512, **fields):
    """How the choice ends and at which stop string; None when it goes on. `emitted`: text or token ids."""
    token_ids = tuple(emitted.encode()) if isinstance(emitted, str) else tuple(emitted)
    spec = GenerateSpec(
        request_id="r", prompt_token_ids=(1, 2), resume_token_ids=token_ids, **({"max_tokens": 99} | fields)
    )
    chunk = find_resumed_end(spec, max_len=max_len, eos_token_ids=frozenset({EOS}), tokenizer=tokenizer)
    if chunk is None:
        return None
    assert (chunk.text, chunk.token_ids, chunk.stats) == ("", [], None)
    return chunk.finish, chunk.matched_stop_string


@pytest.mark.parametrize(
    ("emitted", "fields", "expected"),
    [
        ("", {"max_tokens": 1}, None),
        ("abc", {}, None),
        ("abc", {"max_tokens": 3}, (LENGTH, "")),
        ("abc", {"max_len": 5}, (LENGTH, "")),
        ([97, EOS], {}, (STOP, "")),
        ([97, EOS], {"ignore_eos": True}, None),
        ([97, EOS], {"min_tokens": 3}, None),
        ([97, EOS], {"max_tokens": 2}, (STOP, "")),
        ([97, 98], {"stop_token_ids": frozenset({98})}, (STOP._replace(matched_stop=98), "")),
        ([97, EOS], {"ignore_eos": True, "stop_token_ids": frozenset({EOS})}, (STOP._replace(matched_stop=EOS), "")),
        ("a stop", {"stop_strings": ("stop",)}, (STOP, "stop")),
        ("a sto", {"stop_strings": ("stop",)}, None),
        ("a stop", {"stop_strings": ("stop", "stops")}, (STOP, "stop")),
        ("a stop", {"stop_strings": ("stop",), "max_tokens": 6}, (STOP, "stop")),
        ("a stop", {"stop_strings": ("stop",), "min_tokens": 6}, None),
        ([*b"stop", EOS], {"stop_strings": ("stop",)}, (STOP, "stop")),
        ([*b"sto", EOS, *b"p"], {"stop_strings": ("stop",)}, (STOP, "")),
        ("xy", {"stop_strings": ("y",), "stop_token_ids": frozenset({121})}, (STOP._replace(matched_stop=121), "")),
        (
            "xy",
            {"stop_strings": ("y",), "stop_token_ids": frozenset({121}), "include_stop": True},
            (STOP._replace(matched_stop=121), ""),
        ),
        ("stop", {"stop_strings": ("stop",), "tokenizer": None}, None),
    ],
)
def test_eos_stop_ids_stop_strings_and_length_end_a_resumed_choice_as_they_end_a_running_one(emitted, fields, expected):
    assert end_of(emitted, **fields) == expected


def resume(*choices):
    return pb.Resume(choices=[pb.Resume.Choice(token_ids=token_ids) for token_ids in choices])


async def test_whatever_ended_a_stream_a_resume_from_all_of_its_tokens_gets_that_end_and_no_token(start_pod):
    pod = await start_pod()
    plain = (await pod.generate(max_tokens=12)).text()
    for fields in (
        {"max_tokens": 5},
        {"max_tokens": 12, "stop_strings": [plain[3:6]]},
        {"max_tokens": 12, "stop_strings": [plain[3:6]], "include_stop": True},
        {"max_tokens": 12, "stop_token_ids": [ord(plain[4])]},
    ):
        whole = await pod.generate(**fields)
        num_steps = pod.runner.num_steps
        again = await pod.generate(**fields, resume=resume(whole.token_ids()), echo_token_ids=True)
        assert again.code is grpc.StatusCode.OK
        assert [list(chunk.prompt_token_ids) for chunk in again.chunks()] == [list(b"a prompt")]
        assert (again.token_ids(), again.text()) == ([], "")
        assert again.reason() == whole.reason()
        assert again.finished().WhichOneof("matched_stop") == whole.finished().WhichOneof("matched_stop")
        assert again.finished().stop_string == whole.finished().stop_string
        assert again.finished().usage.completion_tokens == whole.finished().usage.completion_tokens
        assert again.finished().usage.prompt_tokens == whole.finished().usage.prompt_tokens
        assert pod.runner.num_steps == num_steps


async def test_a_choice_that_has_ended_gets_its_end_while_the_others_go_on(start_pod):
    pod = await start_pod()
    fields = {"max_tokens": 6, "n": 2, "sampling": pb.Sampling(seed=3)}
    whole = await pod.generate(**fields)
    for emitted in ((6, 2), (2, 6), (6, 6)):
        rest = await pod.generate(
            **fields, resume=resume(*(whole.token_ids(index)[:count] for index, count in enumerate(emitted)))
        )
        assert rest.code is grpc.StatusCode.OK
        for index, count in enumerate(emitted):
            assert rest.token_ids(index) == whole.token_ids(index)[count:]
            assert rest.reason(index) == "length"
            assert rest.finished(index).usage.completion_tokens == 6
