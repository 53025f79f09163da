"""``get`` and ``status``."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from precision_operator.api.conditions import Condition
from precision_operator.api.mitigation import MitigationResult as Ended
from precision_operator.api.mitigation import Rung
from precision_operator.api.modes import Mode
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, HeldWorkload, Phase, Restart, Suspension
from precision_operator.api.summary import UNACKNOWLEDGED_LIMIT
from precision_operator.api.verification import Checks
from precision_operator.contract import INJECT, INJECTED
from precision_operator.kube.port import DEPLOYMENTS, JOBS, PODS, POLICIES
from precision_operator.workloads.kinds.pod import NO_CONTROLLER
from tests.support import trainers
from tests.support.cli import (
    BY_CANARY,
    FLEET,
    HELD,
    INCIDENT,
    NOW,
    PARTLY,
    A,
    B,
    C,
    Cli,
    Json,
    Stands,
    mitigating,
    stands,
)
from tests.support.prometheus_bodies import STAMP, http, serve, success
from tests.support.recorded_kinds import recorded


def test_get_sorts_the_fleet_into_cohorts_with_what_is_wrong(cli: Cli) -> None:
    failing = (Failing(A, Signal.OVERFLOW, Severity.P1, NOW - 30, measured="0.41"),)
    found = stands(Phase.PROGRESSING, step="1/2 50%", members=(A, C), modes={A: Mode.FP16, C: Mode.FP16}, moved=1)
    cli.policy(stands(Phase.PROGRESSING, found, failing=failing, changed={A: 7, C: 7}, unacknowledged=("c",)))
    cli.trainer("a", "fp16")
    cli.trainer("b", "")
    crash = {"containerStatuses": [{"lastState": {"terminated": {"exitCode": 1}}}]}
    cli.trainer("c", "fp32", generation=6, **crash)
    (fleet,) = cli.json("get")
    cohorts = {c["name"]: {w["name"]: w for w in c["workloads"]} for c in fleet["cohorts"]}
    assert {name: sorted(found) for name, found in cohorts.items()} == {"moved to fp16": ["a", "c"], "not moved": ["b"]}
    a, b, c = cohorts["moved to fp16"]["a"], cohorts["not moved"]["b"], cohorts["moved to fp16"]["c"]
    assert (a["key"], a["delivery"], a["assigned"], a["generation"], a["problems"]) == (A, "Hot", "fp16", 7, [])
    assert [(x["signal"], x["severity"], x["measured"]) for x in a["breaches"]] == [("overflow", "P1", "0.41")]
    assert (a["acknowledged"], b["acknowledged"], c["acknowledged"]) == (True, None, False)
    assert a["pods"] == [
        {"name": "a-abc-1", "node": "node-1", "requested": "fp16", "generation": 7, "problems": []},
    ]
    assert (b["assigned"], b["generation"], b["pods"][0]["generation"]) == ("fp32", None, None)
    assert c["pods"][0]["problems"] == ["crashing", "still fp32, assigned fp16"]
    text = cli("get", "fleet")
    assert re.search(r"assigned fp16, generation 7, Hot, acknowledged  P1 overflow 0.41 for \d+", text)
    assert "Hot, not acknowledged" in text
    assert "c-abc-1  requested fp32, generation 6, on node-1  ! crashing  ! still fp32, assigned fp16" in text


def test_before_anything_is_enforced_workloads_are_as_their_templates_have_them(cli: Cli) -> None:
    cli.policy(stands(Phase.PENDING, enforce=False))
    cli.trainer("a", "")
    assert cli.json("get")[0]["cohorts"][0]["workloads"][0]["assigned"] is None
    assert "assigned nothing: as its template has it" in cli("get")
    assert "start as their templates have them" in cli("status")


def test_get_shows_restarts_and_pods_that_are_missing_or_cannot_start(cli: Cli) -> None:
    cli.policy(stands(Phase.ROLLING_BACK, members=(A, B), restarts={A: Restart(2, NOW - 40)}))
    cli.trainer("a", "", phase="Pending", conditions=[])
    cli.fake.put(DEPLOYMENTS, trainers.deployment("b", labels=FLEET, replicas=3))
    a, b = cli.json("get")[0]["cohorts"][0]["workloads"]
    assert re.fullmatch(r"restarting for \d+ s, round 2 of 2", a["problems"][0])
    assert a["pods"][0]["problems"] == ["not started yet: kubectl describe pod says why"]
    assert b["problems"] == ["0 of 3 pods are there"]


def _job(name: str, **spec: object) -> Json:
    """A hot Job of one completion; its manager did not state ``suspend`` unless ``spec`` says so."""
    made = trainers.deployment(name, labels=FLEET)
    manager = {"manager": "kubectl", "operation": "Apply", "fieldsV1": {"f:spec": {f"f:{field}": {} for field in spec}}}
    metadata = {**made["metadata"], "managedFields": [manager], "uid": f"job-{name}"}
    return {"metadata": metadata, "spec": {"template": made["spec"]["template"], **spec}}


def test_get_and_status_show_kinds_and_what_the_operator_suspends(cli: Cli) -> None:
    ours, theirs = "batch/Job/ours", "batch/Job/theirs"
    cli.policy(
        stands(
            Phase.ROLLING_BACK,
            members=(ours, theirs),
            restarts={ours: Restart(1, NOW - 40)},
            suspensions={ours: Suspension("job-ours", 2, NOW - 40)},
            held=(HeldWorkload(ours, "OverflowRateHigh", NOW),),
        )
    )
    cli.fake.put(JOBS, _job("ours"))
    cli.fake.put(JOBS, _job("theirs", suspend=True))
    lines = {w["name"]: w for c in cli.json("get")[0]["cohorts"] for w in c["workloads"]}
    assert lines["ours"]["kind"] == "Job"
    assert re.fullmatch(
        r"suspended by the operator (\d+[dhms])+ ago, until none of its pods is left", lines["ours"]["problems"][0]
    )
    assert lines["theirs"]["problems"][0].startswith("hot only: it cannot be restarted (kubectl applies spec.suspend")
    assert lines["theirs"]["problems"][1] == "suspended by its manifest: it stays so"
    assert "job/ours  assigned" in cli("get")
    status = cli("status", code=3)
    assert "job/ours suspended by the operator" in status
    assert re.search(r"held\s+job/ours", status)
    shown = cli.json("status", code=3)
    assert shown["suspensions"] == [{"workload": ours, "resuming": False, "since": shown["suspensions"][0]["since"]}]
    assert shown["restarts"][0]["workload"] == ours


def test_status_shows_each_condition_that_a_person_should_look_at(cli: Cli) -> None:
    lost = Condition("CapacityLost", "True", "ReplacementPending", "new pods of a find no place", 1, NOW)
    fine = Condition("Blocked", "False", "NothingBlocked", "", 1, NOW)
    cli.policy(stands(Phase.HEALTHY, conditions=(lost, fine)))
    text = cli("status")
    assert re.search(r"CapacityLost\s+ReplacementPending: new pods of a find no place", text)
    assert "NothingBlocked" not in text
    (found,) = cli.json("status")["attention"]
    assert (found["condition"], found["reason"]) == ("CapacityLost", "ReplacementPending")


def test_get_says_why_nothing_was_injected_into_a_pod(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY, members=(A,), modes={A: Mode.FP16}, moved=1))
    cli.trainer("a", "fp16")
    (body,) = (body for (plural, _, _), body in cli.fake.objects.items() if plural == PODS.plural)
    pod: Json = {**body}
    pod["metadata"]["labels"][INJECT] = "trainer"
    pod["metadata"]["annotations"][INJECTED] = "refused: HostNetwork"
    pod["spec"]["volumes"] = []  # it has not got the contract by hand either
    problems = cli.json("get")[0]["cohorts"][0]["workloads"][0]["pods"][0]["problems"]
    assert problems[-1].startswith("nothing was injected (HostNetwork): with spec.hostNetwork ")


def test_a_rollback_accepts_whatever_is_safer(cli: Cli) -> None:
    cli.policy(stands(Phase.HELD, fallback=Mode.BF16, precision=Mode.BF16, members=(A,)), fallback="bf16")
    cli.trainer("a", "fp32")
    line = cli.json("get")[0]["cohorts"][0]["workloads"][0]
    assert (line["assigned"], line["pods"][0]["problems"]) == ("bf16", [])


@pytest.mark.parametrize(
    ("found", "cohorts"),
    [
        (stands(Phase.ROLLING_BACK, members=(A, B)), {"rolled back": ["a", "b"], "not moved": ["c"]}),
        (
            stands(Phase.ROLLING_BACK, BY_CANARY, members=(A, B)),
            {"rollback canary": ["a"], "waiting for the rollback canary": ["b"], "not moved": ["c"]},
        ),
        (
            stands(Phase.DEGRADED, PARTLY, members=(A, B, C)),
            {"rolled back by themselves": ["a"], "moved to fp16": ["b", "c"]},
        ),
    ],
)
def test_get_names_cohorts_by_what_happens_to_them(cli: Cli, found: Stands, cohorts: Json) -> None:
    cli.policy(found)
    for name in ("a", "b", "c"):
        cli.trainer(name, "fp16")
    (fleet,) = cli.json("get")
    assert {c["name"]: [w["name"] for w in c["workloads"]] for c in fleet["cohorts"]} == cohorts


def test_while_something_is_held_the_selector_in_force_counts(cli: Cli) -> None:
    cli.policy(HELD, selector={"matchLabels": {"fleet": "another"}})
    cli.trainer("a", "fp32")
    assert [w["name"] for c in cli.json("get")[0]["cohorts"] for w in c["workloads"]] == ["a"]


def test_what_a_deleted_policy_left_behind_is_shown(cli: Cli) -> None:
    left = stands(Phase.HELD, HELD, reason="PolicyDeleted", message="it stays", fallback=None, modes={A: Mode.FP32})
    cli.assignment(stands(Phase.HELD, left, held=(HeldWorkload(A, "OverflowRateHigh", NOW),)))
    cli.trainer("a", "fp32")
    cli.trainer("b", "fp16")
    (fleet,) = cli.json("get")
    assert (fleet["deleted"], fleet["name"], fleet["held"][0]["workload"]) == (True, "fleet", A)
    lines = {w["name"]: (w["assigned"], w["acknowledged"]) for c in fleet["cohorts"] for w in c["workloads"]}
    assert lines == {"a": ("fp32", None), "b": (None, None)}, "nobody says any more who has acknowledged"
    assert "the policy was deleted: this is what its assignment holds" in cli("get")
    text = cli("status", code=3)
    assert "the policy was deleted" in text
    assert "as their templates have it, except for those of 1 workloads" in text


def test_of_a_list_that_was_cut_off_nothing_is_claimed_of_the_rest(cli: Cli) -> None:
    missing = tuple(f"x{index:03}" for index in range(UNACKNOWLEDGED_LIMIT))
    cli.policy(stands(Phase.HEALTHY, members=(A,), modes={A: Mode.FP16}, unacknowledged=missing))
    cli.trainer("a", "fp16")
    (fleet,) = cli.json("get")
    assert fleet["cohorts"][0]["workloads"][0]["acknowledged"] is None


def test_nobody_waits_for_what_cannot_be_moved(cli: Cli) -> None:
    cli.policy(stands(Phase.ROLLING_BACK, members=(A,), modes={A: Mode.FP32}, unacknowledged=("a",)))
    cli.trainer("a", "fp16")
    cli.fake.put(DEPLOYMENTS, trainers.deployment("bare", labels=FLEET, spec=trainers.bare_spec()))
    (fleet,) = cli.json("get")
    found = {w["name"]: (w["delivery"], w["acknowledged"]) for c in fleet["cohorts"] for w in c["workloads"]}
    assert found == {"a": ("Hot", False), "bare": (None, None)}


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
    return http(success("vector", [{"metric": labels, "value": [STAMP, value]}]))


def test_get_shows_what_each_process_reports_now_and_how_old_that_is(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY, members=(A, B), modes={A: Mode.FP16, B: Mode.FP16}))
    cli.trainer("a", "fp16")
    cli.trainer("b", "fp16")
    with serve() as prometheus:
        prometheus.answer = answer
        (fleet,) = cli.json("get", "--prometheus", prometheus.url)
        text = cli("get", "--prometheus", prometheus.url)
    a, b = (w["pods"][0]["reports"] for w in fleet["cohorts"][0]["workloads"])
    assert (a["mode"], a["generation"], a["ageSeconds"], a["values"]) == ("bf16", 7, 3.0, {"overflow": "nan"})
    assert b == {"mode": None, "generation": None, "ageSeconds": None, "values": {}}
    assert "requested fp16, generation 7, on node-1; reports bf16 generation 7 3s ago: overflow nan" in text
    assert "; reports nothing" in text
    assert "deployment/a  assigned fp16, reports bf16, " in text
    assert [w["reported"] for w in fleet["cohorts"][0]["workloads"]] == [["bf16"], []]


def test_get_says_why_no_process_could_be_asked(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    with serve(http(b"<html>")) as prometheus:
        assert "expected JSON of Prometheus" in cli("get", "--prometheus", prometheus.url, code=1)


def test_get_shows_every_kind_with_what_keeps_it_from_moving(cli: Cli) -> None:
    cli.policy(stands(Phase.PENDING))
    pending = trainers.deployment("pending", labels=FLEET, replicas=0)
    pending["metadata"]["generation"] = 2
    pending["status"] = {"observedGeneration": 1}
    jobs = [recorded(f"job-{name}") for name in ("patched", "ours", "indexed")]
    for job in jobs:
        job["spec"]["template"]["metadata"]["labels"] |= FLEET
    probe = recorded("bare-pod")
    probe["metadata"]["labels"] |= FLEET
    for resource, bodies in ((DEPLOYMENTS, [pending]), (JOBS, jobs), (PODS, [probe])):
        for body in bodies:
            cli.fake.put(resource, body)
    (found,) = cli.json("get")
    lines = {line["key"]: line for cohort in found["cohorts"] for line in cohort["workloads"]}
    changed = "a change of its template has not reached its pods: a restart would bring it in"
    assert changed in lines["apps/Deployment/pending"]["problems"]
    assert "suspended by kubectl-patch: it stays so" in lines["batch/Job/patched"]["problems"]
    assert "suspended" in lines["batch/Job/ours"]["problems"]
    assert not any("pods are there" in problem for problem in lines["batch/Job/ours"]["problems"])
    assert "0 of 2 pods are there" in lines["batch/Job/indexed"]["problems"]
    (why,) = [problem for problem in lines["/Pod/probe"]["problems"] if "delivery" in problem]
    assert why == f"cannot be moved by delivery Auto: {NO_CONTROLLER}"


def test_get_names_workloads_that_cannot_be_moved_and_those_of_another_policy(cli: Cli) -> None:
    cli.policy(stands(Phase.PENDING), name="older")
    metadata: Json = {"name": "younger", "creationTimestamp": "2026-02-01T00:00:00Z", "generation": 1}
    younger: Json = {"metadata": metadata, "spec": {"selector": {"matchLabels": FLEET}}}
    cli.fake.put(POLICIES, younger)
    bare = trainers.deployment("bare", labels=FLEET, spec=trainers.bare_spec(), replicas=0, app="bare")
    cli.fake.put(DEPLOYMENTS, bare)
    older, later = cli.json("get")
    (line,) = older["cohorts"][0]["workloads"]
    assert line["delivery"] is None
    assert any("cannot be moved by delivery Auto" in problem for problem in line["problems"])
    assert any("disagree about the selector" in problem for problem in line["problems"])
    assert [cohort["name"] for cohort in later["cohorts"]] == ["left to the policy older"]
    assert later["cohorts"][0]["workloads"][0]["assigned"] is None
    # one that is asked for by name is judged beside its rivals all the same
    (named,) = cli.json("get", "younger")
    assert [cohort["name"] for cohort in named["cohorts"]] == ["left to the policy older"]


def test_get_of_an_empty_namespace_says_so(cli: Cli) -> None:
    assert "no PrecisionPolicy in namespace default" in cli("get")
    assert "no PrecisionPolicy in any namespace" in cli("get", "-A")
    assert cli.json("get") == []


@pytest.mark.parametrize("phase", list(Phase))
def test_the_exit_code_of_status_says_whether_something_is_rolled_back(cli: Cli, phase: Phase) -> None:
    cli.policy(stands(phase))
    wrong = phase in (Phase.DEGRADED, Phase.ROLLING_BACK, Phase.HELD)
    assert phase in cli("status", code=3 if wrong else 0)


def test_workloads_that_a_rollback_counts_are_in_the_fallback_not_moved(cli: Cli) -> None:
    cli.policy(stands(Phase.HELD, HELD, moved=2))
    assert "2 of 2" in (text := cli("status", code=3))
    assert ("in fp32" in text, "moved" in text) == (True, False)
    assert "in fp32 2/2" in cli("get")
    cli.policy(stands(Phase.HEALTHY, moved=2))
    assert "moved 2/2" in cli("get")


def test_status_shows_the_rollbacks_stages_against_its_deadline(cli: Cli) -> None:
    cli.policy(HELD)
    text = cli("status", code=3)
    assert "fleet-5 P1 Fleet Emergency OverflowRateHigh: overflow beyond 0.3 in a" in text
    assert "lastAck    +3.0 s" in text
    assert "recovered  not yet" in text
    assert "deadline   +900 s, 897 s to spare" in text
    shown = cli.json("status", code=3)
    assert shown["incident"]["recoveredAt"] is None
    assert (shown["fallback"], shown["enforce"]) == ("fp32", True)


def test_for_programs_the_status_names_each_breach_with_its_workload(cli: Cli) -> None:
    overflow = Failing(A, Signal.OVERFLOW, Severity.P1, NOW, measured="0.41")
    cli.policy(stands(Phase.PROGRESSING, failing=(overflow, replace(overflow, key=""))))
    known, further = cli.json("status")["breaches"]
    assert known == {"workload": A, "signal": "overflow", "severity": "P1", "since": known["since"], "measured": "0.41"}
    assert further["workload"] is None


def test_a_rollback_that_was_raised_shows_when(cli: Cli) -> None:
    raised = replace(INCIDENT, expedited_at=INCIDENT.detected_at + 30.0)
    for incident, shown in ((INCIDENT, False), (raised, True)):
        cli.policy(stands(Phase.HELD, HELD, incident=incident))
        assert ("expedited  +30.0 s" in cli("status", code=3)) is shown
        assert ("it was raised" in cli("history")) is shown
        assert bool(cli.json("status", code=3)["incident"]["expeditedAt"]) is shown


def test_the_stages_of_a_rollback_stand_as_they_came(cli: Cli) -> None:
    raised = replace(INCIDENT, expedited_at=INCIDENT.detected_at + 2.5)  # the last pod was asked at 2 s
    cli.policy(stands(Phase.HELD, HELD, incident=raised))
    shown = cli("status", code=3)
    assert shown.index("lastPatch") < shown.index("expedited") < shown.index("lastAck") < shown.index("recovered")


def test_status_shows_recovery_and_the_checklists_counts(cli: Cli) -> None:
    checks = Checks(passed=5, failed=1, unknown=2, pending=4)
    recovered = replace(INCIDENT, recovered_at=INCIDENT.detected_at + 400.0, checks=checks)
    cli.policy(stands(Phase.HELD, HELD, incident=recovered))
    text = cli("status", code=3)
    assert "recovered  +400.0 s" in text
    assert "checklist  5 passed, 1 failed, 2 unknown, 4 to come" in text
    assert cli.json("status", code=3)["incident"]["checks"]["failed"] == 1


def test_an_alert_is_shown_and_explained(cli: Cli) -> None:
    alert = Condition("Alerting", "True", "LossDiverging", "divergence beyond 0.05 for 1800 s or longer in a")
    cli.policy(stands(Phase.HEALTHY, conditions=(alert,)))
    assert "LossDiverging: divergence beyond 0.05 for 1800 s or longer in a" in cli("status")
    shown = cli.json("explain")
    assert "LossDiverging" in {reason["reason"] for reason in shown["reasons"]}
    assert "criteria.divergence.warn" in " ".join(shown["next"])


def test_status_shows_who_went_first_and_what_that_has_shown(cli: Cli) -> None:
    cli.policy(BY_CANARY)
    assert "a Open after 2 looks: the rest is worse by +0.50 (-1 to 1)" in cli("status", code=3)
    shown = cli.json("status", code=3)
    assert (shown["canary"], shown["comparison"]["looks"]) == (["a"], 2)


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


def test_get_shows_who_is_left_in_bf16_as_where_it_should_be(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY, mitigating(rung=Rung.BF16, result=Ended.MITIGATED), modes={A: Mode.BF16}))
    cli.trainer("a", "bf16")
    text = cli("get")
    assert "in bf16, against their overflow (1)" in text
    assert "still" not in text


def test_status_says_when_the_operator_has_not_looked_yet(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY, observed_generation=0))
    assert "has not looked at the newest spec yet" in cli("status")
