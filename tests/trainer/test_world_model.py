"""The world model: its data, its mathematics, what it learns, and precision around it."""

from __future__ import annotations

import asyncio
import json
import math
import pickle
from pathlib import Path

import pytest
import torch

from precision_trainer import WorldModel, cli
from precision_trainer.checkpoint import files
from precision_trainer.checkpoint.format import validate
from precision_trainer.checkpoint.inspect import inspect
from precision_trainer.errors import CheckpointError, ConfigError
from precision_trainer.models import rssm as rssm_module
from precision_trainer.models.environments import collect
from precision_trainer.models.replay import ReplayBuffer, Sequences, Trajectory
from precision_trainer.models.rssm import RSSM, RssmConfig, losses, symexp, symlog
from precision_trainer.models.verify import verify_fp32
from tests.support.training.session import Session

SMALL = RssmConfig(observation_size=4, action_size=2, deterministic=24, variables=4, classes=4, hidden=24)


@pytest.fixture(scope="module")
def cartpole() -> ReplayBuffer:
    return collect("CartPole-v1", 20, length=8)


def trajectory(steps: int, start: int = 0, *, terminated: bool = False) -> Trajectory:
    """Observation t is the number start + t, action and reward that led to it the same."""
    numbers = torch.arange(start, start + steps + 1).float()
    return Trajectory(numbers.unsqueeze(1), numbers[1:].unsqueeze(1), numbers[1:], terminated)


def small_model(buffer: ReplayBuffer) -> WorldModel:
    torch.manual_seed(0)
    model = WorldModel(SMALL, learning_rate=1e-3)
    model.replay_buffer = buffer
    return model


def train(model: WorldModel, epochs: int = 1, batch_size: int = 16) -> list[dict[str, float]]:
    return asyncio.run(model.train(epochs, batch_size))


# --- data -------------------------------------------------------------------------------------------------------------


def test_a_sequence_holds_the_action_that_led_to_each_observation_and_marks_where_episodes_begin_and_end() -> None:
    buffer = ReplayBuffer(length=7)
    buffer.add(trajectory(2, 10, terminated=True))
    buffer.add(trajectory(3, 20))
    whole = buffer.batch(0, 1)
    assert whole.observations[:, 0, 0].tolist() == [10, 11, 12, 20, 21, 22, 23]
    assert whole.actions[:, 0, 0].tolist() == [0, 11, 12, 0, 21, 22, 23]
    assert whole.rewards[:, 0].tolist() == [0, 11, 12, 0, 21, 22, 23]
    assert whole.is_first[:, 0].tolist() == [1, 0, 0, 1, 0, 0, 0]
    assert whole.continues[:, 0].tolist() == [1, 1, 0, 1, 1, 1, 1]  # the second episode only ran out of time


def test_a_position_always_gives_the_same_sequences(cartpole: ReplayBuffer) -> None:
    together = cartpole.batch(100, 8)
    apart = [cartpole.batch(104, 4), cartpole.batch(100, 4)]
    assert torch.equal(together.observations, torch.cat((apart[1].observations, apart[0].observations), 1))
    assert collect("CartPole-v1", 20, length=8).fingerprint == cartpole.fingerprint
    assert collect("CartPole-v1", 20, length=8, seed=1).fingerprint != cartpole.fingerprint


def test_the_buffer_forgets_whole_trajectories_oldest_first() -> None:
    buffer = ReplayBuffer(length=4, capacity_steps=10)
    for start in (0, 100, 200):
        buffer.add(trajectory(4, start))
    assert (len(buffer), buffer.steps) == (2, 10)
    assert buffer.batch(0, 50).observations.min() >= 100


def test_environments_give_vectors_one_hot_actions_and_whole_episodes(cartpole: ReplayBuffer) -> None:
    assert cartpole.sizes == (4, 2)
    batch = cartpole.batch(0, 200)
    assert torch.equal(batch.actions.sum(2), 1 - batch.is_first)
    assert (batch.continues == 0).any()  # poles fall
    assert collect("Pendulum-v1", 2).sizes == (3, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: collect("NoSuchWorld-v0", 1), "CartPole-v1 and Pendulum-v1 are always there"),
        (lambda: collect("Blackjack-v1", 1), "expected Box observations"),
        (lambda: ReplayBuffer().batch(0, 1), "the replay buffer is empty"),
        (lambda: ReplayBuffer(length=1), "expected 2 <= length"),
        (lambda: Trajectory(torch.zeros(3, 1), torch.zeros(3, 1), torch.zeros(3), terminated=False), r"\[L \+ 1, O\]"),
    ],
)
def test_unusable_data_is_named(make: object, message: str) -> None:
    assert callable(make)
    with pytest.raises(ConfigError, match=message):
        make()


