"""Incidents of the real operator, on a real API server with a real Prometheus, and `kubectl precision` on them."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.waiting import wait_for
from precision_operator.api.commands import Prerequisite
from precision_operator.api.wire import parse_time
from precision_operator.cli import main
from tests.support.cluster_fleet import Json, deployment
from tests.support.cluster_scene import (
    HOT,
    PATIENCE_SECONDS,
    Scene,
    assert_all_in_fallback,
    break_two,
    promoted,
    staged,
)
from tests.support.shadow_trainers import ShadowTrainers

QUICK = {"incidents": {"immediateSeconds": 10, "shortSeconds": 15, "longSeconds": 20}}


@pytest.fixture
def scene(kubectl: Kubectl, operator_kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Scene]:
    """Four hot trainers, with the checklist's windows compressed."""
    shadow = ShadowTrainers(kubectl, namespace)
    with staged(kubectl, shadow, tmp_path, operator=operator_kubeconfig, settings=QUICK) as scene:
        scene.apply(*(deployment(name) for name in HOT))
        wait_for(lambda: len(scene.shadow.modes()) == len(HOT), what="pods of all four", seconds=PATIENCE_SECONDS)
        yield scene


def incidents(scene: Scene) -> list[Json]:
    items: list[Json] = scene.kubectl.json("get", "precisionincidents", "-n", scene.namespace)["items"]
    return items


def of_the_fleet(scene: Scene) -> list[Json]:
    """One of two that break may be seen before the other, and held alone: that is an incident of its own."""
    return [incident for incident in incidents(scene) if incident["report"]["scope"] == "Fleet"]


def wait_incident(scene: Scene, phase: str) -> Json:
    """Wait for its phase. A held policy is evaluated once a minute: an annotation that means nothing brings it forward."""

    def there() -> bool:
        scene.kubectl(
            "annotate", "--overwrite", "ppol", "fleet", "-n", scene.namespace, f"example.org/look={time.time()}"
        )
        return [i["report"]["phase"] for i in of_the_fleet(scene)] == [phase]

    wait_for(
        there,
        what=f"one incident, {phase}",
        seconds=PATIENCE_SECONDS,
        found=lambda: f"{[(i['metadata'], i['report']['phase']) for i in incidents(scene)]}\n{scene.operators.logs()}",
    )
    return of_the_fleet(scene)[0]


def wait_evidence(scene: Scene) -> Json:
    """Wait for the evidence of the fallback. It may be written after the incident is closed."""

    def there() -> Json | None:
        (incident,) = of_the_fleet(scene)
        report = incident["report"]
        (since,) = [parse_time(m["at"]) or 0.0 for m in report["timeline"] if m["what"] == "InFallback"]
        ends = [parse_time(found["end"]) or 0.0 for found in report.get("evidence", [])]
        return incident if max(ends, default=0.0) >= since else None

    return wait_for(there, what="the evidence", seconds=PATIENCE_SECONDS, found=scene.operators.logs)


def all_closed(scene: Scene) -> list[Json] | None:
    found = incidents(scene)
    return found if all(incident["report"]["phase"] == "Closed" for incident in found) else None


def flags(scene: Scene) -> list[str]:
    return ["--kubeconfig", str(scene.kubectl.kubeconfig), "-n", scene.namespace]


