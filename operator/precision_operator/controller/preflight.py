"""Whether a rollback could be carried out: its writes, tried as dry runs before a rollout starts."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from precision_operator.api.policy import Policy
from precision_operator.api.spec import Delivery
from precision_operator.contract import REQUEST
from precision_operator.core.cohorts.order import canary_order
from precision_operator.core.model import PodView, RestartBy, WorkloadView
from precision_operator.core.progress import live_pods, resolve_delivery
from precision_operator.errors import Conflict, KubeError, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.port import JOBS, PODS, Deletion, JsonObject, KubeApi
from precision_operator.runtime.clock import Clock

TRIED = 20
"""Workloads of a policy that are tried, the first ones of its canary order: the others are moved and restarted in the same
way, by the same rights."""

FRESH_SECONDS = 600.0
"""How long a proof counts."""

AGAIN_SECONDS = 30.0
"""The same of a refusal."""


@dataclass(frozen=True, slots=True)
class _Tried:
    at: float
    why: str
    """Empty: it would be carried out."""


class WayBack:
    """Tries the way back of workloads. Never raises: what gets no answer is not known."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, _Tried] = {}
        """By the workload's uid."""

    async def try_out(self, policy: Policy, workloads: Iterable[WorkloadView]) -> Mapping[str, str]:
        """Key → why it would be refused; empty: it would not. Of what was not tried, or got no answer, nothing."""
        now = self._clock.monotonic()
        self._known = {uid: tried for uid, tried in self._known.items() if now - tried.at < _life_seconds(tried)}
        first = canary_order(policy.uid, [w for w in workloads if live_pods(w)])[:TRIED]
        await asyncio.gather(*(self._try(policy, w, now) for w in first if w.uid not in self._known))
        return {w.key: self._known[w.uid].why for w in first if w.uid in self._known}

    async def _try(self, policy: Policy, workload: WorkloadView, now: float) -> None:
        delivery = resolve_delivery(policy.spec.delivery, workload)
        if delivery in (None, Delivery.NEW_ONLY):
            return
        try:
            await self._write(workload, live_pods(workload)[0], hot=delivery is Delivery.HOT)
        except (NotFound, Conflict, TooManyRequests, Unavailable):
            return
        except KubeError as error:
            self._known[workload.uid] = _Tried(now, f"{error.reason}: {error}")
        else:
            self._known[workload.uid] = _Tried(now, "")

    async def _write(self, workload: WorkloadView, pod: PodView, *, hot: bool) -> None:
        namespace = workload.namespace
        if hot:
            # What it carries already, or nothing: what counts is whether the write is let through.
            body: JsonObject = {"metadata": {"annotations": {REQUEST: pod.request_raw or ""}}}
            await self._api.dry_run(PODS, namespace, pod.name, body)
        elif workload.restart_by is RestartBy.SUSPENSION:
            await self._api.dry_run(JOBS, namespace, workload.object_name, {"spec": {"suspend": True}})
        else:
            grace_seconds = max(1, round(pod.own_grace_seconds))
            deletion = Deletion(uid=pod.uid, dry_run=True, grace_seconds=grace_seconds)
            await self._api.delete(PODS, namespace, pod.name, deletion)


def _life_seconds(tried: _Tried) -> float:
    return AGAIN_SECONDS if tried.why else FRESH_SECONDS
