"""Installing on an empty, real API server that enforces the restricted Pod Security Standard."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.manifests import AS_OPERATOR, until_admitted
from lab.process import run
from lab.setup.kube import kube_binaries
from lab.waiting import wait_for
from precision_operator.cli import main
from precision_operator.contract import INJECTED
from tests.support.cluster_scene import PATIENCE_SECONDS, Operators
from tests.support.holds import held
from tests.support.rendered import REGISTRY
from tests.support.users import PREFIX, Client, Json, assignment, custom, pods, policy, said

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "precision-operator"
NAMESPACE = "precision-system"
OPERATOR = f"system:serviceaccount:{NAMESPACE}:precision-operator"

pytestmark = pytest.mark.cluster


def run_helm(cluster: ControlPlane, *arguments: str | Path) -> str:
    environment = {
        **os.environ,
        "KUBECONFIG": str(cluster.kubeconfig),
        "HELM_CACHE_HOME": str(cluster.directory / "helm"),
    }
    named = REGISTRY if arguments[0] in ("install", "upgrade", "template") else ()
    command = [kube_binaries() / "helm", *arguments, *named, "--namespace", NAMESPACE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path_factory.mktemp("install")) as cluster:
        cluster.kubectl.apply(ROOT / "manifests" / "base" / "namespace.yaml")
        cluster.kubectl.wait_for_namespace(NAMESPACE)
        yield cluster


@pytest.fixture(scope="module")
def release(empty: ControlPlane) -> Iterator[Kubectl]:
    """The chart, installed by helm."""
    notes = run_helm(empty, "install", "precision-operator", CHART)
    assert "NOTE:" not in notes, "a cluster of 1.36 serves MutatingAdmissionPolicy"
    until_admitted(empty.kubectl)
    yield empty.kubectl
    run_helm(empty, "uninstall", "precision-operator", "--wait")


def test_the_plain_manifests_are_accepted_by_an_empty_cluster(empty: ControlPlane) -> None:
    done = empty.kubectl("apply", "--server-side", "--dry-run=server", "-k", ROOT / "manifests" / "base")
    assert "Warning" not in done.stderr
    assert "mutatingadmissionpolicy.admissionregistration.k8s.io/precision-assign.precision.genesis.ai" in done.stdout


def test_the_rendered_chart_is_accepted_without_a_warning(empty: ControlPlane) -> None:
    rendered = run_helm(empty, "template", "precision-operator", CHART, "--validate")
    done = empty.kubectl("apply", "--dry-run=server", "-f", "-", input=rendered)
    assert "Warning" not in done.stderr


@pytest.mark.parametrize("mode", ["Policy", "Webhook"])
def test_the_network_policy_is_accepted(empty: ControlPlane, mode: str) -> None:
    channel = ("config.notifications.ops.url=jsons://x",)
    given = ("networkPolicy.enabled=true", f"admission.mode={mode}", *channel)
    values = [word for value in given for word in ("--set", value)]
    rendered = run_helm(empty, "template", "precision-operator", CHART, *values, "-s", "templates/networkpolicy.yaml")
    accepted = empty.kubectl.json("create", "--dry-run=server", "--validate=strict", "-f", "-", input=rendered)
    assert accepted["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert all(rule["ports"] for rule in (*accepted["spec"]["ingress"], *accepted["spec"]["egress"]))


def test_both_replicas_pass_the_restricted_standard(release: Kubectl) -> None:
    def pods() -> bool:
        return len(release.json("get", "pods", "-n", NAMESPACE)["items"]) == 2

    def state() -> str:
        return release("get", "replicasets", "-n", NAMESPACE, "-o", "yaml").stdout

    wait_for(pods, what="both pods to be admitted", seconds=30, found=state)


def test_the_releases_test_pod_is_given_the_contract(empty: ControlPlane, release: Kubectl) -> None:
    """No node runs it here; what it will find in itself is what admission gives it."""
    rendered = run_helm(
        empty, "template", "precision-operator", CHART, "-s", "templates/tests/selftest.yaml", "--validate"
    )
    (pod,) = [p for p in yaml.safe_load_all(rendered) if p["metadata"]["name"].endswith("-injected")]
    admitted = release.json("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
    assert admitted["metadata"]["annotations"][INJECTED] == pod["spec"]["containers"][0]["command"][-1]


@pytest.mark.parametrize("sample", sorted(path.name for path in (ROOT / "manifests" / "samples").glob("*.yaml")))
def test_the_samples_are_good_policies(release: Kubectl, sample: str) -> None:
    text = (ROOT / "manifests" / "samples" / sample).read_text()
    accepted = release(
        "create", "--dry-run=server", "-f", "-", input=text.replace("namespace: training", "namespace: default")
    )
    assert "created" in accepted.stdout


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("get", "secrets"),
        ("list", "configmaps"),
        ("create", "pods"),
        ("deletecollection", "pods"),
        ("create", "pods/exec"),
        ("patch", "pods/status"),
        ("update", "pods/ephemeralcontainers"),
        ("create", "deployments.apps"),
        ("patch", "deployments.apps"),
        ("update", "deployments.apps"),
        ("delete", "deployments.apps"),
        ("patch", "deployments.apps/scale"),
        ("patch", "replicasets.apps"),
        ("patch", "statefulsets.apps"),
        ("update", "jobs.batch"),
        ("create", "jobs.batch"),
        ("delete", "jobs.batch"),
        ("patch", "jobs.batch/status"),
        ("patch", "poddisruptionbudgets.policy"),
        ("deletecollection", "precisionassignments.precision.genesis.ai"),
        ("patch", "precisionassignments.precision.genesis.ai"),
        ("create", "precisionpolicies.precision.genesis.ai"),
        ("delete", "precisionpolicies.precision.genesis.ai"),
        ("create", "serviceaccounts/token"),
        ("impersonate", "users"),
        ("create", "rolebindings.rbac.authorization.k8s.io"),
        ("escalate", "clusterroles.rbac.authorization.k8s.io"),
        ("bind", "clusterroles.rbac.authorization.k8s.io"),
        ("patch", "customresourcedefinitions.apiextensions.k8s.io"),
        ("patch", "mutatingadmissionpolicies.admissionregistration.k8s.io"),
        ("list", "validatingadmissionpolicies.admissionregistration.k8s.io"),
        ("get", "validatingadmissionpolicies.admissionregistration.k8s.io/somebody-elses"),
        ("get", "endpointslices.discovery.k8s.io/somebody-elses"),
        ("delete", "validatingadmissionpolicybindings.admissionregistration.k8s.io"),
        ("patch", "nodes"),
        ("delete", "leases.coordination.k8s.io"),
        ("get", "leases.coordination.k8s.io/somebody-elses"),
    ],
)
def test_the_operators_account_may_not(release: Kubectl, verb: str, resource: str) -> None:
    kind, _, name = resource.partition("/")
    subresource = name if name and name != "somebody-elses" else ""
    target = f"{kind}/{name}" if name == "somebody-elses" else kind
    arguments = ["auth", "can-i", verb, target, "-n", NAMESPACE, "--as", OPERATOR]
    done = release(*arguments, *([f"--subresource={subresource}"] if subresource else []), check=False)
    assert done.stdout.strip() == "no"


@pytest.mark.parametrize(
    ("verb", "resource", "namespace"),
    [
        ("watch", "precisionpolicies.precision.genesis.ai", "default"),
        ("patch", "precisionpolicies.precision.genesis.ai", "default"),
        ("update", "precisionassignments.precision.genesis.ai", "default"),
        ("watch", "deployments.apps", "default"),
        ("patch", "pods", "default"),
        ("delete", "pods", "default"),
        ("patch", "jobs.batch", "default"),
        ("list", "poddisruptionbudgets.policy", "default"),
        ("get", "endpointslices.discovery.k8s.io/kubernetes", "default"),
        ("get", "mutatingadmissionpolicies.admissionregistration.k8s.io/precision-assign.precision.genesis.ai", ""),
        ("create", "leases.coordination.k8s.io", NAMESPACE),
        ("update", "leases.coordination.k8s.io/precision-operator", NAMESPACE),
    ],
)
def test_the_operators_account_may(release: Kubectl, verb: str, resource: str, namespace: str) -> None:
    where = ("-n", namespace) if namespace else ()
    done = release("auth", "can-i", verb, resource, *where, "--as", OPERATOR, check=False)
    assert done.stdout.strip() == "yes"


@pytest.fixture(scope="module")
def operator(empty: ControlPlane, release: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The installed account, with its token and the rights that the chart gave it."""
    kubeconfig = empty.service_account_kubeconfig(NAMESPACE, "precision-operator")
    client = Client(kubeconfig, tmp_path_factory.mktemp("operator"))
    wait_for(lambda: client("GET", pods("default")).ok, what="the operator's rights", seconds=30)
    yield client
    client.close()


