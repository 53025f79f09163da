"""What stands on the time axis of a picture: phases, shaded, and moments, with names that lie over no other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from precision_operator.api.state import Phase
from precision_operator.api.text import bounded

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MOMENTS = 100
"""Moments that are drawn; the newest."""
_ROWS = 3
"""Of moments' names above the first panel; one that fits into none is left out."""
_PHASES: Mapping[str, tuple[str, str]] = {
    Phase.PENDING: ("#eeeeee", ""),
    Phase.PROGRESSING: ("#d6e8f5", ""),
    Phase.PAUSED: ("#e6dcf2", "..."),
    Phase.HEALTHY: ("#eef7ee", ""),
    Phase.DEGRADED: ("#fbe9c6", ""),
    Phase.ROLLING_BACK: ("#f3bfa3", "\\\\\\\\"),
    Phase.HELD: ("#f9dfd2", "////"),
}
"""Fill and hatch of a phase: neighbours differ in print, too."""
_MOMENT, _EDGE = "#8b0000", "#9a9a9a"
_CHARACTER_POINTS = 4.6


def days_of(seconds: float) -> float:
    """As matplotlib counts time: days since the epoch."""
    return seconds / 86400.0


def shade(all_axes: Sequence[Axes], phases: Sequence[tuple[str, float]], start: float, end: float) -> list[Artist]:
    """Shade each phase, and return what the legend says of those that are seen."""
    from matplotlib.patches import Patch

    ends = [*(at for _, at in phases[1:]), end]
    seen: dict[str, Artist] = {}
    for (name, since), until in zip(phases, ends, strict=False):
        left, right = max(since, start), min(until, end)
        if left >= right:
            continue
        colour, hatch = _PHASES.get(name, ("#eeeeee", "xx"))
        for axes in all_axes:
            # The edge keeps a phase of seconds visible in a picture of a month.
            axes.axvspan(
                days_of(left), days_of(right), zorder=0, linewidth=0.5, facecolor=colour, hatch=hatch, edgecolor=_EDGE
            )
        seen.setdefault(
            name, Patch(label=f"phase {name}", linewidth=0.5, facecolor=colour, hatch=hatch, edgecolor=_EDGE)
        )
    return list(seen.values())


def mark(all_axes: Sequence[Axes], moments: Sequence[tuple[str, float]], start: float, end: float) -> list[Artist]:
    """Draw the moments, their names above the first panel, none over another; the legend says how many found no place.

    The axes have their limits and their width.
    """
    from matplotlib.lines import Line2D

    seen = sorted((one for one in moments if start <= one[1] <= end), key=lambda one: one[1])[-MOMENTS:]
    width = all_axes[0].get_window_extent().width * 72 / all_axes[0].figure.dpi
    free = [-math.inf] * _ROWS
    unnamed = 0
    for name, at in seen:
        for axes in all_axes:
            axes.axvline(days_of(at), color=_MOMENT, linewidth=1, zorder=4)
        text = bounded(name, 40)
        place, length = width * (at - start) / (end - start), _CHARACTER_POINTS * len(text)
        left = place if place + length <= width else place - length
        row = next((row for row in range(_ROWS) if free[row] <= left), None)
        if row is None:
            unnamed += 1
            continue
        free[row] = left + length + _CHARACTER_POINTS
        all_axes[0].annotate(
            *(text, (days_of(at), 1.0)),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3 + 10 * row),
            textcoords="offset points",
            ha="left" if left == place else "right",
            fontsize=8,
            color=_MOMENT,
            annotation_clip=False,
        )
    rows = sum(used > -math.inf for used in free)
    if rows and all_axes[0].get_title(loc="left"):
        all_axes[0].set_title(
            all_axes[0].get_title(loc="left"), loc="left", fontsize=9, fontweight="bold", pad=6 + 10 * rows
        )
    return [Line2D([], [], color=_MOMENT, label=f"{unnamed} more without a name")] if unnamed else []
