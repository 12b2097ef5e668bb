"""Bodies over a real server: what is read, what is refused, and that the next request is served."""

import gzip
import zlib
from contextlib import asynccontextmanager

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from headstart.edge.http_body import read_body
from headstart.edge.http_server import HttpServer
from headstart.errors import InvalidRequestError, TooLargeError

LIMIT = 100_000
BODY = b"some words. " * 8


@asynccontextmanager
async def reading():
    """A session with a server that answers what it read, or which field it refused and why."""

    async def read(request):
        try:
            return web.Response(body=await read_body(request, max_bytes=LIMIT))
        except TooLargeError as error:
            return web.Response(status=413, text=str(error))
        except InvalidRequestError as error:
            return web.Response(status=400, text=error.field)

    app = web.Application()
    app.router.add_post("/", read)
    server = HttpServer(app, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
            yield session
    finally:
        await server.stop()


@pytest_asyncio.fixture
async def session():
    async with reading() as opened:
        yield opened


async def post(session, body, coding=None):
    headers = {} if coding is None else {"Content-Encoding": coding}
    async with session.post("/", data=body, headers=headers) as response:
        return response.status, await response.read()


async def chunked(body):
    for start in range(0, len(body), 7000):
        yield body[start : start + 7000]


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("identity", BODY),
        ("gzip", gzip.compress(BODY)),
        ("GZip", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", zlib.compress(BODY)[2:-4]),
        ("gzip", b""),
    ],
)
async def test_a_body_is_unpacked(session, coding, packed):
    assert await post(session, packed, coding) == (200, BODY if packed else b"")


async def test_a_body_of_exactly_the_limit_is_read_and_a_byte_more_is_not_however_it_is_sent(session):
    for body, status in ((b"x" * LIMIT, 200), (b"x" * (LIMIT + 1), 413)):
        sent = [
            await post(session, body),
            await post(session, chunked(body)),
            await post(session, gzip.compress(body), "gzip"),
            await post(session, chunked(zlib.compress(body)), "deflate"),
        ]
        assert [answer[0] for answer in sent] == [status] * 4
        assert all(answer[1] == body if status == 200 else b"100000 bytes" in answer[1] for answer in sent)
    assert await post(session, BODY) == (200, BODY)


async def test_what_unpacks_to_a_thousand_times_its_size_is_refused(session):
    packed = gzip.compress(b"x" * (50 << 20))
    assert len(packed) < LIMIT
    assert (await post(session, packed, "gzip"))[0] == 413


@pytest.mark.parametrize(
    ("coding", "packed", "field"),
    [
        ("gzip", b"xx", b"body"),
        ("gzip", gzip.compress(BODY)[:-1], b"body"),
        ("gzip", gzip.compress(BODY) + b"x", b"body"),
        ("gzip", zlib.compress(BODY), b"body"),
        ("deflate", zlib.compress(BODY)[:-5], b"body"),
        ("deflate", gzip.compress(BODY), b"body"),
        ("br", b"xx", b"content-encoding"),
        ("zstd", b"xx", b"content-encoding"),
        ("gzip, gzip", gzip.compress(gzip.compress(BODY)), b"content-encoding"),
    ],
)
async def test_a_coding_that_is_broken_or_not_read_is_the_clients_error(session, coding, packed, field):
    assert await post(session, packed, coding) == (400, field)
    assert await post(session, BODY) == (200, BODY)
