"""The world model: its data, its mathematics, what it learns, and precision around it."""

from __future__ import annotations

import math

import pytest
import torch

from precision_trainer import WorldModel
from precision_trainer.errors import ConfigError
from precision_trainer.models import rssm as rssm_module
from precision_trainer.models.environments import collect
from precision_trainer.models.replay import ReplayBuffer, Sequences, Trajectory
from precision_trainer.models.rssm import RSSM, losses, symexp, symlog
from tests.support.training.world_models import SMALL, small_model, train


@pytest.fixture(scope="module")
def cartpole() -> ReplayBuffer:
    return collect("CartPole-v1", 20, length=8)


def trajectory(steps: int, start: int = 0, *, terminated: bool = False) -> Trajectory:
    """Observation t is the number start + t, action and reward that led to it the same."""
    numbers = torch.arange(start, start + steps + 1).float()
    return Trajectory(numbers.unsqueeze(1), numbers[1:].unsqueeze(1), numbers[1:], terminated)


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
