"""Committing: whether a decision may be committed, and how long a pass waits for it."""

from collections.abc import Callable, Coroutine

from precision_operator.api.policy import PolicyKey
from precision_operator.api.state import State
from precision_operator.controller.act import PATIENCE_SECONDS
from precision_operator.controller.basis import Basis
from precision_operator.controller.commit import commit, remove
from precision_operator.controller.echo import moved_on
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.halt import Halt
from precision_operator.controller.reports import Reports
from precision_operator.controller.restarts import Restarts
from precision_operator.core.actions import DeleteAssignment
from precision_operator.core.decide import Decision
from precision_operator.core.model import Observation
from precision_operator.core.observer import RecordedPass
from precision_operator.errors import Conflict, Halted, LeaseLost, Unavailable
from precision_operator.kube.port import JsonObject, KubeApi
from precision_operator.runtime.clock import Clock, within

LEAST_SECONDS = 0.3
"""What a promotion's commit is given at least, after however late a confirmation; and the status, after all else."""


class Committer:
    """Writes a decision into its assignment, where nothing has overtaken it."""

    def __init__(
        self,
        api: KubeApi,
        *,
        enforcement: Enforcement,
        restarts: Restarts,
        halt: Halt,
        reports: Reports,
        clock: Clock,
        leads: Callable[[int], bool],
    ) -> None:
        """``leads``: whether the Lease of that epoch is still held."""
        self._api = api
        self._enforcement = enforcement
        self._restarts = restarts
        self._halt = halt
        self._reports = reports
        self._clock = clock
        self._leads = leads

    async def commit(
        self,
        seen: RecordedPass,
        basis: Basis,
        body: JsonObject | None,
        record: JsonObject | None,
        *,
        began: float | None,
    ) -> bool | None:
        """Whether the assignment had to be written; None: it was removed.

        It comes before all other writes: a stale leader loses here, before it has touched anything. ``began``: when a pass
        began to write whose commit gives way to a breach; None: it does not.
        """
        key, observation, decision = seen.key, seen.observation, seen.decision
        with self._restarts.noted(key, decision.restarting, epoch=observation.epoch):
            if decision.promotes and body is not None:
                await self._confirm(key, body, seen.before)
            # What assigns nothing less safe is committed all the same: new pods may be waiting for the fallback.
            self._may_commit(key, observation, basis, emergency=began is None)
            if _deletes(decision) and record is not None:
                await remove(self._api, key, record)
                return None
            work = commit(self._api, key, record, seen.before, decision.state)
            committed = await (self._given_way(key, work, began) if began is not None else work)
            if committed:
                self._reports.committed(seen.policy, seen.before, decision)
            return committed

    async def _confirm(self, key: PolicyKey, body: JsonObject, state: State) -> None:
        """Before something less safe is assigned: admission works at this moment, and the policy is still the newest.

        An API server that does not answer holds no pass up: a breach may be waiting for the next one.

        Raises:
            Conflict: neither is certain; the next pass sees what was learnt here.
        """
        echo = await self._enforcement.ask(key, generation=state.generation, within_seconds=PATIENCE_SECONDS)
        outdated = moved_on(body, echo.policy)
        if outdated is not None:
            raise outdated
        if not echo.confirmed:
            raise Conflict(f"nothing is promoted: {echo.admission.message}")

    def _may_commit(self, key: PolicyKey, observation: Observation, basis: Basis, *, emergency: bool) -> None:
        name = f"{key.namespace}/{key.name}"
        if not self._leads(observation.epoch):
            raise LeaseLost(f"{name}: another replica may lead; nothing is written")
        if observation.halted is None and (cause := self._halt.cause) is not None:
            raise Halted(cause.message)
        if not basis.stands(emergency=emergency):
            raise Conflict(f"{name}: the policy or its assignment changed meanwhile; gather again")

    async def _given_way(self, key: PolicyKey, work: Coroutine[object, object, bool], began: float) -> bool:
        """A promotion's commit, which gives way too.

        Raises:
            Unavailable: the API server has not answered; whether it was written shows in the next pass.
        """
        seconds = left_seconds(self._clock, began)
        try:
            return await within(self._clock, seconds, work)
        except TimeoutError:
            name = f"{key.namespace}/{key.name}"
            raise Unavailable(f"{name}: no answer to a promotion's commit within {seconds:.1f} s") from None


def left_seconds(clock: Clock, began: float) -> float:
    """What is left to a write of a pass that is no emergency and began to write then."""
    return max(LEAST_SECONDS, began + PATIENCE_SECONDS - clock.monotonic())


def _deletes(decision: Decision) -> bool:
    return any(isinstance(action, DeleteAssignment) for action in decision.actions)
