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
from lab.demo.report import TIMED

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
    """But for those of absolute time: those are kept by the exit code of ``make demo``."""
    assert [check for check, held in report["checks"].items() if not held and check not in TIMED] == []


def test_fleet_is_of_three_kinds(report: Report) -> None:
    assert report["workloads"] == 6
    assert report["kinds"] == ["Deployment", "Job", "StatefulSet"]


def test_every_hot_rank_says_that_it_trains_in_fp32(report: Report) -> None:
    assert report["hot"]["ranks"] == 6


def test_hot_workloads_lose_no_step_and_no_pod(report: Report) -> None:
    assert report["hot"]["restarts"] == 0
    assert report["hot"]["steps_lost"] == 0


def test_restart_only_workload_resumes_from_its_checkpoint(report: Report) -> None:
    assert report["restart"]["pods"] == 1
    assert report["restart"]["steps_lost"] == 0


def test_full_node_gives_its_only_accelerator_to_the_replacement(report: Report) -> None:
    assert report["full_node_restart"]["pods"] == 1


def test_no_template_is_written_or_rolled_out_while_somebody_applies_them_again(report: Report) -> None:
    assert report["all_fp32"]
    assert (report["template_writes"], report["template_rollouts"]) == (0, 0)
    assert report["reapplier_writes"] > 10
    assert report["checks"]["templates are byte-equal"]


def test_new_pods_start_in_the_fallback_with_the_operator_away(report: Report) -> None:
    assert report["gate"] == {"operator_replicas": 0, "new_pod_modes": ["fp32"]}


@pytest.mark.parametrize("what", ["writes to pods", "evictions"])
def test_the_fence_was_found_to_hold_before_the_first_write(report: Report, what: str) -> None:
    assert report["fenced_at"][what] < report["first_written_at"][what]


def test_who_breaches_first_may_go_alone_first_and_then_all_go(report: Report) -> None:
    assert 1 <= report["rollbacks"] <= 2
