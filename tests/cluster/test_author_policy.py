"""Who may write a policy, and what the operator itself may write: two ValidatingAdmissionPolicies, tried as those users."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for

Json = dict[str, Any]
OPERATOR = "system:serviceaccount:precision-system:precision-operator"
ADMISSION = Path(__file__).parents[2] / "manifests" / "admission"
PREFIX = "precision.genesis.ai/"


def grant(kubectl: Kubectl, namespace: str, user: str, name: str, *rules: Json) -> None:
    kubectl.apply(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name, "namespace": namespace},
            "rules": list(rules),
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name, "namespace": namespace},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}],
        },
    )


def rule(group: str, resources: list[str], verbs: list[str]) -> Json:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs}


POLICIES = rule("precision.genesis.ai", ["precisionpolicies"], ["*"])


def policy(name: str = "p", **spec: object) -> Json:
    return {
        "apiVersion": "precision.genesis.ai/v1alpha1",
        "kind": "PrecisionPolicy",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": "trainer"}}, **spec},
    }


# ---- the author


class Users:
    """A namespace in which bob may write policies only, and alice policies and Deployments."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self._kubectl, self.namespace = kubectl, namespace
        grant(kubectl, namespace, "bob", "bob", POLICIES)
        grant(kubectl, namespace, "alice", "alice", POLICIES, rule("apps", ["deployments"], ["get", "patch"]))

    def run(self, user: str, *arguments: str, body: Json | None = None) -> tuple[bool, str]:
        given = json.dumps(body) if body else None
        done = self._kubectl(*arguments, "-n", self.namespace, "--as", user, input=given, check=False)
        return done.returncode == 0, done.stderr

    def create(self, user: str, body: Json) -> tuple[bool, str]:
        return self.run(user, "create", "--dry-run=server", "-f", "-", body=body)


@pytest.fixture
def users(kubectl: Kubectl, namespace: str) -> Users:
    found = Users(kubectl, namespace)
    # RBAC and a new admission policy take effect a moment after they are written
    wait_for(lambda: found.create("alice", policy())[0], what="alice's rights", seconds=30)
    wait_for(
        lambda: "must be allowed to patch" in found.create("bob", policy())[1], what="the author policy", seconds=30
    )
    return found


def test_who_may_not_patch_deployments_may_not_write_a_policy(users: Users) -> None:
    accepted, said = users.create("bob", policy())
    assert not accepted
    assert "the author of a PrecisionPolicy must be allowed to patch deployments in its namespace" in said
    assert f"bob may not in {users.namespace}" in said
    assert "let somebody who has it apply the policy" in said


def test_who_may_patch_deployments_may_write_a_policy(users: Users) -> None:
    accepted, said = users.create("alice", policy())
    assert accepted, said


def test_rights_in_another_namespace_do_not_count(users: Users, kubectl: Kubectl) -> None:
    grant(kubectl, "default", "bob", "bob-elsewhere", rule("apps", ["deployments"], ["patch"]))
    try:
        who = ("auth", "can-i", "patch", "deployments.apps", "-n", "default", "--as", "bob")
        wait_for(lambda: kubectl(*who, check=False).returncode == 0, what="bob's right elsewhere", seconds=30)
        assert not users.create("bob", policy())[0]
    finally:
        kubectl("delete", "role,rolebinding", "bob-elsewhere", "-n", "default")


@pytest.mark.parametrize(
    ("change", "allowed"),
    [
        pytest.param({"spec": {"suspend": True}}, False, id="the spec"),
        pytest.param({"metadata": {"annotations": {f"{PREFIX}promote": "4"}}}, False, id="a command"),
        pytest.param({"metadata": {"labels": {"team": "a"}}}, True, id="a label, which moves nothing"),
        pytest.param({"metadata": {"finalizers": [f"{PREFIX}finalizer"]}}, True, id="a finalizer, which moves nothing"),
    ],
)
def test_an_update_is_judged_when_it_says_something_new(users: Users, change: Json, allowed: bool) -> None:
    assert users.run("alice", "create", "-f", "-", body=policy())[0]
    patch = ("patch", "pp", "p", "--type=merge", "-p", json.dumps(change))
    accepted, said = users.run("bob", *patch)
    assert accepted == allowed, said
    assert users.run("alice", *patch)[0]


