"""What a pass decides on: whether it still stands, as far as the watches know."""

from precision_operator.api.policy import PolicyKey, Revision, revision_of
from precision_operator.api.wire import mapping, text
from precision_operator.controller.gather import Gatherer
from precision_operator.kube.port import JsonObject


class Basis:
    """Of one pass: its policy and its assignment. A watch that is behind what the pass has read tells of no change."""

    def __init__(self, gatherer: Gatherer, key: PolicyKey) -> None:
        """To be made before anything is read."""
        self._gatherer = gatherer
        self._key = key
        self._known = gatherer.revision(key)
        self._read: Revision | None = None
        self._assignment = ""
        """The uid of the assignment that was read; empty: there was none."""
        self._shown = False
        """The watch has told of that one."""

    def read(self, body: JsonObject | None, record: JsonObject | None) -> None:
        """The pass has read policy and assignment."""
        self._read = revision_of(body) if body is not None else None
        self._assignment = text(mapping(record.get("metadata")).get("uid")) if record is not None else ""
        self._went()

    def stands(self, *, emergency: bool) -> bool:
        """Whether the policy still is what was decided on, and the assignment is there.

        An emergency goes on over both: the next pass may have to wait for the metrics of the new spec. But what is
        suspended, or only observed, is written to no more.
        """
        newest, went = self._gatherer.revision(self._key), self._went()
        if newest in (self._known, self._read) or self._is_older(newest):
            return emergency or not went
        return emergency and not (newest is not None and newest.stops)

    def _is_older(self, seen: Revision | None) -> bool:
        """It is what the policy was before it was read."""
        read = self._read
        return seen is not None and read is not None and seen.uid == read.uid and seen.generation < read.generation

    def _went(self) -> bool:
        """The watch has told of the assignment, and does not any more: a person deleted it."""
        uid = self._gatherer.assignment_uid(self._key)
        self._shown = self._shown or (bool(uid) and uid == self._assignment)
        return self._shown and uid != self._assignment
