"""The metrics around a breach, as bounded range queries; and reading them back."""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

from precision_operator.api.assignment import OBJECT_LIMIT_BYTES
from precision_operator.api.criteria import Criterion
from precision_operator.api.policy import Policy
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.signals import Signal
from precision_operator.api.text import bounded
from precision_operator.errors import QueryInvalid
from precision_operator.incidents.cost import ORIGIN, STEP
from precision_operator.incidents.report import DATA_CHARACTERS, Evidence, stamp
from precision_operator.incidents.slowness import of_pods
from precision_operator.replay.codec import RecordingError, unpacked
from precision_operator.signals.plan import EvaluationPlan
from precision_operator.signals.port import Series
from precision_operator.signals.queries import render

AROUND_SECONDS = 1800.0
"""How far before the breach was detected the signals are kept."""
DAY_SECONDS = 86400.0
"""How far back trends and run infos are looked at."""
QUERY_CHARACTERS = 8192
"""What the schema takes of a query: one that a policy brings grows when it is confined to its namespace."""
LABEL_CHARACTERS = 256
"""Of a label's value that are kept: trainers write them."""
LABELS_LIMIT = 64
"""Of one series: an exporter may have any number."""
POINTS = 120
"""Of one series."""
UNPACKED_BYTES = 16 * 2**20
"""What is read of one answer that was kept: the limits above make far less of it."""
SERIES_LIMIT = 50
"""Of one query; the breached workloads' first."""
LEFT_OUT = "left out: the incident would be too large"
"""Stands where no series of an answer has room."""

RUN_INFO = "run_info"
RUN_LABELS = (
    *("model", "model_hash", "torch", "device", "world_size", "batch_size", "lr", "accumulation", "clipping"),
    *("fp32", "fp8"),
)
"""Of ``genesis_run_info``: what a person may have changed, the model first."""

OF_A_DAY = "_of_a_day"
"""Follows the name of a signal whose built-in query was asked over a day."""
SIGNS = (Signal.OVERFLOW, Signal.DIVERGENCE, Signal.FAILURES)
"""What may have warned of a breach, of whichever signal it was."""
_DAY_QUERIES = {
    RUN_INFO: f'max by (pod, {", ".join(RUN_LABELS)}) (genesis_run_info{{namespace="$namespace"}})',
    **{f"{signal}{OF_A_DAY}": SIGNALS[signal].query for signal in SIGNS},
    "loss_of_a_day": 'max by (pod) (genesis_training_loss{namespace="$namespace"})',
    "throughput_of_a_day": 'max by (pod) (rate(genesis_training_samples_total{namespace="$namespace"}[$window]))',
}
"""What changed, and the trends that led there."""
_DAY_WINDOW_SECONDS, _DAY_STEPS = 900.0, 20
"""Of their rates: points lie 12 minutes apart."""

_STATISTICS = {
    "loss_scale": 'max by (pod) (genesis_loss_scale{namespace="$namespace"})',
    "grad_norm": 'max by (pod) (genesis_grad_norm{namespace="$namespace"})',
    "sentinel_level": 'max by (pod) (genesis_sentinel_level{namespace="$namespace"})',
    STEP: 'max by (pod) (genesis_training_step{namespace="$namespace"})',
    ORIGIN: (
        'max by (pod) (genesis_training_step{namespace="$namespace"}'
        ' - genesis_training_steps_total{namespace="$namespace"})'
    ),
    "gpu_utilisation": of_pods("DCGM_FI_DEV_GPU_UTIL"),
    "gpu_memory_used": of_pods("DCGM_FI_DEV_FB_USED"),
}
"""What the trainers, and the GPUs where a DCGM exporter runs, said of themselves around the breach."""

_UNITS = {
    **{f"{signal}{OF_A_DAY}": SIGNALS[signal].unit for signal in SIGNS},
    "loss_of_a_day": "loss",
    "throughput_of_a_day": "samples/s",
    "loss_scale": "loss scale",
    "grad_norm": "gradient norm",
    "sentinel_level": "level",
    STEP: "steps",
    ORIGIN: "steps",
    "gpu_utilisation": "%",
    "gpu_memory_used": "MiB",
}
"""What the values of those are measured in."""


def unit_of(name: str) -> str:
    """What the values of a signal, or of other evidence, are measured in; empty: not known."""
    return SIGNALS[Signal(name)].unit if name in set(Signal) else _UNITS.get(name, "")


_TITLES = {
    **{signal.value: record.title for signal, record in SIGNALS.items()},
    "grad_norm": "Gradient norm",
    "gpu_utilisation": "GPU utilisation",
    "gpu_memory_used": "GPU memory used",
}


def title_of(name: str) -> str:
    """What a person reads above a chart of a signal, or of other evidence."""
    signal = name.removesuffix(OF_A_DAY)
    title = _TITLES.get(signal) or signal[:1].upper() + signal[1:].replace("_", " ")
    return title if signal == name else f"{title} over a day"


def criterion_of(policy: Policy | None, name: str) -> Criterion | None:
    """Whose thresholds hold for evidence; over a day the built-in query is asked, which one with its own does not mean."""
    signal = name.removesuffix(OF_A_DAY)
    found = next((c for c in policy.spec.criteria if c.signal.value == signal), None) if policy is not None else None
    return None if found is not None and signal != name and (found.query or found.promql) else found


@dataclass(frozen=True, slots=True)
class Question:
    """One range query to ask."""

    name: str
    query: str
    start: float
    end: float

    @property
    def step_seconds(self) -> float:
        """So that a series has at most ``POINTS`` points."""
        return max(1.0, (self.end - self.start) / POINTS)


