"""Rollbacks of real trainers on a real kubelet that the demo does not show: gradual, and then a retry by kubectl
alone; weights that a NaN has ruined. Both fleets go through their stories at the same time. One trainer's template has
nothing of the contract but the label that asks for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.cluster import Cluster
from lab.demo.fleet import Trainer
from lab.trainers import PREFIX
from lab.waiting import wait_for
from precision_operator.api.commands import Prerequisite
from precision_operator.api.wire import parse_time
from precision_operator.api.workload import name_of
from precision_operator.cli import main
from tests.support.running_fleets import Fleet, Labelled, side_by_side

GRADUAL = (Trainer("mild-0"), Trainer("mild-1"), Labelled("mild-2"))
POISONED = (Trainer("single"), Trainer("group", ranks=2))


@pytest.fixture(scope="module")
def fleets(
    cluster: Cluster, prometheus_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Fleet, Fleet]]:
    """Two fleets, promoted and broken: one overflows mildly, the other's weights are no numbers any more."""
    stories = [("gradual", GRADUAL), ("poisoned", POISONED)]
    directory = tmp_path_factory.mktemp("rollbacks")
    with side_by_side(cluster.control_plane, prometheus_url, directory, stories) as (gradual, poisoned):
        _promote(gradual, poisoned)
        _break(gradual, poisoned)
        yield gradual, poisoned


def _promote(gradual: Fleet, poisoned: Fleet) -> None:
    gradual.follow(
        strategy={"steps": [{"setWeight": 34}, {"pause": {"duration": "2s"}}, {"setWeight": 100}]},
        rollback={
            "gradual": {"sustain": "3s", "batchShare": 0.34},
            "mitigation": {"overflow": {"window": "0s"}},
        },
    )
    # In BF16 no loss scaler stands between a ruined weight and the count of losses that are no numbers.
    poisoned.follow(strategy={"steps": [{"setWeight": 100}]}, target="bf16")
    gradual.until_phase("Healthy")
    poisoned.until_phase("Healthy")


def _break(gradual: Fleet, poisoned: Fleet) -> None:
    wait_for(
        lambda: len(poisoned.values("genesis_last_healthy_checkpoint_step")) == len(POISONED),
        what="a healthy checkpoint of each",
        seconds=300,
    )
    for workload, step in poisoned.values("genesis_training_step").items():
        poisoned.fault(workload, f"nan={int(step) + 20}")
    for trainer in GRADUAL[:2]:
        gradual.fault(trainer.name, "overflow=0.2")


def test_ruined_weights_are_rewound_to_the_last_healthy_checkpoint_and_no_pod_restarts(
    fleets: tuple[Fleet, Fleet],
) -> None:
    _, fleet = fleets
    before = fleet.lives()
    status = fleet.until_phase("Held")
    incident = status["incident"]
    names = sorted(trainer.name for trainer in POISONED)
    assert (incident["severity"], incident["reason"], incident["strategy"]) == ("P0", "LossNotFinite", "Emergency")
    poisoned = {name_of(key) for key in fleet.state().poisoned}
    assert poisoned <= set(names), "who was seen first may have been rolled back by itself before"
    for workload, pod in fleet.pods().items():
        request = json.loads(pod["metadata"]["annotations"][f"{PREFIX}/request"])
        assert (request["mode"], request["rewind"]) == ("fp32", True), workload

    wait_for(
        lambda: fleet.values("genesis_rewinds_total") == dict.fromkeys(names, 1.0),
        what="each to be rewound once",
        seconds=60,
        found=lambda: str(fleet.values("genesis_rewinds_total")),
    )
    for trainer in POISONED:
        _went_back(fleet, trainer)
    assert all(math.isfinite(loss) for loss in fleet.values("genesis_training_loss").values())
    assert set(fleet.modes().values()) == {"fp32"}
    assert fleet.lives() == before


