"""Nodes: those that a person labelled for a canary, and those of late pods that do not answer."""

import logging
from collections.abc import Collection

from precision_operator.api.wire import mapping, sequence, text
from precision_operator.errors import KubeError
from precision_operator.kube.port import NODES, JsonObject, KubeApi
from precision_operator.runtime.clock import Clock

_LOG = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
"""A label is read this often at most, and only while a policy asks for it: nodes are not watched."""


AWAY_FRESH_SECONDS = 10.0
"""The same, of nodes with pods that should be gone."""

ASKED_LIMIT = 50
"""So many nodes are asked for at once."""

_HOSTNAME = "kubernetes.io/hostname"


class Nodes:
    """Names of nodes, by label and by whether they answer. Never raises: what cannot be read is not known."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}
        self._away: tuple[float, frozenset[str], frozenset[str]] = (-AWAY_FRESH_SECONDS, frozenset(), frozenset())
        """When they were asked for, which, and which of them do not answer."""

    async def away(self, names: Collection[str]) -> frozenset[str]:
        """Those of these nodes that the control plane has lost: their kubelets do not report."""
        if not names:
            return frozenset()
        now, asked = self._clock.monotonic(), frozenset(sorted(names)[:ASKED_LIMIT])
        at, known, away = self._away
        if now - at >= AWAY_FRESH_SECONDS or not asked <= known:
            away = await self._lost(asked)
            self._away = now, asked, away
        return away & asked

    async def _lost(self, asked: frozenset[str]) -> frozenset[str]:
        try:
            found = await self._api.list(NODES, "", label_selector=f"{_HOSTNAME} in ({','.join(sorted(asked))})")
        except KubeError as error:
            _LOG.warning(
                "whether nodes answer cannot be read: %s; let the operator list nodes (rbac.nodes of the chart)",
                error,
                extra={"reason": error.reason},
            )
            return frozenset()
        return frozenset(_name(body) for body in found if not _ready(body)) & asked

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


def _ready(node: JsonObject) -> bool:
    conditions = map(mapping, sequence(mapping(node.get("status")).get("conditions")))
    return any(found.get("type") == "Ready" and found.get("status") == "True" for found in conditions)
