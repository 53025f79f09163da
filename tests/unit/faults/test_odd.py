"""The generator of odd policies reaches every field of the schema, and gives the same for the same seed."""

from __future__ import annotations

from lab.faults.odd import odd_policies, spec_schema
from precision_operator.api.spec import parse_spec
from precision_operator.api.wire import mapping
from tests.support.cluster_fleet import policy

GOOD = mapping(policy()["spec"])


def test_at_least_300_are_made_and_the_seed_decides_which() -> None:
    first = odd_policies(GOOD, seed=7, count=300)
    assert len(first) == 300
    assert first == odd_policies(GOOD, seed=7, count=300) != odd_policies(GOOD, seed=8, count=300)


def test_every_field_of_the_schema_is_reached() -> None:
    reached = {odd.path.split(".")[0] for odd in odd_policies(GOOD, seed=7, count=10**6)}
    assert reached == {*mapping(spec_schema().get("properties")), "unknownField"}


def test_none_crashes_the_reading_of_a_spec() -> None:
    for odd in odd_policies(GOOD, seed=7, count=10**6):
        parse_spec(odd.spec)
