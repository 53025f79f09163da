"""``doctor`` of the installation: each finding with what mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from precision_operator.admission.objects import GROUP, PLURALS, shipped
from precision_operator.api.drill import DrillResult
from precision_operator.api.state import Phase
from precision_operator.cli import examine_installation as installation
from precision_operator.cli import examine_operator as operator_checks
from precision_operator.contract import ECHO, ECHO_NONCE
from precision_operator.errors import Forbidden, NotFound
from precision_operator.kube.port import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    LEASES,
    POLICIES,
    SELF_SUBJECT_REVIEWS,
    JsonObject,
    Resource,
)
from tests.support.cli import INCIDENT, NOW, Cli, Json, stands
from tests.support.doctor import OURS, PASSED, amiss, configured, findings, installed, with_service


@pytest.fixture
def sound(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.chdir(Path(__file__).parents[2])  # what mends an installation is said for a checkout
    return installed(cli, monkeypatch)


def _unlisted(cli: Cli, monkeypatch: pytest.MonkeyPatch, kind: Resource, namespace: str) -> None:
    allowed = cli.fake.list

    async def listed(
        resource: Resource, where: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        if (resource, where) == (kind, namespace):
            raise Forbidden(f"bob may not list {kind.plural}", status=403)
        return await allowed(resource, where, label_selector=label_selector, most_bytes=most_bytes)

    monkeypatch.setattr(cli.fake, "list", listed)


def test_who_may_not_read_policies_is_told_so_and_what_else_was_found(
    sound: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unlisted(sound, monkeypatch, POLICIES, "default")
    found = amiss(sound, code=1)
    levels = {name: finding["level"] for name, finding in found.items()}
    assert levels == {"echo": "warning", "drill": "warning", "fleets": "error"}
    assert all("cannot be looked at" in finding["message"] for finding in found.values())


def test_a_sound_installation_lacks_a_drill_alone(sound: Cli) -> None:
    sound.policy(stands(Phase.HEALTHY))
    sound.trainer("a", "fp16")
    assert list(amiss(sound, code=0)) == ["drill"]
    sound.policy(stands(Phase.HEALTHY, last_drill=PASSED))
    assert amiss(sound, code=0) == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no drill has passed yet"),
        ({"last_drill": PASSED, "incident": replace(INCIDENT, decided_at=NOW - 60)}, "there was a rollback since"),
        ({"last_drill": replace(PASSED, passed_at=NOW - 91 * 86400.0)}, "the last drill passed 91 days ago"),
        ({"last_drill": replace(PASSED, result=DrillResult.FAILED, passed_at=None)}, "no drill has passed yet"),
    ],
)
def test_a_fleet_whose_way_back_should_be_rehearsed_is_named_with_the_command(
    sound: Cli, given: Json, said: str
) -> None:
    sound.policy(stands(Phase.HEALTHY, **given))
    sound.trainer("a", "fp16")
    found = amiss(sound, code=0)["drill"]
    assert said in found["message"]
    assert found["mend"] == "kubectl precision drill fleet -n default"


def test_with_all_namespaces_the_fleets_of_all_of_them_are_asked_for_their_drills(sound: Cli) -> None:
    sound.policy(stands(Phase.HEALTHY))
    sound.trainer("a", "fp16")
    assert "drill" not in amiss(sound, "-n", "elsewhere", code=0)
    found = amiss(sound, "-A", "-n", "elsewhere", code=0)["drill"]
    assert found["mend"] == "kubectl precision drill fleet -n default"


@pytest.mark.parametrize(
    ("plural", "name", "check", "mend"),
    [
        ("deployments", "precision-operator", "operator", "helm upgrade --install precision-operator"),
        ("leases", "precision-operator", "lease", "logs"),
        ("mutatingadmissionpolicies", "precision-echo.precision.genesis.ai", "admission", "helm upgrade"),
    ],
)
def test_what_is_missing_is_an_error_with_the_command_that_mends_it(
    sound: Cli, plural: str, name: str, check: str, mend: str
) -> None:
    sound.fake.objects = {k: b for k, b in sound.fake.objects.items() if (k[0], k[2]) != (plural, name)}
    found = amiss(sound, code=1)[check]
    assert (found["level"], mend in found["mend"]) == ("error", True)


def test_with_the_webhook_its_own_objects_are_looked_for_and_no_policies_that_mutate(sound: Cli) -> None:
    objects = {key: body for key, body in sound.fake.objects.items() if not key[0].startswith("mutating")}
    sound.fake.objects = objects
    for ours in shipped(webhook=True):
        sound.fake.put(Resource(GROUP, "v1", PLURALS[ours.kind]), {"metadata": {"name": ours.name, "namespace": ""}})
    assert "admission" not in amiss(sound, code=0)
    fence = "precision-fence-webhooks.precision.genesis.ai"
    sound.fake.objects = {key: body for key, body in sound.fake.objects.items() if key[2] != fence}
    found = amiss(sound, code=0)["admission"]
    assert (found["level"], found["message"]) == ("warning", f"not installed: {fence}")


def _renamed_lease(cli: Cli) -> None:
    """As the chart's value config.lease.name has it."""
    del cli.fake.objects["configmaps", "precision-system", "settings"]
    lease = cli.fake.objects.pop(("leases", "precision-system", "precision-operator"))
    cli.fake.put(LEASES, {**lease, "metadata": {"name": "theirs", "namespace": "precision-system"}})


