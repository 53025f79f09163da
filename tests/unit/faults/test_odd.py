"""The generator of odd policies reaches every field of the schema, and gives the same for the same seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from lab.faults.odd import odd_policies, spec_schema
from precision_operator.api.spec import parse_spec
from precision_operator.api.wire import mapping
from tests.support.cluster_fleet import policy

pytestmark = pytest.mark.slow

GOOD = mapping(policy()["spec"])


def test_at_least_300_are_made_and_the_seed_decides_which() -> None:
    first = odd_policies(GOOD, seed=7, count=300)
    assert len(first) == 300
    assert first == odd_policies(GOOD, seed=7, count=300) != odd_policies(GOOD, seed=8, count=300)


def fields(schema: Mapping[str, object], path: str = "") -> Iterator[str]:
    for name, child in mapping(schema.get("properties")).items():
        yield f"{path}{name}"
        yield from fields(mapping(child), f"{path}{name}.")
    if "items" in schema:
        yield from fields(mapping(schema["items"]), f"{path}0.")


def written(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every field that a spec sets, with its value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield f"{path}{name}", item
        yield from written(item, f"{path}{name}.")


def test_every_field_of_the_schema_is_reached_those_of_items_too() -> None:
    odd = odd_policies(GOOD, seed=7, count=10**6)
    reached = {path for one in odd for path, value in written(one.spec) if value == 2**63 - 1}
    assert set(fields(spec_schema())) - reached == set()


def test_what_only_python_takes_for_the_same_is_another_policy() -> None:
    good = {"suspend": False, "selector": {}}
    values = [
        one.spec["suspend"]
        for one in odd_policies(good, seed=7, count=10**6)
        if one.path == "suspend" and "suspend" in one.spec
    ]
    assert any(value is not False and value == 0 for value in values)
    assert not any(value is False for value in values)


def test_none_crashes_the_reading_of_a_spec() -> None:
    for odd in odd_policies(GOOD, seed=7, count=10**6):
        parse_spec(odd.spec)
