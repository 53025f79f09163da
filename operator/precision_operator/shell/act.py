"""Act: carry out what was decided, all at once within the limits, and never let one failure stop the rest.

Running pods are asked first, and wait for nothing. Pods are taken away only after every API server has echoed the
committed generation: their replacements would come back in the mode before.
"""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass

from precision_operator.api.policy import Policy
from precision_operator.api.state import State
from precision_operator.core.actions import Action, DeleteAssignment, DeletePod, Notify, RequestPod
from precision_operator.core.model import RefusedWrite
from precision_operator.errors import (
    Conflict,
    KubeError,
    NotConfirmed,
    NotFound,
    OperatorError,
    PreconditionFailed,
    TooManyRequests,
)
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.kube.port import ASSIGNMENTS, PODS, KubeApi
from precision_operator.runtime.clock import Clock
from precision_operator.runtime.ratelimit import RateLimiter
from precision_operator.shell.enforcement import Enforcement
from precision_operator.shell.expectations import Expectations
from precision_operator.shell.fence import Fence
from precision_operator.shell.inventory import PolicyKey
from precision_operator.workloads.requests import request_pod

_LOG = logging.getLogger(__name__)

PodWrite = RequestPod | DeletePod

OVERDUE_SECONDS = 30.0
"""An emergency waits this long for admission: a freshly started API server lets pods through for as long."""

REFUSED_LIMIT = 20
"""Refused writes that are remembered of a policy, to show them."""


@dataclass(frozen=True, slots=True)
class Acted:
    """How a pass' writes went."""

    failures: tuple[OperatorError, ...] = ()
    again: bool = False
    """Pods were found that the caches did not know: look again at once."""


class Actor:
    """Writes to pods, and says so in Events."""

    def __init__(
        self,
        api: KubeApi,
        *,
        events: EventRecorder,
        limiter: RateLimiter,
        expectations: Expectations,
        enforcement: Enforcement,
        fence: Fence,
        clock: Clock,
    ) -> None:
        self._api = api
        self._events = events
        self._limiter = limiter
        self._expectations = expectations
        self._enforcement = enforcement
        self._fence = fence
        self._clock = clock
        self._refused: dict[PolicyKey, dict[str, str]] = {}
        """Policy → what is refused → reason; until it is written, or not wanted any more."""
        self._waiting: dict[PolicyKey, float] = {}
        """Since when an emergency waits for admission, by the monotonic clock."""

    def refused(self, key: PolicyKey) -> tuple[RefusedWrite, ...]:
        """Writes of the last pass that the API server refused, and will refuse again."""
        return tuple(RefusedWrite(what, reason) for what, reason in self._refused.get(key, {}).items())

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._refused.pop(key, None)
        self._waiting.pop(key, None)

    async def act(self, policy: Policy, state: State, actions: Iterable[Action], *, emergency: bool) -> Acted:
        """Carry out the actions; returns what failed, so that the caller looks again soon."""
        key = PolicyKey(policy.namespace, policy.name)
        wanted = list(actions)
        writes = [a for a in wanted if isinstance(a, RequestPod | DeletePod) and self._expectations.fresh(a)]
        failures: list[OperatorError] = []
        unfenced = await self._fence.check(writes[0].workload.namespace, writes[0].pod.name) if writes else None
        if unfenced is not None:
            failures.append(unfenced)
            writes = []
        if not any(isinstance(a, RequestPod | DeletePod) for a in wanted):
            self._refused.pop(key, None)
        failures += await self._all(policy, [a for a in writes if isinstance(a, RequestPod)], emergency=emergency)
        again = False
        deletions = [a for a in writes if isinstance(a, DeletePod)]
        if state.enforce and (deletions or not self._enforcement.confirmed(key, state.generation)):
            again = await self._enforcement.confirm(key, state, deleted=policy.deleted)
        if deletions:
            held_back = await self._held_back(policy, state, emergency=emergency)
            failures += [held_back] if held_back else await self._all(policy, deletions, emergency=emergency)
        for action in wanted:
            if isinstance(action, DeleteAssignment):
                failures += await self._delete_assignment(policy)
        for notice in wanted:
            if isinstance(notice, Notify):
                await self._emit(policy, notice)
        return Acted(tuple(failures), again)

    async def _held_back(self, policy: Policy, state: State, *, emergency: bool) -> OperatorError | None:
        """Why pods may not be taken away now; an emergency does not wait for ever, and says so."""
        key = PolicyKey(policy.namespace, policy.name)
        admission = self._enforcement.admission(key)
        if self._enforcement.confirmed(key, state.generation):
            self._waiting.pop(key, None)
            return None
        now = self._clock.monotonic()
        since = self._waiting.setdefault(key, now)
        if emergency and now - since >= OVERDUE_SECONDS:
            text = f"pods are taken away though admission is not confirmed ({admission.reason}): {admission.message}"
            await self._emit(policy, Notify("AdmissionNotConfirmed", text, warning=True))
            return None
        return NotConfirmed(f"pods are not taken away yet: {admission.message}")

    async def _all(
        self, policy: Policy, writes: list[PodWrite] | list[RequestPod] | list[DeletePod], *, emergency: bool
    ) -> list[OperatorError]:
        results = await asyncio.gather(*(self._write(policy, action, emergency=emergency) for action in writes))
        return [error for error in results if error is not None]

    async def _write(self, policy: Policy, action: PodWrite, *, emergency: bool) -> OperatorError | None:
        key = PolicyKey(policy.namespace, policy.name)
        what = f"{type(action).__name__} {action.pod.name}"
        try:
            async with self._limiter.slot(emergency, policy.namespace):
                await self._send(action)
            self._expectations.wrote(action)
        except NotFound:
            pass  # gone: the watch will say so
        except TooManyRequests as error:
            self._limiter.pause(error.retry_after_seconds, policy.namespace)
            return error
        except OperatorError as error:
            stale = isinstance(error, PreconditionFailed | Conflict)
            if not stale:
                self._remember(key, what, error.reason)
            level = logging.INFO if stale else logging.WARNING
            _LOG.log(level, "%s: %s; looking again", what, error, extra={"reason": error.reason, "policy": policy.name})
            return error
        self._refused.get(key, {}).pop(what, None)
        return None

    async def _send(self, action: PodWrite) -> None:
        namespace, pod = action.workload.namespace, action.pod
        if isinstance(action, DeletePod):
            await self._api.delete(PODS, namespace, pod.name, uid=pod.uid)
            return
        operations = request_pod(action)
        if operations:
            await self._api.json_patch(PODS, namespace, pod.name, operations)

    def _remember(self, key: PolicyKey, what: str, reason: str) -> None:
        refused = self._refused.setdefault(key, {})
        if what in refused or len(refused) < REFUSED_LIMIT:
            refused[what] = reason

    async def _delete_assignment(self, policy: Policy) -> list[OperatorError]:
        try:
            await self._api.delete(ASSIGNMENTS, policy.namespace, policy.name)
        except NotFound:
            return []
        except KubeError as error:
            return [error]
        return []

    async def _emit(self, policy: Policy, notice: Notify) -> None:
        reference = PolicyRef(policy.namespace, policy.name, policy.uid)
        await self._events.emit(reference, notice.reason, notice.message, notice.warning)
