"""Small results on their way from the device to the host, without making the step wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch

Note = TypeVar("Note")


class _Copy(NamedTuple, Generic[Note]):
    note: Note
    pieces: Sequence[torch.Tensor]
    ready: torch.cuda.Event | None

    def read(self) -> list[float]:
        if self.ready is not None:
            self.ready.synchronize()
        return on_host(self.pieces)


class HostCopyQueue(Generic[Note]):
    """A queue of small FP32 tensors. On CUDA they are copied to pinned memory asynchronously; on the CPU they are there.

    ``get`` waits for the oldest copy; by the time a step that is ``delay`` boundaries old is read, the copy is
    done, so that nothing waits in practice.
    """

    def __init__(self, device: torch.device) -> None:
        self.delay = 2 if device.type == "cuda" else 1
        """Boundaries between sending and reading. The same on all ranks, since all run on one kind of device."""
        self._cuda = device.type == "cuda"
        self._queue: deque[_Copy[Note]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, note: Note, pieces: Sequence[torch.Tensor]) -> None:
        """Send numbers with a note that stays on the host.

        Args:
            note: comes back with them.
            pieces: 0-D or 1-D, read one after the other; on the CPU where they lie, so not changed before.
        """
        if not self._cuda:
            self._queue.append(_Copy(note, pieces, None))
            return
        values = torch.cat([piece.reshape(-1) for piece in pieces])
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        ready: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        # Not the current device's, where a script never set that one.
        ready.record(torch.cuda.current_stream(values.device))
        self._queue.append(_Copy(note, (host,), ready))

    def get(self) -> tuple[Note, list[float]]:
        """The oldest copy. Raises IndexError if there is none."""
        copy = self._queue.popleft()
        return copy.note, copy.read()

    def peek(self) -> list[tuple[Note, list[float]]]:
        """All copies on their way, oldest first; they stay."""
        return [(copy.note, copy.read()) for copy in self._queue]


def value_of(tensor: torch.Tensor) -> float:
    """The value of a 0-D tensor that lies on the host."""
    # item() would go through torch's dispatcher, as a read from a device does.
    value: float = tensor.tolist()  # type: ignore[assignment]  # a list by its annotation, but not of a 0-D tensor
    return value


def on_host(pieces: Sequence[torch.Tensor]) -> list[float]:
    """The values of tensors that lie on the host, 0-D or 1-D, one after the other."""
    values: list[float] = []
    for piece in pieces:
        # Of a 0-D tensor tolist() gives the number itself, whatever its annotation says.
        numbers: list[float] | float = piece.tolist()
        if isinstance(numbers, list):
            values += numbers
        else:
            values.append(numbers)
    return values
