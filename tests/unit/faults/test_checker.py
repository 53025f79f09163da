"""The checker bites: a minimal trace for each invariant violates exactly that one, and a good run none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lab.faults.checker import INVARIANTS, check
from lab.faults.checker.__main__ import main
from lab.faults.trace import Header, Note, Trace, read_trace, write_trace
from precision_operator.api.modes import Mode
from precision_operator.api.state import HeldWorkload, Phase, Restart, State
from precision_operator.contract import PROMOTE, RETRY
from tests.support import broken_traces as traces
from tests.support.broken_traces import BOTH_BF16, HEALTHY, HELD, INDEXED, ROLLING_BACK, SHARED, START, A, B
from tests.support.cluster_fleet import policy
from tests.support.traces import NAMESPACE, Builder

BROKEN = {
    "I1 a rollback that assigns the target": (
        "I1",
        traces.after(START, traces.bumped(START, phase=Phase.ROLLING_BACK)),
    ),
    "I1 held ends by itself": ("I1", traces.after(HELD, traces.bumped(HELD, phase=Phase.PENDING))),
    "I1 a rollback ends by itself": (
        "I1",
        traces.after(ROLLING_BACK, traces.bumped(HELD, phase=Phase.PENDING)),
    ),
    "I1 held while a process trains in the target": (
        "I1",
        traces.reported(ROLLING_BACK, traces.bumped(HELD), "fp16"),
    ),
    "I1 enforced no more": ("I1", traces.after(START, replace(START, generation=2, enforce=False))),
    "I1 assigned nothing": ("I1", traces.after(START, replace(START, generation=2, fallback=None))),
    "I1 held ends by a command that nobody gave": (
        "I1",
        traces.after(HELD, traces.bumped(HELD, phase=Phase.PENDING, commands={RETRY: 0})),
    ),
    "I1 a lost record that comes back with the target": ("I1", traces.created(replace(HELD, modes={A: Mode.FP16}))),
    "I1 a rollback whose fallback is the target": (
        "I1",
        traces.after(START, traces.bumped(START, phase=Phase.ROLLING_BACK, fallback=Mode.FP16, modes={})),
    ),
    "I1 a lower fallback when the policy is gone": (
        "I1",
        traces.after_deletion(ROLLING_BACK, replace(ROLLING_BACK, generation=2, fallback=Mode.BF16)),
    ),
    "I1 asked for the target while held": (
        "I1",
        traces.asked_again(HELD, {"generation": 5, "mode": "fp32"}, {"generation": 6, "mode": "fp16"}),
    ),
    "I1 asked for the target beyond the step": (
        "I1",
        traces.asked_again(START, {"generation": 1, "mode": "fp32"}, {"generation": 2, "mode": "fp16"}),
    ),
    "I1 asked for less than indexes of its workload may have": (
        "I1",
        traces.asked_again(INDEXED, {"generation": 1, "mode": "fp32"}, {"generation": 2, "mode": "fp16"}),
    ),
    "I1 a checkpoint asked for in another mode": (
        "I1",
        traces.asked_again(
            HELD, {"generation": 5, "mode": "fp32"}, {"generation": 6, "mode": "fp16", "checkpoint": True}
        ),
    ),
    "I1 held while a process has reported nothing": (
        "I1",
        traces.silent(ROLLING_BACK, traces.bumped(HELD)),
    ),
    "I2 promoted before a member has reported": ("I2", traces.silent(replace(START, members=(A,)), HEALTHY)),
    "I2 promoted without data, though approved": (
        "I2",
        traces.asked(replace(START, no_data_since=150.0), replace(HEALTHY, no_data_since=150.0), PROMOTE),
    ),
    "I2 promoted without the approval": (
        "I2",
        traces.asked(
            START, HEALTHY, RETRY, {"strategy": {"steps": [{"setWeight": 50}, {"pause": {}}, {"setWeight": 100}]}}
        ),
    ),
    "I2 promoted without data": (
        "I2",
        traces.after(replace(START, no_data_since=150.0), replace(HEALTHY, no_data_since=150.0)),
    ),
    "I2 promoted before a member has moved": ("I2", traces.reported(replace(START, members=(A,)), HEALTHY, "fp32")),
    "I2 promoted early": ("I2", traces.after(START, replace(HEALTHY, phase_since=100.5))),
    "I3 an edge that does not exist": ("I3", traces.after(HELD, traces.bumped(HELD, phase=Phase.ROLLING_BACK))),
    "I3 an edge that is not counted": ("I3", traces.after(START, replace(START, phase=Phase.PAUSED))),
    "I3 a step that is not counted": ("I3", traces.after(START, replace(START, step_index=1, step_since=999.0))),
    "I3 begun anew without an edit": (
        "I3",
        traces.after(
            replace(START, precision=Mode.FP16), traces.bumped(START, phase=Phase.PENDING, precision=Mode.FP16)
        ),
    ),
    "I3 degraded without anyone held": ("I3", traces.after(HEALTHY, traces.bumped(HEALTHY, phase=Phase.DEGRADED))),
    "I3 a step skipped": ("I3", traces.after(START, traces.bumped(START, step_index=2, step_since=200.0))),
    "I3 a step taken in Held": ("I3", traces.after(HELD, traces.bumped(HELD, step_index=1))),
    "I3 a step back": (
        "I3",
        traces.after(replace(START, step_index=1), replace(START, step_index=0, transition_id=1)),
    ),
    "I4 a record dropped while its Job is suspended": ("I4", traces.record_dropped_while_suspended()),
    "I4 a Job suspended unrecorded": ("I4", traces.suspended_unrecorded()),
    "I4 a record that went too early": ("I4", traces.forgotten_while_suspended()),
    "I5 two where one may": (
        "I5",
        traces.after(START, replace(START, generation=2, modes={A: Mode.FP16, B: Mode.FP16})),
    ),
    "I5 made with two where one may": ("I5", traces.created(replace(START, modes={A: Mode.FP16, B: Mode.FP16}))),
    "I5 begun with two where one may": ("I5", traces.begun_with_too_many("fp32", "fp32")),
    "I5 two by the default where one may": (
        "I5",
        traces.asked(START, replace(START, generation=2, modes={}, fallback=Mode.BF16), RETRY, BOTH_BF16),
    ),
    "I5 more pods of a workload are asked than its share": ("I5", traces.another_is_asked()),
    "I7 a held fleet released with its policy": (
        "I7",
        traces.after_deletion(replace(HELD, members=(A,)), replace(HELD, fallback=None, generation=2, deletable=True)),
    ),
    "I7 a held workload reduced to the target": (
        "I7",
        traces.after_deletion(
            replace(HELD, members=(A,)), replace(HELD, fallback=None, modes={A: Mode.FP16}, generation=2)
        ),
    ),
    "I7 a hold deleted": ("I7", traces.after_deletion(HELD, None)),
    "I7 what was held is moved to a target that others may be held in": (
        "I7",
        traces.asked(
            replace(HEALTHY, modes={}, held=(HeldWorkload(A, "Overflow", 100.0),)),
            replace(HEALTHY, generation=2, modes={A: Mode.BF16}),
            PROMOTE,
            {"target": "bf16"},
        ),
    ),
    "I7 what was held is moved": (
        "I7",
        traces.after(
            replace(HEALTHY, modes={}, held=(HeldWorkload(A, "Overflow", 100.0),)), replace(HEALTHY, generation=2)
        ),
    ),
    "I8 an old epoch": ("I8", traces.after(replace(START, epoch=2), START)),
    "I8 two leaders": ("I8", traces.after(START, replace(START, writer="two"))),
    "I8 the same generation": ("I8", traces.after(START, replace(START, modes={}))),
    "I8 another owner under the same generation": ("I8", traces.after(START, replace(START, contested=frozenset({B})))),
    "I8 an older leader makes the assignment again": ("I8", traces.made_again_by_an_old_leader()),
    "I8 another mode under the same generation": ("I8", traces.pod_asked_otherwise()),
    "I8 an older request": ("I8", traces.pod_goes_back()),
    "I8 an older request after none": ("I8", traces.request_taken_off_and_older()),
    "I9 a third round that nobody counts": ("I9", traces.taken_away(HELD, 3)),
    "I9 a third round": ("I9", traces.after(START, replace(START, restarts={A: Restart(3, 100.0)}))),
    "I10 not reduced": ("I10", traces.undeleted()),
    "I10 reduced too late": ("I10", traces.deleted_late()),
    "I10 not reduced at rest": ("I10", traces.unreduced_at_rest(HELD)),
    "I10 not reduced, though that is expected": (
        "I10",
        traces.unreduced_at_rest(ROLLING_BACK, reduced=[f"{NAMESPACE}/fleet"]),
    ),
    "I11 a token": ("I11", traces.secret_shown()),
    "I11 a key of two lines in a workload's name": ("I11", traces.secret_in_another_field()),
    "L1 another phase": ("L1", traces.wrong_phase()),
    "L1 another mode": ("L1", traces.wrong_mode()),
    "L1 no mode reported": ("L1", traces.never_reported()),
    "Trace nobody knows what is missing": ("Trace", traces.gap(["?"])),
    "Trace a watch refused at rest": ("Trace", traces.gap([], at_rest=True)),
    "L4 an incident written at rest": ("L4", traces.written_at_rest()),
    "L4 an incident written again and again at rest": ("L4", traces.saved_at_rest(0.0)),
    "L4 a write at rest that changed nothing": ("L4", traces.sent_at_rest()),
    "L4 written at rest": ("L4", traces.restless()),
    "L4 a pod taken away at rest": ("L4", traces.taken_away_at_rest(deleted=False)),
    "L4 a pod killed at rest": ("L4", traces.taken_away_at_rest(deleted=True)),
    "L4 a pod asked at rest": ("L4", traces.asked_at_rest()),
    "L4 a policy written at rest": ("L4", traces.policy_written_at_rest()),
    "L4 a Job suspended at rest": ("L4", traces.suspended_at_rest()),
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
        (INDEXED, [{"generation": 1, "mode": "fp32"}, {"generation": 2, "mode": "bf16"}]),
        (
            replace(HELD, contested=frozenset({B})),
            [{"generation": 1, "mode": "fp32"}, {"generation": 2, "mode": "fp16"}],
        ),
    ],
    ids=["safer", "a checkpoint", "helped by BF16", "a share of its pods", "an index of its pods", "another policy's"],
)
def test_what_a_pod_may_be_asked_for_violates_nothing(state: State, requests: list[dict[str, object]]) -> None:
    assert [v for v in check(traces.asked_again(state, *requests).trace()) if v.revision is not None] == []


@pytest.mark.parametrize(("times", "mode"), [(2, "fp16"), (4, "fp32")])
def test_two_rounds_and_any_number_of_pods_that_train_as_they_must_may_be_taken_away(times: int, mode: str) -> None:
    assert check(traces.taken_away(HELD, times, mode).trace()) == []


def test_rounds_are_counted_anew_after_a_change_of_the_mode() -> None:
    built = traces.taken_away(replace(HEALTHY, changed={A: 1}), 2, "fp32")
    built.state(traces.bumped(HELD, changed={A: 2}))
    built.entries += traces.taken_away(HELD, 2).entries[4:]
    assert [v for v in check(built.trace()) if v.invariant == "I9"] == []


def test_what_an_incident_still_has_to_say_may_be_written_at_rest() -> None:
    assert check(traces.saved_at_rest(10.0).trace()) == []


def test_a_process_that_nobody_watches_may_be_silent_where_the_run_says_so() -> None:
    trace = traces.silent(ROLLING_BACK, traces.bumped(HELD)).trace()
    assert check(replace(trace, header=replace(trace.header, expectations={"unreported": True}))) == []


def test_a_secret_that_is_named_beside_the_trace_is_found_too() -> None:
    built = Builder()
    built.write("PrecisionPolicy", "fleet", {"status": {"message": "refused s3cret"}})
    assert check(built.trace()) == []
    assert [violation.invariant for violation in check(built.trace(), secrets={"token": "s3cret"})] == ["I11"]


@pytest.mark.parametrize("modes", [("fp16", "fp16"), ("fp32", "fp16"), ()])
def test_what_trains_in_the_target_already_may_be_adopted_at_once(modes: tuple[str, ...]) -> None:
    assert check(traces.begun_with_too_many(*modes).trace()) == []


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
    good = write_trace(traces.after(START, START).trace(), tmp_path / "good.jsonl")
    broken = write_trace(traces.wrong_phase().trace(), tmp_path / "broken.jsonl")
    assert main([str(good)]) == 0
    assert f"{good}: by hand, 5 entries, 0 violations" in capsys.readouterr().out
    assert main([str(good), str(broken)]) == 1
    assert f"{broken}: L1 at the end: team/fleet ends in Progressing, expected Held" in capsys.readouterr().out


def test_a_file_that_is_no_trace_fails_and_keeps_no_other_from_being_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = write_trace(traces.after(START, START).trace(), tmp_path / "good.jsonl")
    assert main([str(tmp_path / "absent.jsonl"), str(good)]) == 1
    assert f"{good}: by hand" in capsys.readouterr().out
