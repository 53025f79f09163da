"""Programs we start: run to the end, or kept running as long as (and no longer than) somebody wants them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import paths
from lab.errors import CommandFailed, LabError
from lab.interrupts import Terminated
from lab.waiting import wait_for

Arguments = Sequence[str | Path]


def run(
    command: Arguments,
    *,
    input: str | None = None,
    check: bool = True,
    timeout: float | None = 600,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end and capture both streams; on failure raise with all it said."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            check=False,
        )
    except FileNotFoundError as error:
        raise LabError(
            f"the program {words[0]}",
            "no such program",
            "install it; what is Python's in .venv comes by `make setup`",
        ) from error
    if check and done.returncode != 0:
        raise CommandFailed(shlex.join(words), done.returncode, done.stdout + done.stderr)
    return done


def call(command: Arguments, *, cwd: Path = paths.ROOT, env: Mapping[str, str] | None = None) -> int:
    """Run a program with our streams; return its exit code. Interrupted, wait for its own clean-up before ours.

    No fault of ours leaves it running.
    """
    with subprocess.Popen(command, cwd=cwd, env={**os.environ, **(env or {})}) as process:
        try:
            return process.wait()
        except KeyboardInterrupt as interrupt:
            if isinstance(interrupt, Terminated):  # Ctrl-C reaches the whole group; SIGTERM came to us alone
                process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
            raise
        except BaseException:
            process.kill()
            raise


def dies_with_us(*, by: signal.Signals = signal.SIGKILL) -> list[str]:
    """What a command begins with, so that the kernel ends it when we end, also when we are killed outright."""
    return ["setpriv", "--pdeathsig", by.name, "--"]


class Daemon:
    """A long-running program with a log and a PID file.

    By default it dies with us, even when we are killed outright: `setpriv --pdeathsig` asks the kernel for it, without
    grace: nobody is left to wait. `at_our_death`: another signal, for one that has programs of its own to end. (The kernel
    watches the *thread* that started it, so start daemons from a thread that lives long.) A detached one outlives us, for
    `lab up`.
    """

    def __init__(
        self,
        name: str,
        command: Arguments,
        directory: Path,
        *,
        detached: bool = False,
        nice: int = 0,
        at_our_death: signal.Signals = signal.SIGKILL,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self.pid_file = directory / f"{name}.pid"
        self._command = [str(word) for word in command]
        self._detached = detached
        self._nice = nice
        self._at_our_death = at_our_death
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, unless it runs already."""
        if self.running():
            return
        self.pid_file.parent.mkdir(parents=True, exist_ok=True)
        nice = ["nice", "-n", str(self._nice)] if self._nice else []
        if self._detached:
            pid = self._orphan([*nice, *self._command])
        else:
            pid = self._child([*dies_with_us(by=self._at_our_death), *nice, *self._command])
        self.pid_file.write_text(f"{pid} {_birth(pid)}\n")
        if self._nice:
            _prioritise_session(pid, self._nice)

    def _child(self, command: list[str]) -> int:
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        return self._process.pid

    def _orphan(self, command: list[str]) -> int:
        """Start it as nobody's child: the shell in between ends at once, so that we owe it no wait."""
        return int(run(["sh", "-c", 'setsid "$@" >>"$0" 2>&1 </dev/null & echo $!', self.log, *command]).stdout)

    def running(self) -> bool:
        """Tell whether the program that we started is alive (a recycled PID is not)."""
        if self._process is not None:
            return self._process.poll() is None
        return self._recorded() is not None

    def stop(self, grace: float = 10) -> None:
        """Ask it to end; after `grace` seconds, end it with its whole process group."""
        pid = self._process.pid if self._process is not None else self._recorded()
        if pid is not None and self.running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
            try:
                wait_for(lambda: not self.running(), what=f"{self.name} to end", seconds=grace, every=0.05)
            except LabError:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                wait_for(lambda: not self.running(), what=f"{self.name} to end when killed", seconds=10, every=0.05)
        self._process = None
        self.pid_file.unlink(missing_ok=True)

    def kill(self) -> None:
        """End it as a crash does: nothing is asked, flushed or closed. What it started goes on."""
        pid = self._process.pid if self._process is not None else self._recorded()
        if pid is not None and self.running():
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: not self.running(), what=f"{self.name} to end when killed", seconds=10, every=0.05)
        self._process = None
        self.pid_file.unlink(missing_ok=True)

    def kill_running(self) -> None:
        """Kill what runs.

        Raises:
            LabError: it has ended by itself, with the log's last lines.
        """
        self.require_running()
        self.kill()

    def require_running(self) -> None:
        """Raise with the log's last lines if it has died."""
        if not self.running():
            raise LabError(f"{self.name} to keep running", f"it ended: {self.tail()}", f"read {self.log}")

    def tail(self, lines: int = 12) -> str:
        """Return the log's last lines."""
        if not self.log.exists():
            return "(no log)"
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _recorded(self) -> int | None:
        try:
            pid, birth = self.pid_file.read_text().split()
        except (FileNotFoundError, ValueError):
            return None
        return int(pid) if _birth(int(pid)) == birth else None


def _birth(pid: int) -> str:
    """Return when a process began, in clock ticks; empty for none or a zombie. With the PID it names a process for
    good.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def _prioritise_session(pid: int, nice: int) -> None:
    """Give a session's scheduling group the nice value too, where we may.

    Linux may group tasks by session (autogroup), and between sessions only the group's own value counts. A laboratory
    without priorities is slower under load, not wrong, so a refusal is no error.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))
