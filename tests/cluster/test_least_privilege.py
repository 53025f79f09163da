"""Least privilege in both directions, by the audit log: every right of the operator is used, and none is missing.

One short story of a fleet on a control plane of its own, by the installed account with the installed roles. A new right
needs a chapter here, and a new call shows as a right that the chart does not give.
"""

from __future__ import annotations

import time
from pathlib import Path

import yaml

from lab.cluster import ControlPlane, Kubectl
from lab.cluster.audit import Audit
from lab.cluster.manifests import MANIFEST, OPERATOR, apply_product, installed_access
from lab.cluster.webhook import SYSTEM, WITHOUT_POLICIES, install, manifests, version
from lab.waiting import wait_for
from precision_operator.core.actions import Notify
from precision_operator.reasons import Reason
from tests.support.cluster_acting import acting, job, pod
from tests.support.cluster_fleet import Json, deployment, policy
from tests.support.cluster_scene import (
    HOT,
    PATIENCE_SECONDS,
    Operators,
    Scene,
    assert_all_in_fallback,
    break_two,
    promoted,
    staged,
)
from tests.support.rights import beyond, granted, unused
from tests.support.shadow_trainers import ShadowTrainers
from tests.support.webhooks import Endpoints

QUICK = {"incidents": {"immediateSeconds": 1, "shortSeconds": 2, "longSeconds": 3, "maxAgeSeconds": 1}}
"""An incident is closed after seconds, and pruned at once."""


async def test_every_right_that_the_chart_gives_is_used_and_every_right_that_is_used_is_given(tmp_path: Path) -> None:
    with ControlPlane(tmp_path / "cluster") as plane:
        apply_product(plane.kubectl)
        credentials, audit = installed_access(plane), Audit(plane.audit_log)
        for name in ("fleet", "restarts"):
            plane.kubectl("create", "namespace", name)
            plane.kubectl.wait_for_namespace(name)
        rollout_and_rollback(plane.kubectl, audit, credentials, tmp_path)
        await pods_and_jobs_are_restarted(plane.kubectl, credentials)
        rules = granted(in_policy_mode())
        found = audit.rights([OPERATOR])
    assert (unused(rules, found), beyond(rules, found)) == ([], [])


def in_policy_mode() -> list[Json]:
    return [body for body in yaml.safe_load_all(MANIFEST.read_text()) if body]


def test_so_are_the_rights_of_webhook_mode(tmp_path: Path) -> None:
    """Those that it gives besides: an operator makes its certificates, installs and rotates them, and asks its replicas."""
    settings = {"admission": {"port": 0, "refreshSeconds": 0.25, "leafSeconds": 6, "authoritySeconds": 24}}
    with ControlPlane(tmp_path / "cluster", api_flags=WITHOUT_POLICIES) as plane:
        credentials, audit, rules = install(plane), Audit(plane.audit_log), granted(manifests(version(plane)))
        besides = rules - granted(in_policy_mode())
        assert {right.resource for right in besides} >= {"secrets", "endpointslices", "mutatingwebhookconfigurations"}
        operators = Operators(credentials, tmp_path, "http://127.0.0.1:9", SYSTEM, settings=settings)
        try:
            operators.start("one")
            Endpoints(plane.kubectl, operators).add("one")
            for body in (deployment("hot-0"), policy()):
                plane.kubectl.apply({**body, "metadata": {**body["metadata"], "namespace": "default"}})
            wait_for(
                lambda: not unused(besides, audit.rights([OPERATOR])),
                what="all rights of webhook mode to be used",
                seconds=PATIENCE_SECONDS,
                found=lambda: f"{unused(besides, audit.rights([OPERATOR]))}\n{operators.logs()}",
            )
        finally:
            operators.stop()
        assert beyond(rules, audit.rights([OPERATOR])) == []


def rollout_and_rollback(kubectl: Kubectl, audit: Audit, credentials: Path, directory: Path) -> None:
    """A fleet is promoted, breaks and is rolled back; its incident is closed and pruned, its policy deleted."""
    shadow = ShadowTrainers(kubectl, "fleet")
    with staged(kubectl, shadow, directory, operator=credentials, settings=QUICK) as scene:
        scene.operators.system = OPERATOR.split(":")[2]
        scene.apply(*map(deployment, HOT), deployment("literal", hot=False))
        wait_for(lambda: len(shadow.modes()) == len(HOT) + 1, what="pods of all", seconds=PATIENCE_SECONDS)
        promoted(scene, deletionPolicy="Release")
        break_two(scene)
        scene.wait_phase("Held")
        assert_all_in_fallback(scene)
        wait_for(
            lambda: pruned(scene, audit),
            what="the incident's end",
            seconds=PATIENCE_SECONDS,
            found=scene.operators.logs,
        )
        kubectl("delete", "ppol", "fleet", "-n", "fleet")
        wait_for(lambda: not scene.assignment(), what="no assignment", seconds=PATIENCE_SECONDS)


def pruned(scene: Scene, audit: Audit) -> bool:
    """Whether the incident is deleted. A held policy is evaluated once a minute: an annotation that means nothing brings it
    forward.
    """
    scene.kubectl("annotate", "--overwrite", "ppol", "fleet", "-n", scene.namespace, f"example.org/look={time.time()}")
    return any((w.verb, w.resource) == ("delete", "precisionincidents") for w in audit.writes([OPERATOR]))


async def pods_and_jobs_are_restarted(kubectl: Kubectl, credentials: Path) -> None:
    """What decisions ask for, carried out: a pod is evicted, a Job suspended as far as budgets allow, and resumed."""
    async with acting(kubectl, credentials, "restarts") as stage:
        stage.apply(pod("a"), job("train", pods=1))
        stage.budget(at_least=0, allowed=0)
        said = Notify(Reason.PROMOTED, "twice")
        for action in (stage.eviction("a"), stage.suspension("train", respects_budgets=True)):
            assert (await stage.act(action)).failures == ()
        for times in (1, 2):
            await stage.act(said)
            await stage.recorded(times)
        assert stage.suspended("train")
        assert (await stage.act(stage.resumption("train"))).failures == ()
