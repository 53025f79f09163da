"""Nodes: those that a person labelled for a canary, and those of late pods that do not answer."""

import asyncio
import logging
from collections.abc import Collection, Iterator

from precision_operator.api.wire import has_condition, mapping, text
from precision_operator.errors import Forbidden, KubeError, NotFound, Unavailable
from precision_operator.kube.port import NODES, JsonObject, KubeApi
from precision_operator.runtime.clock import Clock, within

_LOG = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
"""A label is read this often at most, and only while a policy asks for it: nodes are not watched."""


AWAY_FRESH_SECONDS = 10.0
"""The same, of nodes with pods that should be gone."""

ASKED_LIMIT = 50
"""So many nodes of one policy are asked for: its pods may name any."""

AT_ONCE, ASKED_SECONDS = 3, 2.0
"""So many of them at one time, for so long; those that are left are asked for by the next pass."""


class Nodes:
    """Names of nodes, by label and by whether they answer. Never raises: what cannot be read is not known."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._away: dict[str, tuple[float, bool]] = {}
        """Node → when it was asked for, and whether it does not answer."""
        self._warned_at = -AWAY_FRESH_SECONDS

    async def away(self, names: Collection[str]) -> frozenset[str]:
        """Those of these nodes that the control plane has lost: their kubelets do not report."""
        now, asked = self._clock.monotonic(), sorted(names)[:ASKED_LIMIT]
        self._away = {name: known for name, known in self._away.items() if now - known[0] < AWAY_FRESH_SECONDS}
        unknown = [name for name in asked if name not in self._away]
        if unknown:
            try:
                await within(self._clock, ASKED_SECONDS, self._ask(unknown))
            except TimeoutError:
                self._warn(Unavailable(f"no answer within {ASKED_SECONDS:g} s"))
        return frozenset(name for name in asked if name in self._away and self._away[name][1])

    async def _ask(self, names: Collection[str]) -> None:
        left = iter(names)
        await asyncio.gather(*(self._ask_in_turn(left) for _ in range(AT_ONCE)))

    async def _ask_in_turn(self, names: Iterator[str]) -> None:
        """Each by itself: what is wrong with one name, which a tenant may choose, costs no other its answer."""
        for name in names:
            lost, forbidden = False, False
            try:
                node = await self._api.get(NODES, "", name)
                lost = not has_condition(node.get("status"), "Ready")
            except NotFound:
                pass
            except KubeError as error:
                self._warn(error)
                forbidden = isinstance(error, Forbidden)
            self._away[name] = self._clock.monotonic(), lost
            if forbidden:
                return

    def _warn(self, error: KubeError) -> None:
        now = self._clock.monotonic()
        if now - self._warned_at >= AWAY_FRESH_SECONDS:
            self._warned_at = now
            words = "whether nodes answer cannot be read: %s; let the operator read nodes (rbac.nodes of the chart)"
            _LOG.warning(words, error, extra={"reason": error.reason})

    async def names(self, label: str) -> tuple[str, ...]:
        """Nodes that carry ``key=value``, in order. Never raises: where they cannot be read there are none."""
        now = self._clock.monotonic()
        at, known = self._known.get(label, (-FRESH_SECONDS, ()))
        if now - at < FRESH_SECONDS:
            return known
        try:
            found = await self._api.list(NODES, "", label_selector=label)
        except KubeError as error:
            _LOG.warning(
                "nodes with %s cannot be read, the canary is chosen by its share: %s; let the operator list nodes "
                "(rbac.nodes of the chart), or set rollback.canary.by: Share",
                label,
                error,
                extra={"reason": error.reason},
            )
            found = ()
        names = tuple(sorted(map(_name, found)))
        self._known = {label: known for label, known in self._known.items() if now - known[0] < FRESH_SECONDS}
        self._known[label] = (now, names)
        return names


def _name(node: JsonObject) -> str:
    return text(mapping(node.get("metadata")).get("name"))
