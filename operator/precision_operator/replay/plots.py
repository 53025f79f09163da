"""Pictures of signals over time, where matplotlib is installed; it is imported only when one is drawn.

A picture has a ground of its own and looks the same in a light and in a dark page, whatever matplotlib's settings are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from precision_operator.api.text import bounded
from precision_operator.errors import ConfigurationError, OperatorError
from precision_operator.reasons import Reason
from precision_operator.replay.curves import name_of, shortened, with_gaps, worst_first
from precision_operator.replay.marks import days_of, mark, shade
from precision_operator.signals.port import Series

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Of the named series: those of Okabe and Ito, which most colour-blind people tell apart; the markers are for the others."""
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
OTHERS = 40
"""Series of one panel that are drawn beside the named ones, in grey and without a name."""
_WIDTH_INCHES = 10.0
_NAME_POINTS = 11.0
"""Height of a level's name, with what keeps it apart from the next one."""
_LEVEL, _GRID, _OTHER = "#555555", "#e4e4e4", "#b5b5b5"
_STEEP = 5.0
"""Times the highest threshold; where values go beyond it, a linear axis would show nothing but their peak."""
_DECADES = 1e3
_TICKS = 8
"""Of such an axis."""
_LINEAR = 0.4
"""Of a symmetric logarithmic axis: the part up to the highest threshold, as a share of the decades beyond it."""
_UNITS = {"share": "share, %", "multiple": "multiple of FP32", "steps": "steps"}
ENDINGS = (".png", ".svg", ".pdf")


class FiguresMissing(OperatorError):
    """matplotlib is not installed."""

    reason = Reason.FIGURES_MISSING


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: series over time, and levels across it."""

    title: str
    unit: str
    """``share``, ``multiple`` (of FP32), or the unit as it is shown."""
    series: Sequence[Series]
    levels: Sequence[tuple[str, float]] = ()
    lower_is_worse: bool = False
    left_out: int = 0
    """Series that were not kept."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels below one another, over the same time."""

    heading: str
    panels: Sequence[Panel]
    phases: Sequence[tuple[str, float]] = ()
    """(phase, since when), in the order of time; seconds since the epoch."""
    moments: Sequence[tuple[str, float]] = ()
    """(name, seconds since the epoch)."""


def check(path: Path) -> None:
    """Find out before a long run whether its picture can be drawn.

    Raises:
        FiguresMissing: saying what to install.
        ConfigurationError: the file's ending or folder will not do.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise FiguresMissing(
            "expected matplotlib for the plots, found none; in a checkout: pip install '.[figures]'"
        ) from error
    if path.suffix not in ENDINGS or not path.parent.is_dir():
        raise ConfigurationError(f"{path}: expected a file in a folder that exists, ending in {', '.join(ENDINGS)}")


def draw(path: Path, picture: Picture) -> None:
    """Write the picture; the ending of ``path`` says as what.

    Raises:
        FiguresMissing: saying what to install.
        ConfigurationError: it cannot be written there.
    """
    check(path)
    import matplotlib.style

    with matplotlib.style.context(_STYLE):
        try:
            _compose(picture).savefig(path, dpi=110)
        except OSError as error:
            raise ConfigurationError(f"{path}: expected a file that can be written: {error}") from error


def compose(picture: Picture) -> Figure:
    """The picture, not yet written."""
    import matplotlib.style

    with matplotlib.style.context(_STYLE):
        return _compose(picture)


_STYLE: list[str | dict[str, object]] = ["default", {"text.parse_math": False, "hatch.linewidth": 0.4}]
"""Not the person's own: a dark style would draw white on white. Names of tenants are no formulas."""


