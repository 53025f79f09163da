"""From vectors to pods: pure splitting of the answers by their ``pod`` label."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isfinite

from precision_operator.api.modes import Mode, parse_mode
from precision_operator.api.signals import Signal
from precision_operator.api.text import bounded
from precision_operator.api.wire import generation_text
from precision_operator.core.model import PodSignals, RunsOn
from precision_operator.reasons import Cause, Reason
from precision_operator.signals.port import Sample
from precision_operator.signals.queries import ACK, CHECKPOINT, FP32_MEMORY, RUN, SHORTAGE, STEPS, WORK

_LABEL_CHARACTERS = 40
_DESCRIPTIONS = 256
"""How many different descriptions of what runs are kept."""


@dataclass(slots=True)
class _Pod:
    """A pod's signals while they are gathered."""

    mode: Mode | None = None
    generation: int | None = None
    sampled_at: float | None = None
    steps: float | None = None
    shortage_bytes: float | None = None
    fp32_memory: float | None = None
    runs_on: RunsOn | None = None
    fp32_work_seconds: float | None = None
    checkpoint_at: float | None = None
    values: dict[Signal, float] = field(default_factory=dict)


_PLAIN = {STEPS: "steps", SHORTAGE: "shortage_bytes", FP32_MEMORY: "fp32_memory", WORK: "fp32_work_seconds"}
"""Query → where its value is kept as it is."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """The answers, split by pod."""

    pods: Mapping[str, PodSignals]
    errors: Mapping[str, Cause]
    """Query name → why nothing of its answer can be used."""
    twice: Mapping[str, frozenset[str]]
    """Query name → pods that have several series in its answer, so no value."""


def group(answers: Mapping[str, Sequence[Sample]], signals: Mapping[str, Signal], *, at: float) -> Grouped:
    """Split the answers by query name into signals by pod name.

    A namespace holds other people's pods too: what is wrong with one pod's series costs that pod its value and nobody
    else anything. A pod that occurs twice in an answer has no value in it: which of them is meant cannot be known. Only of
    the acknowledgement the newest counts, since a change of mode leaves two series for a moment. Its value is how long ago
    it was scraped (negative seconds) by Prometheus' own clock: ours may differ, so only the age is taken, back from ``at``.
    """
    pods: defaultdict[str, _Pod] = defaultdict(_Pod)
    errors: dict[str, Cause] = {}
    twice: dict[str, frozenset[str]] = {}
    for name, samples in answers.items():
        if samples and not any(sample.labels.get("pod") for sample in samples):
            text = (
                f"none of {len(samples)} series has a label pod; group the query by (pod), "
                "and have Prometheus attach pod from its service discovery"
            )
            errors[name] = Cause(Reason.MISSING_POD_LABEL, text)
        found = (
            _acknowledgements(samples, pods, at)
            if name == ACK
            else _values(samples, pods, name, signals.get(name), at=at)
        )
        if found:
            twice[name] = frozenset(found)
    frozen = {
        name: PodSignals(
            mode=pod.mode,
            generation=pod.generation,
            sampled_at=pod.sampled_at,
            steps=pod.steps,
            fp32_shortage_bytes=pod.shortage_bytes,
            fp32_memory=pod.fp32_memory,
            runs_on=pod.runs_on,
            fp32_work_seconds=pod.fp32_work_seconds,
            checkpoint_at=pod.checkpoint_at,
            values=pod.values,
        )
        for name, pod in pods.items()
    }
    return Grouped(frozen, errors, twice)


def _acknowledgements(samples: Sequence[Sample], pods: defaultdict[str, _Pod], at: float) -> set[str]:
    """The newest acknowledgement of each pod; returns the pods whose newest ones contradict each other."""
    newest: dict[str, Sample] = {}
    contradicting: set[str] = set()
    for sample in samples:
        name, value = sample.labels.get("pod"), sample.value
        if not name or not isfinite(value):
            continue
        best = newest.get(name)
        if best is None or value > best.value:
            newest[name] = sample
            contradicting.discard(name)
        elif value == best.value and _said(sample) != _said(best):
            contradicting.add(name)
    for name, sample in newest.items():
        pod = pods[name]
        pod.sampled_at = at + sample.value
        if name not in contradicting:
            pod.mode, pod.generation = _acknowledged(*_said(sample))
    return contradicting


def _said(sample: Sample) -> tuple[str | None, str | None]:
    return sample.labels.get("mode"), sample.labels.get("generation")


@lru_cache(maxsize=_DESCRIPTIONS)
def _acknowledged(mode: str | None, generation: str | None) -> tuple[Mode | None, int | None]:
    return parse_mode(mode), generation_text(generation)


def _values(
    samples: Sequence[Sample], pods: defaultdict[str, _Pod], query: str, signal: Signal | None, *, at: float
) -> set[str]:
    """Each pod's value of one query; returns the pods that have several."""
    found, twice = _once(samples)
    if signal is not None:
        for name, sample in found.items():
            pods[name].values[signal] = sample.value
        return twice
    plain = _PLAIN.get(query)
    for name, sample in found.items():
        pod = pods[name]
        if plain is not None:
            setattr(pod, plain, sample.value)
        elif query == CHECKPOINT and isfinite(sample.value):
            pod.checkpoint_at = at + sample.value
        elif query == RUN:
            said = sample.labels.get
            pod.runs_on = _runs_on(said("torch", ""), said("device", ""), said("capability", ""), said("world_size"))
    return twice


def _once(samples: Sequence[Sample]) -> tuple[dict[str, Sample], set[str]]:
    """The sample of each pod that has one, and the pods that have several."""
    found = {name: sample for sample in samples if (name := sample.labels.get("pod"))}
    if len(found) == len(samples):
        return found, set()
    counts = Counter(sample.labels.get("pod") for sample in samples)
    twice = {name for name in found if counts[name] > 1}
    return {name: sample for name, sample in found.items() if name not in twice}, twice


@lru_cache(maxsize=_DESCRIPTIONS)
def _runs_on(torch: str, device: str, capability: str, world_size: str | None) -> RunsOn:
    """A tenant's text: bounded. A fleet says few different things, again and again."""
    torch, device, capability = (bounded(text, _LABEL_CHARACTERS) for text in (torch, device, capability))
    return RunsOn(torch, device, capability, generation_text(world_size) or 0)
