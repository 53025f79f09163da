"""Deciding again: from a recording, bit for bit; or with other thresholds, side by side."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, get_type_hints

from precision_operator.api.policy import Policy
from precision_operator.api.state import State
from precision_operator.api.summary import Summary
from precision_operator.api.wire import camel, duration_seconds
from precision_operator.core.decide import Decision, decide
from precision_operator.replay.codec import Json, RecordingError
from precision_operator.replay.recording import Recording, describe


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where the code that runs now decides otherwise than the code that recorded."""

    index: int
    """Of the pass, from 0."""
    now: float
    path: str
    """Within the decision, e.g. ``state.phase``."""
    recorded: Json
    decided: Json


@dataclass(frozen=True, slots=True)
class Lane:
    """One pass of two runs over the same observations."""

    now: float
    recorded: Summary
    other: Summary


def redecide(recording: Recording) -> Decision:
    """The decision that the code which runs now takes on the recorded inputs."""
    return decide(recording.policy, recording.state, recording.observation, recording.now)


def first_difference(recordings: Sequence[Recording]) -> Difference | None:
    """Decide everything again and compare; None: all of it is the same, bit for bit.

    A pass that was recorded without its decision is decided and not compared.
    """
    for index, recording in enumerate(recordings):
        decided = describe(redecide(recording))
        if recording.decision is None or _text(decided) == _text(recording.decision):
            continue
        path, was, is_ = _where(recording.decision, decided, "")
        return Difference(index, recording.now, path, was, is_)
    return None


def what_if(recordings: Sequence[Recording], assignments: Mapping[str, str]) -> list[Lane]:
    """The same observations under other settings. Each run keeps its own state; the fleet is the recorded one in both.

    Raises:
        RecordingError: an assignment names no setting, or its value does not fit.
    """
    lanes: list[Lane] = []
    state: State | None = None
    for recording in recordings:
        policy = changed(recording.policy, assignments)
        other = decide(policy, recording.state if state is None else state, recording.observation, recording.now)
        lanes.append(Lane(recording.now, redecide(recording).summary, other.summary))
        state = other.state
    return lanes


def changed(policy: Policy, assignments: Mapping[str, str]) -> Policy:
    """The policy with settings replaced; names are those of the CRD, e.g. ``criteria.overflow.enter=0.4``."""
    spec = policy.spec
    for key, value in assignments.items():
        parts = key.removeprefix("spec.").split(".")
        if parts[0] == "criteria" and len(parts) == 3:
            known = {c.signal.value: c for c in spec.criteria}
            if parts[1] not in known:
                raise RecordingError(f"{key}: no signal {parts[1]!r}; expected one of {', '.join(known)}")
            edited = _assign(known[parts[1]], parts[2:], value, key)
            spec = replace(spec, criteria=tuple(edited if c is known[parts[1]] else c for c in spec.criteria))
        else:
            spec = _assign(spec, parts, value, key)
    return replace(policy, spec=spec)


def parse_assignments(texts: Iterable[str]) -> dict[str, str]:
    """``key=value`` texts by key.

    Raises:
        RecordingError: one has no ``=``.
    """
    found: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            raise RecordingError(f"expected key=value, found {text!r}, e.g. criteria.overflow.enter=0.4")
        found[key.strip()] = value.strip()
    return found


def _assign(target: Any, parts: Sequence[str], value: str, key: str) -> Any:  # noqa: ANN401  any of the spec's classes
    names = {camel(f.name): f.name for f in fields(target)}
    name = names.get(parts[0]) or names.get(f"{parts[0]}Seconds")
    if name is None:
        settable = ", ".join(sorted(n.removesuffix("Seconds") for n in names))
        raise RecordingError(f"{key}: no setting {parts[0]!r} in {type(target).__name__}; expected one of {settable}")
    current = getattr(target, name)
    if len(parts) == 1:
        return replace(target, **{name: _value(current, get_type_hints(type(target))[name], value, key)})
    if isinstance(current, Mapping):
        entries = {str(k): k for k in current}
        if parts[1] not in entries:
            raise RecordingError(f"{key}: no entry {parts[1]!r}; expected one of {', '.join(entries)}")
        return replace(target, **{name: {**current, entries[parts[1]]: _number(value, key)}})
    if not hasattr(type(current), "__dataclass_fields__"):
        raise RecordingError(f"{key}: {parts[0]} has no fields of its own")
    return replace(target, **{name: _assign(current, parts[1:], value, key)})


def _value(current: object, hint: object, value: str, key: str) -> object:
    if isinstance(current, bool):
        if value not in ("true", "false"):
            raise RecordingError(f"{key}: expected true or false, found {value!r}")
        return value == "true"
    if isinstance(current, Enum):
        kinds = {str(member.value): member for member in type(current)}
        if value not in kinds:
            raise RecordingError(f"{key}: expected one of {', '.join(kinds)}, found {value!r}")
        return kinds[value]
    if isinstance(current, int):
        if not re.fullmatch(r"-?\d+", value):
            raise RecordingError(f"{key}: expected a whole number, found {value!r}")
        return int(value)
    if isinstance(current, float) or "float" in str(hint):
        return _number(value, key)
    if isinstance(current, str):
        return value
    raise RecordingError(f"{key}: cannot be set here; give one of its fields")


def _number(value: str, key: str) -> float:
    """A number, or a duration in seconds."""
    seconds = duration_seconds(value, -1.0)
    if seconds >= 0:
        return seconds
    try:
        return float(value)
    except ValueError:
        raise RecordingError(f"{key}: expected a number or a duration like 90s, found {value!r}") from None


def _text(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


def _where(recorded: Json, decided: Json, path: str) -> tuple[str, Json, Json]:
    """The first leaf that differs."""
    if isinstance(recorded, dict) and isinstance(decided, dict):
        for key in dict.fromkeys((*recorded, *decided)):
            was, is_ = recorded.get(key), decided.get(key)
            if _text(was) != _text(is_):
                return _where(was, is_, f"{path}.{key}" if path else key)
    if isinstance(recorded, list) and isinstance(decided, list):
        for index, (was, is_) in enumerate(zip(recorded, decided, strict=False)):
            if _text(was) != _text(is_):
                return _where(was, is_, f"{path}[{index}]")
        if len(recorded) != len(decided):
            return f"{path}.length", len(recorded), len(decided)
    return path, recorded, decided