def test_an_export_keeps_the_trainers_logs(fleets: tuple[Fleet, Fleet], tmp_path: Path) -> None:
    _, fleet = fleets
    incident = fleet.until_phase("Held")["incident"]["id"]
    where = ["-n", fleet.namespace, "--kubeconfig", str(fleet.kubectl.kubeconfig)]
    listed = main(["incident", "export", incident, str(tmp_path / "export"), *where])
    assert listed == 0
    logs = {path.name: path.read_text() for path in (tmp_path / "export" / "logs").iterdir()}
    for trainer in POISONED:
        (log,) = (text for name, text in logs.items() if name.startswith(f"{trainer.name}-"))
        assert '"rewound"' in log
        assert '"checkpoint_healthy"' not in log


def _went_back(fleet: Fleet, trainer: Trainer) -> None:
    """All ranks to the same healthy checkpoint, because they were asked, and training went well from there."""
    rewound = fleet.events(trainer.name, "rewound")
    assert sorted(line["rank"] for line in rewound) == list(range(trainer.ranks))
    assert {line["reason"] for line in rewound} == {"request"}
    at = min(line["time"] for line in rewound)
    healthy = [line["step"] for line in fleet.events(trainer.name, "checkpoint_healthy") if line["time"] < at]
    assert {line["step"] for line in rewound} == {max(healthy)}

    def saved() -> bool:
        """The store refuses weights that are no numbers: a checkpoint made since shows that these are whole."""
        return any(line["time"] > at for line in fleet.events(trainer.name, "checkpoint"))

    wait_for(saved, what=f"a checkpoint of {trainer.name} after the rewind", seconds=300)


def test_a_template_with_nothing_but_the_label_is_promoted_without_a_restart(fleets: tuple[Fleet, Fleet]) -> None:
    fleet, _ = fleets
    template = fleet.kubectl.json("get", "deployment", "mild-2", "-n", fleet.namespace)["spec"]["template"]
    assert "precision" not in {volume["name"] for volume in template["spec"]["volumes"]}
    assert "annotations" not in template["metadata"]
    pod = fleet.pods()["mild-2"]
    assert pod["metadata"]["annotations"][f"{PREFIX}/injected"] == "trainer"
    flips = [(e["from"], e["to"], e["source"]) for e in fleet.events("mild-2", "precision_changed")]
    assert flips[0] == ("fp32", "fp16", "request"), "asked while it ran"


def test_mild_overflow_is_rolled_back_in_batches_and_a_person_retries_by_kubectl_alone(
    fleets: tuple[Fleet, Fleet],
) -> None:
    fleet, _ = fleets
    before = fleet.lives()
    status = fleet.until_phase("Held")
    incident = status["incident"]
    assert (incident["severity"], incident["reason"], incident["strategy"]) == ("P2", "OverflowRateHigh", "Gradual")
    assert (parse_time(incident["lastAckAt"]) or math.inf) <= (parse_time(incident["deadlineAt"]) or 0.0)
    flips = {
        trainer.name: [e["time"] for e in fleet.events(trainer.name, "precision_changed") if e["to"] == "fp32"]
        for trainer in GRADUAL
    }
    assert [len(times) for times in flips.values()] == [1, 1, 1]
    # One after the other, the healthy one last: each batch of one begins when the one before it has acknowledged.
    assert max(flips["mild-0"] + flips["mild-1"]) < flips["mild-2"][0]
    assert abs(flips["mild-0"][0] - flips["mild-1"][0]) > 0.5

    for trainer in GRADUAL[:2]:
        fleet.fault(trainer.name, "")
    number = status["transitionId"]
    fleet.annotate(*(f"{PREFIX}/ack-{item}={number}: drill" for item in Prerequisite))
    fleet.annotate(f"{PREFIX}/retry={number}: the fault is off")
    staged = fleet.until(lambda s: s["phase"] == "Progressing", what="the retry", seconds=120)
    assert (staged["weight"], len(fleet.state().members), staged["attempts"]) == (34, 1, 1)
    fleet.until_phase("Healthy")
    wait_for(
        lambda: set(fleet.modes().values()) == {"fp16"},
        what="all to train in FP16 again",
        seconds=30,
        found=lambda: str(fleet.modes()),
    )
    assert fleet.lives() == before
