"""Whether the weights are still numbers, where no sentinel asks: in FP16 an overflow and a poisoned weight look alike.

The scaler skips both. An overflow leaves the weights as they are and ends with a lower scale; weights that are not finite
make every step be skipped, for ever. So after more skipped steps in a row than a scale needs to find its place, every rank
looks once and says what it found in the agreement message. From then on skipped steps count as non-finite
(docs/contract.md), until one is good or other weights were loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TypeAlias

import torch

from ..values.levels import Finding
from .steps import StepRecord

LOOK_AFTER_STEPS = 20
"""Skipped steps in a row. From 65536, the default, to the floor, 1, it is 16."""


Guard: TypeAlias = "Callable[[str, Callable[[], bool]], bool | None]"
"""Runs a check by its name; None (unknown) if it raised. See sentinel/guard.py."""


def are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether all are, but for -inf in what is not trained: a mask. Waits for the device."""
    filled = [one for one in tensors if one.numel()]
    # The largest magnitude, not the length: a mask of the largest finite numbers is finite.
    norms = torch._foreach_norm([one.detach() for one in filled], float("inf"))
    if not norms or bool(torch.stack([norm.isfinite() for norm in norms]).all()):
        return True
    bad = (one for one, norm in zip(filled, norms, strict=True) if not norm.isfinite())
    return all(not one.requires_grad and bool((one < float("inf")).all()) for one in bad)


def can_be_poisoned(model: torch.nn.Module, buffers: Collection[str]) -> list[torch.Tensor]:
    """What a bad batch must not leave inf or NaN in: trained parameters, and those of ``buffers`` that can be measured.

    A frozen parameter may hold -inf on purpose, as a mask does; so may a buffer, which is not named then.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    devices = {parameter.device for parameter in trained}
    dense = (
        value
        for name, value in model.named_buffers()
        if name in buffers
        and value.device in devices  # all are measured together
        and value.is_floating_point()
        and value.layout is torch.strided
        and value.element_size() > 1
    )
    return [*trained, *dense]


class WeightCheck:
    """Counts skipped steps, and looks at the weights where they do not end. All ranks see the same records."""

    def __init__(self, model: torch.nn.Module, guard: Guard) -> None:
        self._model, self._guard = model, guard
        self._skipped = 0
        self._finding: Finding | None = None
        self._poisoned = False

    def observe(self, record: StepRecord) -> StepRecord:
        """Take a step in; returns it as it counts."""
        if not (record.skipped and record.mode.uses_scaler):
            self.restart()
            return record
        self._skipped += 1
        if self._skipped % LOOK_AFTER_STEPS == 0 and not self._poisoned:
            # Said of the weights alone: what FP32 would make of the batch is not computed, so it is unknown.
            # Buffers do not make a step be skipped.
            finite = self._guard("finite weights", lambda: are_finite(can_be_poisoned(self._model, ())))
            self._finding = Finding(fp32_finite=None, weights_finite=finite, origin=None)
        return self.mark(record)

    def mark(self, record: StepRecord) -> StepRecord:
        """A step as it counts by what is known now."""
        return record._replace(poisoned=True) if self._poisoned and record.skipped else record

    def message(self) -> Finding | None:
        """What this rank has to say in the step about to run; it is said once."""
        finding, self._finding = self._finding, None
        return finding

    def learn(self, *, weights_finite: bool | None) -> bool:
        """What all ranks found has arrived. True if it is news that the weights are not finite."""
        news = weights_finite is False and not self._poisoned
        self._poisoned = self._poisoned or news
        return news

    def restart(self) -> None:
        """A step went well, or the weights are other ones."""
        self._skipped, self._finding, self._poisoned = 0, None, False