def test_the_lease_is_the_one_that_the_operators_config_names(sound: Cli) -> None:
    _renamed_lease(sound)
    found = amiss(sound, code=1)["lease"]["message"]
    assert found == "no Lease precision-operator: no operator has ever led"
    source = {"default": {"url": "http://prometheus.monitoring:9090"}}
    configured(sound, logLevel="info", lease={"name": "theirs"}, prometheus=source)
    assert "lease" not in amiss(sound, code=0)


@pytest.mark.parametrize("content", ["lease: [", "lease: theirs", "[]", ""])
def test_a_config_that_cannot_be_read_leaves_the_default_lease(sound: Cli, content: str) -> None:
    lease = sound.fake.objects["leases", "precision-system", "precision-operator"]
    _renamed_lease(sound)
    config: Any = {"metadata": {"name": "settings", "namespace": "precision-system"}, "data": {"config.yaml": content}}
    sound.fake.put(CONFIG_MAPS, config)
    sound.fake.put(LEASES, {**lease, "metadata": {"name": "precision-operator", "namespace": "precision-system"}})
    read = content != "lease: ["
    found = {finding["check"]: finding["level"] for finding in findings(sound, code=int(read))}
    assert (found["lease"], found["endpoints"]) == ("ok", "error" if read else "warning")


def test_crds_that_are_missing_end_the_examination_of_fleets(sound: Cli) -> None:
    sound.fake.unserved = {POLICIES}
    assert amiss(sound, code=1)["crds"]["message"] == "not installed: precisionpolicies"


def test_alert_rules_that_are_missing_are_a_warning(sound: Cli) -> None:
    sound.fake.unserved = {installation.PROMETHEUS_RULES}
    assert amiss(sound, code=0)["alerts"]["level"] == "warning"


def test_an_operator_that_was_scaled_away_is_an_error(sound: Cli) -> None:
    operator: Any = sound.fake.objects["deployments", "precision-system", "precision-operator"]
    operator["spec"]["replicas"], operator["status"] = 0, {}
    found = amiss(sound, code=1)["operator"]
    assert (found["level"], "0 of 0" in found["message"]) == ("error", True)


