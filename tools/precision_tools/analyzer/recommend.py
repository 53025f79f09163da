"""From what was measured to what to do, each with its evidence. Nothing is recommended for what was not measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from precision_trainer.step.hardware import Hardware

from .alignment import Misalignment
from .comparison import ModeRun
from .formats import BY_NAME
from .probe import KeepFp32, ModuleProbe, Probe

MAX_LOSS_DIFFERENCE = 0.05
"""Of the loss from FP32's, relative: the contract's limit for a rollout."""
MIN_COSINE = 0.98
MIN_SPEEDUP = 1.05
"""Below, a reduced mode costs accuracy and gives nothing back."""
MIN_SUCCESS = 0.95
HEADROOM = 4.0
"""An activation nearer to FP16's largest number than this factor is kept in FP32."""
MAX_LOST = 0.5
"""Share of a module's gradients that may become 0 in FP16 at the recommended scale."""


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What to set, and why."""

    mode: str
    """``fp32``, ``bf16`` or ``fp16``, as in PRECISION_MODE."""
    loss_scale: float
    """For FP16_LOSS_SCALE; 1 in modes that need none."""
    keep_fp32: tuple[KeepFp32, ...]
    alignment: tuple[str, ...]
    evidence: tuple[str, ...]
    settings: tuple[str, ...]
    """The environment that turns it on."""


def recommend(
    hardware: Hardware, probe: Probe, runs: tuple[ModeRun, ...], misaligned: Iterable[Misalignment]
) -> Recommendation:
    """Take the first mode that the hardware is good at and nothing measured speaks against; FP32 if there is none."""
    by_mode = {run.mode: run for run in runs}
    evidence: list[str] = []
    if not hardware.preferred:
        evidence.append(f"{hardware.name} multiplies in neither BF16 nor FP16 itself: it would only emulate them")
    chosen = "fp32"
    for mode in hardware.preferred:
        against = _against(mode, probe, by_mode)
        evidence.append(f"{mode}: " + ("; ".join(against) if against else _for(mode, by_mode, probe)))
        if not against:
            chosen = mode
            break
    keep = _keep_fp32(chosen, probe)
    settings = _settings(chosen, probe.loss_scale, hardware, keep)
    scale = probe.loss_scale if chosen == "fp16" else 1.0
    return Recommendation(chosen, scale, keep, tuple(_alignment(misaligned)), tuple(evidence), settings)


def _against(mode: str, probe: Probe, runs: dict[str, ModeRun]) -> list[str]:
    found = []
    passed = probe.passed(mode)
    if passed is not None and passed.failed:
        return [f"the model fails in it: {passed.failed}"]
    if passed is None or not passed.finite:
        found.append("loss or gradients of one pass are not finite")
    elif not passed.gradient_cosine >= MIN_COSINE:
        found.append(
            f"gradients point elsewhere than in FP32 (cosine {passed.gradient_cosine:.3f}, expected {MIN_COSINE})"
        )
    run, reference = runs.get(mode), runs.get("fp32")
    if run is None or reference is None:
        found.append("not trained in this run, so its speed and loss are unknown; add --steps")
        return found
    if run.success_rate < MIN_SUCCESS:
        found.append(f"only {run.success_rate:.0%} of {run.steps} updates were made")
    if run.steps_in_mode < run.steps:
        found.append(f"the sentinel left it: {run.steps_in_mode} of {run.steps} steps were in {mode}")
    difference = abs(run.final_loss - reference.final_loss) / max(abs(reference.final_loss), 1e-12)
    if not difference <= MAX_LOSS_DIFFERENCE:
        found.append(f"after {run.steps} steps the loss differs from FP32's by {difference:.1%}")
    if run.speedup < MIN_SPEEDUP:
        found.append(
            f"a step takes {run.step_seconds * 1e3:.1f} ms, in FP32 {reference.step_seconds * 1e3:.1f} ms "
            f"({run.speedup:.2f}x)"
        )
    return found


def _for(mode: str, runs: dict[str, ModeRun], probe: Probe) -> str:
    run, reference = runs[mode], runs["fp32"]
    difference = abs(run.final_loss - reference.final_loss) / max(abs(reference.final_loss), 1e-12)
    passed = probe.passed(mode)
    kept = ", ".join(item.module for item in passed.keep_fp32) if passed is not None else ""
    return (f"with {kept} in FP32, " if kept else "") + (
        f"{run.speedup:.2f}x the speed of FP32, loss within {difference:.2%} of its after "
        f"{run.steps} steps, {run.success_rate:.0%} of updates made"
    )


def _keep_fp32(mode: str, probe: Probe) -> tuple[KeepFp32, ...]:
    passed = probe.passed(mode)
    failing = passed.keep_fp32 if passed is not None else ()
    if mode != "fp16":  # BF16 reaches as far as FP32: nothing overflows in it
        return failing
    known = {item.module for item in failing}
    return (*failing, *(item for item in _out_of_reach(probe) if item.module not in known))


def _out_of_reach(probe: Probe) -> Iterable[KeepFp32]:
    limit = BY_NAME["fp16"].max / HEADROOM
    for item in probe.modules:
        if not item.output_max < limit:
            yield KeepFp32(item.name, f"its output reaches {item.output_max:.3g} of the 65504 that FP16 can hold")
            continue
        lost = item.lost_gradients("fp16", probe.loss_scale)
        if lost is not None and lost > MAX_LOST:
            yield KeepFp32(
                item.name, f"{lost:.0%} of its gradients become 0 in FP16 even at scale {probe.loss_scale:g}"
            )


def describe(item: ModuleProbe, scale: float) -> tuple[float | None, float | None]:
    """Shares of a module's gradients that FP16 loses, unscaled and at ``scale``; None if it had no gradient."""
    return item.lost_gradients("fp16", 1.0), item.lost_gradients("fp16", scale)


