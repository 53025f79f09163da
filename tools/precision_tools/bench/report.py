"""Rows as CSV, JSON, Markdown and a figure, each with what they were taken on."""

from __future__ import annotations

import csv
import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path

from .models import ModelRow
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
_COLOURS = {"fp32": "#0072B2", "bf16": "#009E73", "fp16": "#E69F00"}
"""Those of Okabe and Ito, which most colour-blind people tell apart."""
_MODEL_COLUMNS = tuple(item.name for item in fields(ModelRow))


def write(
    directory: Path, name: str, rows: Sequence[Row], hardware: Mapping[str, object], models: Sequence[ModelRow] = ()
) -> list[Path]:
    """Write ``name``.csv, .json, .md and .png into ``directory``, and ``name``-models.csv if there are ``models``.

    Returns:
        The paths; without the .png where matplotlib is not installed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = {ending: directory / f"{name}.{ending}" for ending in ("csv", "json", "md", "png")}
    _write_csv(paths["csv"], _COLUMNS, rows, hardware)
    if models:
        paths["models"] = directory / f"{name}-models.csv"
        _write_csv(paths["models"], _MODEL_COLUMNS, models, hardware)
    found = {
        "hardware": hardware,
        "gpu": _measured_gpus(rows, hardware),
        "rows": [_record(row, _COLUMNS) | {"losses": [round(loss, 5) for loss in row.losses]} for row in rows],
        "models": [_record(row, _MODEL_COLUMNS) for row in models],
    }
    paths["json"].write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    paths["md"].write_text(markdown(name, rows, hardware, models), encoding="utf-8")
    if importlib.util.find_spec("matplotlib") is None:
        del paths["png"]
    else:
        _plot(paths["png"], rows)
    return list(paths.values())


def _record(row: Row | ModelRow, columns: Sequence[str]) -> dict[str, object]:
    return {column: getattr(row, column) for column in columns}


def _write_csv(
    path: Path, columns: Sequence[str], rows: Sequence[Row | ModelRow], hardware: Mapping[str, object]
) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        # What a figure was taken on travels with it, also into a spreadsheet.
        file.writelines(f"# {key}: {json.dumps(value)}\n" for key, value in hardware.items())
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(_record(row, columns).values() for row in rows)


def markdown(name: str, rows: Sequence[Row], hardware: Mapping[str, object], models: Sequence[ModelRow] = ()) -> str:
    """The report for people."""
    lines = [f"# Benchmark: {name}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {_plain(value)} |" for key, value in hardware.items()]
    lines += [
        "",
        "| scenario | asked | ran | seconds | speed-up | held-out | degradation | overflows | activations | with states |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    fp32 = {row.scenario: row for row in rows if row.asked == "fp32"}
    for row in rows:
        note = "" if row.ran == row.asked else " ⚠"
        lines.append(
            f"| {row.scenario} {row.trajectories}×{row.epochs} | {row.asked} | {row.ran}{note} | {row.seconds:.2f} | "
            f"{row.speedup:.2f}× | {row.held_out_loss:.4f} | {row.degradation_percent:+.2f} % | "
            f"{row.overflow_percent:.1f} % | {row.activation_bytes / 2**20:.2f} MiB | {_against(row, fp32[row.scenario])} |"
        )
    if models:
        lines += ["", *_model_lines(models)]
    lines += ["", "| GPU | expected speed-up | expected memory saved | speed-up here |", "|---|---|---|---|"]
    measured = _measured_gpus(rows, hardware)
    lines += [f"| {gpu} | {fast} | {small} | {measured[gpu]} |" for gpu, (fast, small) in EXPECTED_GPUS.items()]
    return "\n".join(lines) + "\n"


def _against(row: Row, fp32: Row) -> str:
    """Activations and states together, which are the same in every mode, against FP32's."""
    mine, base = (one.activation_bytes + one.state_bytes for one in (row, fp32))
    return f"{100 * (mine / base - 1):+.0f} %"


def _model_lines(models: Sequence[ModelRow]) -> list[str]:
    lines = [
        "| model | asked | ran | step | speed-up over strict FP32 | of the measured peak | activations | peak memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in models:
        if row.step_seconds is None or row.speedup is None:
            lines.append(f"| {row.workload} | {row.asked} | {NOT_MEASURED}: {row.missing} | | | | | |")
            continue
        share = NOT_MEASURED if row.of_peak is None else f"{100 * row.of_peak:.0f} %"
        lines.append(
            f"| {row.workload} | {row.asked} | {row.ran} | {1e3 * row.step_seconds:.1f} ms | {row.speedup:.2f}× | {share} | "
            f"{_mebibytes(row.activation_bytes)} | {_mebibytes(row.peak_bytes)} |"
        )
    return lines


def _mebibytes(value: int | None) -> str:
    return NOT_MEASURED if value is None else f"{value / 2**20:.1f} MiB"


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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4), layout="constrained")
    times, curves, quality = figure.subplots(1, 3)
    scenarios = list(dict.fromkeys(row.scenario for row in rows))
    modes = list(dict.fromkeys(row.asked for row in rows))
    for number, mode in enumerate(modes):
        mine = [row for row in rows if row.asked == mode]
        places = [scenarios.index(row.scenario) + 0.27 * (number - (len(modes) - 1) / 2) for row in mine]
        times.bar(places, [row.seconds for row in mine], width=0.25, color=_COLOURS[mode])
        quality.bar(places, [row.degradation_percent for row in mine], width=0.25, color=_COLOURS[mode])
        longest = max(mine, key=lambda row: len(row.losses))
        ran = "" if longest.ran == mode else f", ran {longest.ran}"
        curves.plot(longest.losses, label=f"{mode} ({longest.scenario}{ran})", linewidth=1, color=_COLOURS[mode])
    for axes, title, unit in (
        (times, "training time", "seconds"),
        (curves, "loss by step", "loss"),
        (quality, "held-out loss against FP32", "%"),
    ):
        axes.set_title(title)
        axes.set_ylabel(unit)
    curves.set_xlabel("step")
    curves.legend(fontsize=8)  # names the modes' colours for all three
    for axes in (times, quality):
        axes.set_xticks(range(len(scenarios)), scenarios)
    figure.savefig(path, dpi=110)
