"""The composition root: here alone all parts meet."""

import asyncio
import logging
import math
from typing import TYPE_CHECKING

from precision_operator.api.policy import PolicyKey
from precision_operator.controller.act import Actor
from precision_operator.controller.alerts import Alerts
from precision_operator.controller.echo import Echoes
from precision_operator.controller.enforcement import Enforcement
from precision_operator.controller.expectations import Expectations
from precision_operator.controller.fence import Fence
from precision_operator.controller.gather import Gatherer
from precision_operator.controller.halt import Halt
from precision_operator.controller.installed import InstalledPolicies
from precision_operator.controller.nodes import Nodes
from precision_operator.controller.preflight import WayBack
from precision_operator.controller.promotions import Promotions
from precision_operator.controller.reconcile import Reconciler
from precision_operator.controller.registry import build_registry, run_kopf
from precision_operator.controller.restarts import Restarts
from precision_operator.controller.sink import InventorySink
from precision_operator.controller.worker import Worker
from precision_operator.incidents.observers import Observers
from precision_operator.inventory.caches import WATCHED, Inventory
from precision_operator.kube.access import Access
from precision_operator.kube.client import KubeClient
from precision_operator.kube.events import EventRecorder
from precision_operator.observability.health import Health
from precision_operator.observability.http import HttpServer
from precision_operator.observability.metrics import Metrics
from precision_operator.reasons import Reason
from precision_operator.receiver.alertmanager import parse_webhook
from precision_operator.receiver.service import Receiver
from precision_operator.runtime.clock import SystemClock
from precision_operator.runtime.interpreter import freeze, tune
from precision_operator.runtime.lease import LeaseElector
from precision_operator.runtime.queue import Priority, WorkQueue
from precision_operator.runtime.ratelimit import RateLimiter
from precision_operator.runtime.watchdog import Watchdog
from precision_operator.settings import Settings
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.prometheus import PrometheusSource
from precision_operator.signals.service import DEADLINE_SECONDS, EvaluationService
from precision_operator.webhook.mode import AdmissionMode, chosen_mode

if TYPE_CHECKING:
    from precision_operator.webhook.service import Webhook

_LOG = logging.getLogger(__name__)

WATCH_SILENCE_SECONDS = 180.0
"""Streams bring a bookmark a minute: after three missed ones the process is not up to date."""

QUEUE_SILENCE_SECONDS = 60.0
"""A key that waits longer than this is not being served."""

TICK_SECONDS = 1.0

FREEZE_SECONDS = 300.0
"""How often what has come to live long is hidden from the garbage collector."""

DEADLINE_MARGIN_SECONDS = 1.0
"""An evaluation may take so much longer than one query."""


