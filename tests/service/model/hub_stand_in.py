"""A small HTTP server with the part of the Hugging Face hub's interface that a download uses."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Container, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class _Hub(BaseHTTPRequestHandler):
    """Serves `server.models`: {id: directory}, at a single commit. Notes every path asked for, and the range."""

    server: Any

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Stay silent."""

    def _answer(self, *, with_body: bool) -> None:
        path = urlsplit(self.path).path
        self.server.asked.append(" ".join(filter(None, (path, self.headers.get("Range")))))
        if self.server.token and self.headers.get("Authorization") != f"Bearer {self.server.token}":
            return self._send(401, b"{}", with_body, {"X-Error-Code": "GatedRepo"})
        for model, directory in self.server.models.items():
            if path.startswith(f"/api/models/{model}/tree/"):
                return self._send_json([_tree_entry(file) for file in sorted(directory.iterdir())], with_body)
            if path.startswith(f"/api/models/{model}"):
                siblings = [
                    {"rfilename": file.name, "size": file.stat().st_size} for file in sorted(directory.iterdir())
                ]
                return self._send_json({"id": model, "sha": COMMIT, "siblings": siblings}, with_body)
            prefix = f"/{model}/resolve/{COMMIT}/"
            file = directory / path.removeprefix(prefix)
            if path.startswith(prefix) and file.is_file() and file.name not in self.server.withheld:
                return self._send_file(file, with_body)
        return self._send(404, b"{}", with_body, {"X-Error-Code": "RepoNotFound"})

    def _send_json(self, value: Any, with_body: bool) -> None:
        self._send(200, json.dumps(value).encode(), with_body, {"Content-Type": "application/json"})

    def _send_file(self, file: Path, with_body: bool) -> None:
        content = file.read_bytes()
        etag = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
        if not with_body:
            return self._send(200, content, with_body, etag)
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        end = self.server.breaks.pop(file.name, len(content))
        status = 206 if start else 200
        return self._send(status, content[start:], with_body, etag, num_sent=max(0, end - start))

    def _send(
        self, status: int, content: bytes, with_body: bool, headers: dict[str, str], num_sent: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content)), "X-Repo-Commit": COMMIT}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content[:num_sent])


def _tree_entry(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return {"type": "file", "path": file.name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}


@contextmanager
def hub_stand_in(
    models: dict[str, Path], *, breaks: dict[str, int] | None = None, withheld: Container[str] = (), token: str = ""
) -> Iterator[tuple[str, list[str]]]:
    """The endpoint, and the list of paths that will have been asked for.

    `breaks` names files whose first transfer ends after that many bytes of the file, as if the connection had broken;
    `withheld` files are listed, but not given. A `token` must come with every call.
    """
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    server.token, server.withheld = token, withheld
    server.models, server.asked, server.breaks = models, [], breaks or {}
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", server.asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
