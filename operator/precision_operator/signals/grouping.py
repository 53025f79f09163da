"""From vectors to pods: pure splitting of the answers by their ``pod`` label."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Grouped:
    """The answers, split by pod."""

    pods: Mapping[str, PodSignals]
    errors: Mapping[str, Cause]
    """Query name → why nothing of its answer can be used."""
    twice: Mapping[str, frozenset[str]]
    """Query name → pods that have several series in its answer, so no value."""


@dataclass(frozen=True, slots=True)
class Split:
    """One answer, split by pod."""

    samples: Sequence[Sample]
    """As it came."""
    by_pod: Mapping[str, Sample]
    """Of each pod the one that counts."""
    twice: frozenset[str]
    """Pods that have several series, so no value."""


NOTHING = Split((), {}, frozenset())
"""An empty answer."""


def split(name: str, samples: Sequence[Sample]) -> Split:
    """Split the answer to the query of that name."""
    found, several = _newest(samples) if name == ACK else _once(samples)
    return Split(samples, found, frozenset(several))


def group(answers: Mapping[str, Split], signals: Mapping[str, Signal], *, at: float) -> Grouped:
    """Join the answers by query name to signals by pod name.

    A namespace holds other people's pods too: what is wrong with one pod's series costs that pod its value and nobody
    else anything. A pod that occurs twice in an answer has no value in it: which of them is meant cannot be known. Only of
    the acknowledgement the newest counts, since a change of mode leaves two series for a moment. Its value is how long ago
    it was scraped (negative seconds) by Prometheus' own clock: ours may differ, so only the age is taken, back from ``at``.
    """
    errors: dict[str, Cause] = {}
    for name, answer in answers.items():
        if answer.samples and not any(sample.labels.pod for sample in answer.samples):
            text = (
                f"none of {len(answer.samples)} series has a label pod; group the query by (pod), "
                "and have Prometheus attach pod from its service discovery"
            )
            errors[name] = Cause(Reason.MISSING_POD_LABEL, text)
    found = {name: answer.by_pod for name, answer in answers.items()}
    twice = {name: answer.twice for name, answer in answers.items() if answer.twice}
    return Grouped(_by_pod(found, signals, twice.get(ACK, frozenset()), at), errors, twice)


def _by_pod(
    found: Mapping[str, Mapping[str, Sample]], signals: Mapping[str, Signal], contradicting: frozenset[str], at: float
) -> dict[str, PodSignals]:
    """From the sample that each pod has in each answer. ``contradicting``: pods of which the mode is not known."""
    values: dict[str, dict[Signal, float]] = {pod: {} for samples in found.values() for pod in samples}
    for name, signal in signals.items():
        for pod, sample in found.get(name, {}).items():
            values[pod][signal] = sample.value
    acknowledged, runs = found.get(ACK, {}), found.get(RUN, {})
    steps, shortage, memory, work, checkpoints = (
        {pod: sample.value for pod, sample in found.get(name, {}).items()}
        for name in (STEPS, SHORTAGE, FP32_MEMORY, WORK, CHECKPOINT)
    )
    pods: dict[str, PodSignals] = {}
    for pod, of_pod in values.items():
        said, runs_on, checkpoint = acknowledged.get(pod), runs.get(pod), checkpoints.get(pod)
        known = said is not None and pod not in contradicting
        mode, generation = _acknowledged(*_said(said)) if said is not None and known else (None, None)
        pods[pod] = PodSignals(
            mode=mode,
            generation=generation,
            sampled_at=at + said.value if said is not None else None,
            steps=steps.get(pod),
            values=of_pod,
            fp32_shortage_bytes=shortage.get(pod),
            fp32_memory=memory.get(pod),
            runs_on=_described(runs_on) if runs_on is not None else None,
            fp32_work_seconds=work.get(pod),
            checkpoint_at=at + checkpoint if checkpoint is not None and isfinite(checkpoint) else None,
        )
    return pods


def _newest(samples: Sequence[Sample]) -> tuple[dict[str, Sample], set[str]]:
    """The newest acknowledgement of each pod, and the pods whose newest ones contradict each other."""
    newest: dict[str, Sample] = {}
    contradicting: set[str] = set()
    for sample in samples:
        name, value = sample.labels.pod, sample.value
        if not name or not isfinite(value):
            continue
        best = newest.get(name)
        if best is None or value > best.value:
            newest[name] = sample
            contradicting.discard(name)
        elif value == best.value and _said(sample) != _said(best):
            contradicting.add(name)
    return newest, contradicting


def _said(sample: Sample) -> tuple[str, str]:
    return sample.labels.mode, sample.labels.generation


@lru_cache(maxsize=_DESCRIPTIONS)
def _acknowledged(mode: str, generation: str) -> tuple[Mode | None, int | None]:
    return parse_mode(mode), generation_text(generation)


def _once(samples: Sequence[Sample]) -> tuple[dict[str, Sample], set[str]]:
    """The sample of each pod that has one, and the pods that have several."""
    found = {sample.labels.pod: sample for sample in samples}
    found.pop("", None)
    if len(found) == len(samples):
        return found, set()
    counts = Counter(sample.labels.pod for sample in samples)
    twice = {name for name in found if counts[name] > 1}
    return {name: sample for name, sample in found.items() if name not in twice}, twice


def _described(sample: Sample) -> RunsOn:
    said = sample.labels
    return _runs_on(said.torch, said.device, said.capability, said.world_size)


@lru_cache(maxsize=_DESCRIPTIONS)
def _runs_on(torch: str, device: str, capability: str, world_size: str) -> RunsOn:
    """A tenant's text: bounded. A fleet says few different things, again and again."""
    torch, device, capability = (bounded(text, _LABEL_CHARACTERS) for text in (torch, device, capability))
    return RunsOn(torch, device, capability, generation_text(world_size) or 0)
