"""The commands and policies that pages show are sound, and each block of commands says what runs it."""

import argparse
import re
import shlex

import pytest
import yaml

from lab import paths
from lab.docs.commands import Block, all_blocks, blocks_of, shell_blocks
from lab.operate.rules import LEAST_ALERTS, missed, runbook_commands
from lab.surfaces.pages import MARK, WALKS, Walk
from lab.surfaces.sentences import PAGE, commands_in_sentences, rehearsed, runbooks
from precision_operator.cli import MODULES, parser
from precision_operator.cli.lint import lint
from tests.support.policies import policy

BLOCKS = all_blocks()
SHELL = shell_blocks(BLOCKS)
PROGRAMS = ("kubectl ", "helm ", "make ", "pip ", "precision-trainer ", "python -m ", "docker ", "git ", "openssl ")
VERBS = {verb for verbs in MODULES.values() for verb in verbs}
ALERTS = {"rules": LEAST_ALERTS, "tested": LEAST_ALERTS, "runbooks": LEAST_ALERTS}
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", (paths.ROOT / "Makefile").read_text(), re.MULTILINE))


def where(block: Block) -> str:
    return f"{block.page}:{block.line}"


def commands(program: str) -> list[list[str]]:
    """The words of each command of this program that a block shows; `a && b` are two."""
    lines = (line for block in SHELL for line in re.split(r"\n| && ", block.text.replace("\\\n", " ")))
    return [shlex.split(line, comments=True) for line in lines if line.startswith(f"{program} ")]


def policies() -> list[tuple[str, dict[str, object]]]:
    """Whole policies that pages show, and what they show of a `spec` alone."""
    shown = [(block, yaml.safe_load(block.text)) for block in BLOCKS if block.language == "yaml"]
    return [
        (where(block), body if "kind" in body else policy(**body["spec"]))
        for block, body in shown
        if isinstance(body, dict) and (body.get("kind") == "PrecisionPolicy" or set(body) == {"spec"})
    ]


@pytest.mark.parametrize("body", [pytest.param(body, id=place) for place, body in policies()])
def test_a_policy_that_a_page_shows_is_accepted(body: dict[str, object]) -> None:
    assert [finding for finding in lint("page.md", yaml.safe_dump(body)) if finding.level == "error"] == []


@pytest.mark.parametrize("block", SHELL, ids=where)
def test_a_block_of_commands_says_what_runs_it(block: Block) -> None:
    assert block.is_marked, (
        f"expected above {where(block)} `<!-- run by: {MARK} -->`, `<!-- run by: TEST -->` or `<!-- not run: REASON -->`"
    )


@pytest.mark.parametrize("block", [block for block in SHELL if "::" in block.test], ids=where)
def test_what_runs_a_block_reads_it_from_its_page(block: Block) -> None:
    path, _, name = block.test.partition("::")
    source = (paths.ROOT / path).read_text()
    assert f"def {name}(" in source
    assert block.page.rpartition("/")[2] in source, f"expected {path} to read {block.page}"


def test_what_the_lab_pastes_is_what_pages_say_it_pastes() -> None:
    named = {block.page for block in SHELL if block.test == MARK}
    assert named == {walk.page for walk in WALKS}
    assert {block.test for block in SHELL if block.test and "::" not in block.test} == {MARK}


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: walk.page)
def test_what_the_lab_does_before_a_block_names_a_block_of_the_page(walk: Walk) -> None:
    unmet = [start for start in walk.before if not any(block.text.startswith(start) for block in walk.blocks())]
    assert not unmet


def test_at_most_a_quarter_of_the_blocks_needs_what_is_not_at_hand() -> None:
    marked = [where(block) for block in SHELL if block.reason]
    assert len(marked) * 4 <= len(SHELL), marked


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS} - {"README.md"}))
def test_commands_stand_in_blocks_of_their_own_language(page: str) -> None:
    wrong = [
        where(block)
        for block in BLOCKS
        if block.page == page and not block.language and block.text.startswith(PROGRAMS)
    ]
    assert not wrong, f"expected ```sh at {wrong[0]}, or `$ ` before the command of a block that shows output too"


@pytest.mark.parametrize("words", commands("kubectl precision"), ids=" ".join)
def test_a_command_of_the_plugin_can_be_given(words: list[str]) -> None:
    given = words[2:]
    if given != ["--help"]:
        assert parser(given).parse_args(given).run


