"""What tenants write, on every path on which it leaves: masked, bounded, and without a meaning of its own."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.markdown import Markdown

from lab.isolation.redaction import Case, cases
from precision_operator.api.commands import ANNOTATIONS, COMMANDS, answer, commands_of
from precision_operator.api.policy import parse_policy
from precision_operator.api.summary import summary_to_wire
from precision_operator.api.text import MESSAGE_CHARACTERS, bounded
from precision_operator.cli.output import write_json
from precision_operator.contract import ABORT, PREFIX, STAMP, SUSPEND_BY
from precision_operator.core.actions import Notify
from precision_operator.errors import SourceUnavailable
from precision_operator.incidents.document import to_body
from precision_operator.incidents.events import happenings
from precision_operator.incidents.evidence import Question, keep, series_of
from precision_operator.incidents.export import export
from precision_operator.incidents.logs import excerpt, pods_to_read
from precision_operator.incidents.markdown import page
from precision_operator.incidents.report import Evidence, stamp
from precision_operator.kube.answers import error_of
from precision_operator.kube.port import JsonObject
from precision_operator.observability.logging import configure
from precision_operator.replay.codec import RecordingError
from precision_operator.replay.recording import bounded as bounded_tape
from precision_operator.replay.recording import describe, pack, record, to_json, unpack
from precision_operator.signals.port import Series
from tests.support.fleets import promoted as promoted_world
from tests.support.reported import Stage, promoted, rolled_back

pytestmark = pytest.mark.slow

SECRETS = cases("secrets", seed=7)
SHORT = [case for case in SECRETS if len(case.text) < 150 and "\n" not in case.text]


def left(case: Case, text: str) -> bool:
    """Whether the credential, or a half of it, stands in a text."""
    half = len(case.secret) // 2
    parts = (case.secret[:half], case.secret[half:]) if half >= 8 else (case.secret,)
    return any(json.dumps(part)[1:-1] in text or part in text for part in parts)


@pytest.mark.parametrize("case", SECRETS, ids=[case.name for case in SECRETS])
def test_a_command_s_message_carries_no_credential(case: Case) -> None:
    raw = {ABORT: f"3: {case.text}", f"{ABORT}{STAMP}": case.text}
    for written in (raw, commands_of(raw)):
        given = answer(written, ABORT)
        assert given is not None
        assert given.transition_id == 3
        assert not left(case, f"{given.message} {given.by}")


@pytest.mark.parametrize(
    "value", ["3", " 3 ", "3:", "3: why", "3 : a: b", "x: 3", ": ", "", "3\n: a\tb", "9" * 300, "3:" + "é " * 9000]
)
def test_what_is_kept_of_a_command_is_answered_as_the_whole_of_it(value: str) -> None:
    assert answer(commands_of({ABORT: value}), ABORT) == answer({ABORT: value}, ABORT)


@pytest.mark.parametrize("case", SECRETS, ids=[case.name for case in SECRETS])
def test_so_it_is_with_a_credential_in_it(case: Case) -> None:
    value = f"3: {case.text}"
    kept = commands_of({ABORT: value})
    assert answer(kept, ABORT) == answer({ABORT: value}, ABORT)
    assert commands_of(kept) == kept


def test_a_policy_keeps_of_its_annotations_the_commands_and_of_these_a_few_kilobytes() -> None:
    huge = "word " * 50_000
    body = {
        "metadata": {
            "name": "fleet",
            "namespace": "team",
            "annotations": {
                **dict.fromkeys(COMMANDS, f"3: {huge}"),
                "kubectl.kubernetes.io/last-applied-configuration": huge,
                f"{PREFIX}/ack-anything": "3",
                f"{PREFIX}/retry": 3,
            },
        }
    }
    kept = parse_policy(body).annotations
    assert set(kept) == COMMANDS - {f"{PREFIX}/retry"}
    assert sum(map(len, kept.values())) < 32 * 1024
    assert kept[SUSPEND_BY].endswith("…")


def test_a_tape_of_128_passes_with_full_annotations_stays_small() -> None:
    world = promoted_world()
    words = iter(range(10**8, 10**9))
    passes = []
    for _ in range(128):
        texts = {name: f"3: {' '.join(str(next(words)) for _ in range(2_500))}" for name in ANNOTATIONS}
        assert sum(map(len, texts.values())) > 256 * 1024  # more than an API server takes of one object
        policy = replace(world.policy, annotations=commands_of(texts))
        passes.append(record(policy, world.state, world.observe(), now=1.0, decision=None))
    kept = sum(len(value) for one in passes for value in one.policy.annotations.values())
    assert kept <= 128 * 16 * 1024
    tape, _ = bounded_tape(passes, count=128, size_bytes=256 * 1024)
    assert len(tape) <= 256 * 1024


@pytest.mark.parametrize("case", SHORT[::9], ids=[case.name for case in SHORT[::9]])
async def test_an_abort_s_reason_is_masked_in_status_events_incident_messages_and_recordings(case: Case) -> None:
    stage: Stage = await promoted()
    number = stage.world.state.transition_id
    body: JsonObject = {"metadata": {"annotations": {ABORT: f"{number}: {case.text}", f"{ABORT}{STAMP}": case.text}}}
    stage.world.policy = replace(stage.world.policy, annotations=parse_policy(body).annotations)
    decision = stage.world.decide()
    assert decision.state.reason == "Aborted"
    await stage.passes(8)
    report = stage.report
    shown = [
        json.dumps(summary_to_wire(decision.summary)),
        json.dumps(describe(decision)),
        *(action.message for action in decision.actions if isinstance(action, Notify)),
        json.dumps(to_body(report, namespace="team")),
        page(report, namespace="team", name="it"),
        *(json.dumps(to_json(recording)) for recording in unpack(report.recordings.tape).recordings),
        *(f"{message.subject}\n{message.body}" for message in report.messages),
    ]
    assert report.messages
    assert "Aborted" in shown[0]
    assert not [text for text in shown if left(case, text)]


@pytest.mark.parametrize("case", SECRETS, ids=[case.name for case in SECRETS])
def test_an_error_carries_no_credential_of_what_a_server_said(case: Case) -> None:
    assert not left(case, str(SourceUnavailable(f"endpoint 'default': {case.text}")))
    if len(case.text) < 300:
        denied = error_of("PATCH /api/v1/pods/x", 403, {"reason": "Forbidden", "message": case.text})
        assert not left(case, str(denied))


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    out = io.StringIO()
    configure("info", out)
    yield out
    root.handlers[:] = before
    root.setLevel(level)


def test_no_log_line_carries_a_credential(log: io.StringIO) -> None:
    for case in SECRETS:
        try:
            raise ValueError(case.text)
        except ValueError:
            logging.getLogger("precision.test").exception(
                "failed: %s",
                case.text,
                extra={"detail": case.text, "all": [{"it": case.text}], "error": ValueError(case.text)},
            )
    lines = log.getvalue().splitlines()
    assert len(lines) == len(SECRETS)
    assert not [case.name for case, line in zip(SECRETS, lines, strict=True) if left(case, line)]
    assert all(json.loads(line)["level"] == "error" for line in lines)


def test_no_line_of_a_pod_s_log_carries_a_credential() -> None:
    for case in SECRETS:
        assert not left(case, excerpt(f"2026-01-01T00:00:00Z start\n{case.text}\n2026-01-01T00:00:02Z end\n")), (
            case.name
        )


async def test_no_event_and_no_label_of_a_series_carries_a_credential() -> None:
    report = (await rolled_back()).report
    for case in SECRETS:
        event: JsonObject = {
            "involvedObject": {"kind": "Deployment", "name": "hot-1"},
            "lastTimestamp": stamp(report.decided_at),
            "message": case.text,
        }
        assert not left(case, json.dumps(happenings(report, [event])))
        series = Series({"pod": "hot-1-1", "model": case.text}, ((1.0, 2.0),))
        kept = keep(Question("run_info", "up", 0.0, 1.0), [series], first=[])
        assert not left(case, json.dumps([dict(s.labels) for s in series_of(kept)]))


def test_control_characters_do_not_hide_a_credential() -> None:
    assert "hunter2" not in bounded("pass\u200bword\x00=hunter2x")


@pytest.mark.parametrize("case", SECRETS, ids=[case.name for case in SECRETS])
def test_bounding_twice_is_bounding_once(case: Case) -> None:
    once = bounded(case.text)
    assert bounded(once) == once
    assert "\n" not in once


def test_a_message_is_never_longer_than_the_schema_takes() -> None:
    for text in ("x" * 10**6, "é " * 10**6, "\x1b[31m" * 10**5, "password=a1 " * 10**5):
        assert len(bounded(text)) <= MESSAGE_CHARACTERS


def test_json_for_programs_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"message": "a\x1b[2J\x7f\x9b31m\u202eb \u2028 é 漢 \ud800"}
    write_json(value)
    shown = capsys.readouterr().out
    assert all(char.isprintable() for char in shown.rstrip("\n"))
    assert json.loads(shown) == value
    assert "é 漢" in shown, "letters stay as they are"


LINKS = (
    "[click](https://evil.example)",
    "![i](https://evil.example/x.png)",
    "<https://evil.example>",
    "https://evil.example/x",
    "www.evil.example",
    "<script>alert(1)</script>",
    "a | b",
    "`code`",
    "[ref]: https://evil.example",
    "&lt;b&gt;",
)


@pytest.mark.parametrize("text", LINKS)
async def test_a_page_shows_what_tenants_wrote_as_text(text: str) -> None:
    stage = await rolled_back()
    report = replace(
        stage.report, message=text, questions=(replace(stage.report.questions[0], answer=text, evidence=text),)
    )
    found = page(report, namespace="team", name="it")
    for active in (
        "](https://evil",
        "<https://",
        "<script>",
        " https://evil",
        "\nhttps://evil",
        " www.evil",
        "\nwww.evil",
        "\n[ref]",
    ):
        assert active not in found
    out = io.StringIO()
    Console(file=out, width=400).print(Markdown(found))
    assert text in out.getvalue(), "and reads as it was written"


async def test_a_message_cannot_end_the_code_that_it_stands_in() -> None:
    report = (await rolled_back()).report
    notice = replace(report.messages[0], body="```\n[click](https://evil.example)\n```")
    found = page(replace(report, messages=(notice,)), namespace="team", name="it")
    assert found.count("```") == 2


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/passwd", "a/b", ".", "", "x" * 65, "a\nb"])
async def test_evidence_is_no_path(name: str, tmp_path: Path) -> None:
    report = (await rolled_back()).report
    forged = replace(report, evidence=(Evidence(name, "up", "", "", series=1),))
    with pytest.raises(RecordingError, match="expected a signal's name"):
        export(to_body(forged, namespace="team"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


async def test_a_recorded_pod_whose_name_is_a_path_is_not_read() -> None:
    report = (await rolled_back()).report
    recordings = unpack(report.recordings.tape).recordings
    seen = recordings[-1].observation
    workload = seen.workloads[0]
    forged = replace(workload, pods=(replace(workload.pods[0], name="../../secrets/x"),))
    last = replace(recordings[-1], observation=replace(seen, workloads=(forged, *seen.workloads[1:])))
    tape = replace(report.recordings, tape=pack([*recordings[:-1], last]))
    assert all("/" not in name for name in pods_to_read(replace(report, recordings=tape)))
