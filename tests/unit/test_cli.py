"""The program itself, and what all of its verbs share."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
import yaml

import precision_operator
from precision_operator.api.conditions import Condition
from precision_operator.api.state import Phase
from precision_operator.cli import MODULES, main, parser
from precision_operator.cli.output import write_document
from precision_operator.errors import Forbidden, KubeError, NotFound, TooManyRequests, Unavailable
from precision_operator.kube.port import EVENTS, POLICIES, JsonObject, Resource
from tests.support.cli import HELD, INCIDENT, NOW, PREFIX, Cli, stands


def test_without_a_name_the_only_policy_is_meant(cli: Cli) -> None:
    assert "there is none; choose another with -n" in cli("status", code=1)
    cli.policy(stands(Phase.HEALTHY), name="a")
    assert "default/a" in cli("status")
    cli.policy(stands(Phase.HEALTHY), name="b")
    assert "name the PrecisionPolicy that is meant; in namespace default there are a, b" in cli("status", code=1)
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


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_no_document_carries_what_moves_a_terminal(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b[2J \x85 \u202e \u2028 ärger\n"
    write_document({"message": hostile}, output)
    written = capsys.readouterr().out
    assert not set("\x1b\x85\u202e\u2028") & set(written)
    assert yaml.safe_load(written) == {"message": hostile}


def test_help_imports_nothing_slow() -> None:
    code = (
        "import sys, contextlib, io\n"
        "from precision_operator.cli import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()): main(['--help'])\n"
        "slow = {'kubernetes', 'aiohttp', 'kopf', 'prometheus_api_client', 'jsonschema', 'cel_expr_python'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    assert printed_by(code) == "[]"


@pytest.mark.parametrize("given", [{}, {"SSL_CERT_FILE": os.devnull}], ids=["the machine's", "the user's"])
def test_a_verb_that_asks_the_cluster_imports_little_and_trusts_the_certificates_that_it_would_have(
    given: dict[str, str],
) -> None:
    code = (
        "import os, ssl, sys\n"
        "before = dict(os.environ), ssl.create_default_context().cert_store_stats()\n"
        "from precision_operator.cli.imports import prepare_imports\n"
        "prepare_imports()\n"
        "import precision_operator.kube.client\n"
        "slow = sorted({'kubernetes.client', 'kubernetes.aio.client.api_client'} & set(sys.modules))\n"
        "same = before == (dict(os.environ), ssl.create_default_context().cert_store_stats())\n"
        "from kubernetes.aio.client import ApiClient\n"
        "print(slow, same, ApiClient.__name__)"
    )
    assert printed_by(code, **given) == "[] True ApiClient"


def printed_by(code: str, **environment: str) -> str:
    """What a Python of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(precision_operator.__file__).parents[1],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def _leaves(found: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    nested = [action.choices for action in found._actions if isinstance(action, argparse._SubParsersAction)]
    for verbs in nested:
        for verb in verbs.values():
            yield from _leaves(verb)
    if not nested:
        yield found


def test_only_what_needs_no_cluster_runs_without_a_connection() -> None:
    alone = {leaf.prog.split()[-1] for leaf in _leaves(parser()) if not iscoroutinefunction(leaf.get_default("run"))}
    assert alone == {"replay", "backtest", "lint", "__complete"}


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
        (["ack", ""], ["a", "b"]),
        (["ack", "a", "fix", "r"], ["rootCause", "rollbackReady"]),
        (["wait", ""], ["a", "b"]),
        (["drill", ""], ["a", "b"]),
        (["doctor", ""], ["a", "b"]),
        (["dashboard", ""], ["a", "b"]),
        (["incident", ""], ["export", "list", "show"]),
        (["incident", "list", ""], ["a", "b"]),
        (["incident", "show", ""], []),
        (["incident", "-n", "list", ""], ["export", "list", "show"]),
        (["backtest", ""], []),  # a file
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explian"], "did you mean explain?"),
        (["wait", "--for=Helthy"], "did you mean Healthy?"),
        (["get", "-o", "jsn"], "did you mean json?"),
    ],
)
def test_a_typo_is_answered_with_what_was_probably_meant(
    capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert said in capsys.readouterr().err


def test_a_typo_of_a_policys_name_is_answered_with_the_nearest(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY), name="vision")
    assert "there are vision; did you mean vision?" in cli("status", "vison", code=1)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            Unavailable("GET /x: ClientConnectorError"),
            "the API server cannot be reached (no answer in time): see whether",
        ),
        (KubeError("GET /x: 401", status=401), "does not accept the credentials (expired?): sign in again, `kubectl"),
        (NotFound("GET /apis/precision.genesis.ai/v1alpha1/p: 404", status=404), "does not serve precision.genesis.ai"),
        (Unavailable("GET /x: 503", status=503), "GET /x: 503; try again in a moment, and see how"),
        (TooManyRequests("GET /x: 429", retry_after_seconds=1.0), "GET /x: 429; try again in a moment, and see how"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_one_sentence_with_the_next_step(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: KubeError, said: str
) -> None:
    async def refuse(*_: object, **__: object) -> JsonObject:
        raise error

    monkeypatch.setattr(cli.fake, "list", refuse)
    found = cli("get", "--context", "elsewhere", code=1)
    assert said in found
    assert "--context elsewhere" in found
    assert len(found.splitlines()) == 1


def test_policies_are_listed_as_yaml_as_names_and_in_one_line_a_workload(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY))
    cli.trainer("a", "fp16")
    assert yaml.safe_load(cli("get", "-o", "yaml")) == cli.json("get")
    assert yaml.safe_load(cli("status", "-o", "yaml"))["phase"] == "Healthy"
    assert cli("get", "-o", "name") == cli("status", "-o", "name") == "precisionpolicy.precision.genesis.ai/fleet\n"
    header, line = cli("get", "-o", "wide").splitlines()
    assert header.split()[:3] == ["POLICY", "WORKLOAD", "COHORT"]
    assert line.split()[:2] == ["default/fleet", "deployment/a"]


