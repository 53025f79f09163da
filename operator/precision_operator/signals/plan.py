"""What a policy's criteria ask of Prometheus."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from precision_operator.api.policy import Policy
from precision_operator.signals.promql import written
from precision_operator.signals.queries import BUILT_IN, render


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

    def promql(self, signal: str, catalogue: Mapping[str, str]) -> str:
        """What is asked for a signal, or by the name of a built-in query.

        Raises:
            QueryInvalid: it cannot be rendered.
            KeyError: it names a query that is not in the admin's ``catalogue``.
        """
        own, name = dict(self.raw).get(signal), dict(self.queries).get(signal, "")
        if own is not None:
            return written(own, self.namespace, self.window_seconds, self.min_steps)
        template = catalogue[name] if name and name in catalogue else BUILT_IN[name or signal]
        return render(template, self.namespace, self.window_seconds, self.min_steps)


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
