"""``kubectl precision`` over an API server in memory, and policies in the states that people meet."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.canary import CanaryVerdict, Comparison
from precision_operator.api.conditions import Condition
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.mitigation import Mitigation, Rung
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import HeldWorkload, Phase, State
from precision_operator.api.summary import Summary, summary_to_wire
from precision_operator.cli import main, session
from precision_operator.kube.port import ASSIGNMENTS, DEPLOYMENTS, PODS, POLICIES, REPLICASETS
from tests.support import trainers
from tests.support.fake_kube import FakeKube

Json = dict[str, Any]
PREFIX = "precision.genesis.ai/"
FLEET = {"fleet": "test"}
NOW = time.time()
A, B, C = (f"apps/Deployment/{name}" for name in "abc")
"""Keys of workloads."""


@dataclass(frozen=True)
class Stands:
    """What a pass leaves behind: the policy's status, and the state in the assignment."""

    status: Summary
    state: State


def stands(phase: Phase, /, base: Stands | None = None, **given: object) -> Stands:
    """A policy in this phase; each field goes where it belongs, those of both to both."""
    known: Json = {} if base else {
        "observed_generation": 1,
        "reason": "Promoted",
        "message": "as it should be",
        "precision": Mode.FP16,
        "fallback": Mode.FP32,
        "transition_id": 4,
        "generation": 7,
        "total": 2,
        "phase_since": NOW - 90,
        "enforce": True,
        "selector": Selector(tuple(FLEET.items())),
        "assignment": "fleet",
    }  # fmt: skip
    known = {**known, "phase": phase, **given}
    summary = {field.name: known[field.name] for field in fields(Summary) if field.name in known}
    state = {field.name: known[field.name] for field in fields(State) if field.name in known}
    if isinstance(summary.get("held"), tuple):
        summary["held"] = len(summary["held"])
    assert {*summary, *state} == set(known), set(known) - {*summary, *state}
    if base is not None:
        return Stands(replace(base.status, **summary), replace(base.state, **state))
    return Stands(Summary(**summary), State(**state))


WAITING = stands(Phase.PAUSED, reason="AwaitingApproval", message="say so", step="1/2 50%")
INCIDENT = Incident(
    id="fleet-5",
    severity=Severity.P1,
    scope=Scope.FLEET,
    reason="OverflowRateHigh",
    message="overflow beyond 0.3 in a",
    workloads=("a",),
    detected_at=NOW - 60,
    decided_at=NOW - 59,
    deadline_at=NOW + 840,
    last_patch_at=NOW - 58,
    last_ack_at=NOW - 57,
)
HELD = stands(Phase.HELD, reason="OverflowRateHigh", precision=Mode.FP32, incident=INCIDENT)
BY_CANARY = stands(
    Phase.ROLLING_BACK,
    reason="TrainingSlow",
    incident=replace(INCIDENT, severity=Severity.P2, strategy=Strategy.CANARY, last_patch_at=None, last_ack_at=None),
    canary=(A,),
    comparison=Comparison(since=NOW - 60, looked_at=NOW - 30, looks=2, total=1.0, squares=0.6),
)
NO_DIFFERENCE = stands(
    Phase.ROLLING_BACK,
    BY_CANARY,
    reason="CanaryNoDifference",
    comparison=Comparison(since=NOW - 60, looks=2, verdict=CanaryVerdict.NO_DIFFERENCE, ended_at=NOW),
)
PARTLY = stands(Phase.DEGRADED, held=(HeldWorkload(A, "OverflowRateHigh", NOW),))


def mitigating(**changes: object) -> Stands:
    """A guarded fleet with a window of mitigation on its workload ``a``."""
    window = Mitigation(
        A, Signal.OVERFLOW, since=NOW - 60, until=NOW + 1740, rung=Rung.GROWTH_INTERVAL, rung_since=NOW - 20
    )
    window = replace(window, found=("HalveScale: 0.24",), **changes)  # type: ignore[arg-type]  # of a Mitigation
    text = "GrowthInterval in a: overflow must be good for 480 s, else it is rolled back"
    condition = Condition("Progressing", "False", "Mitigating", text, 1, NOW - 60)
    return stands(Phase.HEALTHY, mitigations=(window,), members=(A,), conditions=(condition,))


class Cli:
    """The command line over the fake, in namespace ``default``."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.fake, self._capsys = FakeKube(), capsys

    def connected(
        self, arguments: argparse.Namespace, verb: Callable[[session.Session, argparse.Namespace], Awaitable[int]]
    ) -> int:
        """What stands in the place of :func:`precision_operator.cli.session.connected`."""

        async def run() -> int:
            where = session.Session(self.fake, arguments.namespace or "default", session.given_flags(arguments))
            return await verb(where, arguments)

        return asyncio.run(run())

    def policy(self, found: Stands, *, name: str = "fleet", annotations: Json | None = None, **spec: object) -> None:
        """A policy with its assignment."""
        metadata = {
            "name": name,
            "uid": f"uid-{name}",
            "annotations": annotations or {},
            "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }
        body = {"spec": {"selector": {"matchLabels": FLEET}, **spec}, "status": summary_to_wire(found.status)}
        self.fake.put(POLICIES, {"metadata": metadata, **body})  # type: ignore[dict-item]
        self.assignment(found, name=name)

    def assignment(self, found: Stands, *, name: str = "fleet") -> None:
        """An assignment alone."""
        self.fake.put(ASSIGNMENTS, {"metadata": {"name": name}, **assignment_to_wire(found.state)})  # type: ignore[dict-item]

    def trainer(self, name: str, mode: str, *, generation: int = 7, **status: object) -> None:
        """A Deployment of the fleet with one pod, which is asked for this mode."""
        self.fake.put(DEPLOYMENTS, trainers.deployment(name, labels=FLEET))
        self.fake.put(REPLICASETS, trainers.replicaset(name))
        self.fake.put(PODS, trainers.pod(name, labels=FLEET, mode=mode, generation=generation, spec=None, **status))

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run it; what it printed, errors included."""
        self._capsys.readouterr()
        assert main(words) == code, self._capsys.readouterr()
        printed = self._capsys.readouterr()
        return printed.out + printed.err

    def json(self, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - what JSON is
        """The same with ``-o json``."""
        return json.loads(self(*words, "-o", "json", code=code))

    def stored(self, name: str = "fleet") -> tuple[Json, Json]:
        """(our annotations without the prefix, spec)."""
        body: Any = self.fake.objects[(POLICIES.plural, "default", name)]
        annotations = body["metadata"].get("annotations", {})
        return {k.removeprefix(PREFIX): v for k, v in annotations.items()}, body["spec"]
