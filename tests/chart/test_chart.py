"""What the chart renders to, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from precision_operator import __version__
from precision_operator.contract import INJECT
from precision_operator.receiver.server import PATH
from precision_operator.settings import ReceiverSettings, parse_settings
from precision_operator.signals.alertmanager import MAX_ALERTS
from precision_operator.webhook.keeper import server_names
from tests.support.alerting import documented, webhook_of
from tests.support.rendered import REGISTRY, Json, config, of_kind, shipped, the

Render = Callable[..., list[Json]]
Helm = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "precision-operator"


def test_it_lints_without_a_warning(helm: Helm) -> None:
    done = helm("lint", "--strict", CHART, *REGISTRY)
    assert "[WARNING]" not in done.stdout


MONITORING = ("ServiceMonitor", "PodMonitor", "PrometheusRule")


@pytest.mark.parametrize("kind", MONITORING)
def test_the_prometheus_operator_is_used_where_asked_for(render: Render, kind: str) -> None:
    assert of_kind(render(monitoring=MONITORING), kind) == []
    value = kind[0].lower() + kind[1:]
    asked = render(f"{value}.enabled=true", f"{value}.labels.release=monitoring", monitoring=[kind])
    (found,) = of_kind(asked, kind)
    assert found["metadata"]["labels"]["release"] == "monitoring"
    assert not [o for o in asked if o["kind"] in MONITORING and o["kind"] != kind]


@pytest.mark.parametrize("kind", MONITORING)
def test_a_missing_api_of_the_prometheus_operator_is_named_with_the_next_step(helm: Helm, kind: str) -> None:
    value = kind[0].lower() + kind[1:]
    done = helm("template", "x", CHART, *REGISTRY, "--set", f"{value}.enabled=true", check=False)
    assert f"{value}.enabled is true, and monitoring.coreos.com/v1/{kind} is not served" in done.stderr
    assert f"add `--api-versions monitoring.coreos.com/v1/{kind}`" in done.stderr


def test_the_operator_is_scraped_at_its_service(render: Render, helm: Helm) -> None:
    objects = render("serviceMonitor.enabled=true", "serviceMonitor.interval=5s", monitoring=MONITORING)
    monitor = the(objects, "ServiceMonitor")["spec"]
    service = the(objects, "Service", "precision-operator-metrics")
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint == {"port": service["spec"]["ports"][0]["name"], "interval": "5s"}
    alone = ("serviceMonitor.enabled=true", "service.enabled=false")
    settings = [word for value in alone for word in ("--set", value)]
    served = ("--api-versions", "monitoring.coreos.com/v1/ServiceMonitor")
    assert (
        "--set service.enabled=true" in helm("template", "x", CHART, *REGISTRY, *served, *settings, check=False).stderr
    )


@pytest.mark.parametrize(
    ("values", "where"), [([], {"any": True}), (['namespaces=["a","b"]'], {"matchNames": ["a", "b"]})]
)
def test_trainers_are_scraped_where_the_operator_works(render: Render, values: list[str], where: Json) -> None:
    objects = render("podMonitor.enabled=true", *values, monitoring=MONITORING)
    spec = the(objects, "PodMonitor", "precision-operator-trainers")["spec"]
    assert spec["namespaceSelector"] == where
    assert spec["selector"] == {"matchExpressions": [{"key": INJECT, "operator": "Exists"}]}
    assert spec["podMetricsEndpoints"] == [{"port": "metrics"}]


def test_the_alerts_are_the_ones_that_were_tested(render: Render) -> None:
    rule = the(render("prometheusRule.enabled=true", monitoring=MONITORING), "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((ROOT / "manifests" / "monitoring" / "alerts.yaml").read_text())


def test_everything_derived_is_up_to_date() -> None:
    """The chart's copies, manifests/base/operator.yaml and docs/reference equal what their sources give."""
    command: list[str | Path] = [sys.executable, ROOT / "manifests" / "generate.py", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\nrun: make generate"


def test_the_chart_installs_the_crd_and_policies_that_were_tested(render: Render) -> None:
    def content(objects: list[Json]) -> dict[tuple[str, str], Json]:
        return {(o["kind"], o["metadata"]["name"]): {k: v for k, v in o.items() if k != "metadata"} for o in objects}

    sources = [*(ROOT / "crds").glob("*.yaml"), *(ROOT / "manifests" / "admission").glob("*.yaml")]
    expected = content([document for path in sources for document in yaml.safe_load_all(path.read_text())])
    installed = content(render())
    assert {key: installed.get(key) for key in expected} == expected


# ---- the pod


def test_the_pod_keeps_to_the_restricted_standard(render: Render) -> None:
    spec = the(render(), "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {volume["name"] for volume in spec["volumes"]} == {"config", "tmp"}
    assert container["resources"]["limits"]["memory"]


def test_the_pod_is_told_who_it_is_and_where_its_configuration_lies(render: Render) -> None:
    (container,) = the(render(), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--config", "/etc/precision-operator/config.yaml"]
    fields = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]}
    assert fields == {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace"}
    probes = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert probes == {"startup": "/livez", "liveness": "/livez", "readiness": "/readyz"}
    assert container["ports"] == [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]


@pytest.mark.parametrize(
    ("values", "image"),
    [
        pytest.param([], f"localhost/precision-operator:{__version__}", id="the chart's version"),
        pytest.param(["image.tag=v9"], "localhost/precision-operator:v9", id="a tag"),
        pytest.param(
            [f"image.digest=sha256:{'a' * 64}", "image.tag=v9"],
            f"localhost/precision-operator@sha256:{'a' * 64}",
            id="a digest wins",
        ),
        pytest.param(
            ["image.registry=host:5000/path"], f"host:5000/path/precision-operator:{__version__}", id="a path"
        ),
    ],
)
def test_the_image_is_named_by_tag_or_digest(render: Render, values: list[str], image: str) -> None:
    (container,) = the(render(*values), "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == image


def test_without_a_registry_the_next_step_is_named(helm: Helm) -> None:
    done = helm("template", "x", CHART, check=False)
    assert done.returncode != 0
    assert "`make push REGISTRY=host/path`, then add `--set image.registry=host/path`" in done.stderr


def test_pods_take_what_an_admin_gives_them(render: Render) -> None:
    objects = render(
        'imagePullSecrets=[{"name":"internal"}]',
        'extraEnv=[{"name":"TOKEN","value":"x"}]',
        "securityContext.runAsUser=null",
        "containerSecurityContext.privileged=false",
        'topologySpreadConstraints=[{"maxSkew":2,"topologyKey":"rack","whenUnsatisfiable":"DoNotSchedule"}]',
        mutating=[],
    )
    specs = [the(objects, "Deployment")["spec"]["template"]["spec"]]
    specs += [job["spec"]["template"]["spec"] for job in of_kind(objects, "Job")]
    assert len(specs) == 2
    for spec in specs:
        assert spec["imagePullSecrets"] == [{"name": "internal"}]
        assert "runAsUser" not in spec["securityContext"]
        assert spec["containers"][0]["securityContext"]["privileged"] is False
    assert {"name": "TOKEN", "value": "x"} in specs[0]["containers"][0]["env"]
    (spread,) = specs[0]["topologySpreadConstraints"]
    assert (spread["maxSkew"], spread["topologyKey"]) == (2, "rack")
    assert spread["labelSelector"]["matchLabels"] == the(objects, "Deployment")["spec"]["selector"]["matchLabels"]


@pytest.mark.parametrize("mutating", [["v1"], []], ids=["policies", "webhook"])
def test_common_labels_are_on_every_object_and_select_nothing(render: Render, mutating: list[str]) -> None:
    objects = render("commonLabels.team=ml", mutating=mutating)
    assert [o["metadata"]["name"] for o in objects if o["metadata"].get("labels", {}).get("team") != "ml"] == []
    deployment = the(objects, "Deployment")["spec"]
    assert deployment["template"]["metadata"]["labels"]["team"] == "ml"
    assert "team" not in deployment["selector"]["matchLabels"]


def test_extra_objects_are_taken_as_they_are_or_as_templates(render: Render) -> None:
    given = [{"kind": "A", "metadata": {"name": "a"}}, "kind: B\nmetadata: {name: '{{ .Release.Name }}'}"]
    objects = render(f"extraObjects={json.dumps(given)}")
    assert the(objects, "A", "a") == given[0]
    assert the(objects, "B", "precision-operator")


@pytest.mark.parametrize(("replicas", "budgets"), [(0, 0), (1, 0), (2, 1), (3, 1)])
def test_a_disruption_budget_is_made_for_more_than_one_replica(render: Render, replicas: int, budgets: int) -> None:
    assert len(of_kind(render(f"replicaCount={replicas}"), "PodDisruptionBudget")) == budgets


# ---- the configuration


def test_the_operator_reads_the_configuration_that_the_chart_writes(render: Render) -> None:
    settings = parse_settings(
        config(
            render(
                'namespaces=["a"]',
                "config.prometheus.team.url=http://team:9090",
                'config.queries={"my-overflow":"sum by (pod) (x{namespace=\\"$namespace\\"})"}',
                "config.restartBudget=3",
                "config.lease.durationSeconds=9",
            )
        ),
        environment={"POD_NAME": "p-0", "POD_NAMESPACE": "n"},
    )
    assert settings.watch_namespaces == ("a",)
    assert settings.prometheus["team"].url == "http://team:9090"
    assert set(settings.prometheus) == {"default", "team"}
    assert settings.queries == {"my-overflow": 'sum by (pod) (x{namespace="$namespace"})'}
    assert settings.restart_budget == 3
    assert (settings.lease.duration_seconds, settings.lease.renew_seconds, settings.lease.retry_seconds) == (9, 4, 1)


def test_the_charts_defaults_are_the_operators_own(render: Render) -> None:
    given = parse_settings(config(render()), environment={})
    bare = parse_settings({}, environment={})
    names = (
        "lease",
        "incidents",
        "restart_budget",
        "max_promoting_workloads",
        "writes_per_second",
        "concurrent_writes",
        "workers",
        "log_level",
    )
    assert {name: getattr(given, name) for name in names} == {name: getattr(bare, name) for name in names}
    assert given.admission == replace(bare.admission, mode="Policy"), "the operator is told what was installed"


def test_alertmanager_is_served_where_a_token_secret_is_named(render: Render) -> None:
    objects = render("receiver.tokenSecret=alerts", "receiver.tlsSecret=tls", "receiver.port=9999")
    (container,) = (spec := the(objects, "Deployment")["spec"]["template"]["spec"])["containers"]
    assert {"name": "alerts", "containerPort": 9999, "protocol": "TCP"} in container["ports"]
    receiver = parse_settings(config(objects), environment={}).receiver
    assert receiver == ReceiverSettings(
        token_file="/etc/precision-receiver/token",
        port=9999,
        certificate_file="/etc/precision-receiver/tls.crt",
        key_file="/etc/precision-receiver/tls.key",
    )
    (mount,) = (mount for mount in container["volumeMounts"] if mount["name"] == "receiver")
    (volume,) = (volume for volume in spec["volumes"] if volume["name"] == "receiver")
    sources = [source["secret"] for source in volume["projected"]["sources"]]
    assert all(source["optional"] for source in sources), "a missing Secret keeps no operator from starting"
    files = {f"{mount['mountPath']}/{item['path']}" for source in sources for item in source["items"]}
    assert files == {receiver.token_file, receiver.certificate_file, receiver.key_file}
    assert mount["readOnly"] is True


def test_the_documented_alertmanager_posts_to_the_charts_service(render: Render) -> None:
    objects = render("receiver.tokenSecret=precision-alerts")
    service = the(objects, "Service", "precision-operator-alerts")
    (port,) = service["spec"]["ports"]
    (container,) = (deployment := the(objects, "Deployment"))["spec"]["template"]["spec"]["containers"]
    assert port["targetPort"] in {named["name"] for named in container["ports"]}
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    host = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    webhook = webhook_of(documented())
    assert webhook["url"] == f"http://{host}:{port['port']}{PATH}"
    assert webhook["max_alerts"] == MAX_ALERTS


def test_without_a_token_secret_nothing_of_the_receiver_is_made(render: Render) -> None:
    objects = render()
    assert [service["metadata"]["name"] for service in of_kind(objects, "Service")] == ["precision-operator-metrics"]
    assert parse_settings(config(objects), environment={}).receiver.token_file == ""


def test_a_changed_configuration_starts_new_pods(render: Render) -> None:
    def checksum(*values: str) -> str:
        found = the(render(*values), "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"]
        return str(found)

    assert checksum() == checksum()
    assert checksum() != checksum("config.logLevel=debug")
    assert checksum() != checksum('namespaces=["a"]')


# ---- switches


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


# ---- the webhook

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


def test_a_foreign_service_account_must_be_named(helm: Helm) -> None:
    done = helm("template", "x", CHART, *REGISTRY, "--set", "serviceAccount.create=false", check=False)
    assert done.returncode != 0
    assert "name the ServiceAccount to use" in done.stderr


TYPOS = [
    "replicas=2",
    "image.repo=x",
    "image.pullPolicy=Sometimes",
    "image.digest=sha256:abc",
    "image.registry=https://host",
    "image.pullSecrets[0]=x",
    "imagePullSecrets[0]=x",
    "env[0].name=x",
    "commonLabels.a.b=c",
    "serviceMonitor.enable=true",
    "podMonitor.interval=often",
    "topologySpreadConstraints[0].maxSkew=1",
    "config.restartBugdet=3",
    "config.restartBudget=0",
    "config.maxPromotingWorkloads=-1",
    "config.logLevel=loud",
    "config.prometheus.default.headers=x",
    "config.prometheus.default.url=ftp://x",
    "config.prometheus.Bad_Name.url=http://x",
    "config.lease.duration=6",
    "admission.enforce.enable=false",
    "admission.gate.enabled=false",
    "admission.inject=false",
    "admission.mode=Both",
    "admission.webhook.url=https://x",
    "admission.certManager.enable=true",
    "crds.keep=true",
    "namespaces=default",
    "watchNamespaces=default",
    "config.settleBudget=3",
    "service.port=0",
    "podLabels=x",
    "networkPolicy.enable=true",
    "networkPolicy.ingress.https[0].podSelector.a=b",
    "networkPolicy.ingress.http[0].podselector.a=b",
    "networkPolicy.egress.prometheus.ports[0]=0",
]


@pytest.mark.parametrize("value", TYPOS)
def test_a_typo_in_the_values_is_refused(helm: Helm, value: str) -> None:
    done = helm("template", "x", CHART, *REGISTRY, "--set", value, check=False)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


@pytest.mark.parametrize(("url", "taken"), [("http://x", False), ("https://x", True), ("http://127.0.0.1:9", True)])
def test_a_token_for_prometheus_goes_over_https_only(helm: Helm, url: str, taken: bool) -> None:
    endpoint = ["--set", f"config.prometheus.default.url={url}"]
    assert helm("template", "x", CHART, *REGISTRY, *endpoint, check=False).returncode == 0
    token = ["--set", "config.prometheus.default.bearerTokenFile=/token"]
    assert (helm("template", "x", CHART, *REGISTRY, *endpoint, *token, check=False).returncode == 0) is taken


def test_every_value_is_documented() -> None:
    documented = (ROOT / "docs" / "reference" / "chart-values.md").read_text()
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def leaves(node: Json, path: str) -> list[str]:
        found: list[str] = []
        for key, value in node.items():
            where = f"{path}.{key}" if path else key
            if f"| `{where}` |" in documented:
                continue
            found += leaves(value, where) if isinstance(value, dict) and value else [where]
        return found

    assert leaves(values, "") == []


def test_no_manifest_names_a_registry() -> None:
    for path in [*CHART.rglob("*.yaml"), *(ROOT / "manifests").rglob("*.yaml")]:
        images = re.findall(r"^\s*(?:image|repository):\s*[\"']?([^\s\"'{]+)", path.read_text(), flags=re.MULTILINE)
        assert [image for image in images if "." in image.split("/")[0].split(":")[0] and "/" in image] == [], path
