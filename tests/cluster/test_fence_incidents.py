"""What a stolen token of the operator can do to incidents: tried with its account and every right that RBAC can give."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.waiting import wait_for
from tests.support.users import GROUP, Client, Json, custom, person, said

REPORT: Json = {
    "id": "fleet-5",
    "policy": "fleet",
    "policyUid": "1",
    "severity": "P1",
    "scope": "Fleet",
    "reason": "OverflowRateHigh",
    "phase": "Active",
    "stages": {"decidedAt": "2026-01-01T00:00:00Z"},
}
CHANGED = "the operator may not change which rollback an incident is about"


def incident(**changes: object) -> Json:
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "PrecisionIncident",
        "metadata": {"name": "fleet-5"},
        "report": {**REPORT, **changes},
    }


@pytest.fixture
def path(operator: Client, namespace: str) -> str:
    """Of an incident that the operator has written."""
    operator.made("POST", custom(namespace, "precisionincidents"), incident())
    return custom(namespace, "precisionincidents", "fleet-5")


def test_the_operator_carries_an_incident_on_to_its_end(operator: Client, path: str) -> None:
    for changes in ({"severity": "P0"}, {"phase": "Verifying"}, {"phase": "Closed"}, {"message": "told"}):
        operator.made("PATCH", path, {"report": changes})
    operator.made("DELETE", path)


@pytest.mark.parametrize(
    "forged",
    [
        {"id": "fleet-6"},
        {"policy": "other"},
        {"policyUid": "2"},
        {"stages": {"decidedAt": "2026-01-02T00:00:00Z"}},
        {"stages": None},
    ],
    ids=str,
)
def test_an_incident_stays_about_its_rollback(operator: Client, path: str, forged: Json) -> None:
    assert CHANGED in said(operator("PATCH", path, {"report": forged}))


def test_a_closed_incident_is_not_opened_again(operator: Client, path: str) -> None:
    operator.made("PATCH", path, {"report": {"phase": "Closed"}})
    for phase in ("Active", "Verifying"):
        answer = operator("PATCH", path, {"report": {"phase": phase}})
        assert "the operator may not open an incident again that is closed" in said(answer)


def test_an_incident_that_goes_on_is_not_removed(operator: Client, path: str) -> None:
    refusal = "the operator may delete no incident that is not closed"
    assert refusal in said(operator("DELETE", path))
    assert refusal in said(operator("DELETE", path.rpartition("/")[0]))


@pytest.mark.parametrize("role", ["view", "edit", "admin"])
def test_no_role_of_people_writes_incidents(
    control_plane: ControlPlane, kubectl: Kubectl, namespace: str, tmp_path: Path, path: str, role: str
) -> None:
    name = f"{role}-{namespace}"
    kubectl("create", "rolebinding", name, f"--clusterrole={role}", f"--user={name}", "-n", namespace)
    with person(control_plane, tmp_path, name) as client:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        wait_for(lambda: client("GET", pods).ok, what="the role's rights", seconds=30)
        collection = path.rpartition("/")[0]
        forged = {**incident(), "metadata": {"name": "forged"}}
        answers = [client("POST", collection, forged), client("PATCH", path, {}), client("DELETE", path)]
    assert [answer.status_code for answer in answers] == [403, 403, 403]
