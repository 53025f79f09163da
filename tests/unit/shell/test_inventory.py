"""The inventory's books: who is woken by what, and who selects whom."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.selector import parse_selector
from precision_operator.kube.workloads.deployment import DeploymentAdapter
from precision_operator.shell.inventory import Inventory, Kind, PolicyKey
from tests.unit.kube import bodies as b

KEY = PolicyKey("default", "p")


def policy(selector: dict[str, Any], *, name: str = "p", uid: str = "pp") -> dict[str, Any]:
    return {"metadata": {"namespace": "default", "name": name, "uid": uid}, "spec": {"selector": selector}}


def filled() -> Inventory:
    inventory = Inventory(DeploymentAdapter())
    inventory.observe(Kind.POLICIES, policy({"matchLabels": {"app": "train"}}), deleted=False)
    inventory.observe(Kind.WORKLOADS, b.deployment(b.hot_spec()), deleted=False)
    inventory.observe(Kind.PODS, b.pod(b.hot_spec()), deleted=False)
    return inventory


def names(inventory: Inventory, selector: dict[str, Any]) -> list[str]:
    return [view.name for view in inventory.selected("default", parse_selector(selector))]


TRAIN = {"matchLabels": {"app": "train"}}


def test_workloads_come_with_their_pods_in_whatever_order() -> None:
    for bodies in ([0, 1], [1, 0]):
        inventory = Inventory(DeploymentAdapter())
        for which in bodies:
            kind = (Kind.WORKLOADS, Kind.PODS)[which]
            inventory.observe(kind, (b.deployment(b.hot_spec()), b.pod(b.hot_spec()))[which], deleted=False)
        (view,) = inventory.selected("default", parse_selector(TRAIN))
        assert [pod.name for pod in view.pods] == ["train-abc-1"]
        assert view.rolled_out


def test_what_changes_nothing_wakes_nobody() -> None:
    inventory = filled()
    body = b.deployment(b.hot_spec())
    body["metadata"]["resourceVersion"] = "99"
    body["status"]["conditions"] = [{"type": "Progressing"}]
    assert inventory.observe(Kind.WORKLOADS, body, deleted=False) == frozenset()
    pod = b.pod(b.hot_spec(), podIP="10.0.0.1")
    assert inventory.observe(Kind.PODS, pod, deleted=False) == frozenset()
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert inventory.observe(Kind.PODS, pod, deleted=False) == {KEY}
    assert inventory.observe(Kind.WORKLOADS, b.deployment(b.hot_spec(), paused=True), deleted=False) == {KEY}


def test_a_workload_that_leaves_the_selector_wakes_the_policy_it_left() -> None:
    inventory = filled()
    moved = b.deployment(b.hot_spec(), labels={"app": "other"})
    assert inventory.observe(Kind.WORKLOADS, moved, deleted=False) == {KEY}
    assert names(inventory, TRAIN) == []
    assert inventory.disagreeing("default", parse_selector(TRAIN)) == ("train",)


def test_labels_that_disagree_are_marked() -> None:
    inventory = Inventory(DeploymentAdapter())
    inventory.observe(Kind.WORKLOADS, b.deployment(b.hot_spec(), labels={"only": "inner"}), deleted=False)
    (view,) = inventory.selected("default", parse_selector({"matchLabels": {"only": "inner"}}))
    assert view.labels_disagree
    assert not inventory.selected("default", parse_selector(TRAIN))[0].labels_disagree


def test_deletions_are_followed_and_late_ones_do_not_hit_a_successor() -> None:
    inventory = filled()
    successor = b.deployment(b.hot_spec(), uid="u-2")
    inventory.observe(Kind.WORKLOADS, successor, deleted=False)
    inventory.observe(Kind.WORKLOADS, b.deployment(b.hot_spec(), uid="u-1"), deleted=True)
    assert names(inventory, TRAIN) == ["train"]
    assert inventory.observe(Kind.WORKLOADS, successor, deleted=True) == {KEY}
    assert names(inventory, TRAIN) == []
    inventory.observe(Kind.POLICIES, policy(TRAIN, uid="new"), deleted=False)
    inventory.observe(Kind.POLICIES, policy(TRAIN), deleted=True)
    assert inventory.policies() == (KEY,)


def test_an_evicted_or_orphaned_pod_is_no_pod_of_the_workload() -> None:
    for change in ({"phase": "Failed"}, None):
        inventory = filled()
        body = b.pod(b.hot_spec(), **(change or {}))
        if change is None:
            body["metadata"]["ownerReferences"] = []
        assert inventory.observe(Kind.PODS, body, deleted=False) == {KEY}
        assert inventory.selected("default", parse_selector(TRAIN))[0].pods == ()
        assert inventory.count(Kind.PODS) == 0


def test_a_new_list_forgets_what_it_lacks_in_its_namespace_only() -> None:
    inventory = filled()
    inventory.observe(Kind.PODS, b.pod(b.hot_spec(), namespace="other", uid="p-2"), deleted=False)
    assert not inventory.ready
    assert inventory.relisted(Kind.PODS, "other", []) == frozenset()
    assert inventory.count(Kind.PODS) == 1
    assert inventory.relisted(Kind.PODS, None, []) == {KEY}
    assert inventory.relisted(Kind.WORKLOADS, None, ["u-1"]) == frozenset()
    assert inventory.relisted(Kind.POLICIES, None, ["pp"]) == frozenset()
    assert inventory.ready
    assert inventory.relisted(Kind.POLICIES, None, []) == {KEY}
    assert inventory.policy(KEY) is None


def test_of_several_namespaces_each_must_have_been_listed() -> None:
    inventory = Inventory(DeploymentAdapter(), namespaces=("a", "b"))
    for kind in Kind:
        inventory.relisted(kind, "a", [])
    assert not inventory.ready
    inventory.relisted(Kind.PODS, "b", [])
    inventory.relisted(Kind.POLICIES, "b", [])
    assert not inventory.ready
    inventory.relisted(Kind.WORKLOADS, "b", [])
    assert inventory.ready
    inventory.unsynced(Kind.PODS)
    assert not inventory.ready


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=3)
SELECTORS = st.fixed_dictionaries(
    {
        "matchLabels": st.dictionaries(st.sampled_from("abc"), st.sampled_from("xyz"), max_size=2),
        "matchExpressions": st.lists(
            st.fixed_dictionaries(
                {
                    "key": st.sampled_from("abc"),
                    "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]),
                    "values": st.lists(st.sampled_from("xyz"), min_size=1, max_size=2),
                }
            ),
            max_size=2,
        ),
    }
)


def oracle(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Kubernetes' rules, spelled out as the documentation has them; an empty selector selects nothing here."""
    if not selector["matchLabels"] and not selector["matchExpressions"]:
        return False
    for key, value in selector["matchLabels"].items():
        if key not in labels or labels[key] != value:
            return False
    for rule in selector["matchExpressions"]:
        key, values = rule["key"], rule["values"]
        if rule["operator"] == "In" and (key not in labels or labels[key] not in values):
            return False
        if rule["operator"] == "NotIn" and key in labels and labels[key] in values:
            return False
        if rule["operator"] == "Exists" and key not in labels:
            return False
        if rule["operator"] == "DoesNotExist" and key in labels:
            return False
    return True


@given(st.lists(LABELS, max_size=4), SELECTORS)
def test_selection_is_kubernetes_own(fleet: list[dict[str, str]], selector: dict[str, Any]) -> None:
    inventory = Inventory(DeploymentAdapter())
    inventory.observe(Kind.POLICIES, policy(selector), deleted=False)
    for index, labels in enumerate(fleet):
        body = b.deployment(b.hot_spec(), name=f"w{index}", uid=f"u{index}")
        body["spec"]["template"]["metadata"]["labels"] = json.loads(json.dumps(labels))
        woken = inventory.observe(Kind.WORKLOADS, body, deleted=False)
        assert (woken == {KEY}) is oracle(selector, labels)
        assert inventory.policies_for_workload("default", f"w{index}") == woken
    expected = [f"w{index}" for index, labels in enumerate(fleet) if oracle(selector, labels)]
    assert names(inventory, selector) == expected
