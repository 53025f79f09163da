"""What the chart lets the operator and people do."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from manifests.generate import kind_rules
from precision_operator.api import commands
from precision_operator.cli.examine_operator import RIGHTS
from precision_operator.inventory.caches import WATCHED
from precision_operator.kube import port
from precision_operator.workloads.kinds.table import KINDS
from tests.support.rendered import REGISTRY, Json, config, of_kind, shipped, the

Render = Callable[..., list[Json]]
Helm = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "precision-operator"
OPERATOR = ROOT / "operator" / "precision_operator"


def verbs(rules: list[Json]) -> set[tuple[str, str, str, str]]:
    """(group, resource, verb, resource name) of every single right that the rules give."""
    return {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def table(*rows: tuple[str, str, str]) -> set[tuple[str, str, str, str]]:
    return {(group, resource, verb, "") for group, resource, wanted in rows for verb in wanted.split()}


# All that the operator does to the API server, and so all it may do. A new call needs a row here and in the chart.
USED = table(
    ("precision.genesis.ai", "precisionpolicies", "get list watch patch"),
    ("precision.genesis.ai", "precisionpolicies/status", "patch"),
    ("precision.genesis.ai", "precisionassignments", "get list watch create update delete"),
    ("precision.genesis.ai", "precisionincidents", "get list create update delete"),
    *((kind.resource.group, kind.resource.plural, "list watch") for kind in KINDS if kind.resource != port.PODS),
    ("", "pods", "get list watch patch delete"),
    ("", "pods/eviction", "create"),
    ("batch", "jobs", "patch"),
    ("policy", "poddisruptionbudgets", "list"),
    ("", "events", "create patch"),
)
GROUP = "precision.genesis.ai"
LEASES = "coordination.k8s.io"
LEASE = {
    ("coordination.k8s.io", "leases", "create", ""),
    ("coordination.k8s.io", "leases", "get", "precision-operator"),
    ("coordination.k8s.io", "leases", "update", "precision-operator"),
}
SWITCH = {("", "configmaps", "get", "precision-halt")}
NODES = {("", "nodes", "get", ""), ("", "nodes", "list", "")}
APISERVERS = {("discovery.k8s.io", "endpointslices", "get", "kubernetes")}


WEBHOOK = "precision-operator-webhook"
ADMISSION = "admissionregistration.k8s.io"
CONFIGURATION = "precision-webhook.precision.genesis.ai"
WEBHOOK_FENCE = "precision-fence-webhooks.precision.genesis.ai"
# In webhook mode, besides.
OWN_NAMESPACE = {
    ("", "secrets", "create", ""),
    ("", "secrets", "get", WEBHOOK),
    ("", "secrets", "update", WEBHOOK),
    ("discovery.k8s.io", "endpointslices", "list", ""),
}
OWN_CONFIGURATION = {
    (ADMISSION, "mutatingwebhookconfigurations", "get", CONFIGURATION),
    (ADMISSION, "mutatingwebhookconfigurations", "patch", CONFIGURATION),
}


def plural(kind: str) -> str:
    return f"{kind.lower()}s" if kind.endswith("Binding") else f"{kind.lower()[:-1]}ies"


def bindings(objects: list[Json]) -> dict[tuple[str, str], str]:
    """Which role each binding of the operator gives, by namespace (none for the cluster) and name."""
    account = {"kind": "ServiceAccount", "name": "precision-operator", "namespace": "precision-system"}
    bound = [o for o in objects if o["kind"] in ("RoleBinding", "ClusterRoleBinding")]
    assert all(binding["subjects"] == [account] for binding in bound)
    return {(o["metadata"].get("namespace", ""), o["metadata"]["name"]): o["roleRef"]["name"] for o in bound}


ALWAYS_BOUND = {
    ("precision-system", "precision-operator-lease"): "precision-operator-lease",
    ("default", "precision-operator-apiservers"): "precision-operator-apiservers",
    ("", "precision-operator-admission"): "precision-operator-admission",
}


VERBS = {
    "get": "get",
    "_read": "get",
    **dict.fromkeys(("list", "list_metadata"), "list"),
    "create": "create",
    "replace": "update",
    "delete": "delete",
    **dict.fromkeys(("merge_patch", "json_patch", "dry_run"), "patch"),
}
"""Of the methods that take a resource: those of the port, and the reconciler's own."""


