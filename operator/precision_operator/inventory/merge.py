"""Objects whose pods carry one workload label are one workload."""

from collections.abc import Iterable
from dataclasses import replace

from precision_operator.api.modes import Mode
from precision_operator.core.model import RestartBy, WorkloadView


def merged(views: Iterable[WorkloadView]) -> tuple[WorkloadView, ...]:
    """One view for each key, sorted by it."""
    found: dict[str, WorkloadView] = {}
    for view in sorted(views, key=lambda view: (view.key, view.uid)):
        first = found.get(view.key)
        if first is None:
            found[view.key] = view
            continue
        restart_by, no_restart = _restart_together(first, view)
        found[view.key] = replace(
            first,
            restart_by=restart_by,
            no_restart=no_restart,
            suspended=first.suspended and view.suspended,
            emptied=first.emptied and view.emptied,
            suspended_by=first.suspended_by or view.suspended_by,
            pending_revision=first.pending_revision or view.pending_revision,
            hot=first.hot and view.hot,
            literal=first.literal or view.literal,
            replicas=first.replicas + view.replicas,
            indexes=0,
            labels_disagree=first.labels_disagree or view.labels_disagree,
            template_mode=_least_safe(first.template_mode, view.template_mode),
            pods=(*first.pods, *view.pods),
        )
    return tuple(found.values())


def _restart_together(one: WorkloadView, other: WorkloadView) -> tuple[RestartBy, str]:
    """How two objects of one workload are restarted, and why not: all of their pods must go, and come back, at once."""
    for view in (one, other):
        if view.restart_by is RestartBy.NEVER:
            return RestartBy.NEVER, view.no_restart
    if one.restart_by is not other.restart_by:
        return RestartBy.NEVER, "its objects restart in different ways"
    if one.restart_by is RestartBy.SUSPENSION:
        return RestartBy.NEVER, "several Jobs would have to be suspended at once"
    return one.restart_by, ""


def _least_safe(one: Mode | None, other: Mode | None) -> Mode | None:
    """Of two templates: a mixed mode of either counts, then that one is not known."""
    mixed = [mode for mode in (one, other) if mode not in (None, Mode.FP32)]
    if mixed:
        return min(mixed, key=lambda mode: mode is not Mode.FP16)
    return None if None in (one, other) else Mode.FP32
