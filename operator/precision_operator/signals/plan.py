"""What a policy's criteria ask of Prometheus."""

from dataclasses import dataclass, field

from precision_operator.api.policy import Policy


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """What a policy wants to know; equal plans are one."""

    endpoint: str
    """Name in ``prometheusRef``."""
    namespace: str
    window_seconds: float
    min_steps: int
    interval_seconds: float
    queries: tuple[tuple[str, str], ...] = ()
    """(signal name, catalogue name; empty for the built-in). ``ack`` and ``steps`` are asked besides."""
    raw: tuple[tuple[str, str], ...] = ()
    """(signal name, PromQL of the policy's own, in the place of the above)."""
    besides: tuple[str, ...] = field(default=(), compare=False)
    """Queries that are asked for now beside those of every evaluation. They make it no other plan: nothing begins anew."""

    work: bool = field(default=False, compare=False)
    """Whether it is asked too, once in a while, what the work so far would have taken in FP32."""


def plan_of(policy: Policy, *, besides: tuple[str, ...] = (), work: bool = False) -> EvaluationPlan:
    """What the policy's enabled criteria need to be asked."""
    spec = policy.spec
    return EvaluationPlan(
        endpoint=spec.prometheus_ref,
        namespace=policy.namespace,
        window_seconds=spec.evaluation.window_seconds,
        min_steps=spec.evaluation.min_steps,
        interval_seconds=spec.evaluation.interval_seconds,
        queries=tuple((c.signal.value, c.query) for c in spec.criteria if c.enabled),
        raw=tuple((c.signal.value, c.promql) for c in spec.criteria if c.enabled and c.promql),
        besides=besides,
        work=work,
    )
