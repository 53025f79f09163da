"""PrecisionAssignment: how the operator's record stands in its object. Read tolerantly, written strictly.

What belongs to one workload stands in one line of ``state.workloads``, grouped by kind: five thousand of them must fit.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace

from precision_operator.api.canary import comparison_to_wire, parse_comparison
from precision_operator.api.conditions import Condition
from precision_operator.api.incident import incident_to_wire, parse_incident
from precision_operator.api.mitigation import mitigations_to_wire, parse_mitigations
from precision_operator.api.modes import Mode, parse_mode
from precision_operator.api.selector import parse_selector, selector_to_wire
from precision_operator.api.signals import Signal
from precision_operator.api.spec import Severity
from precision_operator.api.state import Failing, HeldWorkload, Phase, Restart, State, Suspension
from precision_operator.api.wire import (
    boolean,
    choice,
    format_time,
    integer,
    mapping,
    number,
    parse_time,
    sequence,
    text,
    texts,
)
from precision_operator.api.workload import kind_of, name_of

VERSION = 3
"""Of ``state``. An operator that reads a higher one writes nothing. 2: suspended Jobs are recorded. 3: so are members
that have moved in part; where there is none, 2 is written.
"""

OBJECT_LIMIT_BYTES = 1024 * 1024
"""What an assignment may take: etcd refuses objects of more than 1.5 MiB."""

RESERVE_BYTES = 152 * 1024
"""Of that, for everything that does not grow with the fleet: lists that are capped, conditions, settings."""

_FIELDS = {
    "phaseSince": "phase_since",
    "stepSince": "step_since",
    "evidenceSince": "evidence_since",
    "noDataSince": "no_data_since",
}
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
_MOVED_BYTES = len(':"1234567890 member breached",')
"""The line of a workload that has a mode of its own, beside its name. What is in breach is held, and no silent one is."""
_STAMP = "2026-11-22T12:00:00.000Z"
_UID = "00000000-0000-4000-8000-000000000000"
_ROLLED_BACK_BYTES = len(f':"1234567890 member breached poisoned held=99 restart=2@{_STAMP},{_STAMP}",')
"""The line of one that is rolled back; it has no mode any more."""
_SUSPENDED_BYTES = len(f" suspended={_UID},1234567890@{_STAMP}")
"""The same, of a Job; a label may name one."""


def assignment_to_wire(state: State) -> dict[str, object]:
    """The object's fields besides ``metadata``; empty optional ones are left out."""
    wire: dict[str, object] = {
        "selector": selector_to_wire(state.selector),
        "generation": state.generation,
        "default": str(state.fallback) if state.fallback else None,
        "modes": {**dict.fromkeys(sorted(state.contested), ""), **{k: str(m) for k, m in sorted(state.modes.items())}},
        "enforce": state.enforce,
        "deletionPolicy": "Hold" if state.hold_on_delete else "Release",
        "deletable": state.deletable,
        "state": _state_to_wire(state),
    }
    return {key: value for key, value in wire.items() if value is not None}


def _state_to_wire(state: State) -> dict[str, object]:
    wire: dict[str, object] = {
        "version": VERSION if state.shares else VERSION - 1,
        "policy": {"uid": state.policy_uid, "generation": state.observed_generation},
        "commands": dict(state.commands),
        "settings": json.loads(state.settings) if state.settings else None,
        "phase": str(state.phase),
        "reason": state.reason,
        "message": state.message,
        "precision": str(state.precision) if state.precision else None,
        "transitionId": state.transition_id,
        "stepIndex": state.step_index,
        "attempts": state.attempts,
        "incident": incident_to_wire(state.incident) if state.incident else None,
        "comparison": comparison_to_wire(state.comparison),
        "conditions": [c.to_wire() for c in state.conditions],
        "writer": {"holder": state.writer, "epoch": state.epoch},
        "holds": _holds(state),
        "silences": [format_time(since) for since in _silences(state)],
        "workloads": _workloads_to_wire(state),
        "failing": [_failing_to_wire(f) for f in state.failing],
        "mitigations": mitigations_to_wire(state.mitigations),
        "restartSeconds": list(state.restart_seconds),
        **{name: format_time(getattr(state, attribute)) for name, attribute in _FIELDS.items()},
    }
    return {key: value for key, value in wire.items() if value not in (None, "", [], {})}


def _failing_to_wire(failing: Failing) -> dict[str, object]:
    return {
        "workload": failing.key,
        "signal": str(failing.signal),
        "severity": str(failing.severity),
        "since": format_time(failing.since),
        "count": failing.count,
        "evaluatedAt": format_time(failing.evaluated_at),
        "measured": failing.measured,
    }


