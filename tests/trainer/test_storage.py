"""What is on disk stays good: a full volume, weights that are not finite, broken content, files of other programs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.checkpoint import files, plain
from precision_trainer.checkpoint.inspect import inspect
from precision_trainer.checkpoint.optimizer import check_optimizer
from precision_trainer.errors import CheckpointError
from precision_trainer.store.choice import begin_from
from precision_trainer.store.runs import Runs
from precision_trainer.telemetry.metrics import Metrics
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import small_model, small_state
from tests.support.training.session import STOP, Session
from tests.support.training.volume import Volume

WIDTH = 64


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    if os.geteuid() != 0:
        pytest.skip("a file system of its own needs root")
    made = Volume(tmp_path / "volume")
    yield made
    made.close()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Session:
    return Session(tmp_path, monkeypatch, capsys)


def _trainer(lr: float = 1e-3) -> ExtendedFP16Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_FP16, loss_scale=1024.0)
    return ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)


def _step(trainer: ExtendedFP16Trainer) -> None:
    loss = trainer.training_step(torch.ones(2, WIDTH), lambda model, batch: model(batch).float().square().mean())
    trainer.backward_and_step(loss)


# --- a full volume, and weights that are not finite -------------------------------------------------------------------


@pytest.mark.parametrize("free_bytes", [0, 4096, 16384, 45056])
def test_a_file_that_does_not_fit_leaves_the_one_before_and_nothing_beside_it(volume: Volume, free_bytes: int) -> None:
    trainer, path = _trainer(), volume.path / "model.pt"
    _step(trainer)
    trainer.save_checkpoint(path)
    good = path.read_bytes()
    volume.leave(free_bytes)
    _step(trainer)
    with pytest.raises(CheckpointError, match=r"model\.pt not written .*check that the directory exists"):
        trainer.save_checkpoint(path)
    assert path.read_bytes() == good
    assert {entry.name for entry in volume.path.iterdir()} == {"model.pt", "filler"}


def test_a_tag_that_does_not_fit_leaves_nothing_behind(volume: Volume) -> None:
    checkpoint = volume.path / "step-000000000010"
    files.write(checkpoint, small_state(10, small_model()))
    volume.fill()
    with pytest.raises(OSError, match="No space left"):
        files.write_tag(checkpoint, {"step": 10})
    assert {entry.name for entry in checkpoint.iterdir()} == {files.STATE, files.MANIFEST}


def test_weights_that_are_not_finite_do_not_take_a_good_files_place(tmp_path: Path) -> None:
    trainer, path = _trainer(), tmp_path / "model.pt"
    trainer.save_checkpoint(path)
    good = path.read_bytes()
    with torch.no_grad():
        next(trainer.model.parameters())[0] = float("nan")
    with pytest.raises(CheckpointError, match=r"inf or NaN in 0\.weight"):
        trainer.save_checkpoint(path)
    assert path.read_bytes() == good
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.pt"]


def test_a_ledger_of_runs_that_does_not_fit_leaves_the_one_before_and_is_reported_and_counted(
    volume: Volume, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = Metrics()
    runs = Runs(str(volume.path), 10, JsonLog(), pod="pod-a", metrics=metrics)
    runs.begin_process(0, 0.0)
    before = (volume.path / "runs.json").read_bytes()
    assert _failures(metrics) == 0
    volume.fill()
    runs.fail()
    runs.crash()
    assert _failures(metrics) == 2
    assert (volume.path / "runs.json").read_bytes() == before
    assert {entry.name for entry in volume.path.iterdir()} == {"runs.json", "filler"}
    assert capsys.readouterr().out.count("runs_not_saved") == 1


def _failures(metrics: Metrics) -> float:
    samples = (sample for family in metrics.collect() for sample in family.samples)
    return next(sample.value for sample in samples if sample.name == "genesis_runs_failures_total")


def test_a_state_that_torch_cannot_write_ends_no_training_and_is_counted(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No OSError: pickle refuses a function.
    from precision_trainer.step.scaler import LossScaler

    state_dict = LossScaler.state_dict
    monkeypatch.setattr(LossScaler, "state_dict", lambda self: {**state_dict(self), "own": lambda: None})
    with pytest.raises(CheckpointError, match="pickle"):
        session.run(steps=10, checkpoint_every=4)
    assert session.value("genesis_checkpoint_failures_total") >= 2
    assert session.value("genesis_training_steps_total") == 10
    assert session.events("checkpoint_failed")
    assert [
        entry.name for entry in (session.directory / "checkpoints").iterdir() if entry.name.startswith(".tmp")
    ] == []


# --- what is good, and what is not ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["masked_task", "frozen_mask_task"])
def test_a_mask_of_minus_infinity_is_no_poison(name: str, session: Session) -> None:
    task = f"tests.support.training.harmless_scenarios:{name}"
    session.run({6: STOP}, model=task, steps=20)
    assert session.events("checkpoint_failed") == []
    session.run(model=task, steps=20)
    assert [line["step"] for line in session.events("resumed")] == [8]
    assert session.events("complete")


def test_frozen_weights_and_buffers_of_another_type_are_kept_as_they_are(session: Session) -> None:
    task = "tests.support.training.harmless_scenarios:adapted_task"
    session.run({6: STOP}, model=task, steps=20)
    assert session.events("checkpoint_failed") == []
    session.run(model=task, steps=20)
    assert [line["step"] for line in session.events("resumed")] == [8]
    assert session.events("complete")
    weights = session.state(20)["model_state_dict"]
    assert {name: weights[name].dtype for name in ("base.weight", "exact", "adapter.weight")} == {
        "base.weight": torch.bfloat16,
        "exact": torch.float64,
        "adapter.weight": torch.float32,
    }
    assert inspect(session.directory / "checkpoints" / "step-000000000020").error is None


def test_a_checkpoint_with_a_type_that_the_model_did_not_have_is_refused(session: Session) -> None:
    session.run(model="tests.support.training.harmless_scenarios:adapted_task", steps=4)
    path = session.directory / "checkpoints" / "step-000000000004"
    state = torch.load(path / files.STATE, weights_only=True)
    state["model_state_dict"]["adapter.weight"] = state["model_state_dict"]["adapter.weight"].bfloat16()
    files.write(path, state)
    assert "adapter.weight: expected torch.float32, found torch.bfloat16" in str(inspect(path).error)


def test_a_buffer_that_became_nan_in_training_is_still_poison(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, 4), torch.nn.BatchNorm1d(4))
    trainer = ExtendedFP16Trainer(model, torch.optim.AdamW(model.parameters()), allow_cpu=True)
    model.get_buffer("1.running_mean").fill_(float("nan"))
    with pytest.raises(CheckpointError, match=r"inf or NaN in 1\.running_mean"):
        trainer.save_checkpoint(tmp_path / "model.pt")


def test_a_resume_trains_with_the_learning_rate_it_was_told(session: Session) -> None:
    session.run(steps=4, learning_rate=1e-3)
    session.run(steps=8, learning_rate=1e-5)
    assert [line["step"] for line in session.events("resumed")] == [4]
    assert session.state(8)["optimizer_state_dict"]["param_groups"][0]["lr"] == 1e-5
    told = [s.labels["lr"] for f in session.metrics.collect() for s in f.samples if s.name == "genesis_run_info"]
    assert [float(rate) for rate in told] == [1e-5]


def _spoil(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    state = torch.load(path / files.STATE, weights_only=True)
    change(state)
    files.write(path, state)


def _group(state: dict[str, Any]) -> dict[str, Any]:
    group: dict[str, Any] = state["optimizer_state_dict"]["param_groups"][0]
    return group


def _swap_two(state: dict[str, Any]) -> None:
    order = _group(state)["params"]
    order[0], order[-1] = order[-1], order[0]


def _of_second(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda state: state["optimizer_state_dict"]["state"][1].update({name: value})


def _setting(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda state: _group(state).update({name: value})


def _moment(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[dict[str, Any]], object]:
    def spoil(state: dict[str, Any]) -> None:
        entry = state["optimizer_state_dict"]["state"][1]
        entry["exp_avg"] = change(entry["exp_avg"])

    return spoil


def _quantized(value: torch.Tensor) -> torch.Tensor:
    with warnings.catch_warnings(action="ignore"):  # torch means to remove them; files have them
        return torch.quantize_per_tensor(value, 0.1, 0, torch.qint8)


BROKEN: dict[str, Callable[[dict[str, Any]], object]] = {
    "rate": _setting("lr", "fast"),
    "rate that is no number": _setting("lr", float("nan")),
    "betas": _setting("betas", {"one": 0.9}),
    "negative decay": _setting("weight_decay", -1),
    "decay for each parameter": _setting("weight_decay", torch.ones(3)),
    "infinite epsilon": _setting("eps", float("inf")),
    "direction": _setting("maximize", -1),
    "amsgrad without its moments": _setting("amsgrad", True),
    "order of parameters": _swap_two,
    "one parameter twice": lambda state: _group(state)["params"].__setitem__(1, 0),
    "a parameter that is no number": lambda state: _group(state)["params"].__setitem__(1, True),
    "no step": lambda state: state["optimizer_state_dict"]["state"][1].pop("step"),
    "betas of 1": _setting("betas", (1.0, 1.0)),
    "decay beyond any float": _setting("weight_decay", 10**400),
    "steps": _of_second("step", torch.zeros(3)),
    "a step that is a switch": _of_second("step", torch.tensor(True)),
    "negative step": _of_second("step", torch.tensor(-1.0)),
    "moment": _of_second("exp_avg", {}),
    "random state of the right length": lambda state: state["rng"][0].update(cpu="0" * len(state["rng"][0]["cpu"])),
    "random state with blanks": lambda state: state["rng"][0].update(
        cpu=" " * (len(state["rng"][0]["cpu"]) - 2) + "00"
    ),
    "a scale beyond FP32": lambda state: state["scaler"].update(scale=1e39),
    "a switch of three": _setting("amsgrad", torch.zeros(3)),
    "a direction of three": _setting("maximize", torch.zeros(3)),
    "quantized moment": _moment(_quantized),
    "complex moment": _moment(lambda value: torch.full_like(value, float("nan")).to(torch.complex64)),
    "negative square": lambda state: state["optimizer_state_dict"]["state"][1]["exp_avg_sq"].fill_(-1.0),
    "overflows left": lambda state: state["scaler"].update(overflows_left="x"),
    "overflows that are no number": lambda state: state["scaler"].update(overflows_left=float("nan")),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_broken_content_falls_back_to_the_checkpoint_before(session: Session, kind: str) -> None:
    session.run(steps=8, checkpoint_every=4)
    _spoil(session.directory / "checkpoints" / "step-000000000008", BROKEN[kind])
    session.run(steps=9)
    assert [line["step"] for line in session.events("checkpoint_refused")] == [8]
    assert [line["step"] for line in session.events("resumed")] == [4]


def test_what_others_keep_beside_the_weights_begins_anew_where_it_is_unreadable(session: Session) -> None:
    session.run(steps=8, checkpoint_every=4)

    def change(state: dict[str, Any]) -> None:
        state["parts"] = {name: dict.fromkeys(part, -1) for name, part in state["parts"].items()}
        assert state["parts"]

    _spoil(session.directory / "checkpoints" / "step-000000000008", change)
    session.run(steps=9)
    assert [line["step"] for line in session.events("resumed")] == [8]
    assert session.events("complete")
    for line in session.events("checkpoint_part_unreadable"):
        assert line["message"].endswith(" begins anew")


class _Strange(torch.optim.Optimizer):
    """Not torch's: its settings and its state mean what it says."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1, "sum": 0.0, "best": float("inf"), "warm": False, "name": None})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group.update(sum=-0.45, best=-3.0, warm=2, name="late")
            for parameter in group["params"]:
                self.state[parameter] = {"step": torch.tensor([-10.0, 3.0]), "kept": None}


