"""Figures, where matplotlib is installed; it is imported only when one is drawn."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from precision_operator.errors import OperatorError
from precision_operator.reasons import Reason
from precision_operator.signals.port import Series


class FiguresMissing(OperatorError):
    """matplotlib is not installed."""

    reason = Reason.FIGURES_MISSING


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: series over time, levels across it, moments down it."""

    title: str
    series: Sequence[Series]
    levels: Sequence[tuple[str, float]] = ()
    moments: Sequence[tuple[str, float]] = field(default_factory=tuple)
    """(name, seconds since the epoch)."""


LABELLED = 10
"""Series that the legend names; with more it would hide them."""


def draw(path: Path, panels: Iterable[Panel]) -> None:
    """Write the panels below one another as a PNG.

    Raises:
        FiguresMissing: saying what to install.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise FiguresMissing(
            "expected matplotlib for the plots, found none; pip install 'genesis-precision[figures]'"
        ) from error
    wanted = list(panels)
    figure = Figure(figsize=(10, 2.8 * len(wanted) + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(wanted), 1, squeeze=False, sharex=True)
    for axes, panel in zip(grid[:, 0], wanted, strict=True):
        for series in panel.series:
            times = [_date(at) for at, _ in series.points]
            axes.plot(times, [value for _, value in series.points], label=_name(series), linewidth=1)
        for name, level in panel.levels:
            axes.axhline(level, color="grey", linestyle="--", linewidth=1)
            axes.annotate(name, (0.0, level), xycoords=("axes fraction", "data"), fontsize=7, color="grey")
        for name, at in panel.moments:
            axes.axvline(_date(at), color="tab:red", linewidth=1)
            axes.annotate(name, (_date(at), 1.0), xycoords=("data", "axes fraction"), fontsize=7, rotation=30)
        axes.set_title(panel.title, loc="left", fontsize=9)
        if 0 < len(panel.series) <= LABELLED:
            axes.legend(fontsize=7, loc="upper left")
    figure.autofmt_xdate()
    figure.savefig(path, dpi=110)


def _name(series: Series) -> str:
    return series.labels.get("pod") or ", ".join(f"{k}={v}" for k, v in sorted(series.labels.items())) or "all"


def _date(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=UTC)
