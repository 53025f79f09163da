"""What a step sends and what is read of it: the telemetry parameter, its message, and the way of the numbers to the host."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from ..step.steps import Sent, StepRecord, read_record
from ..values.levels import Finding, Verdict
from ..values.logs import JsonLog
from ..values.modes import PrecisionMode
from ..values.request import PrecisionRequest
from .agreement import HEADER, WIDTH, Agreed, Unread, decode, encode, is_quiet
from .host_copy import HostCopyQueue


class Channel:
    """One rank's end. Nothing here waits for the device before a step's numbers are ``delay`` boundaries old."""

    def __init__(self, rank: int, world_size: int, device: torch.device, log: JsonLog) -> None:
        # Not a parameter of the model: so it is in no optimizer, no clipping, no state_dict.
        self.telemetry = torch.nn.Parameter(torch.zeros(WIDTH, dtype=torch.float32, device=device))
        self._queue: HostCopyQueue[Sent] = HostCopyQueue(device)
        self._rank, self._world_size, self._device, self._log = rank, world_size, device, log
        self.joins: Callable[[], bool] = lambda: False
        """Whether ranks may be missing in a step; ddp.wrap sets it."""
        self._told: set[Unread] = set()
        self.quiet = False
        """The header made last says nothing but the mode: a single process need not send it."""
        self._key: tuple[object, ...] | None = None
        self._header = torch.zeros(HEADER, dtype=torch.float32, device=device)

    @property
    def delay(self) -> int:
        """Boundaries between sending and reading; the same on all ranks."""
        return self._queue.delay

    @property
    def idle(self) -> bool:
        """No step is on its way."""
        return not self._queue

    def header(
        self,
        *,
        request: PrecisionRequest | None,
        stop: bool,
        running: PrecisionMode,
        verdict: Verdict | None,
        finding: Finding | None,
    ) -> torch.Tensor:
        """This rank's message without the loss, [HEADER]; see agreement.encode. Built anew only when it changed: rarely."""
        key = (request, stop, running, verdict, finding)
        if key != self._key:
            self._key = key
            self.quiet = request is None and not stop and verdict is None and finding is None
            header = encode(
                request,
                leads=self._rank == 0 or self._world_size == 1,
                stop=stop,
                running=running,
                verdict=verdict,
                finding=finding,
            )
            self._header = torch.tensor(header, dtype=torch.float32, device=self._device)
        return self._header

    def put(self, sent: Sent, numbers: list[torch.Tensor]) -> None:
        """Send the averaged message and what follows it (steps.read_record) to the host, unread; see HostCopyQueue.put.

        The header may be left out where a single process has nothing to say.
        """
        self._queue.put(sent, numbers)

    def read(self, keep: int) -> Iterator[tuple[Sent, Agreed | None, StepRecord]]:
        """The steps that were sent, oldest first, but for the last ``keep`` ones; None where nobody had anything to say.

        Raises:
            RankMismatchError: the ranks fell apart.
        """
        queue = self._queue
        while len(queue) > keep:
            sent, values = queue.get()
            if len(values) < HEADER:
                yield sent, None, _record(sent, values)
                continue
            if is_quiet(values, self._world_size, sent.mode, joins=self.joins()):
                yield sent, None, _record(sent, values[HEADER:])
                continue
            agreed = decode(values[:WIDTH], self._world_size, sent.mode, joins=self.joins())
            if agreed.unread is not None:
                self._tell(agreed.unread, sent.step)
            yield sent, agreed, _record(sent, [agreed.loss, *values[WIDTH:]])

    def _tell(self, unread: Unread, step: int) -> None:
        # Rank 0 itself may be the one that has no input left.
        if unread not in self._told and (self._rank == 0 or unread is Unread.UNEVEN):
            self._log.warning("message_unread", unread.meaning, reason=unread.reason, step=step)
        self._told.add(unread)

    def peek(self) -> list[StepRecord]:
        """The steps on their way; they stay. Waits for the device."""
        return [
            _record(sent, values if len(values) < HEADER else values[HEADER:]) for sent, values in self._queue.peek()
        ]


def _record(sent: Sent, values: list[float]) -> StepRecord:
    return read_record(sent.step, sent.mode, sent.generation, values)
