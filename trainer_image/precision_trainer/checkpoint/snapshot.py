"""A copy of the training state in host memory, so that it can be written while training goes on."""

from __future__ import annotations

import torch

from .nest import mapped


class Staging:
    """Host buffers, made at the first snapshot and used again: fresh memory costs more than the copy (page faults).

    One snapshot at a time: a new one overwrites the one before.
    """

    def __init__(self) -> None:
        self._buffers: dict[tuple[torch.Size, torch.dtype, bool], list[torch.Tensor]] = {}
        """By shape, type and whether they are pinned: which tensor had which does not matter, also where some come or go."""
        self._copied: list[torch.cuda.Event] = []

    def take(self, state: object) -> object:
        """The same nest of dictionaries, lists and tuples with every tensor copied; other values are taken as they are.

        From CUDA the copy is asynchronous, into pinned memory and in the order of the stream, so that a later optimizer
        step cannot overtake it. :meth:`wait` before reading.
        """
        sources: list[torch.Tensor] = []
        targets: list[torch.Tensor] = []
        left, self._buffers = self._buffers, {}

        def staged(value: object) -> object:
            if not isinstance(value, torch.Tensor):
                return value
            source = value.detach()
            form = source.shape, source.dtype, source.is_cuda
            same = left.get(form)
            buffer = same.pop() if same else torch.empty(source.shape, dtype=source.dtype, pin_memory=source.is_cuda)
            self._buffers.setdefault(form, []).append(buffer)
            sources.append(source)
            targets.append(buffer)
            return buffer

        copied = mapped(state, staged, plain=True)
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
