"""What /livez and /readyz answer.

Alive: no loop that must show life has been silent too long; else the kubelet restarts us. Ready: the caches are filled,
and new pods are served, where that is our work.
A standby is ready: leadership is no matter of health.
"""

from collections.abc import Callable
from dataclasses import dataclass

from precision_operator.runtime.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """Whether it is well, and a line for who reads the probe."""

    ok: bool
    message: str


class Health:
    """Liveness from the watchdog, readiness from named conditions."""

    def __init__(
        self,
        watchdog: Watchdog,
        ready: Callable[[], bool] = lambda: True,
        *,
        serving: Callable[[], bool] = lambda: True,
    ) -> None:
        """``ready``: the caches are filled. ``serving``: new pods may be sent here, where there is a webhook."""
        self._watchdog = watchdog
        self._ready = ready
        self._serving = serving

    def live(self) -> HealthVerdict:
        """Not alive names each silent loop and for how long."""
        stale = self._watchdog.stale()
        if not stale:
            return HealthVerdict(True, "ok")
        return HealthVerdict(False, "no sign of life: " + ", ".join(f"{name} for {age:.1f} s" for name, age in stale))

    def ready(self) -> HealthVerdict:
        """Ready once the caches have been filled, and new pods can be admitted."""
        if not self._ready():
            return HealthVerdict(False, "caches are not filled yet")
        return (
            HealthVerdict(True, "ok") if self._serving() else HealthVerdict(False, "the webhook has no certificate yet")
        )
