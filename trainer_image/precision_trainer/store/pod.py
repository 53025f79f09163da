"""Which pod this process runs in, as files that outlive it say it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from ..names import POD_UID_ENV

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def pod_uid(env: Mapping[str, str] = os.environ) -> str:
    """The pod's uid, in characters that any file may hold; empty where the pod does not say it."""
    return re.sub(r"[^A-Za-z0-9._:-]", "_", env.get(POD_UID_ENV, "").strip())[:128]


def pod_identity(env: Mapping[str, str] = os.environ, boot_id: Path = _BOOT_ID) -> str:
    """Equal for two processes of one pod, as long as its node has not been restarted between them.

    The host's name stands in for a uid that is not known. A container is restarted in its pod also after a restart of the
    node; what ended before that went with the node, so the boot is a part of it.
    """
    try:
        boot = boot_id.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # not Linux, or a sandbox without it
        boot = ""
    return f"{pod_uid(env) or socket.gethostname()}@{boot}"
