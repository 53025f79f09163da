"""What is known of one namespace: policies, assignments and workloads with their pods, and which concern which."""

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from itertools import count
from sys import intern

from precision_operator.api.selector import BySelector, Selector
from precision_operator.core.model import WorkloadView
from precision_operator.inventory.merge import merged
from precision_operator.inventory.records import AssignmentRecord, PolicyRecord
from precision_operator.kube.port import Resource
from precision_operator.workloads.records import PodRecord, Stranger, WorkloadRecord

Names = frozenset[str]
"""Names of policies."""

NOBODY: Names = frozenset()

_VERSIONS = count(1)
"""Of all namespaces: one that goes and comes again must not repeat itself."""


@dataclass(slots=True)
class _Workload:
    resource: Resource
    record: WorkloadRecord
    view: WorkloadView | None = None
    """The view with its pods; None until it is asked for after a change."""
    concerned: Names | None = None
    """Who selects it; None until it is asked for after a change of the selectors."""


class Namespace:
    """The caches of one namespace.

    A pod belongs to the workload to which its chain of owners leads, uid by uid. What changes something returns the names
    of the policies that have to look again.
    """

    def __init__(self) -> None:
        self.version = next(_VERSIONS)
        """Another one after every change of what it tells of workloads, pods, and which policies these belong to."""
        self.policies: dict[str, PolicyRecord] = {}
        self.assignments: dict[str, AssignmentRecord] = {}
        self._workloads: dict[str, _Workload] = {}
        """By uid."""
        self.owners: dict[str, str] = {}
        """Uid of a ReplicaSet → of the workload that controls it."""
        self.controllers: dict[str, str] = {}
        """Uid of a pod → of what controls it."""
        self._controlled: dict[str, set[str]] = {}
        """Uid of a workload → uids of its ReplicaSets."""
        self._pods: dict[str, dict[str, PodRecord]] = {}
        """By the uid of what controls them, then by their own; pods may be seen before it."""
        self._named: dict[str, set[str]] = {}
        """Name of a workload, or of a pod → uids of those."""
        self._strangers: dict[str, Stranger] = {}
        """By the uid of a pod, or of a ReplicaSet, that something of no known kind controls."""
        self._unsupported: dict[Selector, tuple[str, ...]] = {}
        """What was asked for since the last change of strangers or selectors."""
        self._selectors: BySelector[str] | None = None
        """The names of policies and assignments; None: to be made anew."""

    @property
    def empty(self) -> bool:
        """Nothing is known of it."""
        return not (self.policies or self.assignments or self._workloads or self.owners or self.controllers)

    @property
    def names(self) -> Names:
        """Its policies, and the assignments whose policy is gone."""
        return frozenset({*self.policies, *self.assignments})

    def put_policy(self, name: str, record: PolicyRecord) -> Names:
        """It came or changed."""
        known = self.policies.get(name)
        self.policies[name] = record
        self._changed()
        if known is None or known.selector != record.selector:
            self._selectors_changed()
        return frozenset([name])

    def drop_policy(self, uid: str) -> Names:
        """It went."""
        return self._drop(self.policies, uid)

    def put_assignment(self, name: str, record: AssignmentRecord) -> Names:
        """It came or changed; what else stands in it, the operator itself has written."""
        known = self.assignments.get(name)
        self.assignments[name] = record
        self._changed()
        if known == record:
            return NOBODY
        if known is None or known.selector != record.selector:
            self._selectors_changed()
        return frozenset([name])

    def drop_assignment(self, uid: str) -> Names:
        """It went."""
        return self._drop(self.assignments, uid)

    def _drop(self, records: dict[str, PolicyRecord] | dict[str, AssignmentRecord], uid: str) -> Names:
        names = frozenset(name for name, record in records.items() if record.uid == uid)
        for name in names:
            del records[name]
        self._selectors_changed()
        return names

    def _changed(self) -> None:
        self.version = next(_VERSIONS)

    def _selectors_changed(self) -> None:
        self._changed()
        self._unsupported.clear()
        self._selectors = None
        for workload in self._workloads.values():
            workload.concerned = None

    def put_workload(self, resource: Resource, record: WorkloadRecord) -> Names:
        """It came or changed: for the policies that select it, or did so until now."""
        known = self._workloads.get(record.view.uid)
        if known is not None and known.record == record:
            return NOBODY
        before = self.drop_workload(record.view.uid)
        self._changed()
        self._workloads[record.view.uid] = found = _Workload(resource, record)
        self._named.setdefault(record.view.name, set()).add(record.view.uid)
        return before | self._concerned(found)

    def drop_workload(self, uid: str) -> Names:
        """It went, has ended, or is a part of another."""
        known = self._workloads.pop(uid, None)
        if known is None:
            return NOBODY
        self._changed()
        self._unname(known.record.view.name, uid)
        return self._concerned(known)

    def controls(self, uid: str) -> bool:
        """Whether it is a workload, or a link to one."""
        return uid in self._workloads or uid in self.owners

    def workloads_of(self, resource: Resource) -> frozenset[str]:
        """The uids of the workloads whose objects are of this resource."""
        return frozenset(uid for uid, workload in self._workloads.items() if workload.resource == resource)

    def put_stranger(self, uid: str, record: Stranger | None) -> Names:
        """What no known kind controls came or changed; None: it went, or is none."""
        known = self._strangers.get(uid)
        if known == record:
            return NOBODY
        self._changed()
        self._unsupported.clear()
        if record is None:
            del self._strangers[uid]
        else:
            self._strangers[uid] = record
        return NOBODY.union(*(self._selecting(found.labels) for found in (known, record) if found is not None))

    def unsupported(self, selector: Selector) -> tuple[str, ...]:
        """The keys of what the selector matches and no known kind controls, sorted."""
        if selector not in self._unsupported:
            found = {record.key for record in self._strangers.values() if selector.matches(record.labels)}
            self._unsupported[selector] = tuple(sorted(found))
        return self._unsupported[selector]

    def put_replicaset(self, uid: str, owner: str) -> Names:
        """A link between pods and their workload came or changed; without an owner it is a workload itself."""
        if self.owners.get(uid) == owner:
            return NOBODY
        self._changed()
        changed = self.drop_replicaset(uid)
        if owner:
            self.owners[uid] = intern(owner)
            self._controlled.setdefault(owner, set()).add(uid)
            changed |= self._pods_changed(uid) if uid in self._pods else NOBODY
        return changed

    def drop_replicaset(self, uid: str) -> Names:
        """It went."""
        self._changed()
        changed = self._pods_changed(uid) if uid in self._pods else NOBODY
        owner = self.owners.pop(uid, "")
        siblings = self._controlled.get(owner, set())
        siblings.discard(uid)
        if not siblings:
            self._controlled.pop(owner, None)
        return changed

    def put_pod(self, record: PodRecord) -> Names:
        """It came or changed. One that has ended for good, or that nothing controls, is none of ours."""
        uid, controller = record.view.uid, record.controller
        left = self.drop_pod(uid) if not record.counts or self.controllers.get(uid) != controller else NOBODY
        if not record.counts:
            return left
        pods = self._pods.setdefault(controller, {})
        if pods.get(uid) == record:
            return left
        pods[uid] = record
        self.controllers[uid] = intern(controller)
        self._named.setdefault(record.view.name, set()).add(uid)
        return left | self._pods_changed(controller)

    def drop_pod(self, uid: str) -> Names:
        """It went."""
        controller = self.controllers.pop(uid, None)
        if controller is None:
            return NOBODY
        pods = self._pods[controller]
        self._unname(pods.pop(uid).view.name, uid)
        if not pods:
            del self._pods[controller]
        return self._pods_changed(controller)

    def _unname(self, name: str, uid: str) -> None:
        found = self._named.get(name, set())  # a bare pod and its workload are one uid
        found.discard(uid)
        if not found:
            self._named.pop(name, None)

    def _pods_changed(self, controller: str) -> Names:
        self._changed()
        workload = self._controlling(controller)
        if workload is None:
            return NOBODY
        workload.view = None
        return self._concerned(workload)

    def _controlling(self, controller: str) -> _Workload | None:
        return self._workloads.get(self.owners.get(controller, controller))

    def _concerned(self, workload: _Workload) -> Names:
        """Whose selector matches the template of a workload: of policies, and of assignments."""
        if workload.concerned is None:
            workload.concerned = self._selecting(workload.record.template_labels)
        return workload.concerned

    def _selecting(self, labels: Mapping[str, str]) -> Names:
        if self._selectors is None:
            self._selectors = BySelector()
            for name, policy in self.policies.items():
                self._selectors.add(policy.selector, name)
            for name, assignment in self.assignments.items():
                self._selectors.add(assignment.selector, name)
        return frozenset(self._selectors.matching(labels))

    def rivals(self, uid: str) -> Names:
        """The policies that select a workload, and those that are gone whose assignment still holds it."""
        workload = self._workloads.get(uid)
        if workload is None:
            return NOBODY
        return frozenset(
            name
            for name in self._concerned(workload)
            if name in self.policies or self.assignments[name].governs(workload.record)
        )

    def precedence(self, name: str, uid: str) -> tuple[bool, str, str]:
        """Sorts the policies that select a workload, by its uid.

        First is who holds what a rollback took back: a policy that is created again is young, and must not lose it to an
        older one. Then they sort by age; one that is gone was there before.
        """
        workload, assignment, policy = self._workloads.get(uid), self.assignments.get(name), self.policies.get(name)
        holds = workload is not None and assignment is not None and assignment.holds(workload.record)
        return (not holds, policy.created, policy.uid) if policy is not None else (not holds, "", "")

    def named(self, workload: str) -> Names:
        """The policies that select a workload of this name."""
        found = (self._workloads.get(uid) for uid in self._named.get(workload, ()))
        return NOBODY.union(*(self._concerned(one) for one in found if one is not None))

    def concerned_by_pod(self, pod: str) -> Names:
        """The policies that select the workload of the pod with this name."""
        controllers = (self.controllers.get(uid) for uid in self._named.get(pod, ()))
        found = (self._controlling(controller) for controller in controllers if controller is not None)
        return NOBODY.union(*(self.rivals(one.record.view.uid) for one in found if one is not None))

    def selected(self, selector: Selector) -> tuple[WorkloadView, ...]:
        """The workloads whose *template* labels the selector matches, by key, each with its pods."""
        found = [
            replace(view, labels_disagree=True) if not selector.matches(workload.record.labels) else view
            for workload in self._workloads.values()
            if selector.matches(workload.record.template_labels)
            for view in [self._view(workload)]
        ]
        return merged(found)

    def view(self, uid: str) -> WorkloadView | None:
        """The workload with this object, with its pods; None where it is not known."""
        workload = self._workloads.get(uid)
        return self._view(workload) if workload is not None else None

    def _view(self, workload: _Workload) -> WorkloadView:
        if workload.view is None:
            known, uid = workload.record, workload.record.view.uid
            sources: Set[str] = {uid, *self._controlled.get(uid, ())}
            records = [record for source in sources for record in self._pods.get(source, {}).values()]
            pods = sorted((record.view for record in records), key=lambda pod: (pod.name, pod.uid))
            # A label alone shows nothing: the policy that injects may not be installed. Its pods do.
            hot = known.view.hot or (known.injected and (not pods or any(pod.hot for pod in pods)))
            revisions = known.revisions
            passed = revisions is not None and any(
                revisions.passed(record) for record in records if not record.view.terminating
            )
            pending = known.view.pending_revision or passed
            workload.view = replace(known.view, hot=hot, pending_revision=pending, pods=tuple(pods))
        return workload.view
