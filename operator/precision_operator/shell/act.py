"""Act: carry out what was decided, all at once within the limits, and never let one failure stop the rest."""

import asyncio
import logging
from collections.abc import Iterable

from precision_operator.api.policy import Policy
from precision_operator.contract import FINALIZER
from precision_operator.core.actions import Action, GuardPolicy, Notify, ReleasePolicy
from precision_operator.errors import KubeError, NotFound, OperatorError, PreconditionFailed, TooManyRequests
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.kube.port import POLICIES, JsonValue, KubeApi
from precision_operator.kube.workloads.port import WorkloadAction, WorkloadAdapter
from precision_operator.runtime.ratelimit import RateLimiter
from precision_operator.shell.expectations import Expectations

_LOG = logging.getLogger(__name__)


class Actor:
    """Writes to workloads and pods, and says so in Events."""

    def __init__(
        self,
        api: KubeApi,
        *,
        adapter: WorkloadAdapter,
        events: EventRecorder,
        limiter: RateLimiter,
        expectations: Expectations,
    ) -> None:
        self._api = api
        self._adapter = adapter
        self._events = events
        self._limiter = limiter
        self._expectations = expectations

    async def act(self, policy: Policy, actions: Iterable[Action], *, emergency: bool) -> list[OperatorError]:
        """Carry out the actions; returns what failed, so that the caller looks again soon."""
        writes: list[WorkloadAction] = []
        notices: list[Notify] = []
        failures: list[OperatorError] = []
        for action in actions:
            match action:
                case Notify():
                    notices.append(action)
                case GuardPolicy() | ReleasePolicy():
                    failures += await self._finalizer(policy, keep=isinstance(action, GuardPolicy))
                case _ if self._expectations.fresh(action):
                    writes.append(action)
        results = await asyncio.gather(*(self._write(policy, action, emergency=emergency) for action in writes))
        failures += [error for error in results if error is not None]
        reference = PolicyRef(policy.namespace, policy.name, policy.uid)
        for notice in notices:
            await self._events.emit(reference, notice.reason, notice.message, notice.warning)
        return failures

    async def _write(self, policy: Policy, action: WorkloadAction, *, emergency: bool) -> OperatorError | None:
        what = f"{type(action).__name__} {action.workload.namespace}/{action.workload.name}"
        try:
            async with self._limiter.slot(emergency):
                wrote = await self._adapter.apply(self._api, action)
            if wrote:
                self._expectations.wrote(action)
        except NotFound:
            return None  # gone: the watch will say so
        except TooManyRequests as error:
            self._limiter.pause(error.retry_after_seconds)
            return error
        except OperatorError as error:
            level = logging.INFO if isinstance(error, PreconditionFailed) else logging.WARNING
            _LOG.log(level, "%s: %s; looking again", what, error, extra={"reason": error.reason, "policy": policy.name})
            return error
        return None

    async def _finalizer(self, policy: Policy, *, keep: bool) -> list[OperatorError]:
        others: list[JsonValue] = [f for f in policy.finalizers if f != FINALIZER]
        metadata: dict[str, JsonValue] = {
            "resourceVersion": policy.resource_version,
            "finalizers": [*others, FINALIZER] if keep else others,
        }
        try:
            await self._api.merge_patch(POLICIES, policy.namespace, policy.name, {"metadata": metadata})
        except NotFound:
            return []
        except KubeError as error:
            return [error]
        return []
