"""``precision-trainer bench``: figures, and the benchmarks of the production guide."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import EXIT_OK

if TYPE_CHECKING:
    from . import Commands


def register(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="measure what precision costs and gains on this machine")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="kind")
    figures = kinds.add_parser(
        "figures",
        help="overhead, speed, parity, switch, checkpoints: all figures in one run (about 6 minutes on 2 cores)",
        description="Measure every figure in one run, in interleaved rounds, and write them with their raw rounds as JSON. "
        "Needs the packages of the extra `bench` (lightning-fabric, accelerate).",
    )
    figures.add_argument("--output", type=Path, default=Path("trainer.json"), help="(default trainer.json)")
    figures.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    figures.set_defaults(run=_figures)

    for kind, text in (
        ("basic", "the world model in FP32, FP16 and BF16: warm-up and standard scenario"),
        ("comprehensive", "the same with the stress scenario: 512 trajectories, 5 epochs"),
    ):
        suite = kinds.add_parser(
            kind,
            help=text,
            description=f"Train {text}, on deterministic synthetic trajectories; write CSV, JSON, Markdown and a plot. FP16 "
            "and BF16 really run, on a CPU too; every row says which mode ran. The plot needs the extra `figures`.",
        )
        suite.add_argument("--output", type=Path, default=Path("benchmarks"), help="directory (default benchmarks)")
        suite.set_defaults(run=_suite)


def _suite(parsed: argparse.Namespace) -> int:
    from ..bench import hardware, report, scenarios
    from ..bench.figures import bars

    chosen = scenarios.BASIC if parsed.kind == "basic" else scenarios.COMPREHENSIVE
    with bars() as progress:
        task = progress.add_task(parsed.kind, total=len(scenarios.MODES) * sum(one.epochs for one in chosen))
        rows = scenarios.measure(chosen, lambda: progress.advance(task))
    machine = hardware.describe()
    sys.stdout.write(report.markdown(parsed.kind, rows, machine))
    for path in report.write(parsed.output, parsed.kind, rows, machine):
        sys.stdout.write(f"{path}\n")
    return EXIT_OK


def _figures(parsed: argparse.Namespace) -> int:
    from ..bench.figures import QUICK, Effort, bars, run

    with bars() as progress:
        run(parsed.output, QUICK if parsed.quick else Effort(), progress)
    sys.stdout.write(f"{parsed.output}\n")
    return EXIT_OK
