"""Heartbeats: a loop that died in silence must fail /livez, not keep a healthy-looking process."""

from precision_operator.runtime.clock import Clock, SystemClock


class Watchdog:
    """Who has to beat how often, and who has not."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock or SystemClock()
        self._limits: dict[str, float] = {}
        self._beats: dict[str, tuple[float, float]] = {}

    def expect(self, name: str, max_age_seconds: float) -> None:
        """From now on ``name`` must beat at least every ``max_age_seconds``; counts as a first beat."""
        self._limits[name] = max_age_seconds
        self.beat(name)

    def beat(self, name: str) -> None:
        """``name`` is alive."""
        self._beats[name] = (self._clock.monotonic(), self._clock.time())

    def forget(self, name: str) -> None:
        """``name`` need not beat any more."""
        self._limits.pop(name, None)
        self._beats.pop(name, None)

    def stale(self) -> list[tuple[str, float]]:
        """The names whose last beat is older than allowed, with its age in seconds; the oldest first."""
        now = self._clock.monotonic()
        ages = [(name, now - self._beats[name][0]) for name in self._limits]
        return sorted(((n, age) for n, age in ages if age > self._limits[n]), key=lambda item: -item[1])

    def oldest_beat(self) -> float:
        """Wall time of the beat that is longest ago among those expected; now, where none is."""
        return min((self._beats[name][1] for name in self._limits), default=self._clock.time())
