"""An HTTP server that fails on purpose, in the ways real ones do, and keeps what it was asked and what it sent."""

import hashlib
import math
import random
import re
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

import reading
from server import CHUNK, Handler, Server, byte_range

PATIENCE = 20  # seconds that a silent server waits for the client to hang up
LAST_MOMENTS = 0.1  # seconds between the last byte and a cut, in which a client can take what has arrived


@dataclass
class Fault:
    """How answers about one file differ from honest ones: the first `times` of them, or all."""

    times: float = math.inf
    methods: tuple[str, ...] = ("GET",)
    status: int | None = None  # instead of the file
    cut_after: int | None = None  # bytes of each answer's body; then the connection is closed
    cut_at: int | None = None  # byte of the file that is never sent; the connection is closed before it
    reset: bool = False  # cut by RST, which throws away what is on its way
    abrupt: bool = False  # cut at once, when the client may not have read what was sent
    stall: bool = False  # do not close where it would be cut, but keep silent
    silent: bool = False  # do not even answer
    ranges: bool = True  # False: ignore Range
    length_lie: int = 0  # added to Content-Length
    whole_size_lie: int = 0  # added to the size in Content-Range
    wrong_start: int = 0  # added to the first byte of a range, in the answer and its body
    chunked: bool = False  # no Content-Length
    content: bytes | None = None  # instead of the file's
    headers: dict[str, str] = field(default_factory=dict)
    befallen: int = 0  # answers so far


@dataclass
class Asked:
    method: str
    path: str
    range: str | None
    status: int = 0
    sent: int = 0  # bytes of the body

    @property
    def start(self) -> int:
        """The first byte asked for."""
        return int(re.match(r"bytes=(\d+)-", self.range)[1]) if self.range else 0


class FaultHandler(Handler):
    def answer(self):
        asked = Asked(self.command, self.path, self.headers.get("Range"))
        with self.server.lock:
            self.server.requests.append(asked)
            self.server.before(asked)
            fault = self.server.fault_of(asked)
        if fault.silent:
            self.keep_silent()
            return
        path = self.server.folder / self.path.lstrip("/")
        if fault.status is not None or not path.is_file():
            self.say(asked, fault.status or 404, {"Content-Length": "0", **fault.headers})
            return
        content = path.read_bytes() if fault.content is None else fault.content
        size, start, end = len(content), 0, len(content)
        headers = {"Accept-Ranges": "bytes"} if fault.ranges else {}
        headers |= self.server.marks(path, content)
        ranged = fault.ranges and asked.range is not None
        if ranged:
            start, end = byte_range(asked.range, size)
            if start >= size:
                self.say(asked, 416, {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
                return
            start += fault.wrong_start
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size + fault.whole_size_lie}"
        body = content[start:end]
        if fault.chunked:
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = str(len(body) + fault.length_lie)
        self.say(asked, 206 if ranged else 200, headers | fault.headers)
        if self.command == "GET":
            self.send_body(asked, fault, body, start)

    def say(self, asked: Asked, status: int, headers: dict[str, str]):
        asked.status = status
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def send_body(self, asked: Asked, fault: Fault, body: bytes, start: int):
        stop = len(body)
        if fault.cut_after is not None:
            stop = min(stop, fault.cut_after)
        if fault.cut_at is not None:
            stop = max(0, min(stop, fault.cut_at - start))
        if fault.cut_after is not None or fault.cut_at is not None:
            fault.befallen += stop < len(body)
        try:
            for at in range(0, stop, CHUNK):
                piece = body[at : min(at + CHUNK, stop)]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if fault.chunked else piece)
                asked.sent += len(piece)
            if stop == len(body) and fault.length_lie <= 0:
                if fault.chunked:
                    self.wfile.write(b"0\r\n\r\n")
                return
            if fault.stall:
                self.keep_silent()
            elif not fault.abrupt and stop:
                select.select([self.connection], [], [], LAST_MOMENTS)
            if fault.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
        except OSError:  # the client has gone
            pass
        self.close_connection = True

    def keep_silent(self):
        """Until the client hangs up."""
        select.select([self.connection], [], [], PATIENCE)
        self.close_connection = True


class FaultServer(Server):
    """Serves a folder at `url`.

    `faults`: file name -> Fault; `after`: what comes when that has befallen all its times, instead of honest answers;
    `before` is called with every request, before its answer; `marks_by`: the headers that tell states of a file apart.
    """

    def __init__(self, folder: Path, faults: dict[str, Fault] | None = None, marks_by: tuple[str, ...] = ("ETag",)):
        self.faults, self.marks_by = faults or {}, marks_by
        self.after: dict[str, Fault] = {}
        self.before: Callable[[Asked], None] = lambda asked: None
        self.lock = threading.Lock()
        super().__init__(folder)
        self.RequestHandlerClass = FaultHandler

    def handle_error(self, request, client_address):
        """A connection that breaks is what this server is for."""

    def fault_of(self, asked: Asked) -> Fault:
        name = asked.path.lstrip("/")
        fault = self.faults.get(name)
        if fault is None or asked.method not in fault.methods:
            return Fault()
        if fault.befallen >= fault.times:
            return self.after.get(name, Fault())
        fault.befallen += fault.cut_after is None and fault.cut_at is None  # those count when they cut
        return fault

    def marks(self, path: Path, content: bytes) -> dict[str, str]:
        marks = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "Last-Modified": formatdate(path.stat().st_mtime, usegmt=True),
        }
        return {name: marks[name] for name in self.marks_by}


def write_upstreams(folder, seed=0):
    """Both upstreams, of text that hardly compresses; another seed is another state of the same size, or nearly."""
    rng = random.Random(seed)

    def text(length):
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz \t\n", k=length))

    pages = [{"book": f"b{n % 7}", "page": n, "score": n / 8, "text": text(2000)} for n in range(250)]
    judgments = [f"topic_{n % 9} 0 b{n % 7}/{n} {n % 4 - 1}\n" for n in range(0, 300, 2)]
    reading.write_poetry(folder / "poetry", pages, "".join(judgments), "".join(judgments[:70]))
    corpus = [(f"d{n}", text(60), text(300), text(500), text(1500)) for n in range(200)]
    queries = [(f"q{n}", text(60), text(300), text(300)) for n in range(20)]
    relations = [(f"q{n % 20}", f"d{n * 31 % 200}", 1.0, "IN" if n % 3 else "OUT") for n in range(60)]
    reading.write_dapfam(folder / "dapfam", reading.dapfam_tables(corpus, queries, relations), row_group_size=50)
