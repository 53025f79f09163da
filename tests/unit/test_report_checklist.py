"""The checklist's counts on their way from the report to the policy's status."""

from precision_operator.api.signals import Signal
from precision_operator.report.checklist import counted
from precision_operator.report.incident import Check, Pass, Result
from precision_operator.shell.inventory import PolicyKey
from tests.unit.test_report_reporter import Stage, promoted, rolled_back

KEY = PolicyKey("ns", "fleet")


def test_lines_are_counted_by_their_result() -> None:
    results = (Result.PASSED, Result.PASSED, Result.FAILED, Result.UNKNOWN, Result.PENDING)
    found = counted(tuple(Check(f"line {index}", "Short", result) for index, result in enumerate(results)))
    assert (found.passed, found.failed, found.unknown, found.pending) == (2, 1, 1, 1)


async def test_the_reporter_tells_the_counts_as_they_come_in_and_keeps_them_when_the_incident_is_closed() -> None:
    stage = await rolled_back()
    assert stage.reporter.verified(PolicyKey("ns", "other")) is None
    early = stage.reporter.verified(KEY)
    assert early == (stage.report.id, counted(stage.report.checklist))
    assert early[1].pending > 0
    await stage.passes(130, 60.0)
    closed = stage.reporter.verified(KEY)
    assert closed == (stage.report.id, counted(stage.report.checklist))
    assert (closed[1].pending, closed[1].failed) == (0, 0)


async def test_a_rollback_that_is_under_way_has_failed_nothing_until_its_first_window_is_over() -> None:
    stage = await promoted()
    stage.world.bad = {name: {Signal.OVERFLOW: 0.9} for name in ("hot-1", "hot-2")}
    await unheard(stage, 4)
    assert stage.report.down_at is None
    under_way = counted(stage.report.checklist)
    assert under_way.pending == sum((under_way.passed, under_way.failed, under_way.unknown, under_way.pending))
    await unheard(stage, 20)
    assert counted(stage.report.checklist).failed > 0


async def unheard(stage: Stage, count: int) -> None:
    """Passes of which no write reaches a trainer."""
    for _ in range(count):
        before, observation, now = stage.world.status, stage.world.observe(), stage.world.now
        decision = stage.world.decide()
        stage.world.commit(decision)
        stage.reporter.observe(Pass(stage.world.policy, before, observation, decision, now))
        stage.world.now += 15.0
        await stage.reporter.turn()