@pytest.fixture
def victim(release: Kubectl) -> Iterator[str]:
    """Path of a pod in namespace default."""
    release("run", "victim", "--image=good", "--restart=Never", "-n", "default")
    yield pods("default", "victim")
    release("delete", "pod", "victim", "-n", "default", "--force", "--ignore-not-found")


def test_the_installed_account_does_what_its_work_needs(operator: Client, release: Kubectl, victim: str) -> None:
    release("create", "-n", "default", "-f", "-", input=json.dumps(policy("own")))
    asking = {"metadata": {"annotations": {f"{PREFIX}echo-nonce": "n", f"{PREFIX}echo": None}}}
    operator.made("POST", custom("default", "precisionassignments"), assignment("own", generation=3))

    def echo() -> str:
        answer = operator.made("PATCH", custom("default", "precisionpolicies", "own") + "?dryRun=All", asking)
        return str(answer["metadata"]["annotations"].get(f"{PREFIX}echo"))

    wait_for(lambda: echo() == "n/own/3", what="the echo", seconds=30, found=echo)
    operator.made("PATCH", custom("default", "precisionpolicies", "own") + "/status", {"status": {"phase": "Pending"}})
    slices = operator("GET", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
    assert slices.status_code in (200, 404), "allowed; an API server on a loopback address publishes none"
    for path in shipped_paths():
        operator.made("GET", path)
    found = operator.made("PATCH", victim, {"metadata": {"annotations": {f"{PREFIX}mode": "fp32"}}})
    operator.made("DELETE", victim, {"preconditions": {"uid": found["metadata"]["uid"]}})
    operator.made("DELETE", custom("default", "precisionassignments", "own"))
    release("delete", "precisionpolicy", "own", "-n", "default")


def shipped_paths() -> list[str]:
    """The API paths of the admission policies and bindings that the operator compares with its own copies."""
    folder = ROOT / "operator" / "precision_operator" / "admission" / "shipped"
    documents = [d for path in folder.glob("*.yaml") for d in yaml.safe_load_all(path.read_text())]
    plurals = {
        "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
        "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
        "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
        "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
    }
    return [f"/apis/{d['apiVersion']}/{plurals[d['kind']]}/{d['metadata']['name']}" for d in documents]


def test_the_installed_account_evicts_a_pod_that_it_means_and_no_other(operator: Client, victim: str) -> None:
    """An eviction's inner deletion meets no admission policy, so its own fence stands in its way."""
    for version in ("policy/v1", "policy/v1beta1"):
        body: Json = {"apiVersion": version, "kind": "Eviction", "metadata": {"name": "victim", "namespace": "default"}}
        answer = operator("POST", f"{victim}/eviction", body)
        assert answer.status_code == 403, said(answer)
        assert "the operator may evict a pod only with its uid as a precondition" in said(answer)
    found = operator.made("GET", victim)["metadata"]
    assert "deletionTimestamp" not in found
    operator.made("POST", f"{victim}/eviction", {**body, "apiVersion": "policy/v1", "deleteOptions": meant(found)})


def meant(metadata: Json) -> Json:
    return {"preconditions": {"uid": metadata["uid"]}}


def test_the_installed_account_suspends_a_job_and_changes_nothing_else_of_it(
    operator: Client, release: Kubectl
) -> None:
    release("create", "job", "train", "--image=good", "-n", "default")
    path = "/apis/batch/v1/namespaces/default/jobs/train"
    try:
        operator.made("PATCH", path, {"spec": {"suspend": True}})
        assert "but spec.suspend" in said(operator("PATCH", path, {"spec": {"suspend": False, "backoffLimit": 0}}))
    finally:
        release("delete", "job", "train", "-n", "default")
    operator.made("GET", "/apis/policy/v1/namespaces/default/poddisruptionbudgets")


def test_the_installed_fence_holds_the_releases_account(operator: Client, victim: str) -> None:
    changed = operator(
        "PATCH", victim, {"spec": {"containers": [{"name": "victim", "image": "evil"}]}}, patch="strategic-merge-patch"
    )
    assert "the operator may change nothing of a pod but its annotations" in said(changed)
    assert "only with its uid as a precondition" in said(operator("DELETE", victim))
    collection = operator("DELETE", pods("default"))
    assert "cannot deletecollection resource" in said(collection)


README = (ROOT / "README.md").read_text().split("## On your cluster")[1]


def test_the_readmes_block_installs_the_operator_and_a_policy(tmp_path: Path) -> None:
    """Without its `make push` (tests/release), and with a wait in place of `helm test`, which needs a node."""
    block = README.split("```sh\n")[1].split("```")[0].replace("\\\n", " ")
    first, second = block.split("helm test precision-operator -n precision-system\n")
    pushed, installed = first.splitlines()
    assert pushed.startswith("make push ")
    with ControlPlane(tmp_path) as cluster:
        environment = {
            "KUBECONFIG": str(cluster.kubeconfig),
            "HELM_CACHE_HOME": str(tmp_path / "helm"),
            "PATH": f"{kube_binaries()}:{os.environ['PATH']}",
        }
        run(["bash", "-euc", installed], cwd=ROOT, env=environment, timeout=120)
        until_admitted(cluster.kubectl)
        cluster.kubectl("create", "namespace", "training")
        cluster.kubectl("create", "deployment", "own", "-n", "training", "--image=own", "--replicas=0")
        run(["bash", "-euc", second.replace(" NAME ", " own ")], cwd=ROOT, env=environment, timeout=120)
        assert cluster.kubectl.json("get", "precisionpolicy", "trainers", "-n", "training")
        own = cluster.kubectl.json("get", "deployment", "own", "-n", "training")
        assert own["spec"]["template"]["metadata"]["labels"]["precision.genesis.ai/inject"] == "trainer"
        deployment = cluster.kubectl.json("get", "deployment", "precision-operator", "-n", NAMESPACE)
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"].startswith("host/path/precision-operator:")


# ---- older clusters

FORWARD = "--emulation-forward-compatible"  # the API server itself reads admission policies by v1
BETA = "admissionregistration.k8s.io/v1beta1"
AS_1_34 = (
    "--emulated-version=1.34",
    FORWARD,
    f"--runtime-config={BETA}=true",
    "--feature-gates=MutatingAdmissionPolicy=true",
)
AS_1_33 = ("--emulated-version=1.33",)


@contextmanager
def older(directory: Path, flags: tuple[str, ...]) -> Iterator[ControlPlane]:
    """An API server that knows no more of CEL than this version does."""
    with ControlPlane(directory, api_flags=flags) as cluster:
        cluster.kubectl.apply(ROOT / "manifests" / "base" / "namespace.yaml")
        cluster.kubectl.wait_for_namespace(NAMESPACE)
        yield cluster


def test_the_chart_admits_by_the_beta(tmp_path: Path) -> None:
    with older(tmp_path, AS_1_34) as cluster:
        rendered = run_helm(
            cluster, "template", "precision-operator", CHART, "--api-versions", f"{BETA}/MutatingAdmissionPolicy"
        )
        assert f"apiVersion: {BETA}\nkind: MutatingAdmissionPolicy\n" in rendered
        cluster.kubectl("apply", "--server-side", "-f", "-", input=rendered)
        until_admitted(cluster.kubectl)


def test_the_chart_guards_where_nothing_mutates(tmp_path: Path) -> None:
    with older(tmp_path, AS_1_33) as cluster:
        notes = run_helm(cluster, "install", "precision-operator", CHART)
        assert "New pods are given their mode by the operator's webhook" in notes
        assert len(cluster.kubectl.json("get", "mutatingwebhookconfigurations")["items"]) == 1
        policies = cluster.kubectl.json("get", "validatingadmissionpolicies")["items"]
        assert len(policies) == 11
        forged = json.dumps(policy("forged", annotations={f"{PREFIX}rollback": "1", f"{PREFIX}rollback-by": "ceo"}))

        def refusal() -> str:
            return cluster.kubectl("create", "--dry-run=server", "-f", "-", input=forged, check=False).stderr

        wait_for(lambda: "names who gave the command" in refusal(), what="the stamps' guard", seconds=60, found=refusal)
        notes = run_helm(cluster, "upgrade", "precision-operator", CHART, "--set", "admission.mode=Policy")
        assert "NOTE: admission is NotEnforcing, because this cluster does not serve MutatingAdmissionPolicy" in notes
        assert cluster.kubectl.json("get", "mutatingwebhookconfigurations")["items"] == []


def test_the_webhooks_certificates_go_with_the_release(tmp_path: Path) -> None:
    with older(tmp_path / "cluster", AS_1_33) as cluster:
        run_helm(cluster, "install", "precision-operator", CHART)
        credentials = cluster.service_account_kubeconfig(NAMESPACE, "precision-operator")
        settings = {"admission": {"port": 0, "refreshSeconds": 0.25}}
        operators = Operators(credentials, tmp_path, "http://127.0.0.1:9", NAMESPACE, settings=settings)
        secret = ("secret", "precision-operator-webhook", "-n", NAMESPACE)

        def complete() -> bool:
            return "tls.crt" in (cluster.kubectl.find(*secret) or {}).get("data", {})

        try:
            operators.start("leader")
            wait_for(complete, what="the certificates", seconds=PATIENCE_SECONDS, found=operators.logs)
            # No node runs the hook that looks for holds here (tests/e2e/test_uninstall_hook.py).
            run_helm(cluster, "uninstall", "precision-operator", "--no-hooks", "--wait")

            def gone() -> bool:
                return cluster.kubectl.find(*secret) is None

            wait_for(gone, what="the Secret to go", seconds=PATIENCE_SECONDS, found=operators.logs)
        finally:
            operators.stop()
        assert gone(), operators.logs()


def test_what_is_held_outlives_the_release_until_a_person_removes_admission(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ControlPlane(tmp_path / "cluster") as cluster:
        kubectl, arguments = cluster.kubectl, ["uninstall", "--kubeconfig", str(cluster.kubeconfig)]
        kubectl.apply(ROOT / "manifests" / "base" / "namespace.yaml")
        kubectl.wait_for_namespace(NAMESPACE)
        run_helm(cluster, "install", "precision-operator", CHART)
        until_admitted(kubectl)
        kubectl("create", "-n", "default", "-f", "-", *AS_OPERATOR, input=json.dumps(held()))
        inject = ("mutatingadmissionpolicy", "precision-inject.precision.genesis.ai")
        assert kubectl.find(*inject)
        run_helm(cluster, "upgrade", "precision-operator", CHART, "--set", "admission.inject.enabled=false")
        assert kubectl.find(*inject) is None, "what is switched off goes at once"
        line = ("run", "trainer", "--image=x", "-l=app=trainer", "--dry-run=server", "-o", "json")

        def mode() -> str:
            return str(kubectl.json(*line)["metadata"].get("annotations", {}).get(f"{PREFIX}mode"))

        wait_for(lambda: mode() == "fp32", what="the hold at admission", seconds=60, found=mode)
        run_helm(cluster, "uninstall", "precision-operator", "--wait")
        assert mode() == "fp32"
        run_helm(cluster, "install", "precision-operator", CHART)
        assert main([*arguments, "--yes"]) == 1
        assert "`helm uninstall` its release first" in capsys.readouterr().err
        run_helm(cluster, "uninstall", "precision-operator", "--wait")

        assert main(arguments) == 0
        assert "default/fleet  /Pod/trainer" in capsys.readouterr().out
        assert mode() == "fp32"
        assert main([*arguments, "--yes"]) == 0
        wait_for(lambda: mode() == "None", what="the end of the hold", seconds=60, found=mode)
        kinds = "crd,mutatingadmissionpolicy,mutatingadmissionpolicybinding,validatingadmissionpolicy"
        selected = (f"{kinds},validatingadmissionpolicybinding", "-l", "app.kubernetes.io/part-of=genesis-precision")
        assert not kubectl("get", *selected, "-o=name").stdout, "nothing of ours when it says `removed`"
        assert main([*arguments, "--yes"]) == 0, "twice is once"
