"""The checker bites: a minimal trace for each invariant violates exactly that one, and a good run none."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.faults.checker import INVARIANTS, check
from lab.faults.checker.__main__ import main
from lab.faults.trace import Header, Note, Trace, read_trace, write_trace
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.state import HeldWorkload, Phase, Restart, State, Suspension
from precision_operator.contract import PROMOTE, REQUEST, RETRY
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

BROKEN = {
    "I1 a rollback that assigns the target": ("I1", after(START, bumped(START, phase=Phase.ROLLING_BACK))),
    "I1 held ends by itself": ("I1", after(HELD, bumped(HELD, phase=Phase.PENDING))),
    "I1 a rollback ends by itself": (
        "I1",
        after(ROLLING_BACK, bumped(HELD, phase=Phase.PENDING)),
    ),
    "I1 held while a process trains in the target": (
        "I1",
        reported(ROLLING_BACK, bumped(HELD), "fp16"),
    ),
    "I1 enforced no more": ("I1", after(START, replace(START, generation=2, enforce=False))),
    "I1 assigned nothing": ("I1", after(START, replace(START, generation=2, fallback=None))),
    "I1 held ends by a command that nobody gave": (
        "I1",
        after(HELD, bumped(HELD, phase=Phase.PENDING, commands={RETRY: 0})),
    ),
    "I1 a lost record that comes back with the target": ("I1", created(replace(HELD, modes={A: Mode.FP16}))),
    "I1 a rollback whose fallback is the target": (
        "I1",
        after(START, bumped(START, phase=Phase.ROLLING_BACK, fallback=Mode.FP16, modes={})),
    ),
    "I1 a lower fallback when the policy is gone": (
        "I1",
        after_deletion(ROLLING_BACK, replace(ROLLING_BACK, generation=2, fallback=Mode.BF16)),
    ),
    "I1 asked for the target while held": (
        "I1",
        asked_again(HELD, {"generation": 5, "mode": "fp32"}, {"generation": 6, "mode": "fp16"}),
    ),
    "I1 asked for the target beyond the step": (
        "I1",
        asked_again(START, {"generation": 1, "mode": "fp32"}, {"generation": 2, "mode": "fp16"}),
    ),
    "I1 a checkpoint asked for in another mode": (
        "I1",
        asked_again(HELD, {"generation": 5, "mode": "fp32"}, {"generation": 6, "mode": "fp16", "checkpoint": True}),
    ),
    "I1 held while a process has reported nothing": (
        "I1",
        silent(ROLLING_BACK, bumped(HELD)),
    ),
    "I2 promoted before a member has reported": ("I2", silent(replace(START, members=(A,)), HEALTHY)),
    "I2 promoted without data, though approved": (
        "I2",
        asked(replace(START, no_data_since=150.0), replace(HEALTHY, no_data_since=150.0), PROMOTE),
    ),
    "I2 promoted without the approval": (
        "I2",
        asked(START, HEALTHY, RETRY, {"strategy": {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}}),
    ),
    "I2 promoted without data": (
        "I2",
        after(replace(START, no_data_since=150.0), replace(HEALTHY, no_data_since=150.0)),
    ),
    "I2 promoted before a member has moved": ("I2", reported(replace(START, members=(A,)), HEALTHY, "fp32")),
    "I2 promoted early": ("I2", after(START, replace(HEALTHY, phase_since=100.5))),
    "I3 an edge that does not exist": ("I3", after(HELD, bumped(HELD, phase=Phase.ROLLING_BACK))),
    "I3 an edge that is not counted": ("I3", after(START, replace(START, phase=Phase.PAUSED))),
    "I3 a step that is not counted": ("I3", after(START, replace(START, step_index=1, step_since=999.0))),
    "I3 begun anew without an edit": (
        "I3",
        after(replace(START, precision=Mode.FP16), bumped(START, phase=Phase.PENDING, precision=Mode.FP16)),
    ),
    "I3 degraded without anyone held": ("I3", after(HEALTHY, bumped(HEALTHY, phase=Phase.DEGRADED))),
    "I3 a step taken in Held": ("I3", after(HELD, bumped(HELD, step_index=1))),
    "I3 a step back": (
        "I3",
        after(replace(START, step_index=1), replace(START, step_index=0, transition_id=1)),
    ),
    "I4 a record dropped while its Job is suspended": ("I4", record_dropped_while_suspended()),
    "I4 a Job suspended unrecorded": ("I4", suspended_unrecorded()),
    "I4 a record that went too early": ("I4", forgotten_while_suspended()),
    "I5 two where one may": ("I5", after(START, replace(START, generation=2, modes={A: Mode.FP16, B: Mode.FP16}))),
    "I5 made with two where one may": ("I5", created(replace(START, modes={A: Mode.FP16, B: Mode.FP16}))),
    "I5 begun with two where one may": ("I5", begun_with_too_many("fp32", "fp32")),
    "I5 two by the default where one may": (
        "I5",
        asked(START, replace(START, generation=2, modes={}, fallback=Mode.BF16), RETRY, BOTH_BF16),
    ),
    "I5 more pods of a workload are asked than its share": ("I5", another_is_asked()),
    "I7 a held fleet released with its policy": (
        "I7",
        after_deletion(replace(HELD, members=(A,)), replace(HELD, fallback=None, generation=2, deletable=True)),
    ),
    "I7 a held workload reduced to the target": (
        "I7",
        after_deletion(replace(HELD, members=(A,)), replace(HELD, fallback=None, modes={A: Mode.FP16}, generation=2)),
    ),
    "I7 a hold deleted": ("I7", after_deletion(HELD, None)),
    "I7 what was held is moved to a target that others may be held in": (
        "I7",
        asked(
            replace(HEALTHY, modes={}, held=(HeldWorkload(A, "Overflow", 100.0),)),
            replace(HEALTHY, generation=2, modes={A: Mode.BF16}),
            PROMOTE,
            {"target": "bf16"},
        ),
    ),
    "I7 what was held is moved": (
        "I7",
        after(replace(HEALTHY, modes={}, held=(HeldWorkload(A, "Overflow", 100.0),)), replace(HEALTHY, generation=2)),
    ),
    "I8 an old epoch": ("I8", after(replace(START, epoch=2), START)),
    "I8 two leaders": ("I8", after(START, replace(START, writer="two"))),
    "I8 the same generation": ("I8", after(START, replace(START, modes={}))),
    "I8 another owner under the same generation": ("I8", after(START, replace(START, contested=frozenset({B})))),
    "I8 an older leader makes the assignment again": ("I8", made_again_by_an_old_leader()),
    "I8 another mode under the same generation": ("I8", pod_asked_otherwise()),
    "I8 an older request": ("I8", pod_goes_back()),
    "I8 an older request after none": ("I8", request_taken_off_and_older()),
    "I9 a third round that nobody counts": ("I9", taken_away(HELD, 3)),
    "I9 a third round": ("I9", after(START, replace(START, restarts={A: Restart(3, 100.0)}))),
    "I10 not reduced": ("I10", undeleted()),
    "I10 reduced too late": ("I10", deleted_late()),
    "I10 not reduced at rest": ("I10", unreduced_at_rest(HELD)),
    "I10 not reduced, though that is expected": (
        "I10",
        unreduced_at_rest(ROLLING_BACK, reduced=[f"{NAMESPACE}/fleet"]),
    ),
    "I11 a token": ("I11", secret_shown()),
    "I11 a key of two lines in a workload's name": ("I11", secret_in_another_field()),
    "L1 another phase": ("L1", wrong_phase()),
    "L1 another mode": ("L1", wrong_mode()),
    "L1 no mode reported": ("L1", never_reported()),
    "Trace nobody knows what is missing": ("Trace", gap(["?"])),
    "Trace a watch refused at rest": ("Trace", gap([], at_rest=True)),
    "L4 an incident written at rest": ("L4", written_at_rest()),
    "L4 an incident written again and again at rest": ("L4", saved_at_rest(0.0)),
    "L4 a write at rest that changed nothing": ("L4", sent_at_rest()),
    "L4 written at rest": ("L4", restless()),
    "L4 a pod taken away at rest": ("L4", taken_away_at_rest(deleted=False)),
    "L4 a pod killed at rest": ("L4", taken_away_at_rest(deleted=True)),
    "L4 a Job suspended at rest": ("L4", suspended_at_rest()),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_trace_violates_exactly_one_invariant(case: str) -> None:
    invariant, built = BROKEN[case]
    assert [violation.invariant for violation in check(built.trace())] == [invariant]


def test_every_invariant_is_broken_here_or_checked_elsewhere() -> None:
    broken = {invariant for invariant, _ in BROKEN.values()}
    assert {row.id for row in INVARIANTS if not row.elsewhere} == broken


def test_a_rollout_a_rollback_and_a_retry_violate_nothing() -> None:
    built = Builder({"phases": {f"{NAMESPACE}/fleet": ["Pending"]}})
    built.fleet("a", "b")
    held = replace(HELD, generation=2, transition_id=3)
    again = replace(held, phase=Phase.PENDING, transition_id=4)
    back = replace(HEALTHY, phase=Phase.ROLLING_BACK, modes={}, generation=2, transition_id=2)
    for state in (START, HEALTHY, back, held):
        built.state(state)
    built.write("PrecisionPolicy", "fleet", policy(), generation=1, annotations={RETRY: "3: mended"})
    built.state(again)
    assert check(built.trace()) == []


@pytest.mark.parametrize(
    ("state", "requests"),
    [
        (HELD, [{"generation": 1, "mode": "fp16"}, {"generation": 2, "mode": "fp32"}]),
        (HELD, [{"generation": 1, "mode": "fp16"}, {"generation": 1, "mode": "fp16", "checkpoint": True}]),
        (replace(START, modes={B: Mode.BF16}), [{"generation": 1, "mode": "fp16"}, {"generation": 2, "mode": "bf16"}]),
        (SHARED, [{"generation": 1, "mode": "fp32"}, {"generation": 2, "mode": "fp16"}]),
        (
            replace(HELD, contested=frozenset({B})),
            [{"generation": 1, "mode": "fp32"}, {"generation": 2, "mode": "fp16"}],
        ),
    ],
    ids=["safer", "a checkpoint", "helped by BF16", "a share of its pods", "another policy's"],
)
def test_what_a_pod_may_be_asked_for_violates_nothing(state: State, requests: list[dict[str, object]]) -> None:
    assert [v for v in check(asked_again(state, *requests).trace()) if v.revision is not None] == []


@pytest.mark.parametrize(("times", "mode"), [(2, "fp16"), (4, "fp32")])
def test_two_rounds_and_any_number_of_pods_that_train_as_they_must_may_be_taken_away(times: int, mode: str) -> None:
    assert check(taken_away(HELD, times, mode).trace()) == []


def test_rounds_are_counted_anew_after_a_change_of_the_mode() -> None:
    built = taken_away(replace(HEALTHY, changed={A: 1}), 2, "fp32")
    built.state(bumped(HELD, changed={A: 2}))
    built.entries += taken_away(HELD, 2).entries[4:]
    assert [v for v in check(built.trace()) if v.invariant == "I9"] == []


def test_what_an_incident_still_has_to_say_may_be_written_at_rest() -> None:
    assert check(saved_at_rest(10.0).trace()) == []


def test_a_process_that_nobody_watches_may_be_silent_where_the_run_says_so() -> None:
    trace = silent(ROLLING_BACK, bumped(HELD)).trace()
    assert check(replace(trace, header=replace(trace.header, expectations={"unreported": True}))) == []


def test_a_secret_that_is_named_beside_the_trace_is_found_too() -> None:
    built = Builder()
    built.write("PrecisionPolicy", "fleet", {"status": {"message": "refused s3cret"}})
    assert check(built.trace()) == []
    assert [violation.invariant for violation in check(built.trace(), secrets={"token": "s3cret"})] == ["I11"]


@pytest.mark.parametrize("modes", [("fp16", "fp16"), ("fp32", "fp16"), ()])
def test_what_trains_in_the_target_already_may_be_adopted_at_once(modes: tuple[str, ...]) -> None:
    assert check(begun_with_too_many(*modes).trace()) == []


def test_what_a_gap_hides_is_no_violation() -> None:
    built = Builder()
    built.state(START)
    built.note(Note.GAP, kind="PrecisionAssignment", reason="compacted", changed=[f"{NAMESPACE}/fleet"])
    built.state(replace(START, phase=Phase.HELD, modes={}, transition_id=5))
    assert check(built.trace()) == []


def test_a_gap_hides_no_object_of_another_kind() -> None:
    built = Builder()
    built.state(START)
    built.note(Note.GAP, kind="PrecisionPolicy", reason="compacted", changed=[f"{NAMESPACE}/fleet"])
    built.state(replace(START, transition_id=5))
    assert [violation.invariant for violation in check(built.trace())] == ["I3"]


def test_a_gap_of_unknown_size_hides_one_revision_of_each_object_and_no_more() -> None:
    built = Builder()
    built.state(START)
    built.note(Note.GAP, kind="PrecisionAssignment", reason="not listed", changed=["?"])
    built.state(replace(START, generation=9))
    built.state(replace(START, generation=8))
    texts = [violation.text for violation in check(built.trace()) if violation.invariant != "Trace"]
    assert texts == ["the generation went back from 9 to 8"]


def test_an_older_state_after_a_restore_of_etcd_is_no_violation() -> None:
    built = Builder()
    built.state(replace(START, epoch=9))
    built.note(Note.RESTORED)
    built.state(START)
    assert check(built.trace()) == []


@pytest.mark.parametrize("events", [3, 3000])
def test_a_trace_is_read_back_as_it_was_written(tmp_path: Path, events: int) -> None:
    built = Builder()
    for _ in range(events):
        built.state(START)
    trace = Trace(Header("rollout", 7, {"write": 3}), built.trace().entries)
    path = write_trace(trace, tmp_path / "trace.jsonl")
    assert (path.suffix == ".gz", read_trace(path)) == (events == 3000, trace)


def test_kept_traces_are_checked_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = write_trace(after(START, START).trace(), tmp_path / "good.jsonl")
    broken = write_trace(wrong_phase().trace(), tmp_path / "broken.jsonl")
    assert main([str(good)]) == 0
    assert f"{good}: by hand, 5 entries, 0 violations" in capsys.readouterr().out
    assert main([str(good), str(broken)]) == 1
    assert f"{broken}: L1 at the end: team/fleet ends in Progressing, expected Held" in capsys.readouterr().out


def test_a_file_that_is_no_trace_fails_and_keeps_no_other_from_being_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_trace(after(START, START).trace(), tmp_path / "good.jsonl")
    assert main([str(tmp_path / "absent.jsonl"), str(good)]) == 1
    assert f"{good}: by hand" in capsys.readouterr().out