def test_a_rollback_leaves_an_incident_that_is_verified_exported_and_replayed(
    scene: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    promoted(scene)
    break_two(scene)
    scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    wait_incident(scene, "Closed")
    closed = wait_evidence(scene)
    report, name = closed["report"], closed["metadata"]["name"]
    assert "ownerReferences" not in closed["metadata"]
    assert closed["metadata"]["labels"]["precision.genesis.ai/severity"] == report["severity"] == "P1"
    checks = {(c["window"], c["name"]): c["result"] for c in report["checklist"]}
    assert checks["Immediate", "Fallback confirmed by the processes"] == "Passed"
    assert checks["Short", "Training completion rate above 95 %"] == "Passed"
    # No kubelet makes these pods ready, and the checklist does not look away: no all-clear.
    assert checks["Immediate", "Services restarted"] == "Failed"
    assert [m["kind"] for m in report["messages"]] == ["Notice", "VerificationFailed"]
    assert report["timeline"][-1]["what"] == "VerificationFailed"
    overflow = next(e for e in report["evidence"] if e["name"] == "overflow")
    assert overflow["series"] >= 2
    assert "genesis_fp16_overflow_steps_total" in overflow["query"]
    assert {a["question"]: a["answer"] for a in report["questions"]}[
        "What triggered the rollback?"
    ] == "High overflow rate"

    counts = Counter(c["result"].lower() for c in report["checklist"])

    def counted() -> bool:
        scene.kubectl(
            "annotate", "--overwrite", "ppol", "fleet", "-n", scene.namespace, f"example.org/look={time.time()}"
        )
        said = scene.kubectl.json("get", "ppol", "fleet", "-n", scene.namespace)["status"]["incident"]
        return "recoveredAt" in said and {k: v for k, v in said.get("checks", {}).items() if v} == counts

    wait_for(counted, what="recovery and the checklist's counts in the policy's status", seconds=PATIENCE_SECONDS)
    assert main(["get", "--prometheus", scene.prometheus.url, "-o", "json", *flags(scene)]) == 0
    (tree,) = json.loads(capsys.readouterr().out)
    workloads = [w for cohort in tree["cohorts"] for w in cohort["workloads"]]
    assert {w["acknowledged"] for w in workloads} == {True}
    assert {p["reports"]["mode"] for w in workloads for p in w["pods"]} == {"fp32"}

    assert main(["incident", "list", *flags(scene)]) == 0
    assert name in capsys.readouterr().out
    assert main(["incident", "show", name, *flags(scene)]) == 0
    assert "OverflowRateHigh" in capsys.readouterr().out
    folder = tmp_path / "export"
    assert main(["incident", "export", name, str(folder), *flags(scene)]) == 0
    kept = {p.name for p in folder.iterdir()}
    assert {"incident.md", "incident.json", "recording.json", "overflow.png", "events.json"} <= kept
    events = {(e["object"].partition("/")[0], e["reason"]) for e in json.loads((folder / "events.json").read_text())}
    assert {("PrecisionPolicy", "RolledBack"), ("Deployment", "ScalingReplicaSet")} <= events
    capsys.readouterr()
    assert main(["replay", name, *flags(scene)]) == 0
    assert "bit for bit" in capsys.readouterr().out

    # Cut off from the cluster, the exported file is replayed as well; altered, it is found out.
    exported = folder / "incident.json"
    assert main(["replay", str(exported), "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["passes"] == report["recordings"]["count"]
    assert said["difference"] is None
    assert main(["replay", str(exported), "--what-if", "criteria.overflow.enter=0.95"]) == 0

    version = of_the_fleet(scene)[0]["metadata"]["resourceVersion"]
    begun = time.monotonic()
    wait_for(lambda: time.monotonic() - begun > 4, what="eight evaluations", seconds=20)
    assert of_the_fleet(scene)[0]["metadata"]["resourceVersion"] == version


def test_an_incident_outlives_its_policy_and_its_operator(scene: Scene) -> None:
    promoted(scene)
    break_two(scene)
    scene.wait_phase("Held")
    wait_for(lambda: of_the_fleet(scene), what="the incident", seconds=PATIENCE_SECONDS, found=scene.operators.logs)
    scene.operators.running["one"].kill()
    scene.operators.start("two")
    report = wait_incident(scene, "Closed")["report"]
    assert {"Detected", "Decided", "InFallback"} <= {m["what"] for m in report["timeline"]}
    scene.kubectl("delete", "ppol", "fleet", "-n", scene.namespace, "--timeout=30s")
    assert len(of_the_fleet(scene)) == 1


def test_finished_incidents_are_kept_up_to_a_number(scene: Scene) -> None:
    scene.operators.settings = {"incidents": {**QUICK["incidents"], "keep": 1}}
    promoted(scene)
    break_two(scene)
    first = scene.wait_phase("Held")
    assert_all_in_fallback(scene)
    wait_for(lambda: len(incidents(scene)) == 1, what="the first incident", seconds=PATIENCE_SECONDS)
    scene.shadow.overflow = {}
    number = first["transitionId"]
    commands = ["retry", *(f"ack-{item}" for item in Prerequisite)]
    given = [f"precision.genesis.ai/{command}={number}" for command in commands]
    scene.kubectl("annotate", "ppol", "fleet", "-n", scene.namespace, *given)
    scene.wait_phase("Healthy")
    (kept,) = wait_for(lambda: all_closed(scene), what="its end", seconds=PATIENCE_SECONDS, found=scene.operators.logs)
    assert kept["report"]["id"] == first["incident"]["id"]

    break_two(scene)
    second = scene.wait_phase("Held")["incident"]["id"]
    assert second != first["incident"]["id"]
    assert wait_incident(scene, "Closed")["report"]["id"] == second


def test_a_rollback_goes_on_where_the_crd_of_incidents_is_missing(scene: Scene) -> None:
    """The API answers 404 for the kind, and no rollback is held up."""
    definition = scene.kubectl.json("get", "crd", "precisionincidents.precision.genesis.ai")
    scene.kubectl("delete", "crd", "precisionincidents.precision.genesis.ai", "--timeout=30s")
    try:
        promoted(scene)
        break_two(scene)
        scene.wait_phase("Held")
        assert_all_in_fallback(scene)
    finally:
        kept = {"name": definition["metadata"]["name"], "labels": definition["metadata"].get("labels", {})}
        scene.kubectl.apply({**{k: v for k, v in definition.items() if k != "status"}, "metadata": kept})
        scene.kubectl.wait_until("condition=Established", "crd/precisionincidents.precision.genesis.ai", seconds=30)
        served = ("get", "precisionincidents", "-n", scene.namespace)
        wait_for(lambda: scene.kubectl(*served, check=False).returncode == 0, what="incidents to be served", seconds=30)