def _alignment(found: Iterable[Misalignment]) -> Iterable[str]:
    for item in found:
        if item.size != item.use_16_bit:
            advice = f"{item.use_16_bit} (a multiple of 8; {item.use_8_bit} also for FP8)"
            yield f"{item.module}: {item.side} {item.size} -> {advice}"


def _settings(mode: str, scale: float, hardware: Hardware, keep: Iterable[KeepFp32]) -> tuple[str, ...]:
    if mode == "fp32":
        return ("ENABLE_FP16_TRAINING=false",)
    settings = ["ENABLE_FP16_TRAINING=true", f"PRECISION_MODE={mode}"]
    if mode == "fp16" and math.isfinite(scale):
        settings.append(f"FP16_LOSS_SCALE={scale:g}")
    if hardware.device == "cpu":
        settings.append("PRECISION_ALLOW_CPU=true")
    names = ",".join(item.pattern for item in keep if item.module)
    if names:
        settings.append(f"PRECISION_FP32_MODULES={names}")
    return tuple(settings)


GUIDELINES = {
    "formats": (
        "fp32 to debug, for small models, and as the yardstick of every other mode",
        "bf16 where the hardware has it: FP32's range, so no loss scaling; 8 bits of precision",
        "fp16 on V100 and T4, or where BF16's rounding hurts: more precision, little range, so with loss scaling",
        "fp8 for large linear layers on Hopper and Ada: E4M3 forward, E5M2 backward, a scale for each tensor",
    ),
    "optimisation": (
        "loss scaling for FP16: dynamic, x2 after 2000 good steps, x0.5 after an overflow, never below 1",
        "clip gradients after they were unscaled, to a norm of 1.0 (before, the limit would be one of scaled gradients)",
        "sides of matrix products: multiples of 8 for FP16 and BF16, of 16 for FP8; tensors contiguous",
    ),
    "hardware": (),
    "production": (
        "watch overflow rate, loss scale, gradient norm and the loss beside the FP32 baseline, for the whole run",
        "start in FP32 for a baseline, go over in steps, and keep the way back open",
        "fall back layer by layer before giving the mode up",
    ),
}
"""The four sections of the report; what stands under ``hardware`` is the table of known devices."""
