"""What the switch, the sentinel and the metrics cost a step, next to bare PyTorch autocast and two peers.

All contenders do the same work: forward of a small MLP under BF16 autocast, backward, clip to norm 1, fused AdamW, zero. The
model is so small that what is measured is the software around it. ``*_unclipped``: the same without clipping; ours then
still looks for inf and NaN in every step, and measures norms in one of NORM_EVERY_STEPS: that cost is its alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from precision_trainer.models.task import make_task
from precision_trainer.values.modes import PrecisionMode

from .ours import Process
from .rounds import OwnTime, Step, Tick, interleave, median_interval, paired

Batch = tuple[torch.Tensor, torch.Tensor]
ROUNDS, STEPS, TURNS, LEAD, WARM_UP = 100, 100, 10, 3, 100
"""Ten turns are a round. A turn is ten steps, after three that find the caches as the others left them, which no training
does; bare PyTorch has one right beside each of a contender's. On a machine that others use, differences of turns of 100
steps, with six others between them, scatter several times as much in the same time. Thirteen is no divisor of what ours
does in one step of sixteen: all of it falls on counted steps as often as on others."""
SAMPLES, WIDTH, CLASSES = 32, 64, 10
SUFFIXES = {"": True, "_unclipped": False}
"""Of a contender's name, and whether it clips."""
_MAX_NORM = 1.0


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 2 * WIDTH),
        nn.ReLU(),
        nn.Linear(2 * WIDTH, 2 * WIDTH),
        nn.ReLU(),
        nn.Linear(2 * WIDTH, CLASSES),
    )


def _batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    return (
        torch.randn(SAMPLES, WIDTH, generator=generator),
        torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
    )


def _loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def _bare(clip: bool) -> Step:
    model, batch = _model(), _batch()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = _loss(model, batch)
        torch.autograd.backward(loss)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), _MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _fabric(clip: bool) -> Step:
    from lightning_fabric import Fabric

    # It announces the precision on every construction.
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    fabric, plain, batch = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed"), _model(), _batch()
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), fused=True))

    def step() -> None:
        fabric.backward(_loss(model, batch))
        if clip:
            fabric.clip_gradients(model, optimizer, max_norm=_MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _accelerate(clip: bool) -> Step:
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator, plain, batch = Accelerator(mixed_precision="bf16", cpu=True), _model(), _batch()
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), fused=True))

    def step() -> None:
        accelerator.backward(_loss(model, batch))
        if clip:
            accelerator.clip_grad_norm_(model.parameters(), _MAX_NORM)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _ours(clip: bool, directory: Path, cleanup: ExitStack) -> Step:
    directory.mkdir()
    batch = _batch()
    task = make_task("overhead", _model(), lambda position, size: batch, _loss, "one batch", replay=_loss)
    process = Process(
        task,
        PrecisionMode.MIXED_BF16,
        directory=directory,
        batch_size=SAMPLES,
        max_grad_norm=_MAX_NORM if clip else 0.0,
    )
    cleanup.callback(process.close)
    process.request(PrecisionMode.MIXED_BF16)  # the file is there and polled, as in a pod
    return process.step


def measure(directory: Path, tick: Tick, *, rounds: int = ROUNDS, steps: int = STEPS) -> dict[str, object]:
    """Run all contenders.

    Args:
        directory: empty, for request files.
        tick: called after every round.
        rounds: turns of all contenders, at least 6.
        steps: training steps a round, a multiple of TURNS, or fewer.

    Returns:
        ``ours``, ``ours_upper``, ``fabric``, ``accelerate`` (and the same, unclipped): microseconds a step over bare, the
        median of the paired differences and the upper bound of its interval; ``unclipped``: ``ours``, ``ours_upper`` and
        ``fabric`` without clipping, once more; ``cpu_time``: the same in CPU time of the
        thread, for a machine that others use; and the raw rounds.
    """
    with ExitStack() as cleanup:
        makes: dict[str, Callable[[bool], Step]] = {
            "ours": lambda clip: _ours(clip, directory / f"ours-{clip}", cleanup),
            "fabric": _fabric,
            "accelerate": _accelerate,
        }
        contenders: dict[str, Step] = {}
        for suffix, clip in SUFFIXES.items():
            bare = _bare(clip)
            for name, make in makes.items():
                contenders |= {name + suffix: make(clip), _bare_beside(name + suffix): bare}
        named = [name + suffix for suffix in SUFFIXES for name in makes]
        timed = interleave(
            contenders,
            rounds=rounds,
            steps=steps,
            warm_up=WARM_UP,
            tick=tick,
            groups=[(name, _bare_beside(name)) for name in named],
            turns=min(TURNS, steps),
            lead=LEAD,
            clocks={name: OwnTime() for name in named if name.startswith("ours")},
        )
    compared = _compare(timed.wall, named)
    return {
        **compared,
        "bare_step_us": round(1e6 * median_interval(timed.wall[_bare_beside("ours")]).median, 1),
        "unclipped": {name: compared[f"{name}_unclipped"] for name in ("ours", "fabric")}
        | {"ours_upper": compared["ours_unclipped_upper"]},
        "cpu_time": _compare(timed.cpu, named),
        "steps_a_round": steps,
        "rounds_us": _microseconds(timed.wall),
        "rounds_cpu_us": _microseconds(timed.cpu),
    }


def _bare_beside(name: str) -> str:
    return name.replace("ours", "bare") if name.startswith("ours") else f"bare_beside_{name}"


def _compare(seconds: Mapping[str, Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    result: dict[str, float] = {}
    for name in names:
        interval = median_interval(paired(seconds, name, _bare_beside(name)))
        result[name] = round(1e6 * interval.median, 1)
        result[f"{name}_upper"] = round(1e6 * interval.upper, 1)
    return result


def _microseconds(seconds: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    return {name: [round(1e6 * value, 1) for value in values] for name, values in seconds.items()}
