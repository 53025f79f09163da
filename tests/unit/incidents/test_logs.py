"""Which pods' logs an export reads, and which of their lines it keeps."""

from __future__ import annotations

from precision_operator.incidents.logs import containers, excerpt, pods_to_read, since
from tests.support.reported import rolled_back


def test_a_trainers_routine_is_left_out_and_credentials_are_masked() -> None:
    log = "\n".join(
        [
            '2026-11-21T10:00:00Z {"event": "checkpoint", "step": 200}',
            '2026-11-21T10:00:01Z {"event": "precision_changed", "to": "fp32"}',
            '2026-11-21T10:00:01Z {"event": "checkpoint_healthy", "step": 200}',
            "2026-11-21T10:00:02Z Traceback (most recent call last):",
            "2026-11-21T10:00:03Z pulling https://ada:secret@registry.invalid/x",
        ]
    )
    assert excerpt(log).splitlines() == [
        '2026-11-21T10:00:01Z {"event": "precision_changed", "to": "fp32"}',
        "2026-11-21T10:00:02Z Traceback (most recent call last):",
        "2026-11-21T10:00:03Z pulling https://***@registry.invalid/x",
    ]


def test_a_container_that_was_restarted_has_a_log_of_before() -> None:
    pod = {
        "spec": {"containers": [{"name": "trainer"}, {"name": "sidecar"}]},
        "status": {
            "containerStatuses": [{"name": "trainer", "restartCount": 2}, {"name": "sidecar", "restartCount": 0}]
        },
    }
    assert containers(pod) == (("trainer", True), ("sidecar", False))


async def test_the_breached_workloads_pods_are_read_first() -> None:
    report = (await rolled_back()).report
    assert set(report.workloads) == {"hot-1", "hot-2"}
    pods = pods_to_read(report)
    assert len(pods) == 4
    assert {name.rpartition("-")[0][:5] for name in pods[:2]} == {"hot-1", "hot-2"}
    assert since(report) < (report.stages.detected_at or "")
