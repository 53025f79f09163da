"""The fleet in the documentation's pictures of the dashboard: one policy moves, one is guarded, one was rolled back."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, cast

from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, HeldWorkload, Phase
from precision_operator.api.summary import summary_to_wire
from precision_operator.incidents.document import from_body, to_body
from precision_operator.incidents.report import IncidentPhase, Report, stamp
from precision_operator.kube.port import ASSIGNMENTS, DEPLOYMENTS, INCIDENTS, PODS, POLICIES, REPLICASETS, JsonObject
from tests.support import trainers
from tests.support.cli import stands
from tests.support.fake_kube import FakeKube
from tests.support.reported import rolled_back

SHOWN = "llm-0037"
"""The workload whose details the picture of the fleet shows."""


async def pictured() -> FakeKube:
    """An API server in memory that holds it, in namespace ``default``."""
    kube, now = FakeKube(), time.time()
    llm = _keys("llm", 320)
    moved, held, late = llm[:160], llm[140], llm[100:105]
    failing = tuple(Failing(llm[n], Signal.OVERFLOW, Severity.P1, now - 44, measured="0.41 > 0.3") for n in (37, 68))
    _policy(
        kube,
        "llm",
        Phase.PROGRESSING,
        moved,
        reason="AwaitingEvidence",
        message="step 3 of 4: the evidence is good for 40 s of 300 s",
        step="3/4 50%",
        step_index=2,
        phase_since=now - 2214,
        total=len(llm),
        moved=len(moved) - len(late) - 1,
        failing=failing,
        held=(HeldWorkload(held, "OverflowRateHigh", now - 900),),
        unacknowledged=tuple(key.rpartition("/")[2] for key in late),
    )
    for key in llm:
        _trainer(kube, "llm", key, Mode.FP16 if key in moved and key not in (held, *late) else Mode.FP32)
    speech = _keys("speech", 40)
    _policy(
        kube,
        "speech",
        Phase.HEALTHY,
        speech,
        precision=Mode.BF16,
        modes=dict.fromkeys(speech, Mode.BF16),
        step="4/4 100%",
        step_index=3,
        phase_since=now - 85980,
        total=len(speech),
        moved=len(speech),
        message="step 4 of 4: all workloads are moved",
    )
    for key in speech:
        _trainer(kube, "speech", key, Mode.BF16)
    stage = await rolled_back(now=now - 1200)
    newest, incident = _of_vision(stage.report), stage.world.state.incident
    assert incident is not None
    incident, hot = replace(incident, id=newest.id), _keys("hot", 24, digits=1)
    _policy(
        kube,
        "vision",
        Phase.HELD,
        hot,
        reason=incident.reason,
        message=incident.message,
        precision=Mode.FP32,
        modes={},
        transition_id=6,
        phase_since=incident.decided_at,
        total=len(hot),
        moved=len(hot),
        incident=incident,
    )
    for key in hot:
        _trainer(kube, "vision", key, Mode.FP32)
    kube.put(INCIDENTS, to_body(newest, namespace="default"))
    yesterday = replace(newest.stages, decided_at=stamp(now - 86400))
    older = replace(newest, policy="llm", id="llm-3", phase=IncidentPhase.CLOSED, stages=yesterday)
    kube.put(INCIDENTS, to_body(older, namespace="default"))
    return kube


def _of_vision(report: Report) -> Report:
    """The report as it would be if the policy had been of this name, without an answer that only the fake gives."""
    kept = tuple(one for one in report.evidence if one.name != Signal.MEMORY)
    text = json.dumps(to_body(replace(report, policy="vision", evidence=kept), namespace="default"))
    text = text.replace(report.id, "vision-5").replace("fleet -n ns", "vision -n default")
    return from_body(json.loads(text))


def _keys(name: str, count: int, *, digits: int = 4) -> list[str]:
    return [f"apps/Deployment/{name}-{number:0{digits}d}" for number in range(count)]


def _policy(kube: FakeKube, name: str, phase: Phase, members: list[str], **given: object) -> None:
    labels = {"fleet": name}
    known: dict[str, Any] = {
        "modes": dict.fromkeys(members, Mode.FP16),
        "selector": Selector(tuple(labels.items())),
        **given,
    }
    found = stands(phase, members=tuple(members), assignment=name, **known)
    status = summary_to_wire(replace(found.status, breached=len(found.state.failing)))
    metadata: JsonObject = {"name": name, "uid": f"uid-{name}", "generation": 1}
    spec: JsonObject = {"selector": {"matchLabels": dict(labels)}}
    kube.put(POLICIES, {"metadata": metadata, "spec": spec, "status": cast(JsonObject, status)})
    kube.put(ASSIGNMENTS, {"metadata": {"name": name}, **cast(JsonObject, assignment_to_wire(found.state))})


def _trainer(kube: FakeKube, policy: str, key: str, mode: Mode) -> None:
    name, labels = key.rpartition("/")[2], {"fleet": policy}
    kube.put(DEPLOYMENTS, trainers.deployment(name, labels=labels))
    kube.put(REPLICASETS, trainers.replicaset(name))
    kube.put(PODS, trainers.pod(name, labels=labels, mode=mode, generation=7))
