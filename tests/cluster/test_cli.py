"""``kubectl precision`` as people use it: the real kubectl finds the plugin on PATH, against a real API server."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.kubeconfig import write_kubeconfig
from lab.waiting import wait_for
from tests.support.cluster_fleet import deployment, policy
from tests.support.cluster_scene import HOT, NO_SPEED, PATIENCE_SECONDS, Scene
from tests.support.users import Client, assignment, custom, grant, rule

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
PREFIX = "precision.genesis.ai/"


class Person:
    """Somebody with a kubeconfig, a shell, and the plugin on PATH."""

    def __init__(self, control_plane: ControlPlane, directory: Path, *, name: str, groups: list[str]) -> None:
        directory.mkdir(exist_ok=True)
        kubectl = Path(control_plane.kubectl.command[0])
        for program, line in {
            "kubectl-precision": f'exec {sys.executable} -m precision_operator.cli "$@"',
            "kubectl": f'exec {kubectl} "$@"',
        }.items():
            script = directory / program
            script.write_text(f"#!/bin/sh\n{line}\n")
            script.chmod(0o755)
        self.env = {
            **os.environ,
            "PATH": f"{directory}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "operator"),
            "KUBECONFIG": str(control_plane.user_kubeconfig(name, groups=groups)),
        }

    def shell(self, line: str, *, code: int = 0) -> str:
        """Run a line; what it printed, errors included."""
        done = subprocess.run(
            ["sh", "-c", line], env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def precision(self, *words: str, code: int = 0) -> str:
        """Run ``kubectl precision``."""
        return self.shell(shlex.join(["kubectl", "precision", *words]), code=code)

    def json(self, *words: str, code: int = 0) -> Any:  # noqa: ANN401 - what JSON is
        return json.loads(self.precision(*words, "-o", "json", code=code))


@pytest.fixture
def alice(control_plane: ControlPlane, tmp_path: Path) -> Person:
    return Person(control_plane, tmp_path / "bin", name="alice", groups=["system:masters"])


class Policy:
    """A policy and its assignment, in any phase: nobody carries anything out."""

    def __init__(self, kubectl: Kubectl, operator: Client, namespace: str) -> None:
        self._kubectl, self._operator, self.namespace = kubectl, operator, namespace
        body = policy()
        kubectl.apply({**body, "metadata": {"name": "fleet", "namespace": namespace}})

    def status(self, phase: str, **fields: object) -> None:
        body = {"observedGeneration": 1, "transitionId": 4, "reason": "Promoted", "message": "so it is", "total": 1}
        patch = json.dumps({"status": {**body, "phase": phase, **fields}})
        where = ("ppol", "fleet", "-n", self.namespace)
        self._kubectl("patch", *where, "--subresource=status", "--type=merge", "-p", patch)
        record = custom(self.namespace, "precisionassignments", "fleet")
        if not self._operator("GET", record).ok:
            self._operator.made("POST", record.removesuffix("/fleet"), assignment(enforce=False, modes={}))
        state = {"phase": phase, "transitionId": fields.get("transitionId", 4)}
        self._operator.made("PATCH", record, {"state": state})

    def annotations(self) -> Json:
        found = self._kubectl.json("get", "ppol", "fleet", "-n", self.namespace)["metadata"].get("annotations", {})
        return {k.removeprefix(PREFIX): v for k, v in found.items() if k.startswith(PREFIX)}

    def suspended(self) -> bool:
        return bool(self._kubectl.json("get", "ppol", "fleet", "-n", self.namespace)["spec"]["suspend"])


@pytest.fixture
def fleet(kubectl: Kubectl, operator: Client, namespace: str) -> Policy:
    found = Policy(kubectl, operator, namespace)
    # the stamping policy takes effect a moment after it was installed
    probe = ("annotate", "--overwrite", "ppol", "fleet", "-n", namespace)

    def stamped() -> bool:
        kubectl(*probe, f"{PREFIX}promote=0")
        kubectl(*probe, f"{PREFIX}promote=1")
        return "promote-by" in found.annotations()

    wait_for(stamped, what="the stamping policy to be in force", seconds=30)
    kubectl(*probe, f"{PREFIX}promote-")
    return found


def test_kubectl_finds_the_plugin(alice: Person) -> None:
    assert "kubectl-precision" in alice.shell("kubectl plugin list 2>/dev/null")
    assert "usage: kubectl precision" in alice.precision("--help")


def test_a_command_is_written_stamped_and_shown_with_who_and_when(alice: Person, fleet: Policy) -> None:
    where = ("-n", fleet.namespace)
    fleet.status("Paused", reason="AwaitingApproval")
    alice.precision("promote", *where)
    assert fleet.annotations() == {"promote": "4", "promote-by": "alice"}
    (entry,) = alice.json("history", *where)
    assert (entry["source"], entry["reason"], entry["by"]) == ("Person", "promote", "alice")
    assert entry["at"] is not None
    assert "promote by alice" in alice.precision("explain", *where)
    fleet.status("Held", transitionId=6, reason="LossDiverged")
    alice.precision("ack", "fleet", "root-cause", "fix", "-m", "rebuilt", *where)
    assert fleet.annotations()["ack-fix"] == "6: rebuilt"
    assert alice.json("ack", *where)["fix"] == {"needed": True, "given": True, "by": "alice", "message": "rebuilt"}


def test_pausing_and_resuming_is_stamped(alice: Person, fleet: Policy) -> None:
    fleet.status("Healthy")
    alice.precision("pause", "fleet", "-n", fleet.namespace)
    assert (fleet.suspended(), fleet.annotations()) == (True, {"suspend-by": "alice"})
    assert "paused by alice" in alice.precision("explain", "-n", fleet.namespace)
    alice.precision("resume", "-n", fleet.namespace)
    assert not fleet.suspended()


@pytest.mark.parametrize(
    ("phase", "words"),
    [
        ("Paused", ["promote"]),
        ("Healthy", ["rollback"]),
        ("Healthy", ["rollback", "--emergency"]),
        ("Held", ["retry"]),
        ("Held", ["ack", "fleet", "fix", "rollback-ready", "-m", 'it\'s "in" $HOME']),
        ("Healthy", ["pause"]),
    ],
)
def test_the_line_of_a_dry_run_does_what_the_command_does(
    alice: Person, fleet: Policy, phase: str, words: list[str]
) -> None:
    fleet.status(phase)
    line = alice.shell(
        shlex.join(["kubectl", "precision", *words, "-n", fleet.namespace, "--dry-run"]) + " 2>/dev/null"
    )
    assert fleet.annotations() == {}
    alice.shell(line)
    by_hand = (fleet.annotations(), fleet.suspended())
    alice.shell(
        f"kubectl -n {fleet.namespace} patch ppol fleet --type=json "
        '-p \'[{"op":"remove","path":"/metadata/annotations"}]\''
    )
    alice.shell(f'kubectl -n {fleet.namespace} patch ppol fleet --type=merge -p \'{{"spec":{{"suspend":false}}}}\'')
    alice.precision(*words, "-n", fleet.namespace)
    assert (fleet.annotations(), fleet.suspended()) == by_hand
    assert by_hand != ({}, False)


def test_a_person_without_rights_learns_which_are_missing(
    control_plane: ControlPlane, fleet: Policy, tmp_path: Path
) -> None:
    fleet.status("Healthy")
    mallory = Person(control_plane, tmp_path / "bin", name="mallory", groups=[])
    said = mallory.precision("status", "-n", fleet.namespace, code=1)
    assert "ask for `get` and `list` on precisionpolicies and precisionassignments" in said
    assert "Traceback" not in said


def test_a_person_without_the_verb_learns_how_it_is_granted(
    control_plane: ControlPlane, kubectl: Kubectl, fleet: Policy, tmp_path: Path
) -> None:
    fleet.status("Paused", reason="AwaitingApproval")
    erin, where = f"erin-{fleet.namespace}", ("-n", fleet.namespace)
    kubectl("create", "rolebinding", "erin", "--clusterrole=edit", f"--user={erin}", *where)
    grant(kubectl, fleet.namespace, erin, "policies", rule("precision.genesis.ai", ["*"], ["get", "list", "patch"]))
    person = Person(control_plane, tmp_path / "bin", name=erin, groups=[])
    said = person.precision("promote", *where, code=1)
    assert f"kubectl precision promote: {fleet.namespace}/fleet: to set, change or remove {PREFIX}promote" in said
    assert f"the verb promote on precisionpolicies/fleet is needed, and {erin} lacks it" in said
    assert "--clusterrole=approver.precision.genesis.ai" in said
    assert len(said.splitlines()) == 1
    asked = f"kubectl -n {fleet.namespace} auth can-i promote precisionpolicies/fleet"
    assert f"`{asked}`" in said
    assert "no" in person.shell(asked, code=1)


def test_the_contexts_own_namespace_is_meant(control_plane: ControlPlane, alice: Person, fleet: Policy) -> None:
    fleet.status("Healthy")
    file = Path(alice.env["KUBECONFIG"]).with_name("alice-there.kubeconfig")
    credentials = control_plane.authority.issue("alice", "alice", groups=["system:masters"])
    write_kubeconfig(
        file,
        server=control_plane.server,
        authority=control_plane.authority.certificate,
        name="alice",
        certificate=credentials,
        namespace=fleet.namespace,
    )
    assert f"{fleet.namespace}/fleet" in alice.precision("status", "--kubeconfig", str(file))
    assert "has no context nowhere; it has lab" in alice.precision("status", "--context", "nowhere", code=1)


def test_a_cluster_that_does_not_answer_is_an_error_of_one_line(alice: Person, tmp_path: Path) -> None:
    gone = tmp_path / "gone.kubeconfig"
    gone.write_text(Path(alice.env["KUBECONFIG"]).read_text().replace("https://127.0.0.1:", "https://127.0.0.1:1"))
    said = alice.precision("get", "--kubeconfig", str(gone), code=1)
    assert len(said.strip().splitlines()) == 1


def test_watching_writes_one_document_a_change(alice: Person, fleet: Policy) -> None:
    fleet.status("Progressing")
    words = ["kubectl", "precision", "status", "--watch", "-o", "json", "-n", fleet.namespace]
    with subprocess.Popen(words, env=alice.env, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        try:
            assert json.loads(watching.stdout.readline())["phase"] == "Progressing"
            fleet.status("Healthy")
            assert json.loads(watching.stdout.readline())["phase"] == "Healthy"
        finally:
            watching.terminate()


def test_the_cluster_says_the_same_as_lint_of_a_bad_file(alice: Person, namespace: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(json.dumps(policy(criteria={"overflow": {"enter": 0.1}})))
    linted = alice.precision("lint", str(file), code=1)
    refused = alice.shell(f"kubectl -n {namespace} create --dry-run=server -f {file}", code=1)
    reason = (
        "overflow: leave (default 0.2) must be below enter (default 0.3), so that a value between them keeps its state"
    )
    assert reason in linted
    assert reason in refused


def test_words_are_completed_through_kubectl(alice: Person, fleet: Policy) -> None:
    script = Path(alice.env["PATH"].split(":")[0]) / "kubectl_complete-precision"
    script.write_text('#!/bin/sh\nexec kubectl precision __complete "$@"\n')
    script.chmod(0o755)
    assert alice.shell("kubectl __complete precision roll 2>/dev/null").split()[:1] == ["rollback"]
    found = alice.shell(f"kubectl_complete-precision -n {fleet.namespace} promote ''").split()
    assert found == ["fleet", ":4"]


def test_a_person_promotes_a_fleet_and_rolls_it_back(scene: Scene, alice: Person) -> None:
    """With an operator: approve, watch, roll back, acknowledge."""
    where = ("-n", scene.namespace)
    scene.operators.start("one")
    steps = [{"setWeight": 25}, {"pause": {}}, {"setWeight": 100}]
    scene.apply(policy(strategy={"steps": steps}, criteria=NO_SPEED))
    scene.wait_phase("Paused")

    def explained() -> bool:
        return "approve it: `kubectl precision promote fleet" in alice.precision("explain", *where)

    wait_for(
        explained, what="a word on how to approve", seconds=PATIENCE_SECONDS, every=1.0, found=scene.operators.logs
    )

    def approved() -> bool:
        """On a slow machine samples grow too old, and the step is judged again: a command to the old one is ignored."""
        if scene.status().get("phase") == "Paused":
            alice.shell(f"kubectl precision promote -n {scene.namespace} || true")
        return scene.status().get("phase") == "Healthy"

    wait_for(approved, what="the fleet to be promoted", seconds=PATIENCE_SECONDS, every=1.0, found=scene.operators.logs)
    assert alice.json("status", *where)["moved"] == 5

    (tree,) = alice.json("get", *where)
    (cohort,) = tree["cohorts"]
    assert cohort["name"] == "moved to fp16"
    assert {w["name"]: w["delivery"] for w in cohort["workloads"]} == {
        **dict.fromkeys(HOT, "Hot"),
        "literal": "Restart",
    }
    assert {w["assigned"] for w in cohort["workloads"]} == {"fp16"}
    assert {p["requested"] for w in cohort["workloads"] for p in w["pods"]} == {"fp16"}

    alice.precision("pause", *where)
    scene.condition("Progressing", "Suspended")
    said = alice.precision("rollback", "--emergency", *where)
    assert "and its pause ended" in said
    status = scene.wait_phase("Held")
    assert (status["incident"]["severity"], status["incident"]["reason"]) == ("P0", "Aborted")
    shown = alice.json("status", *where, code=3)
    assert (shown["fallback"], shown["enforce"]) == ("fp32", True)
    (tree,) = alice.json("get", *where)
    assert [c["name"] for c in tree["cohorts"]] == ["rolled back"]
    assert {p["requested"] for w in tree["cohorts"][0]["workloads"] for p in w["pods"]} == {"fp32"}

    history = alice.json("history", *where)
    assert {"RolloutStarted", "Promoted", "Aborted", "RolledBack"} <= {e["reason"] for e in history}
    assert {(e["reason"], e["by"]) for e in history if e["source"] == "Person"} >= {
        ("abort", "alice"),
        ("promote", "alice"),
    }
    alice.precision("ack", "fleet", "rootCause", "fix", *where)
    alice.precision("retry", *where)
    assert scene.status()["transitionId"] >= status["transitionId"]

    scene.kubectl("delete", "ppol", "fleet", "-n", scene.namespace)
    left = ("get", "precisionassignment", "fleet", "-n", scene.namespace)
    wait_for(lambda: scene.kubectl.json(*left).get("deletable"), what="the deletion to be seen", seconds=60)
    assert "PolicyDeleted" in alice.precision("explain", *where)
    assert "was deleted, so nobody reads its commands" in alice.precision("retry", *where, code=1)
    assert "`kubectl precision release fleet" in alice.precision("explain", *where)
    assert "ends by" in alice.precision("holds", *where)
    (line,) = re.findall(r"^kubectl .*$", alice.precision("release", "fleet", "--dry-run", *where), re.MULTILINE)
    assert "delete precisionassignment fleet" in line
    alice.precision("release", "fleet", *where)
    assert "no PrecisionPolicy" in alice.precision("get", *where)


def test_a_deployment_without_the_contract_is_named_as_stuck(alice: Person, fleet: Policy, kubectl: Kubectl) -> None:
    bare = deployment("bare", hot=False, replicas=0)
    bare["spec"]["template"]["spec"]["containers"][0]["env"] = []
    kubectl.apply({**bare, "metadata": {**bare["metadata"], "namespace": fleet.namespace}})
    fleet.status("Pending", reason="Undeliverable")
    assert "cannot be moved by delivery Auto" in alice.precision("get", "-n", fleet.namespace)


def test_a_script_waits_for_a_phase_and_learns_when_only_a_person_can_bring_it(alice: Person, fleet: Policy) -> None:
    fleet.status("Progressing", observedGeneration=2)
    words = ["kubectl", "precision", "wait", "fleet", "--for=Healthy", "-n", fleet.namespace]
    with subprocess.Popen(words, env=alice.env, stdout=subprocess.PIPE, text=True) as waiting:
        try:
            fleet.status("Healthy")
            assert waiting.wait(60) == 0
        finally:
            waiting.kill()
    fleet.status("Held", reason="LossDiverged")
    assert "which only a person ends (LossDiverged)" in alice.precision(*words[2:], code=3)


def test_the_doctor_looks_at_a_real_cluster(alice: Person, fleet: Policy, kubectl: Kubectl) -> None:
    conditions = [{"type": "AdmissionEnforced", "status": "True", "reason": "AdmissionEnforced", "message": "echoed"}]
    stamped = [{**c, "lastTransitionTime": "2026-01-01T00:00:00Z"} for c in conditions]
    fleet.status("Healthy", conditions=stamped)
    bare = deployment("bare", hot=False, replicas=0)
    bare["spec"]["template"]["spec"]["containers"][0]["env"] = []
    kubectl.apply({**bare, "metadata": {**bare["metadata"], "namespace": fleet.namespace}})
    found = {f["check"]: f for f in alice.json("doctor", "-n", fleet.namespace, code=1)}
    where = f"{fleet.namespace}/fleet"
    good = {check for check, finding in found.items() if finding["level"] == "ok"}
    assert good >= {"crds", "admission", "clock", "echo"}
    assert found["operator"]["mend"].startswith("helm upgrade --install")
    mend = found[f"{where} deployment/bare"]["mend"]
    shown = alice.shell(mend)
    assert "precision.genesis.ai/inject" in shown
    alice.shell(f"{mend} --apply --yes")
    labels = kubectl.json("get", "deployment", "bare", "-n", fleet.namespace)["spec"]["template"]["metadata"]["labels"]
    assert f"{PREFIX}inject" in labels


def test_the_doctor_of_a_person_with_few_rights_says_what_could_not_be_looked_at(
    control_plane: ControlPlane, kubectl: Kubectl, fleet: Policy, tmp_path: Path
) -> None:
    name = f"nora-{fleet.namespace}"
    # A role of its own: view takes in the chart's viewer where another test has installed the chart.
    kubectl("create", "role", "nora", "--verb=get,list", "--resource=pods", "-n", fleet.namespace)
    kubectl("create", "rolebinding", "nora", "--role=nora", f"--user={name}", "-n", fleet.namespace)
    found = Person(control_plane, tmp_path / "bin", name=name, groups=[]).json("doctor", "-n", fleet.namespace, code=1)
    unread = {f["check"]: f["level"] for f in found if "cannot be looked at" in f["message"]}
    assert (unread.pop("fleets"), set(unread.values())) == ("error", {"warning"})
    rights = next(f for f in found if f["check"] == "rights" and "you lack" in f["message"])
    assert rights["mend"].endswith(f"--user={name}")
