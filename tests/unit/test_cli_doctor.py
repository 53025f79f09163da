"""``doctor`` and ``onboard``: each finding with what mends it, and the one label."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import yaml

from precision_operator.api.conditions import Condition
from precision_operator.api.drill import Drill, DrillResult
from precision_operator.api.state import Phase
from precision_operator.cli import examine_installation as installation
from precision_operator.errors import Forbidden
from precision_operator.kube.port import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    LEASES,
    POLICIES,
    JsonObject,
    Resource,
)
from precision_operator.runtime.lease import micro_time
from tests.support import trainers
from tests.support.cli import FLEET, INCIDENT, NOW, Cli, Json, stands

PASSED = Drill(
    id="d", began_at=NOW - 90, deadline_at=NOW, ended_at=NOW - 80, result=DrillResult.PASSED, passed_at=NOW - 80
)
OURS = {"app.kubernetes.io/part-of": "genesis-precision"}


@pytest.fixture
def sound(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """An installation in which nothing is amiss but that nobody has rehearsed a rollback."""
    fake = cli.fake
    fake.put(installation.CRDS, {"metadata": {"name": f"{POLICIES.plural}.{POLICIES.group}", "namespace": ""}})
    operator: Any = {"metadata": {"name": "precision-operator", "namespace": "precision-system", "labels": OURS}}
    fake.put(DEPLOYMENTS, {**operator, "spec": {"replicas": 1}, "status": {"readyReplicas": 1}})
    spec: Any = {"holderIdentity": "one", "renewTime": micro_time(time.time()), "leaseDurationSeconds": 300}
    fake.put(LEASES, {"metadata": {"name": "precision-operator", "namespace": "precision-system"}, "spec": spec})
    for plural, name in installation._shipped():
        fake.put(Resource("admissionregistration.k8s.io", "v1", plural), _named(name))
    rule: Any = {"resources": ["precisionassignments"], "verbs": ["get", "update"]}
    fake.put(installation.CLUSTER_ROLES, {**_named("precision-operator"), "rules": [rule]})
    alerts: Any = {"metadata": {"name": "precision", "labels": OURS}}
    fake.put(installation.PROMETHEUS_RULES, alerts)
    created = fake.create

    async def create(resource: Any, namespace: str, body: JsonObject) -> JsonObject:  # noqa: ANN401 - as the fake's
        if resource == installation.ACCESS_REVIEWS:
            return {"status": {"allowed": True}}
        answer = await created(resource, namespace, body)
        return {**answer, "metadata": {"creationTimestamp": micro_time(time.time())}}

    monkeypatch.setattr(fake, "create", create)
    return cli


def _named(name: str) -> JsonObject:
    return {"metadata": {"name": name, "namespace": ""}}


def test_who_may_not_read_policies_is_told_so_and_what_else_was_found(
    sound: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = sound.fake.list

    async def listed(
        resource: Resource, namespace: str, *, label_selector: str = "", most_bytes: int | None = None
    ) -> Sequence[JsonObject]:
        if resource == POLICIES:
            raise Forbidden("bob may not list precisionpolicies", status=403)
        return await allowed(resource, namespace, label_selector=label_selector, most_bytes=most_bytes)

    monkeypatch.setattr(sound.fake, "list", listed)
    found = amiss(sound, code=1)
    assert {name: finding["level"] for name, finding in found.items()} == {"drill": "warning", "fleets": "error"}
    assert all("cannot be looked at" in finding["message"] for finding in found.values())


def amiss(cli: Cli, *words: str, code: int) -> dict[str, Json]:
    """What is not ok, by check."""
    return {found["check"]: found for found in cli.json("doctor", *words, code=code) if found["level"] != "ok"}


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
        ("clusterroles", "precision-operator", "rights", "helm upgrade"),
        ("mutatingadmissionpolicies", "precision-echo.precision.genesis.ai", "admission", "helm upgrade"),
    ],
)
def test_what_is_missing_is_an_error_with_the_command_that_mends_it(
    sound: Cli, plural: str, name: str, check: str, mend: str
) -> None:
    sound.fake.objects = {k: b for k, b in sound.fake.objects.items() if (k[0], k[2]) != (plural, name)}
    found = amiss(sound, code=1)[check]
    assert (found["level"], mend in found["mend"]) == ("error", True)


def _renamed_lease(cli: Cli) -> None:
    """As the chart's value config.lease.name has it."""
    operator: Any = cli.fake.objects["deployments", "precision-system", "precision-operator"]
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "config", "configMap": {"name": "settings"}}]
    operator["spec"]["template"] = {"spec": {"volumes": volumes}}
    lease = cli.fake.objects.pop(("leases", "precision-system", "precision-operator"))
    cli.fake.put(LEASES, {**lease, "metadata": {"name": "theirs", "namespace": "precision-system"}})


def test_the_lease_is_the_one_that_the_operators_config_names(sound: Cli) -> None:
    _renamed_lease(sound)
    found = amiss(sound, code=1)["lease"]["message"]
    assert found == "no Lease precision-operator: no operator has ever led"
    config: Any = {"metadata": {"name": "settings", "namespace": "precision-system"}}
    sound.fake.put(CONFIG_MAPS, {**config, "data": {"config.yaml": "logLevel: info\nlease:\n  name: theirs\n"}})
    assert "lease" not in amiss(sound, code=0)


