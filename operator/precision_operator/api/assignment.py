"""PrecisionAssignment: how the operator's record stands in its object. Read tolerantly, written strictly.

What belongs to one workload stands in one line of ``state.workloads``, grouped by kind: five thousand of them must fit.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from precision_operator.api.codec import decode, encode
from precision_operator.api.state import Failing, HeldWorkload, Phase, Restart, State, Suspension
from precision_operator.api.wire import format_time, integer, mapping, parse_time, sequence, text, texts
from precision_operator.api.workload import kind_of, name_of

VERSION = 5
"""Of ``state``. An operator that reads a higher one writes nothing. 2: suspended Jobs are recorded. 3: so are members
that have moved in part. 4: some of those by index. 5: the times of a restart by their distance from its first, and its
pods. What an older version can say is written as that version.
"""

OBJECT_LIMIT_BYTES = 1024 * 1024
"""What an assignment may take: etcd refuses objects of more than 1.5 MiB."""

RESERVE_BYTES = 152 * 1024
"""Of that, for everything that does not grow with the fleet: lists that are capped, conditions, settings."""

_SILENT = "s"
"""Of a workload that is silent, with the place of its time in ``silences``; short, for all may be."""
_PART = "p"
"""Of a member that has moved in part, with how many of its pods; in the place of ``member``, and no longer."""
_WORDS = {"members": "member", "canary": "canary", "breached": "breached", "poisoned": "poisoned"}


def fleet_bytes(keys: Iterable[str]) -> int:
    """The most that these workloads take in an assignment, in any phase."""
    return sum(
        _quoted_bytes(name_of(key)) + max(_quoted_bytes(key) + _MODE_BYTES + _MOVED_BYTES, _rolled_back_bytes(key))
        for key in keys
    )


def _rolled_back_bytes(key: str) -> int:
    return _ROLLED_BACK_BYTES + (0 if key.startswith("apps/") else _SUSPENDED_BYTES)


def _quoted_bytes(word: str) -> int:
    plain = word.isascii() and word.isprintable() and '"' not in word and "\\" not in word
    return len(word) + 2 if plain else len(json.dumps(word))


_MODE_BYTES = len(':"fp16",')
"""An index takes no more, and a workload has one or the other."""
_MOVED_BYTES = len(':"1234567890 member breached",')
"""The line of a workload that has a mode of its own, beside its name. What is in breach is held, and no silent one is."""
_STAMP = "2026-11-22T12:00:00.000Z"
_UID = "00000000-0000-4000-8000-000000000000"
_ROLLED_BACK_BYTES = len(
    f':"1234567890 member breached poisoned held=99 restart=2@{_STAMP},-123456789012,1234,1234567890",'
)
"""The line of one that is rolled back; it has no mode any more."""
_SUSPENDED_BYTES = len(f" suspended={_UID},1234567890@{_STAMP}")
"""The same, of a Job; a label may name one."""


def assignment_to_wire(state: State) -> dict[str, object]:
    """The object's fields besides ``metadata``; empty optional ones are left out."""
    wire = encode(state)
    wire["modes"] = {
        **dict.fromkeys(sorted(state.contested), ""),
        **{k: str(m) for k, m in sorted(state.modes.items())},
    }
    columns: dict[str, object] = {
        "holds": _holds(state),
        "silences": [format_time(since) for since in _silences(state)],
        "workloads": _workloads_to_wire(state),
    }
    found = {name: column for name, column in columns.items() if column}
    wire["state"] = {"version": _version_of(state), **mapping(wire["state"]), **found}
    return wire


def _version_of(state: State) -> int:
    """The oldest version that can say it."""
    if any("," in _stamps(restart) for restart in state.restarts.values()):
        return VERSION
    return 4 if state.indexes else 3 if state.shares else 2


def failing_bytes(failing: Failing) -> int:
    """What one entry takes."""
    return len(json.dumps(encode(failing), separators=(",", ":"))) + 1


def _hold(held: HeldWorkload) -> str:
    return f"{held.reason}@{format_time(held.since)}"


def _holds(state: State) -> list[str]:
    """Why and since when: one entry for all that a rollback took back at the same time."""
    return sorted({_hold(held) for held in state.held})


def _silences(state: State) -> list[float]:
    """Since when workloads are silent: one entry for all that fell silent at the same time."""
    return sorted(set(state.silent.values()))


def _workloads_to_wire(state: State) -> dict[str, dict[str, str]]:
    lines: dict[str, list[str]] = {key: [str(generation)] for key, generation in state.changed.items()}
    for role, word in _WORDS.items():
        for key in getattr(state, role):
            if role == "members" and key in state.shares:
                continue
            lines.setdefault(key, ["0"]).append(word)
    for key, share in state.shares.items():
        lines.setdefault(key, ["0"]).append(f"{_PART}={share}")
    holds = {hold: index for index, hold in enumerate(_holds(state))}
    for held in state.held:
        lines.setdefault(held.key, ["0"]).append(f"held={holds[_hold(held)]}")
    silences = {since: index for index, since in enumerate(_silences(state))}
    for key, since in state.silent.items():
        lines.setdefault(key, ["0"]).append(f"{_SILENT}={silences[since]}")
    for key, restart in state.restarts.items():
        lines.setdefault(key, ["0"]).append(f"restart={restart.rounds}@{_stamps(restart)}")
    for key, suspension in state.suspensions.items():
        word = "resuming" if suspension.resuming else "suspended"
        job = f"{suspension.uid},{suspension.generation}@{format_time(suspension.since)}"
        lines.setdefault(key, ["0"]).append(f"{word}={job}")
    grouped: dict[str, dict[str, str]] = {}
    for key, words in sorted(lines.items()):
        grouped.setdefault(kind_of(key), {})[name_of(key)] = " ".join(words)
    return grouped


