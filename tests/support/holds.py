"""A hold: what a deleted policy has left behind."""

from __future__ import annotations

from precision_operator.api.assignment import assignment_to_wire
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.state import HeldWorkload, Phase, State
from tests.support.bodies import Json
from tests.support.users import assignment

_LEFT = State(
    phase=Phase.HELD,
    reason="PolicyDeleted",
    fallback=None,
    enforce=True,
    generation=1,
    deletable=True,
    selector=Selector((("app", "trainer"),)),
    modes={"/Pod/trainer": Mode.FP32},
    held=(HeldWorkload("/Pod/trainer", "LossNotFinite", 1_795_255_200.0),),
)


def held() -> Json:
    """A PrecisionAssignment `fleet` that holds the bare pod `trainer` in FP32, and that a person may delete."""
    body = {**assignment(), **assignment_to_wire(_LEFT)}
    del body["default"]
    return body
