"""What precision has brought, in a line: as the status has it, and reckoned on from when it was written."""

from collections.abc import Callable

from precision_operator.api.codec import encode
from precision_operator.api.gain import Gain, Measured
from precision_operator.cli.output import age

RECKONED_SECONDS = 600.0
"""Older figures are said to be so."""


def gain_json(gain: Gain | None, *, now: float) -> dict[str, object] | None:
    """For programs: the status' own, and the hours saved by ``now``; what is not known is absent."""
    if gain is None:
        return None
    hours = {"gpuHoursByNow": _by_now(gain, gain.gpu_hours, gain.gpu_rate, now=now)}
    hours["cpuHoursByNow"] = _by_now(gain, gain.cpu_hours, gain.cpu_rate, now=now)
    return {**encode(gain), **{name: value for name, value in hours.items() if value is not None}}


def gain_text(gain: Gain, *, now: float) -> str:
    """``1.42× speed, −38 % memory, 112 GPU-hours saved, loss +0.3 % against FP32 (9 of 9 workloads)``."""
    found = [
        (_of(gain.speed, gain, lambda value: f"{value:.2f}× speed"), "speed"),
        (_of(gain.memory, gain, lambda value: f"{_percent(value - 1.0, 0)} memory"), "memory"),
        (_hours(gain, now=now), "hours saved"),
        (_of(gain.loss, gain, lambda value: f"loss {_percent(value, 1)}"), "loss"),
    ]
    said = ", ".join(text for text, _ in found if text)
    unknown = ", ".join(name for text, name in found if not text)
    parts = [f"{said} against FP32" if said else "", f"unknown: {unknown}" if unknown else ""]
    without = gain.workloads - gain.compared
    who = f"{gain.compared} of {gain.workloads} workloads" + (
        f"; {without} without a known baseline" if without else ""
    )
    text = f"{'; '.join(filter(None, parts))} ({who})"
    late = now - gain.measured_at > RECKONED_SECONDS
    return f"{text}, measured {age(gain.measured_at, now=now)} ago" if late else text


def _hours(gain: Gain, *, now: float) -> str:
    found = [
        _saved(gain, gain.gpu_hours, _by_now(gain, gain.gpu_hours, gain.gpu_rate, now=now), "GPU-hours"),
        _saved(gain, gain.cpu_hours, _by_now(gain, gain.cpu_hours, gain.cpu_rate, now=now), "CPU pod-hours"),
    ]
    return " and ".join(filter(None, found))


def _saved(gain: Gain, figure: Measured | None, by_now: float | None, unit: str) -> str:
    if figure is None or by_now is None:
        return ""
    about = "about " if abs(by_now - figure.value) >= 1 else ""
    text = f"{about}{abs(by_now):.3g} {unit} {'saved' if by_now >= 0 else 'lost'}"
    return text + _share(figure, gain)


def _by_now(gain: Gain, figure: Measured | None, rate: float | None, *, now: float) -> float | None:
    """As if it had gone on at the rate that was measured: the status is written anew where the fleet changes."""
    if figure is None:
        return None
    return round(figure.value + (rate or 0.0) * max(0.0, now - gain.measured_at) / 3600.0, 2)


def _of(figure: Measured | None, gain: Gain, wording: Callable[[float], str]) -> str:
    return "" if figure is None else wording(figure.value) + _share(figure, gain)


def _share(figure: Measured, gain: Gain) -> str:
    return "" if figure.workloads == gain.compared else f" (of {figure.workloads})"


def _percent(share: float, digits: int) -> str:
    return f"{share * 100:+.{digits}f} %".replace("-", "−")
