"""Checkpoints of the world model: complete, bit-exact, and refused where they are broken."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from precision_trainer import WorldModel
from precision_trainer.checkpoint import files
from precision_trainer.checkpoint.format import validate
from precision_trainer.checkpoint.inspect import inspect
from precision_trainer.errors import CheckpointError
from precision_trainer.models.environments import collect
from precision_trainer.models.replay import ReplayBuffer
from precision_trainer.models.rssm import RssmConfig
from tests.support.training.session import Session
from tests.support.training.world_models import SMALL, small_model, train


@pytest.fixture(scope="module")
def cartpole() -> ReplayBuffer:
    return collect("CartPole-v1", 20, length=8)


@pytest.mark.parametrize(("saved_in", "loaded_in"), [("true", "false"), ("false", "true")])
def test_a_checkpoint_loads_in_the_other_precision_unchanged(
    saved_in: str, loaded_in: str, cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    monkeypatch.setenv("ENABLE_FP16_TRAINING", saved_in)
    first = small_model(cartpole)
    train(first)
    first.save_checkpoint(tmp_path / "model.pt")
    plain = torch.load(tmp_path / "model.pt", weights_only=True)
    assert {value.dtype for value in plain["model_state_dict"].values()} == {torch.float32}
    monkeypatch.setenv("ENABLE_FP16_TRAINING", loaded_in)
    second = WorldModel()
    second.load_checkpoint(tmp_path / "model.pt")
    weights = first.rssm.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in second.rssm.state_dict().items())
    second.replay_buffer = cartpole
    assert train(second)[0]["step"] == len(first.training_history)


def test_a_checkpoint_is_one_of_the_trainers_and_holds_everything_needed_to_go_on(
    cartpole: ReplayBuffer, tmp_path: Path
) -> None:
    model = small_model(cartpole)
    train(model)
    path = tmp_path / "model.pt"
    model.save_checkpoint(path)
    state = validate(files.read_plain(path), path, model.rssm)
    assert (state["step"], state["mode"], state["generation"]) == (len(model.training_history), "fp32", 0)
    assert state["samples"] == 16 * state["step"]
    assert state["data_fingerprint"] == cartpole.fingerprint
    assert inspect(path).error is None
    random = torch.rand(3)
    WorldModel().load_checkpoint(path)
    assert torch.equal(torch.rand(3), random)


def test_a_checkpoint_directory_of_a_job_loads_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(tmp_path, monkeypatch, capsys)
    session.run(model="world-model", steps=2, context=8, width=16)
    model = WorldModel(RssmConfig(observation_size=4, action_size=2, deterministic=16, hidden=16))
    model.load_checkpoint(tmp_path / "checkpoints" / "step-000000000002")
    saved = session.state(2)["model_state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in model.rssm.state_dict().items())


def test_weights_that_are_not_finite_are_neither_saved_nor_loaded(cartpole: ReplayBuffer, tmp_path: Path) -> None:
    model = small_model(cartpole)
    train(model)
    model.save_checkpoint(tmp_path / "good.pt")
    state = torch.load(tmp_path / "good.pt", weights_only=True)
    with torch.no_grad():
        model.rssm.cell.weight_hh.fill_(float("nan"))
    with pytest.raises(CheckpointError, match="inf or NaN"):
        model.save_checkpoint(tmp_path / "bad.pt")
    assert not (tmp_path / "bad.pt").exists()
    state["model_state_dict"]["cell.weight_hh"].fill_(float("inf"))
    torch.save(state, tmp_path / "bad.pt")
    other = small_model(cartpole)
    train(other)
    before = {name: value.clone() for name, value in other.rssm.state_dict().items()}
    with pytest.raises(CheckpointError, match="inf or NaN"):
        other.load_checkpoint(tmp_path / "bad.pt")
    assert all(torch.equal(value, before[name]) for name, value in other.rssm.state_dict().items())


@pytest.mark.parametrize(("name", "saved"), [("exp_avg", False), ("exp_avg_sq", True)])
def test_moments_of_inf_are_saved_only_where_they_load(
    name: str, saved: bool, cartpole: ReplayBuffer, tmp_path: Path
) -> None:
    model, path = small_model(cartpole), tmp_path / "model.pt"
    train(model)
    model.save_checkpoint(path)
    before = path.read_bytes()
    assert model._trainer is not None
    next(iter(model._trainer.optimizer.state.values()))[name].fill_(float("inf"))
    if saved:
        model.save_checkpoint(path)
    else:
        with pytest.raises(CheckpointError, match="inf or NaN in exp_avg"):
            model.save_checkpoint(path)
    assert (path.read_bytes() != before) is saved
    WorldModel().load_checkpoint(path)


def test_resuming_in_fp32_is_bit_exact(cartpole: ReplayBuffer, tmp_path: Path) -> None:
    whole = small_model(cartpole)
    train(whole, epochs=1)
    whole.save_checkpoint(tmp_path / "half.pt")
    resumed = WorldModel(learning_rate=1e-3)
    resumed.load_checkpoint(tmp_path / "half.pt")
    resumed.replay_buffer = cartpole
    losses_of = []
    for model in (whole, resumed):
        torch.manual_seed(5)
        losses_of.append([entry["loss"] for entry in train(model)])
    assert losses_of[0] == losses_of[1]


def test_an_old_file_without_sizes_loads_with_a_warning(
    cartpole: ReplayBuffer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = small_model(cartpole)
    train(first)
    first.save_checkpoint(tmp_path / "new.pt")
    state = torch.load(tmp_path / "new.pt", weights_only=True)
    torch.save({name: state[name] for name in ("model_state_dict", "optimizer_state_dict")}, tmp_path / "old.pt")
    second = WorldModel(SMALL)
    second.load_checkpoint(tmp_path / "old.pt")
    assert "old_checkpoint" in capsys.readouterr().out
    assert torch.equal(second.rssm.cell.weight_hh, first.rssm.cell.weight_hh)
    with pytest.raises(CheckpointError, match="is of another model"):
        WorldModel(RssmConfig(observation_size=4, action_size=2, hidden=8)).load_checkpoint(tmp_path / "old.pt")


class _Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_broken_and_hostile_files_are_refused_and_nothing_in_them_runs(tmp_path: Path) -> None:
    proof = tmp_path / "executed"
    (tmp_path / "hostile.pt").write_bytes(pickle.dumps(_Hostile(proof)))
    torch.save({"model_state_dict": _Hostile(proof), "optimizer_state_dict": {}}, tmp_path / "inside.pt")
    (tmp_path / "torn.pt").write_bytes((tmp_path / "inside.pt").read_bytes()[:100])
    torch.save({"weights": {}}, tmp_path / "foreign.pt")
    for name in ("hostile.pt", "inside.pt", "torn.pt", "foreign.pt", "missing.pt"):
        with pytest.raises(CheckpointError):
            WorldModel(SMALL).load_checkpoint(tmp_path / name)
    assert not proof.exists()
