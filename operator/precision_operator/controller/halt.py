"""The switch that stops every action on a cluster: while a ConfigMap exists in the operator's namespace, all is halted."""

import logging
from collections.abc import Callable

from precision_operator.api.text import bounded
from precision_operator.api.wire import mapping, text
from precision_operator.errors import KubeError, NotFound, Unavailable
from precision_operator.kube.port import CONFIG_MAPS, JsonObject, KubeApi
from precision_operator.reasons import Cause, Reason
from precision_operator.runtime.clock import Clock, within

_LOG = logging.getLogger(__name__)

HALT_CONFIG_MAP = "precision-halt"

READ_SECONDS = 2.0
"""How often it is read. A watch would be told sooner, but one that is broken looks like a switch that is off."""

ANSWER_SECONDS = 2.0
"""How long one read may take: one that is lost must not keep the next, for the switch is obeyed within five seconds."""

REASON_CHARACTERS = 300


class Halt:
    """Whether everything is halted, and why. Every replica reads it, so that a new leader knows at once."""

    def __init__(
        self, api: KubeApi, clock: Clock, *, namespace: str, changed: Callable[[], None] = lambda: None
    ) -> None:
        """The switch.

        Args:
            namespace: the operator's own.
            changed: called when it was read first, and whenever it was turned since.
        """
        self._api = api
        self._clock = clock
        self._namespace = namespace
        self._changed = changed
        self._cause: Cause | None = None
        self._failed = ""
        self.known = False
        """It was read, or cannot be: before that nothing is decided."""

    @property
    def cause(self) -> Cause | None:
        """Why all is halted; None: it is not."""
        return self._cause

    async def run(self) -> None:
        """Read it until cancelled."""
        while True:
            began = self._clock.monotonic()
            await self.read()
            await self._clock.sleep(max(0.0, READ_SECONDS - (self._clock.monotonic() - began)))

    async def read(self) -> None:
        """Read it once. What cannot be read stays as it was last seen."""
        try:
            cause: Cause | None = _cause(self._namespace, await self._answer())
            self._failed = ""
        except NotFound:
            cause, self._failed = None, ""
        except KubeError as error:
            if error.reason != self._failed:
                _LOG.warning(
                    "whether ConfigMap %s halts everything cannot be read: %s; it is taken to be as it was: %s",
                    HALT_CONFIG_MAP,
                    error,
                    "halted" if self._cause else "not halted",
                    extra={"reason": error.reason},
                )
            self._failed = error.reason
            if error.reason is Reason.FORBIDDEN and not self.known:
                self._take(self._cause)  # an emergency must not wait for a right that an older chart does not give
            return
        self._take(cause)

    async def _answer(self) -> JsonObject:
        work = self._api.get(CONFIG_MAPS, self._namespace, HALT_CONFIG_MAP)
        if not self.known:
            return await work  # nothing is decided before it: a late answer is better than none
        try:
            return await within(self._clock, ANSWER_SECONDS, work)
        except TimeoutError:
            raise Unavailable(f"no answer within {ANSWER_SECONDS:g} s") from None

    def _take(self, cause: Cause | None) -> None:
        turned = not self.known or cause != self._cause
        if self.known and cause != self._cause:
            _LOG.warning(cause.message if cause else "not halted any more", extra={"reason": Reason.HALTED})
        self.known, self._cause = True, cause
        if turned:
            self._changed()


def _cause(namespace: str, body: JsonObject) -> Cause:
    given = bounded(text(mapping(body.get("data")).get("reason")), REASON_CHARACTERS)
    where = f"ConfigMap {HALT_CONFIG_MAP} in {namespace} halts every policy"
    return Cause(Reason.HALTED, f"{where}: {given}" if given else where)
