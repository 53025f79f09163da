"""A step that is not sent, on a CPU, comes to what it comes to by way of the channel, as on a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from precision_trainer import ExtendedFP16Trainer, PrecisionMode
from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import next_byte_loss
from precision_trainer.step.steps import Boundary
from precision_trainer.values.request import PrecisionRequest
from precision_trainer.values.sentinel import SentinelConfig
from tests.support.training.steps import BATCH, BF16, FP16, FP32, make, weights

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 90
NOT_FINITE = {0, 21, *range(40, 44), STEPS - 1}
"""Losses of these steps are spoiled: the first, one alone, a burst, the last."""
REQUESTS = [(10, BF16), (30, FP16), (31, FP16), (60, FP32)]
"""Step from which each is asked for, and its mode."""
WATCHED = SentinelConfig(window_steps=8, probe_steps=16, shadow_steps=32)


@dataclass
class Run:
    """A training and all that was said of it."""

    trainer: ExtendedFP16Trainer
    boundaries: list[str] = field(default_factory=list)
    norms: list[str] = field(default_factory=list)
    sent: int = 0
    """Steps that went through the channel."""

    def note(self, boundary: Boundary) -> None:
        """Without the time of a change; as text, in which NaN equals itself."""
        change = boundary.change and (boundary.change.before, boundary.change.after, boundary.change.step)
        self.boundaries.append(repr(boundary._replace(change=None)) + repr(change))
        self.norms.append(repr(self.trainer.layer_norms()))


def run(
    mode: PrecisionMode,
    text: LibraryText,
    monkeypatch: pytest.MonkeyPatch,
    *,
    sends_all: bool,
    sentinel: SentinelConfig,
    clip: float,
) -> Run:
    trainer = make(mode, loss_scale=1024.0, sentinel=sentinel, max_grad_norm=clip)
    made = Run(trainer)
    trainer._boundaries._alone = not sends_all
    put = trainer._channel.put

    def counted(*what: object) -> None:
        made.sent += 1
        put(*what)  # type: ignore[arg-type]

    monkeypatch.setattr(trainer._channel, "put", counted)
    asked = [(at, PrecisionRequest(generation, wanted)) for generation, (at, wanted) in enumerate(REQUESTS, 1)]
    trainer.request_source = lambda applied: next(
        (request for at, request in asked if at <= trainer.step and request.generation > applied), None
    )
    for number in range(STEPS):
        made.note(trainer.begin_step())
        batch = text.batch(number * BATCH, BATCH)
        factor = float("nan") if number in NOT_FINITE else 1.0
        trainer.backward_and_step(trainer.training_step(batch, next_byte_loss, next_byte_loss) * factor)
    made.note(trainer.drain())
    return made


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("sentinel", [SentinelConfig(enabled=False), WATCHED], ids=["alone", "watched"])
@pytest.mark.parametrize("mode", [FP32, FP16, BF16])
def test_a_step_that_is_not_sent_comes_to_the_same(
    mode: PrecisionMode, sentinel: SentinelConfig, clip: float, text: LibraryText, monkeypatch: pytest.MonkeyPatch
) -> None:
    some, every = (
        run(mode, text, monkeypatch, sends_all=sends_all, sentinel=sentinel, clip=clip) for sends_all in (False, True)
    )
    assert some.boundaries == every.boundaries
    assert some.norms == every.norms
    assert some.trainer.get_stats() == every.trainer.get_stats()
    assert all(map(torch.equal, weights(some.trainer), weights(every.trainer)))
    assert every.sent == STEPS
    assert some.sent < STEPS / 2


@pytest.mark.parametrize("bad", [None, 2], ids=["all good", "one bad"])
def test_steps_without_a_boundary_in_between_are_all_read_in_their_order(bad: int | None, text: LibraryText) -> None:
    trainer = make(FP32)
    trainer.begin_step()
    for number in range(5):
        factor = float("nan") if number == bad else 1.0
        trainer.backward_and_step(next_byte_loss(trainer.module, text.batch(number * BATCH, BATCH)) * factor)
    assert [record.step for record in trainer.drain().records] == [0, 1, 2, 3, 4]
    assert not trainer.drain().records
