"""How `make surfaces` pastes pages, what it says of what fails, and what it demands of its figures."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from lab.cluster import Kubectl
from lab.docs.commands import blocks_of
from lab.errors import CommandFailed, LabError
from lab.surfaces import __main__ as surfaces
from lab.surfaces import chart, pages, scene
from lab.surfaces.__main__ import Pages, out_of_bounds
from lab.surfaces.pages import Walk
from lab.surfaces.scene import Scene
from lab.surfaces.sentences import PAGE, Rehearsed
from lab.surfaces.shell import Shell, commands_of
from precision_operator.contract import INJECTED

KUBECTL = """#!/bin/sh
echo "kubectl $*"
case "$*" in *" "[1-9]) exit "${*##* }" ;; esac
"""
"""Ends with its last word, where that is a number."""

Figures = dict[str, Any]


def good(**other: object) -> Figures:
    counts = {"blocks": 20, "run": 12, "by_tests": 3, "marked": 5}
    newcomer = {"minutes": 5.0, "commands": 6}
    return {"doc_commands": counts, "cli_startup_cpu_seconds": 0.5, "newcomer": newcomer} | other


def pasted_blocks(*texts: str) -> str:
    """A page of blocks, four lines each where they are of one line."""
    return "".join(f"<!-- run by: {pages.MARK} -->\n```sh\n{text}\n```\n" for text in texts)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A reader without a cluster, whose kubectl asks nobody."""
    programs, folder = tmp_path / "bin", tmp_path / "reader"
    programs.mkdir()
    folder.mkdir()
    (programs / "kubectl").write_text(KUBECTL)
    (programs / "kubectl").chmod(0o755)
    monkeypatch.setattr(scene, "kube_binaries", lambda: programs)
    monkeypatch.setattr(surfaces, "LOG", tmp_path / "surfaces.log")
    return Scene(cast("Kubectl", None), "http://prometheus", folder)


def the_only_page(monkeypatch: pytest.MonkeyPatch, page: str, text: str) -> None:
    blocks = list(blocks_of(page, text))
    monkeypatch.setattr(pages, "all_blocks", lambda: blocks)
    monkeypatch.setattr(surfaces, "all_blocks", lambda: blocks)


def test_figures_on_their_bounds_are_good_enough() -> None:
    assert out_of_bounds(good()) == []


@pytest.mark.parametrize(
    ("found", "bound"),
    [
        (good(doc_commands={"blocks": 19, "marked": 0}), "doc_commands.blocks: at least 20, found 19"),
        (good(doc_commands={"blocks": 20, "marked": 6}), "doc_commands.marked: at most a quarter of 20, found 6"),
        (good(cli_startup_cpu_seconds=0.51), "cli_startup_cpu_seconds: at most 0.5, found 0.51"),
        (good(cli_startup_cpu_seconds=float("nan")), "cli_startup_cpu_seconds: at most 0.5, found nan"),
        (good(newcomer={"minutes": 5.1, "commands": 6}), "newcomer.minutes: at most 5, found 5.1"),
        (good(newcomer={"minutes": 5.0, "commands": 7}), "newcomer.commands: at most 6, found 7"),
    ],
)
def test_a_figure_that_is_out_of_its_bound_is_named_with_it(found: Figures, bound: str) -> None:
    assert out_of_bounds(found) == [bound]


@pytest.mark.parametrize(
    ("failed", "dead", "startup", "code"),
    [([], [], 0.5, 0), (["page.md:2: expected x"], [], 0.5, 1), ([], ["a.b"], 0.5, 1), ([], [], 0.6, 1)],
    ids=["good", "a-block", "a-value", "a-figure"],
)
def test_the_command_fails_where_a_block_a_value_or_a_figure_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, failed: list[str], dead: list[str], startup: float, code: int
) -> None:
    class Running:
        def running(self) -> bool:
            return True

    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(surfaces, "RESULT", tmp_path / "surfaces.json")
    monkeypatch.setattr(surfaces, "Cluster", Running)
    monkeypatch.setattr(surfaces, "tested", lambda _: (1, dead))
    monkeypatch.setattr(surfaces, "build", lambda *_: None)
    monkeypatch.setattr(surfaces, "pages", lambda _: (good(cli_startup_cpu_seconds=startup), [*failed]))
    assert surfaces.main() == code
    assert (tmp_path / "surfaces.json").exists()


class Fleet:
    """A kubectl that knows a policy, and pods by what admission wrote into each."""

    def __init__(self, status: Figures, *injected: str) -> None:
        conditions = [{"type": "AdmissionEnforced", "status": "True"}]
        self._policy = {"status": {"conditions": conditions} | status}
        self._pods = [{"metadata": {"annotations": {INJECTED: name} if name else {}}} for name in injected]

    def json(self, _: str, what: str, *__: str) -> Figures:
        return self._policy if what == "precisionpolicy" else {"items": self._pods}


SWITCHED = {"phase": "Progressing", "moved": 1}


