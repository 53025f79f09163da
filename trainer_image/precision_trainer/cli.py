"""The command line. Heavy imports happen only once a command needs them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from .errors import EXIT_DIVERGED, EXIT_FAILED, DivergedError, TrainerError
from .job.options import add_arguments, read_options
from .names import DEFAULT_PORT
from .telemetry import logs


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="precision-trainer",
        description="Trains in FP32, mixed FP16 or mixed BF16 and switches between them while it trains.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser(
        "train",
        help="train a model",
        description="Train. Precision comes from ENABLE_FP16_TRAINING, PRECISION_MODE, FEATURE_FLAGS and the file named by "
        "PRECISION_REQUEST_FILE (docs/contract.md). FP16/BF16 on a CPU needs PRECISION_ALLOW_CPU=true.",
    )
    add_arguments(train)
    launch = commands.add_parser(
        "launch",
        help="run a command on several ranks of this machine",
        description="Run a command on several ranks of this machine, "
        "e.g.: launch --nproc-per-node 2 train transformer --steps 100",
    )
    launch.add_argument("--nproc-per-node", type=int, default=1, help="ranks (default 1)")
    launch.add_argument(
        "--master-port", type=int, default=int(DEFAULT_PORT), help=f"default {DEFAULT_PORT}; 0: any free one"
    )
    launch.add_argument("rest", nargs=argparse.REMAINDER, metavar="command", help="the command and its flags")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    parser = _parser()
    parsed = parser.parse_args(arguments)
    if parsed.command == "launch":
        if not parsed.rest or not 1 <= parsed.nproc_per_node <= 1024:
            parser.error("launch needs a command, e.g. launch --nproc-per-node 2 train transformer")
        from .gang.launch import launch

        return launch(parsed.rest, parsed.nproc_per_node, parsed.master_port)
    return _train(parsed)


def _train(parsed: argparse.Namespace) -> int:
    log = logs.from_env()
    try:
        options = read_options(parsed)
        # Before torch: its import takes seconds, and a stop must work meanwhile.
        from .job.signals import StopFlag

        stop = StopFlag.install(log)
        os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
        from .job.train import train

        return train(options, log, stop)
    except DivergedError as error:
        log.error("diverged", str(error))
        return EXIT_DIVERGED
    except TrainerError as error:
        log.error("failed", str(error), kind=type(error).__name__)
        return EXIT_FAILED


def run() -> None:
    """Entry point of the process: the exit code, without waiting for threads that serve scrapes."""
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)
