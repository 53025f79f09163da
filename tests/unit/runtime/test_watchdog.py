"""The watchdog names who is silent."""

from precision_operator.runtime.watchdog import Watchdog
from tests.support.manual_clock import ManualClock


async def test_only_the_silent_are_named_the_oldest_first() -> None:
    clock = ManualClock()
    watchdog = Watchdog(clock)
    watchdog.expect("watch", 60)
    watchdog.expect("queue", 10)
    watchdog.expect("evaluation", 5)
    started = clock.time()
    await clock.advance(11)
    watchdog.beat("evaluation")
    assert watchdog.stale() == [("queue", 11)]
    assert watchdog.oldest_beat() == started
    await clock.advance(50)
    assert [name for name, _ in watchdog.stale()] == ["watch", "queue", "evaluation"]
    for name in ("watch", "queue", "evaluation"):
        watchdog.beat(name)
    assert watchdog.stale() == []
    assert watchdog.oldest_beat() == clock.time()


def test_a_beat_that_nobody_expects_is_harmless() -> None:
    watchdog = Watchdog(ManualClock())
    watchdog.beat("somebody")
    assert watchdog.stale() == []
