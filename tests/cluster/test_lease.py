"""Two electors in two processes on a real API server: killed, frozen, and stopped in good order.

This file is also the program of those processes.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.manifests import until_admitted
from lab.waiting import wait_for
from precision_operator.settings import LeaseSettings

ROOT = Path(__file__).parents[2]
LEASE = LeaseSettings()
SLACK_LEASE = LeaseSettings(duration_seconds=15, renew_seconds=12)
"""A takeover is waited for, and a leader of a busy machine keeps it until then."""
LONG_LEASE = LeaseSettings(duration_seconds=7200, renew_seconds=3600)
"""Expires long after this test has given up. How soon a takeover comes is measured by `make bench-operator`."""


def elect(kubeconfig: str, namespace: str, name: str, duration: str, renew: str) -> None:
    """Campaign until SIGTERM; write what happens to standard output, one JSON a line, with monotonic times.

    A thread of its own watches ``is_leader``, as a worker would that is about to write.
    """
    from precision_operator.kube.access import Access
    from precision_operator.kube.client import KubeClient
    from precision_operator.runtime.lease import LeaseElector

    def say(event: str, **more: object) -> None:
        # One write a line: two threads speak here, and print() writes the text and its end apart.
        os.write(sys.stdout.fileno(), json.dumps({"event": event, "at": time.monotonic(), **more}).encode() + b"\n")

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        client = await KubeClient.connect(Access(kubeconfig=Path(kubeconfig)))
        elector = LeaseElector(
            client,
            LeaseSettings(duration_seconds=float(duration), renew_seconds=float(renew)),
            namespace,
            name,
            on_started_leading=lambda epoch: say("started", epoch=epoch),
            on_stopped_leading=lambda: say("stopped"),
        )
        say("ready", identity=elector.identity)

        def watch() -> None:
            led, last = False, 0.0
            while True:
                now, leads = time.monotonic(), elector.is_leader
                if leads and not led:
                    say("leads", since=now)
                elif led and not leads:
                    say("led", until=last)
                led, last = leads, now
                time.sleep(0.005)

        threading.Thread(target=watch, daemon=True).start()
        await elector.run(stop)
        await client.close()
        say("ended")

    asyncio.run(main())


class Process:
    """One elector process and what it said."""

    def __init__(self, name: str, kubeconfig: Path, namespace: str, directory: Path, settings: LeaseSettings) -> None:
        self.out = directory / f"{name}.out"
        self.err = directory / f"{name}.err"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "operator"), str(ROOT)))}
        times = [str(settings.duration_seconds), str(settings.renew_seconds)]
        command = [sys.executable, __file__, str(kubeconfig), namespace, name, *times]
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, env=environment)
        self.wait("ready")

    def events(self, kind: str) -> list[dict[str, float]]:
        lines = [line for line in self.out.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait(self, kind: str, *, count: int = 1, seconds: float = 120) -> dict[str, float]:
        """The ``count``-th event of a kind, awaited."""
        return wait_for(
            lambda: self.events(kind)[count - 1 : count],
            what=f"{kind} of {self.out.stem}",
            seconds=seconds,
            every=0.02,
            found=lambda: self.out.read_text() + self.err.read_text()[-2000:],
        )[0]

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)


@pytest.fixture
def pair(
    control_plane: ControlPlane, namespace: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[tuple[Process, Process]]:
    """A leader and a standby; the parameter, where there is one, is their settings."""
    settings: LeaseSettings = getattr(request, "param", LEASE)
    made: list[Process] = []
    try:
        made.append(Process("one", control_plane.kubeconfig, namespace, tmp_path, settings))
        made[0].wait("leads")
        made.append(Process("two", control_plane.kubeconfig, namespace, tmp_path, settings))
        yield made[0], made[1]
    finally:
        for process in made:
            with contextlib.suppress(ProcessLookupError):
                process.send(signal.SIGCONT)
            process.process.kill()
            process.process.wait(120)


def lease(kubectl: Kubectl, namespace: str) -> dict[str, object]:
    spec = kubectl.json("get", "lease", "precision-operator", "-n", namespace)["spec"]
    assert isinstance(spec, dict)
    return spec


@pytest.mark.parametrize("pair", [SLACK_LEASE], indirect=True)
def test_a_killed_leader_is_followed(pair: tuple[Process, Process], kubectl: Kubectl, namespace: str) -> None:
    one, two = pair
    assert lease(kubectl, namespace)["leaseTransitions"] == 1
    assert two.events("leads") == []
    one.send(signal.SIGKILL)
    two.wait("leads")
    assert two.wait("started")["epoch"] == 2
    spec = lease(kubectl, namespace)
    assert spec["leaseTransitions"] == 2
    assert str(spec["holderIdentity"]).startswith("two_")


@pytest.mark.parametrize("pair", [SLACK_LEASE], indirect=True)
def test_a_frozen_leader_finds_itself_not_leading_when_it_thaws(
    pair: tuple[Process, Process], kubectl: Kubectl, namespace: str
) -> None:
    one, two = pair
    one.send(signal.SIGSTOP)
    leads = two.wait("leads")
    one.send(signal.SIGCONT)
    assert one.wait("led")["until"] <= leads["since"], "not one instant of leadership after the thaw"
    one.wait("stopped")
    renewed = lease(kubectl, namespace)["renewTime"]
    wait_for(lambda: lease(kubectl, namespace)["renewTime"] != renewed, what="the new leader's renewal", seconds=120)
    assert len(one.events("leads")) == 1
    assert two.events("led") == []
    assert str(lease(kubectl, namespace)["holderIdentity"]).startswith("two_")


@pytest.mark.parametrize("pair", [LONG_LEASE], indirect=True)
def test_an_orderly_end_hands_over_before_the_lease_expires(pair: tuple[Process, Process]) -> None:
    one, two = pair
    one.send(signal.SIGTERM)
    two.wait("leads")
    assert one.wait("led")["until"] <= two.events("leads")[0]["since"]
    assert one.process.wait(120) == 0
    assert one.events("ended")


def test_the_leader_survives_a_restart_of_the_api_server(
    control_plane: ControlPlane, pair: tuple[Process, Process], kubectl: Kubectl, namespace: str
) -> None:
    one, two = pair
    control_plane.stop_apiserver()
    try:
        one.wait("led")
    finally:
        control_plane.start_apiserver()
        until_admitted(kubectl)  # the next test finds admission as it was
    winner = wait_for(
        lambda: [p for p in (one, two) if len(p.events("leads")) > len(p.events("led"))],
        what="a leader after the outage",
        seconds=120,
        found=lambda: one.err.read_text()[-1500:] + two.err.read_text()[-1500:],
    )
    assert len(winner) == 1
    spans = sorted(
        (start["since"], end["until"])
        for p in (one, two)
        for start, end in zip(p.events("leads"), p.events("led"), strict=False)
    )
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


if __name__ == "__main__":
    elect(*sys.argv[1:6])
