"""The ways to a running server that `headstart bench serve` measures: gRPC and HTTP.

Each counts the tokens of a stream as they come and does nothing else with them. Owner of a client: whoever opened it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, cast

import aiohttp
import grpc.aio

from headstart.cli.bench.serve_drive import ModelLimits
from headstart.cli.bench.serve_workloads import Ask
from headstart.cli.client import Access, channel_options
from headstart.contract.proto import inference_pb2 as pb
from headstart.contract.proto import inference_pb2_grpc as rpc
from headstart.edge.keyed_channel import KeyedChannel
from headstart.errors import UnavailableError

_READ_BUFFER_BYTES = 1 << 20
_MODELS_TIMEOUT_S = 30.0
MAX_SILENCE_S = 60.0
"""An HTTP server is given up when it sends nothing for so long: unlike gRPC, HTTP tells no long prompt from a hang."""


class GrpcClient:
    """A pod or an operator at `endpoint`.

    A salt of its own keeps what others left in the cache out of the figures.
    """

    def __init__(self, endpoint: str, access: Access) -> None:
        options = channel_options(access)
        if access.credentials is None:
            channel = grpc.aio.insecure_channel(endpoint, options=options)
        else:
            channel = grpc.aio.secure_channel(endpoint, access.credentials, options=options)
        self._channel: Any = KeyedChannel(channel, lambda: access.key) if access.key else channel
        self._inference = rpc.InferenceStub(self._channel)
        self._salt = secrets.token_hex(4)

    async def limits(self) -> ModelLimits:
        model = await self._inference.GetModel(pb.GetModelRequest())
        return ModelLimits(model.context_length, model.vocab_size)

    async def stream(self, ask: Ask) -> AsyncGenerator[int, None]:
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=ask.prompt),
            max_tokens=ask.num_output,
            sampling=pb.Sampling(temperature=0.0),
            ignore_eos=True,
            cache_salt=self._salt,
        )
        async for response in self._inference.Generate(request):
            if response.chunk.token_ids:
                yield len(response.chunk.token_ids)

    async def close(self) -> None:
        await self._channel.close()


class HttpClient:
    """An OpenAI-compatible server at `url`, by POST /v1/completions with token ids.

    Tokens are counted by the ids that come with the text (`return_token_ids`, as vLLM has it). A server that ignores
    this is believed to send one token an event, and its usage at the end says how many there were more.
    """

    def __init__(self, url: str, key: str) -> None:
        self._url = url.rstrip("/")
        self._salt = secrets.token_hex(4)
        self._model = ""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=MAX_SILENCE_S),
            read_bufsize=_READ_BUFFER_BYTES,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    async def limits(self) -> ModelLimits:
        timeout = aiohttp.ClientTimeout(total=_MODELS_TIMEOUT_S)
        try:
            async with self._session.get(f"{self._url}/v1/models", timeout=timeout) as response:
                await _check_status(response)
                (model, *_) = (await response.json())["data"]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"{self._url} cannot be reached: {error}") from None
        except (ValueError, KeyError):
            raise UnavailableError(f"{self._url}/v1/models names no model") from None
        self._model = model["id"]
        return ModelLimits(model.get("max_model_len"), None)

    async def stream(self, ask: Ask) -> AsyncGenerator[int, None]:
        body = {
            "model": self._model,
            "prompt": ask.prompt,
            "max_tokens": ask.num_output,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_salt": self._salt,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
        }
        num_seen = 0
        try:
            async with self._session.post(f"{self._url}/v1/completions", json=body) as response:
                await _check_status(response)
                async for event in _events(response):
                    num_tokens = count_tokens(event, num_seen)
                    num_seen += num_tokens
                    if num_tokens:
                        yield num_tokens
        except aiohttp.ClientError as error:
            raise UnavailableError(f"{self._url} broke off: {error}") from None

    async def close(self) -> None:
        await self._session.close()


def count_tokens(event: dict[str, Any], num_seen: int) -> int:
    """New tokens in an event of a stream that has brought `num_seen`. Raises UnavailableError for an error event."""
    if "error" in event:
        raise UnavailableError(str(event["error"]))
    for choice in event.get("choices") or ():
        token_ids = choice.get("token_ids")
        return len(token_ids) if token_ids is not None else int(bool(choice.get("text")))
    usage = event.get("usage") or {}
    return max(0, int(usage.get("completion_tokens", num_seen)) - num_seen)


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[dict[str, Any]]:
    async for line in response.content:
        if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
            yield cast("dict[str, Any]", json.loads(line[5:]))


async def _check_status(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        text = (await response.text())[:500]
        raise UnavailableError(f"{response.url} answered {response.status}: {text}")
