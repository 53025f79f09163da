"""``precision-trainer analyze``: which precision a model should train in here, and why."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from precision_trainer.errors import EXIT_OK
from precision_trainer.job.options import BUILT_IN, TrainOptions

if TYPE_CHECKING:
    from precision_trainer.cli import Commands


def register(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "analyze",
        help="which precision a model should train in on this machine, and why",
        description="Run a model in FP32, BF16 and FP16 and recommend mode, loss scale, modules to keep in FP32 and sizes "
        "to round up, each with its evidence (docs/analyzer.md).",
    )
    parser.add_argument(
        "model",
        nargs="?",
        default="transformer",
        help=f"{', '.join(BUILT_IN)} or your.module:factory (default transformer)",
    )
    parser.add_argument("--steps", type=int, default=50, help="of training in each mode; 0: none (default 50)")
    parser.add_argument("--batch-size", type=int, default=8, help="samples a step (default 8)")
    parser.add_argument("--width", type=int, default=512, help="of the built-in models (default 512)")
    parser.add_argument("--layers", type=int, default=4, help="of the transformer (default 4)")
    parser.add_argument("--context", type=int, default=128, help="tokens or steps a sample (default 128)")
    parser.add_argument("--vocabulary", type=int, default=1000, help="of the transformer, from 256 up (default 1000)")
    parser.add_argument("--environment", default="CartPole-v1", help="of the world model (default CartPole-v1)")
    parser.add_argument("--seed", type=int, default=0, help="of the initial weights (default 0)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="also draw six panels there (.png, .svg, .pdf)")
    parser.add_argument("-o", "--output", choices=("markdown", "json"), default="markdown", help="(default markdown)")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    options = TrainOptions(
        model=parsed.model, batch_size=parsed.batch_size, width=parsed.width, layers=parsed.layers, context=parsed.context,
        vocabulary=parsed.vocabulary, environment=parsed.environment, seed=parsed.seed,
        threads=parsed.threads, steps=parsed.steps,
    )  # fmt: skip
    os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
    import torch

    from precision_trainer.job.tasks import build_task

    from ..analyzer import PrecisionAnalyzer
    from ..analyzer.figure import draw

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    report = PrecisionAnalyzer().analyze_task(build_task(options), batch_size=options.batch_size, steps=options.steps)
    sys.stdout.write(
        json.dumps(report.to_wire(), allow_nan=False) + "\n" if parsed.output == "json" else report.markdown()
    )
    if parsed.figure is not None:
        draw(report, parsed.figure)  # last: what it may fail with must not cost the report
    return EXIT_OK
