"""Which connections the chart's NetworkPolicy leaves to the operator's pods. Nothing here enforces it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.rendered import Json, of_kind, the

Render = Callable[..., list[Json]]
ON = "networkPolicy.enabled=true"
NOTIFIED = ("config.notifications.ops.url=jsons://x",)


def spec(render: Render, *values: str, mutating: tuple[str, ...] = ("v1",)) -> Json:
    found: Json = the(render(ON, *values, mutating=mutating), "NetworkPolicy")["spec"]
    return found


def opened(rules: list[Json]) -> set[tuple[str, object]]:
    """Protocol and port of every rule."""
    return {(port["protocol"], port["port"]) for rule in rules for port in rule["ports"]}


def peers(rules: list[Json], port: object, side: str) -> list[Json] | None:
    """Whom the rule of this port names; None: everybody."""
    (rule,) = [rule for rule in rules if port in [entry["port"] for entry in rule["ports"]]]
    found: list[Json] | None = rule.get(side)
    return found


def test_there_is_none_unless_it_is_wanted(render: Render) -> None:
    assert of_kind(render(), "NetworkPolicy") == []


def test_it_selects_the_operators_pods_and_no_others(render: Render) -> None:
    objects = render(ON, mutating=[])
    policy, template = the(objects, "NetworkPolicy"), the(objects, "Deployment")["spec"]["template"]
    selected = policy["spec"]["podSelector"]["matchLabels"]
    assert selected.items() <= template["metadata"]["labels"].items()
    for job in of_kind(objects, "Job"):
        labels = job["spec"]["template"]["metadata"]["labels"]
        assert not selected.items() <= labels.items(), "the uninstall hook reaches its API server by itself"


def test_every_port_of_the_container_has_a_rule_of_its_own(render: Render) -> None:
    for served in (["v1"], []):
        objects = render(ON, mutating=served)
        (container,) = the(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
        ingress = the(objects, "NetworkPolicy")["spec"]["ingress"]
        assert {port["name"] for port in container["ports"]} <= {port for _, port in opened(ingress)}
        assert all(len(rule["ports"]) == 1 for rule in ingress)


def test_pods_of_the_cluster_reach_metrics_and_alerts_and_everybody_the_webhook(render: Render) -> None:
    ingress = spec(render)["ingress"]
    assert opened(ingress) == {("TCP", "http"), ("TCP", "webhook"), ("TCP", "alerts")}
    assert peers(ingress, "http", "from") == peers(ingress, "alerts", "from") == [{"namespaceSelector": {}}]
    assert peers(ingress, "webhook", "from") is None


def test_who_may_come_in_can_be_narrowed(render: Render) -> None:
    alertmanager = '[{"podSelector":{"matchLabels":{"app":"alertmanager"}}}]'
    ingress = spec(render, f"networkPolicy.ingress.alerts={alertmanager}")["ingress"]
    assert peers(ingress, "alerts", "from") == [{"podSelector": {"matchLabels": {"app": "alertmanager"}}}]


def test_the_operator_reaches_api_servers_dns_and_prometheus_and_nothing_else(render: Render) -> None:
    egress = spec(render)["egress"]
    assert opened(egress) == {("TCP", 443), ("TCP", 6443), ("TCP", 53), ("UDP", 53), ("TCP", 9090)}
    assert peers(egress, 6443, "to") is None
    assert peers(egress, 9090, "to") == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]


def test_the_metadata_service_of_a_cloud_is_not_reached(render: Render) -> None:
    """It listens on port 80."""
    assert not any(port == 80 for _, port in opened(spec(render, *NOTIFIED, mutating=())["egress"]))


@pytest.mark.parametrize("port", [443, 465, 587, 9093])
def test_channels_are_reached_only_where_there_are_some(render: Render, port: int) -> None:
    """Web services, mail by mode=ssl and by mode=starttls, Alertmanager."""
    assert ("TCP", port) in opened(spec(render, *NOTIFIED)["egress"])
    assert (("TCP", port) in opened(spec(render)["egress"])) == (port == 443), "the API server is there too"


def test_replicas_that_serve_the_webhook_ask_each_other(render: Render) -> None:
    assert ("TCP", "webhook") not in opened(spec(render)["egress"])
    served = spec(render, mutating=())
    assert peers(served["egress"], "webhook", "to") == [{"podSelector": served["podSelector"]}]


@pytest.mark.parametrize("name", ["apiServer", "dns", "prometheus"])
def test_an_endpoint_is_set_by_its_destinations_and_ports(render: Render, name: str) -> None:
    block = '[{"ipBlock":{"cidr":"10.1.2.0/24"}}]'
    egress = spec(render, f"networkPolicy.egress.{name}.to={block}", f"networkPolicy.egress.{name}.ports=[1234]")[
        "egress"
    ]
    assert peers(egress, 1234, "to") == [{"ipBlock": {"cidr": "10.1.2.0/24"}}]


def test_a_destination_without_ports_is_left_out(render: Render) -> None:
    assert ("TCP", 9090) not in opened(spec(render, "networkPolicy.egress.prometheus.ports=[]")["egress"])
