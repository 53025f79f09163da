"""The operator's record in its object: nothing of it is lost on the wire, and nothing on the wire crashes its reader."""

import json
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.assignment import (
    OBJECT_LIMIT_BYTES,
    RESERVE_BYTES,
    VERSION,
    assignment_to_wire,
    failing_bytes,
    fleet_bytes,
    parse_assignment,
    state_version,
)
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, HeldWorkload, Phase, Restart, State, Suspension
from precision_operator.contract import MAX_INDEXES
from tests.support.views import key, keys
from tests.support.wires import breaches, json_values, states

FULL = State(
    generation=412,
    modes={key("a"): Mode.FP16},
    enforce=True,
    members=keys("a", "b"),
    shares={key("b"): 3},
    indexes={key("b"): 5},
    index_mode=Mode.FP16,
    canary=keys("b"),
    breached=keys("a"),
    poisoned=keys("a"),
    changed={key("a"): 400, key("b"): 411},
    held=(HeldWorkload(key("b"), "LossNotFinite", 1000.0), HeldWorkload(key("c"), "LossNotFinite", 1000.0)),
    restarts={
        key("a"): Restart(2, 1000.5, 900.25, 3, 1010.75),
        key("b"): Restart(1, 1000.5, 900.25, 0),
        key("c"): Restart(1, 1000.5),
    },
    restart_seconds=(41.5, 60.0),
    suspensions={key("a"): Suspension("uid-a", 3, 1000.5), key("d"): Suspension("uid-d", 4, 1000.5, True)},
)


def wired(state: State) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(assignment_to_wire(state)))
    return found


def test_a_record_survives_the_wire() -> None:
    assert parse_assignment(wired(FULL)) == FULL


@given(states)
def test_a_state_survives_the_wire(state: State) -> None:
    assert parse_assignment(wired(state)) == state


def test_admission_reads_top_level_fields_and_the_record_stands_beside_them() -> None:
    wire = wired(FULL)
    assert wire.keys() == {
        "selector",
        "generation",
        "default",
        "modes",
        "indexes",
        "indexMode",
        "enforce",
        "deletionPolicy",
        "deletable",
        "state",
    }
    assert (wire["indexes"], wire["indexMode"]) == ({key("b"): 5}, "fp16")
    assert (wire["generation"], wire["default"], wire["modes"], wire["enforce"]) == (
        412,
        "fp32",
        {key("a"): "fp16"},
        True,
    )
    assert wire["deletionPolicy"] == "Hold"
    assert wire["state"]["version"] == VERSION


def test_the_oldest_version_is_written_that_can_say_it() -> None:
    whole = replace(FULL, restarts={key("c"): Restart(1, 1000.5)})
    assert wired(whole)["state"]["version"] == 4
    hot = replace(whole, indexes={}, index_mode=None)
    assert wired(hot)["state"]["version"] == 3
    assert wired(replace(hot, shares={}))["state"]["version"] == 2


@pytest.mark.parametrize(
    "restart", [Restart(1, 1000.5, 900.25), Restart(1, 1000.5, pods=0), Restart(1, 1000.5, gone=1010.75)]
)
def test_an_operator_that_would_lose_the_times_of_a_restart_is_told_that_a_newer_one_wrote_them(
    restart: Restart,
) -> None:
    assert wired(State(restarts={key("a"): restart}))["state"]["version"] == VERSION == 5


def test_an_absent_default_leaves_pods_as_their_templates_have_them() -> None:
    state = State(fallback=None, hold_on_delete=False)
    wire = wired(state)
    assert "default" not in wire
    assert wire["deletionPolicy"] == "Release"
    assert parse_assignment(wire).assigned(key("a")) is None


