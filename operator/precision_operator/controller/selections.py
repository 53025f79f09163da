"""What policies select, by the caches: looked up once for each of their versions."""

from dataclasses import dataclass

from precision_operator.api.policy import Policy, PolicyKey
from precision_operator.api.state import State
from precision_operator.core.model import UNSUPPORTED_LIMIT, WorkloadView
from precision_operator.inventory.caches import Inventory

Matching = tuple[frozenset[str], frozenset[str]]


@dataclass(frozen=True, slots=True)
class Selection:
    """What the caches tell of a policy's workloads, as in ``Observation``."""

    asked: tuple[object, ...]
    """For which version of the caches, and by what of policy and state."""
    workloads: tuple[WorkloadView, ...]
    matching: Matching | None
    contested: tuple[tuple[str, str], ...]
    suspended: tuple[WorkloadView, ...]
    unsupported: tuple[str, ...]


class Selections:
    """The last selection of each policy."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._known: dict[PolicyKey, Selection] = {}

    def of(self, key: PolicyKey, policy: Policy, state: State) -> Selection:
        """What the policy selects by now."""
        suspensions = tuple(sorted(record.uid for record in state.suspensions.values()))
        asked = (self._inventory.version(key.namespace), policy.spec.selector, state.selector, suspensions)
        known = self._known.get(key)
        if known is not None and known.asked == asked:
            return known
        workloads, matching, contested = self._selected(key, policy, state)
        found = self._known[key] = Selection(
            asked,
            workloads,
            matching,
            contested,
            self._suspended(key.namespace, state),
            self._unsupported(key.namespace, policy, state),
        )
        return found

    def forget(self, key: PolicyKey) -> None:
        """The policy is gone."""
        self._known.pop(key, None)

    def _selected(
        self, key: PolicyKey, policy: Policy, state: State
    ) -> tuple[tuple[WorkloadView, ...], Matching | None, tuple[tuple[str, str], ...]]:
        """The workloads that the policy's selector matches, and the one in force; and those that are another policy's."""
        found = {view.key: view for view in self._inventory.selected(key.namespace, policy.spec.selector)}
        matching = None
        if not state.selector.empty and state.selector != policy.spec.selector:
            before = {view.key: view for view in self._inventory.selected(key.namespace, state.selector)}
            matching = (frozenset(before), frozenset(found))
            found = {**before, **found}
        if self._inventory.policy_keys_in(key.namespace) <= {key}:
            return tuple(found[name] for name in sorted(found)), matching, ()
        owners = {view.key: self._inventory.owner(key, view.uid) for view in found.values()}
        workloads = tuple(found[name] for name in sorted(found) if owners[name] == key)
        contested = tuple((name, owner.name) for name, owner in sorted(owners.items()) if owner != key)
        return workloads, matching, contested

    def _suspended(self, namespace: str, state: State) -> tuple[WorkloadView, ...]:
        """Jobs that are to be resumed, each by itself: whatever selects them by now, and whoever else has their label."""
        found = (self._inventory.workload(namespace, record.uid) for _, record in sorted(state.suspensions.items()))
        return tuple(view for view in found if view is not None)

    def _unsupported(self, namespace: str, policy: Policy, state: State) -> tuple[str, ...]:
        """Of the policy's selector, and of the one in force, as with the workloads."""
        selectors = {policy.spec.selector, state.selector}
        found = {key for selector in selectors for key in self._inventory.unsupported(namespace, selector)}
        return tuple(sorted(found)[:UNSUPPORTED_LIMIT])