@pytest.mark.parametrize(
    ("said", "level", "message", "mend"),
    [
        ({}, "error", "admission does not answer", "helm upgrade --install"),
        ({ECHO: "other/fleet/7"}, "error", "admission does not answer", "helm upgrade --install"),
        ({ECHO: "NONCE/fleet/6"}, "warning", "knows generation 6 of the assignment, not 7", "kubectl precision doctor"),
    ],
)
def test_admission_is_asked_for_its_echo_of_each_assignment(
    sound: Cli, monkeypatch: pytest.MonkeyPatch, said: dict[str, str], level: str, message: str, mend: str
) -> None:
    def answer(body: JsonObject) -> JsonObject:
        answered: Any = body
        notes = answered["metadata"]["annotations"]
        notes.update({key: value.replace("NONCE", notes[ECHO_NONCE]) for key, value in said.items()})
        return body

    sound.policy(stands(Phase.HEALTHY))
    monkeypatch.setattr(sound.fake, "answer", answer)
    found = amiss(sound, code=1 if level == "error" else 0)["echo"]
    assert (found["level"], message in found["message"]) == (level, True)
    assert found["mend"].startswith(mend)


def test_who_may_not_look_for_the_operator_learns_all_the_same_that_admission_does_not_answer(
    sound: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unlisted(sound, monkeypatch, DEPLOYMENTS, "")
    monkeypatch.setattr(sound.fake, "answer", lambda body: body)
    sound.policy(stands(Phase.HEALTHY))
    found = amiss(sound, code=1)["echo"]
    assert (found["level"], found["mend"]) == ("error", "helm list --all-namespaces --filter precision")


def test_who_may_not_ask_admission_is_told_how_to_see_that(sound: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def denied(*_: object, **__: object) -> JsonObject:
        raise Forbidden("bob may not patch precisionpolicies", status=403)

    sound.policy(stands(Phase.HEALTHY))
    monkeypatch.setattr(sound.fake, "dry_run", denied)
    found = amiss(sound, code=0)["echo"]
    assert (found["level"], found["mend"]) == ("warning", "kubectl -n default auth can-i patch precisionpolicies")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://prometheus.monitoring.svc:9090", "no endpoint of Service monitoring/prometheus is ready"),
        ("http://prometheus.monitoring:9090", "no endpoint of Service monitoring/prometheus is ready"),
        ("http://other.monitoring.svc.cluster.local", "there is no Service monitoring/other"),
        ("http://other", "there is no Service precision-system/other"),
        ("https://metrics.example.com", ""),
        ("http://10.0.0.9:9090", ""),
        ("http://[::1]:9090", ""),
        ("$(PROMETHEUS)", ""),
    ],
)
def test_a_metric_source_without_a_ready_endpoint_is_an_error(sound: Cli, url: str, said: str) -> None:
    configured(sound, prometheus={"default": {"url": url}})
    with_service(sound, "prometheus", "monitoring", ready=False)
    found = amiss(sound, code=1 if said else 0)
    assert found.get("endpoints", {}).get("message", "") == (f"config.prometheus.default: {said}" if said else "")


@pytest.mark.parametrize("url", ["http://prom.corp:9090", "http://other.monitoring:9090"])
def test_a_host_of_two_labels_may_be_no_service(sound: Cli, url: str) -> None:
    configured(sound, prometheus={"default": {"url": url}})
    found = amiss(sound, code=0)["endpoints"]
    assert (found["level"], "is perhaps no Service" in found["message"]) == ("warning", True)


def test_no_metric_source_is_an_error(sound: Cli) -> None:
    configured(sound, prometheus={})
    assert "names no metric source" in amiss(sound, code=1)["endpoints"]["message"]


def test_a_webhook_without_a_ready_replica_is_an_error(sound: Cli) -> None:
    source = {"default": {"url": "http://prometheus.monitoring.svc:9090"}}
    configured(sound, prometheus=source, admission={"mode": "Webhook", "service": "hook"})
    with_service(sound, "hook", "precision-system", ready=False)
    found = amiss(sound, code=1)["endpoints"]
    assert found["message"] == "the webhook: no endpoint of Service precision-system/hook is ready"
    with_service(sound, "hook", "precision-system")
    assert "endpoints" not in amiss(sound, code=0)


