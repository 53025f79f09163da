"""``python -m precision_tools.noise``: which divergence detector, by the noise of real FP32 training.

Trains the byte-level transformer in FP32 from several seeds on the same data, and takes the relative difference of two
seeds' losses, step by step: what a loss that has *not* diverged differs by. Each candidate then judges that difference
as it is (false alarms), with the margin's own 5 % added (allowed, so an alarm is false too), and with 10 % and 20 % added
(found, and after how many steps). The stretches are put together from pieces of 250 steps of the measured series, drawn at
random, so that its autocorrelation within them stays; nothing about the noise is assumed.

``--speed-seconds`` measures throughput too: steps a second, window by window, of a training that goes on so long.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise

import torch

from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from precision_trainer.precision.trainer import ExtendedFP16Trainer
from precision_trainer.sentinel.detectors import MARGIN
from precision_trainer.values.config import ExtendedFP16Config
from precision_trainer.values.logs import JsonLog
from precision_trainer.values.modes import PrecisionMode
from precision_trainer.values.sentinel import SentinelConfig

from .detectors import CANDIDATES

BLOCK = 50
"""Steps a block mean."""
_CHUNK = 5
"""Blocks that stay together when stretches are drawn."""
_CALIBRATION, _WATCHED = 16, 60
"""Blocks whose spread gives sigma (Baseline's), and blocks that a run watches."""


def losses(seed: int, steps: int, data: LibraryText, batch: int) -> list[float]:
    """Loss of every step of one FP32 training; the data are the same for all seeds."""
    step = _training(seed, data, batch)
    return [step(number) for number in range(steps)]


def speeds(seconds: float, window_seconds: float, data: LibraryText, batch: int) -> list[float]:
    """Steps a second of one FP32 training, in windows that follow one another; the first, which warms up, is left out."""
    step = _training(0, data, batch)
    found: list[float] = []
    number, end = 0, time.monotonic() + seconds + window_seconds
    while time.monotonic() < end:
        began, first = time.monotonic(), number
        while (now := time.monotonic()) - began < window_seconds:
            step(number)
            number += 1
        found.append((number - first) / (now - began))
    return found[1:]


def _training(seed: int, data: LibraryText, batch: int) -> Callable[[int], float]:
    """A training; each call makes one step, whose loss it gives."""
    torch.manual_seed(seed)
    model = ByteTransformer(TransformerConfig(width=32, layers=2, context=32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    config = ExtendedFP16Config(
        precision_mode=PrecisionMode.FP32, allow_tf32=False, sentinel=SentinelConfig(enabled=False)
    )
    trainer = ExtendedFP16Trainer(model, optimizer, config, log=JsonLog())

    def step(number: int) -> float:
        loss = trainer.training_step(data.batch(number * batch, batch), next_byte_loss)
        trainer.backward_and_step(loss)
        return float(loss.detach())

    return step


def excess(one: Sequence[float], other: Sequence[float], skip: int) -> list[float]:
    """Relative difference of two trainings' block means, their mean taken out: [(steps - skip) / BLOCK]."""
    blocks = [
        sum(one[i : i + BLOCK]) / sum(other[i : i + BLOCK]) - 1.0 for i in range(skip, len(one) - BLOCK + 1, BLOCK)
    ]
    centre = sum(blocks) / len(blocks)
    return [block - centre for block in blocks]


def step_noise(one: Sequence[float], other: Sequence[float], skip: int) -> tuple[float, float]:
    """Spread and lag-1 autocorrelation of the relative difference of single steps."""
    return spread([a / b - 1.0 for a, b in zip(one[skip:], other[skip:], strict=True)])


def spread(series: Sequence[float]) -> tuple[float, float]:
    """Standard deviation and lag-1 autocorrelation."""
    centre = sum(series) / len(series)
    series = [value - centre for value in series]
    power = sum(value * value for value in series)
    return math.sqrt(power / len(series)), sum(a * b for a, b in pairwise(series)) / power


def _draw(series: Sequence[float], length: int, dice: random.Random) -> list[float]:
    drawn: list[float] = []
    while len(drawn) < length:
        start = dice.randrange(len(series) - _CHUNK + 1)
        sign = dice.choice((-1.0, 1.0))  # which of the two seeds is the baseline is arbitrary
        drawn += [sign * value for value in series[start : start + _CHUNK]]
    return drawn[:length]


def judge(name: str, series: Sequence[Sequence[float]], drift: float, runs: int) -> tuple[float, float | None]:
    """Share of runs with an alarm, and the median delay of those in steps (None without one)."""
    dice = random.Random(1)
    delays: list[int] = []
    for _ in range(runs):
        blocks = _draw(dice.choice(series), _CALIBRATION + _WATCHED, dice)
        centre = sum(blocks[:_CALIBRATION]) / _CALIBRATION
        sigma = math.sqrt(sum((block - centre) ** 2 for block in blocks[:_CALIBRATION]) / (_CALIBRATION - 1))
        detector = CANDIDATES[name](sigma)
        for index, block in enumerate(blocks[_CALIBRATION:]):
            if detector.observe(block + drift):
                delays.append((index + 1) * BLOCK)
                break
    delays.sort()
    return len(delays) / runs, float(delays[len(delays) // 2]) if delays else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, compare, print one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m precision_tools.noise", description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="of each training (default 3000)")
    parser.add_argument("--seeds", type=int, default=2, help="FP32 trainings, 2 or more (default 2)")
    parser.add_argument(
        "--skip", type=int, default=500, help="first steps left out: the loss falls too fast (default 500)"
    )
    parser.add_argument("--batch", type=int, default=8, help="samples a step (default 8)")
    parser.add_argument("--runs", type=int, default=1000, help="stretches drawn for each figure (default 1000)")
    parser.add_argument("--speed-seconds", type=float, default=0.0, help="how long throughput is measured (default 0)")
    parser.add_argument("--window-seconds", type=float, default=10.0, help="windows of throughput (default 10)")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data = LibraryText(32)
    curves = [losses(seed, given.steps, data, given.batch) for seed in range(given.seeds)]
    pairs = list(combinations(curves, 2))
    series = [excess(one, other, given.skip) for one, other in pairs]
    noise = [step_noise(one, other, given.skip) for one, other in pairs]
    spreads = [math.sqrt(sum(block * block for block in blocks) / len(blocks)) for blocks in series]
    table = {}
    for name in CANDIDATES:
        row: dict[str, float | None] = {"false_alarms_at_0": judge(name, series, 0.0, given.runs)[0]}
        row["false_alarms_at_margin"] = judge(name, series, MARGIN, given.runs)[0]
        for drift in (0.1, 0.2):
            share, delay = judge(name, series, drift, given.runs)
            row |= {f"found_at_{drift:g}": share, f"median_delay_steps_at_{drift:g}": delay}
        table[name] = row
    result = {
        "torch": torch.__version__,
        "machine": platform.processor() or platform.machine(),
        "settings": vars(given),
        "step_sigma": [round(sigma, 5) for sigma, _ in noise],
        "step_autocorrelation": [round(phi, 3) for _, phi in noise],
        "block_sigma": [round(spread, 5) for spread in spreads],
        "watched_steps": _WATCHED * BLOCK,
        "detectors": table,
    }
    if given.speed_seconds > 0:
        windows = speeds(given.speed_seconds, given.window_seconds, data, given.batch)
        usual = sorted(windows)[len(windows) // 2]
        sigma, lag = spread([window / usual for window in windows])
        result |= {
            "speed_windows": len(windows),
            "speed_sigma": round(sigma, 4),
            "speed_autocorrelation": round(lag, 3),
        }
    json.dump(result, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
