"""The training side of the product: mixed precision that can be switched while it trains.

Parameters, gradients, optimizer state and DDP buckets are FP32 at all times. A precision mode is an autocast dtype plus a
loss scaler, so a switch changes no state and happens at a step boundary that all ranks agree on.

The public names are loaded on first use (PEP 562): ``precision-trainer --help`` must answer without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from precision_tools.analyzer import PrecisionAnalyzer

    from .distributed.process_group import cleanup_distributed, init_distributed
    from .models.world_model import WorldModel
    from .precision.basic import FP16Trainer
    from .precision.trainer import ExtendedFP16Trainer
    from .values.config import ExtendedFP16Config
    from .values.modes import PrecisionMode

__all__ = [
    "ExtendedFP16Config",
    "ExtendedFP16Trainer",
    "FP16Trainer",
    "PrecisionAnalyzer",
    "PrecisionMode",
    "WorldModel",
    "cleanup_distributed",
    "init_distributed",
]

_HOME = {
    "ExtendedFP16Config": ".values.config",
    "ExtendedFP16Trainer": ".precision.trainer",
    "FP16Trainer": ".precision.basic",
    "PrecisionAnalyzer": "precision_tools.analyzer",
    "PrecisionMode": ".values.modes",
    "WorldModel": ".models.world_model",
    "cleanup_distributed": ".distributed.process_group",
    "init_distributed": ".distributed.process_group",
}


def __getattr__(name: str) -> object:
    """Load a public name from the module it lives in; raises AttributeError for any other name."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it exports {', '.join(__all__)}")
    try:
        return getattr(import_module(home, __name__), name)
    except ModuleNotFoundError as error:
        if error.name != "precision_tools":
            raise
        raise ImportError(
            f"{name} is one of the tools: expected precision_tools, found an image without it; use precision-trainer-tools"
        ) from error
