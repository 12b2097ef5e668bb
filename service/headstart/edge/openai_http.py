"""OpenAI's HTTP interface, in front of whatever runs requests: a pod's engine or the operator.

It translates and streams; checks, scheduling and routing are done behind `Completions`. The answer's head is sent with
the first message, so that a refusal still has its own HTTP status. Owner of its state: the server's event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing
from typing import Any, TypeVar

from aiohttp import web
from opentelemetry import trace
from opentelemetry.trace import Tracer

from headstart.contract.proto import inference_pb2 as pb
from headstart.edge.access import CALLER
from headstart.edge.completions import Completions
from headstart.edge.hop import Hop
from headstart.edge.http_body import read_body
from headstart.edge.interleave import interleave
from headstart.edge.limits import Limits
from headstart.edge.openai_errors import error_body, error_headers, http_status
from headstart.edge.openai_requests import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    chat_request,
    completion_requests,
    parse_chat,
    parse_completion,
)
from headstart.edge.openai_responses import Answer, model_entry, model_list
from headstart.edge.openai_sizes import max_body_bytes
from headstart.errors import HeadstartError, InternalError, InvalidRequestError, NotFoundError, UnavailableError
from headstart.telemetry.propagation import incoming_context
from headstart.telemetry.spans import mark_error, server_span

# Parsing more than this would hold up the event loop for milliseconds.
_PARSE_INLINE_BYTES = 64 << 10
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
_LOGGER = logging.getLogger(__name__)
_BodyT = TypeVar("_BodyT", bound=GenerationBody)
_Requests = list[pb.GenerateRequest]
_Route = Callable[[web.Request], Awaitable[web.StreamResponse]]
_Messages = AsyncIterator[tuple[int, pb.GenerateResponse]]


class OpenAiFront:
    """The routes under `/v1`. Until `attach` says who runs requests, they are answered "not yet"."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._completions: Completions | None = None
        # Threads that parse hold the interpreter lock: of several, each may have its turn before the event loop has.
        self._parsing = asyncio.Lock()

    def attach(self, completions: Completions) -> None:
        self._completions = completions

    def application(self) -> web.Application:
        """A new application with these routes; its owner may add others."""
        app = web.Application(middlewares=[self._answer_errors])
        app.router.add_get("/v1/models", self._list_models)
        app.router.add_get("/v1/models/{name:.+}", self._show_model)
        app.router.add_post("/v1/completions", self._traced(self._complete))
        app.router.add_post("/v1/chat/completions", self._traced(self._chat))
        return app

    # -- routes

    async def _list_models(self, http_request: web.Request) -> web.StreamResponse:  # noqa: ARG002
        return web.json_response(model_list(await self._open().models()))

    async def _show_model(self, http_request: web.Request) -> web.StreamResponse:
        name = http_request.match_info["name"]
        for model in await self._open().models():
            if model.name == name:
                return web.json_response(model_entry(model))
        raise NotFoundError("model: not served here; GET /v1/models lists what is")

    async def _chat(self, http_request: web.Request) -> web.StreamResponse:
        body, requests = await self._read(http_request, _chat)
        answer = Answer(
            f"chatcmpl-{requests[0].request_id}",
            model=await self._model_name(body),
            is_chat=True,
            num_choices=body.num_choices,
            has_token_ids=bool(body.return_token_ids),
        )
        return await self._answer(http_request, body, requests, answer)

    async def _complete(self, http_request: web.Request) -> web.StreamResponse:
        body, requests = await self._read(http_request, _completion)
        answer = Answer(
            f"cmpl-{requests[0].request_id}",
            model=await self._model_name(body),
            is_chat=False,
            num_calls=len(requests),
            num_choices=body.num_choices,
            has_token_ids=bool(body.return_token_ids),
        )
        return await self._answer(http_request, body, requests, answer)

    async def _read(
        self, http_request: web.Request, understand: Callable[[bytes, Limits], tuple[_BodyT, _Requests]]
    ) -> tuple[_BodyT, _Requests]:
        """What was sent, and what it asks for. Raises InvalidRequestError."""
        limits = await self._open().limits()
        raw = await read_body(http_request, max_bytes=max_body_bytes(limits))
        if len(raw) <= _PARSE_INLINE_BYTES:
            return understand(raw, limits)
        async with self._parsing:
            return await asyncio.to_thread(understand, raw, limits)

    # -- answers

    async def _answer(
        self, http_request: web.Request, body: GenerationBody, requests: Sequence[pb.GenerateRequest], answer: Answer
    ) -> web.StreamResponse:
        completions = self._open()
        caller = http_request.get(CALLER)
        tenant = caller.tenant if caller is not None else ""
        if caller is not None:
            requests = [caller.admit(request) for request in requests]
        async with AsyncExitStack() as stack:
            # Closed in the other order: first the reading stops, then the calls are cancelled, none after another.
            hop = Hop()
            calls = [completions.generate(request, tenant=tenant, hop=hop) for request in requests]
            stack.push_async_callback(_close_all, calls)
            messages = await stack.enter_async_context(aclosing(interleave(calls)))
            if body.stream:
                return await _stream(http_request, messages, answer, includes_usage=body.includes_usage)
            async for call_index, message in messages:
                answer.take(call_index, message)
        answer.check_complete()
        return web.json_response(answer.whole())

    async def _model_name(self, body: GenerationBody) -> str:
        if body.model:
            return body.model
        models = await self._open().models()
        return models[0].name if models else ""

    def _open(self) -> Completions:
        if self._completions is None:
            raise UnavailableError("the model is still loading", retry_after_s=1.0)
        return self._completions

    # -- around every route

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: _Route) -> web.StreamResponse:
        try:
            return await handler(request)
        except HeadstartError as error:
            return _refusal(error)
        except web.HTTPException as error:
            return _http_refusal(error)
        except ConnectionError:
            raise  # the client is gone, and nobody is left to tell
        except Exception as error:
            return _refusal(_unexpected(error, request))

    def _traced(self, route: _Route) -> _Route:
        async def traced(http_request: web.Request) -> web.StreamResponse:
            attributes = {"http.request.method": http_request.method, "http.route": http_request.path}
            name = f"{http_request.method} {http_request.path}"
            parent = incoming_context(http_request.headers.items())
            with server_span(self._tracer, name, parent=parent, attributes=attributes) as span:
                try:
                    response = await self._answer_errors(http_request, route)
                except asyncio.CancelledError:
                    # The caller left: worth knowing, and no fault of the server.
                    span.set_attribute("error.type", "CANCELLED")
                    raise
                span.set_attribute("http.response.status_code", response.status)
                if response.status >= 500:
                    mark_error(span, str(response.status))
                return response

        return traced


