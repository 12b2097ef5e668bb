"""Follows one pod's stream for as long as the pod exists: connects, resumes, notices silence, starts anew.

A pod counts as live while its stream talks. Streams end, pods restart and networks swallow packets: each time the next
stream resumes where the last one was applied, or from a snapshot when the pod says that it cannot. Knows nothing of
other pods or of requests. A pod that stays away is tried every second and told of once. Owner of its state: the task
that runs `follow`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio
from headstart.contract.proto import prefix_cache_pb2, prefix_cache_pb2_grpc

from headstart_operator.decision.identity import PodRef
from headstart_operator.decision.index import PrefixIndex
from headstart_operator.pods.connection import REFUSALS
from headstart_operator.pods.replica import OutOfStepError, PodReplica, Resync
from headstart_operator.pods.silence import SilenceTimer

SILENCE_S = 2.0
"""Four heartbeats: a pod that says nothing for so long is taken for a black hole."""

_FIRST_BACKOFF_S = 0.05
_MAX_BACKOFF_S = 1.0
_MAX_CAUSE_CHARS = 200

_LOGGER = logging.getLogger(__name__)


class Subscriber:
    """`silence` is set while the pod, or the way to it, is silent. `resyncs` counts snapshots needed, by reason.

    `lost_s`, on the event loop's clock, is when a stream that was well broke off; None once it is back, and when it
    did not break off by itself. `is_refused` is set while the pod does not let the router in. `failure` is why else it
    is not live, in words; "" while it is, and before it was tried. `ref` is to be kept as discovery has it.
    """

    def __init__(
        self,
        ref: PodRef,
        channel: grpc.aio.Channel,
        index: PrefixIndex,
        *,
        resyncs: Counter[Resync],
        silence_s: float = SILENCE_S,
    ) -> None:
        self.ref = ref
        self._stub = prefix_cache_pb2_grpc.PrefixCacheStub(channel)
        self._resyncs = resyncs
        self._silence_s = silence_s
        self._backoff_s = _FIRST_BACKOFF_S
        self.replica = PodReplica(index, ref.uid, resyncs=resyncs)
        self.silence = asyncio.Event()
        self.is_live = False
        self.lost_s: float | None = None
        self.is_refused = False
        self.failure = ""
        self.num_digest_resyncs = 0
        self._told: tuple[int, str] | None = None
        self._call: Any = None
        self._is_asked_anew = False

    async def follow(self) -> AsyncGenerator[tuple[str, ...], None]:
        """Runs until it is closed. Yields after each change: the request ids that the pod has taken in, often none."""
        try:
            async with aclosing(self._follow()) as changes:
                async for accepted in changes:
                    yield accepted
        except Exception:
            # A fault of ours, perhaps in the midst of a message.
            self.replica.forget_position()
            raise
        finally:
            self.is_live = False

    def ask_anew(self) -> None:
        """The pod may have ceased to let us in: ask it by a new stream. It is not live until it agrees."""
        if self._call is not None and self.is_live:
            self.is_live = False
            self._is_asked_anew = True
            self._call.cancel()

    async def _follow(self) -> AsyncGenerator[tuple[str, ...], None]:
        while True:
            try:
                async with aclosing(self._watch_once()) as changes:
                    async for accepted in changes:
                        yield accepted
                self._lose()
            except OutOfStepError as error:
                # The pod itself is well: requests still go there while the snapshot comes.
                self._resyncs[error.reason] += 1
                self.num_digest_resyncs += error.reason == "digest"
                self.replica.forget_position()
                self._tell(logging.WARNING, f"out of step ({error.reason}), asking for a snapshot")
            except grpc.aio.AioRpcError as error:
                self._lose()
                self._tell_end(error)
            except TimeoutError:
                self.is_live = False
                self.lost_s = None
                self.silence.set()
                self.failure = f"silent for {self._silence_s:.1f} s"
                self._tell(logging.WARNING, f"{self.failure}, no requests go there")
            yield ()
            await asyncio.sleep(self._backoff_s * random.uniform(0.5, 1.0))
            self._backoff_s = min(2 * self._backoff_s, _MAX_BACKOFF_S)

    def _lose(self) -> None:
        if self.is_live and not self.replica.load.draining:
            self.lost_s = asyncio.get_running_loop().time()
        self.is_live = False

    def _tell_end(self, error: grpc.aio.AioRpcError) -> None:
        code = error.code()
        self.is_refused = code in REFUSALS
        if self.is_refused:
            self.lost_s = None
            self.failure = ""
            wanted = "operator.pod_key must be a key of one of its admin tenants"
            self._tell(logging.WARNING, f"refuses the router ({code.name}): {wanted}")
        else:
            self.failure = f"{code.name}: {_cause(error.details() or '', self.ref.address)}"
            is_expected = not self.ref.is_wanted or self.replica.load.draining
            level = logging.INFO if is_expected else logging.WARNING
            what = f"its stream ended with {code.name}"
            self._tell(level, what, f" ({self.ref.address}: {self.failure})")

    def _tell(self, level: int, what: str, more: str = "") -> None:
        """One line a change of state: what was said last holds until something else is, or weighs more."""
        if (level, what) != self._told:
            self._told = level, what
            _LOGGER.log(level, "pod %s: %s%s", self.ref.name, what, more)

    async def _watch_once(self) -> AsyncGenerator[tuple[str, ...], None]:
        epoch, seq = self.replica.begin()
        self._is_asked_anew = False
        self._call = call = self._stub.Watch(prefix_cache_pb2.WatchRequest(epoch=epoch, seq=seq))
        timer = SilenceTimer(self._silence_s, call.cancel)
        try:
            while (update := await call.read()) is not grpc.aio.EOF:
                timer.heard()
                accepted = self.replica.take(update)
                self._check_uid()
                if update.HasField("load") and self.replica.is_synced and not self._is_asked_anew:
                    self._come_alive()
                yield accepted
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling() or not (timer.is_silent or self._is_asked_anew):
                raise
            if timer.is_silent:
                raise TimeoutError from None
        finally:
            timer.stop()
            call.cancel()

    def _come_alive(self) -> None:
        """The index and the load are both of this process now."""
        self.is_live = True
        self.is_refused = False
        self.failure = ""
        self.lost_s = None
        self._backoff_s = _FIRST_BACKOFF_S
        if self._told:
            _LOGGER.info("pod %s: followed again", self.ref.name)
            self._told = None
        if self.silence.is_set():
            self.silence = asyncio.Event()

    def _check_uid(self) -> None:
        """An address may have been given to another pod meanwhile: that one is not meant."""
        hello = self.replica.hello
        if hello is not None and hello.pod_uid and self.ref.uid not in (hello.pod_uid, self.ref.address):
            self.is_live = False
            self.failure = "another pod answers there"
            self.replica.drop()
            raise OutOfStepError("other_pod")


def _cause(details: str, address: str) -> str:
    """What gRPC says of a connection, without what it says of its own workings."""
    _, _, last = details.rpartition("last error: ")
    return last.rpartition(f"{address}: ")[2][:_MAX_CAUSE_CHARS]
