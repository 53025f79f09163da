"""What the watches have reported, slim: no bodies."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from sys import intern

from precision_operator.admission.injection import asks, inject
from precision_operator.api.policy import PolicyKey, Revision
from precision_operator.api.selector import Selector
from precision_operator.api.wire import mapping, text
from precision_operator.core.model import WorkloadView
from precision_operator.inventory.namespace import Names, Namespace
from precision_operator.inventory.records import AssignmentRecord, PolicyRecord
from precision_operator.kube.port import ASSIGNMENTS, PODS, POLICIES, REPLICASETS, JsonObject, Resource
from precision_operator.workloads.kinds.pod import read_bare_pod
from precision_operator.workloads.kinds.strangers import strange_pod, strange_replicaset
from precision_operator.workloads.kinds.table import KIND_OF, KINDS
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.reading import is_hot, read_pod
from precision_operator.workloads.records import WorkloadRecord

WATCHED: tuple[Resource, ...] = (POLICIES, ASSIGNMENTS, *(kind.resource for kind in KINDS))
"""What is watched."""


Keys = frozenset[PolicyKey]

_NOTHING = Namespace()
"""Of a namespace of which nothing is known."""


class Inventory:
    """Caches of policies, assignments, workloads and pods.

    ``observe`` returns the policies that have to look again: none where nothing changed that matters, so that status
    chatter costs nothing. One thread only.
    """

    def __init__(self, *, namespaces: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        """``namespaces``: those that are watched, each with a list of its own; none: one list of the whole cluster."""
        self._clock = clock
        self._scopes: frozenset[str | None] = frozenset(namespaces) or frozenset([None])
        self._namespaces: dict[str, Namespace] = {}
        self._synced: dict[Resource, set[str | None]] = {resource: set() for resource in WATCHED}
        self._going: list[set[str]] = []
        """For each list of pods that is under way: the uids of pods that went meanwhile."""
        self._told_to_go: dict[str, float] = {}
        """Uid of a terminating pod → when it was first seen to be one, by the monotonic clock."""

    def synced(self, resource: Resource) -> bool:
        """Whether a full list of the resource has been taken in, of every namespace that is watched."""
        return self._synced[resource] >= self._scopes

    @property
    def ready(self) -> bool:
        """Whether all kinds are synced: before that, a decision would be taken on a part of the world."""
        return all(map(self.synced, WATCHED))

    def count(self, resource: Resource) -> int:
        """How many objects of the resource are known."""
        return sum(len(_uids(space, resource)) for space in self._namespaces.values())

    def observe(self, resource: Resource, body: JsonObject, *, deleted: bool) -> Keys:
        """Take in one watch event; objects that are none of ours are passed over."""
        metadata = mapping(body.get("metadata"))
        namespace, name, uid = (text(metadata.get(field)) for field in ("namespace", "name", "uid"))
        space = self._namespaces.setdefault(intern(namespace), Namespace())
        names = self._drop(space, resource, uid) if deleted else self._put(space, resource, name, body)
        if resource == POLICIES:
            names |= {name}  # always worth a look
        if space.empty:
            del self._namespaces[namespace]
        return _keys(namespace, names)

    def relisted(self, resource: Resource, namespace: str | None, uids: Iterable[str]) -> Keys:
        """A full list was taken: what it lacks is gone, though no event said so (the watch was away).

        ``namespace`` is None for a list of the whole cluster.
        """
        self._synced[resource].add(namespace)
        keep = frozenset(uids)
        changed: set[PolicyKey] = set()
        for name in [name for name in self._namespaces if namespace in (None, name)]:
            space = self._namespaces[name]
            for uid in _uids(space, resource) - keep:
                changed |= _keys(name, self._drop(space, resource, uid))
            if space.empty:
                del self._namespaces[name]
        return frozenset(changed)

    @contextmanager
    def pods_going(self) -> Iterator[set[str]]:
        """The uids of pods that go while the block runs: a list that was asked for in it may still show them."""
        going: set[str] = set()
        self._going.append(going)
        try:
            yield going
        finally:
            self._going.remove(going)

    def add_pods(self, bodies: Iterable[JsonObject], *, gone: set[str]) -> Keys:
        """Take in those of a list of pods that no watch event has reported yet.

        Of the others the watch knows at least as much. ``gone``: see :meth:`pods_going`.
        """
        changed: Keys = frozenset()
        for body in bodies:
            metadata = mapping(body.get("metadata"))
            uid, space = text(metadata.get("uid")), self._space(text(metadata.get("namespace")))
            if uid not in gone and uid not in space.controllers:
                changed |= self.observe(PODS, body, deleted=False)
        return changed

    def has_pod(self, namespace: str, uid: str) -> bool:
        """Whether a watch event has reported this pod, or a list."""
        return uid in self._space(namespace).controllers

    def policy_keys(self) -> tuple[PolicyKey, ...]:
        """All policies, and the assignments whose policy is gone, sorted."""
        return tuple(sorted(key for namespace in self._namespaces for key in self.policy_keys_in(namespace)))

    def policy_keys_in(self, namespace: str) -> Keys:
        """The same, of one namespace."""
        return _keys(namespace, self._space(namespace).names)

    def policy_named(self, namespace: str, name: str) -> Keys:
        """The policy of this name, or the assignment whose policy is gone; none where neither is known."""
        space = self._space(namespace)
        return _keys(namespace, frozenset({name} if name in space.policies or name in space.assignments else ()))

    def version(self, namespace: str) -> int:
        """Another one after every change of what is known of the namespace."""
        return self._space(namespace).version

    def versions(self, key: PolicyKey) -> tuple[str, str]:
        """The resourceVersions of a policy and of its assignment, as the watches last reported them; empty: not there."""
        space = self._space(key.namespace)
        policy, assignment = space.policies.get(key.name), space.assignments.get(key.name)
        return policy.version if policy is not None else "", assignment.version if assignment is not None else ""

    def revision(self, key: PolicyKey) -> Revision | None:
        """What decides of a policy, as the watch last reported it; None: it is not there."""
        policy = self._space(key.namespace).policies.get(key.name)
        return policy.revision if policy is not None else None

    def assignment_uid(self, key: PolicyKey) -> str:
        """The uid of a policy's assignment, as the watch last reported it; empty: it is not there."""
        assignment = self._space(key.namespace).assignments.get(key.name)
        return assignment.uid if assignment is not None else ""

    def selected(self, namespace: str, selector: Selector) -> tuple[WorkloadView, ...]:
        """The namespace's workloads whose *template* labels the selector matches, by key, each with its pods."""
        return self._space(namespace).selected(selector)

    def workload(self, namespace: str, uid: str) -> WorkloadView | None:
        """The workload with this object, with its pods; None where it is not known."""
        return self._space(namespace).view(uid)

    @property
    def loses_pods(self) -> bool:
        """Whether any pod is on its way out."""
        return bool(self._told_to_go)

    def told_to_go(self, pod_uid: str) -> float | None:
        """When a terminating pod was first seen to be one, by the monotonic clock; None: it is none."""
        return self._told_to_go.get(pod_uid)

    def unsupported(self, namespace: str, selector: Selector) -> tuple[str, ...]:
        """The keys of what the selector matches and no known kind controls, sorted."""
        return self._space(namespace).unsupported(selector)

    def rivals(self, namespace: str, uid: str) -> Keys:
        """The policies that select a workload, by its uid, and those that are gone whose assignment still holds it."""
        return _keys(namespace, self._space(namespace).rivals(uid))

    def owner(self, key: PolicyKey, uid: str) -> PolicyKey:
        """Of the policies that select a workload, ``key`` among them, the one that it belongs to.

        It is the one that holds it after a rollback, else the oldest; by uid among those of the same second.
        """
        rivals, space = self.rivals(key.namespace, uid) | {key}, self._space(key.namespace)
        return key if len(rivals) == 1 else min(rivals, key=lambda rival: space.precedence(rival.name, uid))

    def named(self, namespace: str, name: str) -> Keys:
        """The policies that select a workload of this name."""
        return _keys(namespace, self._space(namespace).named(name))

    def concerned_by_pod(self, namespace: str, pod: str) -> Keys:
        """The policies that select the workload of a pod; none where it is none of ours."""
        return _keys(namespace, self._space(namespace).concerned_by_pod(pod))

    def _space(self, namespace: str) -> Namespace:
        return self._namespaces.get(namespace, _NOTHING)

    def _put(self, space: Namespace, resource: Resource, name: str, body: JsonObject) -> Names:
        """It came or changed."""
        if resource == POLICIES:
            return space.put_policy(name, PolicyRecord.read(body))
        if resource == ASSIGNMENTS:
            return space.put_assignment(name, AssignmentRecord.read(body))
        uid = text(mapping(body.get("metadata")).get("uid"))
        if resource == PODS:
            return self._put_pod(space, uid, body)
        record = KIND_OF[resource].read(body)
        changed = space.drop_workload(uid) if record is None else space.put_workload(resource, _injected(record, body))
        if resource == REPLICASETS:
            owner = controller_of(body)
            changed |= space.put_replicaset(uid, owner.uid if owner is not None else "")
            changed |= space.put_stranger(uid, strange_replicaset(body))
        return changed

    def _put_pod(self, space: Namespace, uid: str, body: JsonObject) -> Names:
        """A pod came or changed. Most have a controller that is known, so that nothing else is to be found out."""
        pod = read_pod(body)
        if not pod.counts:
            self._pod_went(uid)
        elif pod.view.terminating:
            self._told_to_go.setdefault(uid, self._clock())
        bare = read_bare_pod(body) if pod.controller == uid else None
        changed = space.put_workload(PODS, bare) if bare is not None else space.drop_workload(uid)
        known = pod.controller == uid or space.controls(pod.controller)
        return changed | space.put_pod(pod) | space.put_stranger(uid, None if known else strange_pod(body))

    def _drop(self, space: Namespace, resource: Resource, uid: str) -> Names:
        """It went."""
        if resource == POLICIES:
            return space.drop_policy(uid)
        if resource == ASSIGNMENTS:
            return space.drop_assignment(uid)
        changed = space.drop_workload(uid) | space.put_stranger(uid, None)
        if resource == REPLICASETS:
            changed |= space.drop_replicaset(uid)
        if resource == PODS:
            self._pod_went(uid)
            changed |= space.drop_pod(uid)
        return changed

    def _pod_went(self, uid: str) -> None:
        self._told_to_go.pop(uid, None)
        for going in self._going:
            going.add(uid)


def _injected(record: WorkloadRecord, body: JsonObject) -> WorkloadRecord:
    """A workload's record. What its label has injected into its pods stands in no template."""
    template = mapping(mapping(body.get("spec")).get("template"))
    if record.view.hot or not asks(template):
        return record
    return replace(record, injected=is_hot(mapping(inject(template).get("spec"))))


def _keys(namespace: str, names: Names) -> Keys:
    return frozenset(PolicyKey(namespace, name) for name in names)


def _uids(space: Namespace, resource: Resource) -> frozenset[str]:
    if resource == POLICIES:
        return frozenset(policy.uid for policy in space.policies.values())
    if resource == ASSIGNMENTS:
        return frozenset(assignment.uid for assignment in space.assignments.values())
    if resource == PODS:
        return frozenset(space.controllers)
    return space.workloads_of(resource) | (frozenset(space.owners) if resource == REPLICASETS else frozenset())
