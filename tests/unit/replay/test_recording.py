"""Recordings: lossless over whatever the property tests' world brings forth, and decided again bit for bit."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.model.policies import FAST, policy
from lab.model.world import World
from precision_operator.api.modes import Mode
from precision_operator.api.selector import Selector
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.core.decide import decide
from precision_operator.incidents.evidence import series_of
from precision_operator.incidents.report import Evidence
from precision_operator.replay.codec import RecordingError
from precision_operator.replay.delta import apply, difference
from precision_operator.replay.recording import (
    UNPACKED_BYTES,
    Recording,
    bounded,
    describe,
    from_json,
    pack,
    record,
    schema,
    to_json,
    unpack,
)
from precision_operator.replay.rerun import changed, first_difference, parse_assignments, what_if
from tests.support.fleets import promoted

pytestmark = pytest.mark.slow

NAMES = [f"hot-{i}" for i in range(4)] + ["literal-0"]

events = st.one_of(
    st.tuples(st.just("step"), st.sampled_from([1.0, 15.0, 31.0])),
    st.tuples(st.just("bad"), st.sampled_from(NAMES), st.sampled_from(list(Signal)), st.floats(allow_nan=True)),
    st.tuples(st.just("well"), st.sampled_from(NAMES)),
    st.tuples(st.just("unobservable"), st.sampled_from(NAMES)),
    st.tuples(st.just("metrics away"), st.booleans()),
    st.tuples(st.just("retry"), st.just(0)),
)


def new_world() -> World:
    world = World(policy(**FAST))
    for name in NAMES:
        world.add(name, hot=name.startswith("hot"), pods=2 if name == "hot-0" else 1)
    return world


def taped(world: World, history: list[tuple[object, ...]]) -> list[Recording]:
    """Play a history, and record each pass."""
    tape: list[Recording] = []
    for kind, *arguments in history:
        seconds = 15.0
        match kind, arguments:
            case "step", [float(given)]:
                seconds = given
            case "bad", [str(name), Signal() as signal, float(value)]:
                world.bad[name] = {signal: value}
            case "well", [str(name)]:
                world.bad.pop(name, None)
            case "unobservable", [str(name)]:
                world.unobservable ^= {name}
            case "metrics away", [bool(away)]:
                world.metrics_away = away
            case "retry", _:
                answer = {"precision.genesis.ai/retry": str(world.state.transition_id)}
                world.policy = replace(world.policy, annotations=answer)
        before, observation, now = world.state, world.observe(), world.now
        decision = world.step(seconds)
        tape.append(record(world.policy, before, observation, now=now, decision=decision))
    return tape


def rolled_back(passes: int = 30) -> list[Recording]:
    """A rollout, a breach on half of the fleet, the rollback and what follows."""
    world = new_world()
    tape = taped(world, [("step", 15.0)] * passes)
    return tape + taped(world, [("bad", "hot-1", Signal.OVERFLOW, 0.9), ("bad", "hot-2", Signal.OVERFLOW, 0.9)] * 6)


@settings(max_examples=60, deadline=None)
@given(st.lists(events, max_size=25))
def test_a_recording_comes_back_whole_and_decides_the_same(history: list[tuple[object, ...]]) -> None:
    tape = taped(new_world(), history)
    read = unpack(pack(tape)).recordings
    # NaN is unequal to itself: their JSON, which says it in words, is compared too.
    assert [to_json(r) for r in read] == [to_json(r) for r in tape]
    for was, is_ in zip(tape, read, strict=True):
        again = decide(is_.policy, is_.state, is_.observation, is_.now)
        assert describe(again) == was.decision
        assert (is_.policy, is_.state, is_.now) == (was.policy, was.state, was.now)
        if "NaN" not in json.dumps(to_json(was)):
            assert is_ == was
            assert again == decide(was.policy, was.state, was.observation, was.now)
    assert first_difference(read) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner, max_size=4),
    max_leaves=12,
)


@given(json_values, json_values)
def test_a_difference_applied_gives_the_new_value_in_its_order_of_keys(old: object, new: object) -> None:
    delta = difference(old, new)  # type: ignore[arg-type]
    assert json.dumps(apply(old, json.loads(json.dumps(delta)))) == json.dumps(new)  # type: ignore[arg-type]
    assert difference(new, new) is None  # type: ignore[arg-type]


def test_an_edited_selector_is_recorded() -> None:
    world = promoted()
    world.policy = replace(world.policy, spec=replace(world.policy.spec, selector=Selector((("fleet", "other"),))))
    world.labels["hot-1"] = {"fleet": "other"}
    tape = taped(world, [("step", 15.0)] * 3)
    assert tape[0].observation.matching is not None
    read = unpack(pack(tape)).recordings
    assert read == tuple(tape)
    assert first_difference(read) is None


def test_what_a_pods_owner_wrote_into_its_request_is_not_recorded() -> None:
    world = promoted()
    seen = world.observe()
    first, *others = seen.workloads
    odd = replace(first, pods=tuple(replace(pod, request_raw="password=hunter2") for pod in first.pods))
    kept = record(world.policy, world.state, replace(seen, workloads=(odd, *others)), now=1.0, decision=None)
    assert "hunter2" not in json.dumps(to_json(kept))
    assert from_json(to_json(kept)).observation == seen


def test_a_recording_of_an_operator_that_kept_requests_is_read() -> None:
    world = promoted()
    raw = json.dumps(to_json(record(world.policy, world.state, world.observe(), now=1.0, decision=None)))
    older = json.loads(raw.replace('"pods": [{', '"pods": [{"requestRaw": "x", '))
    pods = [pod for workload in from_json(older).observation.workloads for pod in workload.pods]
    assert "x" in {pod.request_raw for pod in pods}


def test_infinities_and_nan_come_back() -> None:
    world = new_world()
    world.bad["hot-0"] = {Signal.OVERFLOW: math.inf, Signal.SPEED: -math.inf, Signal.DIVERGENCE: math.nan}
    world.everywhere = {Signal.FAILURES: -0.0}
    world.modes = dict.fromkeys(world.modes, (Mode.FP16, 1))
    taped_once = record(world.policy, world.state, world.observe(), now=world.now, decision=None)
    evaluation = from_json(json.loads(json.dumps(to_json(taped_once), allow_nan=False))).observation.evaluation
    assert evaluation is not None
    values = evaluation.pods["hot-0-1"].values
    assert values[Signal.OVERFLOW] == math.inf
    assert values[Signal.SPEED] == -math.inf
    assert math.isnan(values[Signal.DIVERGENCE])
    assert math.copysign(1.0, values[Signal.FAILURES]) == -1.0


def test_what_is_recorded_has_the_same_fingerprint_in_every_process() -> None:
    command = [sys.executable, "-c", "from precision_operator.replay.recording import schema; print(schema())"]
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": seed}
        assert subprocess.check_output(command, env=environment, text=True).strip() == schema()


def test_an_unchanged_pass_costs_a_few_bytes() -> None:
    one, many = rolled_back(30), rolled_back(130)
    assert (len(pack(many)) - len(pack(one))) / 100 < 60


def test_the_first_difference_is_named_by_time_and_place() -> None:
    tape = rolled_back()
    altered = json.loads(json.dumps(tape[7].decision))
    altered["state"]["generation"] = 99
    tape[7] = replace(tape[7], decision=altered)
    found = first_difference(tape)
    assert found is not None
    assert (found.index, found.now, found.path, found.recorded) == (7, tape[7].now, "state.generation", 99)


def test_other_thresholds_are_decided_side_by_side() -> None:
    tape = rolled_back()
    assert Phase.HEALTHY in {r.state.phase for r in tape}
    lanes = what_if(tape, parse_assignments(["criteria.overflow.enter=0.95", "criteria.overflow.leave=0.94"]))
    assert lanes[-1].recorded.phase is Phase.HELD
    assert lanes[-1].other.phase is Phase.HEALTHY
    assert [lane.now for lane in lanes] == [r.now for r in tape]


@pytest.mark.parametrize(
    ("assignment", "read"),
    [
        ("criteria.failures.severity=P1", lambda spec: spec.criteria[2].severity.value == "P1"),
        ("evaluation.failureLimit=7", lambda spec: spec.evaluation.failure_limit == 7),
        ("evaluation.window=2m", lambda spec: spec.evaluation.window_seconds == 120.0),
        ("rollback.deadlines.P0=90s", lambda spec: spec.rollback.deadlines_seconds["P0"] == 90.0),
        ("spec.suspend=true", lambda spec: spec.suspend is True),
        ("criteria.speed.promoteBelow=0.5", lambda spec: spec.criteria[4].promote_below == 0.5),
    ],
)
def test_a_setting_is_named_as_the_policy_names_it(assignment: str, read: object) -> None:
    assert read(changed(policy(), parse_assignments([assignment])).spec)  # type: ignore[operator]


@pytest.mark.parametrize(
    "assignment",
    [
        "criteria.overflow.entry=1",
        "criteria.heat.enter=1",
        "evaluation.failureLimit=x",
        "nothing",
        "strategy=1",
        "suspend=2",
    ],
)
def test_a_setting_that_is_none_is_refused_by_name(assignment: str) -> None:
    with pytest.raises(RecordingError, match="expected"):
        changed(policy(), parse_assignments([assignment]))


def test_a_long_tape_keeps_its_ends_and_says_how_many_are_gone() -> None:
    tape = rolled_back()
    text, gone = bounded(tape, count=10, size_bytes=1 << 20)
    kept = unpack(text)
    assert (len(kept.recordings), gone, kept.dropped) == (10, len(tape) - 10, len(tape) - 10)
    assert (kept.recordings[0].now, kept.recordings[-1].now) == (tape[0].now, tape[-1].now)
    assert first_difference(kept.recordings) is None
    small, _ = bounded(tape, count=100, size_bytes=4000)
    assert len(small) <= 4000
    assert unpack(small).recordings


def test_no_tape_is_written_that_is_too_large_to_be_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tape = rolled_back()
    whole = len(base64.b64decode(pack(tape)))
    monkeypatch.setattr("precision_operator.replay.recording.UNPACKED_BYTES", 4 * whole)
    text, gone = bounded(tape, count=len(tape), size_bytes=1 << 20)
    assert gone > 0
    assert unpack(text).recordings


def test_evidence_that_is_damaged_or_too_large_says_so() -> None:
    for data in (corrupt(zipped(b"[]" * 50)), zipped(bytes(16 * 2**20 + 1)), "not base64!"):
        evidence = Evidence("overflow", "q", "", "", data=data)
        with pytest.raises(RecordingError, match="evidence overflow: expected series"):
            series_of(evidence)


def zipped(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


def corrupt(text: str) -> str:
    """One byte of the stream is another."""
    raw = bytearray(base64.b64decode(text))
    raw[10] = 0xFF
    return base64.b64encode(raw).decode()


def cut(text: str) -> str:
    return base64.b64encode(base64.b64decode(text)[:-9]).decode()


def damaged(change: dict[str, object]) -> str:
    head, *entries = gzip.decompress(base64.b64decode(pack(rolled_back(2)))).decode().split("\n")
    whole = json.loads(entries[0])
    whole["!"].update(change.pop("entry", {}))
    lines = [json.dumps({**json.loads(head), **change}), json.dumps(whole)]
    return base64.b64encode(gzip.compress("\n".join(lines).encode())).decode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("not base64!", "expected a tape"),
        (base64.b64encode(b"not gzip").decode(), "expected a tape"),
        (zipped(b"[" * 10**6), "expected a tape"),
        (zipped(bytes(UNPACKED_BYTES + 1)), f"more than {UNPACKED_BYTES} bytes"),
        (corrupt(zipped(b"{}" * 50)), "expected a tape"),
        (cut(zipped(b"{}" * 50)), "expected a tape.*ends too early"),
        (damaged({"format": 99}), "expected format 2, found 99"),
        (damaged({"entry": {"state": {"novelty": 1}}}), "State.novelty is unknown to this version"),
        (damaged({"entry": {"state": {"phase": "Nowhere"}}}), "expected a recorded State"),
        (damaged({"entry": {"now": "noon"}}), "expected a recording"),
    ],
)
def test_a_tape_that_cannot_be_read_says_why(text: str, words: str) -> None:
    with pytest.raises(RecordingError, match=words):
        unpack(text)
