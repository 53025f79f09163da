"""What is kept of the breaches that stand, from one pass to the next: bounded by bytes, the worst of them by name."""

from dataclasses import replace

import pytest

from lab.model.world import OVERFLOWS
from precision_operator.api.assignment import failing_bytes
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing
from precision_operator.core.evidence import confirmation
from precision_operator.core.evidence.confirmation import FAILING_BYTES, listed
from tests.support.fleets import promoted
from tests.support.views import key


def breach(name: str, severity: Severity = Severity.P1, *, since: float = 1e9, count: int = 1) -> Failing:
    return Failing(key(name), Signal.OVERFLOW, severity, since, count, 1e9, "0.5")


ONE = failing_bytes(breach("w0000"))
ROOM = FAILING_BYTES // ONE
"""So many breaches of this size are kept by name."""


def many(count: int, severity: Severity = Severity.P1, *, since: float = 1e9) -> list[Failing]:
    return [breach(f"w{number:04}", severity, since=since) for number in range(count)]


def named(found: tuple[Failing, ...]) -> list[Failing]:
    return [entry for entry in found if entry.key]


def rest(found: tuple[Failing, ...]) -> list[Failing]:
    return [entry for entry in found if not entry.key]


def test_as_many_as_fit_are_kept_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert listed(many(ROOM)) == tuple(many(ROOM))
    monkeypatch.setattr(confirmation, "FAILING_BYTES", 3 * ONE)
    assert listed(many(3)) == tuple(many(3)), "to the last byte"


def test_a_pass_keeps_no_more_of_the_breaches_that_it_finds_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirmation, "FAILING_BYTES", 0)
    world = promoted(rollback={"strategies": {"P1": "Hold"}})
    world.bad = dict.fromkeys(world.workloads, OVERFLOWS)
    world.run(3)
    assert [(found.key, found.signal) for found in world.state.failing] == [("", Signal.OVERFLOW)]


def test_one_more_is_one_entry_for_all_others_without_what_was_measured() -> None:
    found = listed(many(ROOM + 3))
    assert named(found) == many(ROOM)
    assert rest(found) == [replace(many(1)[0], key="", measured="")]


def test_the_severe_ones_are_named_first_and_of_those_that_are_alike_the_oldest() -> None:
    severe, old = breach("z-severe", Severity.P0), breach("z-old", since=1.0)
    found = named(listed([*many(ROOM), severe, old]))
    assert {severe, old} <= set(found)
    assert [entry for entry in found if entry not in (severe, old)] == many(ROOM)[: len(found) - 2]


def test_the_rest_of_a_kind_is_counted_as_the_one_that_was_seen_most_often() -> None:
    counts = {"x": 2, "y": 7, "z": 4, "zz": 7}
    beyond = [breach(name, since=2e9 + at, count=count) for at, (name, count) in enumerate(counts.items())]
    found = rest(listed([*many(ROOM), *beyond]))
    assert [(entry.count, entry.since) for entry in found] == [(7, 2e9 + 1)], "of those that are alike the oldest"


def test_signals_and_severities_are_told_apart_in_the_rest() -> None:
    mild = breach("x", Severity.P2)
    other = replace(breach("y", Severity.P2), signal=Signal.SPEED)
    found = rest(listed([*many(ROOM + 1), mild, other]))
    assert [(entry.signal, entry.severity) for entry in found] == [
        (Signal.OVERFLOW, Severity.P1),
        (Signal.OVERFLOW, Severity.P2),
        (Signal.SPEED, Severity.P2),
    ]


def test_a_smaller_one_does_not_take_the_place_of_one_that_did_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else who is named would change with the length of names, and a count with it."""
    monkeypatch.setattr(confirmation, "FAILING_BYTES", 3 * ONE)
    large = breach("w" * 200, since=2e9)
    found = listed([*many(2), large, breach("b", since=3e9)])
    assert named(found) == many(2)


def test_the_rest_of_an_earlier_pass_takes_nobodys_place() -> None:
    before = replace(breach("gone", Severity.P0, count=3), key="", measured="")
    found = listed([before, *many(ROOM)])
    assert named(found) == many(ROOM)
    assert rest(found) == [before]
