"""What is known of admission, policy by policy: asked anew in time, before anything depends on it.

A pass takes the last answer. It is asked for again beside the passes, so that no breach waits for an API server that does
not answer; only what must not happen without admission (a promotion, taking pods away) waits for an answer of its own.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from precision_operator.api.policy import PolicyKey
from precision_operator.api.selector import Selector
from precision_operator.api.state import State
from precision_operator.api.wire import mapping, text
from precision_operator.controller.echo import Echo, Echoes
from precision_operator.controller.installed import InstalledPolicies
from precision_operator.core.model import Admission
from precision_operator.errors import KubeError, NotFound
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.port import PODS, JsonObject, KubeApi
from precision_operator.reasons import Reason
from precision_operator.runtime.clock import Clock, within

_LOG = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
"""How old an answer may be that is shown, and that a rollout goes on with."""

RESTING_SECONDS = 300.0
"""The same of a policy that moves nothing, as long as the last answer about any was a yes within ``FRESH_SECONDS``."""

RETRY_SECONDS = 5.0
"""How soon is asked again after an answer that was not yes."""

FIRST_SECONDS = 0.3
"""How long a pass waits for a policy's first answer, so that it need not show Unknown: most come within 0.1 s, and a breach
may wait no longer than this."""

AT_ONCE = 8
"""Policies that are asked about at once, beside the passes; and pods that are read at once."""


@dataclass(slots=True)
class _Known:
    admission: Admission
    at: float
    number: int
    """Of the question, or of a later doubt: what was asked before says nothing any more."""
    generation: int = 0
    """The highest that every API server has echoed."""
    lasting: bool = False
    """There is no policy that could be asked about again."""
    awaited: int = 0
    """The highest that was waited for."""
    listed: int = 0
    """The generation after whose echo the pods were listed."""
    slipped: frozenset[str] = frozenset()
    """Uids of pods that gave a reason to doubt."""


class Enforcement:
    """Remembers what admission answered. A leader that starts asks anew: this is no state, only thrift."""

    def __init__(
        self,
        api: KubeApi,
        *,
        echoes: Echoes,
        installed: InstalledPolicies,
        inventory: Inventory,
        clock: Clock,
        changed: Callable[[PolicyKey], None] = lambda key: None,
    ) -> None:
        """``changed``: look at this policy again; what was asked beside its passes got another answer."""
        self._api = api
        self._echoes = echoes
        self._installed = installed
        self._inventory = inventory
        self._clock = clock
        self._changed = changed
        self._known: dict[PolicyKey, _Known] = {}
        self._probed_at = -math.inf
        """When there was a yes about any policy, and none turned into something else since; by the monotonic clock."""
        self._numbers = count(1)
        self._asking: dict[PolicyKey, asyncio.Task[None]] = {}
        """The questions under way beside the passes, one a policy."""
        self._confirming: dict[PolicyKey, tuple[int, asyncio.Task[bool]]] = {}
        """The generation that passes wait for, and the question, one a policy."""
        self._awaited: set[PolicyKey] = set()
        """Policies with a pass that waits for the first answer."""
        self._room = asyncio.Semaphore(AT_ONCE)

    def admission(self, key: PolicyKey) -> Admission:
        """The last answer."""
        known = self._known.get(key)
        return known.admission if known is not None else Admission()

    def confirmed(self, key: PolicyKey, generation: int) -> bool:
        """Whether every API server has echoed this generation, a moment ago."""
        known = self._known.get(key)
        if known is None or not known.admission.enforced or known.generation < generation:
            return False
        return known.lasting or self._clock.monotonic() - known.at < FRESH_SECONDS

    def settled(self, key: PolicyKey, generation: int) -> bool:
        """Whether the pods were listed after its echo, and nothing gave a reason to doubt since.

        None that admission missed is missing here then, however long ago that was.
        """
        known = self._known.get(key)
        return known is not None and known.listed >= generation

    def doubt(self, key: PolicyKey, pods: frozenset[str]) -> None:
        """Pods came in a mode that was not assigned to them: ask again before anything depends on it, once for each."""
        known = self._known.get(key)
        if known is None or pods <= known.slipped:
            return
        known.at = self._clock.monotonic() - RESTING_SECONDS
        known.number = next(self._numbers)
        known.generation = known.listed = 0
        known.lasting = False
        known.slipped = pods

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._known.pop(key, None)
        asking, (_, confirming) = self._asking.pop(key, None), self._confirming.pop(key, (-1, None))
        for task in (asking, confirming):
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        """Give up the questions under way; for shutdown."""
        asking = [*self._asking.values(), *(task for _, task in self._confirming.values())]
        self._asking.clear()
        self._confirming.clear()
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def current(
        self, key: PolicyKey, *, generation: int, patient: bool = False, resting: bool = False
    ) -> Admission:
        """The last answer. Where it is too old it is asked for again, and not waited for: ``changed`` says what comes.

        Only a first answer is waited for, for a moment. ``patient``: a generation that was never waited for is waited for.
        ``resting``: nothing is moved.
        """
        known = self._known.get(key)
        if known is None or self._is_old(known, resting=resting):
            if resting and known is not None and known.admission.enforced:
                self._probed_at = self._clock.monotonic()  # one at a time
            asking = self._ask_beside(key, generation, patient)
            if known is None:
                await self._first(key, asking)
        return self.admission(key)

    def _is_old(self, known: _Known, *, resting: bool) -> bool:
        age_seconds = self._clock.monotonic() - known.at
        if not known.admission.enforced:
            return age_seconds >= RETRY_SECONDS
        if not resting:
            return age_seconds >= FRESH_SECONDS
        return age_seconds >= RESTING_SECONDS or self._clock.monotonic() - self._probed_at >= FRESH_SECONDS

    async def _first(self, key: PolicyKey, asking: asyncio.Task[None]) -> None:
        self._awaited.add(key)
        try:
            with suppress(TimeoutError):
                await within(self._clock, FIRST_SECONDS, asyncio.wait({asking}))
        finally:
            self._awaited.discard(key)

    def _ask_beside(self, key: PolicyKey, generation: int, patient: bool) -> asyncio.Task[None]:
        asking = self._asking.get(key)
        if asking is None or asking.done():
            name = f"admission-{key.namespace}/{key.name}"
            asking = asyncio.get_running_loop().create_task(self._refresh(key, generation, patient), name=name)
            self._asking[key] = asking
        return asking

    async def _refresh(self, key: PolicyKey, generation: int, patient: bool) -> None:
        before = self.admission(key)
        try:
            async with self._room:
                await self.ask(key, generation=generation, patient=patient)
        except Exception:  # noqa: BLE001 - the last barrier: nobody waits for this task, and the next pass asks again
            where = f"{key.namespace}/{key.name}"
            _LOG.exception("%s: admission cannot be asked", where, extra={"reason": Reason.INTERNAL_ERROR})
        finally:
            if self._asking.get(key) is asyncio.current_task():
                del self._asking[key]
        after = self.admission(key)
        if (after.enforced, after.reason) != (before.enforced, before.reason) and key not in self._awaited:
            self._changed(key)

    async def ask(
        self, key: PolicyKey, *, generation: int, patient: bool = True, within_seconds: float = math.inf
    ) -> Echo:
        """Ask every API server now, and compare what is installed with what we ship.

        ``within_seconds``: then no answer is one too.
        """
        number = next(self._numbers)
        known = self._known.get(key)
        awaited = patient and (known is None or known.awaited < generation)
        work = self._ask(key, generation, awaited)
        try:
            echo = await (work if math.isinf(within_seconds) else within(self._clock, within_seconds, work))
        except TimeoutError:
            why = f"no answer about admission within {within_seconds:g} s"
            echo, awaited = Echo(Admission(None, Reason.UNAVAILABLE, why)), False
        self._note(key, echo, generation, number=number, awaited=awaited)
        return echo

    async def _ask(self, key: PolicyKey, generation: int, awaited: bool) -> Echo:
        echo = await self._echoes.ask(key, generation=generation, awaited=awaited)
        differs = await self._installed.differs() if echo.confirmed else None
        return Echo(differs, echo.policy) if differs is not None else echo

    async def confirm(self, key: PolicyKey, state: State, *, deleted: bool) -> bool:
        """Wait for the echo of a committed generation; then list the pods. True: there are some that the caches lack.

        What was created before the echo may have the mode before, and the watch may be late with it. A pass that gives up
        waiting leaves the question under way, and the next one finds it.
        """
        generation, asking = self._confirming.get(key, (-1, None))
        if asking is None or generation != state.generation or (asking.done() and not self._just_answered(key)):
            if asking is not None:
                asking.cancel()
            asking = asyncio.get_running_loop().create_task(self._confirm(key, state, deleted))
            asking.add_done_callback(lambda task: task.cancelled() or task.exception())  # a pass may have given it up
            self._confirming[key] = (state.generation, asking)
        await asyncio.wait({asking})
        if self._confirming.get(key, (-1, None))[1] is asking:
            del self._confirming[key]
        return asking.result()

    def _just_answered(self, key: PolicyKey) -> bool:
        """What ended between two passes counts for the second, else a slow API server would be asked for ever."""
        known = self._known.get(key)
        return known is not None and self._clock.monotonic() - known.at < RETRY_SECONDS

    async def _confirm(self, key: PolicyKey, state: State, deleted: bool) -> bool:
        if not deleted:
            await self.ask(key, generation=state.generation)
        elif not self.confirmed(key, state.generation):
            number = next(self._numbers)
            echo = await self._echoes.without_policy(key, state.generation)
            self._note(key, echo, state.generation, number=number, awaited=True, lasting=True)
        if self.settled(key, state.generation) or not self.confirmed(key, state.generation):
            return False
        return await self._list_pods(key, state)

    async def _list_pods(self, key: PolicyKey, state: State) -> bool:
        try:
            with self._inventory.pods_going() as gone:
                pods = await self._list(key, state.selector)
        except KubeError as error:
            _LOG.warning("pods cannot be listed: %s", error, extra={"reason": error.reason, "policy": key.name})
            return False
        self._known[key].listed = state.generation
        return key in self._inventory.add_pods(pods, gone=gone)

    async def _list(self, key: PolicyKey, selector: Selector) -> Sequence[JsonObject]:
        """The pods that the caches lack, of thousands. An empty selector selects nothing here, and everything there."""
        if selector.empty:
            return ()
        found = await self._api.list_metadata(PODS, key.namespace, label_selector=selector.query)
        pods = {text(m.get("uid")): text(m.get("name")) for m in (mapping(body.get("metadata")) for body in found)}
        unknown = iter([name for uid, name in pods.items() if not self._inventory.has_pod(key.namespace, uid)])
        bodies: list[JsonObject] = []

        async def read() -> None:
            for name in unknown:
                with suppress(NotFound):
                    bodies.append(await self._api.get(PODS, key.namespace, name))

        await asyncio.gather(*(read() for _ in range(AT_ONCE)))
        return bodies

    def _note(
        self, key: PolicyKey, echo: Echo, generation: int, *, number: int, awaited: bool, lasting: bool = False
    ) -> None:
        before = self._known.get(key)
        if before is not None and before.number > number:
            return
        known = _Known(echo.admission, self._clock.monotonic(), number, generation if echo.confirmed else 0, lasting)
        if before is not None:
            known.listed, known.slipped, known.awaited = before.listed, before.slipped, before.awaited
        if awaited:
            known.awaited = max(generation, known.awaited)
        self._known[key] = known
        if echo.confirmed:
            self._probed_at = known.at
        elif before is not None and before.admission.enforced:
            self._probed_at = -math.inf  # it may be so of all: the next pass asks about another
        if before is None or before.admission.reason != echo.admission.reason:
            level = logging.INFO if echo.confirmed else logging.WARNING
            extra = {"reason": echo.admission.reason, "policy": key.name}
            _LOG.log(level, "%s/%s: admission: %s", key.namespace, key.name, echo.admission.message, extra=extra)
