"""The log lines of a change of precision (docs/contract.md): the same from a job and from a script."""

from __future__ import annotations

from ..step.steps import ModeChange
from ..values.logs import Field, JsonLog
from ..values.request import PrecisionRequest


def tell_change(log: JsonLog, change: ModeChange, *, loss_scale: float) -> None:
    """Say that the mode changed, or that a request was for the one in force; and what it asked of the loss scale.

    Args:
        log: of this rank.
        change: at a boundary.
        loss_scale: after it.
    """
    log.event(
        "precision_changed" if change.before is not change.after else "precision_confirmed",
        at=change.time,
        step=change.step,
        generation=change.generation,
        source=change.source,
        **{"from": change.before.wire, "to": change.after.wire},
    )
    if change.request is not None and change.source == "request":
        tell_tuning(log, change.request, step=change.step, loss_scale=loss_scale)


def tell_tuning(log: JsonLog, request: PrecisionRequest, *, step: int, loss_scale: float) -> None:
    """Say what a request asked of the loss scale, if anything, and whether that was done."""
    if not request.tunes:
        return
    fields: dict[str, Field] = {
        "step": step,
        "generation": request.generation,
        "loss_scale_factor": request.loss_scale_factor,
        "growth_interval": request.growth_interval,
    }
    if request.mode.uses_scaler:
        log.event("loss_scale_tuned", at=None, loss_scale=loss_scale, **fields)
    else:
        message = f"{request.mode.wire} has no loss scale: the request's factor and interval are ignored; ask for fp16"
        log.warning("loss_scale_tuning_ignored", message, **fields)