def test_what_belongs_to_one_workload_stands_in_one_line() -> None:
    assert wired(FULL)["state"]["workloads"] == {
        "apps/Deployment": {
            "a": "400 member breached poisoned restart=2@1970-01-01T00:16:40.500Z,-100250,3,10250 "
            "suspended=uid-a,3@1970-01-01T00:16:40.500Z",
            "b": "411 canary p=3 held=0 restart=1@1970-01-01T00:16:40.500Z,-100250,0",
            "c": "0 held=0 restart=1@1970-01-01T00:16:40.500Z",
            "d": "0 resuming=uid-d,4@1970-01-01T00:16:40.500Z",
        }
    }
    assert wired(FULL)["state"]["holds"] == ["LossNotFinite@1970-01-01T00:16:40.000Z"]


@pytest.mark.parametrize(
    ("written", "newest"),
    [("1970-01-01T00:15:00.250Z", 900.25), ("-100250", 900.25), ("20261125", 21261.625), ("", 0.0), ("soon", 0.0)],
)
def test_the_newest_pod_of_a_restart_is_read_however_it_was_written(written: str, newest: float) -> None:
    wire = wired(FULL)
    wire["state"]["workloads"] = {"apps/Deployment": {"a": f"0 restart=1@1970-01-01T00:16:40.500Z,{written}"}}
    assert parse_assignment(wire).restarts == {key("a"): Restart(1, 1000.5, newest)}


TOP = [*assignment_to_wire(State()), "default"]
RECORD = [
    *("policy", "commands", "settings", "phase", "precision", "transitionId", "stepIndex", "incident", "comparison"),
    *("conditions", "writer", "workloads", "holds", "failing", "mitigations", "phaseSince", "attempts"),
]
LINES = st.text("0123456789 memberhldstaky=@,.-:TZ٣", max_size=40)


@given(
    st.dictionaries(st.sampled_from(TOP), json_values, max_size=6),
    st.dictionaries(st.sampled_from(RECORD), json_values),
)
def test_no_object_crashes_the_reader(top: dict[str, object], record: dict[str, object]) -> None:
    parse_assignment(top)
    state = parse_assignment({**top, "state": record})
    assert parse_assignment(wired(state)) == state


@given(st.dictionaries(st.sampled_from(["a", "b"]), LINES), st.lists(LINES, max_size=2))
def test_no_line_of_a_workload_crashes_the_reader(lines: dict[str, str], holds: list[str]) -> None:
    state = parse_assignment({"state": {"workloads": {"apps/Deployment": lines}, "holds": holds}})
    assert parse_assignment(wired(state)) == state


@pytest.mark.parametrize("line", ["9" * 5000, f"1 restart={'9' * 5000}@", "1 held=" + "9" * 5000, "²", "-1", "1 held="])
def test_a_number_that_nobody_can_have_written_is_none(line: str) -> None:
    state = parse_assignment({"state": {"workloads": {"apps/Deployment": {"a": line}}}})
    assert all(number < 10**18 for number in state.changed.values())
    assert all(restart.rounds < 10**18 for restart in state.restarts.values())


@pytest.mark.parametrize("hold", ["held", "held=", "held=7", "held=x", "held=-1"])
def test_a_workload_that_was_rolled_back_by_itself_stays_so_whatever_is_written_of_why(hold: str) -> None:
    state = parse_assignment({"state": {"workloads": {"apps/Deployment": {"a": f"3 {hold}"}}, "holds": ["R@"]}})
    assert state.held_keys == {key("a")}


def test_words_of_a_newer_version_are_left_out() -> None:
    raw = {"state": {"phase": "Ascending", "workloads": {"apps/Deployment": {"a": "3 member blessed=7"}}}}
    state = parse_assignment(raw)
    assert (state.phase, state.members, state.changed) == (Phase.PENDING, keys("a"), {key("a"): 3})


@pytest.mark.parametrize(
    ("body", "version"),
    [({}, VERSION), ({"state": {}}, VERSION), ({"state": {"version": 7}}, 7), ({"state": {"version": "x"}}, VERSION)],
)
def test_the_version_says_who_wrote_the_state(body: dict[str, object], version: int) -> None:
    assert state_version(body) == version
    assert state_version(wired(FULL)) == VERSION


