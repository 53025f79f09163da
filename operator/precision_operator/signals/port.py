"""The metric source, as a port: one vector query in, samples by series out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec


class Labels(msgspec.Struct, frozen=True, gc=False):
    """Of all labels of a series those that are read here; empty: it has none of that name."""

    pod: str = ""
    mode: str = ""
    generation: str = ""
    torch: str = ""
    device: str = ""
    capability: str = ""
    world_size: str = ""
    batch_size: str = ""


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One element of an instant vector. There are tens of thousands an interval: made in C, and not looked at by gc."""

    labels: Labels
    value: float
    """NaN and infinities are kept."""


@dataclass(frozen=True, slots=True)
class Series:
    """One element of a range query's matrix."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]
    """(seconds since the epoch, value), rising in time; NaN and infinities are kept."""


class MetricSource(Protocol):
    """One Prometheus. Implementations keep their own deadline and never retry: the next interval is the retry."""

    async def vector(self, query: str) -> Sequence[Sample]:
        """The instant vector of ``query``; empty where no series matches.

        Nobody changes what was returned. The same object again says the same again.

        Raises:
            QueryInvalid: Prometheus refused the query (HTTP 400/422, ``bad_data``).
            SourceUnavailable: anything else that is not a vector: time-out, 5xx, HTML, a scalar, a partial answer
                (``warnings``), a body over the limit.
        """
        ...


class MetricHistory(Protocol):
    """One Prometheus, asked for the past: for evidence and backtests, never for a decision on the fleet."""

    async def history(self, query: str, start: float, end: float, step_seconds: float) -> Sequence[Series]:
        """``query`` evaluated at ``start``, ``start + step_seconds`` … ``end`` (seconds since the epoch).

        Raises:
            QueryInvalid: Prometheus refused the query, e.g. for more than 11,000 points a series.
            SourceUnavailable: as ``MetricSource.vector``.
        """
        ...


class MetricArchive(MetricSource, MetricHistory, Protocol):
    """One Prometheus, asked for both."""
