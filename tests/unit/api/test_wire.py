"""Reading tolerantly, writing strictly: durations, times, specs, the policy's status."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.policy import deleted_policy, parse_policy
from precision_operator.api.state import Phase, State
from precision_operator.api.summary import Summary, lost_transition, parse_summary, summary_to_wire
from precision_operator.api.wire import duration_seconds, format_time, parse_time
from tests.support.wires import incidents, json_values, moments, names

SUMMARY_FIELDS = [*summary_to_wire(Summary()), "incident", "conditions", "phaseSince", "unacknowledged", "fallback"]
SPEC_FIELDS = ["selector", "target", "fallback", "strategy", "evaluation", "criteria", "rollback", "prometheusRef"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("15s", 15.0),
        ("1m30s", 90.0),
        ("500ms", 0.5),
        ("2h", 7200.0),
        ("1s" * 32, 32.0),
        ("1s" * 33, 7.0),
        ("1d", 7.0),
        ("", 7.0),
        (None, 7.0),
    ],
)
def test_reads_durations(text: object, seconds: float) -> None:
    assert duration_seconds(text, 7.0) == seconds


@given(st.floats(min_value=0, max_value=4e9))
def test_times_survive_the_wire_to_the_millisecond(seconds: float) -> None:
    assert parse_time(format_time(seconds)) == pytest.approx(seconds, abs=0.00051)


@pytest.mark.parametrize(
    "text", ["0001-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "", "yesterday", 7]
)
def test_a_time_that_cannot_be_written_again_is_none(text: object) -> None:
    found = parse_time(text)
    assert found is None or parse_time(format_time(found)) == found


@given(st.dictionaries(st.sampled_from(SUMMARY_FIELDS), json_values, max_size=6))
def test_no_status_crashes_the_reader(raw: dict[str, object]) -> None:
    summary = parse_summary(raw)
    assert parse_summary(summary_to_wire(summary)) == summary


summaries = st.builds(
    Summary,
    phase=st.sampled_from(Phase),
    message=st.text(max_size=40),
    transition_id=st.integers(0, 10**6),
    phase_since=st.none() | moments,
    unacknowledged=st.lists(names, max_size=4).map(tuple),
    incident=st.none() | incidents,
    assignment=names,
)


@given(summaries)
def test_a_summary_survives_the_wire(summary: Summary) -> None:
    assert parse_summary(json.loads(json.dumps(summary_to_wire(summary)))) == summary


def test_an_assignment_was_lost_where_the_status_names_one_and_only_there() -> None:
    assert lost_transition({}) is None
    assert lost_transition({"transitionId": 7, "phase": "Healthy"}) is None
    assert lost_transition(summary_to_wire(Summary(transition_id=7, assignment="fleet"))) == 7
    assert lost_transition({"assignment": "fleet"}) == 0


@given(st.dictionaries(st.sampled_from(SPEC_FIELDS), json_values, max_size=6))
def test_no_spec_crashes_the_reader(raw: dict[str, object]) -> None:
    policy = parse_policy({"metadata": {"name": "p"}, "spec": raw})
    assert policy.spec.stages
    left = deleted_policy("ns", "p", State(policy_uid="u", observed_generation=3, settings=policy.settings))
    assert left.spec.rollback == policy.spec.rollback


def test_what_finishes_a_rollback_outlives_its_policy() -> None:
    spec = {
        "selector": {"matchLabels": {"team": "a"}},
        "target": "bf16",
        "fallback": "fp32",
        "delivery": "Restart",
        "deletionPolicy": "Release",
        "prometheusRef": {"name": "other"},
        "evaluation": {"interval": "7s"},
        "rollback": {"ackTimeout": "44s", "deadlines": {"P0": "2m"}},
        "suspend": True,
        "strategy": {"steps": [{"setWeight": 100}]},
    }
    policy = parse_policy({"metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 3}, "spec": spec})
    left = deleted_policy("ns", "p", State(policy_uid="u", observed_generation=3, settings=policy.settings))
    assert left.deleted
    kept = ("selector", "target", "fallback", "delivery", "hold_on_delete", "prometheus_ref", "evaluation", "rollback")
    assert {name: getattr(left.spec, name) for name in kept} == {name: getattr(policy.spec, name) for name in kept}
    assert not left.spec.suspend, "a suspended policy that is gone suspends nothing"


def test_unknown_phase_of_a_newer_version_is_pending() -> None:
    assert parse_summary({"phase": "Ascending"}).phase is Phase.PENDING