def test_the_table_of_verbs_has_each_verb_with_the_flags_of_its_parser() -> None:
    page = (paths.ROOT / "docs" / "reference" / "cli.md").read_text()
    rows = re.findall(r"^\| (`.*?) \| ", page.partition("| verb | what it does")[2].partition("\n## ")[0], re.MULTILINE)
    shown = {words.split()[0]: words for row in rows for words in re.findall(r"`([^`]+)`", row)}
    assert shown.keys() == VERBS
    elsewhere = {"-h", "-n", "--context", "--kubeconfig", "-o", "--dry-run", "--queries", "--bearer-token-file"}
    (verbs,) = (action.choices for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    for verb in VERBS - {"incident", "replay", "backtest"}:  # whose flags the table leaves to their --help
        flags = [action.option_strings for action in verbs[verb]._actions if action.option_strings]
        named = set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", shown[verb]))
        assert named <= {flag for names in flags for flag in names}, verb
        missing = [names for names in flags if not {*names} & (named | elsewhere)]
        assert not missing, f"{verb}: {missing}"


@pytest.mark.parametrize("words", commands("make"), ids=" ".join)
def test_a_target_that_a_block_names_exists(words: list[str]) -> None:
    assert words[1] in TARGETS


@pytest.mark.parametrize("page", sorted({block.page for block in BLOCKS}))
def test_what_a_page_names_in_passing_exists(page: str) -> None:
    text = (paths.ROOT / page).read_text()
    verbs = set(re.findall(r"`kubectl\s+precision\s+([a-z]+)", text))
    targets = set(re.findall(r"`make\s+([a-z-]+)", text))
    assert verbs <= VERBS
    assert targets <= TARGETS


def test_blocks_are_found_with_their_marks_also_in_lists() -> None:
    text = (
        "<!-- run by: a.py::b -->\n```sh\nmake x\n```\n\n```sh\nls\n```\n\n- item\n\n"
        "  <!-- not run: needs Docker -->\n  ```sh\n  docker run \\\n    x\n  ```\n\n```\nsh\n```\n"
    )
    first, bare, listed, other = blocks_of("page.md", text)
    assert (first.test, first.line, first.text) == ("a.py::b", 2, "make x\n")
    assert not bare.is_marked
    assert (listed.reason, listed.text) == ("needs Docker", "docker run \\\n  x\n")
    assert shell_blocks([first, bare, listed, other]) == [first, bare, listed]


def test_a_command_of_the_runbooks_counts_as_run_only_where_it_succeeded() -> None:
    text = """Do `kubectl get a` or `kubectl
    get b`.

<!-- run by: make surfaces -->
```sh
kubectl get a
kubectl get c
kubectl get c
```

<!-- run by: somebody -->
```sh
kubectl get d
```

<!-- not run: needs a node -->
```sh
kubectl get e
```
"""
    blocks = list(blocks_of(PAGE, text))
    ran = {"kubectl get a", "kubectl get b", "kubectl get c", "kubectl get what is on the page no more"}
    counted = runbook_commands(blocks, text, succeeded=ran)
    parts = {"runbook_commands_run": 3, "runbook_commands_rehearsed": 1, "runbook_commands_marked": 1}
    assert counted == {"runbook_commands": 5, **parts}
    assert "found 3 that succeeded and 1 with a reason: `make surfaces`" in missed({**ALERTS, **counted})[0]
    unknown = runbook_commands(blocks, text, succeeded=None)
    assert (unknown["runbook_commands_run"], unknown["runbook_commands_rehearsed"]) == (None, None)
    assert "run `make surfaces`" in missed({**ALERTS, **unknown})[0]


def test_each_command_of_the_runbooks_is_run_or_says_why_not() -> None:
    (walk,) = (walk for walk in WALKS if walk.page == PAGE)
    assert walk.sentences
    pasted = {line for block in walk.blocks() for line in block.kubectl}
    ran = pasted | set(commands_in_sentences(SHELL, runbooks()))
    assert missed({**ALERTS, **runbook_commands(SHELL, runbooks(), succeeded=ran)}) == []


def test_a_command_of_a_sentence_is_kept_from_acting_where_it_can_be() -> None:
    names = {"WHY": "'it'", "NAME": "vit", "NODE": "node-1"}
    run = {
        "kubectl cordon NODE": "kubectl cordon node-1 --dry-run=server",
        "kubectl delete pod $POD -n $NS": "kubectl delete pod $POD -n $NS --dry-run=server",
        "kubectl precision retry $POLICY -n $NS -m WHY": "kubectl precision retry $POLICY -n $NS -m 'it' --dry-run",
        "kubectl precision status $POLICY -n $NS -w": "kubectl precision status $POLICY -n $NS -w",
    }
    assert {said: rehearsed(said, names).run for said in run} == run


def test_no_name_that_a_reader_fills_in_is_left_in_a_command_that_is_rehearsed() -> None:
    names = dict.fromkeys(("WHY", "NAME", "NODE", "POD", "INCIDENT", "DIR"), "filled")
    scripts = [rehearsed(said, names).run for said in commands_in_sentences(BLOCKS, runbooks())]
    assert scripts
    assert [script for script in scripts if re.search(r"(?<![$\w])[A-Z]{2,}\b", script)] == []
