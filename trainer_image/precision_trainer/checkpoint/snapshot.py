"""A copy of the training state in host memory, so that it can be written while training goes on."""

from __future__ import annotations

import torch


class Staging:
    """Host buffers, made at the first snapshot and used again: fresh memory costs more than the copy (page faults).

    One snapshot at a time: a new one overwrites the one before.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[object, ...], torch.Tensor] = {}
        self._copied: list[torch.cuda.Event] = []

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
        self._copied = []
        # Not the current device's stream: the model may be on another one, or on several.
        for device in {source.device for source in sources if source.is_cuda}:
            self._copied.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
            self._copied[-1].record(torch.cuda.current_stream(device))
        return copied

    def wait(self) -> None:
        """Block until the snapshot is complete. For the thread that writes it."""
        for event in self._copied:
            event.synchronize()

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
            entries = [self._walk(item, (*path, n), sources, targets) for n, item in enumerate(value)]
            return tuple(entries) if isinstance(value, tuple) else entries  # no class of a script's can be loaded
        return value
