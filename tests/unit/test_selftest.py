"""What `helm test` says of an operator that answers or not, and of admission that works or not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from precision_operator.selftest import INJECTED_ENV, answers, injected, main


class Readiness(BaseHTTPRequestHandler):
    """Not ready for the first question, ready for the second, and so on."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.send_response(200 if type(self).asked % 2 == 0 else 503)
        self.end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Readiness)
    Readiness.asked = 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/readyz"
    server.shutdown()
    server.server_close()


def test_a_replica_that_becomes_ready_in_time_is_well(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["answers", url]) == 0
    assert capsys.readouterr().out == "ok\n"


def test_a_replica_that_is_not_ready_in_time_is_named(url: str) -> None:
    wrong = answers(url, seconds=-1)
    assert f"{url} to say ok" in wrong
    assert "503" in wrong


def test_nobody_at_the_address_is_named() -> None:
    assert "found: " in answers("http://127.0.0.1:1/readyz", seconds=-1)


def test_a_pod_that_admission_changed_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INJECTED_ENV, "selftest")
    assert main(["injected", "selftest"]) == 0


@pytest.mark.parametrize("found", ["", "PortNameTaken"])
def test_a_pod_that_admission_left_alone_says_what_was_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: str
) -> None:
    monkeypatch.setenv(INJECTED_ENV, found)
    assert main(["injected", "selftest"]) == 1
    assert (found or "nothing") in capsys.readouterr().out
    assert injected(found=found, container="selftest")
