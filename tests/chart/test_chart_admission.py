"""What the chart installs for admission: policies or the webhook, and what outlives the release."""

from __future__ import annotations

import json

import pytest
import yaml

from precision_operator.config_file import parse_settings
from precision_operator.contract import INJECT
from precision_operator.webhook.keeper import server_names
from tests.support.charted import CHART, ROOT, Helm, Render
from tests.support.rendered import REGISTRY, Json, config, of_kind, shipped, the

ADMISSION_KINDS = ("MutatingAdmissionPolicy", "ValidatingAdmissionPolicy")


def policies(objects: list[Json]) -> set[tuple[str, str]]:
    """Kind and name of the admission policies, each of which has its binding."""
    found = {(kind, o["metadata"]["name"]) for kind in ADMISSION_KINDS for o in of_kind(objects, kind)}
    bound = {(kind, o["metadata"]["name"]) for kind in ADMISSION_KINDS for o in of_kind(objects, f"{kind}Binding")}
    assert found == bound
    return found


def test_every_admission_policy_belongs_to_a_switch(render: Render) -> None:
    everything = policies(render())
    assert everything == {(item["kind"], item["metadata"]["name"]) for item in shipped(*ADMISSION_KINDS)}
    parts = {
        part: {name.split(".")[0] for _, name in everything - policies(render(f"admission.{part}.enabled=false"))}
        for part in ("enforce", "inject", "commands", "author", "assignments", "fence")
    }
    assert parts == {
        "enforce": {"precision-assign", "precision-echo"},
        "inject": {"precision-inject"},
        "commands": {"precision-commands"},
        "author": {"precision-author"},
        "assignments": {"precision-assignment-writers", "precision-assignment-deleters"},
        "fence": {
            f"precision-fence-{what}" for what in ("pods", "deletions", "evictions", "jobs", "policies", "incidents")
        },
    }


@pytest.mark.parametrize(
    ("served", "version"), [(["v1"], "v1"), (["v1", "v1beta1"], "v1"), (["v1beta1"], "v1beta1")], ids=str
)
def test_what_mutates_takes_the_newest_version_that_is_served(render: Render, served: list[str], version: str) -> None:
    objects = render(mutating=served)
    mutating = [o for o in objects if o["kind"].startswith("Mutating")]
    assert {o["apiVersion"] for o in mutating} == {f"admissionregistration.k8s.io/{version}"}
    assert policies(objects) == policies(render())
    validating = [o for o in objects if o["kind"].startswith("Validating")]
    assert {o["apiVersion"] for o in validating} == {"admissionregistration.k8s.io/v1"}


def test_what_mutates_is_left_out_where_it_is_not_served(render: Render) -> None:
    guards = {item for item in policies(render()) if item[0].startswith("Validating")}
    assert policies(render("admission.mode=Policy", mutating=[])) == guards


WEBHOOK = "precision-operator-webhook"


CONFIGURATION = "precision-webhook.precision.genesis.ai"


ASSIGNING = {("MutatingAdmissionPolicy", f"precision-{name}.precision.genesis.ai") for name in ("assign", "echo")}


WRITING = ("writers", "deleters")


WEBHOOK_FENCE = ("ValidatingAdmissionPolicy", "precision-fence-webhooks.precision.genesis.ai")


@pytest.mark.parametrize(
    ("mode", "served", "chosen"),
    [
        ("Auto", ["v1"], "Policy"),
        ("Auto", ["v1beta1"], "Policy"),
        ("Auto", [], "Webhook"),
        ("Auto", None, "Policy"),
        ("Policy", [], "Policy"),
        ("Webhook", ["v1"], "Webhook"),
        ("Webhook", None, "Webhook"),
    ],
)
def test_new_pods_are_given_their_mode_in_one_way(
    render: Render, mode: str, served: list[str] | None, chosen: str
) -> None:
    objects = render(f"admission.mode={mode}", mutating=served)
    assert parse_settings(config(objects), environment={}).admission.mode == chosen
    webhook = chosen == "Webhook"
    assert bool(of_kind(objects, "MutatingWebhookConfiguration")) is webhook
    assert (WEBHOOK_FENCE in policies(objects)) is webhook
    assert len([o for o in of_kind(objects, "Service") if o["metadata"]["name"] == WEBHOOK]) == webhook
    (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert ({"name": "webhook", "containerPort": 10250, "protocol": "TCP"} in container["ports"]) is webhook
    assert not (webhook and ASSIGNING & policies(objects))
    assert webhook or served == [] or policies(objects) >= ASSIGNING


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], True),
        (["--set", "admission.mode=Webhook"], False),
        (["--api-versions", "admissionregistration.k8s.io/v1/MutatingWebhookConfiguration"], False),
    ],
    ids=["no cluster", "a mode is chosen", "a cluster"],
)
def test_without_a_cluster_the_objects_say_which_kubernetes_they_are_for(
    helm: Helm, arguments: list[str], said: bool
) -> None:
    done = helm("template", "x", CHART, *REGISTRY, *arguments)
    assert ("# Rendered without a cluster" in done.stdout) is said


