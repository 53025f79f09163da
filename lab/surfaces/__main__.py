"""``python -m lab.surfaces``: pastes every block of the pages into a shell beside a cluster of its own, tries every value
of the chart, and writes build/surfaces.json; 1 where something did not run, or a figure is out of its bound.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from lab import paths
from lab.cluster import Cluster
from lab.docs.commands import all_blocks, blocks_of, shell_blocks
from lab.errors import LabError
from lab.progress import console, say, step
from lab.surfaces.chart import tested, versions_run
from lab.surfaces.pages import (
    RESULT,
    RUNBOOK_COMMANDS,
    SAMPLE,
    SAMPLE_APP,
    WALKS,
    Walk,
    before_sentence,
    begin_own_fleet,
    end_own_fleet,
    installed,
)
from lab.surfaces.scene import Scene, build, processes_cpu
from lab.surfaces.sentences import PAGE, commands_in_sentences, rehearsed, runbooks, values
from lab.surfaces.shell import Shell, commands_of

LOG = paths.BUILD / "surfaces.log"
"""What every block printed."""
BLOCK_SECONDS = 420
STARTS = 5
LEAST_BLOCKS = 20
MOST_STARTUP_CPU_SECONDS = 0.5
MOST_MINUTES, MOST_COMMANDS = 5, 6
"""Of a new user: from the README's block, without its push, until the first workload acknowledges the target."""

Figures = dict[str, object]


class Pages:
    """Pastes pages, and remembers what ran."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.ran = 0
        self.rehearsed = 0
        self.commands = 0
        self.failed: list[str] = []
        self.of_runbooks: set[str] = set()
        """The runbooks' commands that succeeded, as they stand on the page."""
        LOG.write_text("")

    def paste(self, walk: Walk) -> None:
        """Paste one page. A block that fails is told, and the page goes on."""
        folder = Path(tempfile.mkdtemp(dir=self._scene.folder.parent)) if not walk.cluster else self._scene.folder
        (self._scene.folder / ".environment").unlink(missing_ok=True)
        environment = self._scene.environment if walk.cluster else self._scene.trainers_environment
        with step(walk.page), Shell(folder, environment) as shell:
            for block in walk.blocks():
                where = f"{block.page}:{block.line}"
                try:
                    walk.prepare(block, self._scene)
                    self._one(shell, where, filled(block.text, walk.fill(self._scene)))
                    self.of_runbooks.update(block.kubectl if block.page == PAGE else ())
                except LabError as error:
                    self._tell(where, error)
            if walk.sentences:
                self._rehearse(shell)

    def _rehearse(self, shell: Shell) -> None:
        """Run the runbooks' commands that stand in sentences."""
        for command in commands_in_sentences(all_blocks(), runbooks()):
            try:
                before_sentence(command, self._scene)
                one = rehearsed(command, values(self._scene, command))
                self._log(command, one.script, shell.paste(one.script, seconds=BLOCK_SECONDS))
                self.rehearsed += 1
                self.of_runbooks.add(command)
            except LabError as error:
                self._tell(command, error)

    def readme(self) -> None:
        """Paste the README's block, but for the push: the node has the images.

        It ends once its last line has had its effect: the pods were injected, and a workload acknowledged the target.
        """
        text = (paths.ROOT / "README.md").read_text()
        (block,) = shell_blocks(list(blocks_of("README.md", text)))
        without = "\n".join(line for line in block.text.splitlines() if not line.startswith("make push"))
        with step("README.md"), Shell(self._scene.folder, self._scene.environment) as shell:
            self._one(shell, f"README.md:{block.line}", filled(without, installed(self._scene)))
            self.commands += 1  # the push
            self._scene.wait_until_switched(SAMPLE, SAMPLE_APP)

    def _one(self, shell: Shell, where: str, text: str) -> None:
        begun = time.monotonic()
        said = shell.paste(text, seconds=BLOCK_SECONDS)
        self.ran += 1
        self.commands += commands_of(text)
        self._log(f"{where} ({time.monotonic() - begun:.1f} s)", text, said)

    def _log(self, title: str, text: str, said: str) -> None:
        with LOG.open("a") as log:
            log.write(f"━━ {title}\n{text}\n{said}\n")

    def _tell(self, where: str, error: LabError) -> None:
        self.failed.append(f"{where}: {error}")
        say(f"{where}: {error}")


