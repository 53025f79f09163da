"""Alertmanager's webhook: who is woken by what."""

import pytest

from precision_operator.kube.port import DEPLOYMENTS, PODS, POLICIES, REPLICASETS
from precision_operator.shell.alerts import Alerts
from precision_operator.shell.inventory import Inventory, PolicyKey
from precision_operator.signals.alertmanager import MAX_ALERTS, Alert, parse_webhook
from tests.support import trainers
from tests.support.bodies import Json


def policy(name: str, **labels: str) -> Json:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"selector": {"matchLabels": labels}}}


def filled() -> Inventory:
    """The policy p with the trainer ``train``, and the policy q with nothing."""
    labels = {"app": "train"}
    bodies = [
        (POLICIES, policy("p", **labels)),
        (POLICIES, policy("q", app="other")),
        (DEPLOYMENTS, trainers.deployment("train", labels=labels)),
        (REPLICASETS, trainers.replicaset("train")),
        (PODS, trainers.pod("train", labels=labels)),
    ]
    inventory = Inventory()
    for kind, body in bodies:
        inventory.observe(kind, {**body, "metadata": {"namespace": "default", **body["metadata"]}}, deleted=False)
    return inventory


def webhook(*labels: object, version: str = "4") -> dict[str, object]:
    """The body as Alertmanager's documentation has it, with these labels on its alerts."""
    about = {"status": "firing", "annotations": {}, "startsAt": "2026-11-21T12:00:00Z"}
    alerts = [{**about, "labels": found} for found in labels]
    return {"version": version, "groupKey": "{}", "status": "firing", "receiver": "precision", "alerts": alerts}


def test_alerts_that_name_no_namespace_are_left_out_and_repeated_ones_counted_once() -> None:
    named = {"alertname": "OverflowHigh", "namespace": "ns", "pod": "p"}
    assert parse_webhook(webhook(named, named, {"alertname": "Watchdog"}, {"namespace": 3}, None)) == (
        Alert("ns", pod="p"),
    )


@pytest.mark.parametrize("label", ["deployment", "statefulset", "job_name", "replicaset"])
def test_an_alert_names_a_workload_by_the_label_of_its_kind(label: str) -> None:
    labels = {"namespace": "ns", label: "train", "job": "kube-state-metrics"}
    assert parse_webhook(webhook(labels)) == (Alert("ns", workload="train"),)


@pytest.mark.parametrize(
    "body", [[], "x", {}, webhook(version="3"), {"version": "4"}, webhook(*({} for _ in range(MAX_ALERTS + 1)))]
)
def test_what_is_no_webhook_is_refused_with_what_was_expected(body: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_webhook(body)


@pytest.mark.parametrize(
    ("alert", "woken"),
    [
        (Alert("default"), {"p", "q"}),
        (Alert("default", policy="q"), {"q"}),
        (Alert("default", policy="gone"), set()),
        (Alert("default", workload="train"), {"p"}),
        (Alert("default", pod="train-abc-1"), {"p"}),
        (Alert("default", pod="somebody-else-0"), set()),
        (Alert("other"), set()),
    ],
)
def test_an_alert_wakes_the_policies_that_it_concerns(alert: Alert, woken: set[str]) -> None:
    seen: list[PolicyKey] = []
    alerts = Alerts(filled(), leading=lambda: True, wake=seen.append)
    assert alerts.receive([alert, alert]) == len(woken)
    assert {key.name for key in seen} == woken


def test_a_standby_wakes_nobody() -> None:
    seen: list[PolicyKey] = []
    assert Alerts(filled(), leading=lambda: False, wake=seen.append).receive([Alert("default")]) is None
    assert seen == []
