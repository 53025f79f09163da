"""A backtest on a real Prometheus that holds a day of history."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.prometheus import Prometheus, prometheus_program
from precision_operator.cli import main

SCRAPE_SECONDS = 60
PODS = [f"trainer-{i}-5d9c7b6f4-abcde" for i in range(3)]
HOURS = 24
POLICY = """
apiVersion: precision.genesis.ai/v1alpha1
kind: PrecisionPolicy
metadata: {name: fleet, namespace: team}
spec:
  selector: {matchLabels: {app: trainer}}
  evaluation: {interval: 1m, window: 10m, maxSampleAge: 5m}
  criteria: {speed: {enabled: false}%s}
"""


def history(begin: int) -> str:
    """A day of three FP16 trainers, as OpenMetrics; two overflow from hour 10 to 11, all are silent in hour 16."""
    counters: dict[str, Callable[[int, bool], float]] = {
        "genesis_training_steps": lambda at, bad: 10.0 * at,
        "genesis_training_samples": lambda at, bad: 80.0 * at,
        "genesis_fp16_training_steps": lambda at, bad: 10.0 * at,
        "genesis_fp16_overflow_steps": lambda at, bad: 6.0 * min(max(at - 10 * 3600, 0), 3600) if bad else 0.0,
        "genesis_nonfinite_loss_steps": lambda at, bad: 0.0,
        "genesis_training": lambda at, bad: float(at // 600),
        "genesis_training_success": lambda at, bad: float(at // 600),
    }
    gauges = {
        "genesis_training_loss": 2.0,
        "genesis_fp32_baseline_loss": 2.0,
        "genesis_fp32_baseline_samples_per_second": 70.0,
    }
    moments = [at for at in range(0, HOURS * 3600, SCRAPE_SECONDS) if not 16 * 3600 <= at < 17 * 3600]
    lines: list[str] = []
    for name, value in counters.items():
        lines.append(f"# TYPE {name} counter")
        for index, pod in enumerate(PODS):
            label = f'{{namespace="team",pod="{pod}"}}'
            lines += [f"{name}_total{label} {value(at, index < 2):.1f} {begin + at}" for at in moments]
    for name, constant in gauges.items():
        lines.append(f"# TYPE {name} gauge")
        for pod in PODS:
            lines += [f'{name}{{namespace="team",pod="{pod}"}} {constant} {begin + at}' for at in moments]
    lines.append("# TYPE genesis_precision_info gauge")
    for pod in PODS:
        label = f'{{namespace="team",pod="{pod}",mode="fp16",generation="3"}}'
        lines += [f"genesis_precision_info{label} 1 {begin + at}" for at in moments]
    return "\n".join([*lines, "# EOF", ""])


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, int]]:
    """A Prometheus whose history ended a while ago, and when it began."""
    directory = tmp_path_factory.mktemp("prometheus")
    begin = (int(time.time()) // 7200) * 7200 - (HOURS + 6) * 3600
    source = directory / "history.txt"
    source.write_text(history(begin))
    promtool: list[str | Path] = [prometheus_program("promtool"), "tsdb", "create-blocks-from", "openmetrics"]
    subprocess.run([*promtool, source, directory / "data"], check=True, capture_output=True, timeout=120)
    with Prometheus(directory, {"scrape_configs": []}) as running:
        yield running, begin


def run(past: tuple[Prometheus, int], folder: Path, *flags: str, criteria: str = "") -> int:
    prometheus, begin = past
    policy = folder / "policy.yaml"
    policy.write_text(POLICY % criteria)
    since, until = (time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin + h * 3600)) for h in (1, HOURS - 1))
    return main(["backtest", str(policy), "--prometheus", prometheus.url, "--since", since, "--until", until, *flags])


def test_a_day_shows_the_one_rollback_that_there_would_have_been(
    past: tuple[Prometheus, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "plot.png"
    assert run(past, tmp_path, "-o", "json", "--plot", str(plot)) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["decisions"] == (HOURS - 2) * 60 + 1
    assert said["workloads"] == ["trainer-0", "trainer-1", "trainer-2"]
    (rollback,) = said["rollbacks"]
    assert (rollback["scope"], rollback["reason"]) == ("Fleet", "OverflowRateHigh")
    breach = time.strftime("%Y-%m-%dT%H", time.gmtime(past[1] + 10 * 3600))
    assert rollback["decidedAt"].startswith(breach)
    assert [c["to"] for c in said["changes"]] == ["RollingBack", "Held", "Pending"]
    # The silent hour is Unknown, and no fault.
    assert said["unknownSeconds"] >= 3000
    assert plot.stat().st_size > 10_000
    assert said["decisionsPerSecond"] > 0


def test_a_threshold_that_history_never_passed_shows_none(
    past: tuple[Prometheus, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(past, tmp_path, criteria=", overflow: {enter: 0.9, warn: 0.85, leave: 0.8, promoteBelow: 0.5}") == 0
    assert "no rollback" in capsys.readouterr().out


def test_what_if_stands_beside_what_the_file_would_have_done(
    past: tuple[Prometheus, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    levels = {"enter": "0.9", "warn": "0.85", "leave": "0.8", "promoteBelow": "0.5"}
    flags = [word for name, value in levels.items() for word in ("--what-if", f"criteria.overflow.{name}={value}")]
    assert run(past, tmp_path, "-o", "json", *flags) == 0
    said = json.loads(capsys.readouterr().out)
    assert [rollback["reason"] for rollback in said["rollbacks"]] == ["OverflowRateHigh"]
    assert said["whatIf"]["rollbacks"] == []
    assert said["whatIf"]["decisions"] == said["decisions"]
    assert said["whatIf"]["settings"][0] == "criteria.overflow.enter=0.9"
    assert run(past, tmp_path, *flags) == 0
    shown = capsys.readouterr().out
    assert "AS WRITTEN" in shown
    assert shown.split("rollbacks")[-1].split() == ["1", "0"]
    assert run(past, tmp_path, "--what-if", "criteria.overflow.entry=1") == 1
    assert "expected one of" in capsys.readouterr().err


def test_a_prometheus_that_is_away_is_said_and_nothing_is_invented(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY % "")
    code = main(["backtest", str(policy), "--prometheus", "http://127.0.0.1:9", "--since", "2h", "-o", "json"])
    said = capsys.readouterr()
    assert code == 1
    assert "MetricsUnavailable" in said.err or "endpoint" in said.err
