"""What lets a careful person try it: observe first, halt everything, advance in windows, a few at a time."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import (
    HOT,
    NO_SPEED,
    PATIENCE_SECONDS,
    Scene,
    assert_all_in_fallback,
    break_two,
    mode_of_a_new_pod,
    staged,
)
from tests.support.shadow_trainers import ShadowTrainers
from tests.support.side_by_side import LITERAL, requested, side_by_side

OVERFLOWS, STEPS = "genesis_fp16_overflow_steps_total", "genesis_fp16_training_steps_total"
WHOLE: Json = {"criteria": NO_SPEED, "strategy": {"steps": [{"setWeight": 100}]}}


def patch(scene: Scene, **spec: object) -> None:
    scene.kubectl("patch", "ppol", "fleet", "-n", scene.namespace, "--type=merge", "-p", json.dumps({"spec": spec}))


def requests(scene: Scene) -> dict[str, str]:
    """What the pods are asked for."""
    annotations = {name: pod["metadata"].get("annotations", {}) for name, pod in scene.pods().items()}
    return {name: found.get("precision.genesis.ai/request", "") for name, found in annotations.items()}


def events(scene: Scene, reason: str) -> list[str]:
    """The messages of the policy's Events with a reason."""
    items = scene.kubectl.json("get", "events", "-n", scene.namespace, "--field-selector", f"reason={reason}")["items"]
    return [item.get("message") or item.get("note", "") for item in items]


def evaluated_again(scene: Scene) -> None:
    """Until the metrics were read several times more."""

    def reads() -> float:
        return sum(s.value for s in scene.samples() if s.name == "precision_operator_prometheus_queries_total")

    before = reads()
    wait_for(lambda: reads() >= before + 60, what="more evaluations", seconds=PATIENCE_SECONDS)


def overflows(scene: Scene) -> float:
    """The share of the namespace's steps that overflowed lately."""
    rates = (f'sum(rate({name}{{namespace="{scene.namespace}"}}[4s]))' for name in (OVERFLOWS, STEPS))
    return sum(float(sample["value"][1]) for sample in scene.prometheus.query(" / ".join(rates)))


def halted(scene: Scene) -> list[float]:
    return [s.value for s in scene.samples() if s.name == "precision_operator_halted"]


def test_an_observing_policy_reports_what_it_would_do_and_does_it_once_it_is_enforced(scene: Scene) -> None:
    scene.operators.start("one")
    scene.apply(policy(**WHOLE, enforcement="Observe"))
    found = scene.condition("WouldAct", "RolloutStarted")
    assert (found["status"], found["message"].startswith("would promote: step 1 of 1")) == ("True", True)
    evaluated_again(scene)
    assert set(requests(scene).values()) == {""}
    assert scene.assignment().get("enforce", False) is False
    assert scene.in_mode("fp32") == {*HOT, "literal"}
    (said,) = events(scene, "WouldAct")
    assert said == found["message"]
    patch(scene, enforcement="Enforce")
    scene.wait_phase("Healthy")
    patch(scene, enforcement="Observe")
    scene.condition("Progressing", "Observing")
    break_two(scene)
    wait_for(
        lambda: "would roll back" in scene.status().get("message", ""),
        what="the breach to be reported",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{scene.status()}\n{scene.operators.logs()}",
    )
    evaluated_again(scene)
    assert scene.in_mode("fp16") == {*HOT, "literal"}
    patch(scene, enforcement="Enforce")
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)


