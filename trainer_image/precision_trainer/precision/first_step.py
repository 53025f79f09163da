"""The first micro-batch in a mode, carried out on one rank: forward, backward, and the way back (see preflight.py)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .mode_control import ModeControl
from .preflight import Trial, guarded


class FirstMicroBatch:
    """Computes it without DDP's reduction, and where the mode fails, once more in the mode before."""

    def __init__(self, model: torch.nn.Module, modes: ModeControl, device: torch.device, *, together: bool) -> None:
        """For ``model``; ``together``: ranks of a process group decide it with each other."""
        self._model, self._modes, self._device, self._together = model, modes, device, together
        self._again: Callable[[], torch.Tensor] | None = None

    @property
    def pending(self) -> bool:
        """Its forward pass was computed, its backward pass was not."""
        return self._again is not None

    def forward(self, trial: Trial, compute: Callable[[bool], torch.Tensor], *, last: bool, step: int) -> torch.Tensor:
        """The loss.

        Args:
            trial: what there is to go back to.
            compute: the forward pass in the mode in force; its argument: whether its backward pass reduces over the ranks.
            last: whether the micro-batch is the last of its step.
            step: the step's number.
        """
        trial.remember(self._model, self._device)
        loss, reasons = guarded(lambda: compute(False), self._model, "forward", together=self._together)
        if loss is None or reasons:
            del loss
            return self._before(trial, reasons, lambda: compute(last), step)
        self._again = lambda: compute(last)
        return loss

    def _before(self, trial: Trial, reasons: list[str], again: Callable[[], torch.Tensor], step: int) -> torch.Tensor:
        """The loss in the mode before; the mode that was tried is refused, unless this fails alike.

        Then the batch is to blame, not the mode: the loop that catches its error goes on, and the next batch is the trial.
        """
        trial.restore()
        with self._modes.before(trial):
            loss, still = guarded(again, self._model, "forward", together=self._together)
        if loss is not None and not still:
            self._modes.refuse(trial, reasons, step)
            return loss
        del loss
        trial.restore()
        return again()

    def backward(
        self, trial: Trial, loss: torch.Tensor, run: Callable[[torch.Tensor], None], *, step: int
    ) -> torch.Tensor | None:
        """Backward of the micro-batch that :meth:`forward` began, by ``run``.

        Returns:
            None if it is done, on this rank alone; otherwise the loss of which it is still to be done.
        """
        again, self._again = self._again, None
        assert again is not None
        _, reasons = guarded(lambda: run(loss), self._model, "backward", together=self._together)
        if not reasons:
            self._modes.prove()
            return None
        for parameter in self._model.parameters():
            parameter.grad = None
        trial.restore()
        self._modes.refuse(trial, reasons, step)
        return again()
