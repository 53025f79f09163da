"""The report as one figure of six panels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING

from precision_trainer.errors import ConfigError

from .report import Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = {"fp64": "#999999", "fp32": "#0072B2", "tf32": "#56B4E9", "bf16": "#009E73", "fp16": "#E69F00",
            "fp8_e4m3": "#D55E00", "fp8_e5m2": "#CC79A7"}  # fmt: skip
"""Those of Okabe and Ito, which most colour-blind people tell apart."""
_NAME_CHARACTERS = 60
"""Of what was measured and of its hardware that the heading shows."""


def draw(report: Report, path: Path) -> None:
    """Write the figure; the ending of ``path`` (.png, .svg, .pdf) says as what.

    Raises:
        ConfigError: matplotlib is missing, or cannot write there.
    """
    figure = compose(report)
    try:
        figure.savefig(path, dpi=110)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cannot write the figure {path}: {error}; name a .png, .svg or .pdf in a writable folder"
        ) from None


def compose(report: Report) -> Figure:
    """The figure, not yet written.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise ConfigError(
            "figures are drawn by matplotlib, which is not installed: in a checkout `pip install '.[figures]'`, or leave "
            "--figure out"
        ) from None
    # The object interface, not pyplot: no display, and no global state of the person's own figures.
    figure = Figure(figsize=(18, 10), layout="constrained")
    FigureCanvasAgg(figure)
    subject, hardware = (
        shorten(name, _NAME_CHARACTERS, placeholder="…") for name in (report.subject, report.hardware.name)
    )
    figure.suptitle(
        f"Precision of {subject} on {hardware}. Recommended: {report.recommendation.mode}", parse_math=False
    )
    panels: Sequence[Axes] = figure.subplots(2, 3).flatten().tolist()
    for panel, fill in zip(panels, (_errors, _speed, _underflow, _success, _memory, _products), strict=True):
        fill(panel, report)
        panel.grid(visible=True, axis="y", alpha=0.3)
    return figure


def _bars(
    panel: Axes,
    names: Sequence[str],
    values: Sequence[float],
    labels: Sequence[str],
    colours: Sequence[str] | None = None,
) -> None:
    """Bars, each labelled with its own value; what else is to be said of one stands below it, in its name."""
    bars = panel.bar(names, values, color=colours or [_COLOURS[name] for name in names])
    panel.bar_label(bars, labels, fontsize=8)
    panel.tick_params(axis="x", labelsize=8)


def _errors(panel: Axes, report: Report) -> None:
    items = [item for item in report.formats if item.mean_error > 0]
    _bars(panel, [item.name for item in items], [item.mean_error for item in items],
          [f"{item.mean_error:.1e}" for item in items])  # fmt: skip
    panel.set(title="Rounding error where a format has full precision", ylabel="mean relative error", yscale="log")


def _speed(panel: Axes, report: Report) -> None:
    panel.set(title="Speed of a training step (median of pairs), and its median time", ylabel="multiple of FP32")
    if _nothing(panel, report.runs):
        return
    _bars(panel, [f"{run.mode}\n{run.step_seconds * 1e3:.1f} ms" for run in report.runs],
          [run.speedup for run in report.runs], [f"{run.speedup:.2f}x" for run in report.runs],
          [_COLOURS[run.mode] for run in report.runs])  # fmt: skip


def _underflow(panel: Axes, report: Report) -> None:
    items = report.formats
    _bars(panel, [f"{item.name}\nscale {item.recommended_loss_scale:g}" for item in items],
          [100 * item.underflow_rate for item in items], [f"{100 * item.underflow_rate:.0f} %" for item in items],
          [_COLOURS[item.name] for item in items])  # fmt: skip
    panel.set(title="Underflow: unscaled gradients of 1e-10 to 0.1 that become 0", ylabel="%")


def _success(panel: Axes, report: Report) -> None:
    panel.set(title="Loss while training, and updates made", xlabel="step", ylabel="loss")
    if _nothing(panel, report.runs):
        return
    for run in report.runs:
        panel.plot(run.losses, color=_COLOURS[run.mode], label=f"{run.mode}: {run.success_rate:.0%} of updates")
    panel.legend(fontsize=8)


def _memory(panel: Axes, report: Report) -> None:
    modes = report.probe.modes
    kept = [item.activation_bytes / 2**20 for item in modes]
    _bars(panel, [item.mode for item in modes], kept, [f"{value:.3g} MiB" for value in kept])
    panel.set(title="Kept for the backward pass", ylabel="MiB")


def _products(panel: Axes, report: Report) -> None:
    found = [(item.format, item.gflops, item.gflops_unaligned) for item in report.gemm]
    measured = [(name, fast, slow) for name, fast, slow in found if fast is not None and slow is not None]
    panel.set(title="Matrix products", ylabel="GFLOP/s")
    if _nothing(panel, measured):
        return
    _bars(panel, [f"{name}\nunaligned {slow:.3g}" for name, _, slow in measured], [fast for _, fast, _ in measured],
          [f"{fast:.3g}" for _, fast, _ in measured], [_COLOURS[name] for name, _, _ in measured])  # fmt: skip


def _nothing(panel: Axes, items: Sequence[object]) -> bool:
    if items:
        return False
    panel.text(0.5, 0.5, "not measured", ha="center", va="center", transform=panel.transAxes)
    return True
