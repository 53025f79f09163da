"""Where a drill's fault comes from: the tools, which a production image does not carry."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import torch

from ..errors import ConfigError
from ..values.logs import JsonLog

ENV = "PRECISION_FAULT_FILE"
_MODULE = "precision_tools.demo_fault"


class Drill(Protocol):
    """A fault on purpose."""

    def begin_step(self, step: int) -> None:
        """Decide about this step."""
        ...


class _Tool(Protocol):
    def install(self, model: torch.nn.Module, log: JsonLog, path: str) -> Drill: ...


def installed(model: torch.nn.Module, log: JsonLog) -> Drill | None:
    """The drill that the environment asks for, else None.

    Raises:
        ConfigError: it asks for one, and there are no tools here: a drill without a fault would look like one that passed.
    """
    path = os.environ.get(ENV, "").strip()
    if not path:
        return None
    if find_spec("precision_tools") is None:
        raise ConfigError(
            f"{ENV}={path!r}: expected an image with the tools (precision-trainer-tools), found one without; unset it "
            "in production"
        )
    return cast(_Tool, import_module(_MODULE)).install(model, log, path)
