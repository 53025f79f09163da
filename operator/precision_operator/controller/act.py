"""Act: carry out what was decided, all at once within the limits, and never let one failure stop the rest.

Running pods are asked first, and wait for nothing. Pods are taken away, and suspended Jobs resumed, only after every API
server has echoed the committed generation: the new pods would come back in the mode before. A Job that was suspended is
resumed before anything else is taken away, and waits for admission a short while only: no training run is ended by that.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.spec import Strategy
from precision_operator.api.state import Phase, State
from precision_operator.controller.disruptions import Disruptions, asks_budgets
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.expectations import Expectations
from precision_operator.controller.fence import Fence
from precision_operator.controller.halt import Halt
from precision_operator.controller.refusals import Refusals
from precision_operator.controller.writes import Write, named, send
from precision_operator.core.actions import Action, DeletePod, EvictPod, Notify, RequestPod, ResumeJob, SuspendJob
from precision_operator.core.model import RefusedWrite
from precision_operator.errors import (
    Conflict,
    DisruptionBudget,
    Halted,
    LeaseLost,
    NotConfirmed,
    NotFound,
    OperatorError,
    PreconditionFailed,
    TooManyRequests,
)
from precision_operator.kube.events import EventRecorder, PolicyRef
from precision_operator.kube.port import KubeApi
from precision_operator.runtime.clock import Clock, within
from precision_operator.runtime.ratelimit import RateLimiter

_LOG = logging.getLogger(__name__)

OVERDUE_SECONDS = 30.0
"""An emergency waits this long for admission: a freshly started API server lets pods through for as long. So does the end
of a suspension."""

PATIENCE_SECONDS = 1.0
"""How long a pass may write that is no emergency, with all that it asks meanwhile. Then the policy is looked at again, and
what is still right is written."""

EVENTS_AT_ONCE, EVENTS_SECONDS = 4, 10.0
"""Events are sent beside the passes: so many at once of all policies, and those of a pass for so long. The rest is left."""

REASON_CHARACTERS = 200
"""Of why nothing may be written, as it is shown."""

WRITING, EVICTING, SUSPENDING = "write to a pod", "eviction", "suspension of a Job"
_KIND = {RequestPod: WRITING, DeletePod: WRITING, EvictPod: EVICTING, SuspendJob: SUSPENDING}
"""What the fence is tried for; not for the end of a suspension, for which nobody may have to wait."""

TAKING = "taking pods away"
RESUMING = "resuming Jobs"


@dataclass(slots=True)
class _Waiting:
    """Something that waits for admission."""

    since: float
    announced: bool = False
    """An Event says that it goes on without."""


@dataclass(slots=True)
class _Turn:
    """One call of ``act``."""

    policy: Policy
    urgent: frozenset[str]
    """Keys of the workloads that an emergency rolls back: what is written to them gives way to nothing."""
    holds: Callable[[], bool]
    current: Callable[[Write], bool]
    until: float
    """When all else gives way, by the monotonic clock."""
    batches: int = 0
    """Still to be sent: what hangs in one leaves time for the next."""
    cut_short: bool = False
    """Not all writes were sent."""
    again: bool = False
    """Pods were found that the caches did not know."""
    failures: list[OperatorError] = field(default_factory=list)

    @property
    def key(self) -> PolicyKey:
        """The policy's."""
        return PolicyKey(self.policy.namespace, self.policy.name)

    def leaves_out(self, write: Write) -> bool:
        """Whether what it was decided on does not stand any more: the next pass decides on the newest policy."""
        # What we suspended is resumed all the same, as with the switch.
        outdated = not isinstance(write, ResumeJob) and not self.current(write)
        self.cut_short = self.cut_short or outdated
        return outdated


