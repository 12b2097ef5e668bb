"""Tokens in, chunks out: what stays together, what ends a request, and what one fault may touch."""

import pytest
from headstart.core.step import Finish, FinishReason, RequestStats, StepUpdates, TokenLogprobs
from headstart.engine.decoder import Decoder
from headstart.errors import InvalidRequestError
from service.engine.harness import Letters, spec

STATS = RequestStats(10, 0, 0, 1.0, 2.0, 3.0)
LENGTH = (Finish(FinishReason.LENGTH), STATS)


def tokens(text):
    return [ord(letter) for letter in text]


def updates(text, *, request_id="r", ending=None, **fields):
    finished = {request_id: ending} if ending is not None else {}
    return StepUpdates([request_id], [tokens(text)], finished=finished, **fields)


def logprobs(text):
    return [TokenLogprobs(token, -token / 100, [token, 1], [0.0, -1.0]) for token in tokens(text)]


def letters(**fields):
    decoder = Decoder(Letters)
    decoder.start(spec(**fields))
    return decoder


def test_without_a_tokenizer_ids_leave_and_text_is_empty():
    decoder = Decoder(None)
    decoder.start(spec())
    (chunk,) = decoder.push(updates("ab", ending=LENGTH))
    assert (chunk.text, chunk.token_ids, chunk.finish, chunk.stats) == ("", tokens("ab"), *LENGTH)
    assert len(decoder) == 0


def test_without_a_tokenizer_stop_strings_are_refused():
    with pytest.raises(InvalidRequestError, match="stop_token_ids"):
        Decoder(None).start(spec(stop_strings=("x",)))


@pytest.mark.parametrize("stop_strings", [(), ("bcx", "ef_"), ("z",)])
@pytest.mark.parametrize("size", [1, 2, 4, 60])
def test_logprobs_leave_with_their_tokens_however_tokens_come_and_are_held_back(stop_strings, size):
    text = "abcdefbcefabcdefbcefabcdefbcef"
    decoder = letters(stop_strings=stop_strings)
    chunks = []
    for start in range(0, len(text), size):
        piece = text[start : start + size]
        ending = LENGTH if start + size >= len(text) else None
        chunks += decoder.push(updates(piece, ending=ending, logprobs={"r": logprobs(piece)}))
    assert "".join(chunk.text for chunk in chunks) == text
    for chunk in chunks:
        assert [entry.token_id for entry in chunk.logprobs] == chunk.token_ids
    assert [entry for chunk in chunks for entry in chunk.logprobs] == logprobs(text)


def test_nothing_is_sent_while_everything_is_held_back():
    decoder = letters(stop_strings=("abc",))
    assert decoder.push(updates("a")) == []
    (chunk,) = decoder.push(updates("x"))
    assert (chunk.text, chunk.token_ids) == ("ax", tokens("ax"))


def test_a_stop_string_ends_the_request_and_asks_its_caller_to_end_it_too():
    decoder = letters(stop_strings=("bc",))
    (chunk,) = decoder.push(updates("abcd", logprobs={"r": logprobs("abcd")}))
    assert (chunk.text, chunk.token_ids) == ("a", tokens("abc"))
    assert (chunk.finish, chunk.matched_stop_string, chunk.stats) == (Finish(FinishReason.STOP), "bc", None)
    assert chunk.logprobs == logprobs("abc")
    assert decoder.push(updates("e")) == []


class TestWhatEndedIt:
    """The same commit may bring a stop string and another end."""

    def test_a_stop_string_goes_before_the_length(self):
        (chunk,) = letters(stop_strings=("bc",)).push(updates("abc", ending=LENGTH))
        assert (chunk.finish.reason, chunk.matched_stop_string, chunk.stats) == ("stop", "bc", STATS)

    def test_a_stop_id_that_completes_a_stop_string_is_the_end(self):
        finish = Finish(FinishReason.STOP, matched_stop=ord("c"))
        decoder = letters(stop_strings=("bc",), include_stop=True)
        (chunk,) = decoder.push(updates("abc", ending=(finish, STATS)))
        assert (chunk.finish, chunk.matched_stop_string) == (finish, "")

    def test_a_stop_string_before_the_last_token_goes_before_eos(self):
        decoder = letters(stop_strings=("ab",))
        (chunk,) = decoder.push(updates("xabe", ending=(Finish(FinishReason.STOP), STATS)))
        assert (chunk.text, chunk.token_ids) == ("x", tokens("xab"))
        assert (chunk.finish.reason, chunk.matched_stop_string) == ("stop", "ab")

    def test_an_error_stays_an_error(self):
        finish = Finish(FinishReason.ERROR, error="non-finite logits")
        decoder = letters(stop_strings=("bc",))
        decoder.push(updates("ab"))
        (chunk,) = decoder.push(updates("", ending=(finish, STATS)))
        assert (chunk.text, chunk.finish) == ("b", finish)


