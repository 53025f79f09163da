"""Traces of runs that broke an invariant, or came near it, for the checker to judge."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from lab.faults.trace import Note
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.state import Phase, State, Suspension
from precision_operator.contract import REQUEST
from tests.support.cluster_fleet import LABELS, policy
from tests.support.traces import NAMESPACE, Builder

A, B = "apps/Deployment/a", "apps/Deployment/b"
START = State(
    selector=Selector(tuple(LABELS.items())),
    generation=1,
    enforce=True,
    policy_uid="uid-fleet",
    observed_generation=1,
    phase=Phase.PROGRESSING,
    phase_since=100.0,
    step_since=100.0,
    writer="one",
    epoch=1,
    modes={A: Mode.FP16},
)
HELD = replace(START, phase=Phase.HELD, modes={})
ROLLING_BACK = replace(HELD, phase=Phase.ROLLING_BACK)
HEALTHY = replace(START, phase=Phase.HEALTHY, step_index=1, transition_id=1, phase_since=200.0, step_since=200.0)
SHARED = replace(START, modes={}, members=(B,), shares={B: 1}, precision=Mode.FP16)
INDEXED = replace(START, modes={}, members=(B,), indexes={B: 1}, index_mode=Mode.BF16)
"""Of one workload, the pods below index 1 are assigned BF16."""
SUSPENSION = Suspension("uid-train", 1, 100.0)


def after(before: State, later: State) -> Builder:
    """A fleet of two whose assignment is written twice."""
    built = Builder()
    built.fleet("a", "b")
    built.state(before)
    built.state(later)
    return built


def pod_goes_back() -> Builder:
    built = Builder()
    for generation in (5, 4):
        request = json.dumps({"generation": generation, "mode": "fp16"})
        built.write("Pod", "a-1", {}, annotations={REQUEST: request})
    return built


def asked_again(state: State, *requests: dict[str, object]) -> Builder:
    """A fleet of two whose second process is in the fallback, and is asked for one thing after the other."""
    built = Builder()
    built.fleet("a", "b")
    built.state(state)
    for request in requests:
        built.pod("b", request=request, reports="fp32")
    return built


def another_is_asked() -> Builder:
    """One pod of a workload may train in the target, and two are asked to."""
    built = asked_again(SHARED, {"generation": 2, "mode": "fp16"})
    for asked in ({"generation": 1, "mode": "fp32"}, {"generation": 2, "mode": "fp16"}):
        built.pod("b", 2, request=asked, reports="fp32")
    return built


def request_taken_off_and_older() -> Builder:
    built = Builder()
    for request in ({"generation": 5, "mode": "fp16"}, None, {"generation": 3, "mode": "fp32"}):
        built.pod("a", request=request)
    return built


def silent(before: State, later: State) -> Builder:
    """A fleet of two of which a process never says what it trains in, until the end."""
    built = Builder()
    built.fleet("a", "b")
    built.state(before)
    built.pod("a")
    built.state(later)
    built.pod("a", reports=str(later.assigned(A)))
    return built


def never_reported() -> Builder:
    built = Builder()
    built.fleet("a")
    built.state(HELD)
    built.pod("a")
    return built


def taken_away(state: State, times: int, mode: str = "fp16") -> Builder:
    """Pods that come back in this mode, and are taken away one after the other."""
    built = Builder()
    built.fleet("a")
    built.state(state)
    for number in range(times):
        built.pod("a", number, reports=mode)
        built.pod("a", number, going=True)
        built.pod("a", number, deleted=True)
    return built


def unreduced_at_rest(state: State, **expectations: object) -> Builder:
    """A policy that is deleted, and a run that ends soon after."""
    built = Builder(expectations)
    built.fleet("a")
    built.state(state)
    built.fleet(deleted=True)
    built.note(Note.REST)
    return built


def suspended_unrecorded() -> Builder:
    built = Builder()
    built.state(START)
    built.job(suspended=False)
    built.job(suspended=True)
    return built


def forgotten_while_suspended() -> Builder:
    built = Builder()
    built.job(suspended=True)
    recorded = replace(HELD, suspensions={"batch/Job/train": SUSPENSION}, deletable=True)
    built.state(recorded)
    built.state(recorded, deleted=True)
    return built


def record_dropped_while_suspended() -> Builder:
    built = Builder()
    built.state(replace(START, suspensions={"batch/Job/train": SUSPENSION}))
    built.job(suspended=True)
    built.state(START)
    return built


def undeleted() -> Builder:
    built = Builder()
    built.fleet("a")
    built.state(START)
    built.fleet(deleted=True)
    built.at_seconds += 31
    built.write("Pod", "a-1", {})
    return built


def deleted_late() -> Builder:
    built = undeleted()
    built.state(START, deleted=True)
    return built


def after_deletion(before: State, later: State | None) -> Builder:
    """The same fleet, whose policy is deleted in between; None: the assignment too."""
    built = Builder()
    built.fleet("a", "b")
    built.state(before)
    built.fleet(deleted=True)
    built.state(later or before, deleted=later is None)
    return built


def asked(before: State, later: State, command: str, spec: dict[str, Any] | None = None) -> Builder:
    """The same fleet, whose policy carries a command in answer to the first state."""
    built = Builder()
    spec = spec or {}
    built.fleet("a", "b", **spec)
    built.state(before)
    annotations = {command: str(before.transition_id)}
    built.write("PrecisionPolicy", "fleet", policy(**spec), generation=1, annotations=annotations)
    built.state(later)
    return built


def created(state: State) -> Builder:
    built = Builder()
    built.fleet("a", "b")
    built.write("PrecisionAssignment", "fleet", assignment_to_wire(state), generation=1)
    return built


def made_again_by_an_old_leader() -> Builder:
    built = Builder()
    built.state(replace(START, epoch=2, modes={}, enforce=False))
    built.state(replace(START, epoch=2, modes={}, enforce=False), deleted=True)
    built.state(replace(START, modes={}, enforce=False))
    return built


def begun_with_too_many(*modes: str) -> Builder:
    """The first commit that enforces, after reports of what the workloads train in."""
    built = Builder()
    built.fleet("a", "b")
    built.state(replace(START, enforce=False, modes={}))
    for key, mode in zip((A, B), modes, strict=False):
        built.note(Note.REPORTED, namespace=NAMESPACE, pod=key, workload=key, mode=mode, generation=0)
    built.state(replace(START, generation=2, modes={A: Mode.FP16, B: Mode.FP16}))
    return built


def reported(before: State, later: State, mode: str) -> Builder:
    """The same fleet of two, of which a process reports in between."""
    built = Builder()
    built.fleet("a", "b")
    built.state(before)
    built.write("Pod", "a-1", {})
    built.note(Note.REPORTED, namespace=NAMESPACE, pod="a-1", workload=A, mode=mode, generation=1)
    built.state(later)
    built.note(Note.REPORTED, namespace=NAMESPACE, pod="a-1", workload=A, mode=later.assigned(A), generation=1)
    return built


def pod_asked_otherwise() -> Builder:
    built = Builder()
    for mode in ("fp16", "fp32"):
        built.write("Pod", "a-1", {}, annotations={REQUEST: json.dumps({"generation": 5, "mode": mode})})
    return built


def taken_away_at_rest(*, deleted: bool) -> Builder:
    built = Builder()
    built.write("Pod", "a-1", {})
    built.note(Note.REST)
    gone = {} if deleted else {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    built.write("Pod", "a-1", {}, deleted=deleted, **gone)
    return built


def asked_at_rest() -> Builder:
    built = Builder()
    built.pod("a")
    built.note(Note.REST)
    built.pod("a", request={"generation": 1, "mode": "fp32"})
    return built


def policy_written_at_rest() -> Builder:
    built = Builder()
    built.note(Note.REST)
    built.fleet()
    return built


def suspended_at_rest() -> Builder:
    built = Builder()
    built.state(replace(START, suspensions={"batch/Job/train": SUSPENSION}))
    built.job(suspended=False)
    built.note(Note.REST)
    built.job(suspended=True)
    return built


def secret_shown() -> Builder:
    built = Builder({"secrets": {"token": "s3cret"}})
    built.write("PrecisionPolicy", "fleet", {"status": {"message": "refused s3cret"}})
    return built


def secret_in_another_field() -> Builder:
    built = Builder({"secrets": {"key": 'of\n"two" lines'}})
    body = assignment_to_wire(START)
    built.write("PrecisionAssignment", "fleet", {**body, "modes": {'x of\n"two" lines': "fp16"}})
    return built


def wrong_phase() -> Builder:
    built = Builder({"phases": {f"{NAMESPACE}/fleet": ["Held"]}})
    built.state(START)
    return built


def wrong_mode() -> Builder:
    built = Builder()
    built.fleet("a")
    built.state(HELD)
    built.write("Pod", "a-1", {})
    built.note(Note.REPORTED, namespace=NAMESPACE, pod="a-1", workload=A, mode="fp16", generation=1)
    return built


def restless() -> Builder:
    built = Builder()
    built.note(Note.REST)
    built.state(START)
    return built


def gap(changed: list[str], *, at_rest: bool = False) -> Builder:
    """A watch that was refused after these were written."""
    built = Builder()
    if at_rest:
        built.note(Note.REST)
    built.note(Note.GAP, resource="pods", kind="Pod", reason="compacted", changed=changed)
    return built


def written_at_rest() -> Builder:
    built = Builder()
    built.note(Note.REST)
    built.write("PrecisionIncident", "fleet-1", {})
    return built


def saved_at_rest(after_seconds: float) -> Builder:
    """An incident that is written again at rest."""
    built = Builder()
    built.write("PrecisionIncident", "fleet-1", {"report": {"phase": "Open"}})
    built.note(Note.REST)
    built.at_seconds += after_seconds - 2.0
    built.note(Note.WROTE, namespace=NAMESPACE, write="PUT precisionincidents fleet-1 #1")
    built.write("PrecisionIncident", "fleet-1", {"report": {"phase": "Verifying"}})
    return built


def sent_at_rest() -> Builder:
    built = Builder()
    built.note(Note.WROTE, namespace=NAMESPACE, write="PATCH precisionpolicies/status fleet #1")
    built.note(Note.REST)
    built.note(Note.WROTE, namespace=NAMESPACE, write="PATCH precisionpolicies/status fleet #2")
    return built


def bumped(state: State, **changes: object) -> State:
    """The state after an edge."""
    return replace(state, **{"generation": 2, "transition_id": state.transition_id + 1, **changes})  # type: ignore[arg-type]


BOTH_BF16 = {"target": "bf16", "fallback": "bf16"}
