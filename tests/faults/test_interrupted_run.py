"""A run of `make faults` that is ended from outside leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from lab.waiting import wait_for

RUN = """
import sys
from pathlib import Path
from lab.faults import __main__ as faults
faults.RESULT, faults.TRACES = Path("faults.json"), Path("traces")
sys.exit(faults.main(["rollout"]))
"""


def test_a_run_that_gets_sigterm_stops_what_it_started(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    with (tmp_path / "out").open("wb") as out:
        run = subprocess.Popen([sys.executable, "-c", RUN], cwd=tmp_path, env=environment, stdout=out, stderr=out)
    try:
        wait_for(lambda: list(scratch.glob("faults-*/**/prometheus.pid")), what="all of it to run", seconds=120)
        started = [int(file.read_text().split()[0]) for file in scratch.glob("faults-*/**/*.pid")]
        run.send_signal(signal.SIGTERM)
        assert run.wait(timeout=60) == 130, (tmp_path / "out").read_text()
    finally:
        run.kill()
        run.wait()
    assert len(started) > 3
    assert [pid for pid in started if Path(f"/proc/{pid}").exists()] == []
    assert list(scratch.iterdir()) == []
    assert '"complete": false' in (tmp_path / "faults.json").read_text()
