"""Giving an optimizer its saved state back, without what torch would change on the way."""

from __future__ import annotations

from typing import cast

import torch

_HOW = ("fused", "foreach", "capturable", "differentiable")
"""How the optimizer computes: a property of this process, not of the training."""


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, object]) -> None:
    """Load a state that ``format.check_optimizer`` found good; gradients are dropped.

    ``load_state_dict`` would also take over how the saved optimizer computed. An unfused one in place of a fused one no
    longer reads found_inf, and would put non-finite gradients into the weights.
    """
    groups = cast("list[dict[str, object]]", saved["param_groups"])
    kept = [
        {**group, **{name: ours[name] for name in _HOW if name in ours}}
        for group, ours in zip(groups, optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**saved, "param_groups": kept})
    optimizer.zero_grad(set_to_none=True)