@pytest.mark.parametrize("content", ["lease: [", "lease: theirs", "[]", ""])
def test_a_config_that_cannot_be_read_leaves_the_default_lease(sound: Cli, content: str) -> None:
    lease = sound.fake.objects["leases", "precision-system", "precision-operator"]
    _renamed_lease(sound)
    config: Any = {"metadata": {"name": "settings", "namespace": "precision-system"}, "data": {"config.yaml": content}}
    sound.fake.put(CONFIG_MAPS, config)
    sound.fake.put(LEASES, {**lease, "metadata": {"name": "precision-operator", "namespace": "precision-system"}})
    assert "lease" not in amiss(sound, code=0)


def test_crds_that_are_missing_end_the_examination_of_fleets(sound: Cli) -> None:
    sound.fake.unserved = {POLICIES}
    assert amiss(sound, code=1)["crds"]["message"] == "not installed: precisionpolicies"


def test_alert_rules_that_are_missing_are_a_warning(sound: Cli) -> None:
    sound.fake.unserved = {installation.PROMETHEUS_RULES}
    assert amiss(sound, code=0)["alerts"]["level"] == "warning"


def test_a_condition_that_is_bad_news_carries_the_first_command_of_its_reason(sound: Cli) -> None:
    text = "it differs"
    conditions = (
        Condition("AdmissionEnforced", "False", "AdmissionDiffers", text, 1, NOW),
        Condition("FailSafe", "False", "TemplateStartsMixed", text, 1, NOW),
    )
    sound.policy(stands(Phase.HEALTHY, conditions=conditions))
    found = [f for f in sound.json("doctor", code=1) if f["check"] == "default/fleet" and f["level"] != "ok"]
    assert [f["level"] for f in found] == ["error", "warning"]
    assert all(f["mend"].startswith("kubectl ") for f in found)


def test_what_mends_a_fleet_of_another_namespace_names_that(sound: Cli) -> None:
    conditions = tuple(Condition(kind, "False", "PolicyConflict", "theirs", 1, NOW) for kind in ("Accepted", "Healthy"))
    sound.policy(stands(Phase.HELD, conditions=conditions))
    found = [f for f in sound.json("doctor", "-A", "-n", "elsewhere", code=1) if f["check"] == "default/fleet"]
    mends = [f["mend"] for f in found if f["mend"]]
    assert mends
    assert all("-n default" in mend for mend in mends)


def test_an_operator_that_was_scaled_away_is_an_error(sound: Cli) -> None:
    operator: Any = sound.fake.objects["deployments", "precision-system", "precision-operator"]
    operator.update(spec={"replicas": 0}, status={})
    found = amiss(sound, code=1)["operator"]
    assert (found["level"], "0 of 0" in found["message"]) == ("error", True)


def test_a_workload_without_the_contract_or_without_metrics_is_named(sound: Cli) -> None:
    silent = stands(Phase.HEALTHY)
    sound.policy(replace(silent, state=replace(silent.state, silent={"apps/Deployment/a": NOW})))
    sound.trainer("a", "fp16")
    bare = trainers.deployment("b", labels=FLEET, spec=trainers.bare_spec())
    sound.fake.put(DEPLOYMENTS, bare)
    found = amiss(sound, code=1)
    assert "reports no metrics" in found["default/fleet deployment/a"]["message"]
    assert found["default/fleet deployment/b"]["mend"] == "kubectl precision onboard deployment/b -n default"


@pytest.fixture
def workload(cli: Cli) -> Cli:
    cli.fake.put(DEPLOYMENTS, trainers.deployment("vit", labels=FLEET))
    return cli


LABELS = {"precision.genesis.ai/inject": "trainer"}
PATCH = {"spec": {"template": {"metadata": {"labels": LABELS}}}}


def test_the_label_is_shown_as_a_patch_for_kustomize_and_for_helm(workload: Cli) -> None:
    shown = workload("onboard", "deployment/vit")
    assert yaml.safe_load(shown) == PATCH
    assert "# its pods restart, once: kubectl -n default patch deployment vit --type=merge -p" in shown
    assert yaml.safe_load(workload("onboard", "vit", "--format=helm")) == {"podLabels": LABELS}
    (patch,) = yaml.safe_load(workload("onboard", "vit", "--format=kustomize"))["patches"]
    assert yaml.safe_load(patch["patch"])["spec"] == PATCH["spec"]
    assert workload.fake.writes == []


def test_it_is_set_only_where_the_restart_was_agreed_to(workload: Cli) -> None:
    assert "its pods restart, once; to do it, add --yes" in workload("onboard", "vit", "--apply", code=1)
    assert workload.fake.writes == []
    assert "set: its pods restart, once" in workload("onboard", "vit", "--apply", "--yes")
    body: Any = workload.fake.objects[("deployments", "default", "vit")]
    assert body["spec"]["template"]["metadata"]["labels"] == {"app": "vit", **FLEET, **LABELS}
    assert "has the label" in workload("onboard", "vit", "--apply", "--yes")
    assert len(workload.fake.writes) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["vti"], "there are vit; did you mean vit?"),
        (["deplyment/vit"], "did you mean deployment?"),
        (["vit", "--container", "trainr"], "did you mean trainer?"),
        (["job/night", "--apply", "--yes"], "its template cannot change"),
    ],
)
def test_what_cannot_be_onboarded_is_refused_with_the_next_step(workload: Cli, words: list[str], said: str) -> None:
    workload.fake.put(JOBS, trainers.deployment("night", labels=FLEET))
    assert said in workload("onboard", *words, code=1)
    assert json.dumps(workload.fake.writes) == "[]"


def test_the_shown_line_does_what_apply_does(workload: Cli) -> None:
    line = workload.json("onboard", "vit")["kubectl"]
    assert json.loads(shlex.split(line)[-1]) == PATCH
