"""Every rule that ships, judged by promtool: it fires, and does not just below."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.support.promtool import promtool

Json = dict[str, Any]
Series = dict[str, str]
ROOT = Path(__file__).parents[2]
RULES = ROOT / "manifests" / "monitoring" / "alerts.yaml"
GROUPS: list[Json] = yaml.safe_load(RULES.read_text())["groups"]
ALL: list[Json] = [rule for group in GROUPS for rule in group["rules"]]
ALERTS: dict[str, Json] = {rule["alert"]: rule for rule in ALL if "alert" in rule}
MINUTES = 91


class Case(NamedTuple):
    """Series, one value a minute, and when an alert is looked at."""

    series: Series
    at: str
    labels: Json | None = None
    """Those of the alert, beside the rule's own; None: it does not fire."""
    value: str = ""
    """As the summary says it, where it does."""


def flat(value: float | str, minutes: int = MINUTES) -> str:
    return f"{value}x{minutes}"


# -- trainers ---------------------------------------------------------------------------------------------------------------
POD = 'namespace="team",pod="a"'
THE_POD = {"namespace": "team", "pod": "a"}
FP16 = {f'genesis_precision_info{{{POD},mode="fp16",generation="3"}}': flat(1)}


def steps(overflows: float, *, of: float = 60) -> Series:
    return {
        f"genesis_fp16_training_steps_total{{{POD}}}": f"0+{of}x{MINUTES}",
        f"genesis_fp16_overflow_steps_total{{{POD}}}": f"0+{overflows}x{MINUTES}",
        **FP16,
    }


def stalled(values: str) -> Series:
    """All steps overflow."""
    return dict.fromkeys(steps(0), values) | FP16


def loss(value: str) -> Series:
    return {
        f"genesis_training_loss{{{POD}}}": f"{value} " * (MINUTES + 1),  # promtool repeats no NaN
        f"genesis_fp32_baseline_loss{{{POD}}}": flat(2),
        **FP16,
    }


def baseline(value: str) -> Series:
    """What losses and peaks are compared with."""
    values = f"{value} " * (MINUTES + 1)
    return {f"genesis_fp32_baseline_{name}{{{POD}}}": values for name in ("loss", "peak_bytes")}


def in_fp32(series: Series) -> Series:
    return {key.replace("fp16", "fp32"): values for key, values in series.items()}


def non_finite(values: str) -> Series:
    return {f"genesis_nonfinite_loss_steps_total{{{POD}}}": values, **FP16}


def memory(now: float) -> Series:
    return {
        f'genesis_cuda_memory_allocated_bytes{{{POD},mode="fp16"}}': flat(now),
        f"genesis_fp32_baseline_peak_bytes{{{POD}}}": flat(100),
        **FP16,
    }


def runs(well: float) -> Series:
    return {
        f"genesis_training_total{{{POD}}}": f"0+10x{MINUTES}",
        f"genesis_training_success_total{{{POD}}}": f"0+{well}x{MINUTES}",
        **FP16,
    }


def speed(samples_a_minute: int, *, mode: str = "fp16") -> Series:
    return {
        f"genesis_training_samples_total{{{POD}}}": f"0+{samples_a_minute}x{MINUTES}",
        f"genesis_fp32_baseline_samples_per_second{{{POD}}}": flat(1),
        f'genesis_precision_info{{{POD},mode="{mode}"}}': flat(1),
    }


def refusals(reason: str, values: str) -> Series:
    return {f'genesis_request_errors_total{{{POD},reason="{reason}"}}': values}


# -- the operator and its policies, as the Prometheus operator scrapes them: the target has a namespace of its own ----------
TARGET = 'instance="10.0.0.1:8080",namespace="precision-system",pod="op-1"'
THE_TARGET = {"instance": "10.0.0.1:8080", "namespace": "precision-system", "pod": "op-1"}
SYSTEM = {"namespace": "precision-system"}
POLICY = f'{TARGET},exported_namespace="team",policy="fleet"'
LEADS = {f"precision_operator_leader{{{TARGET}}}": flat(1)}


