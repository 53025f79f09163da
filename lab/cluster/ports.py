"""Free TCP ports, for clusters that run side by side."""

from __future__ import annotations

import random
import socket

from lab.errors import LabError

_RANGE = range(20000, 24576)
"""Below the kernel's ephemeral range, Kubernetes' node ports and those at which the trainer's ranks meet (its
``free_port``): nobody takes one between our look and our use by accident.
"""


def free_ports(count: int) -> list[int]:
    """Return distinct ports that are free now, on every address of the machine."""
    found: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise LabError(
        f"{count} free TCP ports in {_RANGE.start}-{_RANGE.stop - 1}", f"{len(found)}", "end programs that listen there"
    )
