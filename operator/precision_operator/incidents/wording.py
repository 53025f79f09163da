"""What messages share: the admin's part of them, measured times and factors, the command and the links at the end."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, median

from precision_operator.api.messages import MessageKind
from precision_operator.api.signals import Signal
from precision_operator.core.model import Evaluation
from precision_operator.incidents.report import Message, stamp
from precision_operator.incidents.templates import render
from precision_operator.reasons import Reason
from precision_operator.reasons.steps import whole
from precision_operator.settings import IncidentSettings, MessageTemplate


@dataclass(frozen=True, slots=True)
class Wording:
    """What the admin adds to the messages."""

    settings: IncidentSettings = field(default_factory=IncidentSettings)
    templates: Mapping[str, MessageTemplate] = field(default_factory=dict)
    """The admin's own, by kind: those that were chosen."""


def message(
    kind: MessageKind, fields: Mapping[str, str], wording: Wording, *, now: float, about: MessageKind | None = None
) -> Message:
    """The message; ``about``: the kind whose runbook it leads to, if another."""
    found = {
        "kind": str(kind),
        "meaning": (about or kind).meaning,
        "dashboard": _dashboard(wording, fields),
        **links(about or kind, fields, wording),
        **fields,
    }
    subject, body = render(kind, found, wording.templates)
    return Message(str(kind), stamp(now), subject, body)


def links(kind: MessageKind, fields: Mapping[str, str], wording: Wording) -> dict[str, str]:
    """The command that a message ends with, and the address of its runbook."""
    where = {"namespace": fields["namespace"], "name": fields["policy"], "incident": fields.get("incident", "")}
    return {
        "command": f"kubectl precision {kind.command.format_map(where)}",
        "runbook": f"{wording.settings.runbook_url}#{kind.runbook}",
    }


def _dashboard(wording: Wording, fields: Mapping[str, str]) -> str:
    url = wording.settings.dashboard_url
    if not url:
        return ""
    sign = "&" if "?" in url else "?"
    return f"{url}{sign}var-namespace={fields['namespace']}&var-policy={fields['policy']}"


def steps_of(reason: str, *, namespace: str, name: str, missing: str = "") -> list[str]:
    """The next steps of a reason, with commands that can be pasted."""
    known = Reason.known(reason)

    def kubectl(*words: str) -> str:
        return " ".join(("kubectl", *words, "-n", namespace))

    def plugin(*words: str) -> str:
        return " ".join(("kubectl precision", *words, "-n", namespace))

    found = known.steps if known is not None else ()
    return [whole(step, name=name, missing=missing, kubectl=kubectl, plugin=plugin) for step in found]


def lasted(seconds: float) -> str:
    """A time that was measured."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def listed(lines: Iterable[str], *, numbered: bool = False) -> str:
    """A list as a field: it begins on a new line; empty where there is nothing in it."""
    marked = (f"{number}. {line}" if numbered else f"- {line}" for number, line in enumerate(lines, 1))
    return "".join(f"\n{line}" for line in marked)


def measured(before: Evaluation | None, after: Evaluation | None) -> dict[str, str]:
    """What the rollback did to the fleet, from the readings on both sides; what was not read is said to be unknown.

    Speed is relative to each workload's own FP32 baseline, and so is memory: a factor is the ratio of the two sides.
    """
    was, is_ = _of(before, Signal.SPEED), _of(after, Signal.SPEED)
    held, holds = _of(before, Signal.MEMORY), _fp32_memory(after)
    factors: dict[str, str] = {}
    if was and is_:
        factors |= {"throughput_factor": f"{is_ / was:.2f}", "time_factor": f"{was / is_:.2f}"}
    if held and holds:
        factors["memory_factor"] = f"{holds / held:.2f}"
    throughput = (
        f"{factors['throughput_factor']}x of before, {is_:.2f}x of the FP32 baseline" if was and is_ else _SPEED
    )
    per_sample = f"{factors['time_factor']}x of before" if was and is_ else _SPEED
    memory = f"{factors['memory_factor']}x of before" if held and holds else "unknown (no memory signal on both sides)"
    performance = [
        f"training success: {_success(after)}",
        f"loss: {_loss(after)}",
        f"throughput: {throughput}",
        f"time per sample: {per_sample}",
        f"memory: {memory}",
    ]
    return {**factors, "performance": listed(performance)}


_SPEED = "unknown (no speed signal on both sides)"


def expected(now: Evaluation | None) -> list[str]:
    """What the fallback is going to cost, by what the fleet's own FP32 baseline says of its speed and memory now."""
    speed, memory = _of(now, Signal.SPEED), _of(now, Signal.MEMORY)
    return [
        f"throughput: about {1 / speed:.2f}x of now"
        if speed
        else "throughput: unknown (no FP32 baseline of the speed)",
        f"memory: about {1 / memory:.2f}x of now" if memory else "memory: unknown (no FP32 baseline of the memory)",
    ]


def _values(evaluation: Evaluation | None, signal: Signal) -> list[float]:
    pods = evaluation.pods.values() if evaluation is not None else ()
    return [s.values[signal] for s in pods if signal in s.values and s.values[signal] == s.values[signal]]


def _of(evaluation: Evaluation | None, signal: Signal) -> float | None:
    values = _values(evaluation, signal)
    return median(values) if values else None


def _fp32_memory(evaluation: Evaluation | None) -> float | None:
    pods = evaluation.pods.values() if evaluation is not None else ()
    values = [s.fp32_memory for s in pods if s.fp32_memory is not None]
    return median(values) if values else None


def _success(evaluation: Evaluation | None) -> str:
    values = _values(evaluation, Signal.FAILURES)
    return f"{100 * (1 - fmean(values)):.1f} %" if values else "unknown (no run has ended)"


def _loss(evaluation: Evaluation | None) -> str:
    values = _values(evaluation, Signal.DIVERGENCE)
    return f"at most {100 * max(values):+.1f} % of its FP32 baseline" if values else "unknown (no FP32 baseline)"
