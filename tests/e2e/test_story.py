"""The demo's story on the full cluster: real pods, real training, a real fault. The demo plays it once; each test reads one
claim of its report, which is computed from the audit log, Prometheus and the trainers' own lines.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from lab import paths
from lab.cluster import Cluster

REPORT = paths.ROOT / "build" / "demo" / "report.json"

pytestmark = pytest.mark.timeout(1500)

Report = dict[str, Any]


@pytest.fixture(scope="module")
def report(cluster: Cluster) -> Report:
    """What one run of the demo found."""
    REPORT.unlink(missing_ok=True)
    played = subprocess.run(
        [sys.executable, "-m", "lab.demo"], cwd=paths.ROOT, capture_output=True, text=True, timeout=1200
    )
    assert REPORT.exists(), played.stderr[-4000:] + played.stdout[-2000:]
    found: Report = json.loads(REPORT.read_text())
    return found


def test_every_check_of_the_story_holds(report: Report) -> None:
    assert [check for check, held in report["checks"].items() if not held] == []
    assert report["ok"]


def test_fleet_is_of_three_kinds(report: Report) -> None:
    assert report["workloads"] == 6
    assert report["kinds"] == ["Deployment", "Job", "StatefulSet"]


def test_hot_ranks_train_in_fp32_within_the_bar(report: Report) -> None:
    assert report["hot"]["ranks"] == 6
    assert report["hot"]["breach_to_last_ack_seconds"] <= report["evaluation_interval_seconds"] + 3


def test_hot_workloads_lose_no_step_and_no_pod(report: Report) -> None:
    assert report["hot"]["restarts"] == 0
    assert report["hot"]["steps_lost"] == 0


def test_restart_only_workload_resumes_from_its_checkpoint(report: Report) -> None:
    assert report["restart"]["pods"] == 1
    assert report["restart"]["steps_lost"] == 0


def test_full_node_gives_its_only_accelerator_to_the_replacement(report: Report) -> None:
    assert report["full_node_restart"]["pods"] == 1
    assert report["full_node_restart"]["breach_to_last_ack_seconds"] < 120


def test_no_template_is_written_or_rolled_out_while_somebody_applies_them_again(report: Report) -> None:
    assert report["all_fp32"]
    assert (report["template_writes"], report["template_rollouts"]) == (0, 0)
    assert report["reapplier_writes"] > 10
    assert report["checks"]["templates are byte-equal"]


def test_new_pods_start_in_the_fallback_with_the_operator_away(report: Report) -> None:
    assert report["gate"] == {"operator_replicas": 0, "new_pod_modes": ["fp32"]}


def test_rollback_costs_no_more_writes_than_its_budget(report: Report) -> None:
    """Hot: one for each of 5 pods; restart: two for one pod; 10 a rollback, and who breaches first may go alone first."""
    assert 1 <= report["rollbacks"] <= 2
    assert report["api_writes"] <= 5 + 2 * 1 + 10 * report["rollbacks"]
