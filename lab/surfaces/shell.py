"""The shell into which a page's blocks are pasted, one after the other."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from lab.errors import CommandFailed, LabError

_BESIDE = "# in a shell of its own"
"""What pages write behind a command that does not end by itself."""

_PRELUDE = """\
set -euo pipefail
kubectl() { # some verbs say with their code what they found: trouble, a fleet that is rolled back, no right
  local code=0
  command kubectl "$@" || code=$?
  case "$* $code" in
    "precision doctor "*1 | "precision status "*3 | "auth can-i "*1 | "logs "*"--previous 1") ;;
    *) return $code ;;
  esac
}
"""


@dataclass
class Shell:
    """One reader's shell: what a block assigns, a later one reads. Everything that it leaves running ends with it."""

    folder: Path
    environment: Mapping[str, str]
    beside: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Shell:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.beside:
            process.terminate()
            process.wait(timeout=10)

    def paste(self, text: str, *, seconds: float) -> str:
        """Run a block and return what it printed.

        Raises:
            CommandFailed: one of its commands did not end with 0.
            LabError: it did not end in time.
        """
        lines = text.splitlines()
        script = "\n".join(line for line in lines if not line.endswith(_BESIDE))
        state = self.folder / ".environment"
        known = state.read_text() if state.exists() else ""
        whole = f"{_PRELUDE}{known}\nset -a\n{script}\nset +a\nexport -p > {shlex.quote(str(state))}\n"
        try:
            done = subprocess.run(
                ["bash", "-c", whole],
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            said = error.stdout.decode(errors="replace") if isinstance(error.stdout, bytes) else str(error.stdout)
            raise LabError(f"the block to end within {seconds:g} s", said[-1500:], "run it by hand") from error
        if done.returncode:
            raise CommandFailed(script, done.returncode, done.stdout)
        for line in lines:
            if line.endswith(_BESIDE):
                self._start(line)
        return done.stdout

    def _start(self, line: str) -> None:
        command = f"exec {line.removesuffix(_BESIDE)}"
        self.beside.append(
            subprocess.Popen(
                ["bash", "-c", command],
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )


def commands_of(text: str) -> int:
    """How many commands a person gives with a block."""
    joined = re.sub(r"\\\n", " ", text)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in joined.splitlines())
