"""What the chart renders to, and what it refuses."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from precision_operator import __version__
from precision_operator.contract import INJECT
from tests.support.charted import CHART, ROOT, Helm, Render
from tests.support.rendered import REGISTRY, Json, of_kind, the


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


def test_no_manifest_names_a_registry() -> None:
    for path in [*CHART.rglob("*.yaml"), *(ROOT / "manifests").rglob("*.yaml")]:
        images = re.findall(r"^\s*(?:image|repository):\s*[\"']?([^\s\"'{]+)", path.read_text(), flags=re.MULTILINE)
        assert [image for image in images if "." in image.split("/")[0].split(":")[0] and "/" in image] == [], path