def called() -> set[tuple[str, str]]:
    """(resource, verb) of every call in the operator's source to the API server; the watches list and watch."""
    found = {(resource.plural, verb) for resource in WATCHED for verb in ("list", "watch")}
    for path in OPERATOR.rglob("*.py"):
        if OPERATOR / "cli" in path.parents:
            continue  # acts with the rights of the person
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Attribute(attr="evict")):
                    found.add(("pods/eviction", "create"))
                case ast.Call(func=ast.Attribute(attr=method), args=[ast.Name(id=name), *_]) if method in VERBS:
                    resource = getattr(port, name, None)
                    if isinstance(resource, port.Resource):
                        found.add((resource.plural, VERBS[method]))
    return found


def test_rights_on_kinds_name_the_group_that_has_no_name_too() -> None:
    made = yaml.safe_load(kind_rules([port.JOBS, port.PODS, port.REPLICASETS, port.DEPLOYMENTS]))
    assert verbs(made) == table(
        ("batch", "jobs", "list watch"),
        ("", "pods", "list watch"),
        ("apps", "replicasets", "list watch"),
        ("apps", "deployments", "list watch"),
    )


def test_doctor_asks_for_every_right_that_the_operator_needs_where_it_has_fleets() -> None:
    assert table(*RIGHTS) == USED


def test_every_right_is_used_by_a_call_and_every_call_has_its_right() -> None:
    granted = {*USED, *LEASE, *SWITCH, *APISERVERS, *OWN_NAMESPACE, *OWN_CONFIGURATION, *NODES}
    assert {(resource.removesuffix("/status"), verb) for _, resource, verb, _ in granted} == called()


def test_the_operator_may_do_what_it_does_and_nothing_more(render: Render) -> None:
    objects = render()
    assert verbs(the(objects, "ClusterRole")["rules"]) == USED
    assert verbs(the(objects, "Role", "precision-operator-lease")["rules"]) == LEASE | SWITCH
    assert the(objects, "Role", "precision-operator-apiservers")["metadata"]["namespace"] == "default"
    assert verbs(the(objects, "Role", "precision-operator-apiservers")["rules"]) == APISERVERS
    assert bindings(objects) == {**ALWAYS_BOUND, ("", "precision-operator"): "precision-operator"}
    roles = {o["metadata"]["name"] for kind in ("Role", "ClusterRole") for o in of_kind(objects, kind)}
    assert roles == {*bindings(objects).values(), *PEOPLE}


def test_webhook_mode_gives_its_own_secret_and_configuration_and_nothing_more(render: Render) -> None:
    objects, before = render(mutating=[]), render()
    role = the(objects, "Role", WEBHOOK)
    assert role["metadata"]["namespace"] == "precision-system"
    assert verbs(role["rules"]) == OWN_NAMESPACE
    compared = table((ADMISSION, "validatingadmissionpolicies", "get"))
    compared |= table((ADMISSION, "validatingadmissionpolicybindings", "get"))
    fence = {(*right[:3], WEBHOOK_FENCE) for right in compared}
    assert verbs(the(objects, "ClusterRole", WEBHOOK)["rules"]) == OWN_CONFIGURATION | fence
    bound = {("precision-system", WEBHOOK): WEBHOOK, ("", WEBHOOK): WEBHOOK}
    assert bindings(objects) == {**bindings(before), **bound}
    assert verbs(the(objects, "ClusterRole")["rules"]) == USED


def test_where_cert_manager_writes_the_operator_only_reads(render: Render) -> None:
    objects = render("admission.certManager.enabled=true", mutating=[])
    rights = verbs(the(objects, "Role", WEBHOOK)["rules"]) | verbs(the(objects, "ClusterRole", WEBHOOK)["rules"])
    assert {verb for _, _, verb, _ in rights} == {"get", "list"}


def test_the_operator_reads_the_admission_policies_that_it_ships_and_no_others(render: Render) -> None:
    group = "admissionregistration.k8s.io"
    wanted = {(group, plural(item["kind"]), "get", item["metadata"]["name"]) for item in shipped()}
    for objects in (render(), render(mutating=[]), render('namespaces=["a"]')):
        assert verbs(the(objects, "ClusterRole", "precision-operator-admission")["rules"]) == wanted


def test_no_right_writes_a_workload_but_the_suspension_of_jobs(render: Render) -> None:
    written = {"create", "update", "patch", "delete", "deletecollection", "*"}
    rules = [rule for kind in ("Role", "ClusterRole") for o in of_kind(render(), kind) for rule in o["rules"]]
    found = {right for right in verbs(rules) if right[2] in written}
    assert {right[0] for right in found} == {"precision.genesis.ai", "", "batch", LEASES}
    assert {right for right in found if right[0] == "batch"} == table(("batch", "jobs", "patch"))


