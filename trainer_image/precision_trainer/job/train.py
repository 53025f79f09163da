"""One training job from start to exit: what ``precision-trainer train`` is wired of. It runs in loop.py."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace

import torch

from .. import compat
from ..distributed import process_group
from ..errors import MAX_ERROR, MissingRankError, PeerLostError, ProcessGroupError
from ..models.task import Task, to_device
from ..precision.boot import Requests, Start
from ..precision.trainer import ExtendedFP16Trainer
from ..store.agree import take_lease_together
from ..store.checkpointer import Checkpointer
from ..store.checkpoints import CheckpointStore
from ..store.lease import Lease
from ..store.lease_judge import holder_name
from ..store.pod import pod_identity
from ..store.runs import Runs
from ..store.trials import GIVEN_UP, MOST_DEATHS, TrialNotes
from ..telemetry.bar import Bar, bar_for
from ..telemetry.baseline import BaselineRecorder, fingerprint
from ..telemetry.exporter import Exporter
from ..telemetry.metrics import Metrics
from ..values.config import Boot, ExtendedFP16Config, read_boot
from ..values.logs import JsonLog
from ..values.modes import HOT, PrecisionMode
from .drill import installed
from .loop import Loop
from .options import TrainOptions
from .report import Reporter
from .run_info import clipping, device_name, run_info
from .signals import StopFlag
from .tasks import build_task


def train(options: TrainOptions, log: JsonLog, stop: StopFlag) -> int:
    """Train until the last step or until asked to stop.

    Returns:
        The exit code: 0 where all steps are done, 143 where it was stopped before.

    Raises:
        TrainerError: with what to do about it; DivergedError means exit code 17, PeerLostError 75.
    """
    torch.set_num_threads(options.threads)
    metrics = Metrics()
    log.on_lost = lambda: metrics.add({"genesis_log_lines_lost": 1.0})
    with contextlib.ExitStack() as at_end:
        if log.rank == 0 and options.metrics_port >= 0:
            # Before the process group meets: Prometheus should see the counters at 0.
            exporter = Exporter(metrics, options.metrics_port)
            at_end.callback(_told, log, exporter.close)
            log.event("metrics", port=exporter.port)
        at_end.callback(_told, log, process_group.cleanup_distributed)
        try:
            rank, world_size = process_group.init_distributed(options.backend or None, options.ddp_timeout_seconds)
            lease = None
            if rank == 0 and options.checkpoint_dir:
                lease = Lease(
                    options.checkpoint_dir,
                    holder_name(),
                    log=log,
                    metrics=metrics,
                    seconds=options.checkpoint_lease_seconds,
                )
                stop.at_early_exit = lease.release
                at_end.callback(_told, log, lease.release)  # after the last write
            # Before anything is decided or loaded: the process before may take its time to end.
            take_lease_together(lease, options.ddp_timeout_seconds)
            bar = bar_for(rank, options.steps)
            if bar is not None:
                at_end.callback(_told, log, bar.close)
            session = Session(options, log, stop, metrics, rank, world_size, bar=bar, lease=lease)
            at_end.callback(_told, log, session.close)
            return session.run()
        except MissingRankError as error:
            if process_group.in_one_pod():
                raise
            raise PeerLostError(str(error)) from error
        except RuntimeError as error:
            if not process_group.lost_peer(error):
                raise
            # Known by its words only: if it was another error of the script, its traceback says so.
            traceback.print_exc()
            kind = ProcessGroupError if process_group.training_failed(error) else PeerLostError
            raise kind(
                f"rank {log.rank} lost a peer: {process_group.find_loss()} ({str(error).splitlines()[0]}); look at the "
                "other ranks' logs; the process group resumes from its last checkpoint when it is restarted"
            ) from error


def _told(log: JsonLog, close: Callable[[], None]) -> None:
    """Close, and log an error at once: of several, only the last one is heard of."""
    try:
        close()
    except Exception as error:
        log.error("close_failed", f"expected to end in order, found {type(error).__name__}: {str(error)[:MAX_ERROR]}")
        raise


class Session:
    """One process of one process group, wired and resumed: ready for :attr:`loop`."""

    def __init__(
        self,
        options: TrainOptions,
        log: JsonLog,
        stop: StopFlag,
        metrics: Metrics,
        rank: int,
        world_size: int,
        *,
        task: Task | None = None,
        bar: Bar | None = None,
        lease: Lease | None = None,
        env: Mapping[str, str] = os.environ,
    ) -> None:
        """Agree with the other ranks on the start, then build and resume.

        Args:
            options: the same on all ranks.
            log: of this rank.
            stop: says when to stop.
            metrics: of this process.
            rank: of this process.
            world_size: processes in the process group.
            task: what to train instead of what ``options.model`` names.
            bar: shows a person how far it is.
            lease: of rank 0, on the checkpoint directory; None: nobody else writes there.
            env: settings (docs/trainer.md).
        """
        self._options, self._log = options, log
        cuda = torch.cuda.is_available() and options.backend != "gloo"
        self._device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        boot = read_boot(env, has_cuda=cuda)
        settings = self._settings(boot)
        process_group.check_same(settings)

        def refused(reason: str, message: str) -> None:
            metrics.request_error(reason)
            log.warning("request_refused", message, reason=reason)

        requests = Requests(boot, refused, env)
        self._notes = None
        if rank == 0 and options.checkpoint_dir:
            # How long to train is no matter of the mode.
            of_the_mode = sorted((name, value) for name, value in settings.items() if name != "steps")
            self._notes = TrialNotes(options.checkpoint_dir, log, lease, settings=repr(of_the_mode))
            stop.at_stop = self._notes.stop
        # Rank 0 decides for the whole process group.
        decided = requests.start(log) if rank == 0 else Start(PrecisionMode.FP32, "default")
        deaths = {mode: self._notes.deaths(mode, decided.generation) for mode in HOT} if self._notes is not None else {}
        deadly = process_group.exchange({mode.wire: count for mode, count in deaths.items() if count >= MOST_DEATHS})[0]
        self._deadly = {mode for mode in HOT if mode.wire in deadly and mode is not PrecisionMode.FP32}
        given_up = rank == 0 and decided.mode in self._deadly
        wanted = replace(decided, mode=PrecisionMode.FP32, request=None) if given_up else decided
        start = Start.from_wire(process_group.exchange(wanted.to_wire() if rank == 0 else {})[0])

        if rank == 0:
            log.event("clipping", message=f"gradient clipping (--max-grad-norm): {clipping(options)}")
            fp32 = "TF32 on CUDA" if boot.scaling.allow_tf32 else "strict"
            log.event("fp32", message=f"FP32 (PRECISION_ALLOW_TF32): {fp32}")
        torch.manual_seed(options.seed)
        self._task = task or build_task(options)
        model = self._task.model.to(self._device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, fused=True)
        config = _config(boot.scaling, options, start.mode, use_ddp=torch.distributed.is_initialized())
        self.trainer = ExtendedFP16Trainer(
            model, optimizer, config, self._device, rank, world_size, log=log, allow_cpu=True
        )
        self.trainer.modes.applied = start.request
        self.trainer.modes.on_refused = refused
        self.trainer.modes.trial_watch = self._notes
        self.trainer.modes.pass_by(self._deadly)
        if given_up:
            died = deaths[decided.mode]
            why = (
                "a process before this one failed in it, with a batch that failed in another way in the mode before"
                if died >= GIVEN_UP
                else f"{died} processes in a row ended in it, in its first step or while it was compiled (memory, a kernel "
                "that faults)"
            )
            reason = (
                f"{why}; it is tried again under another request or other settings, or once trial.json is gone from the "
                "checkpoint directory"
            )
            self.trainer.modes.tell_refused(decided.mode, decided.request, reason)
        if rank == 0:
            self.trainer.request_source = requests.source(lambda: self.trainer.applied)
        drill = installed(model, log)
        samples_per_step = options.batch_size * options.accumulation * world_size

        store = CheckpointStore(options.checkpoint_dir, log, lease=lease) if options.checkpoint_dir else None
        self.checkpointer = Checkpointer(
            self.trainer,
            store,
            self._task.fingerprint,
            samples_per_step,
            log=log,
            metrics=metrics,
            healthy_after_steps=options.healthy_after,
            collective_seconds=options.ddp_timeout_seconds,
        )
        sentinel = self.trainer.sentinel
        if sentinel is not None:
            sentinel.can_rewind, sentinel.can_exit = store is not None, True
            self.checkpointer.attach("sentinel", sentinel)
        run_labels = run_info(
            options,
            self._task.name,
            model,
            world_size=world_size,
            device=self._device,
            allow_tf32=bool(config.allow_tf32),
        )
        if self.trainer.adaptive_clip is not None:
            self.checkpointer.attach("adaptive_clipping", self.trainer.adaptive_clip)
        compiled = {"compile": options.compile} if options.compile else {}
        # In FP32 it makes no difference whether BF16 would compute in FP8.
        fp32_labels = {name: label for name, label in run_labels.items() if name != "fp8"}
        baseline = BaselineRecorder(
            fingerprint(
                {**fp32_labels, **compiled, "data": self._task.fingerprint, "device_name": device_name(self._device)}
            )
        )
        self.checkpointer.attach("fp32_baseline", baseline)
        loaded_generation = self.checkpointer.resume(
            resume_from=options.resume_from, rewind_generation=start.generation if start.rewind else 0
        )
        fresh = start.generation > loaded_generation
        if start.request is not None and fresh:
            self.trainer.modes.tune(start.request)
        self.trainer.modes.settle(self.trainer.step)  # the sentinel may go on at the level of the process before
        if options.compile:
            self._prewarm(HOT if boot.low_precision_refused is None else (PrecisionMode.FP32,))
        runs = None
        if rank == 0:
            where, pod = options.checkpoint_dir or None, pod_identity(env)
            runs = Runs(where, options.segment_steps, log, pod=pod, metrics=metrics, lease=lease)
        reporter = Reporter(self.trainer, self.checkpointer, metrics, runs, samples_per_step, log, baseline, bar)
        reporter.begin(start, run_labels, fresh=fresh)
        self.loop = Loop(
            options,
            self._task,
            self.trainer,
            checkpointer=self.checkpointer,
            reporter=reporter,
            stop=stop,
            log=log,
            drill=drill,
        )
        note = compat.security_note()
        if note is not None and rank == 0:
            log.warning("torch_version", note)

    def _prewarm(self, modes: Sequence[PrecisionMode]) -> None:
        batch = to_device(self._task.batches(self.checkpointer.samples, self._options.batch_size), self._device)
        first = [mode for mode in modes if mode not in self._deadly]
        left_out = [mode.wire for mode in modes if mode in self._deadly]
        if left_out and self._notes is not None:
            self._log.warning(
                "not_compiled",
                f"{', '.join(left_out)}: {MOST_DEATHS} processes in a row ended when it was tried, so it is not compiled; a "
                "switch to it may end this one too",
            )
        first.sort(key=lambda mode: mode is not self.trainer.mode)
        seconds = self.trainer.prewarm(batch, self._task.loss, first)
        names = [mode.wire for mode in first]
        self._log.event("compiled", backend=self._options.compile, modes=names, seconds=round(seconds, 3))

    def _settings(self, boot: Boot) -> dict[str, object]:
        """What all ranks must have been started with."""
        settings: dict[str, object] = asdict(self._options)
        # Where a rank keeps files and how it serves metrics is its own affair.
        for name in ("checkpoint_dir", "resume_from", "metrics_port"):
            del settings[name]
        return settings | {"torch": torch.__version__, "device": self._device.type, "scaling": repr(boot.scaling)}

    def run(self) -> int:
        """Train; see :meth:`Loop.run`."""
        code = self.loop.run()
        if self._notes is not None:
            self._notes.end()
        return code

    def close(self) -> None:
        """Wait for the checkpoint that is being written, also after an error."""
        if self._notes is not None:
            self._notes.close()
        self.checkpointer.close()


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
        # Of a single process they say nothing: a job is the same on one rank and on many.
        find_unused_parameters=options.find_unused_parameters and use_ddp,
        static_graph=options.static_graph and use_ddp,
        broadcast_buffers=options.broadcast_buffers and use_ddp,
        compile_backend=options.compile,
        allow_tf32=bool(scaling.allow_tf32),
    )
