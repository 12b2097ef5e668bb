"""The `Inference` service of a pod over gRPC.

What a request needs and gives is the business of `PodCompletions`; this module adds what only gRPC has: metadata,
deadlines, trailers. Holds no state.
"""

# ruff: noqa: ARG002, N802  (gRPC fixes the names and the arguments of handlers)

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing
from typing import Any

import grpc.aio

from headstart.contract import codec
from headstart.contract.identity import PodIdentity
from headstart.contract.proto import inference_pb2, inference_pb2_grpc
from headstart.edge.access import Gate
from headstart.edge.limits import Limits
from headstart.edge.operation import told_operation
from headstart.edge.prompts import PromptReader
from headstart.edge.validation import check_prompt, check_question, check_tokenize
from headstart.errors import FailedPreconditionError, UnavailableError
from headstart.server.completions import PodCompletions
from headstart.server.load_report import LOAD_REPORT_KEY, encode_load_report
from headstart.text.tokenizer import Tokenizer

EPOCH_KEY = "headstart-epoch"

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """One pod's model behind gRPC. `tokenizer` is None for a pod that only takes token ids, `gate` where no keys are
    asked for.
    """

    def __init__(
        self,
        completions: PodCompletions,
        *,
        identity: PodIdentity,
        limits: Limits,
        prompts: PromptReader,
        tokenizer: Tokenizer | None,
        gate: Gate | None = None,
    ) -> None:
        self._completions = completions
        self._identity = identity
        self._limits = limits
        self._prompts = prompts
        self._tokenizer = tokenizer
        self._gate = gate

    async def Generate(self, request: inference_pb2.GenerateRequest, context: Context) -> None:
        self._check_epoch(context)
        usage = None
        operation = told_operation(context.invocation_metadata(), self._gate)
        calls = self._completions.generate(request, deadline_s=self._deadline_s(context), operation=operation)
        try:
            async with aclosing(calls) as messages:
                async for message in messages:
                    if message.WhichOneof("event") == "finished" and message.finished.index == 0:
                        usage = message.finished.usage
                    await context.write(message)
        finally:
            if usage is not None:
                self._set_trailers(context, usage)

    async def Tokenize(
        self, request: inference_pb2.TokenizeRequest, context: Context
    ) -> inference_pb2.TokenizeResponse:
        check_tokenize(request, self._limits)
        token_ids = await self._prompts.read(request)
        check_prompt(request.WhichOneof("prompt") or "prompt", token_ids, self._limits)
        return inference_pb2.TokenizeResponse(token_ids=token_ids)

    async def GetTokenizer(self, request: inference_pb2.GetTokenizerRequest, context: Context) -> None:
        check_question(request, self._limits)
        if self._tokenizer is None:
            raise FailedPreconditionError("this pod has no tokenizer")
        document = await asyncio.to_thread(self._tokenizer.to_document)
        digest = hashlib.sha256(document).hexdigest()
        for message in codec.encode_tokenizer(document, digest):
            await context.write(message)

    async def GetModel(self, request: inference_pb2.GetModelRequest, context: Context) -> inference_pb2.Model:
        check_question(request, self._limits)
        return codec.encode_model(self._identity)

    def _check_epoch(self, context: Context) -> None:
        """A caller that means an earlier process at this address must not be served by this one."""
        epoch = _metadata_value(context, EPOCH_KEY)
        if epoch and epoch != self._identity.epoch:
            raise UnavailableError("the pod that you mean is gone; another one has its address")

    def _deadline_s(self, context: Context) -> float | None:
        remaining_s: float | None = context.time_remaining()
        return None if remaining_s is None else self._completions.clock() + remaining_s

    def _set_trailers(self, context: Context, usage: inference_pb2.Usage) -> None:
        context.set_trailing_metadata(
            (
                ("headstart-prompt-tokens", str(usage.prompt_tokens)),
                ("headstart-cached-tokens", str(usage.cached_tokens)),
                ("headstart-pod", self._identity.pod_name),
                (LOAD_REPORT_KEY, encode_load_report(self._identity, self._completions.engine_stats)),
            )
        )


def _metadata_value(context: Context, key: str) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == key:
            return value if isinstance(value, str) else ""
    return ""
