"""``precision-trainer bench``: figures, and the benchmarks of the production guide."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from precision_trainer.errors import EXIT_FAILED, EXIT_OK, ConfigError

if TYPE_CHECKING:
    from precision_trainer.cli import Commands


def register(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="measure what precision costs and gains on this machine")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="kind")
    figures = kinds.add_parser(
        "figures",
        help="overhead, speed, parity, switch, checkpoints: all figures in one run (about 6 minutes on 2 cores)",
        description="Measure every figure in one run, in interleaved rounds, and write them with their raw rounds as JSON, "
        "after each part what there is by then. Exit code 1 if a part failed, or (without --quick) if the overhead is above "
        "its budget or Fabric's. Needs the packages of the extra `bench` (lightning-fabric, accelerate).",
    )
    figures.add_argument("--output", type=Path, default=Path("trainer.json"), help="(default trainer.json)")
    figures.add_argument("--quick", action="store_true", help="seconds instead of minutes; the figures mean little")
    figures.set_defaults(run=_figures)

    for kind, text in (
        ("basic", "the world model in FP32, FP16 and BF16: warm-up and standard scenario"),
        ("comprehensive", "the same with the stress scenario (512 trajectories, 5 epochs), and steps of both models"),
    ):
        suite = kinds.add_parser(
            kind,
            help=text,
            description=f"Train {text}, on deterministic synthetic trajectories; write CSV, JSON, Markdown and a plot. FP16 "
            "and BF16 really run, on a CPU too; every row says which mode ran. The plot needs the extra `figures`.",
        )
        suite.add_argument("--output", type=Path, default=Path("benchmarks"), help="directory (default benchmarks)")
        suite.add_argument("--quick", action="store_true", help="an eighth of the trajectories")
        suite.set_defaults(run=_suite)


def _suite(parsed: argparse.Namespace) -> int:
    import torch

    from ..bench import hardware, models, report, scenarios
    from ..bench.figures import bars

    _make_folder(parsed.output)
    suite = scenarios.BASIC if parsed.kind == "basic" else scenarios.COMPREHENSIVE
    chosen = scenarios.quick(suite) if parsed.quick else suite
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    makes = models.workloads(device) if parsed.kind == "comprehensive" else ()
    machine = hardware.describe()  # with the load before ours
    rows: list[scenarios.Row] = []
    paths: list[Path] = []
    with bars() as progress:
        for one in chosen:
            task = progress.add_task(one.name, total=len(scenarios.MODES) * one.epochs)
            rows += scenarios.measure((one,), partial(progress.advance, task))
            # After each: the longest comes last, and what stops it must not cost the others.
            paths = report.write(parsed.output, parsed.kind, rows, machine)
            progress.console.print(f"{one.name}: {sum(row.seconds for row in rows if row.scenario == one.name):.0f} s")
        timed: list[models.ModelRow] = []
        if makes:
            task = progress.add_task("models", total=len(makes) * models.ROUNDS)
            timed = models.measure(device, makes, partial(progress.advance, task))
            paths = report.write(parsed.output, parsed.kind, rows, machine, timed)
    sys.stdout.write(report.markdown(parsed.kind, rows, machine, timed))
    sys.stdout.writelines(f"{path}\n" for path in paths)
    if not any(path.suffix == ".png" for path in paths):
        sys.stderr.write("no plot: matplotlib is not installed; in a checkout: pip install '.[figures]'\n")
    return EXIT_OK


def _figures(parsed: argparse.Namespace) -> int:
    from ..bench.figures import QUICK, Effort, bars, missed, run

    _make_folder(parsed.output.parent)
    with bars() as progress:
        result = run(parsed.output, QUICK if parsed.quick else Effort(), progress)
    sys.stdout.write(f"{parsed.output}\n")
    sentences = [] if parsed.quick else missed(result)
    sys.stderr.writelines(f"{sentence}\n" for sentence in sentences)
    return EXIT_OK if result["complete"] and not sentences else EXIT_FAILED


def _make_folder(path: Path) -> None:
    """Before minutes of measuring, not after them."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write results to {path} ({error.strerror}); choose another --output") from None
