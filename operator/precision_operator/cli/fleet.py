"""The fleet of a policy as a tree: cohorts, workloads, pods; what each was told, and what keeps it from its place."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precision_operator.api.mitigation import in_bf16
from precision_operator.api.modes import Mode
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Phase
from precision_operator.cli.live import Report, report_of
from precision_operator.cli.session import Session, Target
from precision_operator.core.decide import UNACKNOWLEDGED_LIMIT
from precision_operator.core.model import Evaluation, PodView, WorkloadView
from precision_operator.core.progress import live_pods, resolve_delivery
from precision_operator.kube.port import PODS, POLICIES, JsonObject
from precision_operator.kube.workloads.deployment import DeploymentAdapter
from precision_operator.shell.inventory import Inventory, Kind, PolicyKey

_ROLLED = (Phase.ROLLING_BACK, Phase.HELD)


@dataclass(frozen=True, slots=True)
class Breach:
    """A breach that stands."""

    signal: str
    severity: str
    since: float
    """Seconds since the epoch."""
    measured: str = ""
    """What was found when it was last counted."""


@dataclass(frozen=True, slots=True)
class PodLine:
    """One pod."""

    name: str
    node: str
    told: Mode | None
    """What it has been told to train in; what it does train in, its own metrics say. None: a reference says it."""
    generation: int | None
    """Of the request that it carries; None where it carries none."""
    problems: tuple[str, ...]
    report: Report | None = None
    """What its process says of itself; None where Prometheus was not asked."""


@dataclass(frozen=True, slots=True)
class WorkloadLine:
    """One workload."""

    name: str
    kind: str
    delivery: Delivery | None
    """How it can be moved; None: in no way that the policy allows."""
    template: Mode | None
    """What its new pods start in; None: a reference says it."""
    wanted: Mode | None
    """What it is to be in; None: it is left as it is."""
    generation: str | None
    """Of our last write to it, as it stands there."""
    latch: Mode | None
    acknowledged: bool | None
    """Whether its own processes say that it is where it is wanted, by the operator's last look; None: not known."""
    problems: tuple[str, ...]
    breaches: tuple[Breach, ...]
    pods: tuple[PodLine, ...]


@dataclass(frozen=True, slots=True)
class Cohort:
    """Workloads that stand at the same place of the rollout."""

    name: str
    workloads: tuple[WorkloadLine, ...]


@dataclass(frozen=True, slots=True)
class Fleet:
    """A policy with all that it selects."""

    target: Target
    cohorts: tuple[Cohort, ...]

    @property
    def workloads(self) -> tuple[WorkloadLine, ...]:
        """All of them, cohort by cohort."""
        return tuple(workload for cohort in self.cohorts for workload in cohort.workloads)


async def read_fleets(
    session: Session, targets: Sequence[Target], evaluations: Mapping[str, Evaluation] | None = None
) -> tuple[Fleet, ...]:
    """The fleets of these policies: three lists a namespace, however many policies and workloads it has.

    ``evaluations``: what Prometheus says now, by the policy's uid.
    """
    adapter = DeploymentAdapter()
    inventory = Inventory(adapter)
    for namespace in sorted({target.policy.namespace for target in targets}):
        for kind, bodies in (
            # All of them: a workload of two policies belongs to the older one.
            (Kind.POLICIES, await session.api.list(POLICIES, namespace)),
            (Kind.WORKLOADS, await session.api.list(adapter.resource, namespace)),
            (Kind.PODS, await session.api.list(PODS, namespace)),
        ):
            _take_in(inventory, kind, bodies)
    said = evaluations or {}
    return tuple(fleet_of(target, inventory, said.get(target.policy.uid)) for target in targets)


def _take_in(inventory: Inventory, kind: Kind, bodies: Iterable[JsonObject]) -> None:
    for body in bodies:
        inventory.observe(kind, body, deleted=False)


