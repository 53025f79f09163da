"""Reading tolerantly, writing strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.policy import parse_policy
from precision_operator.api.state import Phase, parse_status, status_to_wire
from precision_operator.api.wire import duration_seconds, format_time, parse_time

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=12,
)
OPTIONAL = ["members", "held", "failing", "incident", "conditions", "phaseSince"]
STATUS_FIELDS = [*status_to_wire(parse_status({})), *OPTIONAL]
SPEC_FIELDS = ["selector", "target", "fallback", "strategy", "evaluation", "criteria", "rollback", "prometheusRef"]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15s", 15.0), ("1m30s", 90.0), ("500ms", 0.5), ("2h", 7200.0), ("1d", 7.0), ("", 7.0), (None, 7.0)],
)
def test_reads_durations(text: object, seconds: float) -> None:
    assert duration_seconds(text, 7.0) == seconds


@given(st.floats(min_value=0, max_value=4e9))
def test_times_survive_the_wire_to_the_millisecond(seconds: float) -> None:
    assert parse_time(format_time(seconds)) == pytest.approx(seconds, abs=0.00051)


@given(st.dictionaries(st.sampled_from(STATUS_FIELDS), json_values, max_size=6))
def test_no_status_crashes_the_reader(raw: dict[str, object]) -> None:
    status = parse_status(raw)
    assert parse_status(status_to_wire(status)) == status


@given(st.dictionaries(st.sampled_from(SPEC_FIELDS), json_values, max_size=6))
def test_no_spec_crashes_the_reader(raw: dict[str, object]) -> None:
    policy, _ = parse_policy({"metadata": {"name": "p"}, "spec": raw})
    assert policy.spec.stages


def test_unknown_phase_of_a_newer_version_is_pending() -> None:
    assert parse_status({"phase": "Ascending"}).phase is Phase.PENDING
