"""What admission by webhook knows: of each assignment what ``admit`` reads of it, by namespace."""

from collections.abc import Collection, Mapping

from precision_operator.api.wire import integer, mapping, text

_READ = ("selector", "generation", "default", "modes", "indexes", "indexMode", "enforce")
"""The fields of an assignment that are kept: of the operator's own record, which is larger, none."""

Slim = Mapping[str, object]


class KnownAssignments:
    """The assignments that the watch has reported. One thread only."""

    def __init__(self) -> None:
        self._namespaces: dict[str, dict[str, tuple[str, Slim]]] = {}
        """Namespace → name → (uid, what is kept of it)."""

    def observe(self, body: Mapping[str, object], *, deleted: bool) -> None:
        """It was listed, came, changed or went."""
        metadata = mapping(body.get("metadata"))
        namespace, name, uid = (text(metadata.get(field)) for field in ("namespace", "name", "uid"))
        if not deleted:
            slim: Slim = {"metadata": {"name": name}, **{field: body[field] for field in _READ if field in body}}
            self._namespaces.setdefault(namespace, {})[name] = uid, slim
        elif self._namespaces.get(namespace, {}).get(name, ("",))[0] == uid:
            self._drop(namespace, name)

    def relisted(self, namespace: str | None, uids: Collection[str]) -> None:
        """A list is complete: what it lacks is gone. ``namespace`` is None for a list of the whole cluster."""
        for where in [known for known in self._namespaces if namespace in (None, known)]:
            for name in [name for name, (uid, _) in self._namespaces[where].items() if uid not in uids]:
                self._drop(where, name)

    def of(self, namespace: str) -> tuple[Slim, ...]:
        """Those of a namespace, by name: one assignment after the other changes a pod."""
        return tuple(slim for _, (_, slim) in sorted(self._namespaces.get(namespace, {}).items()))

    def generation(self, namespace: str, name: str) -> int | None:
        """Which generation of an assignment is known; None: the assignment is not."""
        found = self._namespaces.get(namespace, {}).get(name)
        return integer(found[1].get("generation"), 0) if found is not None else None

    def _drop(self, namespace: str, name: str) -> None:
        del self._namespaces[namespace][name]
        if not self._namespaces[namespace]:
            del self._namespaces[namespace]