def _stamps(restart: Restart) -> str:
    """Its times: all but the first in milliseconds since that, for all of a fleet may be restarting."""
    newest, gone = (f"{1000 * (at - restart.since):.0f}" if at else "" for at in (restart.newest, restart.gone))
    pods = str(restart.pods) if restart.pods >= 0 else ""
    return f"{format_time(restart.since)},{newest},{pods},{gone}".rstrip(",")


def parse_assignment(body: Mapping[str, object]) -> State:
    """Read the whole object."""
    raw = mapping(body.get("state"))
    contested = frozenset(key for key, mode in mapping(body.get("modes")).items() if mode == "")
    # where it has no default, pods stay as their templates have them
    state = decode(body, State(fallback=None, contested=contested))
    silences = tuple(parse_time(text(since)) for since in sequence(raw.get("silences")))
    return _with_workloads(state, mapping(raw.get("workloads")), texts(raw.get("holds")), silences)


def state_version(body: Mapping[str, object]) -> int:
    """The version that wrote the object's state."""
    return integer(mapping(body.get("state")).get("version"), VERSION)


def rolled_back_in(body: Mapping[str, object]) -> frozenset[str] | None:
    """What a rollback holds, or is about to, without reading the rest of the object; None: all that it governs."""
    raw = mapping(body.get("state"))
    if raw.get("phase") in (Phase.ROLLING_BACK, Phase.HELD):
        return None
    if not sequence(raw.get("holds")):
        return frozenset()
    groups = ((kind, mapping(group)) for kind, group in mapping(raw.get("workloads")).items())
    lines = ((f"{kind}/{name}", text(line)) for kind, group in groups for name, line in group.items())
    return frozenset(key for key, line in lines if " held=" in line)


def _with_workloads(
    state: State, raw: Mapping[str, object], holds: tuple[str, ...], silences: tuple[float | None, ...]
) -> State:
    roles: dict[str, list[str]] = {word: [] for word in _WORDS.values()}
    changed: dict[str, int] = {}
    held: list[HeldWorkload] = []
    silent: dict[str, float] = {}
    shares: dict[str, int] = {}
    restarts: dict[str, Restart] = {}
    suspensions: dict[str, Suspension] = {}
    lines = {f"{kind}/{name}": line for kind, group in raw.items() for name, line in mapping(group).items()}
    for key, line in sorted(lines.items()):
        first, *words = text(line).split(" ")
        changed[key] = _number(first) or 0
        for word in words:
            head, _, rest = word.partition("=")
            if head in roles:
                roles[head].append(key)
            elif head == "held":
                held.append(_held(key, rest, holds))
            elif head == _SILENT:
                index = _number(rest)
                since = silences[index] if index is not None and index < len(silences) else None
                silent.update({key: since} if since is not None else {})
            elif head == _PART:
                shares[key] = _number(rest) or 0
                roles["member"].append(key)
            elif head == "restart":
                restarts[key] = _restart(rest)
            elif head in ("suspended", "resuming"):
                suspensions[key] = _suspension(rest, resuming=head == "resuming")
    return replace(
        state,
        changed={key: generation for key, generation in changed.items() if generation},
        held=tuple(held),
        silent=silent,
        shares=shares,
        restarts=restarts,
        suspensions=suspensions,
        members=tuple(roles["member"]),
        canary=tuple(roles["canary"]),
        breached=tuple(roles["breached"]),
        poisoned=tuple(roles["poisoned"]),
    )


def _held(key: str, raw: str, holds: tuple[str, ...]) -> HeldWorkload:
    """A workload that was rolled back by itself stays so, whatever is written of why."""
    index = _number(raw)
    reason, _, since = holds[index].rpartition("@") if index is not None and index < len(holds) else ("", "", "")
    return HeldWorkload(key, reason, parse_time(since) or 0.0)


def _restart(raw: str) -> Restart:
    rounds, _, stamps = raw.partition("@")
    first, newest, pods, gone = (*stamps.split(","), "", "", "")[:4]
    since, count = parse_time(first) or 0.0, _number(pods)
    return Restart(
        _number(rounds) or 1,
        since,
        # It was written whole before.
        (parse_time(newest) or 0.0) if "T" in newest else _later(since, newest),
        pods=count if count is not None else -1,
        gone=_later(since, gone),
    )


def _later(since: float, milliseconds: str) -> float:
    """A time by its distance from another one; 0: there is none."""
    try:
        return round(since + int(milliseconds) / 1000, 3)
    except ValueError:
        return 0.0


def _suspension(raw: str, *, resuming: bool) -> Suspension:
    job, _, since = raw.partition("@")
    uid, _, generation = job.partition(",")
    return Suspension(uid, _number(generation) or 0, parse_time(since) or 0.0, resuming)


def _number(raw: str) -> int | None:
    return int(raw) if raw.isascii() and raw.isdecimal() and len(raw) <= 18 else None