def test_one_switch_stops_a_rollback_and_a_rollout_in_two_namespaces_and_each_goes_on_without_it(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    with side_by_side(control_plane, tmp_path, ("back", "forth"), operator=operator_kubeconfig) as scenes:
        back, forth = scenes.values()
        back.apply(policy(**WHOLE))
        back.wait_phase("Healthy")
        switch = ("configmap", "precision-halt", "-n", back.operators.system)
        back.kubectl("create", *switch, "--from-literal=reason=maintenance")
        assert back.condition("Progressing", "Halted")["message"].endswith("halts every policy: maintenance")
        assert halted(back) == [1.0]
        before = back.assignment()["metadata"]["resourceVersion"]
        break_two(back)
        forth.apply(policy(**WHOLE))
        forth.condition("Progressing", "Halted")
        wait_for(lambda: overflows(back) > 0.3, what="the breach in Prometheus", seconds=PATIENCE_SECONDS)
        assert (mode_of_a_new_pod(back, HOT[0]), mode_of_a_new_pod(forth, HOT[0])) == ("fp16", "fp32")
        assert back.assignment()["metadata"]["resourceVersion"] == before
        assert (forth.members(), requested(forth)) == ([], {})
        back.kubectl("delete", *switch)
        back.wait_phase("Held")
        assert_all_in_fallback(back)
        forth.wait_phase("Healthy")
        assert halted(back) == [0.0]


def test_a_rollout_waits_for_its_window_and_a_rollback_does_not(scene: Scene) -> None:
    now = datetime.now(UTC)
    opens, closes = now + timedelta(hours=6), now + timedelta(hours=7)
    closed: Json = {"windows": [{"start": f"{opens:%H:%M}", "end": f"{closes:%H:%M}"}]}
    scene.operators.start("one")
    scene.apply(policy(**WHOLE, schedule=closed))
    assert f"{opens:%Y-%m-%dT%H:%M}" in scene.condition("Progressing", "OutsideSchedule")["message"]
    patch(scene, schedule={"windows": None})
    scene.wait_phase("Healthy")
    patch(scene, schedule=closed)
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)


def test_no_more_are_on_their_way_at_once_than_the_cap_allows(
    kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path
) -> None:
    names, cap = [f"literal-{index}" for index in range(6)], 2
    shadow, settings = ShadowTrainers(kubectl, namespace), {"maxPromotingWorkloads": cap, "restartBudget": 6}
    with staged(kubectl, shadow, tmp_path, operator=operator_kubeconfig, settings=settings) as scene:
        scene.apply(*(deployment(name, hot=False) for name in names))
        wait_for(lambda: len(shadow.modes()) == len(names), what="pods of all", seconds=PATIENCE_SECONDS)
        before = {name: pod["metadata"]["uid"] for name, pod in scene.pods().items()}
        shadow.capacity = dict.fromkeys(names, 0)  # who is taken away does not come back
        scene.operators.start("one")
        scene.apply(policy(**WHOLE, rollback={"ackTimeout": "10m"}))
        wait_for(lambda: len(scene.members()) == cap, what="the first members", seconds=PATIENCE_SECONDS)

        def changed() -> set[str]:
            return {name for name, pod in scene.pods().items() if pod["metadata"]["uid"] != before[name]}

        wait_for(lambda: changed() == set(scene.members()), what="their new pods", seconds=PATIENCE_SECONDS)
        evaluated_again(scene)
        assert (len(scene.members()), changed()) == (cap, set(scene.members()))
        shadow.capacity = {}
        scene.wait_phase("Healthy")
        assert scene.members() == names


def test_the_cap_counts_the_workloads_of_two_namespaces(
    control_plane: ControlPlane, operator_kubeconfig: Path, tmp_path: Path
) -> None:
    cap, names = 2, ("first", "second")
    settings = {"maxPromotingWorkloads": cap}
    with side_by_side(control_plane, tmp_path, names, operator=operator_kubeconfig, settings=settings) as scenes:
        first, second = scenes.values()
        for scene in (first, second):  # nobody reports the target
            scene.shadow.unresponsive, scene.shadow.capacity = set(HOT), {LITERAL: 0}
        first.apply(policy(**WHOLE, rollback={"ackTimeout": "10m"}))
        wait_for(lambda: len(first.members()) == cap, what="the first two", seconds=PATIENCE_SECONDS)
        second.apply(policy(**WHOLE, rollback={"ackTimeout": "10m"}))
        second.condition("Progressing", "PromotionCap")
        evaluated_again(first)
        assert (len(first.members()), second.members()) == (cap, [])
        first.shadow.unresponsive, first.shadow.capacity = set(), {}
        first.wait_phase("Healthy")
        wait_for(lambda: len(second.members()) == cap, what="two of the second", seconds=PATIENCE_SECONDS)
        evaluated_again(second)
        assert len(second.members()) == cap
        second.shadow.unresponsive, second.shadow.capacity = set(), {}
        second.wait_phase("Healthy")
