"""What PodDisruptionBudgets let go together: a process group as a whole, or not at all."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import chain
from weakref import WeakValueDictionary

from precision_operator.api.policy import PolicyKey
from precision_operator.api.wire import mapping, text
from precision_operator.controller.writes import Write
from precision_operator.core.actions import EvictPod, SuspendJob
from precision_operator.errors import AnswerTooLarge, DisruptionBudget, NotFound
from precision_operator.kube.port import DISRUPTION_BUDGETS, PODS, JsonObject, KubeApi
from precision_operator.runtime.clock import Clock, in_turns
from precision_operator.runtime.ratelimit import RateLimiter
from precision_operator.workloads.budgets import Budgets

JOB_UID_LABEL = "batch.kubernetes.io/controller-uid"
"""What the Job controller writes onto each pod of a Job, unless the Job has a manual selector."""

UNKNOWN_SECONDS = 30.0
"""After a suspension a budget's status may count the Job's pods for so long, until their deletion has reached it."""

BUDGETS_BYTES = 4 * 2**20
"""Of all budgets of a namespace, as they are listed: a longer answer would take the event loop too long to parse."""

READS_AT_ONCE, READS_PER_SECOND = 4, 500.0
"""Of pods that are to go, over the connections that the Lease is renewed over; namespaces take turns."""


class Disruptions:
    """Which evictions and suspensions the PodDisruptionBudgets let go together, for all policies of this process.

    A process group goes as a whole, and whoever shares a budget with one that has gone in part waits until the rest has.
    Drains, and whatever else asks the API server for evictions, are not seen beforehand: they may still tear one apart.
    """

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._reads = RateLimiter(READS_PER_SECOND, READS_AT_ONCE, clock)
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._open: dict[PolicyKey, dict[str, list[JsonObject]]] = {}
        """Pods of process groups that were begun, by workload, until their policy's next pass tells how that went. One that
        could not read budgets or pods leaves them as they are."""
        self._going: dict[str, list[tuple[float, JsonObject]]] = {}
        """Namespace → pods of Jobs that were suspended, and until when budgets may not know of it; monotonic clock."""

    def alone(self, namespace: str) -> asyncio.Lock:
        """Held while budgets are asked and what they allow is written: two answers must not rest on one allowance."""
        return self._locks.setdefault(namespace, asyncio.Lock())

    def end(self, key: PolicyKey) -> None:
        """Nothing of the policy is taken away any more."""
        self._open.pop(key, None)

    async def against(self, key: PolicyKey, writes: Sequence[Write]) -> Mapping[str, DisruptionBudget]:
        """Workload → the budget that lets some of its pods go and not all of them.

        Raises:
            KubeError: as the API server answered.
        """
        before, others = self._open.get(key, {}), self._begun_by_others(key)
        wanted: dict[str, list[Write]] = {}
        for write in writes:
            wanted.setdefault(write.workload.key, []).append(write)
        alone = {name for name, (first, *more) in wanted.items() if isinstance(first, EvictPod) and not more}
        torn = {name for name, found in wanted.items() if _is_torn(found, before.get(name, ()))}
        if len(alone) == len(wanted) and not (others or torn):
            self.end(key)
            return {}  # of each the API server asks the budget itself
        try:
            budgets = await self._budgets(key.namespace)
        except DisruptionBudget as error:
            refused = wanted.keys() - torn
            return {name: _kept(name, error.budget) for name in sorted(refused)}
        if budgets is None:
            self.end(key)
            return {}
        pods = dict(zip(wanted, await asyncio.gather(*map(self._pods, wanted.values())), strict=True))
        begun = {name: pods[name] for name in torn}
        left_to = [*others, *(pod for name in torn for pod in pods[name])]
        going, found = self._still_going(key.namespace), dict[str, DisruptionBudget]()
        await in_turns(self._clock, map(budgets.selecting, chain(left_to, going, *pods.values())))
        await in_turns(self._clock, chain(map(budgets.tears, left_to), map(budgets.goes, going)))
        for name in sorted(wanted.keys() - torn, key=lambda name: (name in alone, name)):  # what goes together is first
            against = budgets.against(pods[name])
            if against is not None:
                found[name] = _kept(name, against)
            elif isinstance(wanted[name][0], SuspendJob):
                until = self._clock.monotonic() + UNKNOWN_SECONDS
                self._going.setdefault(key.namespace, []).extend((until, pod) for pod in pods[name])
            elif name not in alone:
                begun[name] = pods[name]
        self.end(key)
        if begun:
            self._open[key] = begun
        return found

    def _begun_by_others(self, key: PolicyKey) -> list[JsonObject]:
        groups = (begun for other, begun in self._open.items() if other != key and other.namespace == key.namespace)
        return [pod for begun in groups for pods in begun.values() for pod in pods]

    async def _budgets(self, namespace: str) -> Budgets | None:
        """Those of a namespace; None: there are none.

        Raises:
            DisruptionBudget: more than can be judged.
        """
        try:
            bodies = await self._api.list(DISRUPTION_BUDGETS, namespace, most_bytes=BUDGETS_BYTES)
        except AnswerTooLarge as error:
            words = f"the namespace's disruption budgets take more than {BUDGETS_BYTES} bytes"
            raise DisruptionBudget(words, budget=words) from error
        found = Budgets()
        await in_turns(self._clock, map(found.add, bodies))
        return found if bodies else None

    def _still_going(self, namespace: str) -> list[JsonObject]:
        now = self._clock.monotonic()
        if known := [(until, pod) for until, pod in self._going.pop(namespace, []) if now < until]:
            self._going[namespace] = known
        return [pod for _, pod in known]

    async def _pods(self, writes: Sequence[Write]) -> list[JsonObject]:
        """Read anew each time: what a budget allows changes with every pod that comes or goes."""
        workload, listed = writes[0].workload, list[JsonObject]()
        names = {write.pod.name for write in writes if isinstance(write, EvictPod)}
        if isinstance(writes[0], SuspendJob):
            selector = f"{JOB_UID_LABEL}={workload.uid}"
            async with self._reads.slot(group=workload.namespace):
                listed += await self._api.list(PODS, workload.namespace, label_selector=selector)
            names = {pod.name for pod in workload.pods} - set(map(_name, listed))
        found = await asyncio.gather(*(self._there(workload.namespace, name) for name in sorted(names)))
        return [*listed, *(pod for pod in found if pod is not None)]

    async def _there(self, namespace: str, name: str) -> JsonObject | None:
        async with self._reads.slot(group=namespace):
            try:
                return await self._api.get(PODS, namespace, name)
            except NotFound:
                return None


def asks_budgets(write: Write) -> bool:
    """Whether PodDisruptionBudgets may speak against it."""
    return isinstance(write, EvictPod) or (isinstance(write, SuspendJob) and write.respects_budgets)


def _is_torn(writes: Sequence[Write], before: Sequence[JsonObject]) -> bool:
    """Some of its pods have gone, as the decision knows already, or fewer are left than were evicted the last time."""
    evictions = [write for write in writes if isinstance(write, EvictPod)]
    return any(write.follows for write in evictions) or 0 < len(evictions) < len(before)


def _name(pod: JsonObject) -> str:
    return text(mapping(pod.get("metadata")).get("name"))


def _kept(workload: str, budget: str) -> DisruptionBudget:
    return DisruptionBudget(f"{workload} is not taken away: {budget}", budget=budget)
