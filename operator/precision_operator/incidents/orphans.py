"""Open incidents that no pass carries on: their policy is gone, or it has a newer one and an earlier leader left them."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress

from precision_operator.api.assignment import VERSION, parse_assignment, state_version
from precision_operator.api.policy import PolicyKey
from precision_operator.api.state import State
from precision_operator.api.wire import mapping, text
from precision_operator.errors import Conflict, NotFound, OperatorError, Unavailable
from precision_operator.incidents.document import PHASE_LABEL, name_of
from precision_operator.incidents.passes import close, superseded
from precision_operator.incidents.report import IncidentPhase, Report, stamp
from precision_operator.incidents.store import IncidentStore
from precision_operator.kube.port import ASSIGNMENTS, INCIDENTS, POLICIES, JsonObject, KubeApi, Resource
from precision_operator.reasons import Reason

EVERY_SECONDS = 3600.0

_OPEN = f"{PHASE_LABEL} in ({IncidentPhase.ACTIVE},{IncidentPhase.VERIFYING})"


def ended(report: Report, *, now: float) -> Report:
    """The report of an incident whose policy is gone."""
    return close(report, Reason.POLICY_DELETED, "its policy was deleted: the rest is not verified", now=now)


class Orphans:
    """Closes them, at the start of a leader and from time to time."""

    def __init__(self, api: KubeApi, store: IncidentStore, *, namespaces: Sequence[str] = ()) -> None:
        """``namespaces``: those that are watched; none: all."""
        self._api = api
        self._store = store
        self._namespaces = tuple(namespaces) or ("",)
        self._due_at = 0.0

    async def close(self, known: Collection[PolicyKey], *, held: Collection[tuple[str, str]], now: float) -> None:
        """Close what nobody follows.

        Args:
            known: policies, and assignments without one, of which passes are seen: none of them is gone.
            held: (namespace, name) of the incidents that are worked on.
            now: seconds since the epoch.

        Raises:
            OperatorError: the first of those that occurred: what the API server refuses keeps none behind it open. Where it
                does not answer, the rest is closed another time.
        """
        if now < self._due_at:
            return
        self._due_at = now + EVERY_SECONDS
        failed: list[OperatorError] = []
        for namespace in self._namespaces:
            with _noted(failed):
                # Of the whole cluster, and each has a tape and evidence: only what nobody follows is read whole, one by one.
                for body in await self._api.list_metadata(INCIDENTS, namespace, label_selector=_OPEN):
                    metadata = mapping(body.get("metadata"))
                    where, name = text(metadata.get("namespace")), text(metadata.get("name"))
                    if (where, name) not in held:
                        with _noted(failed):
                            await self._close(where, name, known, now=now)
        if failed:
            raise failed[0]

    async def _close(self, namespace: str, name: str, known: Collection[PolicyKey], *, now: float) -> None:
        found = await self._store.read(namespace, name)
        if found is None:
            return
        report, version = found
        closed = await self._closed(PolicyKey(namespace, report.policy), name, report, known, now=now)
        if closed is not None:
            with suppress(Conflict, NotFound):  # somebody else was faster
                await self._store.overwrite(namespace, closed, version)

    async def _closed(
        self, key: PolicyKey, name: str, report: Report, known: Collection[PolicyKey], *, now: float
    ) -> Report | None:
        """The report, closed; None: its policy has it still, or may have."""
        # Read after the incident: an assignment names it before its object is made, and names another only once it is over.
        assignment = await self._read(ASSIGNMENTS, key)
        if assignment is None:
            gone = key not in known and await self._read(POLICIES, key) is None
            return ended(report, now=now) if gone else None
        state = _state(assignment)
        if state is None:
            return None
        newest = state.incident
        if newest is not None and name_of(newest.id, stamp(newest.decided_at)) == name:
            return None
        return superseded(report, newest, now=now)

    async def _read(self, resource: Resource, key: PolicyKey) -> JsonObject | None:
        try:
            return await self._api.get(resource, key.namespace, key.name)
        except NotFound:
            return None


@contextmanager
def _noted(failed: list[OperatorError]) -> Iterator[None]:
    """What the API server refuses is noted; that it does not answer is raised."""
    try:
        yield
    except Unavailable:
        raise
    except OperatorError as error:
        failed.append(error)


def _state(assignment: JsonObject) -> State | None:
    """None: nothing was decided yet, or a newer operator decided it."""
    if not mapping(assignment.get("state")) or state_version(assignment) > VERSION:
        return None
    return parse_assignment(assignment)