class App:
    """One operator process."""

    def __init__(
        self,
        settings: Settings,
        client: KubeClient,
        metrics: Metrics,
        *,
        mode: AdmissionMode = AdmissionMode.POLICY,
    ) -> None:
        self._settings = settings
        self._clock = clock = SystemClock()
        self._watchdog = Watchdog(clock)
        self._queue: WorkQueue[PolicyKey] = WorkQueue(
            clock, group=lambda key: key.namespace, most_of_group=max(1, settings.workers - 1)
        )
        self._inventory = Inventory(namespaces=settings.watch_namespaces)
        self._elector = LeaseElector(
            client,
            settings.lease,
            settings.namespace,
            settings.identity,
            clock,
            on_started_leading=self._started_leading,
            on_stopped_leading=lambda: _LOG.warning("no longer leading", extra={"reason": Reason.LEASE_LOST}),
        )
        self._webhook = self._served(client, metrics) if mode is AdmissionMode.WEBHOOK else None
        self._sink = InventorySink(
            self._inventory,
            enqueue=self._queue.add,
            heartbeat=self._watchdog.beat,
            known=self._webhook.known if self._webhook is not None else None,
        )
        self._sources = {name: PrometheusSource(name, endpoint) for name, endpoint in settings.prometheus.items()}
        limiter = RateLimiter(settings.writes_per_second, settings.concurrent_writes, clock)
        events = EventRecorder(client, identity=settings.identity)
        known = self._inventory.policy_keys
        restarts, promotions = Restarts(clock, known=known), Promotions(clock, known=known)
        self._halt = halt = Halt(client, clock, namespace=settings.namespace, changed=self._look_at_all)
        enforcement = Enforcement(
            client,
            echoes=Echoes(
                client, clock, mode=mode, replicas=self._webhook.replicas if self._webhook is not None else None
            ),
            installed=InstalledPolicies(client, clock, namespace=settings.namespace, mode=mode),
            inventory=self._inventory,
            clock=clock,
            changed=self._queue.add,
        )
        self._fence = fence = Fence(client, clock, required=settings.require_fence)
        actor = Actor(
            client,
            events=events,
            limiter=limiter,
            expectations=Expectations(clock),
            enforcement=enforcement,
            fence=fence,
            halt=halt,
            clock=clock,
        )
        evaluator = Evaluator(
            self._sources,
            settings.queries,
            clock,
            observe=metrics.prometheus_query,
            allow_raw=settings.allow_raw_queries,
        )
        self._evaluations: EvaluationService[PolicyKey] = EvaluationService(
            evaluator,
            clock,
            finished=self._evaluated,
            deadline_seconds=DEADLINE_MARGIN_SECONDS + max(e.timeout_seconds for e in settings.prometheus.values())
            if settings.prometheus
            else DEADLINE_SECONDS,
        )
        self._way_back = WayBack(client, clock, changed=self._queue.add)
        gatherer = Gatherer(
            client,
            inventory=self._inventory,
            nodes=Nodes(client, clock),
            halt=halt,
            way_back=self._way_back,
            evaluator=evaluator,
            evaluations=self._evaluations,
            elector=self._elector,
            actor=actor,
            enforcement=enforcement,
            restarts=restarts,
            promotions=promotions,
            settings=settings,
            clock=clock,
        )
        self._observers = observers = Observers(
            client,
            settings=settings,
            sources=self._sources,
            circuits=evaluator.circuits,
            events=events,
            metrics=metrics,
            clock=clock,
            leading=self._leading,
            changed=self._queue.add,
        )
        self._worker = Worker(
            Reconciler(
                client,
                gatherer=gatherer,
                actor=actor,
                enforcement=enforcement,
                restarts=restarts,
                promotions=promotions,
                halt=halt,
                metrics=metrics,
                clock=clock,
                observers=observers.all,
                verified=observers.reporter.verified,
                notified=observers.announcer.notified,
                leads=self._elector.leads,
            ),
            queue=self._queue,
            elector=self._elector,
            inventory=self._inventory,
            halt=halt,
            limiter=limiter,
            metrics=metrics,
            clock=clock,
        )
        self._enforcement = enforcement
        self._alerts = Alerts(
            self._inventory,
            leading=self._leading,
            wake=self._evaluations.wake,
            limiter=RateLimiter(settings.receiver.wakes_per_second, 1, clock),
        )
        self._receiver = Receiver(
            settings.receiver,
            clock,
            leading=self._leading,
            receive=lambda body: self._alerts.receive(parse_webhook(body)),
            count=metrics.alerts_received,
        )
        health = Health(
            self._watchdog,
            lambda: self._inventory.ready,
            serving=lambda: self._webhook is None or self._webhook.serving,
        )
        self._http = HttpServer(metrics, health)
        metrics.watch_queue(lambda: float(self._queue.depth), lambda: self._queue.oldest_seconds)
        metrics.watch_circuits(evaluator.circuits)
        metrics.watch_halt(lambda: halt.cause is not None)
        metrics.watch_leadership(self._leading)
        metrics.watch_heartbeat(self._watchdog.oldest_beat)

    def _served(self, client: KubeClient, metrics: Metrics) -> "Webhook":
        from precision_operator.webhook.service import Webhook  # with 8 MiB of cryptography, which policy mode saves

        return Webhook(
            client,
            self._clock,
            settings=self._settings,
            leading=self._leading,
            synced=lambda: self._inventory.ready,
            count=metrics.reviewed,
        )

    async def run(self, access: Access, stop: asyncio.Event) -> None:
        """Run until ``stop``. The end of any part is the end of all: no half-alive process.

        Raises:
            WatchLost: a watch ended; the process must be started anew.
            OSError: the port is taken.
        """
        port = await self._http.start(self._settings.http_port)
        _LOG.info("serving metrics and probes", extra={"port": port})
        for resource in WATCHED:
            self._watchdog.expect(resource.plural, WATCH_SILENCE_SECONDS)
        self._watchdog.expect("queue", QUEUE_SILENCE_SECONDS)
        registry = build_registry(self._sink)
        led_work = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run_kopf(registry, self._settings, access=access, stop_flag=stop), name="watches")
                group.create_task(self._elector.run(led_work), name="lease")
                ticker = group.create_task(self._tick(), name="ticker")
                workers = [
                    group.create_task(self._worker.run(), name=f"worker-{i}") for i in range(self._settings.workers)
                ]
                beside = [
                    group.create_task(part.run(), name=type(part).__name__.lower())
                    for part in (self._halt, *self._observers.all, self._alerts, self._receiver)
                ]
                own, watched = self._settings.namespace, self._settings.watch_namespaces
                if not watched or own in watched:  # else it has no rights to its own pod
                    beside.append(group.create_task(self._fence.begin(own, self._settings.identity), name="fence"))
                served = self._webhook
                if served is not None:
                    beside.append(group.create_task(served.run(), name="webhook"))
                await stop.wait()
                for task in (*workers, ticker, *beside):
                    task.cancel()
                await asyncio.gather(*workers, ticker, *beside, return_exceptions=True)
                led_work.set()  # only now may the next leader start
                if served is not None:
                    await served.drain()
        finally:
            await self._close()

    async def _close(self) -> None:
        await self._evaluations.close()
        await self._enforcement.close()
        await self._way_back.close()
        if self._webhook is not None:
            await self._webhook.close()
        self._queue.close()
        await self._receiver.close()
        await self._http.stop()
        for source in self._sources.values():
            source.close()

    async def _tick(self) -> None:
        frozen_at = -math.inf
        while True:
            now = self._clock.monotonic()
            if self._inventory.ready and now - frozen_at >= FREEZE_SECONDS:
                freeze()
                frozen_at = now
            if self._queue.oldest_seconds < QUEUE_SILENCE_SECONDS or not self._leading():
                self._watchdog.beat("queue")
            await self._clock.sleep(TICK_SECONDS)

    def _leading(self) -> bool:
        return self._elector.is_leader

    def _evaluated(self, key: PolicyKey, urgent: bool) -> None:
        self._queue.add(key, priority=Priority.EMERGENCY if urgent else Priority.NORMAL)

    def _started_leading(self, epoch: int) -> None:
        _LOG.info("leading", extra={"reason": Reason.LEASE_ACQUIRED, "epoch": epoch})
        self._evaluations.forget_all()
        self._look_at_all()

    def _look_at_all(self) -> None:
        for key in self._inventory.policy_keys():
            self._queue.add(key)


async def run(settings: Settings, access: Access, stop: asyncio.Event) -> None:
    """Connect and run until ``stop``."""
    tune()
    metrics = Metrics()

    def count(verb: str, resource: str, result: str) -> None:
        if verb in ("create", "update", "patch", "delete"):
            metrics.api_write(verb, resource, result)

    client = await KubeClient.connect(access, concurrent_writes=settings.concurrent_writes, on_request=count)
    try:
        mode = await chosen_mode(client, SystemClock(), settings.admission.mode)
        _LOG.info("new pods are given their mode by %s", mode, extra={"reason": Reason.ADMISSION_MODE_CHOSEN})
        await App(settings, client, metrics, mode=mode).run(access, stop)
    finally:
        await client.close()
