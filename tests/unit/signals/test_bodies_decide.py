"""The golden table: what one answer of Prometheus leads to (fault row 14: body × decision).

Socket, transport, evaluator and ``decide`` are the ones that ship; only Prometheus' words are made up. Everything else is
good, so that the one body decides. Two columns: in a canary's step, where everything good promotes; and guarding, where only
a breach that was measured rolls back. No body promotes without data, none rolls back without a measured breach.
"""

import time
from collections.abc import Container, Sequence
from urllib.parse import parse_qs, urlsplit

import pytest

from lab.model.policies import policy
from precision_operator.api.conditions import Condition
from precision_operator.api.modes import Mode
from precision_operator.api.signal_records import SIGNALS
from precision_operator.api.state import Phase, State
from precision_operator.core.decide import Decision, decide
from precision_operator.core.model import Admission, Observation, Request, WorkloadView
from precision_operator.reasons import Reason
from precision_operator.settings import PrometheusEndpoint
from precision_operator.signals.evaluator import Evaluator
from precision_operator.signals.plan import plan_of
from precision_operator.signals.port import Sample
from precision_operator.signals.prometheus import PrometheusSource
from precision_operator.signals.queries import BUILT_IN, render
from tests.support.prometheus_bodies import (
    STAMP,
    Stream,
    Write,
    drip_body,
    drip_head,
    failure,
    http,
    serve,
    silent,
    success,
    vector,
)
from tests.support.views import key, pod, workload

POLICY = policy(
    evaluation={"interval": "15s", "failureLimit": 0, "minSamples": 1, "minSteps": 20, "maxSampleAge": "60s"},
    strategy={"steps": [{"setWeight": 50}, {"setWeight": 100}]},
)
SLOW_SECONDS, QUICK_SECONDS = 2.0, 10.0
"""Deadline of a query that is made to miss it, and of one that should not on the busiest machine."""
MAX_BYTES = 20_000
PODS = ("p0", "p1")
"""Of the canary, which is one workload."""


LONG_AGO = 1.5


def each(value: object, *pods: str, at: float = STAMP, **labels: str) -> bytes:
    """One sample of this value for each pod of the canary, or for these pods."""
    metrics = [{**labels, "pod": pod} for pod in pods or PODS]
    return success("vector", [{"metric": metric, "value": [at, value]} for metric in metrics])


def acknowledged(age_seconds: object, mode: str = "fp16", generation: str = "3") -> bytes:
    return each(age_seconds, mode=mode, generation=generation)


FINE: dict[str, bytes] = {
    "ack": acknowledged("-1"),
    "steps": each("100"),
    "fp32Shortage": success("vector", []),
    "fp32Memory": success("vector", []),
    "run": each("1", torch="2.6.0", device="cuda", capability="9.0"),
    **{signal.value: each(str(record.good)) for signal, record in SIGNALS.items()},
}

SHARES = {"metric": {"pod": "p0"}, "histogram": [1.5, {"count": "1", "sum": "1", "buckets": []}]}


def endless(write: Write, stop: object) -> None:
    """A body of any length: the reader must hang up."""
    write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        write(b"1000\r\n" + b" " * 4096 + b"\r\n")