def test_the_operators_own_writes_pass(users: Users, kubectl: Kubectl) -> None:
    assert users.run("alice", "create", "-f", "-", body=policy())[0]
    grant(
        kubectl,
        users.namespace,
        OPERATOR,
        "operator",
        rule("precision.genesis.ai", ["precisionpolicies", "precisionpolicies/status"], ["get", "patch"]),
    )
    finalizer = json.dumps({"metadata": {"finalizers": [f"{PREFIX}restore"]}})

    def finalized() -> bool:
        return users.run(OPERATOR, "patch", "pp", "p", "--type=merge", "-p", finalizer)[0]

    wait_for(finalized, what="the operator's finalizer to be written", seconds=30)
    status = json.dumps({"status": {"phase": "Held", "gate": "Closed"}})
    accepted, said = users.run(OPERATOR, "patch", "pp", "p", "--subresource=status", "--type=merge", "-p", status)
    assert accepted, said
    gone = json.dumps({"metadata": {"finalizers": None}})
    assert users.run(OPERATOR, "patch", "pp", "p", "--type=merge", "-p", gone)[0]


def test_who_may_not_patch_deployments_may_still_delete_a_policy(users: Users) -> None:
    """Judging deletions would keep the namespace controller from emptying a namespace."""
    assert users.run("alice", "create", "-f", "-", body=policy())[0]
    accepted, said = users.run("bob", "delete", "pp", "p")
    assert accepted, said


# ---- the operator

ENABLE = {"name": "ENABLE_FP16_TRAINING", "value": "false"}
CONTAINER: Json = {
    "name": "trainer",
    "image": "trainer",
    "command": ["train"],
    "env": [{"name": "A", "value": "1"}, ENABLE],
    "resources": {"limits": {"cpu": "1"}},
}
TEMPLATE: Json = {
    "metadata": {"labels": {"app": "trainer"}, "annotations": {"theirs": "1", f"{PREFIX}mode": "fp16"}},
    "spec": {
        "initContainers": [{"name": "init", "image": "init", "env": [ENABLE]}],
        "containers": [CONTAINER, {"name": "sidecar", "image": "sidecar"}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}
METADATA: Json = {"name": "trainer", "labels": {"app": "trainer"}, "annotations": {"theirs": "1"}}


def workload(kind: str) -> Json:
    metadata, template = copy.deepcopy(METADATA), copy.deepcopy(TEMPLATE)
    labels = {"app": kind}  # a label each: or they would adopt one another
    metadata["labels"] = template["metadata"]["labels"] = labels
    if kind == "pods":
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    title = {"deployments": "Deployment", "replicasets": "ReplicaSet"}[kind]
    if kind == "deployments":
        spec["paused"] = True  # so that no ReplicaSet of its own is made
    return {"apiVersion": "apps/v1", "kind": title, "metadata": metadata, "spec": spec}


def add(path: str, value: object) -> Json:
    return {"op": "add", "path": path, "value": value}


def remove(path: str) -> Json:
    return {"op": "remove", "path": path}


T, C = "/spec/template", "/spec/template/spec/containers/0"
OURS = f"{PREFIX}generation".replace("/", "~1")

POLICY: Json = {
    "apiVersion": "precision.genesis.ai/v1alpha1",
    "kind": "PrecisionPolicy",
    "metadata": {
        "name": "trainer",
        "annotations": {"theirs": "1", f"{PREFIX}promote": "3"},
        "finalizers": ["example.com/theirs"],
    },
    "spec": {"selector": {"matchLabels": {"app": "trainer"}}},
}
RESTORE, PROMOTE = f"{PREFIX}restore", f"{PREFIX}promote".replace("/", "~1")

Attempt = Callable[[str, list[Json]], tuple[bool, str]]


@pytest.fixture(scope="module")
def attempt(kubectl: Kubectl) -> Iterator[Attempt]:
    """Patch one of three workloads as the operator, which RBAC lets patch all of them."""
    namespace = "operator-scope"
    kubectl("create", "namespace", namespace)
    kubectl.wait_for_namespace(namespace)
    wide = (
        rule("", ["pods"], ["*"]),
        rule("apps", ["deployments", "replicasets"], ["*"]),
        rule("precision.genesis.ai", ["precisionpolicies", "precisionpolicies/status"], ["*"]),
    )
    grant(kubectl, namespace, OPERATOR, "operator", *wide)
    for kind in ("deployments", "replicasets", "pods"):
        kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(workload(kind)))
    kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(POLICY))

    def patch(kind: str, operations: list[Json]) -> tuple[bool, str]:
        done = kubectl(
            *("patch", kind, "trainer", "-n", namespace, "--as", OPERATOR, "--dry-run=server"),
            *("--type=json", "-p", json.dumps(operations)),
            check=False,
        )
        return done.returncode == 0, done.stderr

    def in_force() -> bool:
        return "the operator may change" in patch("deployments", [add(f"{C}/image", "evil")])[1]

    def policies_in_force() -> bool:
        return "the operator may change" in patch("precisionpolicies", [add("/spec/suspend", True)])[1]

    wait_for(in_force, what="the operator-scope policy", seconds=30)
    wait_for(policies_in_force, what="the operator-policies policy", seconds=30)
    yield patch
    gone = '[{"op":"remove","path":"/metadata/finalizers"}]'
    kubectl("patch", "precisionpolicies", "trainer", "-n", namespace, "--type=json", "-p", gone)
    kubectl("delete", "namespace", namespace, "--wait=false")


