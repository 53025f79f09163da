"""``kubectl precision`` against an API server in memory: what each verb shows, writes and refuses."""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from precision_operator.api.canary import Comparison, Verdict
from precision_operator.api.conditions import Condition
from precision_operator.api.incident import Incident, Scope
from precision_operator.api.mitigation import Mitigation, Rung
from precision_operator.api.mitigation import Result as Ended
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity, Strategy
from precision_operator.api.state import Failing, HeldWorkload, Member, Phase, State, status_to_wire
from precision_operator.api.verification import Checks
from precision_operator.cli import MODULES, guidance, main, session
from precision_operator.cli.guidance import BY_CANARY as WORDS
from precision_operator.cli.guidance import PHASES
from precision_operator.core.decide import UNACKNOWLEDGED_LIMIT
from precision_operator.core.triggers import REASONS
from precision_operator.kube.fake import FakeKube
from precision_operator.kube.port import DEPLOYMENTS, EVENTS, PODS, POLICIES
from tests.unit.kube import bodies
from tests.unit.signals.bodies import http, serve, success

Json = dict[str, Any]
PREFIX = "precision.genesis.ai/"
ROOT = Path(__file__).parents[2]
NOW = time.time()


class Cli:
    """The command line over the fake, in namespace ``default``."""

    def __init__(self, fake: FakeKube, capsys: pytest.CaptureFixture[str]) -> None:
        self.fake, self._capsys = fake, capsys

    def policy(self, status: State, *, name: str = "fleet", annotations: Json | None = None, **spec: object) -> None:
        self.fake.put(
            POLICIES,
            {
                "metadata": {
                    "name": name,
                    "uid": f"uid-{name}",
                    "annotations": annotations or {},
                    "generation": 1,
                    "creationTimestamp": "2026-01-01T00:00:00Z",
                },
                "spec": {"selector": {"matchLabels": {"fleet": "test"}}, **spec},
                "status": status_to_wire(status),
            },
        )

    def trainer(
        self, name: str, mode: str, *, generation: int = 7, annotations: Json | None = None, **pod: object
    ) -> None:
        request = json.dumps({"generation": generation, "mode": mode})
        inner = {f"{PREFIX}request": request, f"{PREFIX}enable-fp16": str(mode != "fp32").lower()}
        own = {f"{PREFIX}generation": str(generation), **(annotations or {})}
        body = bodies.deployment(
            bodies.hot_spec(), name=name, uid=f"uid-{name}", annotations=own, inner=inner, labels={"fleet": "test"}
        )
        body["metadata"]["labels"]["fleet"] = "test"
        self.fake.put(DEPLOYMENTS, body)
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        annotations = {f"{PREFIX}request": request}
        named = {"name": f"{name}-abc-1", "owner": name, "uid": f"pod-{name}"}
        self.fake.put(PODS, bodies.pod(bodies.hot_spec(), annotations=annotations, **named, **{**ready, **pod}))

    def __call__(self, *words: str, code: int = 0) -> str:
        """Run it; what it printed, errors included."""
        self._capsys.readouterr()
        assert main(words) == code, self._capsys.readouterr()
        printed = self._capsys.readouterr()
        return printed.out + printed.err

    def json(self, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - what JSON is
        return json.loads(self(*words, "-o", "json", code=code))

    def stored(self, name: str = "fleet") -> tuple[Json, Json]:
        """(our annotations without the prefix, spec)."""
        body: Any = self.fake.objects[(POLICIES.plural, "default", name)]
        annotations = body["metadata"].get("annotations", {})
        return {k.removeprefix(PREFIX): v for k, v in annotations.items()}, body["spec"]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    fake = FakeKube()

    def connected(
        arguments: argparse.Namespace, verb: Callable[[session.Session, argparse.Namespace], Awaitable[int]]
    ) -> int:
        async def run() -> int:
            where = session.Session(fake, arguments.namespace or "default", session._flags(arguments))
            return await verb(where, arguments)

        return asyncio.run(run())

    monkeypatch.setattr(session, "connected", connected)
    return Cli(fake, capsys)


def status(phase: Phase, **fields: object) -> State:
    given: Json = {
        "observed_generation": 1,
        "phase": phase,
        "reason": "Promoted",
        "message": "as it should be",
        "precision": Mode.FP16,
        "transition_id": 4,
        "generation": 7,
        "total": 2,
        "phase_since": NOW - 90,
        **fields,
    }
    return State(**given)


WAITING = status(Phase.PAUSED, reason="AwaitingApproval", message="say so", step="1/2 50%")
INCIDENT = Incident(
    id="fleet-5",
    severity=Severity.P1,
    scope=Scope.FLEET,
    reason="OverflowRateHigh",
    message="overflow beyond 0.3 in a",
    workloads=("a",),
    detected_at=NOW - 60,
    decided_at=NOW - 59,
    deadline_at=NOW + 840,
    last_patch_at=NOW - 58,
    last_ack_at=NOW - 57,
)
HELD = status(Phase.HELD, reason="OverflowRateHigh", precision=Mode.FP32, gate_closed=True, incident=INCIDENT)
BY_CANARY = status(
    Phase.ROLLING_BACK,
    reason="TrainingSlow",
    gate_closed=True,
    incident=replace(INCIDENT, severity=Severity.P2, strategy=Strategy.CANARY, last_patch_at=None, last_ack_at=None),
    canary=(Member("a", "uid-a"),),
    comparison=Comparison(since=NOW - 60, looked_at=NOW - 30, looks=2, total=1.0, squares=0.6),
)
NO_DIFFERENCE = replace(
    BY_CANARY,
    reason="CanaryNoDifference",
    comparison=Comparison(since=NOW - 60, looks=2, verdict=Verdict.NO_DIFFERENCE, ended_at=NOW),
)
PARTLY = status(Phase.DEGRADED, held=(HeldWorkload("a", "uid-a", "OverflowRateHigh", NOW),))


# ---- commands


@pytest.mark.parametrize(
    ("before", "words", "annotations"),
    [
        (WAITING, ["promote"], {"promote": "4"}),
        (status(Phase.HEALTHY), ["rollback"], {"rollback": "4"}),
        (status(Phase.PROGRESSING), ["rollback", "--emergency"], {"abort": "4"}),
        (PARTLY, ["rollback", "--emergency"], {"abort": "4"}),
        (HELD, ["retry", "-m", "rebuilt"], {"retry": "4: rebuilt"}),
        (status(Phase.ROLLING_BACK, incident=INCIDENT), ["rollback", "--emergency"], {"abort": "4"}),
        (PARTLY, ["retry"], {"retry": "4"}),
        (BY_CANARY, ["promote", "-m", "it helps"], {"promote": "4: it helps"}),
        (BY_CANARY, ["rollback"], {"rollback": "4"}),
        (BY_CANARY, ["rollback", "--emergency"], {"abort": "4"}),
        (NO_DIFFERENCE, ["promote"], {"promote": "4"}),
        (NO_DIFFERENCE, ["retry"], {"retry": "4"}),
        (NO_DIFFERENCE, ["ack", "fix"], {"ack-fix": "4"}),
        (HELD, ["ack", "root-cause", "FIX"], {"ack-rootCause": "4", "ack-fix": "4"}),
        (HELD, ["ack", "fix", "-m", "scale\n pinned"], {"ack-fix": "4: scale pinned"}),
    ],
)
def test_a_command_answers_the_transition_that_stands(
    cli: Cli, before: State, words: list[str], annotations: Json
) -> None:
    cli.policy(before)
    cli(*words)
    assert cli.stored()[0] == annotations


def test_pause_and_resume_are_the_specs_suspend(cli: Cli) -> None:
    cli.policy(status(Phase.HEALTHY))
    assert "paused" in cli("pause")
    assert cli.stored()[1]["suspend"] is True
    assert "is paused already" in cli("pause", "fleet")
    assert "resumed" in cli("resume")
    assert cli.stored()[1]["suspend"] is False
    assert "is not paused" in cli("resume")


def test_a_rollback_ends_the_pause_that_would_stand_in_its_way(cli: Cli) -> None:
    cli.policy(status(Phase.HEALTHY), suspend=True)
    assert "its pause ended" in cli("rollback", "--emergency")
    annotations, spec = cli.stored()
    assert (annotations, spec["suspend"]) == ({"abort": "4"}, False)
    assert len(cli.fake.writes) == 1


@pytest.mark.parametrize(
    ("before", "suspended", "words", "said"),
    [
        (status(Phase.HEALTHY), False, ["promote"], "waits for no approval (Healthy, Promoted: as it should be)"),
        (WAITING, True, ["promote"], "first `kubectl precision resume fleet -n default`"),
        (HELD, True, ["retry"], "first `kubectl precision resume fleet -n default`"),
        (status(Phase.HEALTHY), False, ["retry"], "nothing was rolled back that could be tried again"),
        (BY_CANARY, False, ["retry"], "still compares its canary"),
        (status(Phase.PENDING), False, ["rollback"], "to keep it so: `kubectl precision pause fleet -n default`"),
        (
            status(Phase.ROLLING_BACK),
            False,
            ["pause"],
            "a pause would leave it half moved. Where that is meant: `kubectl -n",
        ),
        (WAITING, False, ["resume"], "waits for approval: `kubectl precision promote fleet -n default`"),
        (status(Phase.HEALTHY), False, ["ack", "fix"], "only a fleet that is Held waits for acknowledgements"),
    ],
)
def test_what_the_operator_would_not_act_on_is_refused_with_the_next_step(
    cli: Cli, before: State, suspended: bool, words: list[str], said: str
) -> None:
    cli.policy(before, suspend=suspended)
    assert said in cli(*words, code=1)
    assert cli.fake.writes == []


@pytest.mark.parametrize("phase", [Phase.HELD, Phase.ROLLING_BACK])
def test_a_rollback_of_what_is_rolled_back_is_no_error(cli: Cli, phase: Phase) -> None:
    cli.policy(status(phase, reason="LossDiverged"))
    assert f"is {phase} already: LossDiverged" in cli("rollback", "--emergency")
    assert cli.fake.writes == []


@pytest.mark.parametrize(
    ("before", "words", "line"),
    [
        (WAITING, ["promote"], f"annotate --overwrite precisionpolicy fleet {PREFIX}promote=4"),
        (
            HELD,
            ["ack", "fix", "-m", "it's in"],
            f"annotate --overwrite precisionpolicy fleet '{PREFIX}ack-fix=4: it'\"'\"'s in'",
        ),
        (
            status(Phase.HEALTHY),
            ["pause"],
            'patch precisionpolicy fleet --type=merge -p \'{"spec": {"suspend": true}}\'',
        ),
    ],
)
def test_a_dry_run_writes_nothing_and_prints_the_kubectl_line(
    cli: Cli, before: State, words: list[str], line: str
) -> None:
    cli.policy(before)
    assert cli("--context", "lab", *words, "--dry-run") == f"kubectl --context lab -n default {line}\n"
    assert cli.fake.writes == []


def test_a_retry_without_acknowledgements_says_which_are_missing(cli: Cli) -> None:
    given = {f"{PREFIX}ack-rootCause": "4: scale", f"{PREFIX}ack-fix": "3"}
    cli.policy(HELD, annotations=given)
    said = cli("retry")
    assert "it starts once these are acknowledged: fix, stagingTested, monitoring, teamNotified, rollbackReady" in said
    assert cli.stored()[0]["retry"] == "4"


def test_acknowledgements_are_shown_with_who_gave_them(cli: Cli) -> None:
    given = {
        "ack-rootCause": "4: scale",
        "ack-rootCause-by": "bob",
        "ack-fix": "3",
        "ack-fix-by": "bob",
        "ack-monitoring": "4",
    }
    cli.policy(HELD, annotations={f"{PREFIX}{k}": v for k, v in given.items()})
    lines = {line.split()[0]: line for line in cli("ack").splitlines()}
    assert "by bob: scale" in lines["rootCause"]
    assert "answers an earlier rollback: does not count" in lines["fix"]
    assert "by unknown" in lines["monitoring"]
    assert "missing" in lines["stagingTested"]
    shown = cli.json("ack")
    assert shown["rootCause"] == {"needed": True, "given": True, "by": "bob", "message": "scale"}
    assert shown["fix"]["given"] is False


def test_an_unknown_item_is_refused_with_those_that_there_are(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli("ack", "coffee")
    assert stopped.value.code == 2
    assert "expected one of rootCause, fix, stagingTested" in capsys.readouterr().err


def test_a_command_as_json_carries_the_line_and_the_patch(cli: Cli) -> None:
    cli.policy(WAITING)
    shown = cli.json("promote", "--dry-run")
    assert shown["patch"] == {"metadata": {"annotations": {f"{PREFIX}promote": "4"}}}
    assert shown["kubectl"].startswith("kubectl -n default annotate")
    assert (shown["dryRun"], shown["transitionId"]) == (True, 4)


# ---- which policy


def test_without_a_name_the_only_policy_is_meant(cli: Cli) -> None:
    assert "there is none: choose another with -n" in cli("status", code=1)
    cli.policy(status(Phase.HEALTHY), name="a")
    assert "default/a" in cli("status")
    cli.policy(status(Phase.HEALTHY), name="b")
    assert "name the PrecisionPolicy that is meant: in namespace default, there are a, b" in cli("status", code=1)
    assert "no PrecisionPolicy c in namespace default; there are a, b" in cli("status", "c", code=1)


# ---- what is shown


def test_get_sorts_the_fleet_into_cohorts_with_what_is_wrong(cli: Cli) -> None:
    member = (Member("a", "uid-a"), Member("c", "uid-c"))
    failing = (Failing("a", "uid-a", Signal.OVERFLOW, Severity.P1, NOW - 30, measured="0.41"),)
    silent = ("c",)
    cli.policy(
        status(Phase.PROGRESSING, step="1/2 50%", members=member, moved=1, failing=failing, unacknowledged=silent)
    )
    cli.trainer("a", "fp16")
    cli.trainer("b", "fp32", annotations={f"{PREFIX}latch": "fp32"})
    crash = {"containerStatuses": [{"state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}
    cli.trainer("c", "fp32", generation=6, **crash)
    (fleet,) = cli.json("get")
    cohorts = {c["name"]: {w["name"]: w for w in c["workloads"]} for c in fleet["cohorts"]}
    assert {name: sorted(found) for name, found in cohorts.items()} == {"moved to fp16": ["a", "c"], "not moved": ["b"]}
    a, b, c = cohorts["moved to fp16"]["a"], cohorts["not moved"]["b"], cohorts["moved to fp16"]["c"]
    assert (a["delivery"], a["template"], a["wanted"], a["problems"]) == ("Hot", "fp16", "fp16", [])
    assert [(x["signal"], x["severity"], x["measured"]) for x in a["breaches"]] == [("overflow", "P1", "0.41")]
    assert (a["acknowledged"], b["acknowledged"], c["acknowledged"]) == (True, None, False)
    assert a["pods"] == [
        {"name": "a-abc-1", "node": "node-1", "told": "fp16", "generation": 7, "problems": []},
    ]
    assert (b["latch"], b["wanted"]) == ("fp32", None)
    assert c["pods"][0]["problems"] == ["crashing", "still told fp32, wanted fp16"]
    text = cli("get", "fleet")
    assert re.search(r"Hot, acknowledged  P1 overflow 0.41 for \d+", text)
    assert "Hot, not acknowledged" in text
    assert "latched fp32" in text
    assert "c-abc-1  told fp32, generation 6, on node-1  ! crashing  ! still told fp32, wanted fp16" in text


def test_of_a_list_that_was_cut_off_nothing_is_claimed_of_the_rest(cli: Cli) -> None:
    silent = tuple(f"x{index:03}" for index in range(UNACKNOWLEDGED_LIMIT))
    cli.policy(status(Phase.HEALTHY, members=(Member("a", "uid-a"),), unacknowledged=silent))
    cli.trainer("a", "fp16")
    (fleet,) = cli.json("get")
    assert fleet["cohorts"][0]["workloads"][0]["acknowledged"] is None


def answer(head: str) -> bytes:
    """A Prometheus that has seen one pod."""
    (query,) = parse_qs(urlsplit(head.split(" ", 2)[1]).query)["query"]
    if "genesis_precision_info" in query:
        labels, value = {"pod": "a-abc-1", "mode": "bf16", "generation": "7"}, "-3"
    elif "overflow" in query:
        labels, value = {"pod": "a-abc-1"}, "NaN"
    elif "genesis_training_steps_total" in query:
        labels, value = {"pod": "a-abc-1"}, "100"
    else:
        return http(success("vector", []))
    return http(success("vector", [{"metric": labels, "value": [1, value]}]))


def test_get_shows_what_each_process_reports_now_and_how_old_that_is(cli: Cli) -> None:
    cli.policy(status(Phase.HEALTHY, members=(Member("a", "uid-a"), Member("b", "uid-b"))))
    cli.trainer("a", "fp16")
    cli.trainer("b", "fp16")
    with serve() as prometheus:
        prometheus.answer = answer
        (fleet,) = cli.json("get", "--prometheus", prometheus.url)
        text = cli("get", "--prometheus", prometheus.url)
    a, b = (w["pods"][0]["reports"] for w in fleet["cohorts"][0]["workloads"])
    assert (a["mode"], a["generation"], a["ageSeconds"], a["values"]) == ("bf16", 7, 3.0, {"overflow": "nan"})
    assert b == {"mode": None, "generation": None, "ageSeconds": None, "values": {}}
    assert "told fp16, generation 7, on node-1; reports bf16 generation 7 3s ago: overflow nan" in text
    assert "; reports nothing" in text


def test_get_says_why_no_process_could_be_asked(cli: Cli) -> None:
    cli.policy(status(Phase.HEALTHY))
    with serve(http(b"<html>")) as prometheus:
        assert "expected JSON of Prometheus" in cli("get", "--prometheus", prometheus.url, code=1)


def test_get_names_workloads_that_cannot_be_moved_and_those_of_another_policy(cli: Cli) -> None:
    cli.policy(status(Phase.PENDING), name="older")
    younger = {"metadata": {"name": "younger", "creationTimestamp": "2026-02-01T00:00:00Z", "generation": 1}}
    cli.fake.put(POLICIES, {**younger, "spec": {"selector": {"matchLabels": {"fleet": "test"}}}})
    bare = bodies.deployment(bodies.pod_spec(bodies.container()), name="bare", labels={"fleet": "test"}, replicas=0)
    cli.fake.put(DEPLOYMENTS, bare)
    older, later = cli.json("get")
    (line,) = older["cohorts"][0]["workloads"]
    assert line["delivery"] is None
    assert any("cannot be moved by delivery Auto" in problem for problem in line["problems"])
    assert any("disagree about the selector" in problem for problem in line["problems"])
    assert [cohort["name"] for cohort in later["cohorts"]] == ["left to the older policy older"]
    # one that is asked for by name is judged beside its rivals all the same
    (named,) = cli.json("get", "younger")
    assert [cohort["name"] for cohort in named["cohorts"]] == ["left to the older policy older"]


def test_get_of_an_empty_namespace_says_so(cli: Cli) -> None:
    assert "no PrecisionPolicy in namespace default" in cli("get")
    assert "no PrecisionPolicy in any namespace" in cli("get", "-A")
    assert cli.json("get") == []


@pytest.mark.parametrize("phase", list(Phase))
def test_the_exit_code_of_status_says_whether_something_is_rolled_back(cli: Cli, phase: Phase) -> None:
    cli.policy(status(phase))
    wrong = phase in (Phase.DEGRADED, Phase.ROLLING_BACK, Phase.HELD)
    assert phase in cli("status", code=3 if wrong else 0)


def test_status_shows_the_rollbacks_stages_against_its_deadline(cli: Cli) -> None:
    cli.policy(HELD)
    text = cli("status", code=3)
    assert "fleet-5 P1 Fleet Emergency OverflowRateHigh: overflow beyond 0.3 in a" in text
    assert "lastAck    +3.0 s" in text
    assert "settled    not yet" in text
    assert "deadline   +900 s, 897 s to spare" in text
    shown = cli.json("status", code=3)
    assert shown["incident"]["settledAt"] is None
    assert shown["gate"] == "Closed"


def test_status_shows_recovery_and_the_checklists_counts(cli: Cli) -> None:
    assert HELD.incident is not None
    checks = Checks(passed=5, failed=1, unknown=2, pending=4)
    recovered = replace(HELD.incident, recovered_at=HELD.incident.detected_at + 400.0, checks=checks)
    cli.policy(replace(HELD, incident=recovered))
    text = cli("status", code=3)
    assert "recovered  +400.0 s" in text
    assert "checklist  5 passed, 1 failed, 2 unknown, 4 to come" in text
    assert cli.json("status", code=3)["incident"]["checks"]["failed"] == 1


def test_what_people_are_told_of_is_shown_and_explained(cli: Cli) -> None:
    alert = Condition("Alerting", "True", "LossDiverging", "divergence beyond 0.05 for 1800 s or longer in a")
    cli.policy(status(Phase.HEALTHY, conditions=(alert,)))
    assert "LossDiverging: divergence beyond 0.05 for 1800 s or longer in a" in cli("status")
    shown = cli.json("explain")
    assert "LossDiverging" in {reason["reason"] for reason in shown["reasons"]}
    assert "criteria.divergence.warn" in " ".join(shown["next"])


def test_status_shows_who_went_first_and_what_that_has_shown(cli: Cli) -> None:
    cli.policy(BY_CANARY)
    assert "a Open after 2 looks: the rest is in more trouble by +0.50 (-1 to 1)" in cli("status", code=3)
    shown = cli.json("status", code=3)
    assert (shown["canary"], shown["comparison"]["looks"]) == (["a"], 2)


@pytest.mark.parametrize("verdict", [Verdict.NO_DIFFERENCE, Verdict.WORSE, Verdict.INCONCLUSIVE])
def test_explain_of_a_held_canary_names_every_way_on(cli: Cli, verdict: Verdict) -> None:
    cli.policy(replace(NO_DIFFERENCE, reason=f"Canary{verdict}"))
    text = cli("explain")
    assert WORDS in " ".join(text.split())
    for verb in ("promote", "rollback --emergency", "ack --policy", "retry"):
        assert f"kubectl precision {verb} fleet" in text


def mitigating(**fields: object) -> State:
    window = Mitigation(
        "a", "uid-a", Signal.OVERFLOW, since=NOW - 60, until=NOW + 1740, rung=Rung.GROWTH_INTERVAL, rung_since=NOW - 20
    )
    window = replace(window, found=("HalveScale: 0.24",), **fields)
    text = "GrowthInterval in a: overflow must be good for 480 s, else it is rolled back"
    condition = Condition("Progressing", "False", "Mitigating", text, 1, NOW - 60)
    return status(Phase.HEALTHY, mitigations=(window,), members=(Member("a", "uid-a"),), conditions=(condition,))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "a overflow GrowthInterval: not acknowledged yet"),
        ({"acknowledged_at": NOW - 10}, "a overflow GrowthInterval: waiting for good data"),
        ({"good_since": NOW - 30}, "a overflow GrowthInterval: good for"),
        ({"until": NOW - 5}, "past its window"),
        ({"result": Ended.MITIGATED}, "a overflow GrowthInterval: Mitigated"),
    ],
)
def test_status_names_each_windows_rung_and_what_it_waits_for(cli: Cli, fields: Json, words: str) -> None:
    cli.policy(mitigating(**fields))
    assert words in cli("status")
    assert cli.json("status")["mitigations"][0]["found"] == ["HalveScale: 0.24"]


def test_explain_of_a_mitigation_says_what_is_tried_and_the_way_back(cli: Cli) -> None:
    cli.policy(mitigating())
    text = " ".join(cli("explain").split())
    assert "Mitigating: something milder than a rollback is being tried" in text
    assert "must be good for 480 s" in text
    assert "precision rollback fleet" in text


@pytest.mark.parametrize("reason", ["AwaitingAcknowledgement", "DeadlineExceeded"])
def test_explain_of_a_guarded_fleet_names_the_workload_whose_rollback_is_waited_for(cli: Cli, reason: str) -> None:
    text = "waiting for the trainers of a to report fp32"
    waits = Condition("Progressing", "False", reason, text, 1, NOW - 60)
    cli.policy(
        status(Phase.DEGRADED, reason="OverflowRateHigh", message="overflow beyond 0.3 in a", conditions=(waits,))
    )
    found = {entry["reason"]: entry["meaning"] for entry in cli.json("explain")["reasons"]}
    assert list(found) == ["OverflowRateHigh", reason]
    assert text in found[reason]


def test_get_shows_who_is_left_in_bf16_as_where_it_should_be(cli: Cli) -> None:
    cli.policy(mitigating(rung=Rung.BF16, result=Ended.MITIGATED))
    cli.trainer("a", "bf16")
    text = cli("get")
    assert "in bf16, against their overflow (1)" in text
    assert "still told" not in text


def test_status_says_when_the_operator_has_not_looked_yet(cli: Cli) -> None:
    cli.policy(status(Phase.HEALTHY, observed_generation=0))
    assert "has not looked at the newest spec yet" in cli("status")


@pytest.mark.parametrize("phase", list(Phase))
def test_every_phase_is_explained(cli: Cli, phase: Phase) -> None:
    cli.policy(status(phase, reason="SomethingNew", message="as the operator says"))
    text = cli("explain")
    assert PHASES[phase] in text
    assert "SomethingNew: as the operator says" in text


@pytest.mark.parametrize("reason", [*REASONS.values(), "Aborted", "RollbackRequested", "NoData"])
def test_every_reason_of_a_rollback_tells_how_to_start_again(cli: Cli, reason: str) -> None:
    cli.policy(status(Phase.HELD, reason=reason, message="it was so"))
    shown = cli.json("explain")
    assert "`kubectl precision retry fleet -n default`" in " ".join(shown["next"])
    assert shown["reasons"][0]["reason"] == reason
    assert "it was so" in shown["reasons"][0]["meaning"]


def gate_reasons() -> set[str]:
    """What a policy can be said to wait for: the first argument of each gate that closes in the core."""
    trees = [ast.parse(path.read_text()) for path in (ROOT / "operator" / "precision_operator" / "core").rglob("*.py")]
    calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call) and node.args]
    closed = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Closed"]
    return {reason.value for reason in closed if isinstance(reason, ast.Constant) and isinstance(reason.value, str)}


