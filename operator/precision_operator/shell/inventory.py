"""What the watches have told us, slim: no bodies but those of the policies, which are few."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from sys import intern

from precision_operator.api.selector import Selector, parse_selector
from precision_operator.api.wire import mapping, text
from precision_operator.core.model import WorkloadView
from precision_operator.kube.port import JsonObject
from precision_operator.workloads.reading import PodRecord, WorkloadRecord, controller_of, read_deployment, read_pod


class Kind(StrEnum):
    """What is watched, by plural."""

    POLICIES = "precisionpolicies"
    ASSIGNMENTS = "precisionassignments"
    WORKLOADS = "deployments"
    REPLICASETS = "replicasets"
    PODS = "pods"


@dataclass(frozen=True, slots=True, order=True)
class PolicyKey:
    """What the work queue is keyed by."""

    namespace: str
    name: str


Keys = frozenset[PolicyKey]


@dataclass(slots=True)
class _Policy:
    body: JsonObject
    uid: str
    selector: Selector


@dataclass(slots=True)
class _Workload:
    record: WorkloadRecord
    view: WorkloadView | None = None
    """The view with its pods; None until it is asked for after a change."""


@dataclass(slots=True)
class _Namespace:
    policies: dict[str, _Policy] = field(default_factory=dict)
    assignments: dict[str, Selector] = field(default_factory=dict)
    """Name → the selector in force; an assignment may outlive its policy."""
    workloads: dict[str, _Workload] = field(default_factory=dict)
    """By uid."""
    pods: dict[str, dict[str, PodRecord]] = field(default_factory=dict)
    """By the uid of what controls them, then by pod name; pods may be seen before it."""
    controlled: dict[str, set[str]] = field(default_factory=dict)
    """Uid of a workload → uids of its ReplicaSets."""


class Inventory:
    """Caches of policies, assignments, workloads and pods.

    A pod belongs to the workload to which its chain of owners leads, uid by uid: a name or a label that anybody can
    write proves nothing. ``observe`` returns the policies that have to look again: none where nothing changed that
    matters, so that status chatter costs nothing. One thread only.
    """

    def __init__(self, *, namespaces: Sequence[str] = ()) -> None:
        """``namespaces``: those that are watched, each with a list of its own; none: one list of the whole cluster."""
        self._scopes: frozenset[str | None] = frozenset(namespaces) or frozenset([None])
        self._namespaces: dict[str, _Namespace] = {}
        self._seen: dict[Kind, dict[str, tuple[str, str]]] = {kind: {} for kind in Kind}
        """uid → (namespace, name), to forget what a new list no longer holds."""
        self._owners: dict[str, str] = {}
        """Uid of a ReplicaSet → of the workload that controls it; of a pod → of what controls that."""
        self._synced: dict[Kind, set[str | None]] = {kind: set() for kind in Kind}

    def synced(self, kind: Kind) -> bool:
        """Whether a full list of the kind has been taken in, of every namespace that is watched."""
        return self._synced[kind] >= self._scopes

    @property
    def ready(self) -> bool:
        """Whether all kinds are synced: before that, a decision would be taken on a part of the world."""
        return all(map(self.synced, Kind))

    def count(self, kind: Kind) -> int:
        """How many objects of the kind are known."""
        return len(self._seen[kind])

    def observe(self, kind: Kind, body: JsonObject, *, deleted: bool) -> Keys:
        """Take in one watch event; objects that are none of ours are passed over."""
        match kind:
            case Kind.POLICIES:
                return self._observe_policy(body, deleted=deleted)
            case Kind.ASSIGNMENTS:
                return self._observe_assignment(body, deleted=deleted)
            case Kind.WORKLOADS:
                return self._observe_workload(body, deleted=deleted)
            case Kind.REPLICASETS:
                return self._observe_replicaset(body, deleted=deleted)
            case Kind.PODS:
                return self._observe_pod(body, deleted=deleted)

    def relisted(self, kind: Kind, namespace: str | None, uids: Iterable[str]) -> Keys:
        """A full list was taken: what it lacks is gone, though nobody told us (the watch was away).

        ``namespace`` is None for a list of the whole cluster.
        """
        self._synced[kind].add(namespace)
        keep = set(uids)
        gone = [
            (uid, where) for uid, where in self._seen[kind].items() if uid not in keep and namespace in (None, where[0])
        ]
        changed: Keys = frozenset()
        for uid, (where, name) in gone:
            changed |= self._forget(kind, uid, where, name)
        return changed

    def unsynced(self, kind: Kind) -> None:
        """The kind's watch was lost."""
        self._synced[kind].clear()

    def policy(self, key: PolicyKey) -> JsonObject | None:
        """A policy's body as last seen."""
        found = self._namespace(key.namespace).policies.get(key.name)
        return found.body if found else None

    def age(self, key: PolicyKey) -> tuple[str, str]:
        """When a policy was created, and its uid: sorts by age; one that is gone comes first, for it was there before."""
        metadata = mapping((self.policy(key) or {}).get("metadata"))
        return text(metadata.get("creationTimestamp")), text(metadata.get("uid"))

    def policy_keys(self) -> tuple[PolicyKey, ...]:
        """All policies, and the assignments whose policy is gone, sorted."""
        return tuple(
            sorted(
                PolicyKey(namespace, name)
                for namespace, space in self._namespaces.items()
                for name in {*space.policies, *space.assignments}
            )
        )

    def policy_keys_in(self, namespace: str) -> Keys:
        """The same, of one namespace."""
        space = self._namespaces.get(namespace, _Namespace())
        return frozenset(PolicyKey(namespace, name) for name in {*space.policies, *space.assignments})

    def selected(self, namespace: str, selector: Selector) -> tuple[WorkloadView, ...]:
        """The namespace's workloads whose *template* labels the selector matches, by key, each with its pods."""
        space = self._namespaces.get(namespace)
        if space is None:
            return ()
        found = [
            replace(view, labels_disagree=True) if not selector.matches(workload.record.labels) else view
            for workload in space.workloads.values()
            if selector.matches(workload.record.template_labels)
            for view in [self._view(space, workload)]
        ]
        return _merged(found)

    def concerned(self, namespace: str, workload: WorkloadRecord) -> Keys:
        """The policies whose selector, or whose assignment's, matches the template of a workload."""
        space = self._namespaces.get(namespace, _Namespace())
        labels = workload.template_labels
        selectors = [(name, policy.selector) for name, policy in space.policies.items()]
        selectors += space.assignments.items()
        return frozenset(PolicyKey(namespace, name) for name, selector in selectors if selector.matches(labels))

    def rivals(self, namespace: str, uid: str) -> Keys:
        """The policies that select a workload, by its uid."""
        space = self._namespaces.get(namespace, _Namespace())
        workload = space.workloads.get(uid)
        found = self.concerned(namespace, workload.record) if workload is not None else frozenset()
        return frozenset(key for key in found if key.name in space.policies)

    def named(self, namespace: str, name: str) -> Keys:
        """The policies that select a workload of this name."""
        space = self._namespaces.get(namespace, _Namespace())
        records = [workload.record for workload in space.workloads.values() if workload.record.view.name == name]
        return frozenset(key for record in records for key in self.concerned(namespace, record))

    def concerned_by_pod(self, namespace: str, pod: str) -> Keys:
        """The policies that select the workload of a pod; none where it is none of ours."""
        space = self._namespaces.get(namespace, _Namespace())
        controller = next((uid for uid, pods in space.pods.items() if pod in pods), "")
        return self.rivals(namespace, self._owners.get(controller, controller)) if controller else frozenset()

    def _namespace(self, name: str) -> _Namespace:
        return self._namespaces.setdefault(intern(name), _Namespace())

    def _observe_policy(self, body: JsonObject, *, deleted: bool) -> Keys:
        """A policy came, changed or went: always worth a look."""
        uid, key = self._named(Kind.POLICIES, body, deleted=deleted)
        policies = self._namespace(key.namespace).policies
        if not deleted:
            policies[key.name] = _Policy(body, uid, parse_selector(mapping(body.get("spec")).get("selector")))
        elif key.name in policies and policies[key.name].uid == uid:
            del policies[key.name]
        return frozenset([key])

    def _observe_assignment(self, body: JsonObject, *, deleted: bool) -> Keys:
        """Only its coming and going are news: what stands in it, we have written."""
        _, key = self._named(Kind.ASSIGNMENTS, body, deleted=deleted)
        assignments = self._namespace(key.namespace).assignments
        known = assignments.pop(key.name, None)
        if deleted:
            return frozenset([key])
        assignments[key.name] = selector = parse_selector(body.get("selector"))
        return frozenset([key]) if known != selector else frozenset()

    def _named(self, kind: Kind, body: JsonObject, *, deleted: bool) -> tuple[str, PolicyKey]:
        metadata = mapping(body.get("metadata"))
        key = PolicyKey(text(metadata.get("namespace")), text(metadata.get("name")))
        uid = text(metadata.get("uid"))
        self._note(kind, uid, key.namespace, key.name, deleted=deleted)
        return uid, key

    def _observe_workload(self, body: JsonObject, *, deleted: bool) -> Keys:
        """A workload came, changed or went: for the policies that select it, or did so until now."""
        record = read_deployment(body)
        view = record.view
        self._note(Kind.WORKLOADS, view.uid, view.namespace, view.name, deleted=deleted)
        return self._keep_workload(view.namespace, view.uid, None if deleted else record)

    def _keep_workload(self, namespace: str, uid: str, record: WorkloadRecord | None) -> Keys:
        workloads = self._namespace(namespace).workloads
        known = workloads.get(uid)
        before = self.concerned(namespace, known.record) if known is not None else frozenset()
        if record is None:
            workloads.pop(uid, None)
            return before
        if known is not None and known.record == record:
            return frozenset()
        workloads[uid] = _Workload(record)
        return before | self.concerned(namespace, record)

    def _observe_replicaset(self, body: JsonObject, *, deleted: bool) -> Keys:
        """A link between pods and their workload."""
        uid, key = self._named(Kind.REPLICASETS, body, deleted=deleted)
        owner = controller_of(body)
        if deleted or not owner:
            return self._unlink(key.namespace, uid)
        if self._owners.get(uid) == owner:
            return frozenset()
        changed = self._unlink(key.namespace, uid)
        self._owners[uid] = intern(owner)
        space = self._namespace(key.namespace)
        space.controlled.setdefault(owner, set()).add(uid)
        return changed | self._pods_changed(key.namespace, uid)

    def _unlink(self, namespace: str, uid: str) -> Keys:
        space = self._namespace(namespace)
        changed = self._pods_changed(namespace, uid)
        owner = self._owners.pop(uid, None)
        if owner is not None and owner in space.controlled:
            space.controlled[owner].discard(uid)
            if not space.controlled[owner]:
                del space.controlled[owner]
        return changed

    def _observe_pod(self, body: JsonObject, *, deleted: bool) -> Keys:
        """A pod came, changed or went: for the policies that select its workload."""
        record = read_pod(body)
        name, uid = record.view.name, record.view.uid
        controller = self._owners.get(uid) or record.controller
        if not controller:
            return frozenset()
        gone = deleted or record.finished or not record.controller
        self._note(Kind.PODS, uid, record.namespace, name, deleted=gone)
        if gone:
            self._owners.pop(uid, None)
        else:
            self._owners[uid] = intern(controller)
        return self._keep_pod(record.namespace, controller, name, uid, None if gone else record)

    def _keep_pod(self, namespace: str, controller: str, name: str, uid: str, record: PodRecord | None) -> Keys:
        space = self._namespace(namespace)
        pods = space.pods.setdefault(controller, {})
        known = pods.get(name)
        if record is not None:
            if known == record:
                return frozenset()
            pods[name] = record
        else:
            if known is not None and known.view.uid == uid:  # else late news of one that has a successor by now
                del pods[name]
            if not pods:
                del space.pods[controller]
            if known is None or known.view.uid != uid:
                return frozenset()
        return self._pods_changed(namespace, controller)

    def _pods_changed(self, namespace: str, controller: str) -> Keys:
        workload = self._namespace(namespace).workloads.get(self._owners.get(controller, controller))
        if workload is None:
            return frozenset()
        workload.view = None
        return self.concerned(namespace, workload.record)

    def _view(self, space: _Namespace, workload: _Workload) -> WorkloadView:
        if workload.view is None:
            uid = workload.record.view.uid
            sources = (uid, *space.controlled.get(uid, ()))
            pods = [record.view for source in sources for record in space.pods.get(source, {}).values()]
            workload.view = replace(workload.record.view, pods=tuple(sorted(pods, key=lambda pod: pod.name)))
        return workload.view

    def _note(self, kind: Kind, uid: str, namespace: str, name: str, *, deleted: bool) -> None:
        if deleted:
            self._seen[kind].pop(uid, None)
        else:
            self._seen[kind][uid] = (intern(namespace), name)

    def _forget(self, kind: Kind, uid: str, namespace: str, name: str) -> Keys:
        """Drop an object that a list no longer holds."""
        self._note(kind, uid, namespace, name, deleted=True)
        space = self._namespace(namespace)
        match kind:
            case Kind.POLICIES:
                if name in space.policies and space.policies[name].uid == uid:
                    del space.policies[name]
                return frozenset([PolicyKey(namespace, name)])
            case Kind.ASSIGNMENTS:
                space.assignments.pop(name, None)
                return frozenset([PolicyKey(namespace, name)])
            case Kind.WORKLOADS:
                return self._keep_workload(namespace, uid, None)
            case Kind.REPLICASETS:
                return self._unlink(namespace, uid)
            case Kind.PODS:
                return self._keep_pod(namespace, self._owners.pop(uid, ""), name, uid, None)


def _merged(views: Iterable[WorkloadView]) -> tuple[WorkloadView, ...]:
    """One view for each key, sorted: objects whose pods carry one workload label are one workload."""
    found: dict[str, WorkloadView] = {}
    for view in sorted(views, key=lambda view: (view.key, view.uid)):
        first = found.get(view.key)
        if first is None:
            found[view.key] = view
            continue
        found[view.key] = replace(
            first,
            hot=first.hot and view.hot,
            literal=first.literal or view.literal,
            replicas=first.replicas + view.replicas,
            labels_disagree=first.labels_disagree or view.labels_disagree,
            pods=(*first.pods, *view.pods),
        )
    return tuple(found.values())
