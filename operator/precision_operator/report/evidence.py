"""The metrics around a breach, as bounded range queries; and reading them back."""

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from precision_operator.errors import QueryInvalid
from precision_operator.report.codec import RecordingError
from precision_operator.report.incident import Evidence, stamp
from precision_operator.signals.port import Series
from precision_operator.signals.promql import written
from precision_operator.signals.queries import BUILT_IN, render

AROUND_SECONDS = 1800.0
"""How far before the breach was detected the signals are kept."""
DAY_SECONDS = 86400.0
"""How far back trends and run infos are looked at."""
POINTS = 120
"""Of one series."""
SERIES_LIMIT = 50
"""Of one query; the breached workloads' first."""

RUN_INFO = "run_info"
_RUN_INFO_QUERY = (
    "max by (pod, torch, device, model, world_size, batch_size, lr, accumulation)"
    ' (genesis_run_info{namespace="$namespace"})'
)


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
    """What to ask: each signal around the breach, and a day of the run infos.

    Two points lie at most about half a metrics window apart, so that a short breach falls on some.
    """
    before = min(AROUND_SECONDS, POINTS * window_seconds / 2)
    found = [
        Question(name, query, detected_at - before, now)
        for name, query in queries.items()
        if name not in ("ack", "steps")
    ]
    found.append(Question(RUN_INFO, render(_RUN_INFO_QUERY, namespace, 60.0, 1), detected_at - DAY_SECONDS, now))
    return found


def queries_of(
    wanted: Sequence[tuple[str, str]],
    catalogue: Mapping[str, str],
    *,
    namespace: str,
    window_seconds: float,
    min_steps: int,
    raw: Sequence[tuple[str, str]] = (),
) -> dict[str, str]:
    """PromQL by signal name, as the evaluator asks it; what cannot be rendered is left out: the evaluation said so."""
    found: dict[str, str] = {}
    own = dict(raw)
    for signal, name in wanted:
        template = catalogue.get(name) or BUILT_IN.get(name or signal)
        try:
            if signal in own:
                found[signal] = written(own[signal], namespace, window_seconds, min_steps)
            elif template is not None:
                found[signal] = render(template, namespace, window_seconds, min_steps)
        except QueryInvalid:
            continue
    return found


def keep(question: Question, answer: Sequence[Series] | str, *, first: Sequence[str]) -> Evidence:
    """The evidence of an answer, or of the error that stands for it; ``first`` are workloads whose series matter most."""
    base = Evidence(question.name, question.query, stamp(question.start), stamp(question.end), question.step_seconds)
    if isinstance(answer, str):
        return Evidence(base.name, base.query, base.start, base.end, base.step_seconds, error=answer)
    ranked = sorted(answer, key=lambda s: (not _of(s, first), sorted(s.labels.items())))
    kept = ranked[:SERIES_LIMIT]
    raw = [[dict(s.labels), [[round(t, 3), _short(v)] for t, v in s.points[-POINTS - 1 :]]] for s in kept]
    text = json.dumps(raw, separators=(",", ":"), sort_keys=True)
    data = base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")
    dropped = len(answer) - len(kept)
    return Evidence(base.name, base.query, base.start, base.end, base.step_seconds, len(kept), dropped, data)


def series_of(evidence: Evidence) -> list[Series]:
    """The series that were kept.

    Raises:
        RecordingError: the data is damaged.
    """
    if not evidence.data:
        return []
    try:
        raw = json.loads(gzip.decompress(base64.b64decode(evidence.data)))
        return [Series(labels, tuple((float(t), float(v)) for t, v in points)) for labels, points in raw]
    except (OSError, EOFError, ValueError, TypeError) as error:
        raise RecordingError(
            f"evidence {evidence.name}: expected series as gzip in base64, found {type(error).__name__}: {error}; "
            "take the incident from the cluster again"
        ) from error


def _of(series: Series, workloads: Sequence[str]) -> bool:
    pod = series.labels.get("pod", "")
    return any(pod == name or pod.startswith(f"{name}-") for name in workloads)


def _short(value: float) -> str:
    return f"{value:.6g}"
