"""The training loop: small, because what is hard is elsewhere.

One turn: enter the boundary (agreement), report what was read, save or stop if agreed, run the micro-batches, pace.

What good steps came to is put aside and reported together, every REPORT_SECONDS: at once where a step takes longer than
that, or where there is something to say (a step that went wrong, a change, an order, a checkpoint).
"""

from __future__ import annotations

import time

from ..distributed import process_group
from ..errors import EXIT_OK, EXIT_STOPPED, DivergedError
from ..models.task import Task, to_device
from ..precision.trainer import ExtendedFP16Trainer
from ..step.steps import Boundary, StepRecord
from ..store.checkpointer import Checkpointer
from ..values.logs import JsonLog
from .drill import Drill
from .options import TrainOptions
from .report import Reporter
from .signals import StopFlag

REPORT_SECONDS = 0.1
"""How old the metrics of a step may be."""


class Loop:
    """Turn after turn, from the first step to the exit code. All ranks take the same turns."""

    def __init__(
        self,
        options: TrainOptions,
        task: Task,
        trainer: ExtendedFP16Trainer,
        *,
        checkpointer: Checkpointer,
        reporter: Reporter,
        stop: StopFlag,
        log: JsonLog,
        drill: Drill | None,
    ) -> None:
        """Train ``task`` with ``trainer``, both as they were resumed."""
        self._options, self._task, self._trainer = options, task, trainer
        self._checkpointer, self._reporter, self._stop, self._log = checkpointer, reporter, stop, log
        self._drill = drill
        # On a CPU the batch is where it belongs.
        self._moves = trainer.device.type != "cpu"
        self._waiting: list[StepRecord] = []
        self._read_at: list[float] = []
        self._durations: list[float] = []
        self._report_at = 0.0
        self._complete = False
        self._next_start = time.monotonic()

    def run(self) -> int:
        """Train until the end; a run that diverges, or that an error of training ends, is counted as ended, not well.

        Returns:
            0 where all steps are done, 143 where a stop came before.
        """
        self._stop.training_begins()
        self._next_start = time.monotonic()
        try:
            while self.turn() is not None:
                pass
        except DivergedError:
            self._reporter.failed()
            raise
        except Exception as error:
            # Of a pod that is asked to stop, an error may be of what is being taken from it.
            if not self._stop.asked:
                if process_group.training_failed(error):
                    self._reporter.crashed()
                else:  # a rank of another pod is gone: this pod may be the one that starts again
                    self._reporter.suspended()
            raise
        return EXIT_OK if self._complete else EXIT_STOPPED

    def turn(self) -> Boundary | None:
        """A boundary and the step after it.

        Returns:
            The boundary; None if training has ended there, with everything saved.
        """
        options, trainer, stop = self._options, self._trainer, self._stop
        trainer.stop_asked = stop.asked
        boundary = trainer.begin_step()
        started = time.monotonic()
        if started >= self._report_at or not self._put_aside(boundary, started):
            self._handle(boundary, started)
            started = time.monotonic()
        # Before the stop: a training that is at its end when it is stopped is finished, and its Job must not start it again.
        if options.steps and trainer.step >= options.steps:
            self._handle(trainer.drain())
            if trainer.step >= options.steps:  # not if the last steps carried a rewind
                self._end(None)
                return None
            started = time.monotonic()
        if boundary.stop:  # such a boundary is never put aside
            self._end(stop.name or "peer")
            return None
        if self._checkpoint_due():
            self.save()
            started = time.monotonic()
        self._step()
        ended = time.monotonic()
        self._durations.append(ended - started)
        if ended >= self._report_at:
            self._tell_durations()
        if options.step_interval_seconds:
            self._next_start = max(self._next_start + options.step_interval_seconds, time.monotonic())
            # The flag ends the wait early once; after that the remaining step or two run at full speed.
            stop.wait(max(0.0, self._next_start - time.monotonic()))
        return boundary

    def _step(self) -> None:
        options, trainer, task = self._options, self._trainer, self._task
        if self._drill is not None:
            self._drill.begin_step(trainer.step)
        position = self._checkpointer.samples + trainer.rank * options.batch_size
        for micro in range(options.accumulation):
            batch = task.batches(position + micro * trainer.world_size * options.batch_size, options.batch_size)
            if self._moves:
                batch = to_device(batch, trainer.device)
            trainer.backward_and_step(trainer.training_step(batch, task.loss, task.replay))

    # --- what was read --------------------------------------------------------------------------------------------------

    def _put_aside(self, boundary: Boundary, now: float) -> bool:
        """Keep what was read for the next report; False if something in it cannot wait."""
        if boundary.change is not None or boundary.stop or boundary.checkpoint or boundary.rewind:
            return False
        for record in boundary.records:
            if not self._reporter.routine(record):
                return False
        self._put(boundary, now)
        return True

    def _put(self, boundary: Boundary, now: float) -> None:
        self._waiting += boundary.records
        self._read_at += [now] * len(boundary.records)

    def _report(self, now: float) -> int:
        records, times = self._waiting, self._read_at
        self._waiting, self._read_at, self._report_at = [], [], now + REPORT_SECONDS
        self._tell_durations()
        bad = self._reporter.steps(records, times)
        self._checkpointer.observe(records)
        return bad

    def _tell_durations(self) -> None:
        durations, self._durations = self._durations, []
        self._reporter.step_seconds(durations)

    def _handle(self, boundary: Boundary, now: float | None = None) -> None:
        now = time.monotonic() if now is None else now
        self._put(boundary, now)
        bad = self._report(now)
        if boundary.change is not None:
            self._reporter.change(boundary.change)
        if boundary.rewind:
            asked = (
                boundary.change is not None and boundary.change.request is not None and boundary.change.request.rewind
            )
            if self._rewind("request" if asked else "sentinel"):
                return
        if boundary.checkpoint and not boundary.rewind:
            self._checkpointer.save(patient=True)
        if self._options.diverged_after and bad >= self._options.diverged_after:
            raise DivergedError(
                f"the loss was not finite in {bad} FP32 steps in a row up to step {boundary.step}: this is not a precision "
                "fault; look at the data and the learning rate, then resume from the last checkpoint"
            )

    def _rewind(self, reason: str) -> bool:
        # Steps of which the numbers are still on their way to the host belong to the time before.
        self._handle(self._trainer.drain())
        # The data that poisoned the weights would do it again.
        if self._checkpointer.rewind(reason, skip_data=reason == "sentinel") is None:
            return False
        self._reporter.rewound()
        return True

    def _checkpoint_due(self) -> bool:
        every, step = self._options.checkpoint_every, self._trainer.step
        return every > 0 and step % every == 0 and step > self._checkpointer.saved_step

    def save(self) -> None:
        """Begin a checkpoint of the step about to begin, unless another is being written."""
        self._report(time.monotonic())
        self._checkpointer.save()

    def _end(self, signal_name: str | None) -> None:
        trainer = self._trainer
        self._handle(trainer.drain())
        if signal_name is not None:
            self._log.event("stopping", step=trainer.step, signal=signal_name)
        self._reporter.suspended()
        self._checkpointer.finish()
        if signal_name is None:
            self._complete = True
            self._log.event(
                "complete", step=trainer.step, message="training complete", loss=self._checkpointer.progress.loss
            )