def questions(
    *, namespace: str, queries: Mapping[str, str], window_seconds: float, detected_at: float, now: float
) -> list[Question]:
    """What to ask: each signal and the trainers' statistics around the breach; a day of run infos and trends.

    Two points lie at most about half a metrics window apart, so that a short breach falls on some.
    """
    before = min(AROUND_SECONDS, POINTS * window_seconds / 2)
    signals = {name: query for name, query in queries.items() if name not in ("ack", "steps")}
    around = {**signals, **{name: render(query, namespace, 60.0, 1) for name, query in _STATISTICS.items()}}
    day = {name: render(query, namespace, _DAY_WINDOW_SECONDS, _DAY_STEPS) for name, query in _DAY_QUERIES.items()}
    return [
        *(Question(name, query, detected_at - before, now) for name, query in around.items()),
        *(Question(name, query, detected_at - DAY_SECONDS, now) for name, query in day.items()),
    ]


def queries_of(plan: EvaluationPlan, catalogue: Mapping[str, str]) -> dict[str, str]:
    """PromQL by signal name, as the evaluator asks it; what cannot be asked is left out: a condition names it."""
    found: dict[str, str] = {}
    for signal, _ in plan.queries:
        with suppress(QueryInvalid, KeyError):
            found[signal] = plan.promql(signal, catalogue)
    return found


def keep(question: Question, answer: Sequence[Series] | str, *, first: Sequence[str]) -> Evidence:
    """The evidence of an answer, or of the error that stands for it; ``first`` are workloads whose series matter most."""
    query = bounded(question.query, QUERY_CHARACTERS)
    base = Evidence(question.name, query, stamp(question.start), stamp(question.end), question.step_seconds)
    if isinstance(answer, str):
        return Evidence(base.name, base.query, base.start, base.end, base.step_seconds, error=str(answer))
    ranked = sorted(answer, key=lambda s: (not _of(s, first), sorted(s.labels.items())))
    kept = ranked[:SERIES_LIMIT]
    raw = [
        [
            {_label(k): _label(s.labels[k]) for k in sorted(s.labels, key=_place)[:LABELS_LIMIT]},
            [[round(t, 3), _short(v)] for t, v in s.points[-POINTS - 1 :]],
        ]
        for s in kept
    ]
    dropped = len(answer) - len(kept)
    return Evidence(base.name, base.query, base.start, base.end, base.step_seconds, len(kept), dropped, _packed(raw))


def evidence_bytes(recording_bytes: int) -> int:
    """What all evidence of an incident may take beside its recordings.

    With the two full, all else of an incident has 0.5 MiB until etcd refuses it.
    """
    return OBJECT_LIMIT_BYTES - recording_bytes


def fits(found: Sequence[Evidence], most_bytes: int) -> bool:
    """Whether an incident can keep all of it."""
    return _bytes(found) <= most_bytes and all(len(evidence.data) <= DATA_CHARACTERS for evidence in found)


def fitted(found: Sequence[Evidence], most_bytes: int) -> tuple[Evidence, ...]:
    """As many series as fit, of trends over a day the fewest; each answer says how many it lacks."""
    kept = list(found)
    for place, evidence in enumerate(kept):
        while len(evidence.data) > DATA_CHARACTERS:
            kept[place] = evidence = _thinned(evidence)
    trends = {place for place, evidence in enumerate(kept) if evidence.name.endswith(OF_A_DAY)}
    for least in (1, 0):
        for places in (trends, set(range(len(kept))) - trends):
            while _bytes(kept) > most_bytes and any(kept[place].series > least for place in places):
                largest = max(
                    (place for place in places if kept[place].series > least), key=lambda place: len(kept[place].data)
                )
                kept[largest] = _thinned(kept[largest])
    return tuple(kept)


def _bytes(found: Sequence[Evidence]) -> int:
    return sum(len(evidence.data) + len(evidence.query.encode()) for evidence in found)


def _thinned(evidence: Evidence) -> Evidence:
    """With the first half of its series: those of breached workloads come first."""
    count = evidence.series // 2
    dropped = evidence.dropped + evidence.series - count
    if not count:
        return replace(evidence, series=0, dropped=dropped, data="", error=LEFT_OUT)
    raw = json.loads(unpacked(evidence.data, most_bytes=UNPACKED_BYTES))
    return replace(evidence, series=count, dropped=dropped, data=_packed(raw[:count]))


def _packed(raw: Sequence[object]) -> str:
    # Escaped, letters of four bytes would take twelve: more than is read again.
    text = json.dumps(raw, separators=(",", ":"), sort_keys=True, ensure_ascii=False)
    return base64.b64encode(gzip.compress(text.encode(errors="replace"), mtime=0)).decode("ascii")


def series_of(evidence: Evidence) -> list[Series]:
    """The series that were kept.

    Raises:
        RecordingError: the data is damaged.
    """
    if not evidence.data:
        return []
    try:
        raw = json.loads(unpacked(evidence.data, most_bytes=UNPACKED_BYTES))
        return [Series(labels, tuple((float(t), float(v)) for t, v in points)) for labels, points in raw]
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordingError(
            f"evidence {evidence.name}: expected series as gzip in base64, found {type(error).__name__}: {error}; "
            "take the incident from the cluster again"
        ) from error


def _of(series: Series, workloads: Sequence[str]) -> bool:
    pod = series.labels.get("pod", "")
    return any(pod == name or pod.startswith(f"{name}-") for name in workloads)


@lru_cache(maxsize=256)
def _label(text: str) -> str:
    """A tenant's text: bounded. Series say the same few things again and again."""
    return bounded(text, LABEL_CHARACTERS)


def _place(label: str) -> tuple[bool, str]:
    """The pod's name before all others."""
    return label != "pod", label


def _short(value: float) -> str:
    return f"{value:.6g}"
