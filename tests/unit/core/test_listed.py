"""What is kept of the breaches that stand, from one pass to the next: bounded by bytes, the worst of them by name."""

from dataclasses import replace

from precision_operator.api.assignment import failing_bytes
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing
from precision_operator.core.evidence.assessment import FAILING_BYTES, listed
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


def test_as_many_as_fit_are_kept_as_they_are() -> None:
    assert listed(many(ROOM)) == tuple(many(ROOM))


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
    beyond = [breach("x", since=2e9, count=2), breach("y", since=2e9, count=7), breach("z", since=2e9, count=4)]
    assert [entry.count for entry in rest(listed([*many(ROOM), *beyond]))] == [7]


def test_signals_and_severities_are_told_apart_in_the_rest() -> None:
    mild = breach("x", Severity.P2)
    other = replace(breach("y", Severity.P2), signal=Signal.SPEED)
    found = rest(listed([*many(ROOM + 1), mild, other]))
    assert [(entry.signal, entry.severity) for entry in found] == [
        (Signal.OVERFLOW, Severity.P1),
        (Signal.OVERFLOW, Severity.P2),
        (Signal.SPEED, Severity.P2),
    ]


def test_a_smaller_one_does_not_take_the_place_of_one_that_did_not_fit() -> None:
    """Else who is named would change with the length of names, and a count with it."""
    large = breach("w" * 200, since=2e9)
    found = listed([*many(ROOM), large, breach("b", since=3e9)])
    assert named(found) == many(ROOM)


def test_the_rest_of_an_earlier_pass_takes_nobodys_place() -> None:
    before = replace(breach("gone", Severity.P0, count=3), key="", measured="")
    found = listed([before, *many(ROOM)])
    assert named(found) == many(ROOM)
    assert rest(found) == [before]
