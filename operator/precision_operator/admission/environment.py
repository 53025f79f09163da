"""The two environment variables of the contract in a pod's containers and init containers."""

from collections.abc import Mapping, Sequence

from precision_operator.api.modes import Mode
from precision_operator.api.wire import mapping, sequence, text
from precision_operator.contract import ENABLE, ENABLE_ENV, MODE, MODE_ENV

Entry = Mapping[str, object]

MAX_ENTRIES = 2_000
"""Of one pod. The entries of a pod with more are not read."""

_OWN_FIELD = {
    ENABLE_ENV: f"metadata.annotations['{ENABLE}']",
    MODE_ENV: f"metadata.annotations['{MODE}']",
}


def with_environment(spec: Mapping[str, object], mode: Mode, *, annotated: bool) -> Mapping[str, object]:
    """The pod's spec with the mode in the environment of every container that may read one.

    ``annotated``: the annotations carry the mode too, so that an entry which reads them is right as it is.
    """
    fields = [field for field in ("containers", "initContainers") if sequence(spec.get(field))]
    known = sum(len(_env(item)) for field in fields for item in sequence(spec.get(field))) <= MAX_ENTRIES
    values = {ENABLE_ENV: "false" if mode is Mode.FP32 else "true", MODE_ENV: str(mode)}
    literals = [{"name": name, "value": value} for name, value in values.items()]
    changed = {
        field: [
            _settled(mapping(item), values, annotated=annotated) if known else _ended(mapping(item), literals)
            for item in sequence(spec.get(field))
        ]
        for field in fields
    }
    return {**spec, **changed}


def _env(container: object) -> Sequence[object]:
    return sequence(mapping(container).get("env"))


def _settled(container: Mapping[str, object], values: Mapping[str, str], *, annotated: bool) -> Mapping[str, object]:
    """Entries are replaced where they stand, because later entries may refer to them by ``$(NAME)``."""
    env = _env(container)
    names = [text(mapping(entry).get("name")) for entry in env]
    if ENABLE_ENV not in names and not sequence(container.get("envFrom")):
        return container
    replaced = [
        {"name": name, "value": values[name]}
        if name in values and not (annotated and _reads_annotation(mapping(entry)))
        else entry
        for name, entry in zip(names, env, strict=True)
    ]
    missing = [{"name": name, "value": value} for name, value in values.items() if name not in names]
    return {**container, "env": [*replaced, *missing]}


def _reads_annotation(entry: Entry) -> bool:
    path = mapping(mapping(entry.get("valueFrom")).get("fieldRef")).get("fieldPath")
    return path == _OWN_FIELD[text(entry.get("name"))]


def _ended(container: Mapping[str, object], literals: list[dict[str, str]]) -> Mapping[str, object]:
    """Both variables at the end of the list, because the last entry of a name counts."""
    env = _env(container)
    last = [text(mapping(entry).get("name")) for entry in env[-2:]]
    kept = env[:-2] if last == [ENABLE_ENV, MODE_ENV] else env
    return {**container, "env": [*kept, *literals]}
