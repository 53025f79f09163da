"""A leader that restarts Jobs is killed at each step between its commit and the last resumption: its successor leaves none
suspended. The Job controller is real; all kills happen at the same time, each in a namespace of its own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cluster import Kubectl
from lab.prometheus import Prometheus
from lab.waiting import wait_for
from precision_operator.api.state import State
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.settings import PrometheusEndpoint, Settings
from tests.support.cluster_fleet import LABELS, Json, deployment, policy
from tests.support.cluster_scene import NO_SPEED, PATIENCE_SECONDS, scraping
from tests.support.mortal import LEASE, JobsMortalClient, Step, lease_over, operating, state_of, until_phase
from tests.support.shadow_trainers import ShadowTrainers

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # what a process that dies leaves open

JOBS = ("job-0", "job-1", "job-2")
SHADOW = "job"
"""What the shadow takes their pods to be of."""


@dataclass
class Kill:
    """What was found when the leader was dead, and when its successor had come to its end."""

    recorded: State
    """The state that the dead leader left."""
    suspended: list[bool]
    """The Jobs then, in their order."""
    jobs: list[Json]
    """In the end."""
    left: State
    """The state in the end."""
    modes: set[str]
    """What their pods train in, in the end."""


def job(name: str) -> Json:
    """A restart-only Job that trains in FP16, and must not lose a single pod."""
    template = deployment(name, hot=False, enabled="true")["spec"]["template"]
    template["spec"]["restartPolicy"] = "Never"
    spec = {"backoffLimit": 0, "parallelism": 1, "completions": 1, "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": LABELS}, "spec": spec}


@pytest.fixture(scope="module")
def kills(
    kubectl: Kubectl, operator_kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[Step, Kill]]:
    """One at each step."""
    namespaces = {step: f"killed-{step}-{uuid.uuid4().hex[:6]}" for step in Step}
    with ExitStack() as stack:
        shadows = {}
        for step, namespace in namespaces.items():
            kubectl("create", "namespace", namespace)
            stack.callback(kubectl, "delete", "namespace", namespace, "--wait=false")
            kubectl.wait_for_namespace(namespace)
            shadows[step] = stack.enter_context(ShadowTrainers(kubectl, namespace))
        config = scraping(*(shadow.target for shadow in shadows.values()))
        prometheus = stack.enter_context(Prometheus(tmp_path_factory.mktemp("kills"), config))
        access = Access(operator_kubeconfig)

        async def all_of_them() -> list[Kill]:
            return await asyncio.gather(
                *(_killed(step, kubectl, shadows[step], access, prometheus.url) for step in Step)
            )

        yield dict(zip(Step, asyncio.run(all_of_them()), strict=True))


async def _killed(step: Step, kubectl: Kubectl, shadow: ShadowTrainers, access: Access, prometheus: str) -> Kill:
    namespace = shadow.namespace
    settings = Settings(
        prometheus={"default": PrometheusEndpoint(prometheus)},
        watch_namespaces=(namespace,),
        namespace=namespace,
        lease=LEASE,
        http_port=0,
    )
    objects = [*map(job, JOBS), policy(criteria=NO_SPEED)]
    bodies = [{**body, "metadata": {**body["metadata"], "namespace": namespace}} for body in objects]
    await asyncio.to_thread(kubectl.apply, *bodies)
    mortal = await JobsMortalClient.connect(access)
    mortal.dies = step
    async with operating(mortal, settings, access) as first:
        await until_phase(shadow, "Healthy")
        shadow.overflow = {SHADOW: 0.8}
        await asyncio.wait({first}, timeout=PATIENCE_SECONDS)
        assert first.done(), f"the operator outlived its death: {step}"
    recorded = await asyncio.to_thread(state_of, shadow)
    suspended = [_suspended(body) for body in await asyncio.to_thread(_jobs, kubectl, namespace)]
    await lease_over(kubectl, namespace)
    async with operating(await KubeClient.connect(access), settings, access):
        await until_phase(shadow, "Held")
        await asyncio.to_thread(
            wait_for,
            lambda: not state_of(shadow).suspensions,
            what="an end of all suspensions",
            seconds=PATIENCE_SECONDS,
        )
    jobs, left = await asyncio.to_thread(_jobs, kubectl, namespace), await asyncio.to_thread(state_of, shadow)
    return Kill(recorded, suspended, jobs, left, shadow.modes().get(SHADOW, set()))


def _jobs(kubectl: Kubectl, namespace: str) -> list[Json]:
    return [kubectl.json("get", "job", name, "-n", namespace) for name in JOBS]


def _suspended(body: Json) -> bool:
    return bool(body["spec"].get("suspend"))


@pytest.mark.parametrize("step", list(Step))
def test_the_next_leader_leaves_no_job_suspended_wherever_the_last_one_was_killed(
    kills: Mapping[Step, Kill], step: Step, record_property: Callable[[str, object], None]
) -> None:
    kill = kills[step]
    record_property("killed_at", step.value)
    record_property("jobs_left_suspended", sum(map(_suspended, kill.jobs)))
    assert [_suspended(body) for body in kill.jobs] == [False] * len(JOBS)
    assert kill.modes == {"fp32"}
    assert [body["status"].get("failed", 0) for body in kill.jobs] == [0] * len(JOBS)


@pytest.mark.parametrize("step", list(Step))
def test_whatever_job_is_found_suspended_is_recorded(kills: Mapping[Step, Kill], step: Step) -> None:
    kill = kills[step]
    found = {f"batch/Job/{name}" for name, suspended in zip(JOBS, kill.suspended, strict=True) if suspended}
    assert found <= kill.recorded.suspensions.keys()
    assert kill.recorded.suspensions


def test_the_kills_happened_at_different_steps(kills: Mapping[Step, Kill]) -> None:
    assert not any(kills[Step.RECORDED].suspended)
    assert any(kills[Step.SUSPENDING].suspended)
    assert all(kills[Step.SUSPENDED].suspended)
    assert not any(record.resuming for record in kills[Step.SUSPENDED].recorded.suspensions.values())
    assert any(record.resuming for record in kills[Step.EMPTY].recorded.suspensions.values())
    assert not all(kills[Step.RESUMING].suspended)
