"""What ``status`` says of what precision has brought."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from precision_operator.api.gain import Gain, Measured
from precision_operator.api.incident import Scope
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Severity
from precision_operator.api.state import Phase
from precision_operator.cli.gain import gain_json, gain_text
from precision_operator.errors import Forbidden
from precision_operator.incidents.cost import Cost
from precision_operator.incidents.document import to_body
from precision_operator.incidents.report import Report, Stages, stamp
from precision_operator.kube.port import INCIDENTS
from tests.support.cli import HELD, NOW, Cli, stands

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


COST = Cost(workloads=2, steps_lost=12, steps_of=2, restart_hours=0.25, slower_rate=0.5, slower_of=2)


def incident(cli: Cli, **stages: str) -> None:
    """The report of the rollback that the policy stands in, two hours after the last acknowledgement."""
    report = Report(
        id="fleet-5",
        policy="fleet",
        policy_uid="uid-fleet",
        severity=Severity.P1,
        scope=Scope.FLEET,
        reason="OverflowRateHigh",
        message="overflow",
        target=Mode.FP16,
        fallback=Mode.FP32,
        phase_before=Phase.HEALTHY,
        since_before="",
        stages=Stages(decided_at=stamp(NOW - 7300.0), last_ack_at=stamp(NOW - 7200.0), **stages),
        cost=COST,
    )
    body: Any = to_body(report, namespace="default")
    cli.fake.put(INCIDENTS, body)


SO_FAR = "12 steps lost; 0.25 h of restarts; 1.00 h of slower training in the fallback, so far"


def test_incident_and_history_say_what_a_rollback_has_cost_so_far(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    cli.policy(HELD)
    incident(cli)
    assert SO_FAR in cli("incident", "show", "fleet-5")
    assert f"cost: {SO_FAR}" in cli("history")


def test_of_a_rollback_that_was_retried_the_hours_end_there(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    incident(cli, left_at=stamp(NOW - 3600.0))
    assert "0.50 h of slower training in the fallback" in cli("incident", "show", "fleet-5")
    assert "so far" not in cli("history")


def test_how_long_the_fallback_lasted_is_unknown_where_the_policy_has_moved_on_unseen(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    incident(cli)
    assert "0.50 h in each hour in the fallback, until when: unknown" in cli("incident", "show", "fleet-5")


def test_history_needs_no_right_to_read_incidents(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.policy(HELD)
    incident(cli)
    allowed = cli.fake.list

    async def listed(resource: Any, *where: str) -> Any:  # noqa: ANN401 - as the port
        if resource is INCIDENTS:
            raise Forbidden("bob may not list precisionincidents", status=403)
        return await allowed(resource, *where)

    monkeypatch.setattr(cli.fake, "list", listed)
    assert "cost" not in cli("history")
