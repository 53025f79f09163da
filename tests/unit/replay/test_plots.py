"""Pictures of signals: what a person must be able to read off them, whoever named the series."""

from __future__ import annotations

import math
from pathlib import Path

import matplotlib
import pytest
from matplotlib.text import Annotation, Text

from precision_operator.api.modes import Mode
from precision_operator.api.signal_records import DEFAULT_CRITERIA
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.model import Evaluation, PodSignals
from precision_operator.errors import ConfigurationError
from precision_operator.replay.curves import Thinned, levels_of, shortened, with_gaps, worst_first
from precision_operator.replay.plots import COLOURS, Panel, Picture, check, compose, draw
from precision_operator.signals.port import Series

pytestmark = pytest.mark.slow

BEGAN = 1_700_000_000.0  # 2023-11-14, 22:13:20 UTC
LEVELS = {criterion.signal: levels_of(criterion) for criterion in DEFAULT_CRITERIA}
PHASES = ((Phase.HEALTHY, BEGAN - 500.0), (Phase.ROLLING_BACK, BEGAN + 300.0), (Phase.HELD, BEGAN + 330.0))


def line(pod: str, *values: float) -> Series:
    return Series({"pod": pod}, tuple((BEGAN + 60.0 * index, value) for index, value in enumerate(values)))


def picture(*series: Series, moments: tuple[tuple[str, float], ...] = ()) -> Picture:
    panels = (
        Panel("overflow", "share", series, LEVELS[Signal.OVERFLOW]),
        Panel("speed", "multiple", series, LEVELS[Signal.SPEED], lower_is_worse=True, left_out=3),
    )
    return Picture("Incident fleet-5", panels, PHASES, moments)


def test_axes_have_units_and_the_time_has_its_day_year_and_zone() -> None:
    axes = compose(picture(line("a", *[0.1] * 10))).axes
    assert [one.get_ylabel() for one in axes] == ["share, %", "multiple of FP32"]
    assert axes[-1].get_xlabel() == "UTC, 2023-11-14"
    over_night = line("a", *[0.1] * 200)
    assert compose(picture(over_night)).axes[-1].get_xlabel() == "UTC, 2023-11-14 to 2023-11-15"


def test_each_threshold_is_named_at_its_own_line() -> None:
    for axes, wanted in zip(
        compose(picture(line("a", 0.1, 0.9))).axes,
        (
            {
                "breach above 30 %": 0.3,
                "recovered below 20 %": 0.2,
                "promoted below 5 %": 0.05,
                "warned above 10 %": 0.1,
            },
            {"breach below 0.8 ×": 0.8, "recovered above 0.9 ×": 0.9},
        ),
        strict=True,
    ):
        assert {text.get_text(): text.xy[1] for text in axes.texts if isinstance(text, Annotation)} == wanted


@pytest.mark.parametrize("signal", [Signal.OVERFLOW, Signal.DIVERGENCE])
@pytest.mark.parametrize("peak", [0.01, 0.8, 3.0, 14.0, 1e4, 1e13])
def test_names_of_thresholds_and_ticks_lie_on_no_line_and_on_no_other(signal: Signal, peak: float) -> None:
    series = [line("a", 0.01, -0.02, 0.1, peak)]
    figure = compose(Picture("", [Panel("", "share", series, LEVELS[signal])] * 3, PHASES, [("detected", BEGAN)]))
    figure.canvas.draw()
    for axes in figure.axes:
        names = [text for text in axes.texts if text.get_text().endswith("%")]
        boxes = [Text.get_window_extent(text) for text in names]  # without its line
        assert len(boxes) == 4
        assert all(axes.bbox.x1 < box.x0 and box.x1 <= figure.bbox.x1 for box in boxes), "beside curves and lines"
        assert all(axes.bbox.y0 < box.y1 and box.y0 < axes.bbox.y1 for box in boxes)
        ticks = [text.get_window_extent() for text in axes.get_yticklabels() if text.get_text()]
        shown = [box for box in ticks if axes.bbox.y0 <= (box.y0 + box.y1) / 2 <= axes.bbox.y1]
        for group in (boxes, shown):
            assert not any(one.overlaps(other) for i, one in enumerate(group) for other in group[:i])


def test_a_level_is_told_from_zero_once_values_go_far_beyond_it() -> None:
    (axes,) = compose(Picture("", [Panel("", "share", [line("a", 0.0, 3.0)], LEVELS[Signal.DIVERGENCE])])).axes
    (zero, _), (lowest, _) = axes.transData.transform([(0.0, 0.0), (0.0, 0.05)])[:, ::-1]
    assert lowest - zero > 0.05 * axes.bbox.height


