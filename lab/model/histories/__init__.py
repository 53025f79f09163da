"""What happens to a fleet in some histories, pass by pass, as the shipped ``decide`` answers them.

    python -m lab.model.histories > docs/reference/histories.md

A test holds the page to the code, each history by itself.
"""

from lab.model.histories import people, restarts, rollbacks, rollouts
from lab.model.histories.stage import History

INTRODUCTION = """\
# Histories

What the operator shows and does, pass by pass, while things happen to a fleet: the shipped
`decide`, in a world of values (`lab/model/world.py`). Where nothing changes, no line stands; the
last column is a fingerprint of all that was decided and is not shown: the whole state, each action,
when to look again. Written by `python -m lab.model.histories`; a test holds each history to the
code, so that a change of behaviour is seen here.
"""


def _title(play: History) -> str:
    return (play.__doc__ or "").strip()


HISTORIES = {_title(play): play for module in (rollouts, rollbacks, restarts, people) for play in module.HISTORIES}
"""By title, in the order of the page."""


def page() -> str:
    """The page."""
    parts = (f"\n## {title}\n\n" + "\n".join(play().lines) + "\n" for title, play in HISTORIES.items())
    return INTRODUCTION + "".join(parts)