def test_whatever_a_policy_waits_for_is_explained() -> None:
    found = gate_reasons()
    assert {"Soaking", "Settling", "CauseNotPrecision"} <= found
    assert sorted(found - set(guidance.REASONS)) == []


def test_explain_names_the_person_who_paused_and_who_answered(cli: Cli) -> None:
    given = {"suspend-by": "alice", "abort": "3", "abort-by": "bob", "retry": "1", "retry-by": "carol"}
    cli.policy(HELD, annotations={f"{PREFIX}{k}": v for k, v in given.items()}, suspend=True)
    text = cli("explain")
    assert "paused by alice" in text
    assert "abort by bob" in text
    assert "carol" not in text
    assert "kubectl precision resume fleet" in text


def test_explain_tells_what_a_person_must_answer(cli: Cli) -> None:
    cli.policy(WAITING)
    assert "approve it: `kubectl precision promote fleet -n default`" in cli("explain")


def test_explain_tells_a_policy_that_only_waits_to_be_let_alone(cli: Cli) -> None:
    cli.policy(status(Phase.HEALTHY))
    assert "nothing: it goes on by itself" in cli("explain")


def test_history_joins_events_the_rollbacks_stages_and_people(cli: Cli) -> None:
    managed = [
        {
            "manager": "m",
            "time": "2026-01-01T00:00:10Z",
            "fieldsV1": {"f:metadata": {"f:annotations": {f"f:{PREFIX}abort": {}}}},
        }
    ]
    cli.policy(HELD, annotations={f"{PREFIX}abort": "3", f"{PREFIX}abort-by": "bob", f"{PREFIX}retry": "1"})
    body: Any = cli.fake.objects[(POLICIES.plural, "default", "fleet")]
    body["metadata"]["managedFields"] = managed
    for name, uid, count in (("ours", "uid-fleet", 3), ("others", "uid-other", 1)):
        cli.fake.put(
            EVENTS,
            {
                "metadata": {"name": name},
                "involvedObject": {"uid": uid},
                "reason": "RolledBack",
                "message": name,
                "count": count,
                "lastTimestamp": "2026-01-01T00:00:20Z",
            },
        )
    shown = cli.json("history")
    assert [(e["source"], e["reason"], e["by"]) for e in shown] == [
        ("Person", "abort", "bob"),
        ("Event", "RolledBack", None),
        *[("Incident", "fleet-5", None)] * 4,
        ("Person", "retry", "unknown"),
    ]
    assert shown[0]["at"] == "2026-01-01T00:00:10.000Z"
    assert shown[-1]["at"] is None
    assert "others" not in json.dumps(shown)
    assert "ours (3 times)" in cli("history")


