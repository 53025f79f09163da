"""``python -m precision_trainer.torchrun``: torchrun, also on a torch that was built without libuv (Debian's).

torchrun's own stores ask for libuv whatever USE_LIBUV says, and then refuse to start. All flags are torchrun's.
"""

from __future__ import annotations

import importlib
import signal

from . import compat


def main() -> None:
    """Run torchrun with this process' arguments, stoppable also where whoever started us has blocked the signals."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    compat.prepare_rendezvous()  # before torchrun's modules take the store's class
    importlib.import_module("torch.distributed.run").main()


if __name__ == "__main__":
    main()
