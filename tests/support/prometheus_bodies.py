"""A server on a real socket that answers as told: Prometheus on its worst days."""

import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from precision_operator.settings import PrometheusEndpoint
from precision_operator.signals.prometheus import PrometheusSource

Write = Callable[[bytes], None]
Stream = Callable[[Write, threading.Event], None]


STAMP = 4e9
"""Of a body that is written before the test that uses it: never too long ago."""


def vector(*values: object, pod: str = "", warnings: list[str] | None = None) -> bytes:
    """A success with one sample for each value, of pods p0, p1, … or all of ``pod``."""
    result = [{"metric": {"pod": pod or f"p{i}"}, "value": [STAMP, value]} for i, value in enumerate(values)]
    return success("vector", result, warnings=warnings)


def success(kind: str, result: object, *, warnings: list[str] | None = None) -> bytes:
    body: dict[str, object] = {"status": "success", "data": {"resultType": kind, "result": result}}
    if warnings:
        body["warnings"] = warnings
    return json.dumps(body).encode()


def failure(kind: str, message: str) -> bytes:
    return json.dumps({"status": "error", "errorType": kind, "error": message}).encode()


def http(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body


@dataclass
class Server:
    """Answers every request with ``reply``; keeps the requests' heads."""

    reply: bytes = b""
    answer: Callable[[str], bytes | Stream] | None = None
    """Instead of ``reply``: what to say to a request of this head."""
    stream: Stream | None = None
    """Instead of ``reply``: writes by itself until it is done or the event is set."""
    tls: ssl.SSLContext | None = None
    port: int = 0
    heads: list[str] = field(default_factory=list)
    open: int = 0
    accepted: int = 0
    stop: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls is not None else ''}://127.0.0.1:{self.port}"

    def handle(self, connection: socket.socket) -> None:
        with self.lock:
            self.open += 1
            self.accepted += 1
        try:
            with connection if self.tls is None else self.tls.wrap_socket(connection, server_side=True) as connection:
                while head := _head(connection):
                    self.heads.append(head)
                    if self.stream is not None:
                        self.stream(connection.sendall, self.stop)
                        return
                    said = self.answer(head) if self.answer is not None else self.reply
                    if not isinstance(said, bytes):
                        said(connection.sendall, self.stop)
                        return
                    connection.sendall(said)
        except OSError:
            return  # the client hung up: that is its right
        finally:
            with self.lock:
                self.open -= 1


def _head(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        if not chunk:
            return ""
        data += chunk
    return data.decode("latin-1")


@contextmanager
def serve(reply: bytes = b"", stream: Stream | None = None, *, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A running server."""
    server = Server(reply, stream=stream, tls=tls)
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server.port = listener.getsockname()[1]

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                thread = threading.Thread(target=server.handle, args=(connection,), daemon=True)
                threads.append(thread)
                thread.start()

        acceptor = threading.Thread(target=accept, daemon=True)
        acceptor.start()
        try:
            yield server
        finally:
            server.stop.set()
            listener.shutdown(socket.SHUT_RDWR)
    acceptor.join(5)
    for thread in threads:
        thread.join(5)


def silent(write: Write, stop: threading.Event) -> None:
    stop.wait()


def drip_body(write: Write, stop: threading.Event) -> None:
    write(b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n")
    while not stop.wait(0.02):
        write(b" ")


def drip_chunks(write: Write, stop: threading.Event) -> None:
    write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not stop.wait(0.02):
        write(b"1\r\n \r\n")


def drip_head(write: Write, stop: threading.Event) -> None:
    write(b"HTTP/1.1 200 OK\r\nX: ")
    while not stop.wait(0.02):
        write(b"x")


@asynccontextmanager
async def source_of(
    url: str, *, limit: float = 30.0, max_bytes: int = 100_000, token: str = "", ca_file: str = "", threads: int = 2
) -> AsyncIterator[PrometheusSource]:
    """A source that asks there."""
    endpoint = PrometheusEndpoint(
        url=url, timeout_seconds=limit, max_response_bytes=max_bytes, bearer_token_file=token, ca_file=ca_file
    )
    source = PrometheusSource("main", endpoint, threads=threads)
    try:
        yield source
    finally:
        source.close()