@pytest.mark.parametrize(
    ("values", "served", "asked"),
    [
        ([], [], [["-A"]]),
        (['namespaces=["a","b"]'], [], [["-n", "a"], ["-n", "b"]]),
        (["admission.releaseHolds=true"], [], []),
        (["admission.enforce.enabled=false"], [], []),
        ([], ["v1"], []),
    ],
)
def test_a_release_whose_webhook_holds_workloads_is_uninstalled_only_where_that_is_wanted(
    render: Render, values: list[str], served: list[str], asked: list[list[str]]
) -> None:
    jobs = of_kind(render(*values, mutating=served), "Job")
    assert all(job["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete" for job in jobs)
    assert all(job["spec"]["template"]["spec"]["automountServiceAccountToken"] for job in jobs), "as it asks the API"
    commands = [c["command"] for job in jobs for c in job["spec"]["template"]["spec"]["containers"]]
    assert commands == [["python3", "-m", "precision_operator.cli", "holds", "--exit-code", *words] for words in asked]


def hooks_of(objects: list[Json]) -> dict[str, Json]:
    """What `helm test` makes, by its first argument, in its order."""
    hooks = [o for o in objects if o["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"]
    hooks.sort(key=lambda pod: int(pod["metadata"]["annotations"]["helm.sh/hook-weight"]))
    return {pod["spec"]["containers"][0]["command"][3]: pod for pod in hooks}


@pytest.mark.parametrize("mutating", [["v1"], []], ids=["policies", "webhook"])
def test_the_release_tests_that_the_operator_answers_and_then_that_admission_works(
    render: Render, mutating: list[str]
) -> None:
    objects = render("service.port=9000", mutating=mutating, namespace="elsewhere")
    pods = hooks_of(objects)
    assert list(pods) == ["answers", "injected"]
    answers, injected = pods.values()
    assert answers["spec"]["containers"][0]["command"][4:] == [
        "http://precision-operator-metrics.elsewhere.svc:9000/readyz"
    ]
    assert (answers["metadata"]["namespace"], injected["metadata"]["namespace"]) == ("elsewhere", "default")
    assert injected["metadata"]["labels"][INJECT] == injected["spec"]["containers"][0]["name"]
    selected = the(objects, "Deployment")["spec"]["selector"]["matchLabels"]
    for pod in pods.values():
        assert pod["spec"]["automountServiceAccountToken"] is False
        assert not selected.items() <= pod["metadata"]["labels"].items(), "no Service sends anybody here"


@pytest.mark.parametrize(
    ("values", "mutating", "left"),
    [
        (["service.enabled=false"], ["v1"], ["injected"]),
        (["admission.inject.enabled=false"], ["v1"], ["answers"]),
        (["test.namespace=precision-system"], ["v1"], ["answers"]),
        (["admission.mode=Policy"], [], ["answers"]),
    ],
)
def test_the_release_tests_only_what_is_there(
    render: Render, values: list[str], mutating: list[str], left: list[str]
) -> None:
    assert list(hooks_of(render(*values, mutating=mutating))) == left


def test_the_webhook_stands_behind_the_releases_own_service(render: Render) -> None:
    objects = render("fullnameOverride=mover", "admission.webhook.port=9443", namespace="elsewhere", mutating=[])
    for webhook in the(objects, "MutatingWebhookConfiguration", CONFIGURATION)["webhooks"]:
        service = {"namespace": "elsewhere", "name": "mover-webhook", "path": "/admit", "port": 443}
        assert webhook["clientConfig"] == {"service": service}
        (left_out,) = webhook["namespaceSelector"]["matchExpressions"]
        assert left_out["values"] == ["kube-system", "elsewhere"]
    (configured,) = of_kind(objects, "ConfigMap")
    settings = parse_settings(yaml.safe_load(configured["data"]["config.yaml"]), environment={})
    assert (settings.admission.service, settings.admission.secret) == ("mover-webhook", "mover-webhook")
    assert settings.admission.port == 9443
    (port,) = the(objects, "Service", "mover-webhook")["spec"]["ports"]
    assert (port["port"], port["targetPort"]) == (443, "webhook")
    assert "precision-system" not in json.dumps(objects)


def test_of_the_webhook_only_who_serves_it_differs_from_the_source(render: Render) -> None:
    def kept(webhooks: list[Json]) -> list[Json]:
        return [{key: value for key, value in webhook.items() if key != "clientConfig"} for webhook in webhooks]

    source = yaml.safe_load((ROOT / "manifests" / "webhook" / "webhook.yaml").read_text())
    installed = the(render(mutating=[]), "MutatingWebhookConfiguration", CONFIGURATION)
    assert kept(installed["webhooks"]) == kept(source["webhooks"])
    for webhook in source["webhooks"]:
        assert (webhook["failurePolicy"], webhook["timeoutSeconds"], webhook["sideEffects"]) == ("Ignore", 2, "None")


def test_enforcement_can_be_switched_off_in_webhook_mode_too(render: Render) -> None:
    objects = render("admission.enforce.enabled=false", mutating=[])
    assert of_kind(objects, "MutatingWebhookConfiguration") == []


def test_cert_manager_is_asked_for_a_certificate_where_it_is_wanted(render: Render) -> None:
    ours = render(mutating=[])
    assert of_kind(ours, "Certificate") == []
    assert "annotations" not in the(ours, "MutatingWebhookConfiguration", CONFIGURATION)["metadata"]
    theirs = render("admission.certManager.enabled=true", mutating=[])
    spec = the(theirs, "Certificate", WEBHOOK)["spec"]
    names = server_names(WEBHOOK, "precision-system")
    assert (spec["secretName"], tuple(spec["dnsNames"])) == (WEBHOOK, names)
    assert spec["issuerRef"] == {"kind": "Issuer", "name": WEBHOOK}
    assert the(theirs, "Issuer", WEBHOOK)["spec"] == {"selfSigned": {}}
    annotations = the(theirs, "MutatingWebhookConfiguration", CONFIGURATION)["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": f"precision-system/{WEBHOOK}"}
    assert parse_settings(config(theirs), environment={}).admission.cert_manager
    issuer = 'admission.certManager.issuerRef={"kind":"ClusterIssuer","name":"internal"}'
    chosen = render("admission.certManager.enabled=true", issuer, mutating=[])
    assert the(chosen, "Certificate", WEBHOOK)["spec"]["issuerRef"]["name"] == "internal"
    assert of_kind(chosen, "Issuer") == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(
            ["--set", "admission.enforce.enabled=false"], "admission.enforce.enabled is false", id="switched off"
        ),
    ],
)
def test_the_notes_say_why_admission_enforces_nothing(helm: Helm, arguments: list[str], said: str) -> None:
    done = helm("install", "precision-operator", CHART, "--dry-run=client", *REGISTRY, *arguments)
    assert f"NOTE: admission is NotEnforcing, because {said}" in done.stdout


