"""Act: carry out what was decided, all at once within the limits, and never let one failure stop the rest.

Running pods are asked first, and wait for nothing. Pods are taken away only after every API server has echoed the
committed generation: their replacements would come back in the mode before.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from precision_operator.api.policy import Policy
from precision_operator.api.spec import Strategy
from precision_operator.api.state import Phase, State
from precision_operator.core.actions import Action, DeletePod, Notify, RequestPod
from precision_operator.core.model import RefusedWrite
from precision_operator.errors import (
    Conflict,
    NotConfirmed,
    NotFound,
    OperatorError,
    PreconditionFailed,
    TooManyRequests,
)
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.kube.port import PODS, Deletion, KubeApi
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


REASON_CHARACTERS = 200
"""Of why nothing may be written, as it is shown."""


@dataclass(slots=True)
class _Waiting:
    """An emergency that waits for admission."""

    since: float
    announced: bool = False
    """An Event says that it goes on without."""


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
        self._waiting: dict[PolicyKey, _Waiting] = {}

    def refused(self, key: PolicyKey) -> tuple[RefusedWrite, ...]:
        """Writes of the last pass that the API server refused, and will refuse again."""
        return tuple(RefusedWrite(what, reason) for what, reason in self._refused.get(key, {}).items())

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._refused.pop(key, None)
        self._waiting.pop(key, None)

    async def act(self, policy: Policy, state: State, actions: Iterable[Action], *, emergency: bool) -> Acted:
        """Carry out what concerns pods and Events; returns what failed, so that the caller looks again soon.

        ``emergency``: these writes go before others.
        """
        key = PolicyKey(policy.namespace, policy.name)
        actions = list(actions)
        wanted = [action for action in actions if isinstance(action, RequestPod | DeletePod)]
        self._keep_refused(key, wanted)
        failures: list[OperatorError] = []
        writes = [action for action in wanted if self._expectations.fresh(action)]
        unfenced = await self._fence.check((a.workload.namespace, a.pod.name) for a in writes) if writes else None
        if unfenced is not None:
            self._remember(key, f"any write to a pod ({str(unfenced)[:REASON_CHARACTERS]})", unfenced.reason)
            failures, writes = [unfenced], []
        requests = [action for action in writes if isinstance(action, RequestPod)]
        failures += await self._all(policy, requests, emergency=emergency)
        again = False
        deletions = [action for action in writes if isinstance(action, DeletePod)]
        if state.enforce and (deletions or not self._enforcement.settled(key, state.generation)):
            again = await self._enforcement.confirm(key, state, deleted=policy.deleted)
        if deletions:
            held_back = await self._held_back(policy, state)
            failures += [held_back] if held_back else await self._all(policy, deletions, emergency=emergency)
        for action in actions:
            if isinstance(action, Notify):
                await self._emit(policy, action)
        return Acted(tuple(failures), again)

    def _keep_refused(self, key: PolicyKey, wanted: Sequence[PodWrite]) -> None:
        """Forget refusals of what is not wanted any more, and how long was waited to take pods away where none are."""
        if not any(isinstance(action, DeletePod) for action in wanted):
            self._waiting.pop(key, None)
        known = self._refused.pop(key, {})
        names = {_name(action) for action in wanted} if known else set()
        kept = {what: reason for what, reason in known.items() if what in names}
        if kept:
            self._refused[key] = kept

    async def _held_back(self, policy: Policy, state: State) -> OperatorError | None:
        """Why pods may not be taken away now; an emergency does not wait for ever, and says so."""
        key = PolicyKey(policy.namespace, policy.name)
        admission = self._enforcement.admission(key)
        if self._enforcement.confirmed(key, state.generation):
            self._waiting.pop(key, None)
            return None
        now = self._clock.monotonic()
        waiting = self._waiting.setdefault(key, _Waiting(now))
        rolled_back = state.phase in (Phase.ROLLING_BACK, Phase.HELD, Phase.DEGRADED)
        is_emergency = rolled_back and state.incident is not None and state.incident.strategy is Strategy.EMERGENCY
        if not is_emergency or now - waiting.since < OVERDUE_SECONDS:
            self._remember(key, "taking pods away", NotConfirmed.reason)
            return NotConfirmed(f"pods are not taken away yet: {admission.message}")
        if not waiting.announced:
            waiting.announced = True
            text = f"pods are taken away though admission is not confirmed ({admission.reason}): {admission.message}"
            await self._emit(policy, Notify(NotConfirmed.reason, text, warning=True))
        return None

    async def _all(self, policy: Policy, writes: Sequence[PodWrite], *, emergency: bool) -> list[OperatorError]:
        results = await asyncio.gather(*(self._write(policy, action, emergency=emergency) for action in writes))
        return [error for error in results if error is not None]

    async def _write(self, policy: Policy, action: PodWrite, *, emergency: bool) -> OperatorError | None:
        key = PolicyKey(policy.namespace, policy.name)
        what = _name(action)
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
            # Of a thousand that are refused alike, the log says those that the condition counts, once.
            level = logging.WARNING if not stale and self._remember(key, what, error.reason) else logging.INFO
            _LOG.log(level, "%s: %s; looking again", what, error, extra={"reason": error.reason, "policy": policy.name})
            return error
        self._accepted(key, what)
        return None

    async def _send(self, action: PodWrite) -> None:
        namespace, pod = action.workload.namespace, action.pod
        if isinstance(action, DeletePod):
            grace_seconds = 1 if pod.graceless else None
            await self._api.delete(PODS, namespace, pod.name, Deletion(uid=pod.uid, grace_seconds=grace_seconds))
            return
        operations = request_pod(action)
        if operations:
            await self._api.json_patch(PODS, namespace, pod.name, operations)

    def _remember(self, key: PolicyKey, what: str, reason: str) -> bool:
        """Whether this is news."""
        refused = self._refused.setdefault(key, {})
        is_new = refused.get(what) != reason
        if what not in refused and len(refused) >= REFUSED_LIMIT:
            return False
        refused[what] = reason
        return is_new

    def _accepted(self, key: PolicyKey, what: str) -> None:
        refused = self._refused.get(key)
        if refused is not None:
            refused.pop(what, None)
            if not refused:
                del self._refused[key]

    async def _emit(self, policy: Policy, notice: Notify) -> None:
        reference = PolicyRef(policy.namespace, policy.name, policy.uid)
        await self._events.emit(reference, notice.reason, notice.message, notice.warning)


def _name(action: PodWrite) -> str:
    """For a person, and to know it again."""
    return f"{type(action).__name__} {action.pod.name}"
