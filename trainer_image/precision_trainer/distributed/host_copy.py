"""Small results on their way from the device to the host, without making the step wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import torch

Note = TypeVar("Note")


class _Letter(NamedTuple, Generic[Note]):
    note: Note
    pieces: Sequence[torch.Tensor]
    ready: torch.cuda.Event | None


class HostCopyQueue(Generic[Note]):
    """A queue of small FP32 tensors. On CUDA they are copied to pinned memory asynchronously; on the CPU they are there.

    ``get`` waits for the copy of the oldest letter; by the time a step that is ``delay`` boundaries old is read, the copy is
    done, so that nothing waits in practice.
    """

    def __init__(self, device: torch.device) -> None:
        self.delay = 2 if device.type == "cuda" else 1
        """Boundaries between sending and reading. The same on all ranks, since all run on one kind of device."""
        self._cuda = device.type == "cuda"
        self._queue: deque[_Letter[Note]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, note: Note, pieces: Sequence[torch.Tensor]) -> None:
        """Send numbers with a note that stays on the host.

        Args:
            note: comes back with them.
            pieces: 0-D or 1-D, read one after the other; on the CPU where they lie, so not changed before.
        """
        if not self._cuda:
            self._queue.append(_Letter(note, pieces, None))
            return
        values = torch.cat([piece.reshape(-1) for piece in pieces])
        host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        host.copy_(values, non_blocking=True)
        ready: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ready.record()
        self._queue.append(_Letter(note, (host,), ready))

    def get(self) -> tuple[Note, list[float]]:
        """The oldest letter. Raises IndexError if there is none."""
        letter = self._queue.popleft()
        return letter.note, _open(letter)

    def peek(self) -> list[tuple[Note, list[float]]]:
        """All letters on their way, oldest first; they stay."""
        return [(letter.note, _open(letter)) for letter in self._queue]


def _open(letter: _Letter[Note]) -> list[float]:
    if letter.ready is not None:
        letter.ready.synchronize()
    values: list[float] = []
    for piece in letter.pieces:
        # Of a 0-D tensor tolist() gives the number itself, whatever its annotation says.
        numbers: list[float] | float = piece.tolist()
        if isinstance(numbers, list):
            values += numbers
        else:
            values.append(numbers)
    return values
