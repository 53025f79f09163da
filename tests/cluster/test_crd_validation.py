"""What the API server itself says to good and to bad policies: the schema, its CEL rules and its defaults."""

from __future__ import annotations

import copy
import json

import pytest

from lab.cluster import Kubectl
from precision_operator.api.summary import summary_to_wire
from precision_operator.cli.lint import lint
from tests.support.policies import BAD, GOOD, SELECTOR, Json, policy
from tests.support.rules import named, named_by_the_server
from tests.support.signals import ROWS
from tests.support.summaries import FULL, LONGEST


def dry_run(kubectl: Kubectl, body: Json) -> tuple[bool, str]:
    done = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", input=json.dumps(body), check=False)
    return done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", GOOD)
def test_a_sensible_policy_is_accepted(kubectl: Kubectl, name: str) -> None:
    accepted, said = dry_run(kubectl, policy(**GOOD[name]))
    assert accepted, said


@pytest.mark.parametrize("name", BAD)
def test_nonsense_is_refused_with_what_was_expected(kubectl: Kubectl, name: str) -> None:
    spec, expected = BAD[name]
    accepted, said = dry_run(kubectl, policy(**spec))
    assert not accepted, "accepted"
    assert expected in said
    linted = named((f.path, f.message) for f in lint("policy.yaml", json.dumps(policy(**spec))))
    if linted:  # lint asks no rule while the structure is wrong; the server asks some
        assert linted == named_by_the_server(said)


def test_a_policy_without_a_spec_is_refused(kubectl: Kubectl) -> None:
    body = policy()
    del body["spec"]
    accepted, said = dry_run(kubectl, body)
    assert not accepted
    assert "spec: Required value" in said


DEFAULTS: Json = {
    "selector": SELECTOR,
    "target": "fp16",
    "fallback": "fp32",
    "delivery": "Auto",
    "unit": "Workload",
    "enforcement": "Enforce",
    "suspend": False,
    "deletionPolicy": "Hold",
    "prometheusRef": {"name": "default"},
    "progressDeadlineSeconds": 600,
    "schedule": {"timeZone": "UTC"},
    "strategy": {
        "steps": [
            {"setWeight": 10},
            {"pause": {"duration": "10m"}},
            {"setWeight": 25},
            {"pause": {"duration": "10m"}},
            {"setWeight": 50},
            {"pause": {"duration": "10m"}},
            {"setWeight": 100},
        ],
        "canary": {"by": "Share", "nodeLabel": "fp16=enabled"},
        "comparison": {"onRegression": "Hold", "falseAlarmRate": 0.05, "margin": 0.2},
    },
    "evaluation": {
        "interval": "15s",
        "window": "5m",
        "failureLimit": 1,
        "minSamples": 3,
        "minSteps": 20,
        "maxSampleAge": "1m",
        "noDataLimit": "10m",
        "onNoData": "Hold",
    },
    "criteria": {signal.value: dict(row.defaults) for signal, row in ROWS.items()},
    "rollback": {
        "fleetShare": 0.25,
        "fleetMinimum": 2,
        "recoverySuccess": 0.95,
        "ackTimeout": "90s",
        "deadlines": {"P0": "5m", "P1": "15m", "P2": "30m"},
        "strategies": {"P0": "Emergency", "P1": "Emergency", "P2": "Gradual"},
        "emergency": {"maxConcurrentPods": 500, "expectedRestart": "1m", "respectDisruptionBudgets": False},
        "onPendingRevision": "Wait",
        "onMemoryShortage": "Restart",
        "gradual": {"sustain": "10m", "batchShare": 0.25, "inFlight": "10m"},
        "canary": {
            "by": "Share",
            "share": 0.1,
            "nodeLabel": "fp16=disabled",
            "window": "2h",
            "limit": "24h",
            "falseAlarmRate": 0.05,
            "margin": 0.1,
            "onNoDifference": "Hold",
        },
        "mitigation": {
            "overflow": {
                "window": "30m",
                "ladder": ["HalveScale", "GrowthInterval", "BF16"],
                "dwell": "8m",
                "rollbackAbove": 0.2,
            },
            "speed": {"window": "1h"},
        },
    },
    "reenable": {
        "prerequisites": ["rootCause", "fix", "stagingTested", "monitoring", "teamNotified", "rollbackReady"],
        "backoff": "10m",
        "backoffLimit": "24h",
        "stable": "168h",
        "dwell": "72h",
        "success": 0.98,
        "speed": 1.0,
    },
}


