"""A copy of the training state in host memory, so that it can be written while training goes on."""

from __future__ import annotations

import torch


class Staging:
    """Host buffers, made at the first snapshot and used again: fresh memory costs more than the copy (page faults).

    One snapshot at a time: a new one overwrites the one before.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[object, ...], torch.Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    def take(self, state: object) -> object:
        """The same nest of dictionaries, lists and tuples with every tensor copied; other values are taken as they are.

        From CUDA the copy is asynchronous, into pinned memory and in the order of the stream, so that a later optimizer
        step cannot overtake it. :meth:`wait` before reading.
        """
        sources: list[torch.Tensor] = []
        targets: list[torch.Tensor] = []
        copied = self._walk(state, (), sources, targets)
        with torch.no_grad():
            torch._foreach_copy_(targets, sources, non_blocking=True)
        self._copied = None
        if any(source.is_cuda for source in sources):
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()
        return copied

    def wait(self) -> None:
        """Block until the snapshot is complete. For the thread that writes it."""
        if self._copied is not None:
            self._copied.synchronize()

    def _walk(
        self, value: object, path: tuple[object, ...], sources: list[torch.Tensor], targets: list[torch.Tensor]
    ) -> object:
        if isinstance(value, torch.Tensor):
            source = value.detach()
            buffer = self._buffers.get(path)
            if buffer is None or buffer.shape != source.shape or buffer.dtype != source.dtype:
                buffer = torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
                self._buffers[path] = buffer
            sources.append(source)
            targets.append(buffer)
            return buffer
        if isinstance(value, dict):
            return {key: self._walk(item, (*path, key), sources, targets) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._walk(item, (*path, n), sources, targets) for n, item in enumerate(value))
        return value
