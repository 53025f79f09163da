"""Where things lie: what a checkout owns, and what all checkouts of a machine share."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The checkout."""

BUILD = ROOT / "build"
"""Everything made by tools. Ignored by git; `make clean` removes it."""

BIN = BUILD / "bin"
CLUSTER = BUILD / "cluster"

MACHINE = Path("/run/genesis-precision")
"""Says which checkout runs the machine's one full cluster. Under /run, so that a reboot forgets it, as it should."""


def own_key() -> Path:
    """Return the folder of this user's key that signs releases. It cannot be made again, so `make clean` spares it."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "genesis-precision" / "release-key"


def shared_cache() -> Path:
    """Return the machine-wide cache, so that a fresh clone need not compile Kubernetes or fetch Debian again.

    Every entry is named by the hash of its inputs: a stale entry is never read, only left behind.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "genesis-precision"
