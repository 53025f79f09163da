"""The report: computed from the evidence, every value from the audit log, Prometheus or a trainer's own log line."""

from pathlib import Path

import yaml

from lab.cluster.audit import Audit, Write
from lab.cluster.kubectl import Json
from lab.demo.evidence import (
    TrainerEvent,
    decided_at,
    fenced_at,
    flips,
    manager_writes,
    rollbacks,
    trainer_events,
)
from lab.demo.fleet import FLEET, LITERAL, NAMESPACE
from lab.demo.stage import OPERATOR_USER, Reapplier, Stage, workload_of
from lab.demo.story import POLICY, Facts

ALLOWANCE_SECONDS = 3.0
"""Bar: breach visible → last hot rank in FP32 within one evaluation interval plus this."""


FULL_NODE_SECONDS = 120.0
"""Bar: breach visible → the restart-only trainer in FP32, on a node that has no room for a second pod of it."""

REAPPLIER_WRITES = 10
"""Bar: the re-applier must have been at work. It comes to more within seconds, so its last write counts too."""

WRITES_A_ROLLBACK = 10
"""Bar: the operator's writes beside those to pods; who breaches first may be rolled back alone first."""

TIMED = frozenset({"poll exact to 0.25 s", "hot ranks acknowledged within the bar", "the full node restarted in time"})
"""Checks that a busy machine may miss: the demo's exit code keeps them, and no test."""

_TEMPLATED = frozenset({"deployments", "replicasets", "statefulsets", "daemonsets", "jobs", "cronjobs"})


def interval_seconds() -> float:
    """The evaluation interval of the demo's policy."""
    text: str = yaml.safe_load(POLICY.read_text())["spec"]["evaluation"]["interval"]
    return float(text.removesuffix("s"))


def build(stage: Stage, facts: Facts, logs: Path, *, version: str) -> Json:
    """The whole report; what the cluster cannot give is null, not invented."""
    writes = _writes(stage.audit_log) if stage.audit_log else None
    incidents = rollbacks(writes or [], since=facts.fault_at)
    events = trainer_events(logs)
    poll = facts.breach
    visible = poll.visible_at if poll else None
    decided = decided_at(writes, since=facts.fault_at) if writes is not None else None
    hot, restart = _hot(facts, events, visible), _restart(facts, events, visible)
    all_fp32 = bool(facts.modes_after) and set(facts.modes_after.values()) == {"fp32"}
    new_pods = sorted(set(facts.new_pod_modes.values()))
    template_writes = None if writes is None else sum(w.resource.partition("/")[0] in _TEMPLATED for w in writes)
    reapplied = manager_writes(stage.audit_log, Reapplier.MANAGER) if stage.audit_log else None
    rollouts = _rollouts(facts)
    api_writes = _count(writes, min(incidents.values(), default=facts.fault_at), facts.finished_at)
    checks = {
        "breach was seen by the poll": visible is not None,
        "poll exact to 0.25 s": poll is not None and poll.gap_seconds is not None and poll.gap_seconds <= 0.25,
        "hot ranks acknowledged within the bar": _within(hot["breach_to_last_ack_seconds"]),
        "every hot rank flipped": hot["ranks"] == sum(t.ranks for t in FLEET if t.hot),
        "no hot pod restarted": hot["restarts"] == 0,
        "no hot step lost": hot["steps_lost"] == 0,
        "the literal trainer resumed": restart["breach_to_last_ack_seconds"] is not None,
        "all train in fp32": all_fp32,
        "the operator wrote no template": not template_writes,
        "no template was rolled out": rollouts == 0,
        "templates are byte-equal": facts.templates_before == facts.templates_after,
        "the full node restarted in time": _below(restart["breach_to_last_ack_seconds"], FULL_NODE_SECONDS),
        "the re-applier was at work": _at_work(reapplied, facts),
        "the rollback kept to its API writes": api_writes is None or api_writes <= _writes_allowed(len(incidents)),
        "new pods start in fp32 without the operator": new_pods == ["fp32"] and facts.operator_replicas == 0,
    }
    return {
        "ok": all(checks.values()),
        "checks": checks,
        "kubernetes": version,
        "workloads": len(FLEET),
        "kinds": sorted({key.partition("/")[0] for key in facts.templates_after}),
        "phases": facts.phases,
        "evaluation_interval_seconds": interval_seconds(),
        "first_workload_breach_visible_at": poll.first_at if poll else None,
        "breach_visible_at": visible,
        "breach_poll_gap_seconds": round(poll.gap_seconds, 3) if poll and poll.gap_seconds is not None else None,
        "decided_at": decided,
        "last_patch_at": _last_patch(writes, decided, facts.finished_at),
        "breach_to_decided_seconds": _difference(decided, visible),
        "hot": hot,
        "restart": restart,
        "all_fp32": all_fp32,
        "template_writes": template_writes,
        "template_rollouts": rollouts,
        "full_node_restart": {key: restart[key] for key in ("pods", "breach_to_last_ack_seconds")},
        "reapplier_writes": None if reapplied is None else len(reapplied),
        "reapplier_errors": facts.reapplier_errors,
        "gate": {"operator_replicas": facts.operator_replicas, "new_pod_modes": new_pods},
        "rollbacks": None if writes is None else len(incidents),
        "api_writes": api_writes,
        "prometheus_queries": facts.prometheus_queries,
        "fenced_at": fenced_at(_trials(stage.audit_log), since=facts.started_at) if stage.audit_log else None,
        "first_written_at": {
            "writes to pods": _first_at(writes, {"pods", "pods/eviction"}, since=facts.started_at),
            "evictions": _first_at(writes, {"pods/eviction"}, since=facts.started_at),
        },
    }


