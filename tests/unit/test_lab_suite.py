"""The suite that runs all tests: what it does where a stage fails. No stage runs here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import paths
from lab import suite as module
from lab.errors import LabError
from lab.suite import Counts, Suite


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was started, in order; nothing is."""
    found: list[str] = []

    def call(command: list[str], **_: object) -> int:
        found.append(" ".join(command))
        return 0

    class Here:
        """What runs beside, at once."""

        def __init__(self, *_: object, **__: object) -> None:
            self.log = tmp_path / "beside.log"

        def start(self) -> None:
            self.log.write_text("found beside:100: an error")
            module.beside(Suite())

        def running(self) -> bool:
            return False

        def stop(self, grace: float) -> None:
            found.append("stopped beside")

    class NoCluster:
        def running(self) -> bool:
            return False

        def up(self) -> None:
            found.append("up")

        def down(self) -> None:
            found.append("down")

    monkeypatch.setattr(module, "_REPORTS", tmp_path)
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(module, "call", call)
    monkeypatch.setattr(module, "Cluster", NoCluster)
    monkeypatch.setattr(module, "Daemon", Here)
    monkeypatch.setattr(module, "require_machine", lambda: None)
    for name in ("kube_binaries", "older_control_plane", "cert_manager"):
        monkeypatch.setattr(module, name, lambda: True)
    monkeypatch.setattr(module, "tools", lambda **_: True)
    monkeypatch.setattr(module, "test_command", lambda: ["go", "test"])
    return found


@pytest.mark.parametrize("run", [module.test, module.test_all], ids=["test", "test-all"])
@pytest.mark.parametrize("refuses", ["require_machine", "kube_binaries"])
def test_nothing_is_started_on_a_machine_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, started: list[str], run: Callable[[Suite], object], refuses: str
) -> None:
    def node() -> None:
        raise LabError("a machine that is no Kubernetes node", "signs of another cluster", "use another machine")

    monkeypatch.setattr(module, refuses, node)
    suite = Suite()
    run(suite)
    assert started == []
    assert suite.conclude() == 1


def test_a_stage_that_fails_keeps_no_later_one_from_running(
    monkeypatch: pytest.MonkeyPatch, started: list[str]
) -> None:
    def fails(command: list[str], **_: object) -> int:
        started.append(" ".join(command))
        return 1 if "tests/chart" in command or "tests/trainer" in command else 0

    monkeypatch.setattr(module, "call", fails)
    suite = Suite()
    module.test_all(suite)
    assert [title for title, passed, _ in suite.results if not passed] == [
        "pytest tests/chart tests/cluster",
        "pytest tests/trainer",
    ]
    assert any(command.endswith("tests/e2e") for command in started)
    assert any(command.endswith("tests/release") for command in started)
    assert started[-1].endswith("cert_manager tests/cluster")
    assert suite.conclude() == 1


def test_a_cluster_that_was_brought_up_is_taken_down(started: list[str]) -> None:
    suite = Suite()
    assert module.test(suite)
    assert (started.count("up"), started[-1]) == (1, "down")
    assert suite.conclude() == 0


def test_what_runs_beside_is_shown_and_counted(started: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    suite = Suite()
    module.test(suite)
    assert [title for title, _, _ in suite.results if title in ("mypy", "pytest tests/trainer")] == [
        "mypy",
        "pytest tests/trainer",
    ]
    assert "found beside:100: an error" in capsys.readouterr().out


def test_images_are_built_beside_the_tests_of_clusters(started: list[str]) -> None:
    module.test(Suite())
    images = next(index for index, command in enumerate(started) if command.endswith("-m lab images"))
    assert images < started.index("up")


def test_what_runs_beside_is_stopped_and_shown_where_a_test_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, started: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(command: list[str], **_: object) -> int:
        if "tests/cluster" in command:
            raise KeyboardInterrupt
        return 1 if command[0].endswith("mypy") else 0

    monkeypatch.setattr(module, "call", interrupted)
    suite = Suite()
    with pytest.raises(KeyboardInterrupt):
        module.test(suite)
    assert started == ["stopped beside", "down"]
    assert [title for title, passed, _ in suite.results if not passed] == ["mypy"]
    assert "found beside:100: an error" in capsys.readouterr().out


def test_a_second_suite_in_a_checkout_is_refused(monkeypatch: pytest.MonkeyPatch, started: list[str]) -> None:
    monkeypatch.setattr(f"{module.__name__}.Daemon.running", lambda _: True)
    suite = Suite()
    assert not module.test(suite)
    assert started == []
    assert suite.conclude() == 1


def test_counts_of_another_process_are_added(tmp_path: Path) -> None:
    other = Suite(Counts(passed=5, failed=1, skipped=2), [("x", False, 1.5)], finished=True)
    other.write(tmp_path / "found.json")
    suite = Suite(Counts(passed=1), [("y", True, 1.0)])
    suite.take("beside", tmp_path / "found.json")
    assert suite == Suite(Counts(passed=6, failed=1, skipped=2), [("y", True, 1.0), ("x", False, 1.5)])


@pytest.mark.parametrize("written", [True, False])
def test_what_was_killed_beside_has_failed(tmp_path: Path, *, written: bool) -> None:
    if written:
        Suite(results=[("x", True, 1.0)]).write(tmp_path / "found.json")
    suite = Suite(results=[("y", True, 1.0)])
    suite.take("beside", tmp_path / "found.json")
    assert suite.results[-1] == ("beside", False, 0.0)
    assert suite.conclude() == 1


def test_a_suite_that_ran_nothing_has_not_passed() -> None:
    assert Suite().conclude() == 1