@dataclass(frozen=True, slots=True)
class Acted:
    """How a pass' writes went."""

    failures: tuple[OperatorError, ...] = ()
    again: bool = False
    """Look again at once: pods were found that the caches did not know, or writes were left for the next pass."""


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
        halt: Halt,
        clock: Clock,
    ) -> None:
        self._api = api
        self._events = events
        self._limiter = limiter
        self._expectations = expectations
        self._enforcement = enforcement
        self._fence = fence
        self._halt = halt
        self._clock = clock
        self._refusals = Refusals()
        self._disruptions = Disruptions(api, clock)
        self._waiting: dict[tuple[PolicyKey, str], _Waiting] = {}
        """By policy and what waits."""
        self._few_events = asyncio.Semaphore(EVENTS_AT_ONCE)
        self._announcing: set[asyncio.Task[None]] = set()

    def refused(self, key: PolicyKey) -> tuple[RefusedWrite, ...]:
        """Writes of the last pass that the API server refused, and will refuse again."""
        return self._refusals.of(key)

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._refusals.forget(key)
        self._disruptions.end(key)
        for what in (TAKING, RESUMING):
            self._waiting.pop((key, what), None)

    async def act(
        self,
        policy: Policy,
        state: State,
        actions: Iterable[Action],
        *,
        emergency: bool,
        holds: Callable[[], bool] = lambda: True,
        current: Callable[[Write], bool] = lambda write: True,
        began: float | None = None,
    ) -> Acted:
        """Carry out what concerns pods, Jobs and Events; returns what failed, so that the caller looks again soon.

        ``emergency``: the writes of the rollback go before others, and go on to their end. ``holds`` and ``current``: asked
        before each write, whether the Lease of the decision is still held, and whether what it was decided on still stands.
        ``began``: when the pass began to write, by the monotonic clock; else now.
        """
        until = (self._clock.monotonic() if began is None else began) + PATIENCE_SECONDS
        actions = list(actions)
        wanted = [action for action in actions if isinstance(action, Write)]
        urgent = state.rolled_back(action.workload.key for action in wanted) if emergency else frozenset[str]()
        turn = _Turn(policy, urgent, holds, current, until)
        work = self._carry_out(turn, state, wanted)
        try:
            await (work if emergency else within(self._clock, until - self._clock.monotonic(), work))
        except TimeoutError:
            turn.cut_short = True  # each write is conditional, so one that is cut off may be sent again
        if holds():
            self._announce(policy, [action for action in actions if isinstance(action, Notify)])
        return Acted(tuple(turn.failures), turn.again or turn.cut_short)

    async def _carry_out(self, turn: _Turn, state: State, wanted: Sequence[Write]) -> None:
        key = turn.key
        self._forget_unwanted(key, state, wanted)
        writes = await self._fenced(turn, [a for a in wanted if self._expectations.fresh(a)], WRITING)
        resumes = [action for action in writes if isinstance(action, ResumeJob)]
        first: list[Write] = [action for action in writes if isinstance(action, RequestPod)]
        if not state.enforce or self._enforcement.confirmed(key, state.generation):
            first, resumes = [*resumes, *first], []
        taken: list[Write] = [a for a in writes if not isinstance(a, RequestPod | ResumeJob)]
        if not any(map(asks_budgets, taken)):
            self._disruptions.end(key)
        turn.batches = sum(map(bool, (first, resumes, taken)))
        await self._all(turn, first)
        if state.enforce and (resumes or taken or not self._enforcement.settled(key, state.generation)):
            turn.again = await self._enforcement.confirm(key, state, deleted=turn.policy.deleted)
        await self._all(turn, self._admitted(turn, state, RESUMING, resumes))
        # Their trials may hang, and nothing above needs them.
        taken = await self._fenced(turn, taken, EVICTING, SUSPENDING)
        admitted = self._admitted(turn, state, TAKING, taken)
        asking = [action for action in admitted if asks_budgets(action)]
        others = [action for action in admitted if not asks_budgets(action)]
        turn.batches = sum(map(bool, (others, asking)))
        await self._all(turn, others)
        if asking:
            await self._together(turn, asking)

    async def _fenced(self, turn: _Turn, writes: list[Write], *kinds: str) -> list[Write]:
        """Without those of these kinds that nothing holds to what is needed, which shows."""
        for what in kinds:
            tried = [a for a in writes if _KIND.get(type(a)) == what]
            if tried and (unfenced := await self._unfenced(what, tried)) is not None:
                short = str(unfenced)[:REASON_CHARACTERS]
                self._refusals.remember(turn.key, f"any {what}", unfenced.reason, detail=short)
                turn.failures.append(unfenced)
                writes = [a for a in writes if _KIND.get(type(a)) != what]
        return writes

    async def _unfenced(self, what: str, writes: Sequence[Write]) -> OperatorError | None:
        if what == SUSPENDING:
            return await self._fence.check_jobs((a.workload.namespace, a.workload.object_name) for a in writes)
        pods = [(a.workload.namespace, a.pod) for a in writes if not isinstance(a, SuspendJob | ResumeJob)]
        if what == EVICTING:
            return await self._fence.check_evictions((namespace, pod.name, pod.uid) for namespace, pod in pods)
        return await self._fence.check((namespace, pod.name) for namespace, pod in pods)

    def _forget_unwanted(self, key: PolicyKey, state: State, wanted: Sequence[Write]) -> None:
        """Refusals of what is not wanted any more, and how long was waited for admission where nothing waits."""
        self._refusals.keep(key, map(named, wanted))
        if not any(isinstance(action, ResumeJob) for action in wanted):
            self._waiting.pop((key, RESUMING), None)
        if all(isinstance(action, RequestPod | ResumeJob) for action in _of_emergency(state, wanted)):
            self._waiting.pop((key, TAKING), None)

    def _admitted(self, turn: _Turn, state: State, what: str, writes: Sequence[Write]) -> Sequence[Write]:
        """Those that wait for admission no longer: an emergency does not for ever, nor a suspended Job, and it says so."""
        key = turn.key
        if not writes:
            return []
        if self._enforcement.confirmed(key, state.generation):
            self._waiting.pop((key, what), None)
            return writes
        bounded = writes if what == RESUMING else _of_emergency(state, writes)
        going = bounded if bounded and self._is_overdue(turn, what) else []
        if len(going) < len(writes):
            self._refusals.remember(key, what, NotConfirmed.reason)
            turn.failures.append(NotConfirmed(f"{what} waits: {self._enforcement.admission(key).message}"))
        return going

    def _is_overdue(self, turn: _Turn, what: str) -> bool:
        """Whether it has waited for admission long enough; then that is announced, once."""
        key, now = turn.key, self._clock.monotonic()
        waiting = self._waiting.setdefault((key, what), _Waiting(now))
        if now - waiting.since < OVERDUE_SECONDS:
            return False
        if not waiting.announced:
            waiting.announced = True
            admission = self._enforcement.admission(key)
            text = f"{what} goes on though admission is not confirmed ({admission.reason}): {admission.message}"
            self._announce(turn.policy, [Notify(NotConfirmed.reason, text)])
        return True

    async def _together(self, turn: _Turn, writes: Sequence[Write]) -> None:
        """All of them, but for what would tear a process group apart, or take more than budgets allow together."""
        key = turn.key
        async with self._disruptions.alone(key.namespace):
            try:
                kept = await self._disruptions.against(key, writes)
            except OperatorError as error:
                turn.failures.append(error)
                return
            for write in writes:
                if (against := kept.get(write.workload.key)) is not None:
                    self._refusals.remember(key, named(write), against.reason, detail=against.budget)
            turn.failures += kept.values()
            await self._all(turn, [write for write in writes if write.workload.key not in kept])

    async def _all(self, turn: _Turn, writes: Sequence[Write]) -> None:
        """One batch, within its share of the time that is left; what is of an emergency to its end."""
        tasks = [asyncio.ensure_future(self._write(turn, action)) for action in writes]
        if not tasks:
            return
        urgent = [task for task, action in zip(tasks, writes, strict=True) if action.workload.key in turn.urgent]
        try:
            if urgent:
                await asyncio.wait(urgent)
            if left := [task for task in tasks if not task.done()]:
                share = (turn.until - self._clock.monotonic()) / max(turn.batches, 1)
                await within(self._clock, share, asyncio.wait(left))
        except TimeoutError:
            turn.cut_short = True
        finally:
            turn.batches -= 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            turn.failures += [e for task in tasks if not task.cancelled() and (e := task.result()) is not None]

    async def _write(self, turn: _Turn, action: Write) -> OperatorError | None:
        key, what = turn.key, named(action)
        try:
            if turn.leaves_out(action):
                return None
            urgent = action.workload.key in turn.urgent or isinstance(action, ResumeJob)
            async with self._limiter.slot(urgent, key.namespace) as slot:
                self._may(turn, action, what)
                if turn.leaves_out(action):  # it has waited for its turn
                    slot.give_back()
                    return None
                await send(self._api, action)
            self._expectations.wrote(action)
        except NotFound:
            pass  # gone: the watch will say so
        except TooManyRequests as error:
            self._limiter.pause(error.retry_after_seconds, key.namespace)
            return error
        except OperatorError as error:
            stale = isinstance(error, PreconditionFailed | Conflict)
            budget = error.budget if isinstance(error, DisruptionBudget) else ""
            # Of a thousand that are refused alike, the log says those that the condition counts, once.
            is_news = not stale and self._refusals.remember(key, what, error.reason, detail=budget)
            level = logging.WARNING if is_news else logging.INFO
            _LOG.log(level, "%s: %s; looking again", what, error, extra={"reason": error.reason, "policy": key.name})
            return error
        self._refusals.accepted(key, what)
        return None

    def _may(self, turn: _Turn, action: Write, what: str) -> None:
        if not turn.holds():
            raise LeaseLost(f"{what}: another replica may lead; nothing is written")
        # What we suspended is resumed all the same: a training run is not stopped by a switch that stops us.
        if (cause := self._halt.cause) is not None and not isinstance(action, ResumeJob):
            raise Halted(f"{what}: {cause.message}")

    def _announce(self, policy: Policy, notices: Sequence[Notify]) -> None:
        """Nothing waits for it: the next pass of an emergency may have to write at once."""
        if notices:
            task = asyncio.ensure_future(self._emit_all(policy, notices))
            self._announcing.add(task)
            task.add_done_callback(self._announcing.discard)

    async def _emit_all(self, policy: Policy, notices: Sequence[Notify]) -> None:
        sent = [asyncio.ensure_future(self._emit(policy, notice)) for notice in notices]
        try:
            await within(self._clock, EVENTS_SECONDS, asyncio.wait(sent))
        except TimeoutError:
            _LOG.warning("events not recorded within %g s", EVENTS_SECONDS, extra={"policy": policy.name})
        finally:
            for task in sent:
                task.cancel()

    async def _emit(self, policy: Policy, notice: Notify) -> None:
        reference = PolicyRef(policy.namespace, policy.name, policy.uid)
        async with self._few_events:
            await self._events.emit(reference, notice.reason, notice.message, notice.warning)


def _of_emergency(state: State, writes: Sequence[Write]) -> Sequence[Write]:
    """Those that an emergency writes, of the fleet or of workloads by themselves; what is promoted beside it is none."""
    under_way = state.phase in (Phase.ROLLING_BACK, Phase.HELD) or state.alone
    if not under_way or state.incident is None or state.incident.strategy is not Strategy.EMERGENCY:
        return []
    back = state.rolled_back(write.workload.key for write in writes)
    return [write for write in writes if write.workload.key in back]