FROM_FIELD = {
    "name": "PRECISION_MODE",
    "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{PREFIX}mode']"}},
}
FROM_CONFIG_MAP = {"name": "ENABLE_FP16_TRAINING", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}
FROM_SECRET = {"name": "ENABLE_FP16_TRAINING", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}

ALLOWED: dict[str, tuple[str, list[Json]]] = {
    "an annotation of ours": ("deployments", [add(f"/metadata/annotations/{OURS}", "17")]),
    "an annotation of ours on a pod": ("pods", [add(f"/metadata/annotations/{OURS}", "17")]),
    "an annotation of ours on a ReplicaSet": ("replicasets", [add(f"{T}/metadata/annotations/{OURS}", "17")]),
    "an annotation of ours in the template": ("deployments", [add(f"{T}/metadata/annotations/{OURS}", "17")]),
    "taking an annotation of ours away": (
        "deployments",
        [remove(f"{T}/metadata/annotations/precision.genesis.ai~1mode")],
    ),
    "the switch": ("deployments", [add(f"{C}/env/1/value", "true")]),
    "the switch of an init container": ("deployments", [add(f"{T}/spec/initContainers/0/env/0/value", "true")]),
    "the switch where there was no env": ("deployments", [add(f"{T}/spec/containers/1/env", [ENABLE])]),
    "the mode beside the switch": ("deployments", [add(f"{C}/env/-", {"name": "PRECISION_MODE", "value": "bf16"})]),
    "the mode from its annotation": ("deployments", [add(f"{C}/env/-", FROM_FIELD)]),
    "the original reference back": ("deployments", [{**add(f"{C}/env/1", FROM_CONFIG_MAP), "op": "replace"}]),
    "no switch, as it was": ("deployments", [remove(f"{C}/env/1")]),
    "its finalizer on a policy": ("precisionpolicies", [add("/metadata/finalizers/-", RESTORE)]),
    "going on after a pause": ("deployments", [add("/spec/paused", False)]),
    "a settle's last write": (
        "deployments",
        [
            add(f"{T}/metadata/annotations/{OURS}", "17"),
            add("/spec/paused", False),
            add(f"/metadata/annotations/{OURS}", "17"),
        ],
    ),
}

