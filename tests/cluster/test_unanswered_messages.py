"""The only channel for messages takes connections and never answers, on a real API server with real Prometheus data: no
rollback waits for it, and it gets its messages once it answers.
"""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from lab.cluster.pki import Authority, Certificate
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json
from tests.support.cluster_scene import HOT, PATIENCE_SECONDS, Scene, assert_all_in_fallback, promoted
from tests.support.shadow_trainers import Fault
from tests.support.side_by_side import requested


class Receiver(ThreadingHTTPServer):
    """A webhook over TLS. It keeps whoever connects waiting, before or after the handshake, until it is to answer."""

    def __init__(self, pair: Certificate, *, handshakes: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Post)
        # The handshake is made by the first read.
        self.socket = pair.serving().wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self.handshakes = handshakes
        self.holds, self.answers = threading.Event(), threading.Event()
        self.taken: list[Json] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.answers.set()
        self.shutdown()
        self.server_close()

    def hold(self) -> None:
        """Wait until it is to answer."""
        self.holds.set()
        self.answers.wait()


class _Post(BaseHTTPRequestHandler):
    server: Receiver

    def handle(self) -> None:
        if not self.server.handshakes:
            self.server.hold()
        super().handle()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.hold()
        self.send_response(200)
        self.end_headers()
        self.server.taken.append(body)


def tries(scene: Scene) -> dict[str, float]:
    """Result → how many tries to deliver a message have ended with it."""
    counted = "precision_notifications_total"
    return {s.labels["result"]: s.value for s in scene.samples() if s.name == counted and s.value}


def noted(scene: Scene, incident: str) -> bool:
    """Whether the incident says that the channel took its notice."""
    found = scene.kubectl.json("get", "precisionincidents", "-n", scene.namespace)["items"]
    messages = [m for item in found if item["report"]["id"] == incident for m in item["report"]["messages"]]
    return any(m["kind"] == "Notice" and m.get("delivered") == ["hook"] for m in messages)


@pytest.mark.parametrize("handshakes", [True, False], ids=["after-the-handshake", "before-the-handshake"])
def test_a_rollback_ends_while_the_channel_keeps_a_message_unanswered(
    scene: Scene, tmp_path: Path, handshakes: bool
) -> None:
    authority = Authority(tmp_path / "pki")
    authority.ensure()
    with Receiver(authority.issue("hook", "hook", addresses=["127.0.0.1"]), handshakes=handshakes) as receiver:
        url, ca = f"jsons://127.0.0.1:{receiver.server_port}/hook", str(authority.certificate)
        scene.operators.settings["notifications"] = {"hook": {"url": url, "caFile": ca, "timeoutSeconds": 60}}
        promoted(scene)
        # One workload is rolled back by itself; its notice is what the channel keeps.
        scene.shadow.faults = {HOT[0]: Fault(overflow=0.8)}
        wait_for(receiver.holds.is_set, what="a message", seconds=PATIENCE_SECONDS, found=scene.operators.logs)

        scene.shadow.faults = {**scene.shadow.faults, **dict.fromkeys(HOT[1:], Fault(non_finite=0.3))}
        incident = scene.wait_phase("Held")["incident"]
        assert (tries(scene), receiver.taken) == ({}, []), "its first try is not over"
        found = tuple(incident[what] for what in ("scope", "reason", "severity", "strategy"))
        assert found == ("Fleet", "LossNotFinite", "P0", "Emergency")
        assert {name: request["mode"] for name, request in requested(scene).items()} == dict.fromkeys(HOT, "fp32")
        assert_all_in_fallback(scene)

        receiver.answers.set()
        wait_for(
            lambda: noted(scene, incident["id"]),
            what="the notice",
            seconds=PATIENCE_SECONDS,
            found=scene.operators.logs,
        )
        kept = [(body["kind"], body["severity"], body["reason"]) for body in receiver.taken]
        assert ("Notice", "P0", "LossNotFinite") in kept