@pytest.mark.parametrize(("include_stop", "text"), [(False, "ab"), (True, "abc")])
def test_the_token_that_stops_is_delivered_as_an_id_and_as_text_only_on_request(include_stop, text):
    finish = Finish(FinishReason.STOP, matched_stop=ord("c"))
    decoder = letters(include_stop=include_stop)
    (chunk,) = decoder.push(updates("abc", ending=(finish, STATS), logprobs={"r": logprobs("abc")}))
    assert (chunk.text, chunk.token_ids, chunk.logprobs) == (text, tokens("abc"), logprobs("abc"))


def test_a_fault_in_one_text_ends_that_request_alone(caplog):
    decoder = Decoder(lambda request: Letters(request, fails_after=0 if request.request_id == "bad" else None))
    for request_id in ("good", "bad", "ending"):
        decoder.start(spec(request_id))
    chunks = decoder.push(StepUpdates(["bad", "good"], [tokens("a"), tokens("b")]))
    assert [(chunk.request_id, chunk.text) for chunk in chunks] == [("bad", ""), ("good", "b")]
    assert (chunks[0].finish.reason, chunks[0].stats) == ("error", None)
    assert chunks[1].finish is None
    assert decoder.num_faults == 1
    assert "bad" in caplog.text


def test_a_fault_in_the_last_commit_keeps_the_statistics():
    decoder = Decoder(lambda request: Letters(request, fails_after=0))
    decoder.start(spec())
    (chunk,) = decoder.push(updates("a", ending=LENGTH))
    assert (chunk.finish.reason, chunk.stats) == ("error", STATS)


def test_a_dropped_request_is_forgotten():
    decoder = letters()
    decoder.drop("r")
    decoder.drop("r")
    assert decoder.push(updates("a")) == []
    assert len(decoder) == 0


class TestPromptLogprobs:
    def test_of_all_chunks_leave_with_the_first_token(self):
        decoder = letters(prompt_logprobs=1)
        assert decoder.push(StepUpdates(["r"], [[]], prompt_logprobs={"r": logprobs("pq")})) == []
        assert decoder.push(StepUpdates([], [], prompt_logprobs={"r": logprobs("r")})) == []
        (chunk,) = decoder.push(updates("a", prompt_logprobs={"r": logprobs("s")}))
        assert chunk.prompt_logprobs == logprobs("pqrs")

    def test_are_not_repeated_after_a_preemption(self):
        decoder = letters(prompt_logprobs=1)
        decoder.push(StepUpdates(["r"], [[]], prompt_logprobs={"r": logprobs("pq")}))
        decoder.restart("r")
        decoder.push(StepUpdates(["r"], [[]], prompt_logprobs={"r": logprobs("pq")}))
        (first,) = decoder.push(updates("a", prompt_logprobs={"r": logprobs("rs")}))
        decoder.restart("r")
        (second,) = decoder.push(updates("b", prompt_logprobs={"r": logprobs("pqrs")}))
        assert (first.prompt_logprobs, second.prompt_logprobs) == (logprobs("pqrs"), [])

    def test_leave_even_while_the_text_of_the_first_token_is_held_back(self):
        decoder = letters(prompt_logprobs=1, stop_strings=("ab",))
        (chunk,) = decoder.push(updates("a", prompt_logprobs={"r": logprobs("pq")}))
        assert (chunk.text, chunk.token_ids, chunk.prompt_logprobs) == ("", [], logprobs("pq"))
