"""What ``doctor`` looks at in each fleet: its conditions, its size, and contract and metrics by workload."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from precision_operator.api.assignment import OBJECT_LIMIT_BYTES, RESERVE_BYTES, fleet_bytes
from precision_operator.api.conditions import Condition
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Delivery
from precision_operator.api.workload import kind_of, shown
from precision_operator.cli.attention import bad_news
from precision_operator.cli.explain import whole_step
from precision_operator.cli.findings import Diagnosis, error, ok, warning
from precision_operator.cli.fleet import FleetView, WorkloadLine
from precision_operator.cli.release import PART_OF
from precision_operator.cli.session import Session, Target
from precision_operator.contract import INJECT
from precision_operator.core.model import Evaluation, RestartBy
from precision_operator.reasons import Reason
from precision_operator.workloads.kinds.table import KINDS

_BROKEN = frozenset({"Accepted", "AdmissionEnforced", "MetricsAvailable", "WritesAccepted", "Stuck", "Blocked"})
"""Conditions without whose good state the operator cannot keep its word."""
_SHOWN_WHEN_GOOD = ("AdmissionEnforced", "MetricsAvailable", "FailSafe")
_NEARLY_FULL = 0.8


def examine_fleet(session: Session, fleet: FleetView, evaluation: Evaluation | None) -> list[Diagnosis]:
    """Each check of one fleet."""
    target = fleet.target
    session = replace(session, namespace=target.policy.namespace)  # where what is mended is
    lines = [line for cohort in fleet.cohorts for line in cohort.workloads]
    workloads = chain.from_iterable(
        (*_contract(session, target, line), *_metrics(session, target, line, evaluation)) for line in lines
    )
    return [*_conditions(session, target), _size(session, target, lines), *workloads]


def _conditions(session: Session, target: Target) -> Iterator[Diagnosis]:
    where, name = target.where, target.policy.name
    known = {condition.type: condition for condition in target.status.conditions}
    if not target.policy.deleted and target.status.observed_generation != target.policy.generation:
        mend = session.everywhere("get", "pods", "-A", "-l", PART_OF)
        yield error(where, "the operator has not looked at the newest spec: is it running?", mend)
    for condition in known.values():
        unenforced = condition.type == "AdmissionEnforced" and condition.status != "True" and target.state.enforce
        if unenforced or bad_news(condition):
            made = error if condition.type in _BROKEN else warning
            text = f"{condition.type} is {condition.status}, {condition.reason}: {condition.message}"
            yield made(where, text, _mend(session, target, condition) or session.plugin("explain", name))
    good = [kind for kind in _SHOWN_WHEN_GOOD if kind in known and known[kind].status == "True"]
    if good:
        yield ok(where, f"{', '.join(good)}")


def _mend(session: Session, target: Target, condition: Condition) -> str:
    """The first command of what the reason says to do; empty where it names none."""
    reason = Reason.known(condition.reason)
    steps = (whole_step(step, session, target) for step in (reason.steps if reason else ()))
    return next((found[1] for step in steps if (found := re.search(r"`(kubectl [^`]+)`", step))), "")


def _size(session: Session, target: Target, lines: list[WorkloadLine]) -> Diagnosis:
    used = RESERVE_BYTES + fleet_bytes(line.key for line in lines)
    share = used / OBJECT_LIMIT_BYTES
    text = f"{len(lines)} workloads may take {share:.0%} of what an assignment holds ({OBJECT_LIMIT_BYTES} bytes)"
    if share < _NEARLY_FULL:
        return ok(target.where, text)
    made = error if share >= 1 else warning
    mend = session.kubectl("get", ",".join(f"{kind.name}s" for kind in KINDS), "--show-labels")
    return made(target.where, f"{text}: divide the fleet by label among several policies (docs/scaling.md)", mend)


def _contract(session: Session, target: Target, line: WorkloadLine) -> Iterator[Diagnosis]:
    name, word = f"{target.where} {shown(line.key)}", shown(line.key)
    mend, how = session.plugin("onboard", word), ""
    if not _onboards(line.key):
        mend = session.kubectl("get", word, "-o", "yaml")
        how = f"; what is there cannot change: create it anew with the label {INJECT}"
    refused = [problem for pod in line.pods for problem in pod.problems if problem.startswith("nothing was injected")]
    if line.delivery is None:
        yield error(name, ("; ".join(line.problems) or "cannot be moved") + how, mend)
    elif refused:
        yield error(name, refused[0], session.plugin("explain", target.policy.name))
    elif line.delivery is not Delivery.HOT:
        yield warning(name, f"has no contract: it changes precision only by a restart{how}", mend)


def _onboards(key: str) -> bool:
    """Whether ``onboard --apply`` takes it."""
    kind = next((kind for kind in KINDS if kind.kind == kind_of(key)), None)
    return kind is not None and kind.restart_by is not RestartBy.NEVER and not kind.template_fixed


def _metrics(
    session: Session, target: Target, line: WorkloadLine, evaluation: Evaluation | None
) -> Iterator[Diagnosis]:
    name = f"{target.where} {shown(line.key)}"
    mend = session.kubectl("port-forward", line.pods[0].name, "9400") if line.pods else session.kubectl("get", "pods")
    if evaluation is None:
        if line.key in target.state.silent:
            yield error(name, "reports no metrics; --prometheus URL says which series are missing", mend)
        return
    reports = [pod.report for pod in line.pods if pod.report is not None]
    if not reports:
        return
    if all(report.age_seconds is None for report in reports):
        yield error(name, "Prometheus has no series of its pods: is port 9400 scraped, with namespace and pod?", mend)
        return
    seen = {signal for report in reports for signal in report.values}
    missing = [signal for signal in Signal if target.policy.spec.criterion(signal).enabled and signal not in seen]
    if missing:
        text = "; ".join(f"{signal} ({', '.join(_series(target, signal))})" for signal in missing)
        yield warning(name, f"no value of {text}: not reported, or no FP32 baseline yet", mend)
    else:
        yield ok(name, "every signal has a value")


def _series(target: Target, signal: Signal) -> list[str]:
    """What the signal is worked out from."""
    criterion = target.policy.spec.criterion(signal)
    return sorted(set(re.findall(r"genesis_\w+", criterion.promql or SIGNALS[signal].query))) or [criterion.query]
