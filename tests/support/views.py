"""Pods and workloads as the controller shows them to the core."""

from dataclasses import replace

from precision_operator.core.model import Evaluation, PodSignals, PodView, WorkloadView


def key(name: str) -> str:
    """The key of a Deployment."""
    return f"apps/Deployment/{name}"


def keys(*names: str) -> tuple[str, ...]:
    """The keys of Deployments."""
    return tuple(key(name) for name in names)


def pod(name: str = "p", /, **values: object) -> PodView:
    """A pod that can read requests, unless ``values`` say otherwise."""
    base = PodView(name, f"uid-{name}", hot=True, has_annotations=True, ready=True)
    return replace(base, **values)  # type: ignore[arg-type]


def workload(name: str = "w", **values: object) -> WorkloadView:
    """A Deployment whose template carries the contract, with one pod."""
    base = WorkloadView("ns", key(name), f"uid-{name}", hot=True, replicas=1, pods=(pod(),))
    return replace(base, **values)  # type: ignore[arg-type]


def literal(name: str = "w", **values: object) -> WorkloadView:
    """One that only a restart moves, with one pod."""
    return workload(name, hot=False, literal=True, **{"pods": (pod(hot=False),), **values})


def reported(**pods: PodSignals) -> Evaluation:
    """What Prometheus shows of these pods."""
    return Evaluation(1000.0, 0.0, pods)
