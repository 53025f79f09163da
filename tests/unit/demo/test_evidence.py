"""The report is computed from raw evidence: the audit log and the trainers' own lines."""

import json
from pathlib import Path

from lab.cluster.audit import Audit
from lab.demo.evidence import decided_at, fenced_at, flips, rollbacks, trainer_events

USER = "system:serviceaccount:precision-system:precision-operator"


def audit(second: int, **changes: object) -> str:
    event = {
        "stage": "ResponseComplete",
        "verb": "patch",
        "user": {"username": USER},
        "objectRef": {"resource": "pods", "namespace": "training", "name": "p"},
        "requestReceivedTimestamp": f"2026-11-21T11:00:{second:02d}.000000Z",
        "stageTimestamp": f"2026-11-21T11:00:{second:02d}.500000Z",
        "responseStatus": {"code": 200},
        **changes,
    }
    return json.dumps(event)


def committed(second: int, phase: str, code: int = 200) -> str:
    return audit(
        second,
        verb="update",
        objectRef={"resource": "precisionassignments", "namespace": "training", "name": "fleet"},
        requestObject={"state": {"phase": phase}},
        responseStatus={"code": code},
    )


def test_decision_is_the_first_committed_assignment_that_says_rolling_back(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.write_text(
        "\n".join([committed(1, "Healthy"), committed(2, "RollingBack", 409), committed(3, "RollingBack"), ""])
    )
    writes = Audit(log).writes([USER])
    at = decided_at(writes, since=0.0)
    assert at == writes[2].at
    assert decided_at(writes, since=at + 1) is None


def test_a_kind_of_write_is_fenced_once_each_of_its_policies_has_denied_a_trial(tmp_path: Path) -> None:
    def tried(second: int, policy: str, *, dry: bool = True) -> str:
        message = f"ValidatingAdmissionPolicy '{policy}.precision.genesis.ai' with binding 'b' denied request: no"
        uri = "/api/v1/x?dryRun=All" if dry else "/api/v1/x"
        return audit(second, requestURI=uri, responseStatus={"code": 403, "message": message})

    log = tmp_path / "audit.log"
    lines = [
        tried(1, "precision-fence-pods"),
        tried(3, "precision-fence-deletions", dry=False),
        tried(4, "somebody-elses"),
        tried(5, "precision-fence-deletions"),
        tried(6, "precision-fence-pods"),
        tried(7, "precision-fence-pods"),
    ]
    log.write_text("\n".join([*lines, ""]))
    trials = Audit(log).denied_trials([USER])
    began = trials[0][1].at
    found = fenced_at(trials, since=began)
    assert {kind: at % 60 for kind, at in found.items()} == {"writes to pods": 6.5}
    assert fenced_at(trials, since=began + 5) == {}


def test_rollbacks_are_the_incidents_that_were_committed(tmp_path: Path) -> None:
    def with_incident(second: int, incident: str) -> str:
        event = json.loads(committed(second, "RollingBack"))
        event["requestObject"]["state"]["incident"] = {"id": incident}
        return json.dumps(event)

    log = tmp_path / "audit.log"
    log.write_text(
        "\n".join([with_incident(1, "old"), with_incident(3, "a"), with_incident(4, "a"), with_incident(5, "b"), ""])
    )
    writes = Audit(log).writes([USER])
    assert rollbacks(writes, since=writes[1].at) == {"a": writes[1].at, "b": writes[3].at}


def test_flip_of_each_rank_is_its_own_first_after_the_fault(tmp_path: Path) -> None:
    def line(rank: int, at: float, to: str = "fp32") -> str:
        return json.dumps({"event": "precision_changed", "rank": rank, "to": to, "time": at, "step": 7})

    (tmp_path / "fleet@fleet-1-a.log").write_text(
        "\n".join([line(0, 1.0), line(0, 11.0), line(1, 11.2), line(0, 12.0)])
    )
    (tmp_path / "solo@solo-1-b.log").write_text("\n".join([line(0, 11.5, "fp16"), '{"torn', "Traceback"]))
    found = flips(trainer_events(tmp_path), to="fp32", since=10.0)
    assert {key: event.at for key, event in found.items()} == {("fleet-1-a", 0): 11.0, ("fleet-1-a", 1): 11.2}
