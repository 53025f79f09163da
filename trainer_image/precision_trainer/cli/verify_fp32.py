"""``precision-trainer verify-fp32``: prove from the process itself that FP32 training works here, as after a rollback."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

from ..errors import EXIT_FAILED, EXIT_OK
from ..names import REQUEST_FILE_ENV

if TYPE_CHECKING:
    from . import Commands


def register(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "verify-fp32",
        help="train a little with ENABLE_FP16_TRAINING=false and check that all of it was FP32",
        description="Train the world model on trajectories from gymnasium with ENABLE_FP16_TRAINING=false, and check that "
        "every layer computed in FP32, every weight is FP32 and every loss finite. Exit code 1 if not.",
    )
    parser.add_argument("--trajectories", type=int, default=50, help="episodes to learn from (default 50)")
    parser.add_argument("--epochs", type=int, default=1, help="(default 1)")
    parser.add_argument("--batch-size", type=int, default=16, help="sequences a step (default 16)")
    parser.add_argument("--environment", default="CartPole-v1", help="gymnasium's (default CartPole-v1)")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="(default text)")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    # Where it runs beside a job (kubectl exec), the job's request is not meant for it.
    os.environ |= {"ENABLE_FP16_TRAINING": "false", REQUEST_FILE_ENV: os.devnull}
    from ..models.verify import verify_fp32

    result = verify_fp32(parsed.environment, parsed.trajectories, epochs=parsed.epochs, batch_size=parsed.batch_size)
    sys.stdout.write((json.dumps(result.to_wire()) if parsed.output == "json" else result.text()) + "\n")
    return EXIT_OK if result.passed else EXIT_FAILED