def test_control_sequences_and_markup_of_others_do_not_reach_the_terminal(cli: Cli) -> None:
    cli.policy(status(Phase.HEALTHY, message="\x1b[2Jgone [bold]not bold[/bold] \u202eevil"))
    for verb in ("status", "explain", "get"):
        text = cli(verb)
        assert "[bold]not bold[/bold]" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


# ---- the program itself


def test_help_is_quick_because_nothing_slow_is_imported() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from precision_operator.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "print(sorted({'kubernetes', 'aiohttp', 'kopf', 'prometheus_api_client'} & set(sys.modules)))"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT / "operator", capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    print(f"help took {time.monotonic() - began:.2f} s")


def test_every_module_registers_a_verb_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (
        "get",
        "status",
        "explain",
        "history",
        "promote",
        "pause",
        "resume",
        "rollback",
        "retry",
        "ack",
        "lint",
    ):
        with pytest.raises(SystemExit) as stopped:
            main([verb, "--help"])
        assert stopped.value.code == 0
        assert len(capsys.readouterr().out) > 200
    assert len(set(MODULES)) == len(MODULES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ro"], ["rollback"]),
        (["status", ""], ["a", "b"]),
        (["status", "b"], ["b"]),
        (["ack", "fix", "r"], ["rootCause", "rollbackReady"]),
        (["ack", "fix", "--policy", ""], ["a", "b"]),
        (["status", "-n", "elsewhere", ""], []),
        (["status", "-n", ""], []),
        (["lint", ""], []),
    ],
)
def test_words_are_completed(cli: Cli, words: list[str], expected: list[str]) -> None:
    for name in ("a", "b"):
        cli.policy(status(Phase.HEALTHY), name=name)
    assert cli("__complete", *words).split() == [*expected, ":4"]


def test_a_missing_kubeconfig_is_named_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert f"no kubeconfig at {tmp_path / 'none'}: pass --kubeconfig, or set KUBECONFIG" in capsys.readouterr().err
