"""``onboard``: the one label, shown or set."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest
import yaml

from precision_operator.core.model import RestartBy
from precision_operator.errors import Forbidden
from precision_operator.kube.port import DEPLOYMENTS, JOBS
from precision_operator.workloads.kinds.kind import WorkloadKind
from precision_operator.workloads.kinds.table import KINDS
from tests.support import trainers
from tests.support.cli import FLEET, Cli
from tests.support.recorded_kinds import RECORDED, recorded


@pytest.fixture
def workload(cli: Cli) -> Cli:
    cli.fake.put(DEPLOYMENTS, trainers.deployment("vit", labels=FLEET))
    return cli


RESTARTED = [kind for kind in KINDS if kind.restart_by is not RestartBy.NEVER]
LABELS = {"precision.genesis.ai/inject": "trainer"}
PATCH = {"spec": {"template": {"metadata": {"labels": LABELS}}}}


def test_the_label_is_shown_as_a_patch_for_kustomize_and_for_helm(workload: Cli) -> None:
    shown = workload("onboard", "deployment/vit")
    assert yaml.safe_load(shown) == PATCH
    assert "# its pods restart, once: kubectl -n default patch deployment vit --type=merge -p" in shown
    assert yaml.safe_load(workload("onboard", "vit", "--format=helm")) == {"podLabels": LABELS}
    assert workload.fake.writes == []


@pytest.mark.parametrize("kind", RESTARTED, ids=lambda kind: kind.name)
def test_a_patch_for_kustomize_names_the_workload_by_its_kind(workload: Cli, kind: WorkloadKind) -> None:
    workload.fake.put(kind.resource, trainers.deployment("night", labels=FLEET))
    (patch,) = yaml.safe_load(workload("onboard", f"{kind.name}/night", "--format=kustomize"))["patches"]
    manifest = recorded(RECORDED[kind.singular].name)
    assert patch["target"] == {"kind": manifest["kind"], "name": "night"}
    whole = yaml.safe_load(patch["patch"])
    assert (whole["apiVersion"], whole["kind"]) == (manifest["apiVersion"], manifest["kind"])
    assert whole["metadata"] == {"name": "night"}
    assert whole["spec"] == PATCH["spec"]


ON_DELETE = {"updateStrategy": {"type": "OnDelete"}}
PARTITION = {"ordinals": {"start": 5}, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}}


@pytest.mark.parametrize(
    ("kind", "spec", "said"),
    [
        (
            "deployment",
            {"paused": True},
            "# its pods restart, once, when its rollout is resumed (spec.paused): kubectl",
        ),
        ("statefulset", {}, "# its pods restart, once: kubectl"),
        ("statefulset", ON_DELETE, "# its pods get it when they are made anew: kubectl"),
        (
            "statefulset",
            PARTITION,
            "# its pods from index 7 on restart, once (its update strategy has a partition): kubectl",
        ),
        ("replicaset", {}, "# its pods get it when they are made anew: kubectl"),
        ("job", {}, "# its template cannot change: create it anew with the label precision.genesis.ai/inject\n"),
    ],
)
def test_it_says_what_becomes_of_the_pods_by_kind_and_by_how_the_workload_is_updated(
    workload: Cli, kind: str, spec: dict[str, object], said: str
) -> None:
    (resource,) = [found.resource for found in KINDS if found.name == kind]
    body: Any = trainers.deployment("night", labels=FLEET)
    body["spec"] |= spec
    workload.fake.put(resource, body)
    assert said in workload("onboard", f"{kind}/night")


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


@pytest.mark.parametrize(("kind", "asks"), [("deployment", "deployments.apps"), ("replicaset", "replicasets.apps")])
def test_who_may_not_patch_it_is_told_how_to_see_that(workload: Cli, kind: str, asks: str) -> None:
    def refuse() -> None:
        raise Forbidden("bob may not patch it", status=403)

    (resource,) = [found.resource for found in KINDS if found.name == kind]
    workload.fake.put(resource, trainers.deployment("night", labels=FLEET))
    workload.fake.before_write = lambda *_: refuse()
    said = workload("onboard", f"{kind}/night", "--apply", "--yes", code=1)
    assert f"`kubectl -n default auth can-i patch {asks}/night`" in said


def test_for_programs_it_says_whether_the_label_was_set(workload: Cli) -> None:
    shown, set_, again = (workload.json("onboard", "vit", *words) for words in ([], ["--apply", "--yes"], ["--apply"]))
    assert [(found["there"], found["applied"]) for found in (shown, set_, again)] == [
        (False, False),
        (False, True),
        (True, False),
    ]