def filled(text: str, values: Mapping[str, str]) -> str:
    """A block with the reader's own names and addresses in it."""
    for placeholder, value in values.items():
        text = text.replace(placeholder, value)
    return text


def pages(scene: Scene) -> tuple[Figures, list[str]]:
    """Paste the README, the quick start and every other page; the figures, and what failed.

    ``newcomer``: minutes from the README's block, without its push, until all of the fleet's pods were injected and its
    first workload acknowledged the target; and the commands of the block, its push included.
    """
    pasted = Pages(scene)
    begin_own_fleet(scene)
    begun = time.monotonic()
    pasted.readme()
    until_switched: Figures = {"minutes": round((time.monotonic() - begun) / 60, 1), "commands": pasted.commands}
    end_own_fleet(scene)
    first, *others = WALKS
    pasted.paste(first)
    seconds = start_up(scene)
    for walk in others:
        pasted.paste(walk)
    blocks = shell_blocks(all_blocks())
    counts: Figures = {
        "blocks": len(blocks),
        "run": pasted.ran,
        "in_sentences": pasted.rehearsed,
        "by_tests": sum("::" in block.test for block in blocks) - 1,  # the README's is run here too
        "marked": sum(bool(block.reason) for block in blocks),
    }
    return {
        "doc_commands": counts,
        "cli_startup_cpu_seconds": seconds,
        "newcomer": until_switched,
        RUNBOOK_COMMANDS: sorted(pasted.of_runbooks),
    }, pasted.failed


def out_of_bounds(found: Mapping[str, Any]) -> list[str]:
    """The figures that miss their bound, each with it; also where every block ran."""
    counts, newcomer, startup = (found[name] for name in ("doc_commands", "newcomer", "cli_startup_cpu_seconds"))
    blocks, marked = counts["blocks"], counts["marked"]
    minutes, commands = newcomer["minutes"], newcomer["commands"]
    bounds = {
        f"doc_commands.blocks: at least {LEAST_BLOCKS}, found {blocks}": blocks >= LEAST_BLOCKS,
        f"doc_commands.marked: at most a quarter of {blocks}, found {marked}": marked * 4 <= blocks,
        f"cli_startup_cpu_seconds: at most {MOST_STARTUP_CPU_SECONDS:g}, found {startup}": startup
        <= MOST_STARTUP_CPU_SECONDS,
        f"newcomer.minutes: at most {MOST_MINUTES}, found {minutes}": minutes <= MOST_MINUTES,
        f"newcomer.commands: at most {MOST_COMMANDS}, found {commands}": commands <= MOST_COMMANDS,
    }
    return [bound for bound, kept in bounds.items() if not kept]


def start_up(scene: Scene) -> float:
    """CPU seconds of a verb that asks the cluster: the least of a few."""
    plugin = str(scene.folder / "venv" / "bin" / "kubectl-precision")
    return round(min(processes_cpu([plugin, "get"], scene.environment) for _ in range(STARTS)), 2)


def main() -> int:
    """Run everything, write, show. A cluster that was running keeps running, without what the pages made."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.unlink(missing_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="surfaces-"))
    cluster = Cluster()
    found_running = cluster.running()
    try:
        with step("chart"):
            values, dead = tested(folder)
        (folder / "reader").mkdir()
        scene = build(cluster, folder / "reader")
        of_pages, failed = pages(scene)
    finally:
        if not found_running:
            cluster.down()
        shutil.rmtree(folder, ignore_errors=True)
    found: Figures = {"chart": {"values_tested": values, "kubernetes_versions": versions_run()}, **of_pages}
    RESULT.write_text(json.dumps(found, indent=1) + "\n")
    show(found)
    failed += [f"chart: no value of {path} was found that changes what is rendered" for path in dead]
    failed += out_of_bounds(found)
    for sentence in failed:
        print(sentence, file=sys.stderr)
    return 1 if failed else 0


def show(found: Figures) -> None:
    """For a person."""
    table = Table("surfaces", "", "")
    for part, figures in found.items():
        for name, value in figures.items() if isinstance(figures, Mapping) else [("", figures)]:
            table.add_row(part, str(name), str(len(value) if isinstance(value, list) else value))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