def test_what_good_optimizers_save_is_taken_however_it_looks() -> None:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(4)]

    def checked(make: Callable[[], torch.optim.Optimizer], **settings: object) -> None:
        trained = make()
        for weight in weights:
            weight.grad = torch.ones(2)
        trained.step()
        saved = trained.state_dict()
        for group in saved["param_groups"]:
            group.update(settings)
        check_optimizer(saved, Path("file"), make())

    halves: list[dict[str, Any]] = [{"params": weights[:2], "amsgrad": True}, {"params": weights[2:]}]
    checked(lambda: torch.optim.AdamW([dict(half) for half in halves]))
    with pytest.warns(UserWarning, match="duplicate parameters"):
        checked(lambda: torch.optim.SGD([*weights[:2], weights[0]], lr=0.1, momentum=0.9))
    checked(lambda: torch.optim.SGD(weights, lr=0.1, nesterov=True, momentum=0.9), nesterov=1, maximize=None)
    checked(
        lambda: torch.optim.lr_scheduler.StepLR(torch.optim.Adam(weights), 1).optimizer, initial_lr=torch.tensor(0.1)
    )
    checked(lambda: _Strange(weights))


def test_a_rate_may_be_a_tensor_in_the_file_or_in_the_optimizer() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    for saved, live in ((0.1, torch.tensor(0.1)), (torch.tensor(0.1), 0.1)):
        file, optimizer = (torch.optim.Adam([parameter], lr=rate, foreach=False) for rate in (saved, live))
        check_optimizer(file.state_dict(), Path("file"), optimizer)


