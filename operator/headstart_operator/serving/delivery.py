"""What a client has got of one request: enough to go on with it on another pod after its own died.

Messages of chunks are kept as they came and read only when it matters, which is nearly never. Knows the messages of
Generate, not pods. Owner of its state: the request's handler.
"""

from __future__ import annotations

from collections.abc import Sequence

from headstart.contract.proto import inference_pb2 as pb

_FINISHED_TAG = 0x12
"""First byte of a GenerateResponse whose event is `finished`: field 2, length-delimited. Of a chunk it is 0x0a."""

_MAX_KEPT_BYTES = 64 * 1024


def is_finished(raw: bytes) -> bool:
    """Whether an encoded GenerateResponse ends a choice."""
    return bool(raw) and raw[0] == _FINISHED_TAG


class Delivery:
    """Tokens sent to the client, by choice, those of the caller's own `resume` first."""

    def __init__(self, request: pb.GenerateRequest) -> None:
        num_choices = max(1, request.n)
        resumed: Sequence[Sequence[int]] = [choice.token_ids for choice in request.resume.choices]
        self._emitted = [list(resumed[index]) if index < len(resumed) else [] for index in range(num_choices)]
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self.unfinished = set(range(num_choices))
        """Choices whose `finished` the client has not got."""
        self.has_begun = False
        """Whether the client has got anything: from then on the request is continued, not tried again."""

    def add_chunk(self, raw: bytes) -> None:
        """Note an encoded chunk that was sent."""
        self.has_begun = True
        self._kept.append(raw)
        self._kept_bytes += len(raw)
        if self._kept_bytes > _MAX_KEPT_BYTES:
            self._read_kept()

    def add_finished(self, index: int) -> None:
        """Note that a choice has got its end."""
        self.has_begun = True
        self.unfinished.discard(index)

    def emitted(self) -> list[list[int]]:
        """Token ids sent so far, by choice."""
        self._read_kept()
        return self._emitted

    def continuation(self, request: pb.GenerateRequest) -> pb.GenerateRequest:
        """The request that goes on where the client's stream broke off.

        A choice that has all its tokens is named too, for random numbers hang on the index. The pod says its end at
        once and no token.
        """
        resumed = pb.GenerateRequest()
        resumed.CopyFrom(request)
        resumed.ClearField("resume")
        for token_ids in self.emitted():
            resumed.resume.choices.add(token_ids=token_ids)
        if self.has_begun:  # what a client gets once, it has
            resumed.echo_token_ids = False
            resumed.ClearField("prompt_logprobs")
        return resumed

    def _read_kept(self) -> None:
        for raw in self._kept:
            chunk = pb.GenerateResponse.FromString(raw).chunk
            self._emitted[chunk.index].extend(chunk.token_ids)
        self._kept.clear()
        self._kept_bytes = 0
