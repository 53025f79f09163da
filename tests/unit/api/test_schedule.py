"""When a rollout may advance: by the clock on a wall of the users' own, summer and winter."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from precision_operator.api.schedule import WEEK, ScheduleSpec, Weekday, Window, opens_at

WEEKDAYS = WEEK[:5]
OFFICE = Window(WEEKDAYS, "09:00", "17:00")
BERLIN = "Europe/Berlin"


def at(text: str, zone: str = "UTC") -> float:
    """Seconds since the epoch of a local time."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def schedule(*windows: Window, zone: str = "UTC") -> ScheduleSpec:
    return ScheduleSpec(zone, windows)


def test_without_windows_a_rollout_may_always_advance_even_with_a_zone_that_does_not_exist() -> None:
    assert opens_at(ScheduleSpec("No/Where"), at("2026-11-24T03:00")) is None


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-11-24T09:00", None),
        ("2026-11-24T16:59:59", None),
        ("2026-11-24T17:00", "2026-11-25T09:00"),
        ("2026-11-24T08:59:59", "2026-11-24T09:00"),
        ("2026-11-27T17:00", "2026-11-30T09:00"),
        ("2026-11-29T12:00", "2026-11-30T09:00"),
    ],
)
def test_a_window_is_open_from_its_start_to_before_its_end_on_its_days(now: str, opens: str | None) -> None:
    found = opens_at(schedule(OFFICE), at(now))
    assert found == (at(opens) if opens else None)


@pytest.mark.parametrize(
    ("now", "opens"),
    [
        ("2026-11-27T23:00", None),
        ("2026-11-28T05:59", None),
        ("2026-11-28T06:00", "2026-12-04T22:00"),
        ("2026-11-28T23:00", "2026-12-04T22:00"),
    ],
)
def test_a_window_that_ends_before_it_starts_goes_on_into_the_next_day(now: str, opens: str | None) -> None:
    night = Window((Weekday.FRIDAY,), "22:00", "06:00")
    assert opens_at(schedule(night), at(now)) == (at(opens) if opens else None)


def test_days_alone_are_whole_days() -> None:
    weekend = schedule(Window((Weekday.SATURDAY, Weekday.SUNDAY)))
    assert opens_at(weekend, at("2026-11-29T23:59:59")) is None
    assert opens_at(weekend, at("2026-11-30T00:00")) == at("2026-12-05T00:00")


@pytest.mark.parametrize("day", ["2026-03-29", "2026-10-25"])
def test_on_a_day_of_23_or_25_hours_the_clock_on_the_wall_counts(day: str) -> None:
    found = schedule(Window(start="09:00", end="17:00"), zone=BERLIN)
    assert opens_at(found, at(f"{day}T08:59", BERLIN)) == at(f"{day}T09:00", BERLIN)
    assert opens_at(found, at(f"{day}T09:00", BERLIN)) is None
    assert opens_at(found, at(f"{day}T16:59", BERLIN)) is None
    assert opens_at(found, at(f"{day}T17:00", BERLIN)) is not None


def test_a_window_that_a_change_to_summer_time_skips_is_not_announced() -> None:
    early = schedule(Window((Weekday.SUNDAY,), "02:00", "03:00"), zone=BERLIN)
    for now in ("2026-03-22T03:00", "2026-03-29T03:00"):  # on the 29th two o'clock is three o'clock
        assert opens_at(early, at(now, BERLIN)) == at("2026-04-05T02:00", BERLIN)


def test_a_window_in_another_zone_opens_at_its_own_time() -> None:
    assert opens_at(schedule(OFFICE, zone=BERLIN), at("2026-11-24T08:00")) is None
    assert opens_at(schedule(OFFICE, zone=BERLIN), at("2026-11-24T16:00")) == at("2026-11-25T08:00")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "Europe", "../etc/passwd", "Europe/Berlin\0"])
def test_a_zone_that_does_not_exist_is_one_error(zone: str) -> None:
    with pytest.raises(KeyError):
        opens_at(schedule(OFFICE, zone=zone), at("2026-11-24T12:00"))


def test_of_several_windows_the_next_one_counts() -> None:
    two = schedule(Window(start="20:00", end="21:00"), Window(start="12:00", end="13:00"))
    assert opens_at(two, at("2026-11-24T10:00")) == at("2026-11-24T12:00")
    assert opens_at(two, at("2026-11-24T13:00")) == at("2026-11-24T20:00")
