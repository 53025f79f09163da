"""What the selector matches and is not moved, in words."""

from precision_operator.api.text import names
from precision_operator.core.facts import Facts
from precision_operator.core.model import UNSUPPORTED_LIMIT, RestartBy
from precision_operator.reasons import Cause, Reason

_REASONS_LIMIT = 3


def unsupported(facts: Facts) -> str:
    """Which workloads match that are of no known kind, and what that means for them."""
    keys = facts.observation.unsupported
    count = f"{len(keys)} or more" if len(keys) == UNSUPPORTED_LIMIT else str(len(keys))
    return (
        f"the selector matches {count} workloads of kinds that are not supported: {names(list(keys))}; their new pods get "
        f"the assigned mode, {facts.spec.fallback}, and running pods are left alone: make their pods anew to move them"
    )


def hot_only(facts: Facts) -> str:
    """Which workloads can be moved as long as they answer, and never be restarted, with why; empty: none."""
    found: dict[str, list[str]] = {}
    for workload, _ in facts.movable:
        if workload.restart_by is RestartBy.NEVER:
            found.setdefault(workload.no_restart, []).append(workload.name)
    shown = [f"{names(found[why])} ({why})" for why in sorted(found)[:_REASONS_LIMIT]]
    return "; ".join(shown)


def undivided(facts: Facts) -> Cause | None:
    """Which workloads ``unit: Pod`` cannot divide, and what to do; None: there are none."""
    if facts.places.indivisible:
        who = names([w.name for w in facts.places.indivisible])
        text = (
            f"spec.unit Pod moves pods one by one, and those of {who} change only by a restart and have no index by which "
            "admission could tell them apart: declare the contract in their templates (docs/contract.md), or select them by "
            "a policy with unit: Workload"
        )
        return Cause(Reason.PODS_INDIVISIBLE, text)
    if facts.places.unknown_groups:
        who = names([w.name for w in facts.places.unknown_groups])
        text = (
            f"whether the pods of {who} are one process group is not known, so they move as a whole and at 100 % only: "
            "export world_size in genesis_run_info (docs/contract.md), or set spec.unit: Workload"
        )
        return Cause(Reason.PROCESS_GROUP_UNKNOWN, text)
    return None


def undeliverable(facts: Facts) -> str:
    """Which workloads cannot be moved; with why, where one cannot be restarted."""
    found: dict[str, list[str]] = {}
    for workload in facts.workloads:
        if workload.key in facts.fleet.stuck_keys:
            found.setdefault(workload.no_restart, []).append(workload.name)
    shown = [f"{names(found[why])} ({why})" if why else names(found[why]) for why in sorted(found)[:_REASONS_LIMIT]]
    rest = sum(len(found[why]) for why in sorted(found)[_REASONS_LIMIT:])
    return "; ".join([*shown, *([f"and {rest} more"] if rest else [])])
