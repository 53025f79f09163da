"""The operator's configuration as the chart writes it, and the values that it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
import yaml

from lab.docs.commands import blocks_of
from precision_operator.config_file import parse_settings
from precision_operator.receiver.alertmanager import MAX_ALERTS
from precision_operator.receiver.server import PATH
from precision_operator.settings import ReceiverSettings
from tests.support.alerting import documented, webhook_of
from tests.support.charted import CHART, ROOT, Helm, Render
from tests.support.rendered import REGISTRY, Json, config, of_kind, the


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


def test_the_documented_templates_of_messages_are_taken_and_those_of_an_unknown_kind_refused(
    render: Render, helm: Helm
) -> None:
    page = ROOT / "docs" / "notifications.md"
    (block,) = [block for block in blocks_of(page.name, page.read_text()) if "messageTemplates:" in block.text]
    given = yaml.safe_load(block.text)["config"]["messageTemplates"]
    value = f"config.messageTemplates={json.dumps(given)}"
    templates = parse_settings(config(render(value)), environment={}).message_templates
    assert {kind: {**given[kind]} for kind in given} == {
        kind: {name: text for name, text in asdict(template).items() if text} for kind, template in templates.items()
    }
    unknown = 'config.messageTemplates={"Notise":{"subject":"$policy"}}'
    refused = helm("template", "p", CHART, *REGISTRY, "--set-json", unknown, check=False)
    assert refused.returncode != 0
    assert "Notise" in refused.stderr


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


def test_an_entry_that_an_overlay_takes_away_does_not_reach_the_operator(render: Render) -> None:
    away = ("config.prometheus.other=null", "config.queries.other=null", "config.notifications.other=null")
    settings = parse_settings(config(render(*away)), environment={})
    assert (list(settings.prometheus), settings.queries, settings.notifications) == (["default"], {}, {})
