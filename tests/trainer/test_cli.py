"""The command line as a whole: what every subcommand keeps to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from precision_trainer import cli
from precision_trainer.cli import COMMANDS, TOOLS

ROOT = Path(__file__).parents[2]
_HELP = """
import sys
from precision_trainer import cli
try:
    cli.main(sys.argv[1:])
except SystemExit as end:
    assert end.code == 0
heavy = {"torch", "numpy", "matplotlib", "gymnasium"} & sys.modules.keys()
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    "command", ["", *COMMANDS, *TOOLS, "bench figures", "bench comprehensive", "checkpoint verify"]
)
def test_help_imports_nothing_heavy(command: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _HELP, *command.split(), "--help"],
        env={"PYTHONPATH": f"{ROOT / 'trainer_image'}:{ROOT / 'tools'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "usage: precision-trainer" in result.stdout


@pytest.mark.parametrize("command", TOOLS)
def test_a_tool_that_the_image_does_not_carry_is_named_with_the_next_step(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert cli.main([command, "--whatever", "it", "takes"]) == 1
    assert "use precision-trainer-tools" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("launch", ("expected a command", "launch --nproc-per-node 2 train transformer")),
        ("launch --nproc-per-node 0 train", ("--nproc-per-node 0: expected a number in [1, 1024]",)),
        ("launch --master-port 70000 train", ("--master-port 70000: expected a number in [0, 65535]",)),
        ("bench basic --output FILE", ("cannot write results to", "choose another --output")),
        ("bench figures --output FILE/trainer.json", ("cannot write results to", "choose another --output")),
        ("analyze no.such:model", ("no module no.such", "set PYTHONPATH")),
        ("checkpoint verify FILE/nothing", ("there is no checkpoint", "name a directory")),
    ],
)
def test_an_error_says_what_was_expected_and_what_to_do(
    command: str, parts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    try:
        code: object = cli.main(command.replace("FILE", str(file)).split())
    except SystemExit as end:
        code = end.code
    assert code in (1, 2)
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith("precision-trainer ")
    assert not [part for part in parts if part not in said]


def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("precision_trainer.job.environment.examine", interrupted)
    assert cli.main(["env"]) == 130
    assert capsys.readouterr().err == "precision-trainer env: interrupted\n"


def test_every_module_of_the_package_is_a_registered_command() -> None:
    modules = {path.stem for path in (ROOT / "trainer_image/precision_trainer/cli").glob("*.py")} - {"__init__"}
    assert modules == {name.replace("-", "_") for name in COMMANDS}


_ENDING = """
import atexit
from precision_trainer import cli

class Finalised:
    def __del__(self) -> None:
        print("finalised")

kept = Finalised()
cli.main = lambda: atexit.register(print, "handler") and 7
cli.run()
"""


def test_the_process_ends_after_its_exit_handlers_and_before_the_interpreter_is_finalised() -> None:
    # Finalisation aborts the process (exit code -6) if gloo's thread is then letting go of the last collective's tensors.
    result = subprocess.run(
        [sys.executable, "-c", _ENDING],
        env={"PYTHONPATH": f"{ROOT / 'trainer_image'}:{ROOT / 'tools'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout.split(), result.stderr) == (7, ["handler"], "")
