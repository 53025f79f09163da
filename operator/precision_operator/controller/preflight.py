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

FORGOTTEN_SECONDS = 2 * FRESH_SECONDS
"""How long an answer is kept that nobody asks again."""

OPEN_SECONDS = 30.0
"""How long a rollout waits for a workload's first answer."""

AT_ONCE = 4
"""Dry runs of all policies at once."""

FIRST_SECONDS = 0.3
"""How long a pass waits for answers: most come within 0.1 s, and a breach may wait no longer than this."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What is known of the way back of a policy's workloads, by their keys."""

    why: Mapping[str, str]
    """Why it would be refused; empty: it would not. Of what was not tried, or got no answer, nothing."""
    open: frozenset[str] = frozenset()
    """Those whose first answer is awaited."""


@dataclass(frozen=True, slots=True)
class _Answer:
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
        self._known: dict[str, _Answer] = {}
        """By the workload's uid; each until there is another one."""
        self._trying: dict[PolicyKey, tuple[asyncio.Task[None], float]] = {}
        """What is under way beside the passes, one a policy; and since when."""
        self._room = asyncio.Semaphore(AT_ONCE)

    async def try_out(self, policy: Policy, workloads: Iterable[WorkloadView]) -> Tried:
        """Try what is not known, or not for long any more.

        What is not known yet is waited for for a moment; ``changed`` says what comes later.
        """
        key, now = PolicyKey(policy.namespace, policy.name), self._clock.monotonic()
        self._known = {uid: known for uid, known in self._known.items() if now - known.at < FORGOTTEN_SECONDS}
        first = canary_order(policy.uid, [w for w in workloads if live_pods(w)])[:TRIED]
        first = [w for w in first if _moves(policy, w) is not None]
        due = [w for w in first if (known := self._known.get(w.uid)) is None or now - known.at >= _life_seconds(known)]
        if due and key not in self._trying:
            task = asyncio.get_running_loop().create_task(self._try_all(policy, due))
            self._trying[key] = task, now
            with suppress(TimeoutError):
                await within(self._clock, FIRST_SECONDS, asyncio.wait({task}))
            if not task.done():
                task.add_done_callback(lambda ended: ended.cancelled() or self._changed(key))
        found = {w.key: self._known[w.uid].why for w in first if w.uid in self._known}
        _, began = self._trying.get(key, (None, -OPEN_SECONDS))
        waits = self._clock.monotonic() - began < OPEN_SECONDS
        return Tried(
            {name: why for name, why in found.items() if why is not None},
            frozenset(w.key for w in first if w.uid not in self._known) if waits else frozenset(),
        )

    async def close(self) -> None:
        """Give up what is under way; for shutdown."""
        for task in (tasks := [task for task, _ in self._trying.values()]):
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
        known = self._known.get(workload.uid)
        # Without an answer a proof is over, and a refusal is not: nothing says that the way back is free now.
        why = (known.why or None) if known is not None else None
        try:
            async with self._room:
                await self._write(workload, live_pods(workload)[0], hot=_moves(policy, workload) is Delivery.HOT)
            why = ""
        except (NotFound, Conflict, TooManyRequests, Unavailable):
            pass  # also where the caches are late: what they show by then is tried
        except KubeError as error:
            why = f"{error.reason}: {error}"
        finally:
            self._known[workload.uid] = _Answer(self._clock.monotonic(), why)

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


def _life_seconds(known: _Answer) -> float:
    return FRESH_SECONDS if known.why == "" else AGAIN_SECONDS
