"""Answers of our own where aiohttp would write its pages: to what is no HTTP, and to what no route ever sees.

It knows of aiohttp's server what its pinned version offers to nobody else. Owner of the runner: whoever made it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import InvalidURLError
from aiohttp.web_protocol import RequestHandler, _ErrInfo

Refusal = Callable[[int, str], web.StreamResponse]
"""The answer for an HTTP status and a reason in words."""

_Handler = Callable[[Any], Awaitable[web.StreamResponse]]


class AnsweringRunner(web.AppRunner):
    """Runs an application whose every refusal has the form that `refuse` gives it."""

    __slots__ = ("_refuse",)

    def __init__(self, app: web.Application, refuse: Refusal, **options: Any) -> None:
        super().__init__(app, **options)
        self._refuse = refuse

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _AnsweringServer(made, self._refuse)


class _AnsweringServer(web.Server):
    def __init__(self, made: web.Server, refuse: Refusal) -> None:
        super().__init__(
            _answering(made.request_handler, refuse),
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            loop=made._loop,
            **made._kwargs,
        )
        self._refuse = refuse

    def __call__(self) -> RequestHandler:
        return _AnsweringConnection(self, self._refuse, loop=self._loop, **self._kwargs)


class _AnsweringConnection(RequestHandler):
    __slots__ = ("_refuse",)

    def __init__(self, server: web.Server, refuse: Refusal, **options: Any) -> None:
        super().__init__(server, **options)
        self._refuse = refuse

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and isinstance(self._messages[-1][0], _ErrInfo):
            self._end_broken_body()

    def _end_broken_body(self) -> None:
        """Tell whoever reads the body that broke off: aiohttp would keep the error for after an answer to it."""
        if len(self._messages) > 1:
            body = self._messages[-2][1]
        elif self._current_request is not None:
            body = self._current_request.content
        else:
            return
        if not body.is_eof():
            body.set_exception(web.RequestPayloadError())
            body.feed_eof()
            self._messages.pop()
            self.close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if status >= 500:
            super().handle_error(request, status, exc, message)  # logs it, and stops here if an answer has begun
            reason = "internal error"
        else:
            # The parser's words say what is wrong up to the first colon; the rest repeats what was sent.
            reason = "not a URL" if isinstance(exc, InvalidURLError) else (message or "").partition(":")[0].lower()
        answer = self._refuse(status, reason)
        answer.force_close()
        return answer


def _answering(handler: _Handler, refuse: Refusal) -> _Handler:
    """What is raised before an application's middlewares run, such as for an `Expect` that nobody can meet."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            return refuse(error.status, error.reason.lower())

    return answer