def policy(phase: str = "Healthy", **series: str) -> Series:
    """What the leader says of a policy: ``type__Ready`` is a condition, ``of__phase`` a time, ``state__held`` a count."""
    kinds = {"type": "condition", "of": "timestamp_seconds", "state": "workloads"}
    found = {f'precision_policy_info{{{POLICY},phase="{phase}",precision="fp16"}}': flat(1), **LEADS}
    for name, values in series.items():
        label, _, value = name.partition("__")
        found[f'precision_policy_{kinds[label]}{{{POLICY},{label}="{value}"}}'] = values
    return found


def of(**more: str) -> Json:
    return {"namespace": "team", "policy": "fleet", "precisionpolicy": "fleet", **more}


def by_standby(series: Series) -> Series:
    return {key: flat(0) if key.startswith("precision_operator_leader") else values for key, values in series.items()}


def own(name: str, values: str, labels: str = "") -> Series:
    return {f"{name}{{{TARGET}{labels}}}": values, **LEADS}


def passes(**results: str) -> Series:
    """Of the leader, by result."""
    return {f'reconcile_total{{{TARGET},result="{result}"}}': values for result, values in results.items()} | LEADS


ELSEWHERE = 'instance="10.1.0.1:8080",namespace="another-system",pod="op-b"'
HEARTBEAT = "precision_operator_heartbeat_timestamp_seconds"
QUARTER_AGO = -7775940
"""90 days before the first minute."""
LATE = policy("RollingBack", of__deadline=flat(600), of__predicted=flat(660))
HELD = policy("Held", of__phase=flat(-86400 + 60))


def paused(value: int) -> Series:
    return {f"precision_policy_suspended{{{POLICY}}}": flat(value)}


PAUSED = policy() | paused(1)


def after_rollback(phase: str = "Healthy", **more: str) -> Series:
    """One that was decided a day before the policy was Healthy again, which it has been for a week."""
    return policy(phase, of__created=flat(-999999), of__rollback=flat(-691200), of__phase=flat(60 - 604800), **more)


UNDELIVERED = ',channel="chat",result="Undelivered"'
REVIEWS = ',result="Failed"'

TOO_FEW_STEPS = [
    Case(steps(0.33, of=0.33), "90m"),
    Case(stalled("0+60x50 3000x41"), "70m"),  # of quick steps that have ended an hour is no window
]

