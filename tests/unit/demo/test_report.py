"""The report's figures and checks, from a written audit log, trainers' lines and what the story read back."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from lab.demo.fleet import FLEET, LITERAL, NAMESPACE
from lab.demo.metrics import BreachPoll, Metrics
from lab.demo.report import TIMED, build
from lab.demo.stage import OPERATOR_USER, Images, Reapplier, Stage, workload_of
from lab.demo.story import Facts

FAULT_AT, VISIBLE_AT, FINISHED_AT = 1_800_000_000.0, 1_800_000_010.0, 1_800_000_040.0
Report = dict[str, Any]


def event(at: float, resource: str, *, user: str = OPERATOR_USER, verb: str = "patch", **changes: object) -> Report:
    name, _, subresource = resource.partition("/")
    inner = {"subresource": subresource} if subresource else {}
    stamp = f"2027-01-15T08:{int(at - FAULT_AT) // 60:02d}:{int(at - FAULT_AT) % 60:02d}.000000Z"
    return {
        "stage": "ResponseComplete",
        "verb": verb,
        "user": {"username": user},
        "objectRef": {"resource": name, "namespace": NAMESPACE, "name": "one", **inner},
        "requestURI": "/",
        "requestReceivedTimestamp": stamp,
        "stageTimestamp": stamp,
        "responseStatus": {"code": 200},
        **changes,
    }


def applied(at: float) -> Report:
    return event(at, "deployments", user="admin", requestURI=f"/?fieldManager={Reapplier.MANAGER}&force=true")


def stage(folder: Path, audit_log: Path | None) -> Stage:
    """All that the report reads of it is the log."""
    nobody = cast("Any", None)
    return Stage(nobody, nobody, Images("", "", "", "Never"), audit_log, None, folder)


class Run:
    """What a run of the demo left, in which all went well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state = {"phase": "RollingBack", "incident": {"id": "fleet-1"}}
        self.audit = [
            event(FAULT_AT + 11, "precisionassignments", verb="update", requestObject={"state": state}),
            *(event(FAULT_AT + 12, "pods") for _ in FLEET),
            event(FAULT_AT + 13, "precisionpolicies/status"),
            *(applied(FAULT_AT + second) for second in range(50)),
        ]
        self.lines = [(t.name, "precision_changed", rank) for t in FLEET if t.hot for rank in range(t.ranks)]
        poll = BreachPoll(cast("Metrics", None), "", level=0.3, needed=2, workload=workload_of)
        poll.first_at, poll.visible_at, poll.gap_seconds = VISIBLE_AT - 1, VISIBLE_AT, 0.1
        rollout = {trainer.key: ("1", "set", "pod") for trainer in FLEET}
        templates = {trainer.key: "template" for trainer in FLEET}
        self.facts = Facts(
            fault_at=FAULT_AT,
            breach=poll,
            offsets_before={f"{t.name}-bcdfg": 5.0 for t in FLEET},
            offsets_after={f"{t.name}-bcdfg": 5.0 for t in FLEET},
            rollout_start=rollout,
            rollout_before=rollout,
            rollout_after=rollout,
            finished_at=FINISHED_AT,
            modes_after={"pod": "fp32"},
            operator_replicas=0,
            new_pod_modes={"late": "fp32"},
            templates_before=templates,
            templates_after=templates,
        )

    def report(self) -> Report:
        self.folder.joinpath("audit.log").write_text("".join(f"{json.dumps(line)}\n" for line in self.audit))
        for name, what, rank in self.lines:
            line = {"event": what, "rank": rank, "to": "fp32", "time": VISIBLE_AT + 1}
            self._log(name, line)
        for what, second in (("stopping", 2), ("resumed", 5)):
            self._log(LITERAL, {"event": what, "mode": "fp32", "step": 40, "time": VISIBLE_AT + second})
        return build(stage(self.folder, self.folder / "audit.log"), self.facts, self.folder, version="v1")

    def _log(self, name: str, line: Report) -> None:
        with (self.folder / f"{name}@{name}-bcdfg.log").open("a") as file:
            file.write(f"{json.dumps(line)}\n")