def failing_bytes(failing: Failing) -> int:
    """What one entry takes."""
    return len(json.dumps(_failing_to_wire(failing), separators=(",", ":"))) + 1


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
        stamp = f"{format_time(restart.since)},{format_time(restart.newest)}"
        lines.setdefault(key, ["0"]).append(f"restart={restart.rounds}@{stamp}")
    for key, suspension in state.suspensions.items():
        word = "resuming" if suspension.resuming else "suspended"
        job = f"{suspension.uid},{suspension.generation}@{format_time(suspension.since)}"
        lines.setdefault(key, ["0"]).append(f"{word}={job}")
    grouped: dict[str, dict[str, str]] = {}
    for key, words in sorted(lines.items()):
        grouped.setdefault(kind_of(key), {})[name_of(key)] = " ".join(words)
    return grouped


def parse_assignment(body: Mapping[str, object]) -> State:
    """Read the whole object."""
    raw = mapping(body.get("state"))
    policy, writer = mapping(raw.get("policy")), mapping(raw.get("writer"))
    settings = mapping(raw.get("settings"))
    state = State(
        selector=parse_selector(body.get("selector")),
        generation=integer(body.get("generation"), 0),
        fallback=parse_mode(text(body.get("default"))),
        modes=_modes(body.get("modes")),
        contested=frozenset(key for key, value in mapping(body.get("modes")).items() if value == ""),
        enforce=boolean(body.get("enforce"), False),
        hold_on_delete=body.get("deletionPolicy") != "Release",
        deletable=boolean(body.get("deletable"), False),
        policy_uid=text(policy.get("uid")),
        observed_generation=integer(policy.get("generation"), 0),
        commands={key: integer(value, 0) for key, value in mapping(raw.get("commands")).items()},
        settings=json.dumps(settings, sort_keys=True, separators=(",", ":")) if settings else "",
        phase=choice(raw.get("phase"), Phase.PENDING),
        reason=text(raw.get("reason")),
        message=text(raw.get("message")),
        precision=parse_mode(text(raw.get("precision"))),
        transition_id=integer(raw.get("transitionId"), 0),
        step_index=integer(raw.get("stepIndex"), 0),
        phase_since=parse_time(raw.get("phaseSince")),
        step_since=parse_time(raw.get("stepSince")),
        evidence_since=parse_time(raw.get("evidenceSince")),
        no_data_since=parse_time(raw.get("noDataSince")),
        attempts=integer(raw.get("attempts"), 0),
        incident=parse_incident(mapping(raw.get("incident"))),
        comparison=parse_comparison(raw.get("comparison")),
        conditions=tuple(Condition.from_wire(c) for c in map(mapping, sequence(raw.get("conditions")))),
        writer=text(writer.get("holder")),
        epoch=integer(writer.get("epoch"), 0),
        failing=_failing(raw.get("failing")),
        mitigations=parse_mitigations(raw.get("mitigations")),
        restart_seconds=tuple(number(value, 0.0) for value in sequence(raw.get("restartSeconds"))),
    )
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


def _modes(raw: object) -> dict[str, Mode]:
    modes = {key: parse_mode(text(value)) for key, value in mapping(raw).items()}
    return {key: mode for key, mode in modes.items() if mode is not None}


def _failing(raw: object) -> tuple[Failing, ...]:
    signals = {s.value: s for s in Signal}
    return tuple(
        Failing(
            key=text(f.get("workload")),
            signal=signals[text(f.get("signal"))],
            severity=choice(f.get("severity"), Severity.P1),
            since=parse_time(f.get("since")) or 0.0,
            count=integer(f.get("count"), 1),
            evaluated_at=parse_time(f.get("evaluatedAt")) or 0.0,
            measured=text(f.get("measured")),
        )
        for f in map(mapping, sequence(raw))
        if text(f.get("signal")) in signals
    )


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
    since, _, newest = stamps.partition(",")
    return Restart(_number(rounds) or 1, parse_time(since) or 0.0, parse_time(newest) or 0.0)


def _suspension(raw: str, *, resuming: bool) -> Suspension:
    job, _, since = raw.partition("@")
    uid, _, generation = job.partition(",")
    return Suspension(uid, _number(generation) or 0, parse_time(since) or 0.0, resuming)


def _number(raw: str) -> int | None:
    return int(raw) if raw.isascii() and raw.isdecimal() and len(raw) <= 18 else None
