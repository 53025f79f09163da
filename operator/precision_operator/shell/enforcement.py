"""What is known of admission, policy by policy: asked anew in time, before anything depends on it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from precision_operator.api.selector import Selector
from precision_operator.api.state import State
from precision_operator.core.model import Admission
from precision_operator.errors import KubeError
from precision_operator.kube.port import PODS, JsonObject, KubeApi
from precision_operator.runtime.clock import Clock
from precision_operator.shell.echo import Echo, Echoes
from precision_operator.shell.installed import InstalledPolicies
from precision_operator.shell.inventory import Inventory, PolicyKey

_LOG = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
"""How old an answer may be that is shown, and that a rollout goes on with."""

RETRY_SECONDS = 5.0
"""How soon is asked again after an answer that was not yes."""


@dataclass(slots=True)
class _Known:
    admission: Admission
    at: float
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
        self, api: KubeApi, *, echoes: Echoes, installed: InstalledPolicies, inventory: Inventory, clock: Clock
    ) -> None:
        self._api = api
        self._echoes = echoes
        self._installed = installed
        self._inventory = inventory
        self._clock = clock
        self._known: dict[PolicyKey, _Known] = {}

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
        """The same, and the pods were listed since: none that admission missed is missing here."""
        return self.confirmed(key, generation) and self._known[key].listed >= generation

    def doubt(self, key: PolicyKey, pods: frozenset[str]) -> None:
        """Pods came in a mode that was not assigned to them: ask again before anything depends on it, once for each."""
        known = self._known.get(key)
        if known is None or pods <= known.slipped:
            return
        known.at = self._clock.monotonic() - FRESH_SECONDS
        known.generation = known.listed = 0
        known.lasting = False
        known.slipped = pods

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._known.pop(key, None)

    async def current(self, key: PolicyKey, *, generation: int, patient: bool = False) -> Admission:
        """The answer as of now: asked again where the last one is too old.

        ``patient``: a generation that was never waited for is waited for.
        """
        known = self._known.get(key)
        if known is not None:
            limit = FRESH_SECONDS if known.admission.enforced else RETRY_SECONDS
            if self._clock.monotonic() - known.at < limit:
                return known.admission
        return (await self.ask(key, generation=generation, patient=patient)).admission

    async def ask(self, key: PolicyKey, *, generation: int, patient: bool = True) -> Echo:
        """Ask every API server now, and compare what is installed with what we ship."""
        known = self._known.get(key)
        awaited = patient and (known is None or known.awaited < generation)
        echo = await self._echoes.ask(key, generation=generation, awaited=awaited)
        if echo.confirmed:
            differs = await self._installed.differs()
            echo = Echo(differs, echo.policy) if differs is not None else echo
        self._note(key, echo, generation, awaited=awaited)
        return echo

    async def confirm(self, key: PolicyKey, state: State, *, deleted: bool) -> bool:
        """Wait for the echo of a committed generation; then list the pods. True: there are some that the caches lack.

        What was created before the echo may have the mode before, and the watch may be late with it.
        """
        if not deleted:
            await self.ask(key, generation=state.generation)
        elif not self.confirmed(key, state.generation):
            self._note(key, await self._echoes.without_policy(), state.generation, awaited=True, lasting=True)
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
        """An empty selector selects nothing here, and everything there."""
        return await self._api.list(PODS, key.namespace, label_selector=selector.query) if not selector.empty else ()

    def _note(self, key: PolicyKey, echo: Echo, generation: int, *, awaited: bool, lasting: bool = False) -> None:
        before = self._known.get(key)
        known = _Known(echo.admission, self._clock.monotonic(), generation if echo.confirmed else 0, lasting)
        if before is not None:
            known.listed, known.slipped, known.awaited = before.listed, before.slipped, before.awaited
        if awaited:
            known.awaited = max(generation, known.awaited)
        self._known[key] = known
        if before is None or before.admission.reason != echo.admission.reason:
            level = logging.INFO if echo.confirmed else logging.WARNING
            extra = {"reason": echo.admission.reason, "policy": key.name}
            _LOG.log(level, "%s/%s: admission: %s", key.namespace, key.name, echo.admission.message, extra=extra)