def test_moments_of_another_optimizer_that_are_no_tensors_are_refused_and_none_is_as_torch_saves_it() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    for moment in (None, torch.ones(2)):
        check_optimizer(_moments(optimizer, moment), Path("file"), optimizer)
    with pytest.raises(CheckpointError, match="expected a tensor momentum_buffer, found "):
        check_optimizer(_moments(optimizer, {}), Path("file"), optimizer)


def _moments(optimizer: torch.optim.Optimizer, moment: object) -> dict[str, object]:
    return {**optimizer.state_dict(), "state": {0: {"momentum_buffer": moment}}}


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_a_file_of_torchs_own_scaler_compiled_names_or_fp64_loads(tmp_path: Path, prefix: str) -> None:
    source, path = _trainer(), tmp_path / "old.pt"
    _step(source)
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    scaler.scale(torch.ones(()))  # its state is lazy
    content = {
        "model_state_dict": {prefix + name: value.double() for name, value in source.model.state_dict().items()},
        "optimizer_state_dict": source.optimizer.state_dict(),
        "scaler": scaler.state_dict(),
    }
    torch.save(content, path)
    target = _trainer()
    with torch.no_grad():
        next(target.model.parameters()).zero_()
    target.load_checkpoint(path)
    for name, value in source.model.state_dict().items():
        assert torch.equal(target.model.state_dict()[name], value)
    assert float(target.scaler.scale_value) == 512.0
    _step(target)


