"""What the watches have told us, slim: no bodies but those of the policies, which are few."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from sys import intern

from precision_operator.api.selector import Selector, parse_selector
from precision_operator.api.wire import mapping, text
from precision_operator.core.model import PodView, WorkloadView
from precision_operator.kube.port import JsonObject
from precision_operator.kube.workloads.port import PodRecord, WorkloadAdapter, WorkloadRecord


class Kind(StrEnum):
    """What is watched, by plural."""

    POLICIES = "precisionpolicies"
    WORKLOADS = "deployments"
    PODS = "pods"


@dataclass(frozen=True, slots=True, order=True)
class PolicyKey:
    """What the work queue is keyed by."""

    namespace: str
    name: str


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
    workloads: dict[str, _Workload] = field(default_factory=dict)
    pods: dict[str, dict[str, PodRecord]] = field(default_factory=dict)
    """By owning workload, then by pod name; pods may be seen before their workload."""


class Inventory:
    """Caches of policies, workloads and pods.

    The ``observe_*`` methods return the policies that have to look again: none where nothing changed that matters, so
    that status chatter costs nothing. One thread only.
    """

    def __init__(self, adapter: WorkloadAdapter, *, namespaces: Sequence[str] = ()) -> None:
        """``namespaces``: those that are watched, each with a list of its own; none: one list of the whole cluster."""
        self._adapter = adapter
        self._scopes: frozenset[str | None] = frozenset(namespaces) or frozenset([None])
        self._namespaces: dict[str, _Namespace] = {}
        self._seen: dict[Kind, dict[str, tuple[str, str]]] = {kind: {} for kind in Kind}
        """uid → (namespace, name), to forget what a new list no longer holds."""
        self._owners: dict[str, str] = {}
        """Pod uid → owning workload."""
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

    def observe(self, kind: Kind, body: JsonObject, *, deleted: bool) -> frozenset[PolicyKey]:
        """Take in one watch event; objects that are none of ours are passed over."""
        match kind:
            case Kind.POLICIES:
                return self.observe_policy(body, deleted=deleted)
            case Kind.WORKLOADS:
                return self.observe_workload(body, deleted=deleted)
            case Kind.PODS:
                return self.observe_pod(body, deleted=deleted)

    def observe_policy(self, body: JsonObject, *, deleted: bool) -> frozenset[PolicyKey]:
        """A policy came, changed or went: always worth a look."""
        metadata = mapping(body.get("metadata"))
        key = PolicyKey(text(metadata.get("namespace")), text(metadata.get("name")))
        policies = self._namespace(key.namespace).policies
        uid = text(metadata.get("uid"))
        self._note(Kind.POLICIES, uid, key.namespace, key.name, deleted=deleted)
        if deleted:
            self._forget(Kind.POLICIES, uid, key.namespace, key.name)
        else:
            policies[key.name] = _Policy(body, uid, parse_selector(mapping(body.get("spec")).get("selector")))
        return frozenset([key])

    def observe_workload(self, body: JsonObject, *, deleted: bool) -> frozenset[PolicyKey]:
        """A workload came, changed or went: for the policies that select it, or did so until now."""
        record = self._adapter.workload(body)
        namespace, name = record.view.namespace, record.view.name
        self._note(Kind.WORKLOADS, record.view.uid, namespace, name, deleted=deleted)
        return self._keep_workload(namespace, name, None if deleted else record, uid=record.view.uid)

    def observe_pod(self, body: JsonObject, *, deleted: bool) -> frozenset[PolicyKey]:
        """A pod came, changed or went: for the policies that select its workload."""
        record = self._adapter.pod(body)
        name, uid = record.view.name, record.view.uid
        owner = self._owners.get(uid) or record.workload
        if not owner:
            return frozenset()
        gone = deleted or record.finished or not record.workload
        self._note(Kind.PODS, uid, record.namespace, name, deleted=gone)
        if gone:
            self._owners.pop(uid, None)
        else:
            self._owners[uid] = intern(owner)
        return self._keep_pod(record.namespace, owner, name, None if gone else record, uid=uid)

    def relisted(self, kind: Kind, namespace: str | None, uids: Iterable[str]) -> frozenset[PolicyKey]:
        """A full list was taken: what it lacks is gone, though nobody told us (the watch was away).

        ``namespace`` is None for a list of the whole cluster.
        """
        self._synced[kind].add(namespace)
        keep = set(uids)
        gone = [
            (uid, where) for uid, where in self._seen[kind].items() if uid not in keep and namespace in (None, where[0])
        ]
        changed: frozenset[PolicyKey] = frozenset()
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

    def created(self, key: PolicyKey) -> str:
        """When a policy was created, as its metadata has it: sorts by age."""
        return text(mapping((self.policy(key) or {}).get("metadata")).get("creationTimestamp"))

    def policies(self) -> tuple[PolicyKey, ...]:
        """All policies, sorted."""
        return tuple(sorted(PolicyKey(ns, name) for ns, space in self._namespaces.items() for name in space.policies))

    def policies_in(self, namespace: str) -> frozenset[PolicyKey]:
        """All policies of a namespace."""
        space = self._namespaces.get(namespace, _Namespace())
        return frozenset(PolicyKey(namespace, name) for name in space.policies)

    def selected(self, namespace: str, selector: Selector) -> tuple[WorkloadView, ...]:
        """The namespace's workloads whose *template* labels the selector matches, by name, each with its pods."""
        space = self._namespaces.get(namespace)
        if space is None:
            return ()
        return tuple(
            replace(view, labels_disagree=True) if not selector.matches(workload.record.labels) else view
            for name, workload in sorted(space.workloads.items())
            if selector.matches(workload.record.template_labels)
            for view in [self._view(space, name, workload)]
        )

    def restarting(self) -> frozenset[str]:
        """Uids of all workloads, of any namespace, that we wrote to and that are rolling out now."""
        return frozenset(
            view.uid
            for space in self._namespaces.values()
            for name, workload in space.workloads.items()
            if workload.record.view.generation_raw is not None and not workload.record.view.paused
            for view in [self._view(space, name, workload)]
            if view.settle is None and view.replicas > 0 and view.coming_up
        )

    def disagreeing(self, namespace: str, selector: Selector) -> tuple[str, ...]:
        """Names of workloads that the selector matches by their own labels only: they are *not* selected."""
        space = self._namespaces.get(namespace, _Namespace())
        return tuple(
            name
            for name, workload in sorted(space.workloads.items())
            if selector.matches(workload.record.labels) and not selector.matches(workload.record.template_labels)
        )

    def policies_for_labels(self, namespace: str, labels: Mapping[str, str]) -> frozenset[PolicyKey]:
        """The policies of the namespace that select a template with these labels."""
        space = self._namespaces.get(namespace, _Namespace())
        return frozenset(
            PolicyKey(namespace, name) for name, policy in space.policies.items() if policy.selector.matches(labels)
        )

    def policies_for_workload(self, namespace: str, name: str) -> frozenset[PolicyKey]:
        """The policies that select this workload."""
        space = self._namespaces.get(namespace, _Namespace())
        workload = space.workloads.get(name)
        return self.policies_for_labels(namespace, workload.record.template_labels) if workload else frozenset()

    def workload_of_pod(self, namespace: str, pod: str) -> str:
        """The name of the workload that owns the pod; empty where it is none of ours."""
        space = self._namespaces.get(namespace, _Namespace())
        return next((owner for owner, pods in space.pods.items() if pod in pods), "")

    def _namespace(self, name: str) -> _Namespace:
        return self._namespaces.setdefault(intern(name), _Namespace())

    def _note(self, kind: Kind, uid: str, namespace: str, name: str, *, deleted: bool) -> None:
        if deleted:
            self._seen[kind].pop(uid, None)
        else:
            self._seen[kind][uid] = (intern(namespace), name)

    def _view(self, space: _Namespace, name: str, workload: _Workload) -> WorkloadView:
        if workload.view is None:
            pods: list[PodView] = [record.view for _, record in sorted(space.pods.get(name, {}).items())]
            workload.view = replace(workload.record.view, pods=tuple(pods))
        return workload.view

    def _keep_workload(
        self, namespace: str, name: str, record: WorkloadRecord | None, *, uid: str
    ) -> frozenset[PolicyKey]:
        space = self._namespace(namespace)
        known = space.workloads.get(name)
        if record is None:
            if known is None or known.record.view.uid != uid:  # late news of one that has a successor by now
                return frozenset()
            del space.workloads[name]
            return self.policies_for_labels(namespace, known.record.template_labels)
        if known is not None and known.record == record:
            return frozenset()
        space.workloads[name] = _Workload(record)
        before = self.policies_for_labels(namespace, known.record.template_labels) if known else frozenset()
        return before | self.policies_for_labels(namespace, record.template_labels)

    def _keep_pod(
        self, namespace: str, owner: str, name: str, record: PodRecord | None, *, uid: str
    ) -> frozenset[PolicyKey]:
        space = self._namespace(namespace)
        pods = space.pods.setdefault(owner, {})
        known = pods.get(name)
        if record is None:
            if known is None or known.view.uid != uid:
                return frozenset()
            del pods[name]
            if not pods:
                del space.pods[owner]
        elif known == record:
            return frozenset()
        else:
            pods[name] = record
        workload = space.workloads.get(owner)
        if workload is None:
            return frozenset()
        workload.view = None
        return self.policies_for_labels(namespace, workload.record.template_labels)

    def _forget(self, kind: Kind, uid: str, namespace: str, name: str) -> frozenset[PolicyKey]:
        """Drop an object that a list no longer holds."""
        self._note(kind, uid, namespace, name, deleted=True)
        match kind:
            case Kind.POLICIES:
                policies = self._namespace(namespace).policies
                if name in policies and policies[name].uid == uid:
                    del policies[name]
                return frozenset([PolicyKey(namespace, name)])
            case Kind.WORKLOADS:
                return self._keep_workload(namespace, name, None, uid=uid)
            case Kind.PODS:
                owner = self._owners.pop(uid, "")
                return self._keep_pod(namespace, owner, name, None, uid=uid)
