"""Host buffers of snapshots: used again, whatever comes to the state or leaves it."""

from __future__ import annotations

from typing import cast

import torch

from precision_trainer.checkpoint.snapshot import Staging

State = dict[str, torch.Tensor]


def addresses(state: State) -> set[int]:
    """Where the tensors' data lies."""
    return {tensor.data_ptr() for tensor in state.values()}


def test_a_tensor_that_comes_first_takes_no_buffer_from_the_others_and_makes_one() -> None:
    staging, state = Staging(), {f"w{size}": torch.full((size,), float(size)) for size in range(100, 108)}
    before = addresses(cast(State, staging.take(state)))
    taken = cast(State, staging.take({"flag": torch.ones(1), **state}))
    assert len(addresses(taken) - before) == 1
    assert before < addresses(taken)
    assert all(torch.equal(taken[name], tensor) for name, tensor in state.items())


def test_the_buffer_of_what_has_left_is_freed() -> None:
    staging, state = Staging(), {"a": torch.ones(100), "b": torch.ones(200), "c": torch.ones(100)}
    staging.take(state)
    staging.take({"c": state["c"]})
    assert [len(buffers) for buffers in staging._buffers.values()] == [1]