def test_trajectories_of_another_environment_or_too_few_are_refused(cartpole: ReplayBuffer) -> None:
    with pytest.raises(ConfigError, match="one buffer an environment"):
        collect("CartPole-v1", 1).add(trajectory(3))
    buffer = ReplayBuffer(length=8)
    buffer.add(trajectory(3))
    with pytest.raises(ConfigError, match="holds 4 steps: expected at least 8"):
        buffer.batch(0, 1)
    model = small_model(cartpole)
    train(model)
    model.replay_buffer = collect("Pendulum-v1", 1)
    with pytest.raises(ConfigError, match="make a new WorldModel"):
        train(model)


# --- mathematics ------------------------------------------------------------------------------------------------------


def test_symexp_undoes_symlog() -> None:
    values = torch.tensor([-1e4, -1.0, -1e-3, 0.0, 1e-3, 1.0, 1e4])
    assert torch.allclose(symexp(symlog(values)), values, rtol=1e-4)


@pytest.mark.parametrize(("distance", "counts"), [(0.5, False), (6.0, True)])
def test_the_kl_is_that_of_torchs_distributions_and_at_least_the_free_nats(
    distance: float, counts: bool, cartpole: ReplayBuffer
) -> None:
    from torch.distributions import Categorical, kl_divergence

    torch.manual_seed(0)
    model, batch = RSSM(SMALL), cartpole.batch(0, 4)
    with torch.no_grad():
        for head in (model.posterior, model.prior):
            for parameter in head.parameters():
                parameter.mul_(distance)
    torch.manual_seed(1)
    rollout = model(batch)
    torch.manual_seed(1)
    parts = losses(model, batch)
    kl = kl_divergence(Categorical(logits=rollout.posterior), Categorical(logits=rollout.prior)).sum(2)
    assert bool((kl > rssm_module.FREE_NATS).all()) is counts
    assert parts.dynamics.item() == pytest.approx(kl.clamp(min=rssm_module.FREE_NATS).mean().item(), rel=1e-5)
    assert parts.representation.item() == pytest.approx(parts.dynamics.item())
    assert rollout.posterior.exp().min() >= rssm_module.UNIMIX / SMALL.classes * 0.99


def test_the_prior_learns_from_one_kl_and_the_posterior_from_the_other(cartpole: ReplayBuffer) -> None:
    torch.manual_seed(0)
    model = RSSM(SMALL)
    with torch.no_grad():
        for parameter in model.posterior.parameters():
            parameter.mul_(6.0)
    parts = losses(model, cartpole.batch(0, 4))
    prior, posterior = list(model.prior.parameters()), list(model.posterior.parameters())
    dynamics = torch.autograd.grad(parts.dynamics, prior[-1:] + posterior[-1:], retain_graph=True, allow_unused=True)
    representation = torch.autograd.grad(parts.representation, prior[-1:] + posterior[-1:], allow_unused=True)
    assert dynamics[0].abs().max() > 0
    assert [gradient is None for gradient in representation] == [True, False]
    assert representation[1].abs().max() > 0


def test_nothing_of_an_earlier_episode_reaches_the_next(cartpole: ReplayBuffer) -> None:
    torch.manual_seed(0)
    model, batch = RSSM(SMALL), cartpole.batch(0, 4)
    is_first = torch.zeros_like(batch.is_first)
    is_first[5] = 1.0
    batch = batch._replace(is_first=is_first, actions=batch.actions * (1 - is_first).unsqueeze(2))
    other = batch.observations.clone()
    other[:5] += 100.0
    posteriors = []
    for observations in (batch.observations, other):
        torch.manual_seed(1)
        posteriors.append(model(batch._replace(observations=observations)).posterior)
    assert not torch.equal(posteriors[0][:5], posteriors[1][:5])
    assert torch.equal(posteriors[0][5:], posteriors[1][5:])


