"""``precision-trainer train``."""

from __future__ import annotations

import argparse
import os
import traceback
from typing import TYPE_CHECKING

from ..errors import EXIT_DIVERGED, EXIT_FAILED, EXIT_PEER_LOST, DivergedError, PeerLostError, TrainerError
from ..job.options import add_arguments, read_options
from ..values import logs

if TYPE_CHECKING:
    from . import Commands


def register(commands: Commands) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "train",
        help="train a model",
        description="Train. Precision comes from ENABLE_FP16_TRAINING, PRECISION_MODE, FEATURE_FLAGS and the file named by "
        "PRECISION_REQUEST_FILE (docs/contract.md). FP16/BF16 on a CPU needs PRECISION_ALLOW_CPU=true.",
    )
    add_arguments(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    """Train; what goes wrong is a JSON line, as everything else that a rank says."""
    log = logs.from_env()
    try:
        options = read_options(parsed)
        # Before torch: its import takes seconds, and a stop must work meanwhile.
        from ..job.signals import StopFlag

        stop = StopFlag.install(log)
        os.environ.setdefault("OMP_NUM_THREADS", str(options.threads))
        from ..job.train import train

        return train(options, log, stop)
    except DivergedError as error:
        log.error("diverged", str(error))
        return EXIT_DIVERGED
    except TrainerError as error:
        log.error("failed", str(error), kind=type(error).__name__)
        return EXIT_PEER_LOST if isinstance(error, PeerLostError) else EXIT_FAILED
    except Exception as error:  # noqa: BLE001  (of the model, its data or its loss)
        traceback.print_exc()
        reason = (str(error).splitlines() or [""])[0]
        message = (
            f"expected the model, its data and its loss to run, found {type(error).__name__} ({reason}): see the traceback; "
            "correct it and start again, training goes on from the last checkpoint"
        )
        log.error("failed", message, kind=type(error).__name__)
        return EXIT_FAILED
