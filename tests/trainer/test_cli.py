"""The command line as a whole: what every subcommand keeps to."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from precision_trainer.cli import COMMANDS

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


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_nothing_heavy(command: str) -> None:
    started = time.perf_counter()
    result = subprocess.run(
        [sys.executable, "-c", _HELP, *([command] if command else []), "--help"],
        env={"PYTHONPATH": str(ROOT / "trainer_image")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "usage: precision-trainer" in result.stdout
    print(f"{command or 'precision-trainer'} --help: {time.perf_counter() - started:.2f} s")


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
        env={"PYTHONPATH": str(ROOT / "trainer_image")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout.split(), result.stderr) == (7, ["handler"], "")
