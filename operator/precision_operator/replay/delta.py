"""Differences of JSON values, so that a pass costs what changed in it. The order of keys survives, as ``decide`` saw it.

``{"!": value}`` replaces, ``{"~": {key: delta}, "-": [key]}`` changes an object, ``{"@": {index: delta}}`` a list of the
same length; None: nothing changed.
"""

from typing import cast

from precision_operator.replay.codec import Json


def difference(old: Json, new: Json) -> dict[str, Json] | None:
    """What turns ``old`` into ``new``; None where they are equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(old, new)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        changed: dict[str, Json] = {}
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            delta = difference(before, after)
            if delta is not None:
                changed[str(index)] = delta
        return {"@": changed} if changed else None
    if type(old) is type(new) and old == new:
        return None
    return {"!": new}


def _of_objects(old: dict[str, Json], new: dict[str, Json]) -> dict[str, Json] | None:
    gone = [key for key in old if key not in new]
    kept = [key for key in old if key in new]
    if list(new) != kept + [key for key in new if key not in old]:
        return {"!": new}  # the same keys in another order
    changed: dict[str, Json] = {}
    for key, value in new.items():
        delta = difference(old[key], value) if key in old else {"!": value}
        if delta is not None:
            changed[key] = delta
    found: dict[str, Json] = {}
    if changed:
        found["~"] = changed
    if gone:
        found["-"] = list(gone)
    return found or None


def apply(old: Json, delta: dict[str, Json] | None) -> Json:
    """``new`` of ``difference(old, new)``; ``old`` is left as it is.

    Raises:
        KeyError, TypeError, ValueError: the delta is not one of ``old``.
    """
    if delta is None:
        return old
    if "!" in delta:
        return delta["!"]
    if "@" in delta:
        items = list(cast(list[Json], old))
        for index, inner in cast(dict[str, Json], delta["@"]).items():
            items[int(index)] = apply(items[int(index)], cast(dict[str, Json], inner))
        return items
    result = {k: v for k, v in cast(dict[str, Json], old).items() if k not in cast(list[Json], delta.get("-", []))}
    for key, inner in cast(dict[str, Json], delta.get("~", {})).items():
        result[key] = apply(result.get(key), cast(dict[str, Json], inner))
    return result