def test_a_selector_alone_gives_every_default(kubectl: Kubectl) -> None:
    accepted, said = dry_run(kubectl, policy())
    assert accepted, said
    assert json.loads(said)["spec"] == DEFAULTS


def test_one_field_of_a_group_leaves_the_defaults_of_the_others(kubectl: Kubectl) -> None:
    changed: Json = {"evaluation": {"interval": "2s"}, "criteria": {"speed": {"enabled": False}}}
    expected = copy.deepcopy(DEFAULTS)
    expected["evaluation"]["interval"] = "2s"
    expected["criteria"]["speed"]["enabled"] = False
    _, said = dry_run(kubectl, policy(**changed))
    assert json.loads(said)["spec"] == expected


def test_null_means_the_default(kubectl: Kubectl) -> None:
    _, said = dry_run(kubectl, policy(target=None, evaluation=None, criteria=None))
    assert json.loads(said)["spec"] == DEFAULTS


STATUS = json.loads(json.dumps(summary_to_wire(FULL)))
"""Every field that the operator ever writes."""


def test_every_field_of_the_status_is_kept_as_written(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(policy()))
    kubectl(
        "patch",
        "ppol",
        "p",
        "-n",
        namespace,
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": STATUS}),
    )
    assert kubectl.json("get", "ppol", "p", "-n", namespace)["status"] == STATUS


def test_a_status_sent_with_a_new_policy_is_dropped(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-n", namespace, "-f", "-", input=json.dumps({**policy(), "status": STATUS}))
    assert kubectl.json("get", "ppol", "p", "-n", namespace)["status"] == {"observedGeneration": -1}


def test_the_table_shows_where_a_policy_stands(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(policy()))
    kubectl(
        "patch",
        "ppol",
        "p",
        "-n",
        namespace,
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": STATUS}),
    )
    header, row = kubectl("get", "ppol", "-n", namespace).stdout.splitlines()
    assert header.split() == ["NAME", "PRECISION", "PHASE", "STEP", "MOVED", "SINCE", "AGE"]
    assert row.split()[:6] == ["p", "fp32", "RollingBack", "2/4", "25%", "3/6"]
    wide = kubectl("get", "genesis", "-n", namespace, "-o", "wide").stdout
    assert {"HELD", "ENFORCED", "REASON"} <= set(wide.split())
    assert {"1", "False", "OverflowRateHigh"} <= set(wide.split())


def test_a_status_as_long_as_the_operator_writes_it_is_accepted(kubectl: Kubectl, namespace: str) -> None:
    kubectl("create", "-n", namespace, "-f", "-", input=json.dumps(policy()))
    current = kubectl.json("get", "ppol", "p", "-n", namespace)
    status = json.loads(json.dumps(summary_to_wire(LONGEST)))
    kubectl(
        "replace", "-n", namespace, "--subresource=status", "-f", "-", input=json.dumps({**current, "status": status})
    )
    assert kubectl.json("get", "ppol", "p", "-n", namespace)["status"] == status


def test_every_field_is_described(kubectl: Kubectl) -> None:
    schema = kubectl.json("get", "crd", "precisionpolicies.precision.genesis.ai")["spec"]["versions"][0]["schema"]

    def undescribed(node: Json, path: str) -> list[str]:
        found = (
            [path] if not node.get("description") and path and path != ".metadata" and not path.endswith("[]") else []
        )
        for key, child in node.get("properties", {}).items():
            found += undescribed(child, f"{path}.{key}")
        if isinstance(node.get("items"), dict):
            found += undescribed(node["items"], f"{path}[]")
        return found

    assert undescribed(schema["openAPIV3Schema"], "") == []


def test_no_part_of_the_schema_lets_unknown_fields_through(kubectl: Kubectl) -> None:
    crd = json.dumps(kubectl.json("get", "crd", "precisionpolicies.precision.genesis.ai")["spec"])
    assert "x-kubernetes-preserve-unknown-fields" not in crd