FORBIDDEN: dict[str, tuple[str, list[Json]]] = {
    "an image": ("deployments", [add(f"{C}/image", "evil")]),
    "an image of a ReplicaSet": ("replicasets", [add(f"{C}/image", "evil")]),
    "an image of a pod": ("pods", [add("/spec/containers/0/image", "evil")]),
    "an image of an init container": ("deployments", [add(f"{T}/spec/initContainers/0/image", "evil")]),
    "an image, hidden behind the switch": ("deployments", [add(f"{C}/env/1/value", "true"), add(f"{C}/image", "evil")]),
    "a command": ("deployments", [add(f"{C}/command", ["sh"])]),
    "arguments": ("deployments", [add(f"{C}/args", ["-c"])]),
    "no command": ("deployments", [remove(f"{C}/command")]),
    "a lifecycle hook": ("deployments", [add(f"{C}/lifecycle", {"postStart": {"exec": {"command": ["sh"]}}})]),
    "a probe": ("deployments", [add(f"{C}/livenessProbe", {"exec": {"command": ["sh"]}})]),
    "a security context": ("deployments", [add(f"{C}/securityContext", {"privileged": True})]),
    "resources": ("deployments", [add(f"{C}/resources/limits/cpu", "64")]),
    "another variable": ("deployments", [add(f"{C}/env/-", {"name": "LD_PRELOAD", "value": "x.so"})]),
    "another variable's value": ("deployments", [add(f"{C}/env/0/value", "2")]),
    "another variable taken away": ("deployments", [remove(f"{C}/env/0")]),
    "a variable named nearly so": ("deployments", [add(f"{C}/env/-", {"name": "ENABLE_FP16_TRAININGX", "value": "x"})]),
    "environment from elsewhere": ("deployments", [add(f"{C}/envFrom", [{"secretRef": {"name": "s"}}])]),
    "the switch from a Secret": ("deployments", [{**add(f"{C}/env/1", FROM_SECRET), "op": "replace"}]),
    "a switch that is a file": ("deployments", [add(f"{C}/env/1/value", "x" * 65)]),
    "a host path": ("deployments", [add(f"{T}/spec/volumes/-", {"name": "host", "hostPath": {"path": "/"}})]),
    "a volume taken away": ("deployments", [remove(f"{T}/spec/volumes/0")]),
    "a mount": ("deployments", [add(f"{C}/volumeMounts", [{"name": "tmp", "mountPath": "/x"}])]),
    "the host's network": ("deployments", [add(f"{T}/spec/hostNetwork", True)]),
    "the host's processes": ("deployments", [add(f"{T}/spec/hostPID", True)]),
    "another ServiceAccount": ("deployments", [add(f"{T}/spec/serviceAccountName", "admin")]),
    "a node": ("deployments", [add(f"{T}/spec/nodeName", "n1")]),
    "a priority": ("deployments", [add(f"{T}/spec/priorityClassName", "system-node-critical")]),
    "another container": ("deployments", [add(f"{T}/spec/containers/-", {"name": "x", "image": "evil"})]),
    "an init container": ("deployments", [add(f"{T}/spec/initContainers/-", {"name": "x", "image": "evil"})]),
    "a container taken away": ("deployments", [remove(f"{T}/spec/containers/1")]),
    "an init container made a container": ("deployments", [
        remove(f"{T}/spec/initContainers"), add(f"{T}/spec/containers/-", TEMPLATE["spec"]["initContainers"][0])]),
    "replicas": ("deployments", [add("/spec/replicas", 9)]),
    "replicas of a ReplicaSet": ("replicasets", [add("/spec/replicas", 9)]),
    "the strategy": ("deployments", [add("/spec/strategy", {"type": "Recreate"})]),
    "a history limit": ("deployments", [add("/spec/revisionHistoryLimit", 0)]),
    "a label": ("deployments", [add("/metadata/labels/x", "y")]),
    "a label of the template": ("deployments", [add(f"{T}/metadata/labels/x", "y")]),
    "a label of a pod": ("pods", [add("/metadata/labels/x", "y")]),
    "an annotation of somebody else": ("deployments", [add("/metadata/annotations/x", "y")]),
    "the value of somebody else's annotation": ("deployments", [add("/metadata/annotations/theirs", "2")]),
    "somebody else's annotation taken away": ("deployments", [remove("/metadata/annotations/theirs")]),
    "somebody else's annotation in the template": ("deployments", [add(f"{T}/metadata/annotations/x", "y")]),
    "somebody else's annotation on a pod": ("pods", [add("/metadata/annotations/x", "y")]),
    "an owner": ("deployments", [add("/metadata/ownerReferences", [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}])]),
    "a finalizer": ("pods", [add("/metadata/finalizers", ["example.com/x"])]),
    "a policy's threshold": ("precisionpolicies", [add("/spec/criteria", {"overflow": {"enter": 1}})]),
    "a policy's suspension": ("precisionpolicies", [add("/spec/suspend", True)]),
    "a policy's selector": ("precisionpolicies", [add("/spec/selector/matchLabels/app", "victim")]),
    "a person's command": ("precisionpolicies", [add(f"/metadata/annotations/{PREFIX.replace('/', '~1')}retry", "3")]),
    "a person's command taken away": ("precisionpolicies", [remove(f"/metadata/annotations/{PROMOTE}")]),
    "a policy's label": ("precisionpolicies", [add("/metadata/labels", {"x": "y"})]),
    "somebody else's finalizer on a policy": ("precisionpolicies", [add("/metadata/finalizers/-", "example.com/x")]),
    "somebody else's finalizer taken from a policy": ("precisionpolicies", [remove("/metadata/finalizers/0")]),
    "a policy's owner": ("precisionpolicies", [add("/metadata/ownerReferences", [
        {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}])]),
    "a toleration of a pod": ("pods", [add("/spec/tolerations/-", {"operator": "Exists"})]),
}  # fmt: skip


@pytest.mark.parametrize("name", ALLOWED)
def test_the_operator_may_write_what_its_work_needs(attempt: Attempt, name: str) -> None:
    accepted, said = attempt(*ALLOWED[name])
    assert accepted, said


@pytest.mark.parametrize("name", FORBIDDEN)
def test_the_operator_may_write_nothing_else(attempt: Attempt, name: str) -> None:
    accepted, said = attempt(*FORBIDDEN[name])
    assert not accepted, "accepted"
    assert "the operator may" in said, f"refused, but not by the policy: {said}"


def test_the_operator_may_write_the_status_of_a_policy(attempt: Attempt, kubectl: Kubectl) -> None:
    where = ("-n", "operator-scope", "--as", OPERATOR, "--subresource=status", "--dry-run=server", "--type=merge")
    done = kubectl("patch", "precisionpolicies", "trainer", *where, "-p", '{"status":{"phase":"Pending"}}', check=False)
    assert done.returncode == 0, done.stderr


def test_other_users_are_not_held_to_the_operators_scope(attempt: Attempt, kubectl: Kubectl) -> None:
    operations = json.dumps([add(f"{C}/image", "new")])
    where = ("-n", "operator-scope", "--dry-run=server", "--type=json", "-p", operations)
    assert kubectl("patch", "deployments", "trainer", *where, check=False).returncode == 0
