"""``PrecisionPolicy.spec.schedule``: the windows of the week in which a rollout may advance."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import StrEnum
from typing import Annotated, Final
from zoneinfo import ZoneInfo

from precision_operator.api.fields import Field, Rule

_DAY: Final = timedelta(days=1)
_END_OF_DAY: Final = "24:00"


class Weekday(StrEnum):
    """As Python counts them, from Monday."""

    MONDAY = "Monday"
    TUESDAY = "Tuesday"
    WEDNESDAY = "Wednesday"
    THURSDAY = "Thursday"
    FRIDAY = "Friday"
    SATURDAY = "Saturday"
    SUNDAY = "Sunday"


WEEK: Final = tuple(Weekday)


@dataclass(frozen=True, slots=True)
class Window:
    """A part of some days of the week."""

    days: Annotated[
        tuple[Weekday, ...],
        Field("Days on which it opens; absent: every day.", shortest=1, longest=7, topology="set"),
    ] = WEEK
    start: Annotated[
        str, Field("Local time at which it opens ({default}).", pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$")
    ] = "00:00"
    end: Annotated[
        str,
        Field(
            "Local time at which it closes ({default}). One that is not after start is on the next day.",
            pattern="^(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$",
        ),
    ] = _END_OF_DAY


@dataclass(frozen=True, slots=True)
class ScheduleSpec:
    """When a rollout may advance. Without windows: always."""

    time_zone: Annotated[
        str,
        Field(
            "Time zone of the windows, by its name in the IANA database, e.g. Europe/Berlin ({default}).",
            shortest=1,
            longest=64,
            pattern="^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$",
        ),
    ] = "UTC"
    windows: Annotated[
        tuple[Window, ...],
        Field(
            "The rollout advances inside of any of these; absent: always. What has moved stays moved outside of them.",
            longest=20,
            topology="atomic",
            items=Field(
                rules=(
                    Rule(
                        "!has(self.start) || !has(self.end) || self.start != self.end",
                        "start and end of a window must differ: leave both out for the whole day",
                    ),
                )
            ),
        ),
    ] = ()


SCHEDULE = Field(
    "When a rollout may begin, take its next step or take in new workloads. Rollbacks, mitigations and a target of fp32 "
    "ignore it."
)
"""``spec.schedule``."""


def opens_at(schedule: ScheduleSpec, now: float) -> float | None:
    """When the next window opens, in seconds since the epoch; None: one is open, or there are no windows.

    Raises:
        KeyError: no such time zone.
    """
    if not schedule.windows:
        return None
    try:
        zone = ZoneInfo(schedule.time_zone)
    except (ValueError, OSError) as error:  # a folder of the database, or no name of a file
        raise KeyError(schedule.time_zone) from error
    spans = list(_spans(schedule, datetime.fromtimestamp(now, UTC).astimezone(zone)))
    if any(begin <= now < end for begin, end in spans):
        return None
    return min(begin for begin, _ in spans if begin > now)


def _spans(schedule: ScheduleSpec, local: datetime) -> Iterator[tuple[float, float]]:
    """Each opening from yesterday's to that of the same day in two weeks, in seconds since the epoch.

    One whose whole time a change to summer time skips is none, which may be next week's only one.
    """
    for offset in range(-1, 15):
        day = datetime.combine(local.date(), time(), local.tzinfo) + offset * _DAY
        for window in schedule.windows:
            if WEEK[day.weekday()] in window.days:
                begin, end = _at(day, window.start), _at(day, window.end)
                opened, closed = begin.timestamp(), (end if end > begin else end + _DAY).timestamp()
                if opened < closed:
                    yield opened, closed


def _at(day: datetime, clock: str) -> datetime:
    """By the clock on the wall, also where the day has 23 or 25 hours."""
    hours, minutes = clock.split(":")
    return day + timedelta(hours=int(hours), minutes=int(minutes))