def test_named_namespaces_need_no_right_on_namespaced_objects_elsewhere(render: Render) -> None:
    objects = render('namespaces=["a","b"]')
    assert {o["metadata"]["name"] for o in of_kind(objects, "ClusterRole")} == {
        "precision-operator-admission",
        *PEOPLE,
    }
    for namespace in ("a", "b"):
        (role,) = [o for o in of_kind(objects, "Role") if o["metadata"]["namespace"] == namespace]
        assert verbs(role["rules"]) == USED
    named = {(namespace, "precision-operator"): "precision-operator" for namespace in ("a", "b")}
    assert bindings(objects) == {**ALWAYS_BOUND, **named}
    assert config(objects)["watchNamespaces"] == ["a", "b"]


def test_nodes_are_read_only_where_the_admin_lets_it(render: Render) -> None:
    assert not [o for o in render() if o["metadata"]["name"] == "precision-operator-nodes"]
    objects = render("rbac.nodes=true")
    assert verbs(the(objects, "ClusterRole", "precision-operator-nodes")["rules"]) == NODES
    name = "precision-operator-nodes"
    assert bindings(objects) == {**ALWAYS_BOUND, ("", "precision-operator"): "precision-operator", ("", name): name}


def test_nodes_of_the_whole_cluster_and_named_namespaces_contradict_each_other(helm: Helm) -> None:
    values = (*REGISTRY, "--set", "rbac.nodes=true", "--set-json", 'namespaces=["a"]')
    done = helm("template", "x", CHART, *values, check=False)
    assert done.returncode != 0
    assert "leave one of them out (without rbac.nodes, facts about nodes are Unknown)" in done.stderr


READ = table(*((GROUP, f"precision{what}", "get list watch") for what in ("policies", "assignments", "incidents")))
POLICIES = "precisionpolicies"
PEOPLE = {
    "viewer.precision.genesis.ai": ("view", READ),
    "operator.precision.genesis.ai": (
        "edit",
        READ | table((GROUP, POLICIES, "create update patch delete deletecollection rollback drill")),
    ),
    "approver.precision.genesis.ai": (
        "admin",
        READ
        | table((GROUP, POLICIES, "patch promote rollback drill retry release"))
        | table((GROUP, "precisionassignments", "delete")),
    ),
}
"""ClusterRoles of people: the cluster's own role that takes each in, and its rights."""


@pytest.mark.parametrize("name", PEOPLE)
@pytest.mark.parametrize("aggregate", [True, False])
def test_people_have_three_roles(render: Render, name: str, aggregate: bool) -> None:
    role = the(render(f"rbac.aggregateClusterRoles={str(aggregate).lower()}"), "ClusterRole", name)
    taken_in_by, rights = PEOPLE[name]
    assert verbs(role["rules"]) == rights
    labels = {key: value for key, value in role["metadata"]["labels"].items() if "aggregate" in key}
    wanted = {f"rbac.authorization.k8s.io/aggregate-to-{taken_in_by}": "true"}
    assert labels == (wanted if aggregate else {})


def test_every_verb_of_a_command_is_in_a_role() -> None:
    given = {verb for _, rights in PEOPLE.values() for _, resource, verb, _ in rights if resource == POLICIES}
    assert {*commands.VERBS.values(), commands.RELEASE_VERB} <= given


def test_who_makes_no_roles_gets_none_for_people_either(render: Render) -> None:
    objects = render("rbac.create=false", "rbac.aggregateClusterRoles=false")
    assert of_kind(objects, "ClusterRole") == []


def test_the_policies_name_the_releases_own_account_and_namespace(render: Render) -> None:
    objects = render("serviceAccount.name=mover", namespace="elsewhere")
    account = "'system:serviceaccount:elsewhere:mover'"
    fences = [o for o in of_kind(objects, "ValidatingAdmissionPolicy") if "fence" in o["metadata"]["name"]]
    assert len(fences) == 6
    assert all(account in condition["expression"] for o in fences for condition in o["spec"]["matchConditions"])
    (left_out,) = left_out_by(objects, "assign")["matchExpressions"]
    assert left_out["values"] == ["kube-system", "elsewhere"]
    assert "precision-system" not in json.dumps(objects)


def left_out_by(objects: list[Json], policy: str) -> Json:
    """The namespaceSelector of a policy's binding."""
    binding = the(objects, "MutatingAdmissionPolicyBinding", f"precision-{policy}.precision.genesis.ai")
    selector: Json = binding["spec"]["matchResources"]["namespaceSelector"]
    return selector


@pytest.mark.parametrize("namespace", ["precision-system", "training"])
def test_where_new_pods_are_left_alone_no_echo_says_otherwise(render: Render, namespace: str) -> None:
    objects = render(namespace=namespace)
    assert left_out_by(objects, "echo") == left_out_by(objects, "assign")
    assert namespace in left_out_by(objects, "echo")["matchExpressions"][0]["values"]
