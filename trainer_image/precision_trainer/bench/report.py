"""Rows as CSV, JSON, Markdown and a figure, each with what they were taken on."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from ..errors import ConfigError
from .scenarios import Row

NOT_MEASURED = "not measured"
EXPECTED_GPUS = {
    "V100": ("2.5–3.0×", "40–45 %"),
    "A100": ("2.5–3.5×", "40–50 %"),
    "RTX 3090": ("2.0–2.5×", "40–45 %"),
    "RTX 4090": ("2.2–2.8×", "40–50 %"),
    "T4": ("1.8–2.2×", "35–40 %"),
}
"""Speed-up and saved memory that the production guide expects of FP16; it measured none of them."""
_COLUMNS = tuple(item.name for item in fields(Row) if item.name != "losses")


def write(directory: Path, name: str, rows: Sequence[Row], hardware: Mapping[str, object]) -> list[Path]:
    """Write ``name``.csv, .json, .md and .png into ``directory``; returns their paths.

    Raises:
        ConfigError: matplotlib is missing; the other three are written by then.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = {ending: directory / f"{name}.{ending}" for ending in ("csv", "json", "md", "png")}
    with open(paths["csv"], "w", encoding="utf-8", newline="") as file:
        # What a figure was taken on travels with it, also into a spreadsheet.
        file.writelines(f"# {key}: {json.dumps(value)}\n" for key, value in hardware.items())
        table = csv.writer(file)
        table.writerow(_COLUMNS)
        table.writerows([getattr(row, column) for column in _COLUMNS] for row in rows)
    records = [{**{column: getattr(row, column) for column in _COLUMNS}, "losses": list(row.losses)} for row in rows]
    text = json.dumps({"hardware": hardware, "gpu": _measured_gpus(rows, hardware), "rows": records}, indent=1)
    paths["json"].write_text(text + "\n", encoding="utf-8")
    paths["md"].write_text(markdown(name, rows, hardware), encoding="utf-8")
    _plot(paths["png"], rows)
    return list(paths.values())


def markdown(name: str, rows: Sequence[Row], hardware: Mapping[str, object]) -> str:
    """The report for people."""
    lines = [f"# Benchmark: {name}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {_plain(value)} |" for key, value in hardware.items()]
    lines += [
        "",
        "| scenario | asked | ran | seconds | speed-up | held-out loss | degradation | overflows | activations |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        note = "" if row.ran == row.asked else " ⚠"
        lines.append(
            f"| {row.scenario} {row.trajectories}×{row.epochs} | {row.asked} | {row.ran}{note} | {row.seconds:.2f} | "
            f"{row.speedup:.2f}× | {row.held_out_loss:.4f} | {row.degradation_percent:+.2f} % | "
            f"{row.overflow_percent:.1f} % | {row.activation_bytes / 2**20:.2f} MiB |"
        )
    lines += ["", "| GPU | expected speed-up | expected memory saved | speed-up here |", "|---|---|---|---|"]
    measured = _measured_gpus(rows, hardware)
    lines += [f"| {gpu} | {fast} | {small} | {measured[gpu]} |" for gpu, (fast, small) in EXPECTED_GPUS.items()]
    return "\n".join(lines) + "\n"


def _measured_gpus(rows: Sequence[Row], hardware: Mapping[str, object]) -> dict[str, str]:
    """Measured FP16 speed-ups by GPU; nothing is carried over from one kind to another."""
    here = str(hardware.get("gpu") or "")
    found = [f"{row.speedup:.2f}× ({row.scenario})" for row in rows if row.ran == "fp16" and row.device == "cuda"]
    return {gpu: ", ".join(found) if found and gpu in here else NOT_MEASURED for gpu in EXPECTED_GPUS}


def _plain(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return NOT_MEASURED if value is None else str(value)


def _plot(path: Path, rows: Sequence[Row]) -> None:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            f"no {path.name}: matplotlib is not installed; install the extra `figures`. The other files are written"
        ) from None
    figure = Figure(figsize=(12, 4), layout="constrained")
    times, curves, quality = figure.subplots(1, 3)
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    modes = list(dict.fromkeys(row.asked for row in rows))
    for number, mode in enumerate(modes):
        mine = [row for row in rows if row.asked == mode]
        places = [scenarios.index(row.scenario) + 0.27 * (number - (len(modes) - 1) / 2) for row in mine]
        times.bar(places, [row.seconds for row in mine], width=0.25, label=mode)
        quality.bar(places, [row.degradation_percent for row in mine], width=0.25, label=mode)
        longest = max(mine, key=lambda row: len(row.losses))
        curves.plot(longest.losses, label=f"{mode} ({longest.scenario})", linewidth=1)
    for axes, title, unit in (
        (times, "training time", "seconds"),
        (curves, "loss by step", "loss"),
        (quality, "held-out loss against FP32", "%"),
    ):
        axes.set_title(title)
        axes.set_ylabel(unit)
        axes.legend()
    for axes in (times, quality):
        axes.set_xticks(range(len(scenarios)), scenarios)
    figure.savefig(path, dpi=110)
