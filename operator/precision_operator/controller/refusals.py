"""Writes that the API server refuses, policy by policy: they are shown until they are accepted, or not wanted any more."""

from collections.abc import Iterable

from precision_operator.api.policy import PolicyKey
from precision_operator.core.model import RefusedWrite
from precision_operator.reasons import Reason

REFUSED_LIMIT = 20
"""Refused writes that are remembered of a policy, to show them."""


class Refusals:
    """Remembers them by what was to be written."""

    def __init__(self) -> None:
        self._known: dict[PolicyKey, dict[str, RefusedWrite]] = {}

    def of(self, key: PolicyKey) -> tuple[RefusedWrite, ...]:
        """Those of a policy."""
        return tuple(self._known.get(key, {}).values())

    def forget(self, key: PolicyKey) -> None:
        """The policy and its assignment are gone."""
        self._known.pop(key, None)

    def keep(self, key: PolicyKey, wanted: Iterable[str]) -> None:
        """Only of what is wanted still."""
        known = self._known.pop(key, None)
        if known:
            names = set(wanted)
            kept = {what: refused for what, refused in known.items() if what in names}
            if kept:
                self._known[key] = kept

    def remember(self, key: PolicyKey, what: str, reason: Reason, *, detail: str = "") -> bool:
        """Whether this is news. ``detail``: more for a person, by which nothing is known again."""
        known = self._known.setdefault(key, {})
        before = known.get(what)
        if before is None and len(known) >= REFUSED_LIMIT:
            return False
        known[what] = RefusedWrite(f"{what}: {detail}" if detail else what, reason)
        return before is None or before.reason != reason

    def accepted(self, key: PolicyKey, what: str) -> None:
        """It was written."""
        known = self._known.get(key)
        if known is not None:
            known.pop(what, None)
            if not known:
                del self._known[key]
