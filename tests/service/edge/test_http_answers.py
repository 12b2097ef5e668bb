"""What aiohttp itself would answer, in our form instead, byte for byte over a socket."""

import asyncio
import json
import logging
import re

import pytest
import pytest_asyncio
from aiohttp import web
from headstart.edge.http_server import HttpServer
from headstart.edge.openai_http import refuse

POST = b"POST /echo HTTP/1.1\r\nHost: x\r\n"
BROKEN_CHUNK = b"ZZ\r\nabc\r\n0\r\n\r\n"


@pytest_asyncio.fixture
async def port():
    async def echo(request):
        try:
            return web.Response(body=await request.read())
        except web.RequestPayloadError:
            return refuse(400, "broken")

    async def fail(request):
        raise ValueError("/secret/path")

    app = web.Application()
    app.router.add_post("/echo", echo)
    app.router.add_get("/fail", fail)
    server = HttpServer(app, host="127.0.0.1", port=0, refuse=refuse)
    await server.start()
    yield server.port
    await server.stop()


async def answer(port, *parts):
    """The status and body of the answer to what is sent piece by piece; each but the first once the server had time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for index, part in enumerate(parts):
        if index:
            await answer(port, POST + b"Content-Length: 0\r\n\r\n")  # the server has read what came before
        writer.write(part)
        await writer.drain()
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
    (length,) = re.findall(rb"(?i)content-length: (\d+)", head)
    body = await reader.readexactly(int(length))
    writer.close()
    return int(head.split()[1]), body


@pytest.mark.parametrize(
    ("raw", "status", "reason"),
    [
        (b"\x16\x03\x01\x02\x00\r\n\r\n", 400, "https traffic on an http port"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "bad status line"),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 400, "more than 8190 bytes"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 9000 + b"\r\n\r\n", 400, "more than 8190 bytes"),
        (b"GET http://[::1/ HTTP/1.1\r\nHost: x\r\n\r\n", 400, "not a URL"),
        (POST + b"Content-Length: many\r\n\r\n", 400, "content-length"),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n" + BROKEN_CHUNK, 400, "chunk size"),
        (POST + b"Expect: a miracle\r\nContent-Length: 0\r\n\r\n", 417, "expectation failed"),
        (b"GET /nowhere HTTP/1.1\r\nHost: x\r\n\r\n", 404, "not found"),
        (b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n", 405, "method not allowed"),
    ],
    ids=lambda value: repr(value)[:40],
)
async def test_every_refusal_of_http_has_openais_form_and_the_next_request_is_served(port, raw, status, reason):
    answered, body = await answer(port, raw)
    error = json.loads(body)["error"]
    assert (answered, error["type"], error["param"]) == (status, "invalid_request_error", "request")
    assert reason in error["message"]
    assert "aaaa" not in error["message"]
    assert await answer(port, POST + b"Content-Length: 2\r\n\r\nok") == (200, b"ok")


async def test_what_nobody_expected_is_told_to_the_log_alone(port, caplog):
    with caplog.at_level(logging.ERROR):
        status, body = await answer(port, b"GET /fail HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (status, json.loads(body)["error"]["type"]) == (500, "server_error")
    assert b"secret" not in body
    assert "/secret/path" in caplog.text


async def test_a_body_that_breaks_off_in_the_middle_ends_the_reading_of_it(port, caplog):
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    status, body = await answer(port, head, BROKEN_CHUNK)
    assert (status, json.loads(body)["error"]["message"]) == (400, "request: broken")
    assert not caplog.records
