"""Which precision a model should train in on this machine, and why: measured, on the person's own module and batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import torch
from torch import nn

from precision_trainer.errors import ConfigError
from precision_trainer.models.task import Task, to_device
from precision_trainer.step.hardware import Hardware, detect

from . import fp8, gemm
from .alignment import misalignments
from .comparison import ModeRun, compare
from .formats import FORMATS, FormatAnalysis, analyze_format
from .probe import MODES, Loss, probe
from .recommend import recommend
from .report import Report

Batch = TypeVar("Batch")


class PrecisionAnalyzer:
    """Analyzes formats, this machine, and modules."""

    def __init__(self, device: torch.device | str | None = None) -> None:
        """On ``device``; on CUDA where there is one, if None."""
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.hardware: Hardware = detect()

    def formats(self) -> tuple[FormatAnalysis, ...]:
        """Range, rounding, underflow and overflow of every format."""
        return tuple(analyze_format(item) for item in FORMATS)

    def analyze(
        self,
        model: nn.Module,
        batch: Batch,
        loss: Callable[[nn.Module, Batch], torch.Tensor],
        *,
        steps: int = 50,
        name: str | None = None,
    ) -> Report:
        """Look at a module with one batch of its data; a copy of it is trained on that batch again and again.

        Args:
            model: trained parameters FP32. It is left as it was.
            batch: handed to ``loss``.
            loss: ``(model, batch) -> 0-dim tensor``.
            steps: of training in each mode; 0: none, and then no reduced mode is recommended.
            name: for the report; the module's class, if None.

        Raises:
            ConfigError: none is trained, or not in FP32, or the FP32 loss is not finite or reaches no parameter.
        """
        subject = Task(name or type(model).__name__, model, lambda *_: batch, cast(Loss, loss), "")
        return self.analyze_task(subject, batch_size=1, steps=steps)

    def analyze_task(self, task: Task, *, batch_size: int, steps: int = 50) -> Report:
        """The same for a :class:`~precision_trainer.models.task.Task`, which brings a batch for every step."""

        def batches(step: int) -> object:
            return to_device(task.batches(step * batch_size, batch_size), self.device)

        trained = [(name, parameter) for name, parameter in task.model.named_parameters() if parameter.requires_grad]
        if not trained:
            raise ConfigError("no parameter is trained: expected one that has requires_grad; thaw a part of the model")
        for name, parameter in trained:
            if parameter.dtype is not torch.float32:
                raise ConfigError(
                    f"parameter {name} is {parameter.dtype}: expected torch.float32; call model.float() first"
                )
        seen = probe(task.model, batches(0), task.loss, self.device)
        reference = seen.modes[0]
        if not reference.finite or not seen.gradient_max > 0:
            raise ConfigError(
                f"one pass in FP32 gave the loss {reference.loss} and a largest gradient of {seen.gradient_max}: expected "
                "finite numbers and a gradient; this is no question of precision, look at the loss and the data"
            )
        products = gemm.measure(
            self.device, tf32=self.hardware.tf32, fp8=self.device.type == "cuda" and self.hardware.fp8_missing is None
        )
        emulated = gemm.emulated(products, tuple(MODES))
        emulated |= {item.mode: f"the model fails in it: {item.failed}" for item in seen.modes if item.failed}
        runs: tuple[ModeRun, ...] = ()
        if steps > 0:
            runs = compare(
                task.model,
                batches,
                task.loss,
                self.device,
                modes=[mode for mode in MODES if mode not in emulated],
                steps=steps,
                loss_scale=seen.loss_scale,
                keep_fp32={item.mode: tuple(kept.pattern for kept in item.keep_fp32) for item in seen.modes},
            )
        misaligned = misalignments(task.model, seen.modules)
        return Report(
            self.hardware,
            self.formats(),
            products,
            task.name,
            seen,
            runs,
            emulated,
            fp8.study(task.model, batches, task.loss, self.device),
            misaligned,
            recommend(self.hardware, seen, runs, misaligned),
        )
