"""What the processes themselves say, read now from Prometheus with the operator's own queries."""

import argparse
import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from precision_operator.api.modes import Mode
from precision_operator.api.wire import mapping
from precision_operator.errors import ConfigurationError

if TYPE_CHECKING:
    from precision_operator.cli.session import Session, Target
    from precision_operator.core.model import Evaluation
    from precision_operator.signals.prometheus import PrometheusSource

TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class LiveReport:
    """What one pod's process reports."""

    mode: Mode | None
    generation: int | None
    age_seconds: float | None
    """Since Prometheus scraped it; None: it has never seen this pod."""
    values: Mapping[str, float]
    """By signal; what is missing is not known."""

    def as_json(self) -> dict[str, object]:
        """For programs; JSON has no NaN, so that it is text."""
        values = {name: value if math.isfinite(value) else str(value) for name, value in self.values.items()}
        age = None if self.age_seconds is None else round(self.age_seconds, 1)
        return {"mode": self.mode, "generation": self.generation, "ageSeconds": age, "values": values}


def add_flags(verb: argparse.ArgumentParser, *, policy: str = "default: all of the namespace") -> None:
    """Which fleets are meant, and where Prometheus is, from here. ``policy``: what the verb does without one."""
    which = verb.add_mutually_exclusive_group()
    which.add_argument("policy", nargs="?", help=policy)
    which.add_argument("-A", "--all-namespaces", action="store_true", help="policies of all namespaces")
    prometheus_flags(verb, "base URL of the Prometheus to ask for what each process reports now")


def prometheus_flags(verb: argparse.ArgumentParser, purpose: str, *, required: bool = False) -> None:
    """Where Prometheus is, from here, and what else it takes to ask it."""
    verb.add_argument("--prometheus", required=required, metavar="URL", help=purpose)
    verb.add_argument(
        "--queries", type=Path, help="YAML of the admin's catalogue (name: PromQL), where a policy names one"
    )
    verb.add_argument("--bearer-token-file", default="", help="file with a token for Prometheus")


async def targets_of(session: "Session", arguments: argparse.Namespace) -> "Sequence[Target]":
    """The fleets that the flags mean."""
    if arguments.policy:
        return [await session.policy(arguments.policy)]
    return await session.policies(everywhere=bool(arguments.all_namespaces))


def prometheus(
    arguments: argparse.Namespace, *, name: str = "this", seconds: float = TIMEOUT_SECONDS
) -> "closing[PrometheusSource]":
    """The Prometheus that the flags name, for as long as a block runs; ``seconds``: how long a query may take."""
    from precision_operator.settings import PrometheusEndpoint
    from precision_operator.signals.prometheus import PrometheusSource

    return closing(
        PrometheusSource(name, PrometheusEndpoint(arguments.prometheus, seconds, arguments.bearer_token_file))
    )


def catalogue(path: Path | None) -> dict[str, str]:
    """The admin's queries, by name.

    Raises:
        ConfigurationError: there is no such file, or it is no YAML.
    """
    if path is None:
        return {}
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: expected YAML of the admin's queries: {error}") from error
    return {str(k): str(v) for k, v in mapping(found).items()}


async def readings(arguments: argparse.Namespace, targets: "Sequence[Target]") -> "dict[str, Evaluation]":
    """One reading for each policy, by its uid; none where no Prometheus was named.

    Raises:
        ConfigurationError: Prometheus answers nothing, or a policy's queries cannot be asked.
    """
    if not arguments.prometheus:
        return {}
    from precision_operator.signals.evaluator import Evaluator
    from precision_operator.signals.plan import plan_of

    with prometheus(arguments) as source:
        plans = {target.policy.uid: plan_of(target.policy) for target in targets}
        sources = {plan.endpoint: source for plan in plans.values()}
        evaluator = Evaluator(sources, catalogue(arguments.queries), allow_raw=True)
        found = {uid: await evaluator.evaluate(plan) for uid, plan in plans.items()}
    for evaluation in found.values():
        if "ack" in evaluation.errors:
            raise ConfigurationError(f"{arguments.prometheus}: {evaluation.errors['ack']}")
    return found


def report_of(evaluation: "Evaluation | None", pod: str) -> LiveReport | None:
    """What a pod's process says; None where nobody was asked."""
    if evaluation is None:
        return None
    said = evaluation.pods.get(pod)
    if said is None:
        return LiveReport(None, None, None, {})
    age = None if said.sampled_at is None else max(0.0, evaluation.at - said.sampled_at)
    return LiveReport(said.mode, said.generation, age, {str(signal): value for signal, value in said.values.items()})
