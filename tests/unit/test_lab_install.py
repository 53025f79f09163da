"""``make install``: Helm's commands, on the cluster that was meant, and the code of what failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lab import paths
from lab.errors import CommandFailed
from lab.release import __main__ as command
from lab.release import publish
from lab.release.publish import install_commands


@pytest.mark.parametrize("context", ["", "mine"])
@pytest.mark.parametrize("failing", ["", "upgrade", "test"])
def test_it_runs_in_the_checkout_on_the_chosen_cluster_and_ends_with_the_first_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, context: str, failing: str
) -> None:
    ran = list[list[str]]()

    def run(words: Sequence[str | Path], *, cwd: Path, timeout: float) -> None:
        assert (cwd, timeout > 0) == (paths.ROOT, True)
        assert words[0] == tmp_path / "helm"
        ran.append(["helm", *map(str, words[1:])])
        if ran[-1][1] == failing:
            raise CommandFailed("helm", 1, "no")

    monkeypatch.setattr(publish, "run", run)
    monkeypatch.setattr(publish, "kube_binaries", lambda: tmp_path)
    monkeypatch.setenv("CONTEXT", context)
    monkeypatch.setenv("REGISTRY", "host/path")
    monkeypatch.setattr("sys.argv", ["release", "install"])
    assert command.main() == int(bool(failing))
    chosen = ["--kube-context", context] if context else []
    shown = [[*words, *chosen] for words in install_commands(registry="host/path")]
    assert ran == (shown[:1] if failing == "upgrade" else shown)
