"""Recordings: what each decision saw and what it decided, so that it can be decided again, bit for bit.

A tape is a header and one entry a pass, each the difference from the one before, as gzip in base64. It is versioned: the
header names the format, the operator's version and a fingerprint of the types (their defaults are left out of the entries).
"""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import cast, get_type_hints

from precision_operator import __version__
from precision_operator.api.policy import Policy
from precision_operator.api.state import State
from precision_operator.core.actions import Action
from precision_operator.core.decide import Decision
from precision_operator.core.model import Observation, PodView, WorkloadView
from precision_operator.replay.codec import Json, RecordingError, decode, encode, fingerprint, unpacked
from precision_operator.replay.delta import apply, difference

FORMAT = 2
UNPACKED_BYTES = 64 * 2**20
"""What is read of a tape at most: the operator has memory for no more."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One pass: the inputs of ``decide``, and its answer as :func:`describe` gives it."""

    policy: Policy
    state: State
    """Before the pass."""
    observation: Observation
    now: float
    """Seconds since the epoch, as given to ``decide``."""
    decision: Json = None


@dataclass(frozen=True, slots=True)
class Tape:
    """Recordings in the order of their passes, and which code wrote them."""

    recordings: tuple[Recording, ...]
    operator: str = __version__
    schema: str = ""
    dropped: int = 0
    """Passes left out to stay within the limits; they lie between the first and the last ones."""


def schema() -> str:
    """The fingerprint of what is recorded, as this version has it."""
    return fingerprint(Policy, State, Observation)


def record(
    policy: Policy, state: State, observation: Observation, *, now: float, decision: Decision | None
) -> Recording:
    """A pass as it is kept; ``policy`` has of its object the spec and the commands, and ``decide`` reads nothing else."""
    answer = describe(decision) if decision is not None else None
    return Recording(policy, state, observation, now, answer)


def describe(decision: Decision) -> Json:
    """A decision as JSON: the state, each action with the names of what it writes to, and when to look again."""
    return {
        "state": encode(decision.state, State),
        "actions": [_describe_action(action) for action in decision.actions],
        "wakeAt": decision.wake_at,
    }


def _describe_action(action: Action) -> Json:
    hints = get_type_hints(type(action))
    found: dict[str, Json] = {"is": type(action).__name__}
    for field in fields(action):
        value = getattr(action, field.name)
        if isinstance(value, WorkloadView | PodView):
            found[field.name] = value.name
        else:
            found[field.name] = encode(value, hints[field.name])
    return found


def to_json(recording: Recording) -> dict[str, Json]:
    """One recording, whole."""
    return {
        "policy": encode(recording.policy, Policy),
        "state": encode(recording.state, State),
        "observation": encode(recording.observation, Observation),
        "now": recording.now,
        "decision": recording.decision,
    }


def from_json(raw: Json) -> Recording:
    """The recording that ``to_json`` wrote.

    Raises:
        RecordingError: it is not one, or of a version with fields unknown here.
    """
    if not isinstance(raw, dict) or not isinstance(raw.get("now"), int | float):
        raise RecordingError("expected a recording with policy, state, observation and now, found something else")
    return Recording(
        policy=decode(raw.get("policy"), Policy),
        state=decode(raw.get("state"), State),
        observation=decode(raw.get("observation"), Observation),
        now=cast(float, raw["now"]),
        decision=raw.get("decision"),
    )


def pack(recordings: Sequence[Recording], *, dropped: int = 0) -> str:
    """A tape as text: gzip in base64. Equal recordings give equal text."""
    return _packed(_lines(recordings, dropped=dropped))


def _packed(lines: bytes) -> str:
    return base64.b64encode(gzip.compress(lines, compresslevel=6, mtime=0)).decode("ascii")


def _lines(recordings: Sequence[Recording], *, dropped: int) -> bytes:
    head: Json = {"format": FORMAT, "operator": __version__, "schema": schema(), "dropped": dropped}
    lines = [json.dumps(head)]
    last: Json = None
    for recording in recordings:
        whole = to_json(recording)
        lines.append(json.dumps(difference(last, whole), allow_nan=False, separators=(",", ":"), ensure_ascii=False))
        last = whole
    return "\n".join(lines).encode()


def unpack(text: str) -> Tape:
    """The tape in ``text``.

    Raises:
        RecordingError: it is none, is damaged, or has a format unknown here.
    """
    try:
        head, *entries = unpacked(text, most_bytes=UNPACKED_BYTES).decode().split("\n")
        header = json.loads(head)
        if header["format"] != FORMAT:
            raise RecordingError(
                f"expected format {FORMAT}, found {header['format']}; use operator {header.get('operator')} to read it"
            )
        recordings: list[Recording] = []
        last: Json = None
        for entry in entries:
            last = apply(last, json.loads(entry))
            recordings.append(from_json(last))
        return Tape(tuple(recordings), header["operator"], header["schema"], header["dropped"])
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise RecordingError(
            f"expected a tape (gzip in base64), found {type(error).__name__}: {error}; take it from the cluster again"
        ) from error


def bounded(recordings: Sequence[Recording], *, count: int, size_bytes: int, dropped: int = 0) -> tuple[str, int]:
    """A tape of at most ``count`` passes and ``size_bytes`` characters that can be read again; how many passes it lacks.

    The first and the last passes matter most (what led to it, how it ended): the middle is thinned.
    """
    kept = list(recordings)
    limit = count
    while True:
        while len(kept) > limit:
            del kept[len(kept) // 2]
        gone = dropped + len(recordings) - len(kept)
        lines = _lines(kept, dropped=gone)
        text = _packed(lines) if len(lines) <= UNPACKED_BYTES else ""
        if (text and len(text) <= size_bytes) or not kept:
            return text, gone
        limit = len(kept) // 2
