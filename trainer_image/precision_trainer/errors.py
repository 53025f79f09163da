"""Errors a person can act on: each message says what was expected, what was found, and the next step."""

from __future__ import annotations

from collections.abc import Sequence

EXIT_OK = 0
"""The training is finished: all requested steps are done. For other commands: done."""
EXIT_FAILED = 1
"""Anything that is none of the others."""
EXIT_INTERRUPTED = 130
"""Ctrl-C in a command that has nothing to save."""
EXIT_STOPPED = 143
"""A training was stopped by SIGTERM or SIGINT before its last step, with a checkpoint. Not 0: a Job counts that as complete,
and would never train the rest."""
STOPPED = (EXIT_OK, EXIT_STOPPED, -15, -2)
"""How a rank may end that was sent SIGTERM or SIGINT (negative: by the signal itself, while Python was still starting)."""
EXIT_DIVERGED = 17
"""The loss stayed non-finite in FP32: not a fault of precision (docs/contract.md)."""
EXIT_PEER_LOST = 75
"""A rank of another pod is gone or did not come: its pod or node may be. Training did not fail here. EX_TEMPFAIL of
sysexits.h: start again."""


MAX_ERROR = 300
"""Characters of another one's error that are told."""


class TrainerError(Exception):
    """Base of the errors this package raises on purpose; shown to a person without a traceback."""


class ConfigError(TrainerError, ValueError):
    """A setting is out of range or cannot be read. Names the field, the value and the range."""


class CheckpointError(TrainerError):
    """A checkpoint cannot be used: missing, broken, or of another model."""


class UnreadableError(CheckpointError, OSError):
    """The disk does not give a checkpoint out, which may be a good one all the same."""


class NoThreadError(TrainerError):
    """The machine gives this process no further thread, so that something was not done."""


class RankMismatchError(TrainerError):
    """The ranks of one process group were started differently."""


class DivergedError(TrainerError):
    """The loss stayed non-finite in FP32; ends the process with exit code 17."""


class MissingRankError(ConfigError):
    """A rank did not come to the rendezvous check: it is gone or was not started, or this one looks in the wrong place."""


class ProcessGroupError(TrainerError):
    """A peer is gone or silent; this rank cannot go on alone."""


class PeerLostError(ProcessGroupError):
    """That peer may have been lost with its pod; ends the process with exit code 75."""


def ranks_failed(failed: Sequence[int], codes: Sequence[int | None]) -> str:
    """The last line of a job in which ranks failed: which, and what to do."""
    named = ", ".join(f"local rank {rank} with {codes[rank]}" for rank in failed)
    return (
        f"expected every rank to finish, found {named}: the lines of that rank say why; correct it and start again, "
        "training goes on from the last checkpoint"
    )
