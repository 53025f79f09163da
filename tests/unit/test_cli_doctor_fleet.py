"""``doctor`` of the fleets: their conditions, size, contract and metrics, each with what mends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from precision_operator.api.assignment import OBJECT_LIMIT_BYTES
from precision_operator.api.conditions import Condition
from precision_operator.api.signals import Signal
from precision_operator.api.state import Phase
from precision_operator.cli import doctor, examine_fleet
from precision_operator.core.model import Evaluation, PodSignals
from precision_operator.kube.port import (
    DEPLOYMENTS,
    JOBS,
    PODS,
)
from tests.support import trainers
from tests.support.bodies import container
from tests.support.cli import FLEET, NOW, Cli, stands
from tests.support.doctor import amiss, findings, installed
from tests.support.pasting import check_pasted


@pytest.fixture
def sound(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Cli:
    return installed(cli, monkeypatch)


def test_a_condition_that_is_bad_news_carries_the_first_command_of_its_reason(sound: Cli) -> None:
    text = "it differs"
    conditions = (
        Condition("AdmissionEnforced", "False", "AdmissionDiffers", text, 1, NOW),
        Condition("FailSafe", "False", "TemplateStartsMixed", text, 1, NOW),
    )
    sound.policy(stands(Phase.HEALTHY, conditions=conditions))
    found = [f for f in sound.json("doctor", code=1) if f["check"] == "default/fleet" and f["level"] != "ok"]
    assert [f["level"] for f in found] == ["error", "warning"]
    for finding in found:
        check_pasted(finding["mend"])


def test_what_mends_a_fleet_of_another_namespace_names_that(sound: Cli) -> None:
    conditions = tuple(Condition(kind, "False", "PolicyConflict", "theirs", 1, NOW) for kind in ("Accepted", "Healthy"))
    sound.policy(stands(Phase.HELD, conditions=conditions))
    found = [f for f in sound.json("doctor", "-A", "-n", "elsewhere", code=1) if f["check"] == "default/fleet"]
    mends = [f["mend"] for f in found if f["mend"]]
    assert mends
    assert all("-n default" in mend for mend in mends)


def test_a_workload_without_the_contract_or_without_metrics_is_named(sound: Cli) -> None:
    silent = stands(Phase.HEALTHY)
    sound.policy(replace(silent, state=replace(silent.state, silent={"apps/Deployment/a": NOW})))
    sound.trainer("a", "fp16")
    bare = trainers.deployment("b", labels=FLEET, spec=trainers.bare_spec())
    sound.fake.put(DEPLOYMENTS, bare)
    found = amiss(sound, code=1)
    assert "reports no metrics" in found["default/fleet deployment/a"]["message"]
    assert found["default/fleet deployment/b"]["mend"] == "kubectl precision onboard deployment/b -n default"


def test_a_workload_that_onboard_cannot_change_is_to_be_made_anew(sound: Cli) -> None:
    sound.policy(stands(Phase.HEALTHY))
    bare = {"metadata": {"name": "x", "labels": FLEET}, "spec": {"containers": [container()]}}
    sound.fake.put(PODS, {**bare, "status": {"phase": "Running"}})  # type: ignore[dict-item]
    sound.fake.put(JOBS, trainers.deployment("night", labels=FLEET, spec=trainers.bare_spec()))
    found = amiss(sound, code=1)
    for name in ("pod/x", "job/night"):
        finding = found[f"default/fleet {name}"]
        assert "create it anew with the label precision.genesis.ai/inject" in finding["message"]
        assert finding["mend"] == f"kubectl -n default get {name} -o yaml"


@pytest.mark.parametrize(("names", "level"), [(1, "ok"), (300, "warning"), (380, "error")])
def test_a_fleet_that_does_not_fit_in_an_assignment_is_named_before_it_does_not(
    sound: Cli, monkeypatch: pytest.MonkeyPatch, names: int, level: str
) -> None:
    monkeypatch.setattr(examine_fleet, "OBJECT_LIMIT_BYTES", OBJECT_LIMIT_BYTES // 5)
    sound.policy(stands(Phase.HEALTHY))
    for index in range(names):
        sound.fake.put(DEPLOYMENTS, trainers.deployment(f"{'w' * 40}-{index:03}", labels=FLEET))
    found = next(
        f for f in findings(sound, code=int(level == "error")) if "of what an assignment holds" in f["message"]
    )
    assert (found["check"], found["level"]) == ("default/fleet", level)
    assert bool(found["mend"]) == (level != "ok")
    if found["mend"]:
        check_pasted(found["mend"])


@pytest.mark.parametrize(
    ("signals", "level", "said"),
    [
        (None, "error", "Prometheus has no series of its pods"),
        (PodSignals(sampled_at=NOW, values={Signal.OVERFLOW: 0.0}), "warning", "no value of divergence"),
        (PodSignals(sampled_at=NOW, values=dict.fromkeys(Signal, 1.0)), "ok", "every signal has a value"),
    ],
)
def test_with_prometheus_missing_series_are_named_workload_by_workload(
    sound: Cli, monkeypatch: pytest.MonkeyPatch, signals: PodSignals | None, level: str, said: str
) -> None:
    pods = {} if signals is None else {"a-abc-1": signals}

    async def read(*_: object) -> dict[str, Evaluation]:
        return {"uid-fleet": Evaluation(at=NOW, continuous_since=NOW, pods=pods)}

    monkeypatch.setattr(doctor, "readings", read)
    sound.policy(stands(Phase.HEALTHY))
    sound.trainer("a", "fp16")
    found = next(f for f in findings(sound, code=int(level == "error")) if f["check"] == "default/fleet deployment/a")
    assert (found["level"], said in found["message"]) == (level, True), found
    assert found["mend"] == ("" if level == "ok" else "kubectl -n default port-forward a-abc-1 9400")
    if level == "warning":
        assert "genesis_" in found["message"]
