"""The analyzer's findings as JSON and as Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from precision_trainer.step.hardware import Hardware

from .alignment import Misalignment
from .comparison import ModeRun
from .formats import FormatAnalysis
from .fp8 import Fp8Error
from .gemm import Gemm
from .known import KNOWN, known
from .probe import Probe
from .recommend import GUIDELINES, Recommendation, describe


@dataclass(frozen=True, slots=True)
class Report:
    """All that was found out."""

    hardware: Hardware
    formats: tuple[FormatAnalysis, ...]
    gemm: tuple[Gemm, ...]
    subject: str
    """What was analyzed."""
    probe: Probe
    runs: tuple[ModeRun, ...]
    not_trained: dict[str, str]
    """Modes left out of the training, and why."""
    fp8: tuple[Fp8Error, ...]
    misaligned: tuple[Misalignment, ...]
    recommendation: Recommendation

    def to_wire(self) -> dict[str, object]:
        """For JSON: numbers that are not finite are null."""
        modules = []
        for item in self.probe.modules:
            lost, lost_scaled = describe(item, self.probe.loss_scale)
            modules.append(
                {
                    "name": item.name, "kind": item.kind, "output_max": item.output_max,
                    "gradient_max": item.gradient_max, "lost_in_fp16": lost, "lost_in_fp16_scaled": lost_scaled,
                }
            )  # fmt: skip
        wire = {
            "subject": self.subject,
            "hardware": asdict(self.hardware),
            "formats": [asdict(item) for item in self.formats],
            "gemm": [asdict(item) for item in self.gemm],
            "modes": [asdict(item) for item in self.probe.modes],
            "modules": modules,
            "training": [asdict(item) | {"final_loss": item.final_loss} for item in self.runs],
            "not_trained": self.not_trained,
            "fp8": [asdict(item) for item in self.fp8],
            "misaligned": [asdict(item) for item in self.misaligned],
            "recommendation": asdict(self.recommendation),
            "known_hardware": [asdict(item) for item in KNOWN],
            "guidelines": GUIDELINES,
        }
        cleaned = _finite(wire)
        assert isinstance(cleaned, dict)
        return cleaned

    def markdown(self) -> str:
        """For a person."""
        findings = (self._recommendation(), self._module(), self._training(), self._fp8())
        return "\n\n".join((*findings, self._formats(), self._hardware(), _guidelines())) + "\n"

    def _recommendation(self) -> str:
        advice = self.recommendation
        lines = [f"# Precision of {self.subject}", "", f"**Train in {advice.mode}** on {self.hardware.name}:", ""]
        lines += ["```sh", *(f"export {setting}" for setting in advice.settings), "```", "", "Because:", ""]
        lines += [f"- {line}" for line in advice.evidence]
        lines.append(f"- FP8: {self.hardware.fp8_missing or 'the hardware has it: train --fp8 current'}")
        if advice.keep_fp32:
            lines += ["", "Keep in FP32:", "", *(f"- `{item.module}`: {item.why}" for item in advice.keep_fp32)]
        if advice.alignment:
            lines += ["", "Sizes that matrix units do not fill:", "", *(f"- {line}" for line in advice.alignment)]
        return "\n".join(lines)

    def _module(self) -> str:
        rows = []
        for item in self.probe.modules:
            lost = describe(item, self.probe.loss_scale)
            rows.append(
                (
                    item.name or "(itself)",
                    item.kind,
                    _number(item.output_max),
                    _number(item.gradient_max),
                    *map(_share, lost),
                )
            )
        scale = f"{self.probe.loss_scale:g}"
        head = ("module", "kind", "largest output", "largest gradient", "lost in FP16", f"lost at scale {scale}")
        modes = _table(
            ("mode", "loss", "loss error", "gradient cosine", "gradient error", "kept for backward"),
            [
                (item.mode, _number(item.loss), _share(item.loss_error), _number(item.gradient_cosine, 6),
                 _share(item.gradient_error), f"{item.activation_bytes / 2**20:.2f} MiB")
                for item in self.probe.modes
            ],
        )  # fmt: skip
        modes += "".join(f"\n\n{item.mode}: {item.failed}." for item in self.probe.modes if item.failed)
        modes += "".join(
            f"\n\n{item.mode}, with `{kept.module}` in FP32: {kept.why}."
            for item in self.probe.modes
            for kept in item.keep_fp32
        )
        modules = _table(head, rows)
        return f"## One pass over one batch\n\nAgainst FP32:\n\n{modes}\n\nModule by module, in FP32:\n\n{modules}"

    def _training(self) -> str:
        if not self.runs:
            return "## Training\n\nNot measured: no steps were asked for."
        head = (
            "mode",
            "steps in it",
            "loss",
            "gradient norm",
            "scale",
            "updates made",
            "step (p10 to p90)",
            "speed",
            "peak memory",
        )
        rows = [_run_row(run) for run in self.runs]
        return (
            f"## Training\n\nThe same weights and batches, the modes taking turns step by step:\n\n{_table(head, rows)}"
            + "".join(f"\n\n{mode}: not trained, {why}." for mode, why in self.not_trained.items())
        )

    def _fp8(self) -> str:
        here = self.hardware.fp8_missing or "the hardware has it: train --fp8 current"
        if not self.fp8:
            return f"## FP8\n\nTraining in it: {here}. No linear layer to round."
        rows = [
            (item.recipe, _share(item.forward_median), f"{_share(item.forward_worst)} (`{item.worst_layer}`)",
             _share(item.backward_median), _share(item.backward_worst))
            for item in self.fp8
        ]  # fmt: skip
        head = ("scaling", "forward, E4M3: median", "worst layer", "backward, E5M2: median", "worst")
        return (
            f"## FP8\n\nTraining in it: {here}.\n\nErrors of the products of {self.fp8[0].layers} linear layers, rounded to "
            f"FP8 and summed in FP32:\n\n{_table(head, rows)}"
        )

    def _formats(self) -> str:
        head = ("format", "bits (exp+man)", "largest", "smallest", "range", "mean error", "p99 error",
                "outside full precision", "gradients lost", "lost up to", "scale", "overflows at", "then")  # fmt: skip
        rows = [
            (item.name, f"{8 * item.bytes_each} ({item.exponent_bits}+{item.mantissa_bits})", _number(item.max),
             _number(item.smallest_subnormal), f"{item.dynamic_range_db:.0f} dB", _number(item.mean_error),
             _number(item.p99_error), _share(item.outside_rate), _share(item.underflow_rate), _number(item.underflow_at),
             f"{item.recommended_loss_scale:g}", _number(item.overflow_at), item.overflow_becomes)
            for item in self.formats
        ]  # fmt: skip
        return f"## Formats\n\n{_table(head, rows)}"

    def _hardware(self) -> str:
        here = self.hardware
        flags = "unknown" if here.cpu_flags is None else ", ".join(here.cpu_flags) or "none of AMX, AVX-512, AVX2"
        measured = _table(
            ("format", "GFLOP/s", "at a size that is no multiple of 8"),
            [
                (item.format, _number(item.gflops), _number(item.gflops_unaligned)) if item.missing is None
                else (item.format, f"not measured: {item.missing}", "")
                for item in self.gemm
            ],
        )  # fmt: skip
        known = _table(
            ("hardware", "recommended", "why", "dense peak, TFLOP/s (data sheet, not measured)"),
            [
                (item.name, item.recommended, item.why,
                 ", ".join(f"{name} {value:g}" for name, value in item.peak_tflops.items()))
                for item in KNOWN
            ],
        )  # fmt: skip
        capability = f", CUDA capability {here.capability}" if here.capability else ""
        return (
            f"## Hardware\n\nHere: {here.name}{capability}, torch {here.torch}. CPU: {flags}. "
            f"{_known_as(here.name)}\n\n"
            f"Matrix products measured here:\n\n{measured}\n\n{known}"
        )


def _known_as(device_name: str) -> str:
    entry = known(device_name)
    return "It is not in the table below." if entry is None else f"In the table below: {entry.name}."


def _run_row(run: ModeRun) -> tuple[str, ...]:
    median, p10, p90 = (1e3 * seconds for seconds in (run.step_seconds, run.step_seconds_p10, run.step_seconds_p90))
    return (
        run.mode,
        f"{run.steps_in_mode} of {run.steps}",
        _number(run.final_loss),
        _number(run.gradient_norm),
        f"{run.final_scale:g}",
        _share(run.success_rate),
        f"{median:.1f} ms ({p10:.1f} to {p90:.1f})",
        f"{run.speedup:.2f}x",
        "not measured" if run.peak_bytes is None else f"{run.peak_bytes / 2**20:.0f} MiB",
    )


def _guidelines() -> str:
    sections = (
        f"### {name}\n\n" + "\n".join(f"- {line}" for line in lines) for name, lines in GUIDELINES.items() if lines
    )
    return "## Guidelines\n\n" + "\n\n".join(sections)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def _number(value: float | None, digits: int = 4) -> str:
    return "not measured" if value is None else f"{value:.{digits}g}"


def _share(value: float | None) -> str:
    return "none seen" if value is None else f"{100 * value:.3g} %"


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value