def _chat(raw: bytes, limits: Limits) -> tuple[ChatBody, _Requests]:
    body = parse_chat(raw, limits)
    return body, [chat_request(body, body.request_id or secrets.token_hex(12))]


def _completion(raw: bytes, limits: Limits) -> tuple[CompletionBody, _Requests]:
    body = parse_completion(raw, limits)
    return body, completion_requests(body, body.request_id or secrets.token_hex(12))


async def _close_all(calls: Sequence[AsyncGenerator[pb.GenerateResponse, None]]) -> None:
    await asyncio.gather(*(call.aclose() for call in calls))


async def _stream(
    http_request: web.Request, messages: _Messages, answer: Answer, *, includes_usage: bool
) -> web.StreamResponse:
    """Server-sent events. An error after the first of them is an event too, and the last one."""
    response = web.StreamResponse(headers=_STREAM_HEADERS)
    try:
        async for call_index, message in messages:
            events = answer.take(call_index, message)
            if not response.prepared:
                await response.prepare(http_request)
                events = answer.opening() + events
            if events:
                await response.write(b"".join(_event(event) for event in events))
        answer.check_complete()
    except ConnectionError:
        raise
    except Exception as error:
        if not response.prepared:
            raise
        known = error if isinstance(error, HeadstartError) else _unexpected(error, http_request)
        mark_error(trace.get_current_span(), known.status)
        await response.write(_event(error_body(known)))
    else:
        tail = [_event(answer.usage_event())] if includes_usage else []
        await response.write(b"".join([*tail, b"data: [DONE]\n\n"]))
    await response.write_eof()
    return response


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def _refusal(error: HeadstartError) -> web.Response:
    return web.json_response(error_body(error), status=http_status(error), headers=error_headers(error))


def refuse(status: int, reason: str) -> web.Response:
    """A refusal of HTTP itself, in the same form as ours."""
    error = InternalError(reason) if status >= 500 else InvalidRequestError("request", reason)
    return web.json_response(error_body(error), status=status)


def _http_refusal(error: web.HTTPException) -> web.Response:
    """aiohttp's, such as of a path that is none."""
    answer = refuse(error.status, error.reason.lower())
    if "Allow" in error.headers:
        answer.headers["Allow"] = error.headers["Allow"]
    return answer


def _unexpected(error: Exception, http_request: web.Request) -> HeadstartError:
    reference = secrets.token_hex(8)
    _LOGGER.error("%s failed, reference %s", http_request.path, reference, exc_info=error)
    return InternalError(f"internal error; the log has the details under {reference}")
