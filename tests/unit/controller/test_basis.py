"""Whether what a pass has decided on still stands, by watches that may be behind what it has read."""

from typing import cast

import pytest

from precision_operator.api.policy import PolicyKey, Revision
from precision_operator.controller.basis import Basis
from precision_operator.controller.gather import Gatherer
from precision_operator.kube.port import JsonObject

KEY = PolicyKey("ns", "fleet")


class Watches:
    """What they tell of the policy and of its assignment."""

    def __init__(self) -> None:
        self.policy: Revision | None = None
        self.assignment = ""

    def revision(self, key: PolicyKey) -> Revision | None:
        assert key == KEY
        return self.policy

    def assignment_uid(self, key: PolicyKey) -> str:
        assert key == KEY
        return self.assignment


def seen(uid: str, generation: int) -> Revision:
    return Revision(uid, generation, frozenset(), stops=False)


def body(uid: str, generation: int = 1) -> JsonObject:
    return {"metadata": {"uid": uid, "generation": generation}}


@pytest.mark.parametrize(
    ("read", "newest", "stands"),
    [
        (body("a", 2), seen("a", 1), True),
        (body("a", 2), seen("a", 3), False),
        (body("b", 2), seen("a", 1), False),
        (None, seen("a", 1), False),
    ],
    ids=["behind what was read", "edited since", "another policy of that name", "made since"],
)
def test_only_a_watch_that_is_behind_what_was_read_tells_of_no_change(
    read: JsonObject | None, newest: Revision, *, stands: bool
) -> None:
    watches = Watches()
    basis = Basis(cast(Gatherer, watches), KEY)
    basis.read(read, None)
    watches.policy = newest
    assert basis.stands(emergency=False) is stands


@pytest.mark.parametrize(
    ("read", "told", "stands"),
    [
        (body("new"), ("new", ""), False),
        (body("new"), ("old", ""), True),
        (None, ("", "new"), True),
    ],
    ids=["deleted", "the watch has not told of it yet", "the first commit makes it"],
)
def test_an_assignment_went_once_the_watch_has_told_of_it_and_does_not_any_more(
    read: JsonObject | None, told: tuple[str, str], *, stands: bool
) -> None:
    watches = Watches()
    basis = Basis(cast(Gatherer, watches), KEY)
    watches.assignment = told[0]
    basis.read(body("a"), read)
    watches.policy, watches.assignment = seen("a", 0), told[1]
    assert basis.stands(emergency=False) is stands
