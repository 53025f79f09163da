"""Which stream a copy to the host is waited for. No GPU: torch.cuda is a stub that notes what was recorded where."""

from __future__ import annotations

import pytest
import torch

from precision_trainer.checkpoint.snapshot import Staging
from precision_trainer.distributed.host_copy import HostCopyQueue

CURRENT, SECOND, THIRD = (torch.device("cuda", index) for index in range(3))


class _OnSecond(torch.Tensor):
    """Memory of the host that says it is a GPU's."""

    is_cuda, device = True, SECOND


class _OnThird(_OnSecond):
    device = THIRD


def _values(kind: type[torch.Tensor]) -> torch.Tensor:
    return torch.ones(3).as_subclass(kind)


@pytest.fixture
def waited_for(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """The devices whose streams were waited for; of a stream the stub knows its device only."""
    waited: list[torch.device] = []

    class Event:
        def record(self, stream: torch.device = CURRENT) -> None:
            self.stream = stream

        def synchronize(self) -> None:
            waited.append(self.stream)

    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda shape, dtype, pin_memory: empty(shape, dtype=dtype))
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=CURRENT: device)
    return waited


def test_the_numbers_of_a_step_are_waited_for_on_the_device_that_they_are_on(waited_for: list[torch.device]) -> None:
    queue: HostCopyQueue[str] = HostCopyQueue(SECOND)
    queue.put("step", [_values(_OnSecond)])
    assert queue.get() == ("step", [1.0, 1.0, 1.0])
    assert waited_for == [SECOND]


def test_a_snapshot_is_waited_for_on_every_device_that_it_is_of(waited_for: list[torch.device]) -> None:
    staging = Staging()
    staging.take({"a": _values(_OnSecond), "b": _values(_OnThird), "c": torch.ones(3)})
    staging.wait()
    assert sorted(waited_for, key=str) == [SECOND, THIRD]