def failed(report: Report) -> set[str]:
    assert report["ok"] is not any(not held for held in report["checks"].values())
    return {check for check, held in report["checks"].items() if not held}


def test_figures_of_a_run_in_which_all_went_well(tmp_path: Path) -> None:
    report = Run(tmp_path).report()
    assert failed(report) == set()
    assert report["hot"] == {
        "pods": 5,
        "ranks": 6,
        "breach_to_last_ack_seconds": 1.0,
        "restarts": 0,
        "steps_lost": 0,
    }
    assert report["restart"] == {"pods": 1, "breach_to_last_ack_seconds": 5.0, "steps_lost": 0}
    assert report["full_node_restart"] == {"pods": 1, "breach_to_last_ack_seconds": 5.0}
    assert (report["breach_to_decided_seconds"], report["last_patch_at"]) == (1.0, FAULT_AT + 12)
    assert (report["template_writes"], report["template_rollouts"], report["reapplier_writes"]) == (0, 0, 50)
    assert (report["rollbacks"], report["api_writes"]) == (1, 8)


def without_ack(run: Run) -> None:
    run.lines.remove(("trainer-0", "precision_changed", 0))


def with_another_revision(run: Run) -> None:
    run.facts = replace(run.facts, rollout_after={**run.facts.rollout_start, FLEET[0].key: ("2", "set", "pod")})


def with_another_template(run: Run) -> None:
    run.facts = replace(run.facts, templates_after={**run.facts.templates_before, FLEET[0].key: "another"})


def writes(resource: str) -> Callable[[Run], None]:
    return lambda run: run.audit.append(event(FAULT_AT + 12, resource))


def many_writes(run: Run) -> None:
    run.audit += [event(FAULT_AT + 14, "events") for _ in range(10)]


def reapplier_stopped(run: Run) -> None:
    run.audit = [line for line in run.audit if line["user"]["username"] == OPERATOR_USER]
    run.audit += [applied(FAULT_AT + second) for second in range(40)]


def reapplier_refused(run: Run) -> None:
    run.facts.reapplier_errors += ["HTTP Error 409: Conflict"] * 20


def late(run: Run) -> None:
    assert run.facts.breach is not None
    run.facts.breach.visible_at, run.facts.breach.gap_seconds = VISIBLE_AT - 200, 0.3


@pytest.mark.parametrize(
    ("spoil", "checks"),
    [
        (without_ack, {"every hot rank flipped"}),
        (with_another_revision, {"no template was rolled out"}),
        (with_another_template, {"templates are byte-equal"}),
        (writes("deployments"), {"the operator wrote no template"}),
        (writes("deployments/scale"), {"the operator wrote no template"}),
        (many_writes, {"the rollback kept to its API writes"}),
        (reapplier_stopped, {"the re-applier was at work"}),
        (reapplier_refused, {"the re-applier was at work"}),
        (late, set(TIMED)),
    ],
)
def test_a_check_that_does_not_hold_is_named(tmp_path: Path, spoil: Callable[[Run], None], checks: set[str]) -> None:
    run = Run(tmp_path)
    spoil(run)
    assert failed(run.report()) == checks


def test_writes_of_controllers_to_their_own_objects_are_not_the_operators(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.audit.append(event(FAULT_AT + 12, "deployments/status", user="system:serviceaccount:kube-system:controller"))
    assert run.report()["template_writes"] == 0


def test_without_an_audit_log_what_it_would_show_is_null(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.report()
    report = build(stage(tmp_path, None), run.facts, tmp_path, version="v1")
    assert failed(report) == set()
    assert {report[key] for key in ("template_writes", "reapplier_writes", "api_writes", "rollbacks")} == {None}