def test_it_learns_to_foresee_what_it_has_not_seen() -> None:
    torch.manual_seed(0)
    model = WorldModel(learning_rate=1e-3)
    model.replay_buffer = collect("Pendulum-v1", 20, length=24)
    history = train(model, epochs=6)
    assert history[-1]["reconstruction"] < 0.3 * history[0]["reconstruction"]
    unseen = collect("Pendulum-v1", 5, seed=1000, length=20).batch(0, 64)
    ahead = 8
    reading = model.predict(Sequences(*(part[:-ahead] for part in unseen)), unseen.actions[-ahead:])
    same_episode = unseen.is_first[-ahead:].cumsum(0) == 0
    error = (reading.observations - unseen.observations[-ahead:]).square().sum(2)[same_episode].mean()
    standing_still = unseen.observations[-ahead - 1] - unseen.observations[-ahead:]
    assert error < 0.5 * standing_still.square().sum(2)[same_episode].mean()


# --- precision --------------------------------------------------------------------------------------------------------


def test_fp32_is_the_default_and_says_so(cartpole: ReplayBuffer, capsys: pytest.CaptureFixture[str]) -> None:
    model = small_model(cartpole)
    train(model)
    assert not model.fp16_enabled
    assert model._fp16_stats is None
    output = capsys.readouterr().out
    for line in ("fp16_enabled: False", "FP16 training disabled - using FP32", "training complete"):
        assert line in output


