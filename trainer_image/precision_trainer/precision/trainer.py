"""One training step in any precision, and the switch between precisions at a step boundary.

A *step* is one optimizer update: ``gradient_accumulation_steps`` micro-batches. Everything that changes how training goes on
(precision, stop, checkpoint) happens in :meth:`ExtendedFP16Trainer.begin_step`, between two steps, on all ranks alike.

    boundary t: rank 0 reads a request, writes it into its message -> step t carries it in the gradient bucket
    boundary t + delay: every rank reads the same mean of step t, and applies it (delay 1 on the CPU, 2 on CUDA)

Non-finite gradients never reach the weights, in any mode: in FP16 by the scaler's found_inf, in FP32 and BF16 by the
finiteness of the gradient norm, both handed to the optimizer as a device tensor. With a fused optimizer nothing waits
for the device; any other optimizer costs one wait a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from .. import compat
from ..checkpoint.tensors import nonfinite_buffers, other_types
from ..distributed import ddp, process_group
from ..distributed.channel import Channel
from ..errors import ConfigError
from ..sentinel.islands import pin_by_name
from ..sentinel.shell import Sentinel
from ..step.autocast import Autocast
from ..step.backward import run_backward
from ..step.clipping import AdaptiveClip
from ..step.cold import ColdWeights
from ..step.replay import Replay
from ..step.scaler import LossScaler
from ..step.stats import TrainingStats
from ..step.steps import Boundary, ModeChange
from ..step.update import NORM_EVERY_STEPS, GradientUpdate
from ..values.config import ExtendedFP16Config
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.request import PrecisionRequest
from . import compiled, preflight, single_file
from .boundary import Boundaries
from .first_step import FirstStep
from .mode_control import ModeControl
from .setup import check_parameters, check_ranks, on_hardware, set_tf32, start_mode, tf32_in_force, untried

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

Batch = TypeVar("Batch")
RequestSource = Callable[[int], "PrecisionRequest | None"]
"""Called on rank 0 at a boundary with the last applied generation; returns the waiting request."""


class ExtendedFP16Trainer:
    """Trains an FP32 model in FP32, mixed FP16 or mixed BF16; see the module's text."""

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        config: ExtendedFP16Config | None = None,
        device: torch.device | str | None = None,
        rank: int = 0,
        world_size: int = 1,
        *,
        log: JsonLog | None = None,
        allow_cpu: bool | None = None,
    ) -> None:
        """Take a model and an optimizer over its parameters.

        Args:
            model: parameters FP32, but for frozen ones, and already on ``device``; not wrapped.
            optimizer: any that needs no closure; a fused one (``AdamW(..., fused=True)``) makes steps free of host waits.
            config: defaults if None.
            device: where the model is; the device of its first parameter if None.
            rank: of this process.
            world_size: processes in the process group; above 1 needs ``config.use_ddp`` and init_distributed().
            log: where a fallback is reported.
            allow_cpu: FP16/BF16 on a CPU; from PRECISION_ALLOW_CPU if None. Without it a CPU trains in FP32, and says so.

        Raises:
            ConfigError: trained parameters are not FP32 or are sharded, an optimizer needs a closure, the model is wrapped
                in DDP already, the process group has another rank or size, a cold mode has a used optimizer or DDP.
            RankMismatchError: the ranks start in different modes.
        """
        self.config = config or ExtendedFP16Config()
        self.model, self.optimizer = model, optimizer
        self.rank, self.world_size = rank, world_size
        first = check_parameters(model, optimizer)
        self.nonfinite_buffers = nonfinite_buffers(model)
        """Names of buffers and frozen parameters that held inf or NaN from the start, such as a mask: no poison."""
        self.other_types = other_types(model)
        """Names of what is not FP32 by the model's author: frozen weights, buffers."""
        self.device = torch.device(device) if device is not None else first.device
        log = log or JsonLog(rank, world_size)
        mode = start_mode(self.config, self.device, log, allow_cpu)
        check_ranks(model, use_ddp=self.config.use_ddp, rank=rank, world_size=world_size)
        set_tf32(self.device, allowed=self.config.allow_tf32)
        if self.config.compile_backend:
            compiled.compile_in_place(model, self.config.compile_backend)
        self.cold = None if mode.hot else ColdWeights(model, optimizer, mode)
        self.scaler = LossScaler(self.config, self.device)
        self.log = log
        pin_by_name(model, self.config.fp32_modules, self.device)
        self.step = 0
        """Number of the step about to begin."""
        self.sentinel: Sentinel | None = None
        if self.config.sentinel.enabled and self.cold is None:
            self.sentinel = Sentinel(
                on_hardware(self.config.sentinel, self.device),
                model,
                optimizer,
                self.scaler,
                device=self.device,
                rank=rank,
                log=log,
                order=lambda: f"{self.requested_mode.wire}@{self.generation}",
                buffers={name for name, _ in model.named_buffers()} - self.nonfinite_buffers,
            )
        self.request_source: RequestSource | None = None
        self.stop_asked = False

        self.modes = ModeControl(
            mode,
            scaler=self.scaler,
            sentinel=self.sentinel,
            log=log,
            rank=rank,
            proven=untried(self.config, mode, cold=self.cold is not None),
        )
        self._channel = Channel(rank, world_size, self.device, log)
        alone = not self.config.use_ddp and self.device.type == "cpu"
        self._boundaries = Boundaries(
            model, self._channel, self.modes, sentinel=self.sentinel, log=log, rank=rank, alone=alone
        )
        self._ddp: DistributedDataParallel | None = None
        if self.config.use_ddp:
            # The first step in a mode is proven together (preflight.py): ranks that start in different ones would not meet.
            process_group.check_same({"precision_mode": mode.wire})
            self._ddp = ddp.wrap(model, self._channel, self.device, self.config)
        self._own_step = ddp.OwnStep(self._ddp)
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        self._autocast = Autocast(self.device, log)
        self._micro_step = 0
        self._begun = False
        self._loss_sum: torch.Tensor | None = None
        self._pending: PrecisionRequest | None = None
        self.adaptive_clip = AdaptiveClip(self.device) if self.config.adaptive_clipping else None
        self._gradient_update = GradientUpdate(
            optimizer, self.config.max_grad_norm, self.adaptive_clip, device=self.device, order=model.parameters()
        )
        # Where a record is read before the next backward pass, a bad step can still be measured then.
        self._norm_every = NORM_EVERY_STEPS if self._channel.delay == 1 else 1
        self._replay: Replay | None = None
        self._first = FirstStep(
            model,
            self.modes,
            optimizer,
            self.device,
            wrapped=self._ddp,
            micro_batches=self.config.gradient_accumulation_steps,
            whole=not self.config.static_graph,
        )
        self._probing = False

    @property
    def module(self) -> torch.nn.Module:
        """What to call for a forward pass: the model, under DDP where it is on."""
        return self._ddp if self._ddp is not None else self.model

    # --- the mode -----------------------------------------------------------------------------------------------------

    @property
    def mode(self) -> PrecisionMode:
        """In force: the one requested, or a safer one."""
        return self.modes.mode

    @property
    def requested_mode(self) -> PrecisionMode:
        """As asked for."""
        return self.modes.requested

    @property
    def applied(self) -> PrecisionRequest | None:
        """The last request applied; None before any."""
        return self.modes.applied

    @property
    def generation(self) -> int:
        """Generation of the last applied request; 0 before any."""
        return self.modes.generation

    def apply(self, request: PrecisionRequest) -> ModeChange:
        """Change the mode here and now, on this rank. Only at a boundary, and only with something all ranks agreed on."""
        return self.modes.apply(request, self.step)

    # --- the boundary -------------------------------------------------------------------------------------------------

    def begin_step(self) -> Boundary:
        """Enter the boundary before a step: read what the process group agreed on, apply it, then take a new request in.

        Calling it again before the step ran is harmless (the loop calls it to see the result, training_step makes sure).

        Raises:
            RankMismatchError: the ranks fell apart.
            DivergedError: the sentinel has nothing left to do, and was to end training then (``sentinel.can_exit``).
            ConfigError: requests for a cold mode.
            RuntimeError: called inside an accumulation window.
        """
        if self._micro_step:
            raise RuntimeError(
                "begin_step() inside an accumulation window; call it only when no micro-batch is pending"
            )
        if self._begun:
            return Boundary(self.step, (), None, checkpoint=False, stop=False)
        if self.modes.watched:
            self.modes.end_trial()
        boundary = self._boundaries.read(self.step, keep=self._channel.delay - 1)
        self._begun = True
        if self.rank == 0 and self.request_source is not None:
            if self.cold is not None:
                raise ConfigError(
                    f"{self.mode.name} is a cold mode: no request can change it; save a checkpoint and start in a hot one"
                )
            self._pending = self.request_source(self.modes.newest)
        return boundary

    def drain(self) -> Boundary:
        """Wait for all steps tried so far and read them: before a checkpoint or the end. All ranks must call it."""
        return self._boundaries.read(self.step, keep=0)

    def rewound(self) -> None:
        """The weights are other ones now (store/checkpointer.py)."""
        self._first.restart()
        self._boundaries.rewound()

    def prewarm(
        self, batch: Batch, loss_fn: Callable[[torch.nn.Module, Batch], torch.Tensor], modes: Iterable[PrecisionMode]
    ) -> float:
        """Compile what training in each of ``modes`` needs, before the first step: then no switch compiles anything.

        Returns:
            Seconds; see compiled.prewarm.
        """
        with self.modes.compiling() as begins:
            return compiled.prewarm(
                self.module, lambda model: loss_fn(model, batch), modes, device=self.device, log=self.log, begins=begins
            )

    # --- the step -----------------------------------------------------------------------------------------------------

    def training_step(
        self,
        batch: Batch,
        loss_fn: Callable[[torch.nn.Module, Batch], torch.Tensor],
        replay_fn: Callable[[torch.nn.Module, Batch], torch.Tensor] | None = None,
    ) -> torch.Tensor:
        """Forward of one micro-batch in the current mode.

        Args:
            batch: handed to ``loss_fn``.
            loss_fn: ``(model, batch) -> loss``, a 0-dim tensor, the mean over the micro-batch.
            replay_fn: the same loss as a pure function of its arguments, given the bare model: no collective, no state of
                its own, no data drawn, nothing written. With it the sentinel can compute a micro-batch once more, to tell
                bad precision from bad data; often it is ``loss_fn`` itself. None: nothing is ever computed again.

        Returns:
            The loss, for :meth:`backward_and_step`.
        """
        if not self._begun:
            self.begin_step()
        if not self._micro_step:
            # The loss of another network may have gone through this one (GAN): those gradients are not of this step.
            self._gradient_update.drop()
        last = self._micro_step + 1 == self.config.gradient_accumulation_steps
        if last and self.sentinel is not None:
            if replay_fn is not None:
                self._replay = Replay(replay_fn, batch, whole_step=self._micro_step == 0)
            if self.modes.trial is None:
                self._probing = self.sentinel.begin_probe(self.mode)
        if self._first.due(self.step):
            loss = self._first.forward(
                lambda: self._forward_alone(batch, loss_fn), batch=batch, step=self.step, micro=self._micro_step
            )
        else:
            self._first.forget(self._micro_step)
            loss = self._forward(batch, loss_fn, reduces=last)
        if not isinstance(loss, torch.Tensor):
            raise ConfigError(
                f"loss_fn returned {type(loss).__name__}: expected a 0-dim tensor; return the sum of the losses to train on"
            )
        if loss.numel() != 1:
            raise ConfigError(
                f"loss_fn returned shape {tuple(loss.shape)}: expected a 0-dim tensor; reduce it with .mean()"
            )
        return loss.reshape(()) if loss.dim() else loss

    def _forward(
        self, batch: Batch, loss_fn: Callable[[torch.nn.Module, Batch], torch.Tensor], *, reduces: bool
    ) -> torch.Tensor:
        if self._ddp is None:
            with self._autocast(self.mode):
                return loss_fn(self.module, batch)
        with self._autocast(self.mode), self._own_step:
            if reduces:
                return loss_fn(self.module, batch)
            with self._ddp.no_sync():
                return loss_fn(self._ddp, batch)

    def _forward_alone(self, batch: Batch, loss_fn: Callable[[torch.nn.Module, Batch], torch.Tensor]) -> torch.Tensor:
        """Of a micro-batch whose gradients DDP does not reduce, in whatever state its last forward pass left it."""
        if self._ddp is None or not self._first.whole:
            return self._forward(batch, loss_fn, reduces=True)
        compat.forget_forward(self._ddp)
        with ddp.alone(self._ddp):
            return self._forward(batch, loss_fn, reduces=False)

    def _backward_alone(self, loss: torch.Tensor) -> torch.Tensor:
        if self._ddp is not None:
            # A forward pass since, such as of another network's loss, has made it wait for gradients.
            compat.forget_forward(self._ddp)
        if self.modes.trial is not None and self.mode.uses_scaler:
            self._gradient_update.check_others()
        run_backward((self._part(loss),), (self.scaler.scale_value if self.mode.uses_scaler else self._one,))
        return loss

    def _accumulate(self, part: torch.Tensor, root: torch.Tensor) -> None:
        """Backward of a micro-batch that is not the last of its step."""
        if self._ddp is None:
            run_backward((part,), (root,))
            return
        # DDP reduces nothing here, unless the last forward pass had no backward pass, such as a validation with gradients.
        # Then it waits for all of its parameters, as for those of a model that is not ours.
        telemetry = self._channel.telemetry
        run_backward((part, telemetry), (root, torch.zeros_like(telemetry)))

    def _part(self, loss: torch.Tensor) -> torch.Tensor:
        """What a micro-batch adds to the step's loss, in FP32; one of 16 bits is divided in FP32, one of 64 in its own."""
        part = loss.float() if loss.dtype.itemsize < 4 else loss
        steps = self.config.gradient_accumulation_steps
        part = part / steps if steps > 1 else part
        return part if part.dtype is torch.float32 else part.float()

    def backward_and_step(self, loss: torch.Tensor) -> bool:
        """Backward of one micro-batch; after the last one of the window, the optimizer update.

        Returns:
            True if this ended a step (also if the update was skipped).
        """
        steps = self.config.gradient_accumulation_steps
        done = self._first.pending
        if done:
            loss = self._first.backward(loss, self._backward_alone, step=self.step, micro=self._micro_step)
        part = self._part(loss)
        seen = part.detach()
        # Kept once the backward pass is done: a loop may catch its error, and give the next batch in this one's place.
        total = seen if self._loss_sum is None else self._loss_sum + seen
        # Backward starts at the scale: what multiplying the loss by it comes to, bit for bit, without the multiplication.
        root = self.scaler.scale_value if self.mode.uses_scaler else self._one
        if self._micro_step + 1 < steps:
            if not done:
                self._accumulate(part, root)
            self._loss_sum = total
            self._micro_step += 1
            return False
        verdict, finding = self._boundaries.message()
        header = self._channel.header(
            request=self._pending,
            stop=self.stop_asked,
            running=self.mode,
            verdict=verdict,
            finding=finding,
        )
        if self._ddp is None:  # the message of a single process is its own mean
            if not done:
                run_backward((part,), (root,))
            self._first.end()
            mean = [total] if self._channel.quiet else [header, total]
        elif done:
            self._first.end()
            mean = [preflight.reduce(self.model, torch.cat((header, total.reshape(1))))]
            compat.forget_forward(self._ddp)  # it has noted which parameters were used, for a reduction of its own
            ddp.reduced(self._ddp)
        else:
            telemetry = self._channel.telemetry
            telemetry.grad = None
            run_backward((part, telemetry), (root, torch.cat((header, total.reshape(1)))))
            assert telemetry.grad is not None
            self._first.whole = True
            mean = [telemetry.grad]
        self._loss_sum = None
        self._update(mean)
        self._micro_step = 0
        self._begun = False
        self.step += 1
        return True

    def _update(self, message: list[torch.Tensor]) -> None:
        """Update or skip, and send off what it came to, with the ``message``. Waits for nothing (fused optimizer)."""
        if self.cold is not None:
            self.cold.gather()
        scaler = self.scaler if self.mode.uses_scaler else None
        updated = self._gradient_update(scaler, measure=self.step % self._norm_every == 0)
        if self.cold is not None:
            self.cold.publish()
        if self._probing and self.sentinel is not None:
            self._probing = False
            self.sentinel.end_probe()
        replay, self._replay = self._replay, None
        # A copy: the sentinel or a request may change the scale before the record is read.
        scale = None if scaler is None else scaler.scale_value.clone()
        self._boundaries.send(self.step, message, updated, scale, replay)

    # --- what it came to ----------------------------------------------------------------------------------------------

    def layer_norms(self) -> dict[str, float]:
        """Gradient norm by layer in the last step read that was measured (with clipping: every one), unscaled, before
        clipping; empty before one, or without a sentinel.

        Waits for the device: a tool for a person, not for every step.
        """
        return self._boundaries.layer_norms()

    def get_stats(self) -> TrainingStats:
        """Totals of this process up to the last step tried; waits for the device."""
        return self._boundaries.stats(self.scaler, allow_tf32=tf32_in_force(self.device))

    # --- one file -----------------------------------------------------------------------------------------------------

    def save_checkpoint(self, path: str | Path) -> None:
        """One file with everything this object knows, FP32 in every mode; see single_file.save."""
        single_file.save(self, Path(path))

    def load_checkpoint(self, path: str | Path) -> None:
        """The inverse, in whatever mode; see single_file.load."""
        single_file.load(self, Path(path))
        self._first.restart()
