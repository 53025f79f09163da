"""What the recorder makes of an API server that forgets: a small server answers lists and watches as it is told."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest

from lab.faults.recorder import Recorded, Recorder
from lab.faults.trace import Header, Note
from lab.waiting import wait_for

Thing = dict[str, Any]
A, B = Recorded("A", "/api/v1", "as"), Recorded("B", "/api/v1", "bs")
EXPIRED: Thing = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}


def thing(revision: int, name: str = "x") -> Thing:
    return {"metadata": {"namespace": "team", "name": name, "resourceVersion": str(revision)}}


class Server:
    """Lists what is stored; a watch shows the events that are queued, and then stays open."""

    def __init__(self) -> None:
        self.stored: dict[str, list[Thing]] = {"as": [], "bs": []}
        self.revision = 0
        self.events: dict[str, list[Thing]] = {"as": [], "bs": []}
        self.changed = threading.Condition()
        self.closing = False

    def tell(self, plural: str, *events: Thing) -> None:
        with self.changed:
            self.events[plural] += events
            self.changed.notify_all()

    def next_event(self, plural: str) -> Thing | None:
        with self.changed:
            self.changed.wait_for(lambda: self.closing or self.events[plural])
            return None if self.closing else self.events[plural].pop(0)


@contextmanager
def serving(server: Server) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlparse(self.path)
            plural = path.path.rpartition("/")[2]
            self.send_response(200)
            if "watch" in parse_qs(path.query):
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                event: Thing | None = {}
                while event is not None and event != EXPIRED:
                    event = server.next_event(plural)
                    line = json.dumps(event).encode() + b"\n" if event is not None else b""
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.close_connection = True
            else:
                body = {"items": server.stored[plural], "metadata": {"resourceVersion": str(server.revision)}}
                content = json.dumps(body).encode()
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        with server.changed:
            server.closing = True
            server.changed.notify_all()
        http.shutdown()
        thread.join()
        http.server_close()


@contextmanager
def recording(server: Server, directory: Path) -> Iterator[Recorder]:
    with serving(server) as address:
        config = {
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "c",
        }
        kubeconfig = directory / "kubeconfig"
        kubeconfig.write_text(json.dumps(config))
        with Recorder(kubeconfig, ["team"], resources=(A, B)) as recorder:
            yield recorder


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_gap_stands_where_the_watch_went_blind_before_what_was_written_since(server: Server, tmp_path: Path) -> None:
    server.stored["as"], server.revision = [thing(5)], 10
    with recording(server, tmp_path) as recorder:
        others = {"metadata": {**thing(70)["metadata"], "namespace": "of others"}}
        server.tell("bs", {"type": "ADDED", "object": others}, {"type": "ADDED", "object": thing(80, "y")})
        wait_for(lambda: recorder.highest == 80, what="the event", seconds=60, every=0.05)
        server.stored["as"], server.revision = [thing(50)], 90
        server.tell("as", EXPIRED)
        wait_for(lambda: recorder.trace(Header("t")).gaps, what="a gap", seconds=60, every=0.05)
        wait_for(lambda: len(recorder.trace(Header("t")).entries) == 4, what="the list", seconds=60, every=0.05)
        found = [(entry.kind, entry.revision) for entry in recorder.trace(Header("t")).entries]
    assert found == [("A", 5), (Note.GAP, 10), ("A", 50), ("B", 80)]


def test_a_gap_names_what_was_written_and_what_is_gone(server: Server, tmp_path: Path) -> None:
    server.stored["as"], server.revision = [thing(5), thing(6, "gone"), thing(7, "same")], 10
    with recording(server, tmp_path) as recorder:
        server.stored["as"], server.revision = [thing(50), thing(7, "same"), thing(60, "new")], 90
        server.tell("as", EXPIRED)
        wait_for(lambda: len(recorder.trace(Header("t")).entries) == 7, what="the list", seconds=60, every=0.05)
        trace = recorder.trace(Header("t"))
    (gap,) = trace.gaps
    assert gap.body["changed"] == ["team/gone", "team/x", "team/new"]
    assert [(e.name, e.revision) for e in trace.entries if e.deleted] == [("gone", 90)]


def test_what_a_restore_took_away_was_not_deleted(server: Server, tmp_path: Path) -> None:
    server.stored["as"], server.revision = [thing(5), thing(6, "younger")], 10
    with recording(server, tmp_path) as recorder:
        server.stored["as"], server.revision = [thing(5)], 5
        recorder.restored()
        server.tell("as", EXPIRED)
        wait_for(lambda: len(recorder.trace(Header("t")).entries) == 4, what="the list", seconds=60, every=0.05)
        found = [(entry.era, entry.name or entry.kind, entry.deleted) for entry in recorder.trace(Header("t")).entries]
    assert found == [(0, "x", False), (0, "younger", False), (1, Note.RESTORED, False), (1, "x", False)]