@pytest.mark.parametrize("mode", ["fp16", "bf16"])
def test_reduced_precision_computes_layers_in_it_and_losses_in_fp32(
    mode: str, cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    monkeypatch.setenv("PRECISION_MODE", mode)
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    monkeypatch.setenv("FP16_LOSS_SCALE", "1024")
    model = small_model(cartpole)
    train(model)
    assert model.fp16_enabled
    stats = model._fp16_stats
    assert stats is not None
    assert (stats["fp16_enabled_runtime"], stats["overflow_rate"]) == (True, 0.0)
    assert stats["training_steps"] == len(model.training_history)
    with torch.autocast("cpu", dtype=torch.float16 if mode == "fp16" else torch.bfloat16):
        batch = cartpole.batch(0, 2)
        assert model.rssm(batch).observations.dtype is not torch.float32
        assert {part.dtype for part in losses(model.rssm, batch)} == {torch.float32}
    assert {parameter.dtype for parameter in model.rssm.parameters()} == {torch.float32}


def test_an_overflow_is_in_the_history_and_changes_no_weight(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ENABLE_FP16_TRAINING": "1", "PRECISION_ALLOW_CPU": "1", "FP16_LOSS_SCALE": "1e30"}.items():
        monkeypatch.setenv(name, value)
    model = small_model(cartpole)
    first = train(model, batch_size=64)
    assert [entry["skipped"] for entry in first] == [1.0] * len(first)
    assert all(math.isfinite(entry["loss"]) for entry in first)
    torch.manual_seed(0)
    untouched = RSSM(SMALL).state_dict()
    assert all(torch.equal(value, untouched[name]) for name, value in model.rssm.state_dict().items())
    assert model._fp16_stats is not None
    assert model._fp16_stats["overflow_rate"] == 1.0


def test_a_cpu_that_nobody_allowed_trains_in_fp32(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    model = small_model(cartpole)
    train(model)
    assert not model.fp16_enabled
    assert capsys.readouterr().out.count("Falling back to FP32") == 1


# --- checkpoints ------------------------------------------------------------------------------------------------------


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


# --- the event loop, the commands -------------------------------------------------------------------------------------


async def test_the_event_loop_goes_on_while_it_trains(cartpole: ReplayBuffer) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    await small_model(cartpole).train(num_epochs=1, batch_size=16)
    other.cancel()
    assert turns > 10


async def test_cancelling_ends_after_the_step_under_way_and_leaves_a_model_that_goes_on(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(cartpole)
    begun = asyncio.Event()
    loop, loss = asyncio.get_running_loop(), model._loss

    def signal(module: torch.nn.Module, batch: object) -> torch.Tensor:
        loop.call_soon_threadsafe(begun.set)
        return loss(module, batch)

    monkeypatch.setattr(model, "_loss", signal)
    work = asyncio.create_task(model.train(num_epochs=1000, batch_size=16))
    await begun.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    steps = len(model.training_history)
    assert 1 <= steps < 1000
    assert (await model.train(num_epochs=1, batch_size=16))[0]["step"] == steps


async def test_a_request_changes_the_mode_while_it_trains_and_it_can_still_be_cancelled(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = tmp_path / "request"
    monkeypatch.setenv("PRECISION_REQUEST_FILE", str(request))
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    monkeypatch.setenv("FP16_LOSS_SCALE", "1024")
    model = small_model(cartpole)
    loop, loss = asyncio.get_running_loop(), model._loss
    stepped, changed = asyncio.Event(), asyncio.Event()

    def watch(module: torch.nn.Module, batch: object) -> torch.Tensor:
        loop.call_soon_threadsafe((changed if model.fp16_enabled else stepped).set)
        return loss(module, batch)

    monkeypatch.setattr(model, "_loss", watch)
    work = asyncio.create_task(model.train(num_epochs=100000, batch_size=16))
    await stepped.wait()
    before = model._fp16_stats
    assert before is None
    request.write_text('{"generation":7,"mode":"fp16","lossScaleFactor":0.5}')
    await changed.wait()
    stats = model._fp16_stats
    assert stats is not None
    assert (stats["fp16_enabled_runtime"], stats["generation"], stats["current_scale"]) == (True, 7, 512.0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    steps = [entry["step"] for entry in model.training_history]
    assert steps == list(map(float, range(len(steps))))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["to"], line["generation"]) for line in lines if line["event"] == "precision_changed"] == [("fp16", 7)]


def test_a_request_file_decides_the_start_before_the_environment(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "request").write_text('{"generation":3,"mode":"fp32"}')
    monkeypatch.setenv("PRECISION_REQUEST_FILE", str(tmp_path / "request"))
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    model = small_model(cartpole)
    train(model)
    assert not model.fp16_enabled
    assert model._fp16_stats is None


def test_batches_that_the_sentinel_computes_again_are_no_steps(
    cartpole: ReplayBuffer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ENABLE_FP16_TRAINING": "1", "PRECISION_ALLOW_CPU": "1", "PRECISION_MODE": "bf16"}.items():
        monkeypatch.setenv(name, value)
    model = small_model(cartpole)
    calls = 0
    loss = model._loss

    def count(module: torch.nn.Module, batch: object) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return loss(module, batch)

    monkeypatch.setattr(model, "_loss", count)
    train(model, epochs=90, batch_size=64)
    assert len(model.training_history) >= 66
    assert calls == len(model.training_history)  # the shadow of step 64 is computed by a loss that keeps nothing


def test_verify_fp32_looks_at_what_the_layers_computed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    passed = verify_fp32("CartPole-v1", 5, epochs=1, batch_size=16)
    assert passed.passed
    assert "FP32 mode verified" in passed.text()
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    monkeypatch.setenv("PRECISION_MODE", "bf16")
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    failed = verify_fp32("CartPole-v1", 5, epochs=1, batch_size=16)
    assert not failed.passed
    assert failed.output_dtypes["bfloat16"] > 0
    assert "NOT FP32" in failed.text()


def test_the_command_verifies_fp32_whatever_the_environment_and_the_jobs_request_ask_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("ENABLE_FP16_TRAINING", "true")
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    monkeypatch.setenv("PRECISION_REQUEST_FILE", str(tmp_path / "request"))
    (tmp_path / "request").write_text('{"generation":1,"mode":"fp16"}')
    assert cli.main(["verify-fp32", "--trajectories", "50", "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["passed"]
    assert result["parameter_dtypes"].keys() == {"float32"}


def test_the_trainer_trains_it_and_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from precision_trainer.job import train as job
    from precision_trainer.job.options import TrainOptions
    from precision_trainer.job.signals import StopFlag
    from precision_trainer.values.logs import JsonLog

    def run(steps: int, directory: str) -> dict[str, object]:
        options = TrainOptions(
            model="world-model",
            steps=steps,
            width=16,
            context=8,
            metrics_port=-1,
            checkpoint_dir=str(tmp_path / directory),
        )
        assert job.train(options, JsonLog(), StopFlag(JsonLog())) == 0
        events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        return next(event for event in events if event["event"] == "complete")

    whole = run(8, "whole")
    run(5, "parts")
    assert run(8, "parts")["loss"] == whole["loss"]
