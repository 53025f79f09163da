"""The checklist's counts on their way from the report to the policy's status."""

from precision_operator.report.checklist import counted
from precision_operator.report.incident import Check, Result
from precision_operator.shell.inventory import PolicyKey
from tests.support.reported import promoted, rolled_back

KEY = PolicyKey("ns", "fleet")


def test_lines_are_counted_by_their_result() -> None:
    results = (Result.PASSED, Result.PASSED, Result.FAILED, Result.UNKNOWN, Result.PENDING)
    found = counted(tuple(Check(f"line {index}", "Short", result) for index, result in enumerate(results)))
    assert (found.passed, found.failed, found.unknown, found.pending) == (2, 1, 1, 1)


async def test_the_reporter_gives_the_counts_as_they_come_in_and_keeps_them_when_the_incident_is_closed() -> None:
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
    stage.breach()
    await stage.unacted(4)
    assert stage.report.in_fallback_at is None
    under_way = counted(stage.report.checklist)
    assert under_way.pending == sum((under_way.passed, under_way.failed, under_way.unknown, under_way.pending))
    await stage.unacted(20)
    assert counted(stage.report.checklist).failed > 0
