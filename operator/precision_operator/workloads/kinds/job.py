"""Jobs: they are suspended until no pod is left, and resumed. Deleted pods would use up the back-off limit."""

from collections.abc import Iterator
from dataclasses import replace

from precision_operator.api.wire import count_text, has_condition, integer, mapping, parse_time, sequence, text
from precision_operator.contract import MAX_INDEXES
from precision_operator.core.model import RestartBy
from precision_operator.kube.port import JOBS
from precision_operator.workloads.kinds import suspension
from precision_operator.workloads.kinds.kind import Body, WorkloadKind, read_template
from precision_operator.workloads.owner import controller_of
from precision_operator.workloads.reading import containers_of
from precision_operator.workloads.records import WorkloadRecord

_ENDED = ("Complete", "Failed", "SuccessCriteriaMet", "FailureTarget")
"""Conditions after which a Job makes no pod any more."""

_CRONJOB = "batch/CronJob"
"""It owns Jobs, and leaves their ``spec.suspend`` alone."""

_OWN_CONTROLLER = "kubernetes.io/job-controller"
_QUEUE = "kueue.x-k8s.io/queue-name"

_STOPPED_CODES = (143, 137)
"""How a container ends that is stopped: by SIGTERM, or by SIGKILL where its grace was too short."""

INDEXES_CHARACTERS = 16_384
"""A longer list of failed indexes is not read."""


def read_job(body: Body) -> WorkloadRecord | None:
    """A Job's record; None where it is finished. Its template cannot change."""
    if finished(body):
        return None
    suspended = mapping(body.get("spec")).get("suspend") is True
    record = read_template(
        body,
        JOB.kind,
        JOB.restart_by,
        no_restart=_no_restart(body),
        replicas=expected_pods(body),
        suspended=suspended,
        suspended_by=suspension.suspended_by(body) if suspended else "",
        emptied=suspended and _emptied(body),
    )
    return replace(record, view=replace(record.view, indexes=_indexes(body), makes_pods_since=_makes_pods_since(body)))


def _indexes(body: Body) -> int:
    """Of an Indexed Job that runs all of its indexes at once; of any other no share of them is a share of its pods."""
    spec = mapping(body.get("spec"))
    completions = integer(spec.get("completions"), 0)
    at_once = spec.get("completionMode") == "Indexed" and integer(spec.get("parallelism"), 1) >= completions
    return completions if at_once and completions <= MAX_INDEXES else 0


def finished(body: Body) -> bool:
    """Whether it has ended, or is about to."""
    return has_condition(body.get("status"), *_ENDED)


def _emptied(body: Body) -> bool:
    """Its controller has carried the suspension out, and waits for no pod that terminates."""
    status = mapping(body.get("status"))
    left = (integer(status.get(count), 0) for count in ("active", "terminating"))
    return has_condition(status, "Suspended") and not any(left)


def _makes_pods_since(body: Body) -> float:
    """Its controller sets ``startTime`` anew when it resumes it. Once a pod has failed, it may wait before the next."""
    status = mapping(body.get("status"))
    waits = has_condition(status, "Suspended") or integer(status.get("failed"), 0) > 0
    return 0.0 if waits else parse_time(status.get("startTime")) or 0.0


def expected_pods(body: Body) -> int:
    """How many pods it has at a time, as its controller counts them; a suspended one has as many once it is resumed."""
    spec, status = mapping(body.get("spec")), mapping(body.get("status"))
    succeeded = integer(status.get("succeeded"), 0)
    parallelism = integer(spec.get("parallelism"), 1)
    completions = spec.get("completions")
    if not isinstance(completions, int):  # a work queue: after the first success no pod is made any more
        return max(0, parallelism if succeeded == 0 else min(parallelism, integer(status.get("active"), 0)))
    failed = sum(_lengths(text(status.get("failedIndexes"))))
    return max(0, min(parallelism, completions - succeeded - failed))


def _lengths(indexes: str) -> Iterator[int]:
    """Of ``1,3-5``: 1 and 3."""
    for part in indexes.split(",") if len(indexes) <= INDEXES_CHARACTERS else ():
        first, dash, last = part.partition("-")
        begin, end = count_text(first), count_text(last if dash else first)
        if begin is not None and end is not None:
            yield max(0, end - begin + 1)


def _no_restart(body: Body) -> str:
    """Why a suspension of ours would not last; empty: it would."""
    owner = controller_of(body)
    if owner is not None and owner.kind != _CRONJOB:
        return f"its owner {owner} would undo a suspension"
    if text(mapping(body.get("spec")).get("managedBy"), _OWN_CONTROLLER) != _OWN_CONTROLLER:
        return "another controller runs it (spec.managedBy)"
    if _QUEUE in mapping(mapping(body.get("metadata")).get("labels")):
        return "Kueue would undo a suspension"
    return suspension.stated_by(body) or _fatal_suspension(body)


def _fatal_suspension(body: Body) -> str:
    """Why a suspension of ours would end it: its controller asks a suspended Job's pods for their exit codes too.

    The first rule that matches counts. None is about conditions of a pod: those of a suspended Job get no
    ``DisruptionTarget``.
    """
    spec = mapping(body.get("spec"))
    rules = [mapping(rule) for rule in sequence(mapping(spec.get("podFailurePolicy")).get("rules"))]
    pod_spec = mapping(mapping(spec.get("template")).get("spec"))
    names = {text(container.get("name")) for _, container in containers_of(pod_spec)}
    for code in _STOPPED_CODES:
        for name in sorted(names):
            matching = (rule for rule in rules if _matches(mapping(rule.get("onExitCodes")), name, code))
            if next(matching, {}).get("action") == "FailJob":
                return f"a suspension would fail it: FailJob in its podFailurePolicy matches exit code {code}"
    return ""


def _matches(exit_codes: Body, container: str, code: int) -> bool:
    """Whether a rule's ``onExitCodes`` are about a container that ends with this code."""
    if exit_codes.get("containerName") not in (None, container):
        return False
    named = code in sequence(exit_codes.get("values"))
    return named if exit_codes.get("operator") == "In" else not named and exit_codes.get("operator") == "NotIn"


# Not Prometheus' own label ``job``.
JOB = WorkloadKind("batch/Job", JOBS, RestartBy.SUSPENSION, read_job, template_fixed=True, metrics_label="job_name")