def fleet_of(target: Target, inventory: Inventory, evaluation: Evaluation | None = None) -> Fleet:
    """Sort what the policy selects into cohorts."""
    policy, status = target.policy, target.status
    held = {h.uid for h in status.held}
    inside = {m.uid for m in status.members} - held
    lifted = in_bf16(status.mitigations)
    rolled = status.phase in _ROLLED
    cohorts: dict[str, list[WorkloadLine]] = {}
    for view in inventory.selected(policy.namespace, policy.spec.selector):
        rival = _older_policy(target, inventory, view.name)
        if rival is not None:
            name, wanted = f"left to the older policy {rival}", None
        elif view.uid in held:
            name, wanted = "rolled back by themselves", status.fallback
        elif rolled:
            name, wanted = ("rolled back" if view.uid in inside else "kept back"), status.fallback
        elif view.uid in inside and status.precision is Mode.FP16 and view.uid in lifted:
            name, wanted = "in bf16, against their overflow", Mode.BF16
        elif view.uid in inside:
            name, wanted = f"moved to {status.precision or policy.spec.target}", status.precision
        else:
            name, wanted = "not moved", None
        cohorts.setdefault(name, []).append(_workload(target, view, wanted, evaluation))
    return Fleet(target, tuple(Cohort(name, tuple(lines)) for name, lines in cohorts.items()))


def _older_policy(target: Target, inventory: Inventory, workload: str) -> str | None:
    """The policy that a workload of two belongs to, where it is not this one; the operator's own rule."""
    here = PolicyKey(target.policy.namespace, target.policy.name)
    rivals = inventory.policies_for_workload(here.namespace, workload) | {here}
    owner = min(rivals, key=lambda rival: (inventory.created(rival), rival.name))
    return None if owner == here else owner.name


def _acknowledged(target: Target, view: WorkloadView, wanted: Mode | None) -> bool | None:
    """As the status has it: it names who is missing, up to a limit."""
    status = target.status
    judged = status.phase in _ROLLED or view.uid in {m.uid for m in status.members} - {h.uid for h in status.held}
    if wanted is None or not judged or status.phase is Phase.PENDING:
        return None
    if view.name in status.unacknowledged:
        return False
    return True if len(status.unacknowledged) < UNACKNOWLEDGED_LIMIT else None


def _workload(target: Target, view: WorkloadView, wanted: Mode | None, evaluation: Evaluation | None) -> WorkloadLine:
    delivery = resolve_delivery(target.policy.spec.delivery, view)
    failing = [f for f in target.status.failing if f.uid == view.uid]
    return WorkloadLine(
        name=view.name,
        kind=view.kind,
        delivery=delivery,
        template=view.template_mode,
        wanted=wanted,
        generation=view.generation_raw,
        latch=view.latch,
        acknowledged=_acknowledged(target, view, wanted),
        problems=tuple(_workload_problems(target, view, delivery)),
        breaches=tuple(Breach(str(f.signal), str(f.severity), f.since, f.measured) for f in failing),
        pods=tuple(_pod(pod, view, wanted, report_of(evaluation, pod.name)) for pod in view.pods),
    )


def _workload_problems(target: Target, view: WorkloadView, delivery: Delivery | None) -> Iterable[str]:
    if delivery is None:
        yield (
            f"cannot be moved by delivery {target.policy.spec.delivery}: "
            "neither the contract's mounts and annotations nor a literal ENABLE_FP16_TRAINING"
        )
    if view.labels_disagree:
        yield "its own labels and its template's disagree about the selector; the template's count"
    if view.settle is not None:
        yield f"settling at generation {view.settle.generation}"
    elif view.paused:
        yield "its rollout is paused, and not by us: kubectl rollout resume"
    elif view.replicas > 0 and not view.rolled_out:
        yield f"rolling out: {view.updated_replicas} of {view.replicas} updated, {len(live_pods(view))} pods"


def _pod(pod: PodView, view: WorkloadView, wanted: Mode | None, report: Report | None) -> PodLine:
    return PodLine(
        name=pod.name,
        node=pod.node,
        told=pod.effective_mode,
        generation=pod.request.generation if pod.request is not None else None,
        problems=tuple(_pod_problems(pod, view, wanted)),
        report=report,
    )


def _pod_problems(pod: PodView, view: WorkloadView, wanted: Mode | None) -> Iterable[str]:
    if pod.terminating:
        yield "terminating"
    if pod.crashing:
        yield "crashing"
    elif not pod.ready:
        yield "not ready"
    if pod.effective_mode is None:
        yield "a reference says what it started in: only its own process knows"
    elif wanted is not None and pod.effective_mode is not wanted:
        yield f"still told {pod.effective_mode}, wanted {wanted}"
    if view.hot and not pod.hot:
        yield "started before its template had the contract: moves only by a restart"
    if pod.request_raw and pod.request is None:
        yield "its request annotation is malformed"
