"""Alertmanager's webhook: who is woken by what."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from precision_operator.api.policy import PolicyKey
from precision_operator.api.selector import Selector
from precision_operator.controller.alerts import Alerts
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.port import DEPLOYMENTS, PODS, POLICIES, REPLICASETS
from precision_operator.receiver.alertmanager import MAX_ALERTS, Alert, parse_webhook
from precision_operator.runtime.ratelimit import RateLimiter
from tests.support import trainers
from tests.support.bodies import Json
from tests.support.manual_clock import ManualClock
from tests.support.recorded_kinds import RECORDED


def policy(name: str, **labels: str) -> Json:
    metadata = {"name": name, "namespace": "default", "uid": f"uid-{name}"}
    return {"metadata": metadata, "spec": {"selector": {"matchLabels": labels}}}


def filled(*policies: Json) -> Inventory:
    """These policies and the trainer ``train``; else the policy p that selects it, and the policy q with nothing."""
    labels = {"app": "train", "tier": "a"}
    bodies = [
        *((POLICIES, body) for body in policies or (policy("p", app="train"), policy("q", app="other"))),
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


@pytest.mark.parametrize("label", [row.alert_label for kind, row in RECORDED.items() if kind != "Pod"])
def test_an_alert_names_a_workload_by_the_label_of_its_kind(label: str) -> None:
    labels = {"namespace": "ns", label: "train", "job": "kube-state-metrics"}
    assert parse_webhook(webhook(labels)) == (Alert("ns", workload="train"),)


@pytest.mark.parametrize(
    "body", [[], "x", {}, webhook(version="3"), {"version": "4"}, webhook(*({} for _ in range(MAX_ALERTS + 1)))]
)
def test_what_is_no_webhook_is_refused_with_what_was_expected(body: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_webhook(body)


def waking(
    inventory: Inventory, clock: ManualClock, *, leading: Callable[[], bool] = lambda: True
) -> tuple[Alerts, list[PolicyKey]]:
    """Alerts that wake one policy a second, and whom they woke."""
    seen: list[PolicyKey] = []
    return Alerts(inventory, leading=leading, wake=seen.append, limiter=RateLimiter(1.0, 1, clock)), seen


@asynccontextmanager
async def running(alerts: Alerts) -> AsyncIterator[None]:
    """With its wakes going on."""
    task = asyncio.create_task(alerts.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


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
async def test_an_alert_wakes_the_policies_that_it_concerns(alert: Alert, woken: set[str]) -> None:
    clock = ManualClock()
    alerts, seen = waking(filled(), clock)
    async with running(alerts):
        assert await alerts.receive([alert, alert]) == len(woken)
        await clock.advance(5)
    assert {key.name for key in seen} == woken


async def test_a_leader_that_leads_no_more_wakes_nobody() -> None:
    clock = ManualClock()
    alerts, seen = waking(filled(), clock, leading=lambda: False)
    async with running(alerts):
        await alerts.receive([Alert("default")])
        await clock.advance(5)
    assert (seen, alerts.waiting) == ([], 0)


async def test_what_exceeds_the_rate_waits_once_for_each_policy() -> None:
    clock = ManualClock()
    inventory = Inventory()
    for number in range(3):
        inventory.observe(POLICIES, policy(f"p{number}", app="x"), deleted=False)
    alerts, seen = waking(inventory, clock)
    async with running(alerts):
        await alerts.receive([Alert("default")])
        await clock.advance(0.5)
        assert len(seen) == 1
        await alerts.receive([Alert("default", policy="p2")])
        assert alerts.waiting == 2
        await clock.advance(2)
    assert sorted(key.name for key in seen) == ["p0", "p1", "p2"]


async def test_a_namespace_with_many_alerts_lets_others_have_their_turn() -> None:
    clock = ManualClock()
    inventory = Inventory()
    for number in range(50):
        inventory.observe(POLICIES, policy(f"p{number}", app="x"), deleted=False)
    other = policy("quiet", app="x")
    other["metadata"]["namespace"] = "zz-other"
    inventory.observe(POLICIES, other, deleted=False)
    alerts, seen = waking(inventory, clock)
    async with running(alerts):
        await alerts.receive([Alert("default"), Alert("zz-other")])
        await clock.advance(2.1)
    assert PolicyKey("zz-other", "quiet") in seen


async def test_an_alert_about_a_pod_looks_at_no_policy_that_asks_for_another_label(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inventory = filled()
    for number in range(200):
        inventory.observe(POLICIES, policy(f"other-{number}", app=f"other-{number}"), deleted=False)
    looked = 0
    matches = Selector.matches

    def counted(selector: Selector, labels: Mapping[str, str]) -> bool:
        nonlocal looked
        looked += 1
        return matches(selector, labels)

    monkeypatch.setattr(Selector, "matches", counted)
    alerts, _ = waking(inventory, ManualClock())
    assert await alerts.receive([Alert("default", pod="train-abc-1")]) == 1
    assert looked == 1


@pytest.mark.parametrize(
    "spec",
    [
        {"matchLabels": {"app": "train", "tier": "a"}},
        {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "gone", "operator": "DoesNotExist"}]},
    ],
)
def test_every_form_of_selector_is_found_by_a_pod(spec: Json) -> None:
    inventory = filled({**policy("p"), "spec": {"selector": spec}})
    assert inventory.concerned_by_pod("default", "train-abc-1") == {PolicyKey("default", "p")}


def test_a_label_longer_than_any_name_names_nobody() -> None:
    assert parse_webhook(webhook({"namespace": "n" * 254}, {"namespace": "ns", "pod": "p" * 1_000_000})) == (
        Alert("ns"),
    )


def test_a_refusal_quotes_a_bounded_part_of_what_was_found() -> None:
    with pytest.raises(ValueError, match="expected a webhook payload") as refused:
        parse_webhook(webhook(version="\x1b[2J" * 100_000))
    assert len(str(refused.value)) < 100
    assert str(refused.value).isprintable()