def _writes(audit_log: Path) -> list[Write]:
    """The operator's writes to this fleet: a cluster that was found running may have seen others."""
    return [write for write in Audit(audit_log).writes([OPERATOR_USER]) if write.namespace == NAMESPACE]


def _trials(audit_log: Path) -> list[tuple[str, Write]]:
    """The forbidden writes that the operator tried, on its own pod and on others."""
    return Audit(audit_log).denied_trials([OPERATOR_USER])


def _hot(facts: Facts, events: list[TrainerEvent], visible: float | None) -> Json:
    ranks = {
        key: event for key, event in flips(events, to="fp32", since=facts.fault_at).items() if event.workload != LITERAL
    }
    pods = {pod for pod, _ in ranks}
    hot_names, hot_keys = [t.name for t in FLEET if t.hot], [t.key for t in FLEET if t.hot]
    lost = [
        abs(facts.offsets_after.get(pod, float("nan")) - before)
        for pod, before in facts.offsets_before.items()
        if workload_of(pod) in hot_names
    ]
    before, after = facts.rollout_before, facts.rollout_after
    replaced = [key for key in hot_keys if before.get(key, ("",) * 3)[2] != after.get(key, ("",) * 3)[2]]
    return {
        "pods": len(pods),
        "ranks": len(ranks),
        "breach_to_last_ack_seconds": _difference(max((e.at for e in ranks.values()), default=None), visible),
        "restarts": len(replaced),
        "steps_lost": int(sum(lost)) if lost and all(x == x for x in lost) else None,
    }


def _restart(facts: Facts, events: list[TrainerEvent], visible: float | None) -> Json:
    mine = [e for e in events if e.workload == LITERAL and e.at >= facts.fault_at]
    stopped = [e for e in mine if e.event == "stopping"]
    resumed = [e for e in mine if e.event == "resumed" and e.body.get("mode") == "fp32"]
    last = max((e.at for e in resumed), default=None)
    lost = stopped[-1].body["step"] - resumed[-1].body["step"] if stopped and resumed else None
    return {
        "pods": len({e.pod for e in resumed}),
        "breach_to_last_ack_seconds": _difference(last, visible),
        "steps_lost": lost,
    }


def _rollouts(facts: Facts) -> int:
    """Workloads with another revision, or other ReplicaSets, than before the policy was applied."""
    before, after = facts.rollout_start, facts.rollout_after
    return sum(before.get(t.key, ())[:2] != after.get(t.key, ("", "", ""))[:2] for t in FLEET)


def _last_patch(writes: list[Write] | None, decided: float | None, until: float) -> float | None:
    if writes is None or decided is None:
        return None
    urgent = [w for w in writes if w.succeeded and decided <= w.at <= until and w.resource == "pods"]
    return max((w.at for w in urgent), default=None)


def _first_at(writes: list[Write] | None, resources: set[str], *, since: float) -> float | None:
    times = (w.asked_at for w in writes or () if w.succeeded and w.asked_at >= since and w.resource in resources)
    return min(times, default=None)


def _count(writes: list[Write] | None, since: float, until: float) -> int | None:
    return None if writes is None else sum(1 for w in writes if since <= w.at <= until)


def _at_work(reapplied: list[float] | None, facts: Facts) -> bool:
    """To the end, and refused now and then at most: a time-out of a busy machine stops no GitOps either."""
    if reapplied is None:
        return not facts.reapplier_errors
    refused_often = len(facts.reapplier_errors) * 10 > len(reapplied)
    return len(reapplied) > REAPPLIER_WRITES and max(reapplied) > facts.finished_at and not refused_often


def _writes_allowed(rollbacks: int) -> int:
    """One for each hot pod, two for each that is restarted, and some for each rollback."""
    return sum(1 if trainer.hot else 2 for trainer in FLEET) + WRITES_A_ROLLBACK * rollbacks


def _difference(later: float | None, earlier: float | None) -> float | None:
    return None if later is None or earlier is None else round(later - earlier, 3)


def _below(seconds: float | None, limit: float) -> bool:
    return seconds is not None and seconds < limit


def _within(seconds: float | None) -> bool:
    return seconds is not None and seconds <= interval_seconds() + ALLOWANCE_SECONDS
