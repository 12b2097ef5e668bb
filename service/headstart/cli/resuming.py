"""One answer that outlives its server: when router or pod are lost, the rest is asked for where the stream broke off.

Of a server that was never reached nothing is expected: most likely its address is wrong. Owner of its state: the
generator of one answer.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Generator, Iterator

import grpc

from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc

_PAUSES_S = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Before each new try since the last token: long enough for a program to start again."""

_SEED_BITS = 63
_NOT_REACHED = "failed to connect"  # gRPC's own words


def stream_answer(
    stub: rpc.InferenceStub, request: pb.GenerateRequest, *, timeout: float | None, was_reached: bool = False
) -> Generator[pb.GenerateResponse, None, None]:
    """The messages of Generate, each token and each choice's end once, however many servers it takes.

    `timeout` is in seconds and for all of it; `was_reached` says that the server has answered before. Each loss is one
    line on stderr. Raises RpcError when it does not come back, or for what a second try would not mend.
    """
    answer = _Answer(request)
    deadline_s = None if timeout is None else time.monotonic() + timeout
    while True:
        call = stub.Generate(answer.rest(), timeout=None if deadline_s is None else deadline_s - time.monotonic())
        try:
            yield from filter(answer.take, call)
            yield from answer.last_words()
            return
        except grpc.RpcError as error:
            was_reached = was_reached or _NOT_REACHED not in (error.details() or "")
            may_go_on = was_reached and error.code() is grpc.StatusCode.UNAVAILABLE
            if may_go_on and answer.is_whole:
                return
            pause_s = answer.next_pause(deadline_s) if may_go_on else None
            if pause_s is None:
                yield from answer.last_words()
                raise
            answer.tell_loss(error)
        finally:
            call.cancel()
        time.sleep(pause_s)


class _Answer:
    """What came of one request so far."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        self._request = pb.GenerateRequest()
        self._request.CopyFrom(request)
        if not request.sampling.HasField("seed"):  # else each server would draw its own
            self._request.sampling.seed = secrets.randbits(_SEED_BITS)
        self._emitted: list[list[int]] = [[] for _ in range(max(1, request.n))]
        self._unfinished = set(range(len(self._emitted)))
        self._held: dict[int, pb.GenerateResponse] = {}
        self._start_s = time.monotonic()
        self._ttft_s = 0.0
        self._was_lost = False
        self._num_pauses = 0

    @property
    def is_whole(self) -> bool:
        """Whether every choice has its end."""
        return not self._unfinished

    def rest(self) -> pb.GenerateRequest:
        """The request for what is missing."""
        self._request.ClearField("resume")
        if any(self._emitted):
            for token_ids in self._emitted:
                self._request.resume.choices.add(token_ids=token_ids)
        return self._request

    def take(self, response: pb.GenerateResponse) -> bool:
        """Note a message. False when it is not to be shown: it was, or the choice may still go on elsewhere."""
        if response.HasField("chunk"):
            index = response.chunk.index
            self._ttft_s = self._ttft_s or time.monotonic() - self._start_s
            self._num_pauses = 0
            self._emitted[index].extend(response.chunk.token_ids)
            self._held.pop(index, None)
            return index in self._unfinished
        finished = response.finished
        if finished.index not in self._unfinished:
            return False
        if finished.finish_reason == pb.FINISH_REASON_CANCELLED:
            self._held[finished.index] = response
            return False
        if self._was_lost:
            finished.timings.ttft_s = self._ttft_s  # the server knows of its own part only
        self._unfinished.discard(finished.index)
        return True

    def last_words(self) -> Iterator[pb.GenerateResponse]:
        """Ends that were kept back, as nobody gives better ones."""
        for index in sorted(self._unfinished & self._held.keys()):
            yield self._held[index]

    def next_pause(self, deadline_s: float | None) -> float | None:
        """Seconds until the next try; None when enough was tried or time is up."""
        if self._num_pauses == len(_PAUSES_S):
            return None
        pause_s = _PAUSES_S[self._num_pauses]
        return pause_s if deadline_s is None or time.monotonic() + pause_s < deadline_s else None

    def tell_loss(self, error: grpc.RpcError) -> None:
        """One line on stderr when it is the first since the last token."""
        if not self._num_pauses:
            # On a terminal the text so far stands on a line of its own.
            lead = "\n" if any(self._emitted) and sys.stderr.isatty() else ""
            num_tokens = sum(map(len, self._emitted))
            print(
                f"{lead}headstart: {error.code().name}: {error.details()}; asking again after {num_tokens} tokens",
                file=sys.stderr,
                flush=True,
            )
        self._num_pauses += 1
        self._was_lost = True