@pytest.mark.parametrize("phase", list(Phase))
@pytest.mark.parametrize("held", [False, True])
def test_what_holds_waits_for_a_person(phase: Phase, held: bool) -> None:
    state = State(phase=phase, held=FULL.held if held else ())
    assert state.holds is (held or phase in (Phase.ROLLING_BACK, Phase.HELD))


@given(breaches)
def test_a_breach_takes_no_more_than_is_counted_for_it(found: Failing) -> None:
    one, two = (len(json.dumps(wired(State(failing=(found,) * n)), separators=(",", ":"))) for n in (1, 2))
    assert two - one == failing_bytes(found)


def test_a_fleet_takes_no_more_than_is_counted_for_it() -> None:
    names = [f"workload-{index:050d}" for index in range(200)]
    state = State(
        modes=dict.fromkeys(keys(*names), Mode.FP16),
        changed=dict.fromkeys(keys(*names), 1234567890),
        members=keys(*names),
        breached=keys(*names),
    )
    empty = len(json.dumps(wired(State()), separators=(",", ":")))
    taken = len(json.dumps(wired(state), separators=(",", ":"))) - empty
    assert taken <= fleet_bytes(keys(*names)) + 100
    assert fleet_bytes(keys(*names)) <= 1.05 * taken


@pytest.mark.parametrize("kind", ["apps/Deployment", "batch/Job"])
@pytest.mark.parametrize("length", [6, 60, 240])
def test_the_largest_fleet_that_is_accepted_fits_rolled_back_and_left_behind_too(length: int, kind: str) -> None:
    count = (OBJECT_LIMIT_BYTES - RESERVE_BYTES) // fleet_bytes([f"{kind}/{0:0{length}d}"])
    fleet = tuple(f"{kind}/{index:0{length}d}" for index in range(count))
    jobs = fleet if kind == "batch/Job" else ()
    held = tuple(HeldWorkload(one, "LossNotFinite", 1e9) for one in fleet)
    rolled_back = State(
        changed=dict.fromkeys(fleet, 1234567890),
        members=fleet,
        breached=fleet,
        poisoned=fleet,
        held=held,
        restarts=dict.fromkeys(fleet, Restart(2, 1.7e9, 1.7e9, 9999, 1.7e9 + 1e6)),
        suspensions={one: Suspension(str(UUID(int=2**127 + n)), 1234567890, 1.7e9) for n, one in enumerate(jobs)},
    )
    left = replace(
        rolled_back, members=(), restarts={}, suspensions={}, modes=dict.fromkeys(fleet, Mode.FP32), fallback=None
    )
    for state in (rolled_back, left):
        assert len(json.dumps(wired(state), separators=(",", ":"))) < OBJECT_LIMIT_BYTES


@pytest.mark.parametrize("length", [6, 60, 240])
def test_the_largest_fleet_that_is_accepted_fits_moved_in_part_by_index(length: int) -> None:
    kind = "apps/StatefulSet"
    count = (OBJECT_LIMIT_BYTES - RESERVE_BYTES) // fleet_bytes([f"{kind}/{0:0{length}d}"])
    fleet = tuple(f"{kind}/{index:0{length}d}" for index in range(count))
    counted = dict.fromkeys(fleet, MAX_INDEXES)
    state = State(
        changed=dict.fromkeys(fleet, 1234567890), members=fleet, shares=counted, indexes=counted, index_mode=Mode.FP16
    )
    assert len(json.dumps(wired(state), separators=(",", ":"))) < OBJECT_LIMIT_BYTES


def test_breaches_are_read_only_where_their_signal_is_known() -> None:
    raw = [{"workload": key("a"), "signal": "overflow", "severity": "P2"}, {"workload": key("a"), "signal": "karma"}]
    (found,) = parse_assignment({"state": {"failing": raw}}).failing
    assert (found.key, found.signal, found.severity, found.count) == (key("a"), Signal.OVERFLOW, Severity.P2, 1)
