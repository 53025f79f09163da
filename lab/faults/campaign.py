"""All that `make faults` injects: learn the writes of each workflow, choose, run in batches, count."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lab.faults.batch import Batch, Outcome, Run
from lab.faults.plan import combined, every, grouped, sample
from lab.faults.rules import Injection, Write
from lab.faults.stage import Stage, staged
from lab.faults.workflows import WORKFLOWS, Plane, Workflow, workflow
from lab.progress import say, step

BATCH, DEADLY_BATCH = 15, 6
"""How many runs share an operator; and where each kills it."""
TOGETHER = 3
"""How many faults a run of a sample meets. Where all are taken, each has a run of its own."""
_ORDER = (Plane.WEBHOOK, Plane.RESTORED, Plane.SHARED)
"""Those of one workflow first: what they leave of the sample is the shared plane's."""


@dataclass
class Campaign:
    """What was asked for, and what came of it so far."""

    seed: int
    count: int | None
    """Of injections; None: all there are."""
    directory: Path
    """Where traces are kept."""
    chosen: Sequence[Workflow] = WORKFLOWS
    faults: bool = True
    """Else each workflow runs once, without one."""
    learned: dict[str, tuple[Write, ...]] = field(default_factory=dict)
    """Workflow → its writes in a run without a fault."""
    outcomes: list[Outcome] = field(default_factory=list)
    kills: int = 0
    gaps: int = 0
    """Watches of the recorder that were refused."""
    crashes: list[str] = field(default_factory=list)

    @property
    def injections(self) -> int:
        """How many faults were done."""
        return sum(len(outcome.done) for outcome in self.outcomes)

    @property
    def missed(self) -> int:
        """How many were not, because their write did not come in that run."""
        return sum(len(outcome.run.injections) for outcome in self.outcomes) - self.injections

    @property
    def violations(self) -> list[str]:
        """Each with the run in which it was found, and the trace to read."""
        return [
            f"{outcome.run}: {violation} ({outcome.trace})"
            for outcome in self.outcomes
            for violation in outcome.violations
        ]

    @property
    def by_fault(self) -> Counter[str]:
        """How often each fault was done."""
        return Counter(str(fault) for outcome in self.outcomes for fault in outcome.done)

    async def run(self) -> None:
        """Every plane in turn."""
        for kind in _ORDER:
            of_plane = [work for work in self.chosen if work.plane is kind]
            if of_plane:
                with tempfile.TemporaryDirectory(prefix="faults-") as directory, step(f"{kind} control plane"):
                    async with staged(kind, Path(directory)) as stage:
                        await self.on(stage, of_plane)

    async def on(self, stage: Stage, of_plane: Sequence[Workflow]) -> None:
        """Learn and run these workflows on a control plane that is there."""
        learned = await self._batch(stage, [Run(work) for work in of_plane], "without a fault")
        writes = {outcome.run.workflow.name: outcome.writes for outcome in learned}
        self.learned |= writes
        injected = combined(self._choose(writes) if self.faults else [], most=1 if self.count is None else TOGETHER)
        groups = list(grouped(injected, size=BATCH, kills=DEADLY_BATCH))
        for number, group in enumerate(groups, 1):
            runs = [Run(workflow(injections[0].workflow), injections) for injections in group]
            await self._batch(stage, runs, f"batch {number} of {len(groups)}")

    def _choose(self, writes: dict[str, tuple[Write, ...]]) -> list[Injection]:
        if self.count is None:
            return every(writes)
        left = self.count - sum(len(outcome.run.injections) for outcome in self.outcomes)
        slow = {work.name for work in self.chosen if work.slow or work.plane is not Plane.SHARED}
        return sample(writes, seed=self.seed, count=left, slow=slow)

    async def _batch(self, stage: Stage, runs: Sequence[Run], title: str) -> list[Outcome]:
        batch = Batch(stage, runs, self.directory, seed=self.seed)
        with step(f"{title}: {', '.join(sorted({run.workflow.name for run in runs}))}"):
            found = await batch.run()
        self.outcomes += found
        self.kills += batch.kills
        self.gaps += batch.gaps
        self.crashes += batch.crashes
        for outcome in found:
            for violation in outcome.violations:
                say(f"violation: {outcome.run}: {violation}")
        for crash in batch.crashes:
            say(f"crash: {crash}")
        return found
