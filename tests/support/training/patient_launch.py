"""The trainer's command line, whose launch gives the others more time after a rank died: a slow machine needs it."""

from __future__ import annotations

from precision_trainer import cli
from precision_trainer.distributed import launch

if __name__ == "__main__":
    launch._PEER_GRACE_SECONDS = 60.0
    cli.run()
