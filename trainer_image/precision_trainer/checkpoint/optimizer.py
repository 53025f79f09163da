"""Giving an optimizer its saved state back, without what torch would change on the way."""

from __future__ import annotations

from typing import cast

import torch

HOW = ("fused", "foreach", "capturable", "differentiable")
"""How the optimizer computes: a property of this process, not of the training."""


def load_optimizer(
    optimizer: torch.optim.Optimizer, saved: dict[str, object], *, keep_learning_rate: bool = False
) -> None:
    """Load a state that ``format.check_optimizer`` found good; gradients are dropped.

    Args:
        optimizer: takes the state; a setting that the saved one lacks stays as it is.
        saved: its ``state_dict``.
        keep_learning_rate: this process was told its learning rate, and means it; otherwise the saved one is taken.

    ``load_state_dict`` would also take over how the saved optimizer computed. An unfused one in place of a fused one no
    longer reads found_inf, and would put non-finite gradients into the weights.
    """
    groups = cast("list[dict[str, object]]", saved["param_groups"])
    own = (*HOW, "lr") if keep_learning_rate else HOW
    kept = [
        {**ours, **group, **{name: ours[name] for name in own if name in ours}}
        for group, ours in zip(groups, optimizer.param_groups, strict=True)
    ]
    optimizer.load_state_dict({**saved, "param_groups": kept})
    optimizer.zero_grad(set_to_none=True)
