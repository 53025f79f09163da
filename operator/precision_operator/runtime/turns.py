"""Who waits for a slot: the groups go in turn, and each group's waiters in their order. Belongs to one event loop."""

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Waiters by group; the order of the groups is that of their turns. Who was cancelled is left out."""

    def __init__(self) -> None:
        self._groups: dict[str, deque[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        """How many wait."""
        return sum(not waiter.done() for queue in self._groups.values() for waiter in queue)

    def wait(self, group: str) -> asyncio.Future[None]:
        """A new waiter, the last of its group."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._groups.setdefault(group, deque()).append(waiter)
        return waiter

    def next(self, may: Callable[[str], bool] = lambda group: True) -> str | None:
        """The first group in turn that waits, and may have a slot."""
        for group in list(self._groups):
            queue = self._groups[group]
            while queue and queue[0].done():
                queue.popleft()
            if not queue:
                del self._groups[group]
            elif may(group):
                return group
        return None

    def grant(self, group: str) -> None:
        """Wake the first waiter of the group that ``next`` has named, which goes to the end of the turns."""
        queue = self._groups.pop(group)
        queue.popleft().set_result(None)
        if queue:
            self._groups[group] = queue
