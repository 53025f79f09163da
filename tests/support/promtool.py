"""What Prometheus' own engine makes of series that are written down."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import yaml

from lab.prometheus import prometheus_program


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run promtool; it comes with Prometheus."""
    command = [prometheus_program("promtool"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def expect(
    directory: Path,
    query: str,
    series: Mapping[str, str],
    expected: Mapping[str, float],
    *,
    interval: str,
    at: str,
) -> None:
    """Assert what ``query`` gives: label set → value.

    Args:
        series: series → values, as promtool writes them (``0+20x30``), one each ``interval``.
        at: when it is evaluated, counted from the first value.
    """
    test = {
        "rule_files": [],
        "evaluation_interval": interval,
        "tests": [
            {
                "interval": interval,
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": at,
                        "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
                    }
                ],
            }
        ],
    }
    path = directory / "test.yaml"
    path.write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr
