"""Runs side by side under the same operator: fleets, recorder, proxy, operator; then the checker's judgement of each."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.bench.fleet import POLICY
from lab.bench.operators import Operator, Operators
from lab.cluster.webhook import publish, serving_port, withdraw
from lab.errors import LabError
from lab.faults import workflows
from lab.faults.checker import check
from lab.faults.proxy import Line, Proxy
from lab.faults.recorder import RESOURCES, Recorder
from lab.faults.rules import KILLS, Fault, Injection, Write
from lab.faults.stage import Stage
from lab.faults.trace import Header, Note, Trace, write_trace
from lab.faults.workflows import Place, Plane, Workflow
from precision_operator.api.wire import text

END_SECONDS = 90.0
"""How long a run may take after its act: longer than a rollback, an operator's death and a lease together."""
KILL_SECONDS = 15.0
"""What each kill in a batch adds for all its runs: an operator starts, reads everything and asks admission anew."""
QUIET_SECONDS = 2.0
"""At rest nothing is written for so long: four evaluations."""
READ_SECONDS = 8.0
"""What an operator that was just started may take to lead and to read the metrics, on a busy machine: it may write then."""
REST_LOOKS = 10
"""How often it is looked whether all has come to rest before that is held against it."""
_LOOK_SECONDS = 0.2
_RECORDED = frozenset({"Pod", "Deployment", "Job", "PrecisionPolicy", "PrecisionAssignment", "PrecisionIncident"})


@dataclass(frozen=True, slots=True)
class Run:
    """A workflow, and what is done to it; nothing: to learn its writes."""

    workflow: Workflow
    injections: tuple[Injection, ...] = ()

    def __str__(self) -> str:
        faults = " and ".join(f"{injection.fault} at {injection.write}" for injection in self.injections)
        return f"{self.workflow.name}: {faults or 'no fault'}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run."""

    run: Run
    writes: tuple[Write, ...]
    done: frozenset[Fault]
    """Those of its faults that had their effect."""
    violations: tuple[str, ...]
    trace: Path


