"""The program itself, and what all of its verbs share."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import precision_operator
from precision_operator.api.state import Phase
from precision_operator.cli import MODULES, main
from precision_operator.errors import Forbidden
from precision_operator.kube.port import EVENTS, POLICIES, JsonObject, Resource
from tests.support.cli import HELD, INCIDENT, NOW, PREFIX, Cli, stands


def test_without_a_name_the_only_policy_is_meant(cli: Cli) -> None:
    assert "there is none: choose another with -n" in cli("status", code=1)
    cli.policy(stands(Phase.HEALTHY), name="a")
    assert "default/a" in cli("status")
    cli.policy(stands(Phase.HEALTHY), name="b")
    assert "name the PrecisionPolicy that is meant: in namespace default, there are a, b" in cli("status", code=1)
    assert "no PrecisionPolicy c in namespace default; there are a, b" in cli("status", "c", code=1)


def test_a_deleted_policy_is_found_by_what_it_left_behind(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY), name="a")
    cli.assignment(stands(Phase.HELD, reason="PolicyDeleted"), name="b")
    assert [(fleet["name"], fleet["deleted"]) for fleet in cli.json("get")] == [("a", False), ("b", True)]
    assert "default/b" in cli("status", "b", code=3)


@pytest.mark.parametrize("plural", ["precisionpolicies", "precisionassignments"])
def test_what_a_person_may_not_read_is_named(cli: Cli, monkeypatch: pytest.MonkeyPatch, plural: str) -> None:
    cli.policy(stands(Phase.HEALTHY))
    allowed = cli.fake.get

    async def get(resource: Resource, namespace: str, name: str) -> JsonObject:
        if resource.plural == plural:
            raise Forbidden(f"bob may not get {plural}", status=403)
        return await allowed(resource, namespace, name)

    monkeypatch.setattr(cli.fake, "get", get)
    said = cli("status", "fleet", code=1)
    assert f"bob may not get {plural}; ask for `get` and `list` on precisionpolicies and precisionassignments" in said


def test_history_joins_events_the_rollbacks_stages_and_people(cli: Cli) -> None:
    managed = [
        {
            "manager": "m",
            "time": "2026-01-01T00:00:10Z",
            "fieldsV1": {"f:metadata": {"f:annotations": {f"f:{PREFIX}abort": {}}}},
        }
    ]
    recovered = stands(Phase.HELD, HELD, incident=replace(INCIDENT, recovered_at=NOW))
    cli.policy(recovered, annotations={f"{PREFIX}abort": "3", f"{PREFIX}abort-by": "bob", f"{PREFIX}retry": "1"})
    body: Any = cli.fake.objects[(POLICIES.plural, "default", "fleet")]
    body["metadata"]["managedFields"] = managed
    for name, uid, count in (("ours", "uid-fleet", 3), ("others", "uid-other", 1)):
        cli.fake.put(
            EVENTS,
            {
                "metadata": {"name": name},
                "involvedObject": {"uid": uid},
                "reason": "RolledBack",
                "message": name,
                "count": count,
                "lastTimestamp": "2026-01-01T00:00:20Z",
            },
        )
    shown = cli.json("history")
    assert [(e["source"], e["reason"], e["by"]) for e in shown] == [
        ("Person", "abort", "bob"),
        ("Event", "RolledBack", None),
        *[("Incident", "fleet-5", None)] * 5,
        ("Person", "retry", "unknown"),
    ]
    assert shown[0]["at"] == "2026-01-01T00:00:10.000Z"
    assert shown[-1]["at"] is None
    assert "others" not in json.dumps(shown)
    assert "ours (3 times)" in cli("history")


def test_control_sequences_and_markup_of_others_do_not_reach_the_terminal(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY, message="\x1b[2Jgone [bold]not bold[/bold] \u202eevil"))
    for verb in ("status", "explain", "get"):
        text = cli(verb)
        assert "[bold]not bold[/bold]" in text
        assert "\x1b" not in text
        assert "\u202e" not in text


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from precision_operator.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "slow = {'kubernetes', 'aiohttp', 'kopf', 'prometheus_api_client', 'jsonschema', 'cel_expr_python'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(precision_operator.__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_every_module_registers_a_verb_with_help(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (
        "get",
        "status",
        "explain",
        "history",
        "promote",
        "pause",
        "resume",
        "rollback",
        "retry",
        "ack",
        "lint",
    ):
        with pytest.raises(SystemExit) as stopped:
            main([verb, "--help"])
        assert stopped.value.code == 0
        assert len(capsys.readouterr().out) > 200
    assert len(set(MODULES)) == len(MODULES)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ro"], ["rollback"]),
        (["status", ""], ["a", "b"]),
        (["status", "b"], ["b"]),
        (["ack", "fix", "r"], ["rootCause", "rollbackReady"]),
        (["ack", "fix", "--policy", ""], ["a", "b"]),
        (["status", "-n", "elsewhere", ""], []),
        (["status", "-n", ""], []),
        (["lint", ""], []),
    ],
)
def test_words_are_completed(cli: Cli, words: list[str], expected: list[str]) -> None:
    for name in ("a", "b"):
        cli.policy(stands(Phase.HEALTHY), name=name)
    assert cli("__complete", *words).split() == [*expected, ":4"]


def test_a_missing_kubeconfig_is_named_with_the_next_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert f"no kubeconfig at {tmp_path / 'none'}: pass --kubeconfig, or set KUBECONFIG" in capsys.readouterr().err