def _compose(picture: Picture) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count = max(1, len(picture.panels))
    figure = Figure(figsize=(_WIDTH_INCHES, 2.3 * count + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(bounded(picture.heading, 110), x=0.01, ha="left", fontsize=11)
    all_axes: list[Axes] = figure.subplots(count, 1, squeeze=False, sharex=True)[:, 0].tolist()
    start, end = _extent(picture)
    colours = {name: index for index, name in enumerate(_named(picture.panels))}
    others = drawn = 0
    names: list[list[Annotation]] = []
    for axes, panel in zip(all_axes, picture.panels, strict=False):
        shown, rest = _lines(axes, panel, colours)
        others, drawn = max(others, rest), max(drawn, shown)
        names.append(_levels(axes, panel))
        _frame(axes, panel)
    phases = shade(all_axes, picture.phases, start, end)
    all_axes[0].set_xlim(days_of(start), days_of(end))
    _time(all_axes[-1], start, end)
    _lay_out(figure)
    moments = mark(all_axes, picture.moments, start, end)
    handles = [*_series_handles(colours, drawn, others), *phases, *moments]
    if handles:
        figure.legend(handles=handles, loc="outside lower left", ncols=4, fontsize=8, frameon=False)
    _lay_out(figure)
    for axes, found in zip(all_axes, names, strict=False):
        _spread(axes, found)
    return figure


def _lay_out(figure: Figure) -> None:
    """Find out how large the axes are."""
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)


def _extent(picture: Picture) -> tuple[float, float]:
    """From the first point to the last one, of all panels; where there is none, as the phases and moments have it."""
    times = [
        at for panel in picture.panels for one in panel.series for at, _ in one.points[:: len(one.points) - 1 or 1]
    ]
    times = times or [at for _, at in (*picture.phases, *picture.moments)] or [0.0]
    start, end = min(times), max(times)
    margin = (end - start) / 100 or 60.0
    return start - margin, end + margin


def _named(panels: Iterable[Panel]) -> list[str]:
    """Who gets a colour: by turns the worst of each panel. A name has one colour in the whole picture."""
    ranked = [[name_of(one) for one in worst_first(p.series, lower_is_worse=p.lower_is_worse)] for p in panels]
    longest = max(map(len, ranked), default=0)
    by_turns = (names[place] for place in range(longest) for names in ranked if place < len(names))
    return list(dict.fromkeys(by_turns))[: len(COLOURS)]


def _lines(axes: Axes, panel: Panel, colours: Mapping[str, int]) -> tuple[int, int]:
    """Draw the series; returns how many without a name are drawn, and how many there are."""
    ranked = worst_first(panel.series, lower_is_worse=panel.lower_is_worse)
    others = [one for one in ranked if name_of(one) not in colours]
    for one in others[:OTHERS]:
        axes.plot(*_xy(one), color=_OTHER, linewidth=0.7, zorder=2)
    for one in reversed(ranked):  # the worst on top
        index = colours.get(name_of(one))
        if index is not None:
            every = max(1, len(one.points) // 12)
            axes.plot(
                *_xy(one),
                linewidth=1.2,
                markersize=3.5,
                markevery=every,
                zorder=3,
                color=COLOURS[index],
                marker=_MARKERS[index],
            )
    return min(len(others), OTHERS), len(others) + panel.left_out


def _xy(series: Series) -> tuple[list[float], list[float]]:
    points = with_gaps(series.points)
    return [days_of(at) for at, _ in points], [value if math.isfinite(value) else math.nan for _, value in points]


def _levels(axes: Axes, panel: Panel) -> list[Annotation]:
    """Draw them; each is named beside the axes, where its name lies on no line."""
    for _, level in panel.levels:
        axes.axhline(level, color=_LEVEL, linestyle="--", linewidth=1, zorder=2.5)
    return [
        axes.annotate(
            *(f"{name} {_amount(level, panel.unit)}", (1.0, level)),
            xycoords=axes.get_yaxis_transform(),
            xytext=(1.02, 0.5),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            color=_LEVEL,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": _LEVEL,
                "linewidth": 0.6,
                "shrinkA": 0,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )
        for name, level in panel.levels
    ]


def _spread(axes: Axes, names: Sequence[Annotation]) -> None:
    """Put each name at the height of its level, or as near as the others leave room for it."""
    height = _NAME_POINTS * axes.figure.dpi / 72 / axes.get_window_extent().height
    level = axes.get_yaxis_transform() - axes.transAxes
    ordered = sorted(names, key=lambda one: one.xy[1])
    wanted = [float(level.transform(one.xy)[1]) for one in ordered]
    for place in range(1, len(wanted)):
        wanted[place] = max(wanted[place], wanted[place - 1] + height)
    most = 1.0
    for place in reversed(range(len(wanted))):
        wanted[place] = min(wanted[place], most)
        most = wanted[place] - height
    for one, at in zip(ordered, wanted, strict=True):
        one.set_y(at)


def _frame(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, SymmetricalLogLocator

    axes.set_title(panel.title, loc="left", fontsize=9, fontweight="bold")
    axes.set_ylabel(_UNITS.get(panel.unit, panel.unit), fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(axis="y", color=_GRID, linewidth=0.6)
    axes.margins(y=0.14)
    known = [value for one in panel.series for _, value in one.points if math.isfinite(value)]
    if not known:
        words = "no data: not known, which is not the same as good"
        axes.text(0.5, 0.5, words, ha="center", va="center", transform=axes.transAxes, color=_LEVEL, fontsize=9)
        axes.set_yticks([])
        return
    highest = max((abs(level) for _, level in panel.levels), default=0.0)
    if highest and (peak := max(map(abs, known))) > _STEEP * highest:
        axes.set_yscale("symlog", linthresh=highest, linscale=max(1.0, _LINEAR * math.log10(peak / highest)))
        locator = SymmetricalLogLocator(axes.yaxis.get_transform())
        locator.set_params(numticks=_TICKS)
        axes.yaxis.set_major_locator(locator)
    elif not panel.levels and min(known) > 0 and max(known) > _DECADES * min(known):
        axes.set_yscale("log")
    elif panel.unit == "steps" and max(known) < 1:
        axes.set_ylim(-0.15, 1.15)
    if panel.unit == "share" or axes.get_yscale() != "linear":
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _amount(value, panel.unit)))


def _time(axes: Axes, start: float, end: float) -> None:
    """Ticks by the clock; the day, the year and the zone below them."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(
        ConciseDateFormatter(locator, tz=UTC, show_offset=False)  # type: ignore[no-untyped-call]
    )
    days = dict.fromkeys(datetime.fromtimestamp(at, tz=UTC).date().isoformat() for at in (start, end))
    axes.set_xlabel(f"UTC, {' to '.join(days)}", fontsize=8)


def _series_handles(colours: Mapping[str, int], drawn: int, others: int) -> list[Artist]:
    from matplotlib.lines import Line2D

    found: list[Artist] = [
        Line2D([], [], label=name, linewidth=1.2, markersize=3.5, color=COLOURS[i], marker=_MARKERS[i])
        for i, name in enumerate(shortened(colours))
    ]
    if others:
        text = f"{others} others" if drawn == others else f"{drawn} of {others:,} others"
        found.append(Line2D([], [], color=_OTHER, label=text))
    return found


def _amount(value: float, unit: str) -> str:
    if unit == "share":
        return f"{100 * value:.4g} %"
    return f"{value:.4g} ×" if unit == "multiple" else f"{value:.4g}"
