"""An HTTP server on loopback that knows what it sent."""

import hashlib
import re
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CHUNK = 1 << 16


@dataclass
class Request:
    method: str
    path: str
    ranged: bool
    sent: int = 0  # bytes of the body


def byte_range(asked: str, size: int) -> tuple[int, int]:
    """First byte and end that a Range header asks for of a file of so many bytes; there are none from `size` on."""
    first, last = re.fullmatch(r"bytes=(\d*)-(\d*)", asked).groups()
    start = int(first) if first else max(0, size - int(last))
    return start, min(int(last) + 1, size) if first and last else size


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        self.answer()

    def do_HEAD(self):
        self.answer()

    def answer(self):
        asked = self.headers.get("Range") if self.server.ranges == "bytes" else None
        request = Request(self.command, self.path, asked is not None)
        self.server.requests.append(request)
        path = self.server.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        content = path.read_bytes()
        etag = hashlib.sha256(content).hexdigest()
        size = len(content)
        if asked:
            start, end = byte_range(asked, size)
            if start >= size:
                self.send_error(416)
                return
            content = content[start:end]
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        if self.server.ranges:
            self.send_header("Accept-Ranges", self.server.ranges)
        self.send_header("ETag", f'"{etag}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            for at in range(0, len(content), CHUNK):
                request.sent += len(content[at : at + CHUNK])
                self.wfile.write(content[at : at + CHUNK])
        except ConnectionError:  # the client has read as much as it wanted
            self.close_connection = True

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    """Serves a folder at `url` until `stop`; `ranges`: "bytes", or "none" (says so), or "" (ignores them silently)."""

    daemon_threads = True

    def __init__(self, folder: Path, ranges: str = "bytes"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder, self.ranges = folder, ranges
        self.requests: list[Request] = []
        self.url = f"http://127.0.0.1:{self.server_port}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def gets(self, path: str) -> list[Request]:
        """The GETs of a path since the start, or since `requests` was cleared."""
        return [request for request in self.requests if (request.method, request.path) == ("GET", path)]

    def stop(self):
        self.shutdown()
        self.server_close()
