"""``python -m precision_trainer.torchrun``: torchrun, with this package's exit codes, and also on a torch that was built
without libuv (Debian's).

torchrun ends with 1 after any SIGTERM. A container that ends so counts as failed, and may use up a Job's back-off limit.
torchrun's own stores ask for libuv whatever USE_LIBUV says, and then refuse to start. All flags are torchrun's.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from .errors import EXIT_FAILED, EXIT_OK, EXIT_PEER_LOST, EXIT_STOPPED, STOPPED, ranks_failed
from .values.logs import JsonLog

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Run torchrun with this process' arguments, stoppable also where whoever started us has blocked the signals.

    Ends with 143 where the ranks were stopped by a signal, here or on another node, with 0 where they had finished when it
    came, and with 75 where they lost a rank of another pod.
    """
    for number in _SIGNALS:
        # Until torchrun's own handlers are there: no rank runs yet. As PID 1, a signal without a handler would be lost.
        signal.signal(number, lambda *_: os._exit(EXIT_STOPPED))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    from . import compat

    compat.prepare_rendezvous()  # before torchrun's modules take the store's class
    ranks = importlib.import_module("torch.distributed.elastic.multiprocessing.api")
    errors = importlib.import_module("torch.distributed.elastic.multiprocessing.errors")
    codes = _watch(ranks.SubprocessContext)
    try:
        importlib.import_module("torch.distributed.run").main()
    except (ranks.SignalException, errors.ChildFailedError) as error:
        code = stop_code(codes, signalled=isinstance(error, ranks.SignalException))
        if code is None:
            sys.stderr.write(f"{error}\n")
            failed = [rank for rank, code in enumerate(codes) if code not in STOPPED]
            JsonLog(-1, len(codes)).error("failed", ranks_failed(failed, codes), kind=type(error).__name__)
            code = EXIT_FAILED
        sys.exit(code)


def stop_code(codes: Sequence[int | None], *, signalled: bool) -> int | None:
    """What a stop comes to, or the loss of another pod's rank; None where it was neither: a rank failed.

    Args:
        codes: how the local ranks ended; none if they had not started.
        signalled: whether the stop came to this process, and not to the ranks.
    """
    if any(code not in (*STOPPED, EXIT_PEER_LOST) for code in codes):
        return None
    if EXIT_PEER_LOST in codes:
        return EXIT_PEER_LOST
    if codes and not any(codes):
        return EXIT_OK
    return EXIT_STOPPED if signalled or EXIT_STOPPED in codes else None


def _watch(context: Any) -> list[int | None]:  # noqa: ANN401  a class of torch, which has no types for it
    """A list that holds, once the ranks were closed, how each of the last ones ended. torchrun itself does not tell."""
    codes: list[int | None] = []
    close = context.close

    def closed(self: Any, *arguments: object, **options: object) -> None:  # noqa: ANN401  one of that class
        codes.clear()
        close(self, *arguments, **options)
        codes[:] = [handler.proc.poll() for handler in self.subprocess_handlers.values()]

    context.close = closed
    return codes


if __name__ == "__main__":
    main()
