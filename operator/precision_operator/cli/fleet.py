"""The fleet of a policy as a tree: cohorts, workloads, pods; what each is assigned, and what keeps it from that."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from precision_operator.api.mitigation import in_bf16
from precision_operator.api.modes import Mode
from precision_operator.api.policy import PolicyKey
from precision_operator.api.spec import Delivery
from precision_operator.api.state import Failing, Phase
from precision_operator.cli.live import LiveReport, report_of
from precision_operator.cli.session import Session, Target
from precision_operator.cli.summary import breach_json, under_way
from precision_operator.core.model import Evaluation, PodView, WorkloadView
from precision_operator.core.progress import accepted_modes, live_pods, resolve_delivery
from precision_operator.core.status.summary import has_acknowledged
from precision_operator.inventory.caches import Inventory
from precision_operator.kube.port import POLICIES
from precision_operator.workloads.kinds.table import KINDS

_ROLLED = (Phase.ROLLING_BACK, Phase.HELD)


@dataclass(frozen=True, slots=True)
class PodLine:
    """One pod."""

    name: str
    node: str
    requested: Mode | None
    """By its request, else by its environment; what it trains in, its metrics report. None: a reference decides."""
    generation: int | None
    """The newest that it carries; None where it carries none."""
    problems: tuple[str, ...]
    report: LiveReport | None = None
    """What its process reports; None where Prometheus was not asked."""

    def as_json(self) -> dict[str, object]:
        """For programs."""
        known = {name: getattr(self, name) for name in self.__slots__ if name != "report"}
        return known if self.report is None else {**known, "reports": self.report.as_json()}


@dataclass(frozen=True, slots=True)
class WorkloadLine:
    """One workload."""

    name: str
    kind: str
    key: str
    """What the assignment lists it by."""
    delivery: Delivery | None
    """How it can be moved; None: in no way that the policy allows."""
    assigned: Mode | None
    """What it is assigned; None: nothing, so that it is as its template has it."""
    generation: int | None
    """Of the last change of that."""
    acknowledged: bool | None
    """Whether its own processes report what is wanted, by the operator's last pass; None: not known."""
    problems: tuple[str, ...]
    breaches: tuple[Failing, ...]
    pods: tuple[PodLine, ...]

    @property
    def reported(self) -> tuple[Mode, ...]:
        """The modes that its processes report now, where Prometheus was asked."""
        return tuple(sorted({pod.report.mode for pod in self.pods if pod.report is not None and pod.report.mode}))

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            **{name: getattr(self, name) for name in self.__slots__},
            "reported": self.reported,
            "breaches": [breach_json(breach) for breach in self.breaches],
            "pods": [pod.as_json() for pod in self.pods],
        }


@dataclass(frozen=True, slots=True)
class CohortLine:
    """Workloads that stand at the same place of the rollout."""

    name: str
    workloads: tuple[WorkloadLine, ...]


@dataclass(frozen=True, slots=True)
class FleetView:
    """A policy with all that it selects."""

    target: Target
    cohorts: tuple[CohortLine, ...]


async def read_fleets(
    session: Session, targets: Sequence[Target], evaluations: Mapping[str, Evaluation] | None = None
) -> tuple[FleetView, ...]:
    """The fleets of these policies: a list a kind and namespace, however many policies and workloads it has.

    ``evaluations``: what Prometheus says now, by the policy's uid.
    """
    inventory = Inventory()
    for namespace in sorted({target.policy.namespace for target in targets}):
        # All policies: a workload of two belongs to one of them.
        for resource in (POLICIES, *(kind.resource for kind in KINDS)):
            for body in await session.api.list(resource, namespace):
                inventory.observe(resource, body, deleted=False)
    known = evaluations or {}
    return tuple(fleet_of(target, inventory, known.get(target.policy.uid)) for target in targets)


def fleet_of(target: Target, inventory: Inventory, evaluation: Evaluation | None = None) -> FleetView:
    """Sort what the selector in force matches into cohorts."""
    policy, state = target.policy, target.state
    cohorts: dict[str, list[WorkloadLine]] = {}
    for view in inventory.selected(policy.namespace, target.selector):
        rival = _older_policy(target, inventory, view)
        name = f"left to the policy {rival}" if rival is not None else _cohort(target, view.key)
        assigned = state.assigned(view.key) if state.enforce and rival is None else None
        cohorts.setdefault(name, []).append(_workload(target, view, assigned, evaluation))
    return FleetView(target, tuple(CohortLine(name, tuple(lines)) for name, lines in cohorts.items()))