P = "Promote"
R = "RollBack"
TABLE: dict[str, tuple[dict[str, bytes | Stream], str, str]] = {
    # body: (query → answer in the place of the good one, in a canary's step, guarding)
    "everything is good": ({}, P, "Keep"),
    # --- empty and partial
    "empty rate": ({"overflow": success("vector", [])}, "Hold NoSamples", "Keep NoSamples"),
    "empty loss": ({"divergence": success("vector", [])}, "Hold NoSamples", "Keep NoSamples"),
    "empty shares of failures, of processes that step": (
        {"failures": success("vector", [])},
        "Hold NoSamples",
        "Keep NoSamples",
    ),
    "empty steps": ({"steps": success("vector", [])}, "Hold TooFewSteps", "Keep TooFewSteps"),
    "no acknowledgement": ({"ack": success("vector", [])}, "Hold AwaitingAcknowledgement", "Keep NoSamples"),
    "rate of one of two pods": ({"overflow": each("0.01", "p0")}, "Hold NoSamples", "Keep NoSamples"),
    "breach in one of two pods, the other silent": ({"overflow": each("0.9", "p0")}, f"{R}", f"{R}"),
    "acknowledgement of one of two pods": (
        {"ack": each("-1", "p0", mode="fp16", generation="3")},
        "Hold AwaitingAcknowledgement",
        "Keep NoSamples",
    ),
    "only pods of others": ({"overflow": each("0.01", "stranger")}, "Hold NoSamples", "Keep NoSamples"),
    # --- values that are no numbers
    "rate NaN": ({"overflow": each("NaN")}, "Hold NotANumber", "Keep NotANumber"),
    "rate +Inf": ({"overflow": each("+Inf")}, R, R),
    "rate -Inf": ({"overflow": each("-Inf")}, "Hold NotANumber", "Keep NotANumber"),
    "loss NaN": ({"divergence": each("NaN")}, R, R),
    "loss +Inf": ({"divergence": each("+Inf")}, R, R),
    "loss -Inf": ({"divergence": each("-Inf")}, R, R),
    "non-finite steps NaN": ({"nonFinite": each("NaN")}, R, R),
    "speed 0/0": ({"speed": each("NaN")}, "Hold NotANumber", "Keep NotANumber"),
    "speed +Inf, over a baseline of 0": ({"speed": each("+Inf")}, "Hold NotANumber", "Keep NotANumber"),
    "share of failures 0/0: no run has ended": ({"failures": each("NaN")}, P, "Keep"),
    "memory NaN": ({"memory": each("NaN")}, "Hold NotANumber", "Keep NotANumber"),
    "a number that is no text": ({"overflow": each(0.9)}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "a text that is no number": ({"overflow": each("high")}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "an empty value": ({"overflow": each("")}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "a number as Python writes it": ({"overflow": each("0_9")}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "digits of another script": ({"overflow": each("٩")}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "null": ({"overflow": each(None)}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    # --- age
    "acknowledged four minutes ago, within Prometheus' lookback": (
        {"ack": acknowledged("-240")},
        "Hold SamplesTooOld",
        "Keep SamplesTooOld",
    ),
    "a breach of four minutes ago": (
        {"ack": acknowledged("-240"), "overflow": each("0.9")},
        "Hold SamplesTooOld",
        "Keep SamplesTooOld",
    ),
    "slow, and a silence that is believed": (
        {"ack": acknowledged("-40"), "speed": each("0.1")},
        "Hold EvidenceInsufficient",
        "Keep",
    ),
    "an answer of long ago, of a cache": (
        {"overflow": each("0.01", at=LONG_AGO)},
        "Hold MetricsUnavailable",
        "Keep MetricsUnavailable",
    ),
    "an acknowledgement of long ago, of a cache": (
        {"ack": each("-1", at=LONG_AGO, mode="fp16", generation="3")},
        "Hold AwaitingAcknowledgement",
        "Keep MetricsUnavailable",
    ),
    "a generation of 5,000 digits": ({"ack": acknowledged("-1", "fp16", "9" * 5000)},
                                     "Hold AwaitingAcknowledgement", "Keep"),
    "an age that is none": ({"ack": acknowledged("NaN")}, "Hold AwaitingAcknowledgement", "Keep NoSamples"),
    # --- which series
    "two series of one pod": ({"overflow": each("0.01", "p0", "p0", "p1")}, "Hold NoSamples", "Keep NoSamples"),
    "two shares of failures of one pod": (
        {"failures": each("0", "p0", "p0", "p1")},
        "Hold NoSamples",
        "Keep NoSamples",
    ),
    "two modes at once": (
        {"ack": success("vector", [{"metric": {"pod": p, "mode": m, "generation": "3"}, "value": [STAMP, "-1"]}
                                   for p in PODS for m in ("fp16", "fp32")])},
        "Hold AwaitingAcknowledgement",
        "Keep",
    ),
    "another mode than asked": ({"ack": acknowledged("-1", "fp32")}, "Hold AwaitingAcknowledgement", "Keep"),
    "an older generation": ({"ack": acknowledged("-1", "fp16", "2")}, "Hold AwaitingAcknowledgement", "Keep"),
    "series without a pod": ({"overflow": success("vector", [{"metric": {}, "value": [STAMP, "0.9"]}])},
                             "Hold MissingPodLabel", "Keep MissingPodLabel"),
    # --- the wrong type
    "scalar": ({"overflow": success("scalar", [1.5, "0.9"])}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "string": ({"overflow": success("string", [1.5, "x"])}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "matrix": ({"overflow": success("matrix", [{"metric": {"pod": "p0"}, "values": [[1.5, "0.9"]]}])},
               "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "native histogram": ({"overflow": success("vector", [SHARES])}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "a list": ({"overflow": b"[]"}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "no result": ({"overflow": success("vector", None)}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    # --- not the whole truth
    "warnings": ({"overflow": vector("0.01", warnings=["a store is away"])},
                 "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "partial, as VictoriaMetrics says it": (
        {"overflow": each("0.01").replace(b'{"status"', b'{"isPartial": true, "status"')},
        "Hold MetricsUnavailable",
        "Keep MetricsUnavailable",
    ),
    "whole, as VictoriaMetrics says it": (
        {"overflow": each("0.01").replace(b'{"status"', b'{"isPartial": false, "status"')}, P, "Keep",
    ),
    "empty, with warnings": ({"overflow": success("vector", [], warnings=["partial response"])},
                             "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "a breach, with warnings": ({"overflow": vector("0.9", warnings=["partial response"])},
                                "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "200 and an error": ({"overflow": failure("timeout", "query timed out")},
                         "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "cut off": ({"overflow": b"\r\n" + each("0.01")[:60]}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "HTML": ({"overflow": b"<html>login</html>"}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "nothing at all": ({"overflow": b""}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "very deep": ({"overflow": b"[" * 15_000}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    # --- too much, too slow: see test_prometheus.py for compressed answers, redirects and status codes
    "longer than allowed": ({"overflow": each("0.01", *(f"q{i}" for i in range(2000)))},
                            "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "without an end": ({"overflow": endless}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "a byte now and then": ({"overflow": drip_body}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "a head without an end": ({"overflow": drip_head}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "silence": ({"overflow": silent}, "Hold MetricsUnavailable", "Keep MetricsUnavailable"),
    "silence to everything": (dict.fromkeys(FINE, silent), "Hold AwaitingAcknowledgement", "Keep MetricsUnavailable"),
    # --- and what is so
    "overflow above its limit": ({"overflow": each("0.31")}, R, R),
    "overflow above its limit, of too few steps": (
        {"overflow": each("0.31"), "steps": each("3")},
        "Hold TooFewSteps",
        "Keep TooFewSteps",
    ),
    "one non-finite loss, of too few steps": ({"nonFinite": each("1"), "steps": each("3")}, R, R),
    "diverged": ({"divergence": each("0.21")}, R, R),
    "diverging": ({"divergence": each("0.12")}, "Hold EvidenceInsufficient", "Keep"),
    "failures": ({"failures": each("0.51")}, R, R),
    "much memory": ({"memory": each("0.95")}, "Hold EvidenceInsufficient", "Keep"),
    "a breach of one signal while another is silent": ({"overflow": each("0.9"), "divergence": silent}, R, R),
}  # fmt: skip

WHICH = {render(BUILT_IN[name], "ns", POLICY.spec.evaluation.window_seconds, 20): name for name in FINE}


class Patient:
    """Gives up soon on the queries whose answers are meant to be late, and on no other."""

    def __init__(self, url: str, late: Container[str]) -> None:
        self._late = late
        self._slow, self._quick = (
            PrometheusSource("default", PrometheusEndpoint(url, timeout_seconds=limit, max_response_bytes=MAX_BYTES))
            for limit in (SLOW_SECONDS, QUICK_SECONDS)
        )

    async def vector(self, query: str) -> Sequence[Sample]:
        return await (self._slow if WHICH[query] in self._late else self._quick).vector(query)

    def close(self) -> None:
        self._slow.close()
        self._quick.close()


def workloads() -> tuple[WorkloadView, ...]:
    """A canary of two pods, moved, and a workload of none, whose turn comes next."""
    request = Request(3, Mode.FP16)
    pods = tuple(pod(name, request=request, request_raw="x") for name in PODS)
    return workload("w0", replicas=2, pods=pods), workload("w1", replicas=0, pods=())


def state(phase: Phase, step: int) -> State:
    now = time.time()
    return State(
        selector=POLICY.spec.selector,
        policy_uid=POLICY.uid,
        observed_generation=POLICY.generation,
        enforce=True,
        phase=phase,
        precision=Mode.FP16,
        generation=3,
        transition_id=2,
        step_index=step,
        phase_since=now - 30.0,
        step_since=now - 30.0,
        evidence_since=now - 30.0,
        members=(key("w0"),),
        modes={key("w0"): Mode.FP16},
        changed={key("w0"): 3},
    )


def condition(found: Decision, kind: str) -> Condition:
    return next(c for c in found.summary.conditions if c.type == kind)


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
async def test_what_an_answer_leads_to(name: str) -> None:
    instead, in_step, guarding = TABLE[name]

    def answer(head: str) -> bytes | Stream:
        (query,) = parse_qs(urlsplit(head.split(" ", 2)[1]).query)["query"]
        said = {**FINE, **instead}[WHICH[query]]
        return http(said) if isinstance(said, bytes) else said

    with serve() as server:
        server.answer = answer
        late = {name for name, said in instead.items() if not isinstance(said, bytes)}
        source = Patient(server.url, late)
        evaluation = await Evaluator({"default": source}, {}).evaluate(plan_of(POLICY))
        source.close()
    observation = Observation(workloads(), evaluation=evaluation, admission=Admission(True, Reason.ENFORCING, ""))

    assert _in_step(decide(POLICY, state(Phase.PROGRESSING, 0), observation, evaluation.at)) == in_step
    assert _guarding(decide(POLICY, state(Phase.HEALTHY, 1), observation, evaluation.at)) == guarding


def _in_step(found: Decision) -> str:
    if found.state.phase is Phase.ROLLING_BACK:
        return R
    return P if found.state.step_index == 1 else f"Hold {condition(found, 'Progressing').reason}"


def _guarding(found: Decision) -> str:
    if found.state.phase in (Phase.ROLLING_BACK, Phase.DEGRADED):
        return R
    metrics = condition(found, "MetricsAvailable")
    return "Keep" if metrics.status == "True" else f"Keep {metrics.reason}"