@pytest.mark.parametrize("verb", ["update", "create"])
def test_the_operators_rights_are_those_of_its_service_account(
    sound: Cli, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """A deleted ClusterRoleBinding, or a role without pods/eviction: other roles do not count."""
    allowed, asked = sound.fake.create, list[Any]()

    async def create(resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        if resource != operator_checks.SUBJECT_REVIEWS:
            return await allowed(resource, namespace, body)
        asked.append(body["spec"])
        attributes: Any = asked[-1]["resourceAttributes"]
        lacks = {"update": "precisionassignments", "create": "pods"}[verb]
        return {"status": {"allowed": (attributes["verb"], attributes["resource"]) != (verb, lacks)}}

    monkeypatch.setattr(sound.fake, "create", create)
    found = amiss(sound, code=1)["operator rights"]
    lacks = {"update": "update precisionassignments", "create": "create pods/eviction"}[verb]
    assert found["message"] == f"precision-system/precision-operator lacks {lacks} in default"
    assert {spec["user"] for spec in asked} == {"system:serviceaccount:precision-system:precision-operator"}


def test_rights_are_asked_in_the_namespaces_that_the_operator_watches(
    sound: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"default": {"url": "http://prometheus.monitoring.svc:9090"}}
    configured(sound, prometheus=source, watchNamespaces=["a", "b"])
    found = [f["message"] for f in findings(sound) if f["check"] == "operator rights"]
    assert found == [f"precision-system/precision-operator may do what it must in {name}" for name in ("a", "b")]


def test_the_rights_that_are_asked_for_are_those_that_the_manifests_give() -> None:
    bodies = yaml.safe_load_all((Path(__file__).parents[2] / "manifests/base/operator.yaml").read_text())
    role = next(b for b in bodies if (b["kind"], b["metadata"]["name"]) == ("ClusterRole", "precision-operator"))
    given = {
        (group, kind, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for kind in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given == {(group, kind, verb) for group, kind, verbs in operator_checks.RIGHTS for verb in verbs.split()}


@pytest.mark.parametrize(
    ("checkout", "labels", "line"),
    [
        (True, {}, "helm upgrade --install precision-operator helm/precision-operator -n precision-system"),
        (True, {"app.kubernetes.io/instance": "mine"}, "helm upgrade --install mine helm/precision-operator -n"),
        (
            False,
            {"app.kubernetes.io/instance": "mine"},
            "helm upgrade --install mine oci://registry.example/team/charts",
        ),
        (False, None, "helm list --all-namespaces --filter precision --kube-context there"),
    ],
)
def test_the_line_that_installs_names_the_release_and_a_chart_that_is_at_hand(
    sound: Cli,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    checkout: bool,
    labels: dict[str, str] | None,
    line: str,
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2] if checkout else tmp_path)
    operator: Any = sound.fake.objects["deployments", "precision-system", "precision-operator"]
    operator["metadata"]["labels"] = {**OURS, **labels} if labels is not None else {}
    sound.fake.unserved = {POLICIES}
    found = amiss(sound, "--context", "there", code=1)["crds"]
    assert found["mend"].startswith(line)
    assert found["mend"].endswith("--kube-context there")


def test_a_clock_that_is_not_told_is_a_warning_with_a_line_that_asks_for_it(
    sound: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = sound.fake.create

    async def create(resource: Resource, namespace: str, body: JsonObject) -> JsonObject:
        if resource == SELF_SUBJECT_REVIEWS:
            raise NotFound("the server could not find the requested resource", status=404)
        return await allowed(resource, namespace, body)

    monkeypatch.setattr(sound.fake, "create", create)
    assert "does not say what time it is" in amiss(sound, code=0)["clock"]["message"]
