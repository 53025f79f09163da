"""How many closed incidents are kept, and for how long."""

import math
from collections.abc import Sequence

from precision_operator.api.wire import mapping, parse_time, text
from precision_operator.errors import NotFound
from precision_operator.incidents.document import PHASE_LABEL, POLICY_LABEL, label
from precision_operator.incidents.report import IncidentPhase
from precision_operator.kube.port import INCIDENTS, JsonObject, KubeApi
from precision_operator.settings import IncidentSettings

DAY_SECONDS = 86400.0


class Retention:
    """Deletes closed incidents beyond a number for each policy, and beyond an age."""

    def __init__(self, api: KubeApi, settings: IncidentSettings) -> None:
        self._api = api
        self._settings = settings
        self._due_at = 0.0

    async def prune(self, namespace: str, policy: str, *, now: float) -> int:
        """Prune one policy's; returns how many went."""
        selector = f"{POLICY_LABEL}={label(policy)},{PHASE_LABEL}={IncidentPhase.CLOSED}"
        return await self._prune(namespace, selector, now=now)

    async def daily(self, namespaces: Sequence[str], *, now: float) -> None:
        """Prune by age, once a day."""
        if now < self._due_at:
            return
        first, self._due_at = self._due_at == 0.0, now + DAY_SECONDS
        for namespace in () if first else namespaces:
            await self._prune(namespace, f"{PHASE_LABEL}={IncidentPhase.CLOSED}", now=now)

    async def _prune(self, namespace: str, selector: str, *, now: float) -> int:
        # Each has a tape and evidence of up to 1 MiB, and none of it is read here.
        found = await self._api.list_metadata(INCIDENTS, namespace, label_selector=selector)
        kept: dict[str, int] = {}
        deleted = 0
        for body in sorted(found, key=_created_at, reverse=True):
            metadata = mapping(body.get("metadata"))
            policy = text(mapping(metadata.get("labels")).get(POLICY_LABEL))
            kept[policy] = kept.get(policy, 0) + 1
            if kept[policy] > self._settings.keep or now - _created_at(body) > self._settings.max_age_seconds:
                try:
                    await self._api.delete(INCIDENTS, namespace, text(metadata.get("name")))
                    deleted += 1
                except NotFound:
                    continue
        return deleted


def _created_at(body: JsonObject) -> float:
    """As it is decided; without a time it is not old."""
    return parse_time(mapping(body.get("metadata")).get("creationTimestamp")) or math.inf
