"""From vectors to pods: pure splitting of the answers by their ``pod`` label."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

from precision_operator.api.modes import Mode, parse_mode
from precision_operator.api.signals import Signal
from precision_operator.core.model import PodSignals
from precision_operator.signals.port import Sample
from precision_operator.signals.queries import ACK, STEPS

_NAMED = 3
"""How many pods a message names."""


@dataclass(slots=True)
class _Pod:
    """A pod's signals while they are gathered."""

    mode: Mode | None = None
    generation: int | None = None
    sampled_at: float | None = None
    steps: float | None = None
    values: dict[Signal, float] = field(default_factory=dict)


def group(
    answers: Mapping[str, Sequence[Sample]], signals: Mapping[str, Signal], *, at: float
) -> tuple[dict[str, PodSignals], dict[str, str]]:
    """(signals by pod name, complaints by query name) of the answers by query name.

    A pod that occurs twice in an answer has no value in it: which of them is meant cannot be known. Only of the
    acknowledgement the newest counts, since a change of mode leaves two series for a moment. Its value is how long ago it
    was scraped (negative seconds) by Prometheus' own clock: ours may differ, so only the age is taken, back from ``at``.
    """
    pods: dict[str, _Pod] = {}
    complaints: dict[str, str] = {}
    for name, samples in answers.items():
        unlabelled = sum(1 for sample in samples if not sample.labels.get("pod"))
        if unlabelled:
            complaints[name] = (
                f"MissingPodLabel: {unlabelled} of {len(samples)} series have no label pod; group the query by (pod), "
                "and have Prometheus attach pod from its service discovery"
            )
        twice = _acknowledgements(samples, pods, at) if name == ACK else _values(samples, pods, name, signals.get(name))
        if twice:
            more = f" and {len(twice) - _NAMED} more" if len(twice) > _NAMED else ""
            complaints[name] = (
                f"DuplicateSeries: more than one series for {', '.join(sorted(twice)[:_NAMED])}{more}; "
                "scrape each pod once and group the query by (pod)"
            )
    frozen = {
        name: PodSignals(
            mode=pod.mode, generation=pod.generation, sampled_at=pod.sampled_at, steps=pod.steps, values=pod.values
        )
        for name, pod in pods.items()
    }
    return frozen, complaints


def _acknowledgements(samples: Sequence[Sample], pods: dict[str, _Pod], at: float) -> set[str]:
    """The newest acknowledgement of each pod; returns the pods whose newest ones contradict each other."""
    newest: dict[str, list[Sample]] = {}
    for sample in samples:
        name = sample.labels.get("pod")
        if not name or not isfinite(sample.value):
            continue
        best = newest.get(name)
        if best is None or sample.value > best[0].value:
            newest[name] = [sample]
        elif sample.value == best[0].value:
            best.append(sample)
    contradicting: set[str] = set()
    for name, candidates in newest.items():
        pod = pods.setdefault(name, _Pod())
        pod.sampled_at = at + candidates[0].value
        said = {(sample.labels.get("mode"), sample.labels.get("generation")) for sample in candidates}
        if len(said) > 1:
            contradicting.add(name)
            continue
        mode, generation = said.pop()
        pod.mode = parse_mode(mode)
        pod.generation = int(generation) if generation and generation.isascii() and generation.isdigit() else None
    return contradicting


def _values(samples: Sequence[Sample], pods: dict[str, _Pod], query: str, signal: Signal | None) -> set[str]:
    """Each pod's value of one query; returns the pods that have several."""
    values: dict[str, float] = {}
    twice: set[str] = set()
    for sample in samples:
        name = sample.labels.get("pod")
        if not name:
            continue
        if name in values:
            twice.add(name)
        values[name] = sample.value
    for name in values.keys() - twice:
        pod = pods.setdefault(name, _Pod())
        if query == STEPS:
            pod.steps = values[name]
        elif signal is not None:
            pod.values[signal] = values[name]
    return twice
