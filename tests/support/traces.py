"""Traces by hand: each write gets the next revision, a second after the one before."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from lab.faults.trace import Entry, Header, Note, Object, Trace
from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.state import State
from precision_operator.contract import REQUEST
from tests.support.cluster_fleet import LABELS, deployment, policy

NAMESPACE = "team"


@dataclass
class Builder:
    """Collects entries; `trace` ends it."""

    expectations: Object = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    at_seconds: float = 0.0

    def write(
        self, kind: str, name: str, body: Object, *, uid: str = "", deleted: bool = False, **meta: object
    ) -> None:
        """One revision of an object."""
        metadata = {"namespace": NAMESPACE, "name": name, "uid": uid or f"uid-{name}", **meta}
        self._add(kind, {**body, "metadata": metadata}, deleted=deleted)

    def note(self, kind: Note, /, **body: object) -> None:
        """What is no object."""
        self._add(kind, body)

    def fleet(self, *names: str, deleted: bool = False, **spec: object) -> None:
        """The policy, and its Deployments."""
        self.write("PrecisionPolicy", "fleet", {"spec": policy(**spec)["spec"]}, deleted=deleted, generation=1)
        for name in names:
            self.write("Deployment", name, {"spec": deployment(name)["spec"]})

    def state(self, state: State, *, deleted: bool = False) -> None:
        """The assignment."""
        self.write("PrecisionAssignment", "fleet", assignment_to_wire(state), deleted=deleted)

    def pod(
        self,
        workload: str,
        number: int = 1,
        *,
        request: Object | None = None,
        reports: str = "",
        going: bool = False,
        deleted: bool = False,
    ) -> None:
        """A running pod of a Deployment, what it is asked for, and the mode that its process reports then."""
        name = f"{workload}-{number}"
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": f"{workload}-7f", "controller": True}
        body = {"spec": deployment(workload)["spec"]["template"]["spec"], "status": {"phase": "Running"}}
        metadata: Object = {
            "labels": {**LABELS, "pod-template-hash": "7f"},
            "ownerReferences": [owner],
            "annotations": {REQUEST: json.dumps(request)} if request is not None else {},
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if going or deleted else {}),
        }
        if reports:
            key = f"apps/Deployment/{workload}"
            self.note(Note.REPORTED, namespace=NAMESPACE, pod=name, workload=key, mode=reports, generation=0)
        self._add(
            "Pod",
            {**body, "metadata": {"namespace": NAMESPACE, "name": name, "uid": f"uid-{name}", **metadata}},
            deleted=deleted,
        )

    def job(self, *, suspended: bool) -> None:
        """A Job of the fleet."""
        template = {"metadata": {"labels": LABELS}}
        self.write("Job", "train", {"spec": {"suspend": suspended, "template": template}})

    def trace(self) -> Trace:
        """All of it."""
        return Trace(Header("by hand", expectations=self.expectations), tuple(self.entries))

    def _add(self, kind: str, body: Object, *, deleted: bool = False) -> None:
        self.at_seconds += 1.0
        self.entries.append(Entry(len(self.entries) + 1, self.at_seconds, kind, body, deleted=deleted))
