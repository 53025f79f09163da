"""What every page shows, by topic and key, and what of it changed since a page was told last."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Row = dict[str, object]
"""What stands under one key, as JSON."""


@dataclass(frozen=True, slots=True)
class _Entry:
    version: int
    text: str
    """As JSON, by which rows are compared."""
    row: Row | None
    """None: it is gone."""


class Board:
    """Topics of rows. A page that is slow is told the newest state once, however often it changed meanwhile."""

    def __init__(self) -> None:
        self.version = 0
        """Grows with each change."""
        self._topics: dict[str, dict[str, _Entry]] = {}

    def put(self, topic: str, rows: Mapping[str, Row]) -> bool:
        """Take in the whole topic as it is now; whether something of it changed."""
        known, version = self._topics.setdefault(topic, {}), self.version + 1
        changed: dict[str, _Entry] = {}
        for key, row in rows.items():
            written = json.dumps(row, separators=(",", ":"), allow_nan=False)
            before = known.get(key)
            if before is None or before.text != written:
                changed[key] = _Entry(version, written, row)
        for key, entry in known.items():
            if key not in rows and entry.row is not None:
                changed[key] = _Entry(version, "", None)
        if changed:
            known.update(changed)
            self.version = version
        return bool(changed)

    def drop(self, topic: str) -> None:
        """Nobody looks at the topic any more."""
        self._topics.pop(topic, None)

    def since(self, version: int, topics: Iterable[str]) -> dict[str, dict[str, Row | None]]:
        """What changed after this version, by topic; None stands for a row that is gone. 0: everything there is."""
        found: dict[str, dict[str, Row | None]] = {}
        for topic in topics:
            entries = self._topics.get(topic, {}).items()
            news = {k: e.row for k, e in entries if e.version > version and (version or e.row is not None)}
            if news:
                found[topic] = news
        return found

    def forget(self, version: int) -> None:
        """Every page has been told this version: rows that went by then need no mark any more."""
        for entries in self._topics.values():
            for key in [key for key, entry in entries.items() if entry.row is None and entry.version <= version]:
                del entries[key]