@pytest.mark.parametrize(
    ("fleet", "switched"),
    [
        (Fleet(SWITCHED, "trainer"), True),
        (Fleet(SWITCHED, "trainer", ""), False),
        (Fleet(SWITCHED, "refused: no such container"), False),
        (Fleet(SWITCHED), False),
        (Fleet(SWITCHED | {"moved": 0}, "trainer"), False),
        (Fleet(SWITCHED | {"phase": "RollingBack"}, "trainer"), False),
        (Fleet(SWITCHED | {"conditions": []}, "trainer"), False),
        (Fleet({}, "trainer"), False),
    ],
    ids=["all", "a-pod-without", "refused", "no-pod", "none-moved", "rolled-back", "not-enforced", "pending"],
)
def test_a_new_users_minutes_end_once_pods_are_injected_and_a_workload_has_acknowledged(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, *, switched: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(scene, "wait_for", lambda condition, **_: asked.append(condition()))
    Scene(cast("Kubectl", fleet), "", Path()).wait_until_switched("trainers", "trainer")
    assert asked == [switched]


def test_a_block_that_fails_is_named_and_the_page_goes_on(reader: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    the_only_page(
        monkeypatch, "page.md", pasted_blocks("A=1", "kubectl get x 1; true", 'test "$A" = 1', "kubectl get x | grep y")
    )
    pasted = Pages(reader)
    pasted.paste(Walk("page.md"))
    assert (pasted.ran, pasted.commands) == (2, 2)
    assert [failure.partition(": ")[0] for failure in pasted.failed] == ["page.md:6", "page.md:14"]


def test_a_command_of_a_sentence_that_fails_is_named_and_does_not_count(
    reader: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    the_only_page(monkeypatch, PAGE, pasted_blocks("kubectl get a\nkubectl get b"))
    monkeypatch.setattr(surfaces, "runbooks", lambda: "`kubectl get b`, `kubectl get c`, `kubectl get d 1`")
    monkeypatch.setattr(surfaces, "before_sentence", lambda *_: None)
    pasted = Pages(reader)
    pasted.paste(Walk(PAGE, sentences=True))
    assert (pasted.ran, pasted.rehearsed) == (1, 1)
    assert [failure.partition(": ")[0] for failure in pasted.failed] == ["kubectl get d 1"]
    assert pasted.of_runbooks == {"kubectl get a", "kubectl get b", "kubectl get c"}


@pytest.mark.parametrize(
    ("command", "succeeds"),
    [("echo no approval; exit 1", True), ("echo no approval", False), ("echo no right; exit 1", False)],
    ids=["refused", "carried-out", "refused-for-another-reason"],
)
def test_a_refusal_that_is_expected_must_come(command: str, *, succeeds: bool) -> None:
    script = Rehearsed(f"sh -c '{command}'", "no approval").script
    done = subprocess.run(["bash", "-euc", script], stdout=subprocess.DEVNULL, check=False)
    assert (done.returncode == 0) is succeeds


@pytest.mark.parametrize("command", ["kubectl precision status fleet 3", "kubectl auth can-i get pods 1"])
def test_a_code_that_says_what_was_found_is_no_failure(reader: Scene, command: str) -> None:
    with Shell(reader.folder, reader.environment) as shell:
        assert shell.paste(command, seconds=60) == f"{command}\n"


@pytest.mark.parametrize("command", ["kubectl precision status fleet 1", "kubectl get pods 1", "echo $UNKNOWN"])
def test_any_other_code_and_an_unknown_variable_are_failures(reader: Scene, command: str) -> None:
    with Shell(reader.folder, reader.environment) as shell, pytest.raises(CommandFailed):
        shell.paste(f"{command}\ntrue", seconds=60)


def test_a_block_that_does_not_end_is_a_failure(reader: Scene) -> None:
    with Shell(reader.folder, reader.environment) as shell, pytest.raises(LabError, match="to end within"):
        shell.paste("exec sleep 60", seconds=0.5)


def test_what_runs_beside_ends_with_the_page(reader: Scene) -> None:
    with Shell(reader.folder, reader.environment) as shell:
        shell.paste("sleep 600  # in a shell of its own\ntrue", seconds=60)
        (beside,) = shell.beside
        assert beside.poll() is None
    assert beside.poll() is not None


def test_a_command_of_several_lines_is_one_and_a_comment_none() -> None:
    assert commands_of("# first\nhelm upgrade x \\\n  --set a=b\n\nkubectl get pods\n") == 2


@pytest.mark.parametrize("mark", ["not run:", "not run:   ", "run by:", "run by:   "])
def test_a_mark_that_says_nothing_is_none(mark: str) -> None:
    (block,) = blocks_of("page.md", f"<!-- {mark} -->\n```sh\nmake x\n```\n")
    assert not block.is_marked


def test_a_value_of_the_chart_that_changes_nothing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def rendered(values: chart.Value, _: Path) -> str:
        return json.dumps({name: value for name, value in values.items() if name != "tolerations"})

    monkeypatch.setattr(chart, "rendered", rendered)
    alive, dead = chart.tested(tmp_path)
    assert alive > 0
    assert dead == ["tolerations"]
