"""What the operator must know of a group of pods to check and tokenize its prompts, asked from the pods themselves.

One tokenizer is kept per fingerprint, one description per pod. Knows nothing of loads, caches or requests in flight.
Owner of its state: the operator's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.edge.limits import Limits
from headstart.edge.prompts import PromptReader
from headstart.errors import ModelError, UnavailableError
from headstart.text.chat import ChatTemplate
from headstart.text.tokenizer import Tokenizer

from headstart_operator.decision.hashing import PrefixHasher
from headstart_operator.decision.identity import GroupKey, PodKey
from headstart_operator.decision.view import PodView

_TIMEOUT_S = 20.0

# The most that a pod's settings may say, for pods that do not tell what theirs say.
_MAX_N = 128
_MAX_LOGPROBS = 100
_MAX_STOP_STRINGS = 1024

MAX_REQUEST_ID_BYTES = 120
"""Shorter than a pod's own bound, because jobs and their attempts are numbered behind it."""

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How prompts of one group are read. `document` is the tokenizer, empty for pods that have none."""

    model: pb.Model
    limits: Limits
    prompts: PromptReader
    document: bytes
    hasher: PrefixHasher = field(default_factory=PrefixHasher)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """A tokenizer and the threads that run it. Without one, only token ids are read."""

    prompts: PromptReader
    document: bytes
    max_token_bytes: int


class Catalog:
    """`max_prompt_bytes` bounds the text of a prompt."""

    def __init__(self, *, max_prompt_bytes: int, num_threads: int = 2) -> None:
        self._max_prompt_bytes = max_prompt_bytes
        self._num_threads = num_threads
        self._models: dict[PodKey, pb.Model] = {}
        self._texts: dict[str, _Text] = {}
        self._learning: dict[PodKey, asyncio.Task[None]] = {}
        self._widest: Limits | None = None
        self._hasher = PrefixHasher()

    @property
    def is_informed(self) -> bool:
        """Whether any pod has said what it serves."""
        return bool(self._models)

    async def entry(self, views: Sequence[PodView]) -> Entry:
        """Of the group that these pods make up. Waits for the first answer when none of them is known yet.

        Raises UnavailableError when no pod answers.
        """
        known = [view for view in views if self._is_known(view)]
        if len(known) < len(views):
            self._learn(views)
        while not known:
            asked = [self._learning[view.key] for view in views if view.key in self._learning]
            if not asked:
                raise UnavailableError("no pod of this model answers yet", retry_after_s=1.0)
            await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
            known = [view for view in views if self._is_known(view)]
        # Pods of one group may allow requests of different lengths: who can take one is seen when a pod is chosen.
        models = [self._models[view.key] for view in known]
        model = max(models, key=lambda each: each.context_length)
        text = self._texts[known[0].group.tokenizer_fingerprint]
        return Entry(
            model=model,
            limits=self._limits(model, models, text),
            prompts=text.prompts,
            document=text.document,
            hasher=self._hasher,
        )

    def context_length(self, key: PodKey) -> int | None:
        """Tokens that prompt and output share on this pod; None before it has said."""
        model = self._models.get(key)
        return None if model is None else model.context_length

    def is_prepared(self, views: Collection[PodView]) -> bool:
        """Whether each of them has said all that its requests need."""
        return all(self._is_known(view) for view in views)

    def learn(self, views: Sequence[PodView], *, away: Collection[tuple[PodKey, GroupKey]] = ()) -> None:
        """Ask new pods ahead of their first request; forget those that are gone, but not those that are only `away`."""
        present = {view.key for view in views} | {key for key, _ in away}
        for key in self._models.keys() - present:
            del self._models[key]
            self._widest = None
        for key in self._learning.keys() - present:
            self._learning.pop(key).cancel()
        fingerprints = {view.group.tokenizer_fingerprint for view in views}
        fingerprints |= {group.tokenizer_fingerprint for _, group in away}
        for fingerprint in self._texts.keys() - fingerprints:
            # Its threads end by themselves once the last prompt that is being read lets go of them.
            del self._texts[fingerprint]
        self._learn(views)

    def widest_limits(self) -> Limits:
        """What is above them none of the models known now could take. Raises UnavailableError while none is known."""
        if not self._models:
            raise UnavailableError("no pod has said yet what it serves", retry_after_s=1.0)
        if self._widest is None:
            models = self._models.values()
            self._widest = Limits(
                model="",
                max_len=max(model.context_length for model in models),
                vocab_size=max(model.vocab_size for model in models),
                max_token_bytes=max((text.max_token_bytes for text in self._texts.values()), default=1),
                max_prompt_bytes=self._max_prompt_bytes,
                max_n=_told(models, "max_n", _MAX_N),
                max_stop_strings=_told(models, "max_stop_strings", _MAX_STOP_STRINGS),
            )
        return self._widest

    async def close(self) -> None:
        for task in self._learning.values():
            task.cancel()
        await asyncio.gather(*self._learning.values(), return_exceptions=True)
        for text in self._texts.values():
            text.prompts.close()

    def _is_known(self, view: PodView) -> bool:
        return view.key in self._models and view.group.tokenizer_fingerprint in self._texts

    def _learn(self, views: Sequence[PodView]) -> None:
        for view in views:
            if not self._is_known(view) and view.key not in self._learning:
                self._learning[view.key] = asyncio.create_task(self._ask(view))

    async def _ask(self, view: PodView) -> None:
        stub: Any = rpc.InferenceStub(view.channel)
        fingerprint = view.group.tokenizer_fingerprint
        try:
            model = await stub.GetModel(pb.GetModelRequest(), timeout=_TIMEOUT_S)
            if fingerprint not in self._texts:
                text = await self._fetch_text(stub, fingerprint)
                self._texts.setdefault(fingerprint, text)
        except (grpc.aio.AioRpcError, ModelError) as error:
            reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error)
            _LOGGER.warning("pod %s does not say what it serves: %s", view.name, reason)
        else:
            self._models[view.key] = model
            self._widest = None
        finally:
            self._learning.pop(view.key, None)

    async def _fetch_text(self, stub: Any, fingerprint: str) -> _Text:
        """Raises AioRpcError, and ModelError for a document that is not the one that was announced."""
        if not fingerprint:
            prompts = PromptReader(None, None, num_threads=self._num_threads)
            return _Text(prompts=prompts, document=b"", max_token_bytes=1)
        document = b"".join(
            [chunk.content async for chunk in stub.GetTokenizer(pb.GetTokenizerRequest(), timeout=_TIMEOUT_S)]
        )
        tokenizer, longest = await asyncio.to_thread(_build, document)
        if tokenizer.fingerprint != fingerprint:
            raise ModelError("its tokenizer is not the one that it announces")
        prompts = PromptReader(tokenizer, ChatTemplate.of(tokenizer), num_threads=self._num_threads)
        return _Text(prompts=prompts, document=document, max_token_bytes=longest)

    def _limits(self, model: pb.Model, models: Collection[pb.Model], text: _Text) -> Limits:
        return Limits(
            model=model.name,
            max_len=model.context_length,
            vocab_size=model.vocab_size,
            max_token_bytes=text.max_token_bytes,
            max_prompt_bytes=self._max_prompt_bytes,
            max_n=_told(models, "max_n", _MAX_N),
            max_logprobs=_told(models, "max_logprobs", _MAX_LOGPROBS),
            max_stop_strings=_told(models, "max_stop_strings", _MAX_STOP_STRINGS),
            max_request_id_bytes=MAX_REQUEST_ID_BYTES,
            has_priorities=model.features.get("scheduling_policy") == "priority",
        )


def _told(models: Collection[pb.Model], name: str, most: int) -> int:
    """What the most generous of these pods takes, as its features tell it. `most` of one that does not."""
    told = (model.features.get(name, "") for model in models)
    return max(min(int(bound), most) if bound.isdecimal() else most for bound in told)


def _build(document: bytes) -> tuple[Tokenizer, int]:
    tokenizer = Tokenizer.from_document(document)
    return tokenizer, max(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size))