def test_the_notes_say_where_policies_do_not_work(helm: Helm) -> None:
    done = helm("install", "precision-operator", CHART, "--dry-run=client", "--namespace", "training", *REGISTRY)
    assert "Policies work in every namespace but kube-system and training:" in done.stdout


def test_what_enforces_and_guards_assignments_outlives_the_release_and_nothing_else(render: Render) -> None:
    objects = [(o["kind"], o["metadata"]["name"], o["metadata"].get("annotations", {})) for o in render()]
    kept = {(kind, name) for kind, name, annotations in objects if annotations.get("helm.sh/resource-policy") == "keep"}
    crds = {("CustomResourceDefinition", o["metadata"]["name"]) for o in of_kind(render(), "CustomResourceDefinition")}
    guards = {("ValidatingAdmissionPolicy", f"precision-assignment-{who}.precision.genesis.ai") for who in WRITING}
    enforcing = ASSIGNING | guards
    assert kept == crds | enforcing | {(f"{kind}Binding", name) for kind, name in enforcing}
    assert len(crds) == 3
    assert of_kind(render("crds.enabled=false"), "CustomResourceDefinition") == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("service.enabled=false", "Service"),
        ("podDisruptionBudget.enabled=false", "PodDisruptionBudget"),
        ("rbac.create=false", "RoleBinding"),
    ],
)
def test_parts_can_be_left_out(render: Render, value: str, kind: str) -> None:
    assert of_kind(render(), kind)
    assert of_kind(render(value), kind) == []