def test_the_output_may_stand_before_a_verb_that_takes_it(cli: Cli, capsys: pytest.CaptureFixture[str]) -> None:
    cli.policy(stands(Phase.HEALTHY))
    assert yaml.safe_load(cli("-o", "yaml", "get")) == cli.json("get")
    assert cli("-o", "name", "status") == "precisionpolicy.precision.genesis.ai/fleet\n"
    with pytest.raises(SystemExit) as exit_:
        cli("-o", "yaml", "explain")
    assert exit_.value.code == 2
    assert "explain takes text, json" in capsys.readouterr().err


def test_a_wide_status_shows_every_condition(cli: Cli) -> None:
    cli.policy(stands(Phase.HEALTHY, conditions=(Condition("Ready", "True", "Promoted", "well", 1, NOW),)))
    assert "Ready True" in cli("status", "-o", "wide")
    assert "Ready" not in cli("status")


def test_a_wide_status_that_is_watched_shows_every_condition(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a terminal
    cli.policy(stands(Phase.HEALTHY, conditions=(Condition("Ready", "True", "Promoted", "well", 1, NOW),)))
    assert "Ready True" in cli("status", "-w", "-o", "wide")
    assert "Ready" not in cli("status", "-w")


def test_a_namespace_without_policies_is_answered_with_a_line_for_the_same_cluster(cli: Cli) -> None:
    said = cli("status", "--context", "elsewhere", code=1)
    assert (
        "expected a PrecisionPolicy; in namespace default there is none; choose another with -n, or see all with"
        in said
    )
    assert "`kubectl precision get -A --context elsewhere`" in said


def test_help_says_what_each_output_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    for verb, meant in (("get", "With -o wide a line a workload"), ("lint", "json: for programs")):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        assert meant in " ".join(capsys.readouterr().out.split())
