"""``wait`` and ``status -w``: when they end, and with which code."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from precision_operator.api.conditions import Condition
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, Phase
from precision_operator.errors import KubeError, TooManyRequests, Unavailable
from precision_operator.kube.port import JsonObject
from tests.support.cli import HELD, NO_DIFFERENCE, NOW, PARTLY, PREFIX, WAITING, A, Cli, Json, Stands, stands


def stalled(found: Stands, reason: str) -> Stands:
    return stands(found.status.phase, found, conditions=(Condition("Stalled", "True", reason, "so it is", 1, NOW),))


STALLED = stalled(stands(Phase.PROGRESSING), "Undeliverable")
RETRIED: Json = {f"{PREFIX}retry": "4"}
ACKNOWLEDGED: Json = {
    f"{PREFIX}ack-{item}": "4"
    for item in ("rootCause", "fix", "stagingTested", "monitoring", "teamNotified", "rollbackReady")
}


@pytest.fixture(autouse=True)
def _without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precision_operator.cli.wait.PAUSE_SECONDS", 0.0)


@pytest.mark.parametrize("wanted", [Phase.HEALTHY, Phase.HELD])
def test_it_ends_with_the_phase(cli: Cli, wanted: Phase) -> None:
    cli.policy(stands(Phase.PROGRESSING))
    cli.fake.while_watched = lambda: cli.policy(stands(wanted))
    assert f"default/fleet is {wanted}" in cli("wait", "fleet", f"--for={wanted}")


@pytest.mark.parametrize("error", [Unavailable("503"), TooManyRequests("429", retry_after_seconds=0.1)])
def test_an_api_server_that_is_away_or_busy_is_asked_again(cli: Cli, error: KubeError) -> None:
    cli.policy(stands(Phase.PROGRESSING))

    def fail() -> None:
        cli.fake.while_watched = lambda: cli.policy(stands(Phase.HEALTHY))
        raise error

    cli.fake.while_watched = fail
    assert "default/fleet is Healthy" in cli("wait", "fleet", "--for=healthy")


def test_a_phase_that_is_reached_just_before_the_timeout_is_seen(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precision_operator.cli.wait.PAUSE_SECONDS", 60.0)
    cli.policy(stands(Phase.PROGRESSING))
    cli.fake.while_watched = lambda: cli.policy(stands(Phase.HEALTHY))
    assert "default/fleet is Healthy" in cli("wait", "--for=Healthy", "--timeout=200ms")


def test_a_read_that_is_put_off_does_not_outlast_the_timeout(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precision_operator.cli.wait.LAST_LOOK_SECONDS", 0.1)
    cli.policy(stands(Phase.PROGRESSING))

    async def put_off(*_: object) -> JsonObject:
        await asyncio.Event().wait()
        return {}

    def change() -> None:
        cli.policy(stands(Phase.HEALTHY))
        monkeypatch.setattr(cli.fake, "get", put_off)

    cli.fake.while_watched = change
    assert "is Progressing, not Healthy within 0.2 s" in cli("wait", "--for=Healthy", "--timeout=200ms", code=1)


def test_after_the_timeout_it_says_what_was_so(cli: Cli) -> None:
    cli.policy(stands(Phase.PROGRESSING))
    said = cli("wait", "--for", "healthy", "--timeout", "0s", code=1)
    assert "default/fleet is Progressing, not Healthy within 0 s; see `kubectl precision explain fleet" in said


@pytest.mark.parametrize(
    ("before", "spec", "wanted"),
    [
        (HELD, {}, "Healthy"),
        (PARTLY, {}, "Healthy"),
        (WAITING, {}, "Healthy"),
        (STALLED, {}, "Healthy"),
        (stands(Phase.PROGRESSING), {"suspend": True}, "Healthy"),
        (stands(Phase.PROGRESSING), {"suspend": True}, "Held"),
        (stands(Phase.HEALTHY), {"enforcement": "Observe"}, "Held"),
    ],
)
def test_what_only_a_person_can_bring_is_not_waited_for(cli: Cli, before: Stands, spec: Json, wanted: str) -> None:
    cli.policy(before, **spec)
    found = cli.json("wait", f"--for={wanted}", code=3)
    assert found["why"]


@pytest.mark.parametrize(
    ("annotations", "code"), [(RETRIED, 3), ({**RETRIED, **ACKNOWLEDGED}, 1), ({f"{PREFIX}retry": "3"}, 3)]
)
def test_a_retry_that_the_operator_will_follow_is_waited_for(cli: Cli, annotations: Json, code: int) -> None:
    cli.policy(HELD, annotations=annotations)
    cli("wait", "--for=Healthy", "--timeout=0s", code=code)


def test_an_older_specs_phase_is_no_answer(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY, observed_generation=0))
    cli("wait", "--for=Healthy", "--timeout=0s", code=1)


@pytest.mark.parametrize(
    "words",
    [
        ["wait", "--for=Paused"],
        ["wait", "--for=Healthy", "--timeout=soon"],
        ["wait"],
        ["backtest", "policy.yaml", "--prometheus=http://prometheus", "--timeout=60"],
        ["get", "fleet", "-A"],
        ["doctor", "-A", "fleet"],
    ],
)
def test_wrong_usage_is_its_own_code(cli: Cli, words: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli(*words)
    assert exit_.value.code == 2


@pytest.mark.parametrize(("phase", "code"), [(Phase.HEALTHY, 0), (Phase.HELD, 3)])
def test_a_watch_ends_where_a_rollout_or_a_rollback_ends(cli: Cli, phase: Phase, code: int) -> None:
    cli.policy(stands(Phase.ROLLING_BACK))
    cli.fake.while_watched = lambda: cli.policy(stands(phase))
    documents = cli("status", "-w", "-o", "json", code=code).splitlines()
    assert [json.loads(document)["phase"] for document in documents] == ["RollingBack", phase]


def test_a_watch_in_a_pipe_prints_no_line_twice(cli: Cli) -> None:
    breach = Failing(A, Signal.OVERFLOW, Severity.P1, NOW, measured="0.41")
    cli.policy(stands(Phase.PROGRESSING, failing=(breach,)))

    def change() -> None:
        cli.policy(stands(Phase.PROGRESSING, failing=(replace(breach, measured="0.47"),)))
        cli.fake.while_watched = lambda: cli.policy(stands(Phase.HEALTHY))

    cli.fake.while_watched = change
    assert len(cli("status", "-w").splitlines()) == 2


@pytest.mark.parametrize(
    ("found", "spec"),
    [
        (stands(Phase.PAUSED, reason="AwaitingApproval"), {}),
        (stands(Phase.DEGRADED, reason="OverflowRateHigh"), {}),
        (STALLED, {}),
        (stalled(NO_DIFFERENCE, "CanaryNoDifference"), {}),
        (stands(Phase.PROGRESSING), {"suspend": True}),
        (stands(Phase.ROLLING_BACK), {"suspend": True}),
    ],
)
def test_a_watch_ends_where_only_a_person_goes_on(cli: Cli, found: Stands, spec: Json) -> None:
    cli.policy(stands(Phase.PROGRESSING))
    cli.fake.while_watched = lambda: cli.policy(found, **spec)
    code = 3 if found.status.phase in (Phase.DEGRADED, Phase.ROLLING_BACK) else 0
    documents = cli("status", "-w", "-o", "json", code=code).splitlines()
    assert json.loads(documents[-1])["phase"] == found.status.phase


@pytest.mark.parametrize(
    ("late", "end"),
    [
        (stalled(stands(Phase.ROLLING_BACK), "DeadlineExceeded"), Phase.HELD),
        (stalled(stands(Phase.PROGRESSING), "ProgressDeadlineExceeded"), Phase.HEALTHY),
    ],
)
def test_a_watch_follows_what_is_late_to_its_end(cli: Cli, late: Stands, end: Phase) -> None:
    cli.policy(late)
    cli.fake.while_watched = lambda: cli.policy(stands(end))
    documents = cli("status", "-w", "-o", "json", code=3 if end is Phase.HELD else 0).splitlines()
    assert [json.loads(document)["phase"] for document in documents] == [late.status.phase, end]


def test_a_watch_follows_the_rollback_of_a_deleted_policy_to_its_end(cli: Cli) -> None:
    cli.assignment(stands(Phase.ROLLING_BACK))
    cli.fake.while_watched = lambda: cli.assignment(stands(Phase.HELD, fallback=None))
    documents = cli("status", "fleet", "-w", "-o", "json", code=3).splitlines()
    assert [json.loads(document)["phase"] for document in documents] == ["RollingBack", "Held"]
