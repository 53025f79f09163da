"""Host waits, the hot switch, checkpoints and the rewind, on one whole process of ours."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from precision_trainer.step.steps import Boundary
from precision_trainer.values.modes import PrecisionMode

from .ours import Process
from .rounds import Tick
from .workloads import Workload

MODES = (PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16)
FLIPS, SAVES, REWINDS = 12, 7, 5
WARM_UP = 3
_STEPS_BETWEEN = 5


class HostWaits(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's class is untyped
    """Counts the operations that make the host wait for the device (``Tensor.item()`` and what comes to it)."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        """Run the operation as it is."""
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class _Driver:
    """Turns a process over its own data."""

    def __init__(self, workload: Workload, mode: PrecisionMode, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.process = Process(workload.make(0), mode, directory=directory, batch_size=workload.batch_size)
        self.tried: list[int] = []
        """Numbers of the steps that records came for."""

    def step(self) -> Boundary:
        return self._seen(self.process.step())

    def drain(self) -> None:
        """Read the steps that are still on their way."""
        self._seen(self.process.trainer.drain())

    def _seen(self, boundary: Boundary) -> Boundary:
        self.tried += [record.step for record in boundary.records]
        return boundary


def host_waits(workload: Workload, directory: Path, *, steps: int = 20) -> dict[str, float]:
    """Waits a step, by mode; with agreement, sentinel, bookkeeping and metrics on."""
    result: dict[str, float] = {}
    for mode in MODES:
        driver = _Driver(workload, mode, directory / f"waits-{mode.wire}")
        for _ in range(3):
            driver.step()
        with HostWaits() as waits:
            for _ in range(steps):
                driver.step()
        result[mode.wire] = waits.count / steps
        driver.process.close()
    return result


def switch(workload: Workload, directory: Path, tick: Tick, *, flips: int = FLIPS) -> dict[str, object]:
    """Ask for the other modes in turn, through the request file.

    Returns:
        ``steps``: the most steps between the boundary that read the request and the first step in the new mode;
        ``seconds``: median from the file in place to the change of mode; ``steps_lost``: step numbers that no record
        accounts for, or that came twice; and each flip.
    """
    driver = _Driver(workload, PrecisionMode.FP32, directory / "switch")
    process, trainer = driver.process, driver.process.trainer
    flips_seen: list[dict[str, float | int | str]] = []
    for number in range(flips):
        mode = MODES[(number + 1) % len(MODES)]
        process.request(mode)
        asked = time.time()
        change = None
        while change is None:
            change = driver.step().change
        steps = change.step - process.read_at
        flips_seen.append({"to": mode.wire, "steps": steps, "seconds": round(change.time - asked, 5)})
        tick()
    driver.drain()
    tried = driver.tried
    lost = len(set(range(trainer.step)) ^ set(tried)) + len(tried) - len(set(tried))
    process.close()
    return {
        "steps": max(int(flip["steps"]) for flip in flips_seen),
        "seconds": round(statistics.median(float(flip["seconds"]) for flip in flips_seen), 5),
        "steps_lost": lost,
        "flips": flips_seen,
    }


def checkpoints(
    workload: Workload, directory: Path, tick: Tick, *, saves: int = SAVES, rewinds: int = REWINDS
) -> dict[str, object]:
    """Save while training goes on, then poison the weights and go back.

    Returns:
        ``checkpoint``: ``seconds`` until complete on disk, ``step_added_seconds`` that the step waited for the copy, and the
        duration of a step with and without a write beside it; ``rewind_seconds``. Medians, with the raw values.
    """
    driver = _Driver(workload, PrecisionMode.MIXED_BF16, directory / "checkpoints")
    process = driver.process
    metrics = process.metrics
    # A step takes its gradients' memory anew: the first ones are slower, and are not what a checkpoint adds.
    for _ in range(WARM_UP):
        driver.step()
    complete: list[float] = []
    added: list[float] = []
    writing: list[float] = []
    quiet: list[float] = []
    for _ in range(saves):
        for _ in range(_STEPS_BETWEEN):
            quiet.append(_timed(driver.step))
        saved = process.trainer.step
        process.loop.save()
        added.append(metrics.gauge("genesis_checkpoint_step_added_seconds") or 0.0)
        while metrics.gauge("genesis_checkpoint_step") != saved:
            writing.append(_timed(driver.step))
        complete.append(metrics.gauge("genesis_checkpoint_seconds") or 0.0)
        tick()
    while metrics.gauge("genesis_last_healthy_checkpoint_step") is None:
        driver.step()
    rewound = [_rewind(driver) for _ in range(rewinds)]
    process.close()
    return {
        "checkpoint": {
            "workload": workload.name,
            "seconds": round(statistics.median(complete), 5),
            "step_added_seconds": round(statistics.median(added), 5),
            "step_seconds": round(statistics.median(quiet), 5),
            "step_seconds_while_writing": round(statistics.median(writing), 5),
            "rounds": {"seconds": _rounded(complete), "step_added_seconds": _rounded(added)},
        },
        "rewind_seconds": round(statistics.median(rewound), 5),
        "rewind_rounds_seconds": _rounded(rewound),
    }


def _rewind(driver: _Driver) -> float:
    """Seconds from weights that are NaN to the weights of the last healthy checkpoint, in this process."""
    process = driver.process
    driver.drain()
    with torch.no_grad():
        for parameter in process.trainer.model.parameters():
            parameter.fill_(torch.nan)
    started = time.monotonic()
    if process.checkpointer.rewind("benchmark") is None:
        raise RuntimeError("there was no healthy checkpoint to go back to; see the checkpointer's log")
    seconds = time.monotonic() - started
    if not all(bool(torch.isfinite(parameter).all()) for parameter in process.trainer.model.parameters()):
        raise RuntimeError("the weights are not finite after the rewind: expected those of the checkpoint")
    driver.step()
    return seconds


def _timed(step: Callable[[], object]) -> float:
    started = time.monotonic()
    step()
    return time.monotonic() - started


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 5) for value in values]