CASES: dict[str, list[Case]] = {
    "OverflowRateHigh": [
        Case(steps(6.6), "11m", THE_POD, "11%"),
        Case(steps(6.6), "9m"),
        Case(steps(5.4), "35m"),
        Case(steps(2, of=4), "35m", THE_POD, "50%"),
        Case(steps(0.3, of=3), "75m", THE_POD, "10%"),  # 20 s a step: over an hour
        Case(steps(0.2, of=3), "75m"),
        *TOO_FEW_STEPS,
    ],
    "OverflowRateSevere": [
        Case(steps(18.6), "3m", THE_POD, "31%"),
        Case(steps(17.4), "35m"),
        Case(steps(18.6), "1m"),
        Case(steps(2, of=4), "35m", THE_POD, "50%"),
        Case(steps(0.93, of=3), "75m", THE_POD, "31%"),
        Case(steps(0.87, of=3), "75m"),
        *TOO_FEW_STEPS,
    ],
    "LossDiverged": [
        Case(loss("2.11"), "31m", THE_POD, "5.5%"),
        Case(loss("2.11"), "29m"),
        Case(in_fp32(loss("2.12")), "35m"),
        Case(loss("2.08"), "35m"),
        Case(loss("1.8"), "35m"),
        Case(loss("NaN"), "35m"),
        Case(loss("2.2") | baseline("0"), "35m"),
        Case(loss("2.2") | baseline("NaN"), "35m"),
    ],
    "LossDivergedSeverely": [
        Case(loss("2.42"), "1m", THE_POD, "21%"),
        Case(loss("2.38"), "35m"),
        Case(loss("1.5"), "35m"),
        Case(loss("NaN"), "35m"),
        Case(in_fp32(loss("2.42")), "35m"),
        Case(loss("2.42"), "0m"),
    ],
    "LossNotFinite": [
        Case(non_finite("0 0 0 1"), "4m", THE_POD),
        Case(non_finite("_ _ 40x50"), "4m", THE_POD),
        Case(non_finite("_ _ 40x50"), "10m"),
        Case(non_finite("0x90"), "4m"),
        Case(non_finite("7x20 _x10 7x30"), "32m"),  # was not scraped for 10 minutes
    ],
    "MemoryRatioHigh": [
        Case(memory(81), "16m", THE_POD, "81%"),
        Case(memory(81), "14m"),
        Case(memory(79), "35m"),
        Case(memory(85) | baseline("Inf"), "35m"),
        Case(in_fp32(memory(100)), "35m"),
    ],
    "TrainingFailing": [
        Case(runs(4.9), "10m", THE_POD, "51%"),
        Case(runs(5.1), "35m"),
        Case({key: flat(3) for key in runs(0)}, "35m"),  # none has ended
    ],
    "TrainingSlow": [
        Case(speed(47), "16m", THE_POD, "78.33%"),
        Case(speed(47), "14m"),
        Case(speed(49), "35m"),
        Case(speed(47, mode="fp32"), "35m"),
        Case(speed(47) | {f"genesis_training_samples_total{{{POD}}}": "0+47x16 0+47x9"}, "18m"),  # begun anew
    ],
    "PrecisionRequestRefused": [
        Case(refusals("NotAllowed", "0 0 1x9"), "5m", {**THE_POD, "reason": "NotAllowed"}),
        Case(refusals("NotAllowed", flat(1)), "30m"),
        Case(refusals("StaleGeneration", "0 0 1x9"), "5m"),
    ],
    "RollbackDeadlineUnreachable": [
        Case(LATE, "1m", of(), "1m 0s"),
        Case(policy("RollingBack", of__deadline=flat(600), of__predicted=flat(600)), "1m"),
        Case(policy("RollingBack", of__deadline=flat(600)), "1m"),
        Case(by_standby(LATE), "1m"),
    ],
    "RollbackDeadlineExceeded": [
        Case(LATE, "11m", of(of="deadline"), "1m 0s"),
        Case(LATE, "10m"),
        Case(policy("Held", of__phase=flat(0)), "35m"),
    ],
    "HeldTooLong": [
        Case(HELD, "2m", of(of="phase"), "1d 0h 1m 0s"),
        Case(HELD, "1m"),
        Case(policy("Degraded", of__phase=flat(-86400)), "1m", of(of="phase"), "1d 0h 1m 0s"),
        Case(policy("Healthy", of__phase=flat(-99999)), "1m"),
    ],
    "DrillOverdue": [
        Case(policy("Healthy", of__drill=flat(QUARTER_AGO)), "2m", of(), "90d 0h 1m 0s"),
        Case(policy("Healthy", of__drill=flat(QUARTER_AGO)), "1m"),
        Case(policy("Healthy", of__created=flat(QUARTER_AGO)), "2m", of(), "90d 0h 1m 0s"),
        Case(policy("Healthy", of__created=flat(QUARTER_AGO)), "1m"),
        Case(policy("Healthy", of__drill=flat(0), of__created=flat(QUARTER_AGO)), "35m"),
        Case(policy("Held", of__drill=flat(QUARTER_AGO)), "35m"),
        Case(after_rollback(), "2m", of(), "7d 0h 1m 0s"),
        Case(after_rollback(), "1m"),
        Case(after_rollback(of__drill=flat(-691201)), "2m", of(), "7d 0h 1m 0s"),
        Case(after_rollback(of__drill=flat(-691199)), "35m"),
        Case(after_rollback("Held"), "35m"),
    ],
    "EvaluationStale": [
        Case(policy(of__evaluation=flat(0)), "16m", of()),
        Case(policy(of__evaluation=flat(0)), "15m"),
        Case(policy(), "5m", of()),
        Case(policy(), "4m"),
        Case(policy(of__evaluation=f"0+60x{MINUTES}"), "35m"),
        Case(policy() | own("precision_operator_halted", flat(1)), "35m"),
        Case(policy() | {f"precision_operator_halted{{{ELSEWHERE}}}": flat(1)}, "35m", of()),
        Case(policy(of__evaluation=flat(0)) | paused(1), "35m"),
        Case(policy(of__evaluation=flat(0)) | paused(0), "16m", of()),
    ],
    "PolicyPaused": [
        Case(PAUSED, "60m", of()),
        Case(PAUSED, "59m"),
        Case(by_standby(PAUSED), "90m"),
        Case(policy() | paused(0), "90m"),
    ],
    "WorkloadsWithoutData": [
        Case(policy(state__unknown=flat(2)) | paused(1), "35m"),
        Case(policy(state__unknown=flat(2)), "15m", of(state="unknown"), "2"),
        Case(policy(state__unknown=flat(2)), "14m"),
        Case(policy(state__unknown=flat(0), state__moved=flat(2)), "35m"),
    ],
    "AdmissionNotEnforced": [
        Case(policy(type__AdmissionEnforced=flat(0)), "5m", of(type="AdmissionEnforced")),
        Case(policy(type__AdmissionEnforced=flat(0)), "4m"),
        Case(policy(type__AdmissionEnforced=flat(1)), "35m"),
        Case(policy(type__AdmissionEnforced=flat(-1)), "35m"),
        Case(policy("Pending", type__AdmissionEnforced=flat(0)), "35m"),
    ],
    "WritesRefused": [
        Case(policy(type__WritesAccepted=flat(0)), "5m", of(type="WritesAccepted")),
        Case(policy(type__WritesAccepted=flat(0)), "4m"),
        Case(policy(type__WritesAccepted=flat(1)), "35m"),
    ],
    "PodsInWrongMode": [
        Case(policy(type__Stuck=flat(1)), "1m", of(type="Stuck")),
        Case(policy(type__Stuck=flat(0)), "35m"),
    ],
    "WeightsSuspect": [
        Case(policy(type__WeightsSuspect=flat(1)), "1m", of(type="WeightsSuspect")),
        Case(policy(type__WeightsSuspect=flat(0)), "35m"),
    ],
    "OperatorAbsent": [
        Case({"up": flat(1)}, "5m", {}),
        Case({"up": flat(1)}, "4m"),
        Case(own(HEARTBEAT, flat(0)), "35m"),
    ],
    "OperatorHeartbeatOld": [
        Case(own(HEARTBEAT, flat(59)), "3m", THE_TARGET, "2m 1s"),
        Case(own(HEARTBEAT, flat(60)), "3m"),
        Case(own(HEARTBEAT, f"0+60x{MINUTES}"), "35m"),
    ],
    "OperatorHasNoLeader": [
        Case(by_standby(LEADS), "2m", SYSTEM),
        Case(by_standby(LEADS), "1m"),
        Case(by_standby(LEADS) | {k.replace("10.0.0.1", "10.0.0.2"): v for k, v in LEADS.items()}, "35m"),
    ],
    "OperatorHalted": [
        Case(own("precision_operator_halted", flat(1)), "60m", SYSTEM),
        Case(own("precision_operator_halted", flat(1)), "59m"),
        Case(own("precision_operator_halted", flat(0)), "90m"),
    ],
    "PrometheusCircuitOpen": [
        Case(
            own("precision_operator_prometheus_circuit_state", "2 2 1 2 2 2", ',endpoint="default"'),
            "5m",
            {**SYSTEM, "endpoint": "default"},
        ),
        Case(own("precision_operator_prometheus_circuit_state", flat(2), ',endpoint="default"'), "4m"),
        Case(own("precision_operator_prometheus_circuit_state", flat(0), ',endpoint="default"'), "35m"),
        Case(by_standby(own("precision_operator_prometheus_circuit_state", flat(1), ',endpoint="default"')), "35m"),
    ],
    "PassesFailing": [
        Case(passes(NewerVersion="0+1x90"), "12m", {**SYSTEM, "result": "NewerVersion"}),
        Case(passes(NewerVersion="0+1x90"), "10m"),
        Case(passes(InternalError="0+1x90", success="0+60x90"), "12m", {**SYSTEM, "result": "InternalError"}),
        Case(passes(Forbidden="0+1x90"), "12m", {**SYSTEM, "result": "Forbidden"}),
        Case(passes(Forbidden="0+1x90", success="0+1x90"), "35m"),
        Case(passes(NewerVersion=flat(9)), "35m"),
        Case(by_standby(passes(NewerVersion="0+1x90")), "35m"),
    ],
    "WorkqueueOld": [
        Case(own("workqueue_oldest_seconds", flat(61)), "5m", THE_TARGET, "1m 1s"),
        Case(own("workqueue_oldest_seconds", flat(61)), "4m"),
        Case(own("workqueue_oldest_seconds", flat(60)), "35m"),
        Case(by_standby(own("workqueue_oldest_seconds", flat(61))), "35m"),
    ],
    "MessagesUndelivered": [
        Case(own("precision_notifications_total", "0 0 1x20", UNDELIVERED), "10m", {**SYSTEM, "channel": "chat"}),
        Case(own("precision_notifications_total", "_ _ 1x20", UNDELIVERED), "10m", {**SYSTEM, "channel": "chat"}),
        Case(own("precision_notifications_total", "0x70 1x20", UNDELIVERED), "75m", {**SYSTEM, "channel": "chat"}),
        Case(own("precision_notifications_total", flat(1), UNDELIVERED), "90m"),
        Case(own("precision_notifications_total", "0+1x90", ',channel="chat",result="Failed"'), "10m"),
    ],
    "ReportsFailing": [
        Case(
            own("precision_report_errors_total", "0+1x90", ',reason="Forbidden"'),
            "17m",
            {**SYSTEM, "reason": "Forbidden"},
        ),
        Case(own("precision_report_errors_total", "0+1x90", ',reason="Forbidden"'), "15m"),
        Case(own("precision_report_errors_total", flat(3), ',reason="Forbidden"'), "35m"),
    ],
    "AdmissionWebhookFailing": [
        Case(own("precision_operator_admission_reviews_total", "0 0 1x20", REVIEWS), "5m", SYSTEM),
        Case(own("precision_operator_admission_reviews_total", "_ _ 1x20", REVIEWS), "5m", SYSTEM),
        Case(own("precision_operator_admission_reviews_total", "0x20 1x20", REVIEWS), "25m", SYSTEM),
        Case(own("precision_operator_admission_reviews_total", flat(1), REVIEWS), "90m"),
    ],
}


