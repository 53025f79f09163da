"""The first micro-batch in a mode, carried out on one rank: forward, backward, and the way back (see preflight.py)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .mode_control import ModeControl
from .preflight import LastEntered, Trial, guarded

Forward = Callable[[], torch.Tensor]
Backward = Callable[[torch.Tensor], torch.Tensor]


class FirstMicroBatch:
    """Computes it without DDP's reduction, and where the mode fails, once more in the mode before.

    A batch that fails there too is to blame itself: the loop that catches its error goes on, and the mode is tried again.

    A loop may also leave a batch out on one rank alone, after an error or a loss that is not finite. Then the ranks that
    meet are not in the same pass: they finish the step without another meeting, and try the mode again in the next one.
    """

    def __init__(self, model: torch.nn.Module, modes: ModeControl, device: torch.device, *, together: bool) -> None:
        """For ``model``; ``together``: ranks of a process group decide it with each other."""
        self._model, self._modes, self._device, self._together = model, modes, device, together
        self._compute: Forward | None = None
        self._apart = -1
        """The step that the ranks finish without another meeting; gradients are reduced after it, as after a trial."""

    @property
    def pending(self) -> bool:
        """Its forward pass was computed, its backward pass was not."""
        return self._compute is not None

    def due(self, step: int) -> bool:
        """Whether the first micro-batch of ``step`` is to be computed here."""
        return self._modes.trial is not None or self._apart == step

    def forward(self, compute: Forward, *, step: int) -> torch.Tensor:
        """The loss, by ``compute``: the forward pass in the mode in force, of which DDP's reducer knows nothing."""
        self._compute = None
        trial = self._modes.trial
        if trial is not None and self._apart != step:
            trial.remember(self._model, self._device)
            tried = guarded(compute, self._model, "forward", together=self._together)
            if tried.apart:
                self._apart = step
            elif tried.failed:
                reasons = tried.failed
                del tried  # the graph: there need not be memory for a second one
                return self._failed_forward(trial, compute, reasons, step)
            if tried.result is not None:
                self._compute = compute
                return tried.result
            trial.restore()
        loss = compute()
        self._compute = compute
        return loss

    def _failed_forward(self, trial: Trial, compute: Forward, reasons: list[str], step: int) -> torch.Tensor:
        loss = self._before(trial, compute, reasons, "forward", step)
        if loss is not None and not self._together:
            return loss
        if loss is None:
            trial.restore()
            loss = compute()
        self._compute = compute
        return loss

    def _before(
        self, trial: Trial, compute: Forward, reasons: list[str], direction: str, step: int
    ) -> torch.Tensor | None:
        """What ``compute`` comes to in a mode before; the one that was tried is refused.

        None if no other mode bears this batch either.
        """
        failed = {self._modes.mode}
        if self._together:
            self._apart = step
        while True:
            self._undo(trial, direction)
            with self._modes.before(trial, failed) as mode:
                if mode in failed:
                    return None
                found = guarded(compute, self._model, direction, together=self._together)
            if found.result is not None and not found.failed:
                self._modes.refuse(trial, reasons, step, failed)
                return found.result
            failed.add(mode)
            del found

    def _where(self, trial: Trial, compute: Forward) -> list[str]:
        """What failed in the backward pass, with its layer: forward and backward once more; empty if nothing fails now."""
        self._undo(trial, "backward")
        with LastEntered(self._model) as entered:
            found = guarded(compute, self._model, "backward", together=self._together, entered=entered)
        return found.failed

    def _undo(self, trial: Trial, direction: str) -> None:
        if direction == "backward":
            for parameter in self._model.parameters():
                parameter.grad = None
        trial.restore()

    def backward(self, loss: torch.Tensor, run: Backward, *, step: int) -> torch.Tensor:
        """Backward of the micro-batch that :meth:`forward` began, on this rank alone.

        Args:
            loss: what :meth:`forward` returned.
            run: the backward pass of a loss in the mode in force; returns the loss.
            step: the step's number.

        Returns:
            The loss whose backward pass was computed.
        """
        compute, self._compute = self._compute, None
        assert compute is not None
        trial = self._modes.trial
        if trial is None or self._apart == step:
            return run(loss)
        tried = guarded(lambda: run(loss), self._model, "backward", together=self._together)
        if tried.apart:
            self._apart = step
            if tried.result is not None:
                return loss
        elif not tried.failed:
            self._modes.prove()
            return loss
        else:
            reasons = self._where(trial, lambda: run(compute())) or tried.failed
            again = self._before(trial, lambda: run(compute()), reasons, "backward", step)
            if again is not None:
                return again
        self._undo(trial, "backward")
        return run(compute())