def test_one_legend_names_series_and_the_phases_that_are_seen() -> None:
    figure = compose(picture(line("a", *[0.1] * 10), line("b", *[0.9] * 10)))
    assert [axes.get_legend() for axes in figure.axes] == [None, None]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        *("b", "a", "0 of 3 others", "phase Healthy", "phase RollingBack", "phase Held"),
    ]
    shaded = [axes.patches for axes in figure.axes]
    white = (1.0, 1.0, 1.0, 1.0)
    assert all(patch.get_facecolor() != white for patches in shaded for patch in patches), "white is no known phase"
    assert [[patch.get_hatch() or "" for patch in patches] for patches in shaded] == [["", "\\\\\\\\", "////"]] * 2


def test_many_series_are_bounded_and_the_worst_are_named() -> None:
    many = [line(f"pod-{index:03}", 0.0, index / 200) for index in range(120)]
    figure = compose(picture(*many))
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len([text for text in texts if text.startswith("pod-")]) == len(COLOURS)
    assert "pod-119" in texts
    assert "40 of 116 others" in texts
    assert all(len(axes.lines) < 60 for axes in figure.axes)


def test_names_of_moments_lie_over_no_other() -> None:
    moments = tuple((f"P1 Fleet Reason{index}", BEGAN + 20.0 * index) for index in range(30))
    figure = compose(picture(line("a", *[0.1] * 11), moments=moments))
    figure.canvas.draw()
    boxes = [t.get_window_extent() for t in figure.axes[0].texts if "Reason" in t.get_text()]
    assert len(boxes) >= 9
    assert not any(one.overlaps(other) for i, one in enumerate(boxes) for other in boxes[:i])
    assert "without a name" in figure.legends[0].get_texts()[-1].get_text()
    assert all(box.x1 <= figure.bbox.x1 for box in boxes)


def test_a_person_s_dark_style_and_a_tenant_s_names_change_nothing(tmp_path: Path) -> None:
    hostile = Series({"$x^{": "\u202e_<b>\\frac{" + "y" * 300}, ((BEGAN, 0.5), (BEGAN + 60.0, math.inf)))
    wanted = tmp_path / "wanted.png"
    draw(wanted, picture(hostile, line("$a_{", 0.1, 1e30)))
    with matplotlib.rc_context({"figure.facecolor": "black", "text.color": "white", "savefig.transparent": True}):
        draw(tmp_path / "dark.png", picture(hostile, line("$a_{", 0.1, 1e30)))
    assert (tmp_path / "dark.png").read_bytes() == wanted.read_bytes()


def test_missing_data_is_a_gap_and_none_at_all_is_said() -> None:
    points = tuple((60.0 * at, 0.1) for at in (0, 1, 2, 9, 10))
    assert [math.isnan(value) for _, value in with_gaps(points)] == [False, False, False, True, False, False]
    axes = compose(picture(Series({"pod": "a"}, ((BEGAN, math.nan),)))).axes[0]
    assert any("not known" in text.get_text() for text in axes.texts)


def test_a_breach_of_one_reading_is_kept_where_readings_are_thinned() -> None:
    kept = Thinned(DEFAULT_CRITERIA, every=10)
    for index in range(100):
        values = {Signal.OVERFLOW: 0.9 if index == 57 else 0.01, Signal.SPEED: 0.5 if index == 23 else 1.4}
        at = BEGAN + 15.0 * index
        pods = {"a": PodSignals(Mode.FP16, 3, at, 500.0, values)}
        kept.take(Evaluation(at=at, continuous_since=0.0, pods=pods))
    (overflow,), (speed,) = kept.series()[Signal.OVERFLOW], kept.series()[Signal.SPEED]
    assert len(overflow.points) == len(speed.points) == 10
    assert max(overflow.points, key=lambda point: point[1]) == (BEGAN + 15.0 * 57, 0.9)
    assert min(speed.points, key=lambda point: point[1]) == (BEGAN + 15.0 * 23, 0.5)


def test_long_names_are_cut_in_the_middle_and_stay_apart() -> None:
    names = [f"{'w' * 30}-{index}-{'x' * 30}" for index in range(3)]
    short = shortened(names)
    assert len(set(short)) == 3
    assert all(len(name) <= 42 for name in short)


def test_those_nearest_to_a_breach_come_first() -> None:
    one, other, silent = line("one", 0.1, 0.9), line("other", 0.2, 0.3), line("silent", math.nan)
    assert worst_first([silent, other, one], lower_is_worse=False) == [one, other, silent]
    assert worst_first([silent, other, one], lower_is_worse=True) == [one, other, silent]


@pytest.mark.parametrize("name", ["plot.xyz", "plot", "not-there/plot.png"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"ending in \.png"):
        check(tmp_path / name)
