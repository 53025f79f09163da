"""The alerts that we ship, judged by promtool. One of them on its way to the operator: test_alertmanager.py."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.support.cluster_fleet import Json
from tests.support.promtool import promtool

RULES = Path(__file__).parents[2] / "manifests" / "monitoring" / "alerts.yaml"
POD = 'namespace="team",pod="a"'
BASELINE, PEAK = (f"genesis_fp32_baseline_{name}{{{POD}}}" for name in ("loss", "peak_bytes"))


def steps(overflows_a_minute: float, *, a_minute: float = 60) -> dict[str, str]:
    return {
        f"genesis_fp16_training_steps_total{{{POD}}}": f"0+{a_minute}x120",
        f"genesis_fp16_overflow_steps_total{{{POD}}}": f"0+{overflows_a_minute}x120",
    }


def losses(loss: str, *, mode: str = "fp16") -> dict[str, str]:
    return {
        f"genesis_training_loss{{{POD}}}": f"{loss} " * 121,  # promtool repeats no NaN
        f"genesis_fp32_baseline_loss{{{POD}}}": "2x120",
        f'genesis_precision_info{{{POD},mode="{mode}"}}': "1x120",
    }


def memory(now: float, *, mode: str = "fp16") -> dict[str, str]:
    return {
        f'genesis_cuda_memory_allocated_bytes{{{POD},mode="{mode}"}}': f"{now}x120",
        f"genesis_fp32_baseline_peak_bytes{{{POD}}}": "100x120",
    }


CASES: dict[str, tuple[str, dict[str, str], str, bool]] = {
    "overflow of 12 % for 12 minutes": ("OverflowRateHigh", steps(7), "12m", True),
    "overflow of 12 %, not yet for 10 minutes": ("OverflowRateHigh", steps(7), "8m", False),
    "overflow of 8 %": ("OverflowRateHigh", steps(5), "1h", False),
    "overflow of half of too few steps": ("OverflowRateHigh", steps(0.1, a_minute=0.2), "1h", False),
    "a loss 6 % above": ("LossDiverged", losses("2.12"), "31m", True),
    "a loss 6 % above, not yet for 30 minutes": ("LossDiverged", losses("2.12"), "29m", False),
    "a loss 6 % below": ("LossDiverged", losses("1.88"), "1h", False),
    "a loss 6 % above in FP32": ("LossDiverged", losses("2.12", mode="fp32"), "1h", False),
    "a loss that is NaN": ("LossDiverged", losses("NaN"), "1h", False),
    "steps whose loss was NaN": (
        "LossNotFinite",
        {f"genesis_nonfinite_loss_steps_total{{{POD}}}": "0 0 0 1"},
        "4m",
        True,
    ),
    "no step whose loss was NaN": (
        "LossNotFinite",
        {f"genesis_nonfinite_loss_steps_total{{{POD}}}": "7x9"},
        "5m",
        False,
    ),
    "85 % of the memory": ("MemoryRatioHigh", memory(85), "16m", True),
    "85 % of the memory, not yet for 15 minutes": ("MemoryRatioHigh", memory(85), "14m", False),
    "75 % of the memory": ("MemoryRatioHigh", memory(75), "1h", False),
    "a baseline of 0": ("LossDiverged", {**losses("2.2"), BASELINE: "0x120"}, "31m", False),
    "a baseline of NaN": ("LossDiverged", {**losses("2.2"), BASELINE: "NaN " * 121}, "31m", False),
    "a peak of Inf": ("MemoryRatioHigh", {**memory(85), PEAK: "Inf " * 121}, "16m", False),
    "all of the memory, in FP32": ("MemoryRatioHigh", memory(100, mode="fp32"), "1h", False),
}


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_when_it_should(name: str, tmp_path: Path) -> None:
    alert, series, at, fires = CASES[name]
    (rule,) = (r for r in yaml.safe_load(RULES.read_text())["groups"][0]["rules"] if r["alert"] == alert)
    # Their texts hold values: the next test parses those.
    bare = {"groups": [{"name": "bare", "rules": [{k: v for k, v in rule.items() if k != "annotations"}]}]}
    expected: list[Json] = [{"exp_labels": {"namespace": "team", "pod": "a", **rule["labels"]}}] if fires else []
    test = {
        "rule_files": ["rules.yaml"],
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": key, "values": value} for key, value in series.items()],
                "alert_rule_test": [{"eval_time": at, "alertname": alert, "exp_alerts": expected}],
            }
        ],
    }
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(bare))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = promtool("test", "rules", tmp_path / "test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_what_prometheus_takes() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
