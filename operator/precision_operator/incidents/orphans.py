"""Incidents whose policy and assignment both went while no operator ran: no pass shows them any more."""

from collections.abc import Collection, Sequence

from precision_operator.api.policy import PolicyKey
from precision_operator.api.wire import mapping, text
from precision_operator.errors import Conflict, NotFound
from precision_operator.incidents.document import PHASE_LABEL, POLICY_LABEL, from_body, label, to_body
from precision_operator.incidents.passes import close
from precision_operator.incidents.report import IncidentPhase, Report
from precision_operator.kube.port import ASSIGNMENTS, INCIDENTS, POLICIES, KubeApi, Resource
from precision_operator.reasons import Reason
from precision_operator.replay.codec import RecordingError

EVERY_SECONDS = 3600.0

_OPEN = f"{PHASE_LABEL} in ({IncidentPhase.ACTIVE},{IncidentPhase.VERIFYING})"


def ended(report: Report, *, now: float) -> Report:
    """The report of an incident whose policy is gone."""
    return close(report, Reason.POLICY_DELETED, "its policy was deleted: the rest is not verified", now=now)


class Orphans:
    """Closes them, at the start of a leader and from time to time."""

    def __init__(self, api: KubeApi, *, namespaces: Sequence[str] = ()) -> None:
        """``namespaces``: those that are watched; none: all."""
        self._api = api
        self._namespaces = tuple(namespaces) or ("",)
        self._due_at = 0.0

    async def close(self, known: Collection[PolicyKey], *, now: float) -> None:
        """Close what nobody follows; ``known``: policies, and assignments without one, of which passes are seen.

        Raises:
            OperatorError: the API server did not answer as it should; the rest is closed another time.
        """
        if now < self._due_at:
            return
        self._due_at = now + EVERY_SECONDS
        followed = {(key.namespace, label(key.name)) for key in known}
        for namespace in self._namespaces:
            # Of the whole cluster, and each has a tape and evidence: only what nobody follows is read whole, one by one.
            for body in await self._api.list_metadata(INCIDENTS, namespace, label_selector=_OPEN):
                metadata = mapping(body.get("metadata"))
                where = text(metadata.get("namespace"))
                if (where, mapping(metadata.get("labels")).get(POLICY_LABEL)) not in followed:
                    await self._close(where, text(metadata.get("name")), known, now=now)

    async def _close(self, namespace: str, name: str, known: Collection[PolicyKey], *, now: float) -> None:
        try:
            body = await self._api.get(INCIDENTS, namespace, name)
            report = from_body(body)
        except (NotFound, RecordingError):
            return  # it was pruned; or a newer operator wrote it
        version = text(mapping(body.get("metadata")).get("resourceVersion"))
        key = PolicyKey(namespace, report.policy)
        if key in known or await self._exists(POLICIES, key) or await self._exists(ASSIGNMENTS, key):
            return
        closed = to_body(ended(report, now=now), namespace=namespace, resource_version=version)
        try:
            await self._api.replace(INCIDENTS, namespace, name, closed)
        except (Conflict, NotFound):
            return  # somebody else was faster

    async def _exists(self, resource: Resource, key: PolicyKey) -> bool:
        try:
            await self._api.get(resource, key.namespace, key.name)
        except NotFound:
            return False
        return True