class _Inside(torch.nn.Module):
    """All of it under an attribute of DDP's own name."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module(x)
        return out


def _part_compiled() -> torch.nn.Module:
    model = _Inside()
    model.module[0] = torch.compile(model.module[0], backend="eager")  # type: ignore[assignment]
    return model


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "bare": lambda: torch.nn.Linear(4, 1),
    "compiled": lambda: torch.compile(torch.nn.Linear(4, 1), backend="eager"),  # type: ignore[dict-item, return-value]
    "inside": _Inside,
    "part compiled": _part_compiled,
}


@pytest.mark.parametrize(
    ("saved", "loaded", "prefix"),
    [
        ("compiled", "compiled", ""),
        ("inside", "inside", ""),
        ("part compiled", "part compiled", ""),
        ("bare", "compiled", ""),
        ("compiled", "bare", ""),
        ("inside", "part compiled", "module."),
        ("part compiled", "inside", "module._orig_mod."),
    ],
)
def test_names_that_ddp_or_a_compiler_changed_load_and_names_that_fit_stay_as_they_are(
    tmp_path: Path, saved: str, loaded: str, prefix: str
) -> None:
    def trainer(kind: str) -> ExtendedFP16Trainer:
        model = MODELS[kind]()
        config = ExtendedFP16Config(precision_mode=PrecisionMode.FP32)
        return ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), config)

    source, target, path = trainer(saved), trainer(loaded), tmp_path / "file"
    source.save_checkpoint(path)
    if prefix:
        weights, _ = plain.content(files.read_plain(path), path, source.model)
        torch.save({plain.MODEL: {prefix + name: value for name, value in weights.items()}}, path)
    for load in (target.load_checkpoint, lambda where: begin_from(where, target, target.log)):
        with torch.no_grad():
            next(target.model.parameters()).zero_()
        load(path)
        for own, other in zip(source.model.parameters(), target.model.parameters(), strict=True):
            assert torch.equal(own, other)


def test_two_writers_of_one_path_leave_a_whole_file_though_their_process_ids_are_equal(tmp_path: Path) -> None:
    path = tmp_path / "shared"

    class Slow(Mapping[str, object]):
        """While it is read, the other pod writes."""

        def __getitem__(self, name: str) -> object:
            return torch.zeros(8)

        def __iter__(self) -> Iterator[str]:
            plain.write(path, {"other": torch.ones(8)})
            return iter(["mine"])

        def __len__(self) -> int:
            return 1

    plain.write(path, Slow())
    assert set(torch.load(path, weights_only=True)) == {"mine"}
    assert [one.name for one in tmp_path.iterdir()] == ["shared"]
