"""Act: carry out what was decided, all at once within the limits, and never let one failure stop the rest.

Running pods are asked first, and wait for nothing. Pods are taken away, and suspended Jobs resumed, only after every API
server has echoed the committed generation: the new pods would come back in the mode before. A Job that was suspended is
resumed before anything else is taken away, and waits for admission a short while only: no training run is ended by that.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.spec import Strategy
from precision_operator.api.state import Phase, State
from precision_operator.controller.broadcast import EventBroadcaster
from precision_operator.controller.disruptions import Disruptions, asks_budgets
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.expectations import Expectations
from precision_operator.controller.fence import Fence
from precision_operator.controller.halt import Halt
from precision_operator.controller.refusals import Refusals
from precision_operator.controller.sending import Sender, WritingPass
from precision_operator.controller.writes import Write, named
from precision_operator.core.actions import Action, DeletePod, EvictPod, Notify, RequestPod, ResumeJob, SuspendJob
from precision_operator.core.model import RefusedWrite
from precision_operator.errors import NotConfirmed, OperatorError
from precision_operator.kube.events import EventRecorder
from precision_operator.kube.port import KubeApi
from precision_operator.runtime.clock import Clock, within
from precision_operator.runtime.ratelimit import RateLimiter

OVERDUE_SECONDS = 30.0
"""An emergency waits this long for admission: a freshly started API server lets pods through for as long. So does the end
of a suspension."""

PATIENCE_SECONDS = 1.0
"""How long a pass may write that is no emergency, with all that it asks meanwhile. Then the policy is looked at again, and
what is still right is written."""

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
        self._events = EventBroadcaster(events, clock)
        self._expectations = expectations
        self._enforcement = enforcement
        self._fence = fence
        self._clock = clock
        self._refusals = Refusals()
        self._sender = Sender(
            api, limiter=limiter, expectations=expectations, refusals=self._refusals, halt=halt, clock=clock
        )
        self._disruptions = Disruptions(api, clock)
        self._waiting: dict[tuple[PolicyKey, str], _Waiting] = {}
        """By policy and what waits."""

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
        writing = WritingPass(policy, urgent, holds, current, until)
        work = self._carry_out(writing, state, wanted)
        try:
            await (work if emergency else within(self._clock, until - self._clock.monotonic(), work))
        except TimeoutError:
            writing.again = True  # each write is conditional, so one that is cut off may be sent again
        if holds():
            self._events.announce(policy, [action for action in actions if isinstance(action, Notify)])
        return Acted(tuple(writing.failures), writing.again)

    async def _carry_out(self, writing: WritingPass, state: State, wanted: Sequence[Write]) -> None:
        key = writing.key
        self._forget_unwanted(key, state, wanted)
        writes = await self._fenced(writing, [a for a in wanted if self._expectations.fresh(a)], WRITING)
        resumes = [action for action in writes if isinstance(action, ResumeJob)]
        first: list[Write] = [action for action in writes if isinstance(action, RequestPod)]
        if not state.enforce or self._enforcement.confirmed(key, state.generation):
            first, resumes = [*resumes, *first], []
        taken: list[Write] = [a for a in writes if not isinstance(a, RequestPod | ResumeJob)]
        if not any(map(asks_budgets, taken)):
            self._disruptions.end(key)
        writing.batches = sum(map(bool, (first, resumes, taken)))
        await self._sender.send_all(writing, first)
        asks = resumes or taken or not self._enforcement.settled(key, state.generation)
        if state.enforce and asks and await self._enforcement.confirm(key, state, deleted=writing.policy.deleted):
            writing.again = True
        await self._sender.send_all(writing, self._admitted(writing, state, RESUMING, resumes))
        # Their trials may hang, and nothing above needs them.
        taken = await self._fenced(writing, taken, EVICTING, SUSPENDING)
        admitted = self._admitted(writing, state, TAKING, taken)
        asking = [action for action in admitted if asks_budgets(action)]
        others = [action for action in admitted if not asks_budgets(action)]
        writing.batches = sum(map(bool, (others, asking)))
        await self._sender.send_all(writing, others)
        if asking:
            await self._together(writing, asking)

    async def _fenced(self, writing: WritingPass, writes: list[Write], *kinds: str) -> list[Write]:
        """Without those of these kinds that nothing holds to what is needed, which shows."""
        for what in kinds:
            tried = [a for a in writes if _KIND.get(type(a)) == what]
            if tried and (unfenced := await self._unfenced(what, tried)) is not None:
                short = str(unfenced)[:REASON_CHARACTERS]
                self._refusals.remember(writing.key, f"any {what}", unfenced.reason, detail=short)
                writing.failures.append(unfenced)
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

    def _admitted(self, writing: WritingPass, state: State, what: str, writes: Sequence[Write]) -> Sequence[Write]:
        """Those that wait for admission no longer: an emergency does not for ever, nor a suspended Job, and it says so."""
        key = writing.key
        if not writes:
            return []
        if self._enforcement.confirmed(key, state.generation):
            self._waiting.pop((key, what), None)
            return writes
        bounded = writes if what == RESUMING else _of_emergency(state, writes)
        going = bounded if bounded and self._is_overdue(writing, what) else []
        if len(going) < len(writes):
            self._refusals.remember(key, what, NotConfirmed.reason)
            writing.failures.append(NotConfirmed(f"{what} waits: {self._enforcement.admission(key).message}"))
        return going

    def _is_overdue(self, writing: WritingPass, what: str) -> bool:
        """Whether it has waited for admission long enough; then that is announced, once."""
        key, now = writing.key, self._clock.monotonic()
        waiting = self._waiting.setdefault((key, what), _Waiting(now))
        if now - waiting.since < OVERDUE_SECONDS:
            return False
        if not waiting.announced:
            waiting.announced = True
            admission = self._enforcement.admission(key)
            text = f"{what} goes on though admission is not confirmed ({admission.reason}): {admission.message}"
            self._events.announce(writing.policy, [Notify(NotConfirmed.reason, text)])
        return True

    async def _together(self, writing: WritingPass, writes: Sequence[Write]) -> None:
        """All of them, but for what would tear a process group apart, or take more than budgets allow together."""
        key = writing.key
        async with self._disruptions.alone(key.namespace):
            try:
                kept = await self._disruptions.against(key, writes)
            except OperatorError as error:
                writing.failures.append(error)
                return
            for write in writes:
                if (against := kept.get(write.workload.key)) is not None:
                    self._refusals.remember(key, named(write), against.reason, detail=against.budget)
            writing.failures += kept.values()
            await self._sender.send_all(writing, [write for write in writes if write.workload.key not in kept])


def _of_emergency(state: State, writes: Sequence[Write]) -> Sequence[Write]:
    """Those that an emergency writes, of the fleet or of workloads by themselves; what is promoted beside it is none."""
    under_way = state.phase in (Phase.ROLLING_BACK, Phase.HELD) or state.alone
    if not under_way or state.incident is None or state.incident.strategy is not Strategy.EMERGENCY:
        return []
    back = state.rolled_back(write.workload.key for write in writes)
    return [write for write in writes if write.workload.key in back]
