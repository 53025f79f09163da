"""What ``status`` says of what precision has brought."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_operator.api.gain import Gain, Measured
from precision_operator.api.state import Phase
from precision_operator.cli.gain import gain_json, gain_text
from tests.support.cli import NOW, Cli, stands

GAIN = Gain(
    measured_at=NOW,
    workloads=9,
    compared=7,
    speed=Measured(1.42, 7),
    memory=Measured(0.62, 7),
    loss=Measured(0.003, 7),
    gpu_hours=Measured(112.0, 7),
    gpu_rate=12.0,
)
ON_CPUS = Gain(measured_at=NOW, workloads=2, compared=2, speed=Measured(0.8, 2), cpu_hours=Measured(-3.5, 2))


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (
            GAIN,
            "1.42× speed, −38 % memory, 112 GPU-hours saved, loss +0.3 % against FP32 "
            "(7 of 9 workloads; 2 without a known baseline)",
        ),
        (
            replace(GAIN, workloads=7, memory=Measured(1.0, 5), gpu_hours=None),
            "1.42× speed, +0 % memory (of 5), loss +0.3 % against FP32; unknown: hours saved (7 of 7 workloads)",
        ),
        (
            ON_CPUS,
            "0.80× speed, 3.5 CPU pod-hours lost against FP32; unknown: memory, loss (2 of 2 workloads)",
        ),
        (
            Gain(measured_at=NOW, workloads=3),
            "unknown: speed, memory, hours saved, loss (0 of 3 workloads; 3 without a known baseline)",
        ),
    ],
)
def test_what_was_measured_is_said_and_what_was_not_is_unknown(gain: Gain, expected: str) -> None:
    assert gain_text(gain, now=NOW) == expected


def test_hours_go_on_at_the_rate_that_was_measured_and_are_said_to_be_reckoned() -> None:
    day = NOW + 86_400.0
    assert "about 400 GPU-hours saved" in gain_text(GAIN, now=day)
    assert gain_text(GAIN, now=day).endswith(", measured 1d ago")
    found = gain_json(GAIN, now=day)
    assert found is not None
    assert found["gpuHoursByNow"] == 400.0
    assert "cpuHoursByNow" not in found
    assert gain_text(GAIN, now=NOW - 60.0) == gain_text(GAIN, now=NOW), "a clock that is behind takes nothing away"


def test_status_shows_the_gain_and_nothing_where_nobody_trains_in_the_target(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY, gain=GAIN))
    assert "gain" in cli("status")
    assert "1.42× speed, −38 % memory" in cli("status")
    assert cli.json("status")["gain"]["speed"] == {"value": 1.42, "workloads": 7}
    cli.policy(stands(Phase.HEALTHY))
    assert "gain" not in cli("status")
    assert cli.json("status")["gain"] is None
