"""The training loop of ``precision-trainer train``: small, because what is hard is elsewhere.

One turn: enter the boundary (agreement), report what was read, save or stop if agreed, run the micro-batches, pace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace

import torch

from .. import compat
from ..errors import EXIT_OK, DivergedError, GangError
from ..gang import ddp
from ..gang.request import Inbox, PrecisionRequest, RequestFile
from ..models.task import to_device
from ..names import DEFAULT_REQUEST_FILE, REQUEST_FILE_ENV
from ..precision.config import Boot, ExtendedFP16Config, read_boot
from ..precision.modes import HOT, PrecisionMode
from ..precision.steps import Boundary
from ..precision.trainer import ExtendedFP16Trainer
from ..state.checkpoint import CheckpointStore
from ..state.keeper import Keeper
from ..state.runs import Runs
from ..telemetry.baseline import BaselineRecorder, fingerprint
from ..telemetry.exporter import Exporter
from ..telemetry.logs import JsonLog
from ..telemetry.metrics import Metrics
from . import demo_fault
from .boot import Start, decide
from .options import TrainOptions
from .report import Reporter
from .run_info import device_name, run_info
from .signals import StopFlag
from .tasks import build_task


def train(options: TrainOptions, log: JsonLog, stop: StopFlag) -> int:
    """Train until the last step or until asked to stop.

    Returns:
        The exit code, 0.

    Raises:
        TrainerError: with what to do about it; DivergedError means exit code 17.
    """
    torch.set_num_threads(options.threads)
    metrics = Metrics()
    exporter = None
    if log.rank == 0 and options.metrics_port >= 0:
        # Before the gang meets: Prometheus should see the counters at 0.
        exporter = Exporter(metrics, options.metrics_port)
        log.event("metrics", port=exporter.port)
    session = None
    try:
        rank, world_size = ddp.init_distributed(options.backend or None, options.ddp_timeout_seconds)
        session = _Session(options, log, stop, metrics, rank, world_size)
        return session.run()
    except RuntimeError as error:
        if not ddp.lost_peer(error):
            raise
        raise GangError(
            f"rank {log.rank} lost a peer ({str(error).splitlines()[0]}); look for the rank that ended first; the gang "
            "resumes from its last checkpoint when it is restarted"
        ) from error
    finally:
        if session is not None:
            session.close()
        ddp.cleanup_distributed()
        if exporter is not None:
            exporter.close()


class _Session:
    """One process of one gang, from start decision to exit."""

    def __init__(
        self, options: TrainOptions, log: JsonLog, stop: StopFlag, metrics: Metrics, rank: int, world_size: int
    ) -> None:
        self._options, self._log, self._stop = options, log, stop
        self._world_size = world_size
        cuda = torch.cuda.is_available() and options.backend != "gloo"
        self._device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        boot = read_boot(os.environ, has_cuda=cuda)
        self._check_gang(boot)

        def refused(reason: str, message: str) -> None:
            metrics.request_error(reason)
            log.warning("request_refused", message, reason=reason)

        self._inbox = Inbox(refused, boot.low_precision_refused)
        self._file = RequestFile(os.environ.get(REQUEST_FILE_ENV) or DEFAULT_REQUEST_FILE, refused)
        start = self._agree_on_start(boot, rank)

        torch.manual_seed(options.seed)
        self._task = build_task(options)
        model = self._task.model.to(self._device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, fused=True)
        config = _config(boot.scaling, options, start.mode, use_ddp=torch.distributed.is_initialized())
        self._trainer = ExtendedFP16Trainer(
            model, optimizer, config, self._device, rank, world_size, log=log, allow_cpu=True
        )
        self._trainer.applied = start.request
        if rank == 0:
            self._trainer.request_source = self._next_request
        self._fault = demo_fault.install(model, log)
        self._samples_per_step = options.batch_size * options.accumulation * world_size

        store = CheckpointStore(options.checkpoint_dir, log) if options.checkpoint_dir else None
        self._keeper = Keeper(
            self._trainer,
            store,
            self._task.fingerprint,
            self._samples_per_step,
            log=log,
            metrics=metrics,
            healthy_after_steps=options.healthy_after,
        )
        sentinel = self._trainer.sentinel
        if sentinel is not None:
            sentinel.can_rewind = store is not None
            self._keeper.attach("sentinel", sentinel)
        run_labels = run_info(
            options,
            self._task.name,
            model,
            world_size=world_size,
            device=self._device,
            allow_tf32=config.allow_tf32,
        )
        if self._trainer.adaptive_clip is not None:
            self._keeper.attach("adaptive_clipping", self._trainer.adaptive_clip)
        compiled = {"compile": options.compile} if options.compile else {}
        baseline = BaselineRecorder(
            fingerprint(
                {**run_labels, **compiled, "data": self._task.fingerprint, "device_name": device_name(self._device)}
            )
        )
        self._keeper.attach("fp32_baseline", baseline)
        loaded_generation = self._keeper.resume(
            resume_from=options.resume_from, rewind_generation=start.generation if start.rewind else 0
        )
        fresh = start.generation > loaded_generation
        if start.request is not None and fresh:
            self._trainer.tune(start.request)
        self._trainer.settle()  # the sentinel may go on at the level of the process before
        if options.compile:
            self._prewarm(HOT if boot.low_precision_refused is None else (PrecisionMode.FP32,))
        runs = Runs(options.checkpoint_dir or None, options.segment_steps, log) if rank == 0 else None
        self._reporter = Reporter(self._trainer, self._keeper, metrics, runs, self._samples_per_step, log, baseline)
        self._reporter.begin(start, run_labels, fresh=fresh)
        note = compat.security_note()
        if note is not None and rank == 0:
            log.warning("torch_version", note)

    def _prewarm(self, modes: Sequence[PrecisionMode]) -> None:
        batch = to_device(self._task.batches(self._keeper.samples, self._options.batch_size), self._device)
        first = sorted(modes, key=lambda mode: mode is not self._trainer.mode)
        seconds = self._trainer.prewarm(batch, self._task.loss, first)
        names = [mode.wire for mode in first]
        self._log.event("compiled", backend=self._options.compile, modes=names, seconds=round(seconds, 3))

    def _check_gang(self, boot: Boot) -> None:
        setting = asdict(self._options)
        # Where a rank keeps files and how it serves metrics is its own affair.
        for name in ("checkpoint_dir", "resume_from", "metrics_port"):
            del setting[name]
        setting |= {"torch": torch.__version__, "device": self._device.type, "scaling": repr(boot.scaling)}
        ddp.check_same(setting)

    def _agree_on_start(self, boot: Boot, rank: int) -> Start:
        own: dict[str, object] = {}
        if rank == 0:
            own = decide(boot, self._file.poll(), self._inbox, self._log).to_wire()
        return Start.from_wire(ddp.exchange(own)[0])

    def _next_request(self, applied_generation: int) -> PrecisionRequest | None:
        new = self._file.poll()
        if new is not None:
            self._inbox.offer(new, self._trainer.applied)
        return self._inbox.pending(applied_generation)

    def run(self) -> int:
        """Train until the end; a run that diverges is counted as ended, not well."""
        try:
            return self._loop()
        except DivergedError:
            self._reporter.failed()
            raise

    def _loop(self) -> int:
        options, trainer, stop = self._options, self._trainer, self._stop
        stop.training_begins()
        next_start = time.monotonic()
        while True:
            trainer.stop_asked = stop.asked
            boundary = trainer.begin_step()
            self._handle(boundary)
            if boundary.stop:
                return self._end(stop.name or "peer")
            if options.steps and trainer.step >= options.steps:
                self._handle(trainer.drain())
                if trainer.step >= options.steps:  # not if the last steps carried a rewind
                    return self._end(None)
            if self._checkpoint_due():
                self._keeper.save()
            started = time.monotonic()
            self._step()
            self._reporter.step_seconds(time.monotonic() - started)
            if options.step_interval_seconds:
                next_start = max(next_start + options.step_interval_seconds, time.monotonic())
                # The flag ends the wait early once; after that the remaining step or two run at full speed.
                stop.wait(max(0.0, next_start - time.monotonic()))

    def _checkpoint_due(self) -> bool:
        every, step = self._options.checkpoint_every, self._trainer.step
        return every > 0 and step % every == 0 and step > self._keeper.saved_step

    def _step(self) -> None:
        options, trainer = self._options, self._trainer
        if self._fault is not None:
            self._fault.begin_step(trainer.step)
        position = self._keeper.samples + trainer.rank * options.batch_size
        for micro in range(options.accumulation):
            batch = self._task.batches(position + micro * self._world_size * options.batch_size, options.batch_size)
            loss = trainer.training_step(to_device(batch, self._device), self._task.loss)
            trainer.backward_and_step(loss)

    def _handle(self, boundary: Boundary) -> None:
        bad = self._reporter.boundary(boundary)
        self._keeper.observe(boundary.records)
        if boundary.rewind:
            asked = (
                boundary.change is not None and boundary.change.request is not None and boundary.change.request.rewind
            )
            if self._rewind("request" if asked else "sentinel"):
                return
        if boundary.checkpoint and not boundary.rewind:
            self._keeper.save(patient=True)
        if self._options.diverged_after and bad >= self._options.diverged_after:
            raise DivergedError(
                f"the loss was not finite in {bad} FP32 steps in a row up to step {boundary.step}: this is not a precision "
                "fault; look at the data and the learning rate, then resume from the last checkpoint"
            )

    def _rewind(self, reason: str) -> bool:
        # Steps of which the numbers are still on their way to the host belong to the time before.
        self._handle(self._trainer.drain())
        if self._keeper.rewind(reason) is None:
            return False
        self._reporter.rewound()
        return True

    def _end(self, signal_name: str | None) -> int:
        trainer = self._trainer
        self._handle(trainer.drain())
        if signal_name is not None:
            self._log.event("stopping", step=trainer.step, signal=signal_name)
        self._reporter.suspended()
        self._keeper.finish()
        if signal_name is None:
            self._log.event("complete", step=trainer.step, message="training complete", loss=self._keeper.progress.loss)
        return EXIT_OK

    def close(self) -> None:
        """Wait for the checkpoint that is being written, also after an error."""
        self._keeper.close()


def _config(
    scaling: ExtendedFP16Config, options: TrainOptions, mode: PrecisionMode, *, use_ddp: bool
) -> ExtendedFP16Config:
    return replace(
        scaling,
        precision_mode=mode,
        enabled=mode is not PrecisionMode.FP32,
        gradient_accumulation_steps=options.accumulation,
        max_grad_norm=options.max_grad_norm,
        adaptive_clipping=options.adaptive_clipping,
        use_ddp=use_ddp,
        compile_backend=options.compile,
    )
