"""Whether the tokens that a caller resumes from already end a choice.

A stream may break between its last token and the message that says so; whoever resumes it must get that message, and
no token more. The rules are the scheduler's and the decoder's. Holds no state.
"""

from __future__ import annotations

from headstart.contract.request import GenerateSpec
from headstart.core.request import RequestState
from headstart.core.step import Chunk, Finish, FinishReason
from headstart.scheduler.outcome import find_finish
from headstart.text.detokenizer import StreamDecoder
from headstart.text.tokenizer import Tokenizer


def find_resumed_end(
    spec: GenerateSpec, *, max_len: int, eos_token_ids: frozenset[int], tokenizer: Tokenizer | None
) -> Chunk | None:
    """The last chunk of a choice whose resume tokens leave nothing to run, else None. It has no tokens and no stats.

    Takes time in proportion to the resume tokens when there are stop strings: call it off the event loop.
    """
    if not spec.resume_token_ids:
        return None
    request = RequestState(spec, max_len=max_len, eos_token_ids=eos_token_ids)
    finish, token_ids = find_finish(request, list(spec.resume_token_ids), eos_token_ids)
    stop_string = _find_stop_string(spec, token_ids, finish, tokenizer)
    if stop_string:
        finish = Finish(FinishReason.STOP)
    return None if finish is None else Chunk(spec.request_id, "", [], finish=finish, matched_stop_string=stop_string)


def _find_stop_string(
    spec: GenerateSpec, token_ids: list[int], finish: Finish | None, tokenizer: Tokenizer | None
) -> str:
    """The stop string that ends the text before `finish` does, or "". Eos and stop ids go before it, a length does not.

    Tokens that were delivered hold no match that might still grow: text that could have begun one is held back.
    """
    if tokenizer is None or not spec.stop_strings:
        return ""
    is_stop = finish is not None and finish.reason is FinishReason.STOP
    audible = token_ids[:-1] if is_stop and not spec.include_stop else token_ids
    decoder = StreamDecoder(tokenizer, stop_strings=spec.stop_strings, min_tokens=spec.min_tokens)
    delta = decoder.push(audible, is_last=True)
    if is_stop and delta.num_tokens == len(token_ids):
        return ""
    return delta.stop_string or ""
