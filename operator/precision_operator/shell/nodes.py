"""Nodes that a person labelled, for policies that send a canary to them first."""

import logging

from precision_operator.api.wire import mapping, text
from precision_operator.errors import KubeError
from precision_operator.kube.port import NODES, KubeApi
from precision_operator.runtime.clock import Clock

_LOG = logging.getLogger(__name__)

FRESH_SECONDS = 60.0
"""A label is read this often at most, and only while a policy asks for it: nodes are not watched."""


class LabelledNodes:
    """Names of nodes by label."""

    def __init__(self, api: KubeApi, clock: Clock) -> None:
        self._api = api
        self._clock = clock
        self._known: dict[str, tuple[float, tuple[str, ...]]] = {}

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
        names = tuple(sorted(text(mapping(body.get("metadata")).get("name")) for body in found))
        self._known = {label: known for label, known in self._known.items() if now - known[0] < FRESH_SECONDS}
        self._known[label] = (now, names)
        return names
