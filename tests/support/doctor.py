"""An installation in which nothing is amiss, and what ``doctor`` finds in one."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml

from precision_operator.admission.objects import GROUP, PLURALS, shipped
from precision_operator.api.drill import Drill, DrillResult
from precision_operator.cli import examine_installation as installation
from precision_operator.cli import examine_operator as operator_checks
from precision_operator.cli.release import CRDS
from precision_operator.contract import ECHO, ECHO_NONCE
from precision_operator.kube.port import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    ENDPOINT_SLICES,
    LEASES,
    POLICIES,
    JsonObject,
    Resource,
)
from precision_operator.runtime.lease import micro_time
from tests.support.cli import NOW, Cli, Json
from tests.support.pasting import check_pasted

PASSED = Drill(
    id="d", began_at=NOW - 90, deadline_at=NOW, ended_at=NOW - 80, result=DrillResult.PASSED, passed_at=NOW - 80
)
OURS = {"app.kubernetes.io/part-of": "genesis-precision"}


def installed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """An installation in which nothing is amiss but that nobody has rehearsed a rollback."""
    fake = cli.fake
    fake.put(CRDS, {"metadata": {"name": f"{POLICIES.plural}.{POLICIES.group}", "namespace": ""}})
    operator: Any = {"metadata": {"name": "precision-operator", "namespace": "precision-system", "labels": OURS}}
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "config", "configMap": {"name": "settings"}}]
    pod: Any = {"serviceAccountName": "precision-operator", "volumes": volumes}
    pod["containers"] = [{"image": "registry.example/team/precision-operator:0.1.0"}]
    spec: Any = {"replicas": 1, "template": {"spec": pod}}
    fake.put(DEPLOYMENTS, {**operator, "spec": spec, "status": {"readyReplicas": 1}})
    configured(cli, prometheus={"default": {"url": "http://prometheus.monitoring.svc:9090"}})
    with_service(cli, "prometheus", "monitoring")
    spec = {"holderIdentity": "one", "renewTime": micro_time(time.time()), "leaseDurationSeconds": 300}
    fake.put(LEASES, {"metadata": {"name": "precision-operator", "namespace": "precision-system"}, "spec": spec})
    for ours in shipped():
        fake.put(Resource(GROUP, "v1", PLURALS[ours.kind]), _named(ours.name))
    alerts: Any = {"metadata": {"name": "precision", "labels": OURS}}
    fake.put(installation.PROMETHEUS_RULES, alerts)
    created = fake.create

    async def create(resource: Any, namespace: str, body: JsonObject) -> JsonObject:  # noqa: ANN401 - as the fake's
        if resource in (operator_checks.ACCESS_REVIEWS, operator_checks.SUBJECT_REVIEWS):
            return {"status": {"allowed": True}}
        answer = await created(resource, namespace, body)
        return {**answer, "metadata": {"creationTimestamp": micro_time(time.time())}}

    monkeypatch.setattr(fake, "create", create)
    monkeypatch.setattr(fake, "answer", echoed)
    return cli


def configured(cli: Cli, **config: object) -> None:
    config_map: Any = {"metadata": {"name": "settings", "namespace": "precision-system"}}
    cli.fake.put(CONFIG_MAPS, {**config_map, "data": {"config.yaml": yaml.safe_dump(config)}})


def with_service(cli: Cli, name: str, namespace: str, *, ready: bool = True) -> None:
    labels = {"kubernetes.io/service-name": name}
    cli.fake.put(operator_checks.SERVICES, {"metadata": {"name": name, "namespace": namespace}, "spec": {}})
    body: Any = {"metadata": {"name": f"{name}-x", "namespace": namespace, "labels": labels}, "ports": [{"port": 1}]}
    body["endpoints"] = [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]
    cli.fake.put(ENDPOINT_SLICES, body)


def echoed(body: JsonObject) -> JsonObject:
    """As the admission policy answers a dry run."""
    answered: Any = body
    notes = answered["metadata"]["annotations"]
    notes[ECHO] = f"{notes[ECHO_NONCE]}/{answered['metadata']['name']}/7"
    return body


def _named(name: str) -> JsonObject:
    return {"metadata": {"name": name, "namespace": ""}}


def findings(cli: Cli, *words: str, code: int = 0) -> list[Json]:
    found: list[Json] = cli.json("doctor", *words, code=code)
    return found


def amiss(cli: Cli, *words: str, code: int) -> dict[str, Json]:
    """What is not ok, by check; each has a command that can be pasted."""
    found = {found["check"]: found for found in cli.json("doctor", *words, code=code) if found["level"] != "ok"}
    for finding in found.values():
        assert finding["mend"], finding
        check_pasted(finding["mend"])
    return found