class Batch:
    """One operator, or two, and the runs under it."""

    def __init__(self, stage: Stage, runs: Sequence[Run], directory: Path, *, seed: int) -> None:
        """``directory``: where traces are written."""
        self._stage = stage
        self._runs = list(runs)
        self._directory = directory
        self._seed = seed
        self._names = [f"{run.workflow.name}-{next(stage.numbers)}" for run in runs]
        deadly = sum(injection.fault in KILLS for run in self._runs for injection in run.injections)
        self._end_seconds = END_SECONDS + KILL_SECONDS * deadly
        self._barrier = asyncio.Barrier(len(self._runs))
        self._killing = asyncio.Lock()
        self._leader_killed = self._restored = False
        self._restarts: set[asyncio.Task[None]] = set()
        self._serving: set[str] = set()
        """Operators whose webhook the API server is told of."""
        self.kills = self.gaps = 0
        self._started_at = 0.0
        """When the youngest operator was ready, by the monotonic clock."""
        self.crashes: list[str] = []
        """The end of the log of each operator that ended by itself, but for those that a restore of etcd ends."""

    async def run(self) -> list[Outcome]:
        """All of them, to their end."""
        stage = self._stage
        await asyncio.gather(*(stage.add(name) for name in self._names))
        recorded = [resource for resource in RESOURCES if resource.kind in _RECORDED]
        self._recorder = Recorder(stage.plane.kubeconfig, self._names, resources=recorded)
        await asyncio.to_thread(self._recorder.__enter__)
        try:
            with stage.reporting(self._recorder, self._names):
                return await self._judged()
        finally:
            await asyncio.to_thread(self._recorder.__exit__, None, None, None)
            await asyncio.gather(*(stage.remove(name) for name in self._names))

    async def _judged(self) -> list[Outcome]:
        stage = self._stage
        async with Proxy(
            stage.plane.server, ssl.create_default_context(cafile=str(stage.plane.authority.certificate)), self._kill
        ) as proxy:
            places = [self._place(name, proxy) for name in self._names]
            await asyncio.gather(*(place.populate() for place in places))
            self._operators = self._of(proxy)
            watching = asyncio.create_task(self._watch())
            try:
                for _ in range(max(run.workflow.operators for run in self._runs)):
                    await self._start()
                wrong = await asyncio.gather(*map(self._one, places, self._runs))
                await asyncio.gather(*self._restarts)
                await self._come_to_rest()
                self._note_crashes()
            finally:
                for task in (watching, *self._restarts):
                    task.cancel()
                ended = await asyncio.gather(watching, *self._restarts, return_exceptions=True)
                await asyncio.to_thread(self._operators.stop)
                for name in self._serving:
                    await asyncio.to_thread(withdraw, stage.plane.kubectl, name)
        for error in ended:
            if isinstance(error, Exception):
                raise error
        self.gaps = len(self._recorder.trace(Header("all")).gaps)
        return [self._outcome(*of_one) for of_one in zip(self._runs, places, wrong, strict=True)]

    async def _come_to_rest(self) -> None:
        """Wait until one has led for a while and nothing was written; from then on nothing may be."""
        for _ in range(REST_LOOKS):
            await self._led()
            await asyncio.to_thread(self._recorder.settle)
            seen = (self._recorder.highest, self.kills, len(self.crashes))
            await asyncio.sleep(QUIET_SECONDS)
            await asyncio.to_thread(self._recorder.settle)
            if seen == (self._recorder.highest, self.kills, len(self.crashes)):
                break
        self._recorder.note(Note.REST, {})
        await asyncio.sleep(QUIET_SECONDS)
        await asyncio.to_thread(self._recorder.settle)
        await self._operators.leader()  # who is quiet because nobody works is not at rest

    async def _led(self) -> None:
        """Wait until one leads that has had the time to read everything: a kill may come meanwhile, and another start."""
        while True:
            await asyncio.gather(*self._restarts)
            await self._operators.leader()
            left = self._started_at + READ_SECONDS - time.monotonic()
            if left <= 0:
                return
            await asyncio.sleep(left)

    def _of(self, proxy: Proxy) -> Operators:
        stage = self._stage
        kubeconfig = stage.through(proxy.url, stage.plane.directory / f"{self._names[0]}.kubeconfig")
        return Operators(
            stage.plane,
            prometheus_url=stage.prometheus.url,
            namespaces=self._names,
            kubeconfig=kubeconfig,
            settings=stage.settings,
            system=stage.system(self._names[0]),
            label=self._names[0],
        )

    def _place(self, name: str, proxy: Proxy) -> Place:
        line = Line(log=lambda kind, what: self._recorder.note(Note(kind), {"namespace": name, **what}))
        proxy.lines[name] = line
        stage = self._stage
        return Place(stage.api, stage.trainers, name, line, self._kill_leader, self._back_up, self._restore)

    async def _one(self, place: Place, run: Run) -> str | None:
        """Run it; what went wrong."""
        try:
            await workflows.run(place, run.workflow, run.injections, seconds=self._end_seconds)
            await place.admitted()
        except (LabError, asyncio.BrokenBarrierError) as error:
            await self._barrier.abort()  # whoever would wait for this one
            return f"L1: {error}"
        return None

    def _outcome(self, run: Run, place: Place, wrong: str | None) -> Outcome:
        injected = {str(injection.fault): str(injection.write) for injection in run.injections}
        phases = {f"{place.namespace}/{POLICY}": list(run.workflow.phases)}
        reduced = list(phases) if run.workflow.reduced else []
        header = Header(run.workflow.name, self._seed, injected, {"phases": phases, "reduced": reduced})
        trace = self._recorder.trace(header)
        own = tuple(e for e in trace.entries if place.namespace in (e.namespace, text(e.body.get("namespace"))))
        everybodys = tuple(e for e in trace.entries if e.kind in _EVERYBODYS)
        trace = Trace.of(header, [*own, *everybodys])
        path = write_trace(trace, self._directory / f"{place.namespace}.jsonl")
        violations = [*([wrong] if wrong else []), *map(str, check(trace, secrets=self._stage.secrets))]
        done = frozenset(place.line.done)
        return Outcome(run, tuple(place.line.numbering.writes), done, tuple(violations), path)

    async def _start(self) -> None:
        operator = await self._operators.start()
        self._started_at = time.monotonic()
        self._recorder.note(Note.START, {"process": operator.name})
        if self._stage.kind is Plane.WEBHOOK:
            port = serving_port(operator.log.read_text())
            if port is None:
                raise LabError("the operator to serve admission", "no port in its log", f"read {operator.log}")
            await asyncio.to_thread(publish, self._stage.plane.kubectl, operator.name, port)
            self._serving.add(operator.name)

    async def _kill(self) -> bool:
        """SIGKILL to the one that leads, which is restarted as a kubelet does; False: none runs."""
        async with self._killing:
            self._note_crashes()
            if not self._operators.running:
                return False
            victim = await self._leader()
            self._note_crashes()  # it may have ended by itself while it was looked for
            if victim not in self._operators.running:
                return False
            await asyncio.to_thread(self._operators.kill, victim)
            self.kills += 1
            self._recorder.note(Note.KILL, {"process": victim.name})
            self._again(victim)
            return True

    async def _kill_leader(self) -> None:
        if not self._leader_killed:
            self._leader_killed = True
            await self._kill()

    async def _leader(self) -> Operator:
        if len(self._operators.running) > 1:
            return await self._operators.leader()
        return self._operators.running[0]

    def _again(self, gone: Operator) -> None:
        async def restart() -> None:
            if self._stage.kind is Plane.WEBHOOK:
                await asyncio.to_thread(withdraw, self._stage.plane.kubectl, gone.name)
            kills = self.kills
            try:
                await self._start()
            except LabError:
                if self.kills == kills:
                    raise
                # It was killed before its caches were full; the one that follows it is on its way.

        task = asyncio.create_task(restart())
        self._restarts.add(task)

    async def _watch(self) -> None:
        """Who ends by itself is started again."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            async with self._killing:
                self._note_crashes()

    def _note_crashes(self) -> None:
        """Who ended by itself has crashed; one that a restored etcd ended has not."""
        for operator in [o for o in self._operators.running if o.exit_code() is not None]:
            self._operators.running.remove(operator)
            log = operator.log.read_text(errors="replace")
            if not (self._restored and _RESTORED in log):
                self.crashes.append(f"{operator.name}: exit code {operator.exit_code()}: {log[-2000:]}")
            self._again(operator)

    async def _back_up(self) -> None:
        if await self._barrier.wait() == 0:
            await self._stage.back_up()
        await self._barrier.wait()

    async def _restore(self) -> None:
        if await self._barrier.wait() == 0:
            self._restored = True
            await self._stage.restore(self._recorder.restored)
        await self._barrier.wait()


_RESTORED = "etcd was restored from a backup"
"""The operator ends then, to begin anew."""
_EVERYBODYS = frozenset({Note.KILL, Note.START, Note.RESTORED, Note.REST, Note.GAP})
