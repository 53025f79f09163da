"""Names and numbers that modules with and without torch share."""

from __future__ import annotations

DEFAULT_PORT = "29500"
"""Where the ranks of a process group meet, unless MASTER_PORT says otherwise."""
REQUEST_FILE_ENV = "PRECISION_REQUEST_FILE"
DEFAULT_REQUEST_FILE = "/etc/precision/request"
POD_UID_ENV = "PRECISION_POD_UID"
"""The pod's uid (``metadata.uid`` through the downward API): who holds the lease on a checkpoint directory, and
whose a run is that was left open."""
