"""A real HTTP server on this machine that misbehaves as told, for tests of downloads."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

Answer = Callable[["Handler", bytes], None]


@dataclass
class Served:
    """What the server has, by path; `answers` are used up one request after another, then files are served whole."""

    address: str
    files: dict[str, bytes] = field(default_factory=dict)
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)

    def project(self, name: str, files: dict[str, bytes], *, told: dict[str, str] | None = None) -> None:
        """Have a Python project whose page lists these files; `told` overrides the sha256 that the page says."""
        listed = []
        for file, content in files.items():
            self.files[f"/files/{file}"] = content
            sha256 = (told or {}).get(file, hashlib.sha256(content).hexdigest())
            listed.append({"filename": file, "url": f"/files/{file}", "hashes": {"sha256": sha256}, "size": len(content)})
        page = {"meta": {"api-version": "1.1"}, "name": name, "files": listed, "versions": []}
        self.files[f"/simple/{name}/"] = json.dumps(page).encode()

    def count(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(1 for asked, _ in self.requests if asked == path)


class Handler(BaseHTTPRequestHandler):
    """Serves `served`."""

    served: ClassVar[Served]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer as told, else with the file, from where it is asked for."""
        self.served.requests.append((self.path, self.headers.get("Range", "")))
        content = self.served.files.get(self.path)
        if content is None:
            return self.send_error(404)
        planned = self.served.answers.get(self.path)
        return planned.pop(0)(self, content) if planned else from_offset(self, content)

    def begin(self, status: int, length: int, **headers: str) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        kind = "application/vnd.pypi.simple.v1+json" if self.path.startswith("/simple/") else "application/octet-stream"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def whole(handler: Handler, content: bytes) -> None:
    """The file from its beginning, whatever was asked."""
    handler.begin(200, len(content))
    handler.wfile.write(content)


def from_offset(handler: Handler, content: bytes) -> None:
    """The file from the byte that was asked for."""
    asked = handler.headers.get("Range", "")
    if not asked:
        return whole(handler, content)
    offset = int(asked.removeprefix("bytes=").rstrip("-"))
    if offset >= len(content):
        handler.begin(416, 0)
        return None
    handler.begin(206, len(content) - offset, Content_Range=f"bytes {offset}-{len(content) - 1}/{len(content)}")
    handler.wfile.write(content[offset:])
    return None


def breaks_after(count: int) -> Answer:
    """Announces the whole file, sends `count` bytes of it, and closes the connection."""

    def answer(handler: Handler, content: bytes) -> None:
        handler.begin(200, len(content))
        handler.wfile.write(content[:count])
        handler.close_connection = True

    return answer


def instead(other: bytes) -> Answer:
    """Other bytes than the file's."""
    return lambda handler, _: whole(handler, other)


def status(code: int) -> Answer:
    """An answer without a body."""
    return lambda handler, _: handler.begin(code, 0)


def waits(first: bytes, arrived: threading.Event, go_on: threading.Event) -> Answer:
    """Sends the first bytes, then nothing until told to go on."""

    def answer(handler: Handler, content: bytes) -> None:
        handler.begin(200, len(content))
        handler.wfile.write(first)
        handler.wfile.flush()
        arrived.set()
        go_on.wait(20)
        handler.close_connection = True

    return answer


@contextmanager
def serving() -> Iterator[Served]:
    """A server on a free port of the loopback interface, for as long as the block runs."""

    class Bound(Handler):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
    server.daemon_threads = True
    Bound.served = Served(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield Bound.served
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