def _cohort(target: Target, key: str) -> str:
    state = target.state
    inside = key in state.members and key not in state.held_keys
    if key in state.held_keys:
        return "rolled back by themselves"
    if key in state.drilled:
        return "in a drill"
    if state.by_canary and key in state.canary:
        return "rollback canary"
    if not inside:
        return "not moved"
    if state.by_canary:
        return "waiting for the rollback canary"
    if state.phase in _ROLLED:
        return "rolled back"
    if state.precision is Mode.FP16 and key in in_bf16(state.mitigations):
        return "in bf16, against their overflow"
    partly = "moved in part" if key in state.shares else "moved"
    return f"{partly} to {state.precision or target.policy.spec.target}"


def _older_policy(target: Target, inventory: Inventory, view: WorkloadView) -> str | None:
    """The policy that a workload of two belongs to, where it is not this one; the operator's own rule."""
    here = PolicyKey(target.policy.namespace, target.policy.name)
    owner = inventory.owner(here, view.uid)
    return None if owner == here else owner.name


def _workload(target: Target, view: WorkloadView, assigned: Mode | None, evaluation: Evaluation | None) -> WorkloadLine:
    state = target.state
    delivery = resolve_delivery(target.policy.spec.delivery, view)
    lenient = state.phase in _ROLLED or view.key in state.held_keys
    partly = view.key in state.shares and not lenient
    accepted = accepted_modes(assigned, rollback=lenient) if assigned is not None and not partly else frozenset(Mode)
    counts = assigned is not None and delivery is not None and not target.policy.deleted
    return WorkloadLine(
        name=view.name,
        kind=view.kind,
        key=view.key,
        delivery=delivery,
        assigned=assigned,
        generation=state.changed.get(view.key),
        acknowledged=has_acknowledged(target.status, state, view) if counts else None,
        problems=tuple(_workload_problems(target, view, delivery)),
        breaches=tuple(failing for failing in state.failing if failing.key == view.key),
        pods=tuple(_pod(pod, view, assigned, accepted, report_of(evaluation, pod.name)) for pod in view.pods),
    )


def _workload_problems(target: Target, view: WorkloadView, delivery: Delivery | None) -> Iterable[str]:
    if delivery is None:
        why = view.no_restart or "neither the contract's mounts and annotations nor ENABLE_FP16_TRAINING"
        yield f"cannot be moved by delivery {target.policy.spec.delivery}: {why}"
    if delivery is Delivery.HOT and view.no_restart:
        yield f"hot only: it cannot be restarted ({view.no_restart})"
    if view.suspended and view.key not in target.state.suspensions:
        yield f"suspended by {view.suspended_by}: it stays so" if view.suspended_by else "suspended"
    if view.pending_revision:
        yield "a change of its template has not reached its pods: a restart would bring it in"
    if view.labels_disagree:
        yield "its own labels and its template's disagree about the selector; the template's count"
    share = target.state.shares.get(view.key)
    if share is not None and target.state.phase not in _ROLLED:
        below = target.state.indexes.get(view.key)
        yield f"moved in part: {share} of its pods" + (f", those below index {below}" if below is not None else "")
    progress = under_way(target.state, view.key)
    if progress:
        yield progress
    if len(live_pods(view)) < view.replicas and not view.suspended:
        yield f"{len(live_pods(view))} of {view.replicas} pods are there"


def _pod(
    pod: PodView, view: WorkloadView, assigned: Mode | None, accepted: frozenset[Mode], report: LiveReport | None
) -> PodLine:
    return PodLine(
        name=pod.name,
        node=pod.node,
        requested=pod.effective_mode,
        generation=pod.generation or None,
        problems=tuple(_pod_problems(pod, view, assigned, accepted)),
        report=report,
    )


def _pod_problems(pod: PodView, view: WorkloadView, assigned: Mode | None, accepted: frozenset[Mode]) -> Iterable[str]:
    if pod.terminating:
        yield "terminating"
    if pod.crashing:
        yield "crashing"
    elif pod.pending:
        yield "not started yet: kubectl describe pod says why"
    elif not pod.ready:
        yield "not ready"
    if pod.effective_mode is None:
        yield "a reference decides what it started in: only its own process knows"
    elif pod.effective_mode not in accepted:
        yield f"still {pod.effective_mode}, assigned {assigned}"
    if view.hot and not pod.hot:
        yield "started before its template had the contract: moves only by a restart"
    if pod.refusal is not None:
        yield f"nothing was injected ({pod.refusal}): {pod.refusal.reason.meaning}"
    if pod.request_raw and pod.request is None:
        yield "its request annotation is malformed"
