"""Whether a rollback could be carried out: its writes, tried as dry runs before a rollout starts.

They are tried beside the passes, a few at once: an API server that does not answer holds up no policy.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.spec import Delivery
from precision_operator.contract import REQUEST
from precision_operator.core.cohorts.order import canary_order
from precision_operator.core.model import PodView, RestartBy, WorkloadView
from precision_operator.core.progress import live_pods, resolve_delivery
from precision_operator.errors import Conflict, KubeError, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.port import JOBS, PODS, Deletion, JsonObject, KubeApi
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock, within

_LOG = logging.getLogger(__name__)

TRIED = 20
"""Workloads of a policy that are tried, the first ones of its canary order: the others are moved and restarted in the same
way, by the same rights."""

FRESH_SECONDS = 600.0
"""How long a proof counts."""

AGAIN_SECONDS = 30.0
"""The same of a refusal, and how soon is asked again what got no answer."""

AT_ONCE = 4
"""Dry runs of all policies at once."""

FIRST_SECONDS = 0.3
"""How long a pass waits for answers: most come within 0.1 s, and a breach may wait no longer than this."""


@dataclass(frozen=True, slots=True)
class _Tried:
    at: float
    why: str | None
    """Empty: it would be carried out; None: no answer."""


class WayBack:
    """Tries the way back of workloads. Never raises: what gets no answer is not known."""

    def __init__(self, api: KubeApi, clock: Clock, *, changed: Callable[[PolicyKey], None] = lambda key: None) -> None:
        """``changed``: look at this policy again; an answer came after its pass."""
        self._api = api
        self._clock = clock
        self._changed = changed
        self._known: dict[str, _Tried] = {}
        """By the workload's uid."""
        self._trying: dict[PolicyKey, asyncio.Task[None]] = {}
        """What is under way beside the passes, one a policy."""
        self._room = asyncio.Semaphore(AT_ONCE)

    async def try_out(self, policy: Policy, workloads: Iterable[WorkloadView]) -> Mapping[str, str]:
        """Key → why it would be refused; empty: it would not. Of what was not tried, or got no answer, nothing.

        What is not known yet is waited for for a moment; ``changed`` says what comes later.
        """
        key, now = PolicyKey(policy.namespace, policy.name), self._clock.monotonic()
        self._known = {uid: tried for uid, tried in self._known.items() if now - tried.at < _life_seconds(tried)}
        first = canary_order(policy.uid, [w for w in workloads if live_pods(w)])[:TRIED]
        unknown = [w for w in first if w.uid not in self._known and _moves(policy, w) is not None]
        if unknown and key not in self._trying:
            task = asyncio.get_running_loop().create_task(self._try_all(policy, unknown))
            self._trying[key] = task
            with suppress(TimeoutError):
                await within(self._clock, FIRST_SECONDS, asyncio.wait({task}))
            if not task.done():
                task.add_done_callback(lambda ended: ended.cancelled() or self._changed(key))
        found = {w.key: self._known[w.uid].why for w in first if w.uid in self._known}
        return {name: why for name, why in found.items() if why is not None}

    async def close(self) -> None:
        """Give up what is under way; for shutdown."""
        for task in (tasks := list(self._trying.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _try_all(self, policy: Policy, workloads: Sequence[WorkloadView]) -> None:
        try:
            await asyncio.gather(*(self._try(policy, workload) for workload in workloads))
        except Exception:  # noqa: BLE001 - the last barrier: nobody waits for this task, and a later pass tries again
            where = f"{policy.namespace}/{policy.name}"
            _LOG.exception("%s: the way back cannot be tried", where, extra={"reason": Reason.INTERNAL_ERROR})
        finally:
            del self._trying[PolicyKey(policy.namespace, policy.name)]

    async def _try(self, policy: Policy, workload: WorkloadView) -> None:
        async with self._room:
            try:
                await self._write(workload, live_pods(workload)[0], hot=_moves(policy, workload) is Delivery.HOT)
                why: str | None = ""
            except (NotFound, Conflict):
                return  # the caches are late: what they show next is tried
            except (TooManyRequests, Unavailable):
                why = None
            except KubeError as error:
                why = f"{error.reason}: {error}"
        self._known[workload.uid] = _Tried(self._clock.monotonic(), why)

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


def _moves(policy: Policy, workload: WorkloadView) -> Delivery | None:
    """How running pods are moved; None: they are not."""
    delivery = resolve_delivery(policy.spec.delivery, workload)
    return None if delivery is Delivery.NEW_ONLY else delivery


def _life_seconds(tried: _Tried) -> float:
    return FRESH_SECONDS if tried.why == "" else AGAIN_SECONDS
