"""An incident as a folder, and the command line on it, without a cluster."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precision_operator.api.wire import parse_time
from precision_operator.cli import main
from precision_operator.incidents.document import from_body, to_body
from precision_operator.incidents.events import EVENTS_LIMIT, happenings
from precision_operator.incidents.export import export, picture
from precision_operator.incidents.report import stamp
from precision_operator.kube.port import JsonObject
from precision_operator.replay.codec import RecordingError
from precision_operator.replay.recording import Tape, pack, unpack
from tests.support.reported import rolled_back


@pytest.fixture(scope="module")
def body() -> JsonObject:
    """The object of a rollback."""
    return to_body(asyncio.run(rolled_back()).report, namespace="ns")


@pytest.mark.slow
def test_the_folder_holds_a_page_the_object_the_decisions_and_plots(body: JsonObject, tmp_path: Path) -> None:
    files, missing = export(body, tmp_path / "out")
    assert missing == ""
    assert set(files) == {p.name for p in (tmp_path / "out").iterdir()}
    assert {"incident.md", "incident.json", "recording.json", "overflow.png"} <= set(files)
    page = (tmp_path / "out" / "incident.md").read_text()
    for part in ("## Timeline", "## Verification", "## Root-cause questions", "lr: 0.1 → 0.9", "![overflow.png]"):
        assert part in page
    assert json.loads((tmp_path / "out" / "incident.json").read_text()) == body
    assert len(json.loads((tmp_path / "out" / "recording.json").read_text())) == body["report"]["recordings"]["count"]  # type: ignore[index,call-overload]


def test_a_plot_shades_the_phases_from_before_the_rollback_to_what_it_led_to(body: JsonObject) -> None:
    report = from_body(body)
    evidence = next(one for one in report.evidence if one.name == "overflow")
    shown = picture(report, evidence, unpack(report.recordings.tape), where="ns")
    assert [phase for phase, _ in shown.phases] == ["Healthy", "RollingBack", "Held"]
    times = [at for _, at in shown.phases]
    assert times == sorted(times)
    assert [(name, at) for name, at in shown.moments] == [
        ("detected", parse_time(report.stages.detected_at)),
        ("in fallback", parse_time(report.stages.last_ack_at)),
    ]
    assert (shown.panels[0].unit, shown.panels[0].levels[0]) == ("share", ("breach above", 0.3))


@pytest.mark.parametrize(
    ("own", "wanted"), [({}, [("breach above", 0.3)]), ({"query": "mine"}, []), ({"promql": "mine"}, [])]
)
def test_a_day_of_a_signal_has_its_thresholds_where_the_same_query_is_judged(
    body: JsonObject, own: dict[str, Any], wanted: list[tuple[str, float]]
) -> None:
    report = from_body(body)
    evidence = next(one for one in report.evidence if one.name == "overflow_of_a_day")
    last = unpack(report.recordings.tape).recordings[-1]
    criteria = tuple(replace(one, **own) for one in last.policy.spec.criteria)
    judged = replace(last.policy, spec=replace(last.policy.spec, criteria=criteria))
    (panel,) = picture(report, evidence, Tape((replace(last, policy=judged),)), where="ns").panels
    assert (panel.title, list(panel.levels[:1])) == ("Overflow over a day", wanted)


def event(kind: str, name: str, at: str, message: str = "so it was", reason: str = "BackOff") -> JsonObject:
    about: JsonObject = {"kind": kind, "name": name}
    return {
        "involvedObject": about,
        "lastTimestamp": at,
        "reason": reason,
        "type": "Warning",
        "message": message,
        "count": 2,
    }


def test_events_of_the_policy_its_fleet_and_their_pods_are_kept_in_order_and_masked(body: JsonObject) -> None:
    report = from_body(body)
    detected = parse_time(report.stages.detected_at) or 0.0
    late, early, before = (stamp(detected + offset) for offset in (60.0, 30.0, -1801.0))
    events: list[JsonObject] = [
        event("Pod", "hot-1-5d9c7b6f4-abcde", late, "pull of https://me:hunter2@registry.example failed"),
        event("Deployment", "hot-0", early),
        event("PrecisionPolicy", report.policy, early, reason="RolledBack"),
        event("Pod", "hot-1-5d9c7b6f4-abcde", before),
        event("Pod", "stranger-5d9c7b6f4-abcde", late),
        {"involvedObject": {"kind": "Pod", "name": "hot-0-x"}, "reason": "NoTime"},
    ]
    found = happenings(report, events)
    assert [(e["at"], e["object"]) for e in found] == [
        (early, "Deployment/hot-0"),
        (early, f"PrecisionPolicy/{report.policy}"),
        (late, "Pod/hot-1-5d9c7b6f4-abcde"),
    ]
    assert "hunter2" not in str(found)
    assert report.workloads == ("hot-1", "hot-2"), "the healthy ones are known by the recordings"


def test_the_newest_events_are_kept_up_to_a_number(body: JsonObject) -> None:
    report = from_body(body)
    detected = parse_time(report.stages.detected_at) or 0.0
    events = [event("Pod", "hot-1-a", stamp(detected + index)) for index in range(EVENTS_LIMIT + 5)]
    found = happenings(report, events)
    assert len(found) == EVENTS_LIMIT
    assert found[-1]["at"] == stamp(detected + EVENTS_LIMIT + 4)


def test_a_folder_that_holds_something_is_left_alone(body: JsonObject, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(RecordingError, match="name another"):
        export(body, tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def altered(body: JsonObject) -> JsonObject:
    """The same object, with one recorded decision that was never taken."""
    raw = json.loads(json.dumps(body))
    tape = unpack(raw["report"]["recordings"]["tape"])
    tape.recordings[2].decision["state"]["generation"] = 77  # type: ignore[index,call-overload]
    raw["report"]["recordings"]["tape"] = pack(tape.recordings)
    assert isinstance(raw, dict)
    return raw


def test_a_replay_agrees_with_what_was_recorded_and_finds_what_was_altered(
    body: JsonObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "incident.json"
    path.write_text(json.dumps(body))
    assert main(["replay", str(path)]) == 0
    assert "bit for bit the same" in capsys.readouterr().out
    path.write_text(json.dumps(altered(body)))
    assert main(["replay", str(path), "-o", "json"]) == 1
    difference = json.loads(capsys.readouterr().out)["difference"]
    assert (difference["pass"], difference["path"], difference["recorded"]) == (2, "state.generation", 77)
    assert main(["replay", str(path)]) == 1
    assert "state.generation" in capsys.readouterr().out


def test_what_if_stands_beside_what_was(body: JsonObject, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "incident.json"
    path.write_text(json.dumps(body))
    flags = ["--what-if", "criteria.overflow.enter=0.95", "--what-if", "criteria.overflow.leave=0.93"]
    assert main(["replay", str(path), *flags, "--what-if", "criteria.overflow.warn=0.94", "-o", "json"]) == 0
    last = json.loads(capsys.readouterr().out)[-1]
    assert (last["recorded"]["phase"], last["whatIf"]["phase"]) == ("Held", "Healthy")
    assert main(["replay", str(path), "--what-if", "criteria.overflow.entry=1"]) == 1
    assert "expected one of" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["no json", "[1]", "{}", '{"report": {"id": "x", "novelty": 1}}'])
def test_a_file_that_is_no_incident_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "incident.json"
    path.write_text(text)
    assert main(["replay", str(path)]) == 1
    assert "kubectl precision replay:" in capsys.readouterr().err
