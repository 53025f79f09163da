"""The first step in a mode, carried out on one rank: forward, backward, and the way back (see preflight.py)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from ..distributed import ddp
from ..values.modes import PrecisionMode
from .mode_control import ModeControl
from .preflight import Failure, LastEntered, Pass, Trial, guarded

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Forward = Callable[[], torch.Tensor]
Backward = Callable[[torch.Tensor], torch.Tensor]


class FirstStep:
    """Computes its micro-batches without DDP's reduction, and one that fails once more, then in the mode before.

    A batch that fails there too, with the same error, is to blame itself: the loop that catches it goes on, and the mode is
    tried again. Micro-batches that were computed in a mode that failed later in the step are left out of its gradients.

    A loop may also leave a batch out on one rank alone, after an error or a loss that is not finite. Then the ranks that
    meet are not in the same pass: they finish the step without another meeting, and try the mode again in the next one.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        modes: ModeControl,
        optimizer: torch.optim.Optimizer,
        device: torch.device,
        *,
        wrapped: DistributedDataParallel | None = None,
        micro_batches: int = 1,
        whole: bool = True,
    ) -> None:
        """For ``model``, a step of which has ``micro_batches``; ``wrapped`` in DDP, the ranks decide it with each other."""
        self.whole = whole
        """Backward passes are computed here too; else DDP computes them, and a mode is proven without. DDP takes its first
        one over a static graph for the one that all others are like: that cannot be a trial."""
        self._model, self._modes, self._device, self._wrapped = model, modes, device, wrapped
        self._optimizer = optimizer
        self._together = wrapped is not None
        self._micro_batches = micro_batches
        self._compute: Forward | None = None
        self._apart = -1
        """The step that the ranks finish without another meeting; gradients are reduced after it, as after a trial."""
        self._left_out = 0
        """Micro-batches of this step whose gradients were dropped."""
        self._synced = -1
        """The step before which DDP's buffers were broadcast here."""

    @property
    def pending(self) -> bool:
        """Its forward pass was computed here, its backward pass was not, and is to be computed here too."""
        return self._compute is not None

    def due(self, step: int) -> bool:
        """Whether the next micro-batch of ``step`` is to be computed here."""
        return self._modes.trial is not None or self._apart == step

    def forget(self, micro: int) -> None:
        """The next micro-batch, number ``micro``, is computed elsewhere: what was begun here was given up."""
        self._compute = None
        if not micro:
            self._left_out = 0

    def restart(self) -> None:
        """The steps to come have numbers that others had before."""
        self._compute, self._left_out = None, 0
        self._apart = self._synced = -1

    def end(self) -> None:
        """The step's last micro-batch was computed. Gradients of which some were left out become a mean again."""
        if self._left_out:
            weight = self._micro_batches / (self._micro_batches - self._left_out)
            self._left_out = 0
            for parameter in self._parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(weight)

    def forward(self, compute: Forward, *, batch: object, step: int, micro: int) -> torch.Tensor:
        """The loss, by ``compute``: the forward pass in the mode in force, of which DDP's reducer knows nothing.

        Args:
            compute: the forward pass of the micro-batch.
            batch: what it is computed of.
            step: the step's number.
            micro: the micro-batch's number in it.
        """
        self.forget(micro)
        trial = self._modes.trial
        if trial is not None and self._apart != step:
            self._modes.begin_trial()
            if self._wrapped is not None and self.whole and self._synced != step:
                # Not in the forward pass, where ranks would wait for one that failed in it.
                self._synced = step
                ddp.sync_buffers(self._wrapped)
            trial.remember(self._model, self._device, batch)
            tried = guarded(compute, self._model, "forward", micro=micro, together=self._together)
            if tried.failed and not tried.apart:
                failure = tried.failed
                del tried  # the graph: there need not be memory for a second one
                tried = self._again(trial, compute, failure, "forward", micro)
                if tried.failed:
                    return self._failed_forward(trial, compute, tried.failed, step=step, micro=micro)
            if tried.apart:
                self._apart = step
            elif not self.whole:
                self._modes.prove()
            if tried.result is not None:
                trial.computed()
                self._compute = compute if self.whole else None
                return tried.result
            trial.restore()
        loss = compute()
        self._compute = compute if self.whole else None
        return loss

    def _failed_forward(
        self, trial: Trial, compute: Forward, failure: Failure, *, step: int, micro: int
    ) -> torch.Tensor:
        loss = self._before(trial, compute, failure, "forward", step=step, micro=micro)
        if micro and self._modes.trial is None:
            self._drop(micro)
        if loss is None:
            trial.restore()
            loss = compute()
        elif not self._together:
            return loss
        self._compute = compute if self.whole else None
        return loss

    def _before(
        self, trial: Trial, compute: Forward, failure: Failure, direction: str, *, step: int, micro: int
    ) -> torch.Tensor | None:
        """What ``compute`` comes to in a mode before; the one that was tried is refused.

        None if no other mode bears this batch either. Then the batch is to blame, unless its error is another one in a mode
        that other batches were computed in: this one may have been used up by the pass that failed.
        """
        failed = {self._modes.mode}
        unlike: str | None = None
        if self._together:
            self._apart = step
        while True:
            self._undo(trial, direction, micro)
            with self._modes.before(trial, failed) as mode:
                if mode in failed:
                    break
                found = guarded(compute, self._model, direction, micro=micro, together=self._together)
            if found.result is not None and not found.failed:
                self._modes.refuse(trial, failure.reasons, step, failed)
                return found.result
            if len(failed) == 1 and found.failed and found.failed.kinds - failure.kinds and self._modes.has_run(mode):
                unlike = f"computed again in {mode.wire}, the batch fails too, with another error: " + "; ".join(
                    found.failed.reasons
                )
            failed.add(mode)
            del found
        if unlike is not None and self._modes.mode is not PrecisionMode.FP32:  # which is where all ways lead back to
            self._modes.refuse(trial, [*failure.reasons, unlike], step, {self._modes.mode}, for_good=True)
        return None

    def _again(
        self, trial: Trial, compute: Forward, failure: Failure, direction: str, micro: int
    ) -> Pass[torch.Tensor]:
        """Once more in the mode that failed: an error may be of a moment, such as of one sample that ``compute`` draws.

        The second failure of a backward pass has its layer's name. Nothing is computed where it would change weights again.
        """
        if failure.wrote:
            return Pass(None, failure)
        self._undo(trial, direction, micro)
        entered = LastEntered(self._model) if direction == "backward" else None
        with entered or contextlib.nullcontext():
            found = guarded(compute, self._model, direction, micro=micro, together=self._together, entered=entered)
        if not found.failed:
            self._modes.tell_passed(failure.reasons)
            return found
        # Another error, such as of a batch that is used up, is not what the mode fails for.
        return Pass(None, found.failed if found.failed.kinds == failure.kinds else failure)

    def _undo(self, trial: Trial, direction: str, micro: int) -> None:
        if direction == "backward":
            self._drop(micro)
        trial.restore()

    def _drop(self, micro: int) -> None:
        """Drop the gradients of this micro-batch, and of those before it: they are scaled for a mode that failed."""
        self._left_out = micro
        for parameter in self._parameters():
            parameter.grad = None

    def _parameters(self) -> Iterator[torch.Tensor]:
        """Those whose gradients are this trainer's: others of the model may have gradients of the script's own."""
        return (parameter for group in self._optimizer.param_groups for parameter in group["params"])

    def backward(self, loss: torch.Tensor, run: Backward, *, step: int, micro: int) -> torch.Tensor:
        """Backward of the micro-batch that :meth:`forward` began, on this rank alone.

        Args:
            loss: what :meth:`forward` returned.
            run: the backward pass of a loss in the mode in force; returns the loss.
            step: the step's number.
            micro: the micro-batch's number in it.

        Returns:
            The loss whose backward pass was computed.
        """
        compute, self._compute = self._compute, None
        assert compute is not None
        trial = self._modes.trial
        if trial is None or self._apart == step:
            return run(loss)
        tried = guarded(lambda: run(loss), self._model, "backward", micro=micro, together=self._together)
        if tried.apart:
            self._apart = step
            if tried.result is not None:
                return loss
        else:
            if tried.failed:
                trial.leave_rewritten()
                tried = self._again(trial, lambda: run(compute()), tried.failed, "backward", micro)
            if not tried.failed:
                if micro + 1 == self._micro_batches:
                    self._modes.prove()
                assert tried.result is not None
                return tried.result
            before = self._before(trial, lambda: run(compute()), tried.failed, "backward", step=step, micro=micro)
            if before is not None:
                return before
        self._undo(trial, "backward", micro)
        return run(compute())