def judge(directory: Path, rules: list[Json], tests: list[Json]) -> None:
    groups = [{"name": "all", "rules": rules}]
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}))
    content = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": tests}
    (directory / "test.yaml").write_text(yaml.safe_dump(content, width=10**6))
    done = promtool("test", "rules", directory / "test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def rendered(alert: str, case: Case) -> Json:
    """The annotations with the alert's labels and value in them."""
    labels = case.labels or {}
    found = {
        name: re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: labels[label[1]], text)
        for name, text in ALERTS[alert]["annotations"].items()
    }
    return {name: re.sub(r"\{\{ \$value.*?\}\}", case.value, text) for name, text in found.items()}


def scene(series: Series) -> Json:
    return {"interval": "1m", "input_series": [{"series": key, "values": values} for key, values in series.items()]}


@pytest.mark.parametrize("alert", CASES)
def test_an_alert_fires_and_does_not_just_below(alert: str, tmp_path: Path) -> None:
    tests = []
    for case in CASES[alert]:
        labels = {"severity": ALERTS[alert]["labels"]["severity"], **(case.labels or {})}
        fired = [] if case.labels is None else [{"exp_labels": labels, "exp_annotations": rendered(alert, case)}]
        looked = {"eval_time": case.at, "alertname": alert, "exp_alerts": fired}
        tests.append({**scene(case.series), "alert_rule_test": [looked]})
    (group,) = (group["rules"] for group in GROUPS if ALERTS[alert] in group["rules"])
    judge(tmp_path, [rule for rule in group if rule.get("alert", alert) == alert], tests)


@pytest.mark.parametrize("alert", ALERTS)
def test_each_alert_is_seen_to_fire_and_not_to(alert: str) -> None:
    assert {case.labels is None for case in CASES.get(alert, [])} == {True, False}


def test_the_rules_are_what_prometheus_takes() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
