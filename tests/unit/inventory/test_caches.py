"""What the inventory knows: who is woken by what, whose a pod is, and who selects whom."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_operator.api.selector import parse_selector
from precision_operator.inventory.caches import WATCHED, Inventory
from precision_operator.kube.port import ASSIGNMENTS, DEPLOYMENTS, PODS, POLICIES, REPLICASETS
from tests.support import objects as b
from tests.support.inventories import (
    DEPLOYMENT,
    KEY,
    NOBODY,
    OTHER,
    POD,
    POLICY,
    REPLICASET,
    TRAIN,
    Event,
    assignment,
    filled,
)


def names(inventory: Inventory, selector: dict[str, Any] = TRAIN) -> list[str]:
    return [view.name for view in inventory.selected("default", parse_selector(selector))]


def pods(inventory: Inventory, selector: dict[str, Any] = TRAIN) -> list[list[str]]:
    views = inventory.selected("default", parse_selector(selector))
    return [[pod.uid for pod in view.pods] for view in views]


@pytest.mark.parametrize("order", list(itertools.permutations([POLICY, DEPLOYMENT, REPLICASET, POD])))
def test_a_pod_belongs_to_its_workload_in_whatever_order_they_are_seen(order: tuple[Event, ...]) -> None:
    inventory = filled(*order)
    assert pods(inventory) == [["p-1"]]
    ready = b.pod(conditions=[{"type": "Ready", "status": "True"}])
    assert inventory.observe(PODS, ready, deleted=False) == {KEY}


def test_names_and_labels_prove_nothing_without_the_uid() -> None:
    inventory = filled()
    forged = b.pod(uid="forged", name="train-abc-2", owner="r-of-another")
    assert inventory.observe(PODS, forged, deleted=False) == NOBODY
    foreign = b.pod(uid="foreign", namespace="elsewhere")
    assert inventory.observe(PODS, foreign, deleted=False) == NOBODY
    assert pods(inventory) == [["p-1"]]
    impostor = b.replicaset(uid="r-2", owner="d-of-another")
    assert inventory.observe(REPLICASETS, impostor, deleted=False) == NOBODY
    inventory.observe(PODS, b.pod(uid="p-2", owner="r-2"), deleted=False)
    assert pods(inventory) == [["p-1"]]


def test_a_pod_that_another_controller_adopts_leaves_its_workload() -> None:
    inventory = filled()
    other = b.deployment(b.hot_spec(), name="other", uid="d-2", labels={"team": "b"})
    inventory.observe(DEPLOYMENTS, other, deleted=False)
    inventory.observe(REPLICASETS, b.replicaset(name="other-abc", uid="r-2", owner="d-2"), deleted=False)
    inventory.observe(POLICIES, b.policy({"matchLabels": {"team": "b"}}, name="q", uid="qq"), deleted=False)
    assert inventory.observe(PODS, b.pod(owner="r-2"), deleted=False) == {KEY, OTHER}
    assert pods(inventory) == [[]]
    assert pods(inventory, {"matchLabels": {"team": "b"}}) == [["p-1"]]
    assert inventory.count(PODS) == 1


def test_a_replicaset_that_another_deployment_adopts_takes_its_pods_along() -> None:
    inventory = filled()
    other = b.deployment(b.hot_spec(), name="other", uid="d-2", labels={"app": "train"})
    inventory.observe(DEPLOYMENTS, other, deleted=False)
    assert inventory.observe(REPLICASETS, b.replicaset(owner="d-2"), deleted=False) == {KEY}
    assert dict(zip(names(inventory), pods(inventory), strict=True)) == {"other": ["p-1"], "train": []}


def test_without_its_replicaset_a_pod_is_nobodys_until_it_is_back() -> None:
    inventory = filled()
    assert inventory.observe(REPLICASETS, b.replicaset(), deleted=True) == {KEY}
    assert pods(inventory) == [[]]
    assert inventory.observe(REPLICASETS, b.replicaset(), deleted=False) == {KEY}
    assert inventory.observe(REPLICASETS, b.replicaset(owner=None), deleted=False) == {KEY}
    assert pods(inventory) == [[]]
    old_revision = b.replicaset(uid="r-old")
    assert inventory.observe(REPLICASETS, old_revision, deleted=False) == NOBODY


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_an_evicted_or_finished_pod_is_no_pod_of_the_workload(phase: str) -> None:
    inventory = filled()
    body = b.pod(phase=phase)
    assert inventory.observe(PODS, body, deleted=False) == {KEY}
    assert pods(inventory) == [[]]
    assert inventory.count(PODS) == 0
    assert inventory.observe(PODS, body, deleted=False) == NOBODY
    assert inventory.observe(PODS, body, deleted=True) == NOBODY
    assert inventory.observe(PODS, b.pod(), deleted=False) == {KEY}


BARE = b.pod_spec(b.container())


ASKING = b.deployment(BARE, labels={"precision.genesis.ai/inject": "trainer"})


@pytest.mark.parametrize(
    ("events", "hot"),
    [
        ([], True),
        ([REPLICASET, POD], True),
        ([REPLICASET, (PODS, b.pod(BARE))], False),
        ([REPLICASET, (PODS, b.pod(BARE)), (PODS, b.pod(uid="p-2", name="train-abc-2"))], True),
    ],
)
def test_a_template_with_the_label_alone_is_hot_unless_its_pods_show_that_nothing_injects(
    events: list[Event], hot: bool
) -> None:
    (view,) = filled(POLICY, (DEPLOYMENTS, ASKING), *events).selected("default", parse_selector(TRAIN))
    assert view.hot is hot


@pytest.mark.parametrize("more", [{"hostNetwork": True}, {"containers": [b.container("another")]}])
def test_a_template_whose_label_cannot_be_obeyed_is_not_hot(more: dict[str, Any]) -> None:
    body = b.deployment({**BARE, **more}, labels={"precision.genesis.ai/inject": "trainer"})
    (view,) = filled(POLICY, (DEPLOYMENTS, body)).selected("default", parse_selector(TRAIN))
    assert not view.hot


def test_a_template_that_gets_the_label_is_looked_at_again() -> None:
    inventory = filled(POLICY, (DEPLOYMENTS, b.deployment(BARE)), REPLICASET, POD)
    assert inventory.observe(DEPLOYMENTS, ASKING, deleted=False) == {KEY}


def test_workloads_that_share_a_label_are_one() -> None:
    label = {"app": "train", "precision.genesis.ai/workload": "vit"}
    first = b.deployment(b.hot_spec(), name="vit-a", uid="d-1", labels=label, replicas=2)
    second = b.deployment(b.pod_spec(b.container(env=b.LITERAL)), name="vit-b", uid="d-2", labels=label)
    second["metadata"]["labels"] = {"app": "train"}
    inventory = filled(POLICY, (DEPLOYMENTS, second), (DEPLOYMENTS, first), REPLICASET, POD)
    inventory.observe(REPLICASETS, b.replicaset(uid="r-2", owner="d-2"), deleted=False)
    inventory.observe(PODS, b.pod(uid="p-2", owner="r-2"), deleted=False)
    (view,) = inventory.selected("default", parse_selector(TRAIN))
    assert (view.key, view.uid, view.hot, view.literal, view.replicas) == ("label/vit", "d-1", False, True, 3)
    assert [pod.uid for pod in view.pods] == ["p-1", "p-2"]
    assert view.labels_disagree, "vit-a carries no app=train of its own"


def test_what_changes_nothing_wakes_nobody() -> None:
    inventory = filled()
    body = b.deployment(b.hot_spec())
    body["metadata"]["resourceVersion"] = "99"
    body["status"]["conditions"] = [{"type": "Progressing"}]
    assert inventory.observe(DEPLOYMENTS, body, deleted=False) == NOBODY
    replicaset = b.replicaset()
    replicaset["status"] = {"readyReplicas": 1}
    assert inventory.observe(REPLICASETS, replicaset, deleted=False) == NOBODY
    chatter = b.pod(podIP="10.0.0.1", containerStatuses=[{"name": "trainer", "restartCount": 0}])
    assert inventory.observe(PODS, chatter, deleted=False) == NOBODY


def test_what_matters_wakes_the_policy() -> None:
    inventory = filled()
    requested = b.pod(annotations={"precision.genesis.ai/request": "{}"})
    assert inventory.observe(PODS, requested, deleted=False) == {KEY}
    assert inventory.observe(DEPLOYMENTS, b.deployment(b.hot_spec(), replicas=2), deleted=False) == {KEY}
    assert inventory.observe(PODS, b.pod(uid="p-2", name="train-abc-2"), deleted=False) == {KEY}
    assert inventory.observe(PODS, requested, deleted=True) == {KEY}
    assert inventory.observe(PODS, requested, deleted=True) == NOBODY
    assert inventory.observe(POLICIES, b.policy(), deleted=False) == {KEY}
    assert inventory.observe(POLICIES, b.policy(), deleted=True) == {KEY}


def test_a_workload_that_leaves_the_selector_wakes_the_policy_it_left() -> None:
    inventory = filled()
    moved = b.deployment(b.hot_spec(), labels={"app": "other"})
    assert inventory.observe(DEPLOYMENTS, moved, deleted=False) == {KEY}
    assert names(inventory) == []
    assert inventory.observe(PODS, b.pod(), deleted=True) == NOBODY


def test_an_edited_selector_counts_from_then_on() -> None:
    inventory = filled()
    edited = b.policy({"matchLabels": {"app": "other"}})
    inventory.observe(POLICIES, edited, deleted=False)
    assert inventory.observe(PODS, b.pod(), deleted=True) == NOBODY
    inventory.observe(POLICIES, b.policy(), deleted=False)
    assert inventory.observe(PODS, b.pod(), deleted=False) == {KEY}


def test_labels_that_disagree_are_marked() -> None:
    inventory = filled((DEPLOYMENTS, b.deployment(b.hot_spec(), labels={"only": "inner"})))
    (view,) = inventory.selected("default", parse_selector({"matchLabels": {"only": "inner"}}))
    assert view.labels_disagree
    assert not inventory.selected("default", parse_selector(TRAIN))[0].labels_disagree


def test_late_news_of_a_predecessor_do_not_hit_its_successor() -> None:
    inventory = filled()
    inventory.observe(DEPLOYMENTS, b.deployment(b.hot_spec(), uid="d-2"), deleted=False)
    inventory.observe(DEPLOYMENTS, b.deployment(b.hot_spec()), deleted=True)
    assert names(inventory) == ["train"]
    inventory.observe(POLICIES, b.policy(uid="new"), deleted=False)
    inventory.observe(POLICIES, b.policy(), deleted=True)
    inventory.observe(ASSIGNMENTS, assignment("q", uid="a-new"), deleted=False)
    inventory.observe(ASSIGNMENTS, assignment("q"), deleted=True)
    assert inventory.policy_keys() == (KEY, OTHER)


def test_a_new_list_forgets_what_it_lacks_in_its_namespace_only() -> None:
    inventory = filled()
    elsewhere = b.pod(namespace="other", uid="p-2", owner="r-2")
    inventory.observe(PODS, elsewhere, deleted=False)
    assert inventory.relisted(PODS, "other", []) == NOBODY
    assert inventory.count(PODS) == 1
    assert inventory.relisted(PODS, None, []) == {KEY}
    assert inventory.relisted(DEPLOYMENTS, None, ["d-1"]) == NOBODY
    assert inventory.relisted(REPLICASETS, None, ["r-1"]) == NOBODY
    assert inventory.relisted(POLICIES, None, ["pp"]) == NOBODY
    assert inventory.relisted(POLICIES, None, []) == {KEY}
    assert inventory.policy_keys() == ()


def test_a_new_list_keeps_the_successor_of_what_it_lacks() -> None:
    inventory = filled()
    inventory.observe(ASSIGNMENTS, assignment(), deleted=False)
    inventory.observe(ASSIGNMENTS, assignment(uid="a-2"), deleted=False)
    inventory.observe(POLICIES, b.policy(uid="pp-2"), deleted=False)
    assert inventory.relisted(ASSIGNMENTS, None, ["a-2"]) == NOBODY
    assert inventory.relisted(POLICIES, None, ["pp-2"]) == NOBODY
    assert (inventory.count(ASSIGNMENTS), inventory.count(POLICIES)) == (1, 1)


def test_every_kind_must_have_been_listed_in_every_namespace_that_is_watched() -> None:
    inventory = Inventory(namespaces=("a", "b"))
    for kind, namespace in itertools.product(WATCHED, ("a", "b")):
        assert not inventory.ready
        inventory.relisted(kind, namespace, [])
    assert inventory.ready


def test_a_list_of_pods_adds_those_that_no_event_has_reported() -> None:
    inventory = filled()
    changed = b.pod(annotations={"precision.genesis.ai/request": "old"})
    with inventory.pods_going() as gone:
        pass
    unseen = b.pod(uid="p-2", name="train-abc-2")
    assert inventory.add_pods([changed, unseen], gone=gone) == {KEY}
    assert pods(inventory) == [["p-1", "p-2"]]
    (view,) = inventory.selected("default", parse_selector(TRAIN))
    assert view.pods[0].request_raw is None, "the watch knows at least as much as the list"


@pytest.mark.parametrize("how", ["deleted", "finished", "relisted"])
def test_a_list_of_pods_brings_none_back_that_went_meanwhile(how: str) -> None:
    inventory = filled()
    with inventory.pods_going() as gone:
        listed = b.pod()
        if how == "deleted":
            inventory.observe(PODS, b.pod(), deleted=True)
        elif how == "finished":
            inventory.observe(PODS, b.pod(phase="Failed"), deleted=False)
        else:
            inventory.relisted(PODS, None, [])
    assert inventory.add_pods([listed], gone=gone) == NOBODY
    assert pods(inventory) == [[]]


def test_nothing_is_kept_of_what_is_gone() -> None:
    inventory = filled()
    inventory.observe(ASSIGNMENTS, assignment(), deleted=False)
    for kind, body in (POD, REPLICASET, DEPLOYMENT, POLICY, (ASSIGNMENTS, assignment())):
        inventory.observe(kind, body, deleted=True)
    for gone in (False, True):
        inventory.observe(PODS, b.pod(namespace="passing", owner=None), deleted=gone)
    inventory.selected("asked", parse_selector(TRAIN))
    assert inventory._namespaces == {}


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
    inventory = filled((POLICIES, b.policy(selector)))
    for index, labels in enumerate(fleet):
        body = b.deployment(b.hot_spec(), name=f"w{index}", uid=f"u{index}")
        body["spec"]["template"]["metadata"]["labels"] = json.loads(json.dumps(labels))
        woken = inventory.observe(DEPLOYMENTS, body, deleted=False)
        assert (woken == {KEY}) is oracle(selector, labels)
        assert inventory.named("default", f"w{index}") == inventory.rivals("default", f"u{index}") == woken
    expected = [f"w{index}" for index, labels in enumerate(fleet) if oracle(selector, labels)]
    assert names(inventory, selector) == expected


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["pod", "replicaset", "deployment"]),
        st.integers(0, 1),
        st.sampled_from([None, 0, 1]),
        st.booleans(),
    ),
    max_size=25,
)


@given(MOVES)
def test_whatever_happens_a_pod_is_where_its_chain_of_owners_leads(
    moves: list[tuple[str, int, int | None, bool]],
) -> None:
    inventory = filled(POLICY)
    pods_of: dict[int, int | None] = {}
    """Pods that exist, with their ReplicaSets; None: bare."""
    links: dict[int, int | None] = {}
    """ReplicaSets that exist, with their Deployments; None: bare."""
    deployments: set[int] = set()
    for what, number, owner, gone in moves:
        if what == "pod":
            body = b.pod(uid=f"p-{number}", name=f"pod-{number}", owner=None if owner is None else f"r-{owner}")
            inventory.observe(PODS, body, deleted=gone)
            pods_of.pop(number, None)
            pods_of |= {} if gone else {number: owner}
        elif what == "replicaset":
            body = b.replicaset(name=f"set-{number}", uid=f"r-{number}", owner=None if owner is None else f"d-{owner}")
            body["spec"] = {"template": {"metadata": {"labels": {"app": "train"}}}}
            inventory.observe(REPLICASETS, body, deleted=gone)
            links.pop(number, None)
            links |= {} if gone else {number: owner}
        else:
            body = b.deployment(b.hot_spec(), name=f"w{number}", uid=f"d-{number}", labels={"app": "train"})
            inventory.observe(DEPLOYMENTS, body, deleted=gone)
            (deployments.discard if gone else deployments.add)(number)
        found = {
            view.uid: {pod.uid for pod in view.pods} for view in inventory.selected("default", parse_selector(TRAIN))
        }
        expected: dict[str, set[str]] = {f"d-{number}": set() for number in deployments}
        expected |= {f"r-{number}": set() for number, owner in links.items() if owner is None}
        expected |= {f"p-{number}": {f"p-{number}"} for number, owner in pods_of.items() if owner is None}
        for pod, replicaset in pods_of.items():
            if replicaset in links and replicaset is not None:
                deployment = links[replicaset]
                workload = f"r-{replicaset}" if deployment is None else f"d-{deployment}"
                if workload in expected:
                    expected[workload].add(f"p-{pod}")
        assert found == expected
