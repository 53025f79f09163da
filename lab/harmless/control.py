"""Reinforcement learning: the data depend on the model, and parts of the graph are made outside the loss."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributions import Categorical
from torch.nn import functional as F

from lab.harmless.script import Setting, Start, case, noise
from precision_trainer import PrecisionMode

EPISODES, WIDTH = 12, 4


class _World:
    """A cart that drifts; its reward is to stay near the middle. Not random."""

    def __init__(self, seed: int) -> None:
        self.state = noise(WIDTH, seed=seed) * 0.1

    def step(self, action: int) -> tuple[torch.Tensor, float]:
        force = 0.1 if action else -0.1
        self.state = torch.roll(self.state, 1) * 0.9 + force
        return self.state, 1.0 - float(self.state.abs().mean())


def _returns(rewards: list[float]) -> torch.Tensor:
    total, found = 0.0, []
    for reward in reversed(rewards):
        total = reward + 0.99 * total
        found.append(total)
    values = torch.tensor(found[::-1])
    return (values - values.mean()) / (values.std() + 1e-6)


class _Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.Dropout(0.1), nn.ReLU())
        self.actions, self.value = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(state)
        return self.actions(hidden), self.value(hidden).squeeze(-1)


def _reinforced(_: nn.Module, seen: tuple[list[torch.Tensor], list[float]]) -> torch.Tensor:
    return -(torch.stack(seen[0]) * _returns(seen[1])).sum()


@case("control, Adam, the graph is made before the loss", shape="reinforce")
def reinforce(start: Start) -> Iterator[float]:
    model = _Policy()
    trained = [*model.body.parameters(), *model.actions.parameters()]  # the value head is not used here
    loop = start(model, torch.optim.Adam(trained, lr=1e-2))
    for episode in range(EPISODES):
        world, chances, rewards = _World(episode), [], []
        for _ in range(5 + episode % 4):
            choice = Categorical(logits=model(world.state)[0])
            action = choice.sample()
            chances.append(choice.log_prob(action))
            rewards.append(world.step(int(action))[1])
        yield loop.step((chances, rewards), _reinforced)


@case("control, Adam, the graph is made before the loss, two heads", shape="actor_critic")
def actor_critic(start: Start) -> Iterator[float]:
    model = _Policy()
    loop = start(model, torch.optim.Adam(model.parameters(), lr=3e-2))

    def loss_of(_: nn.Module, seen: tuple[list[torch.Tensor], list[torch.Tensor], list[float]]) -> torch.Tensor:
        chances, values, rewards = torch.stack(seen[0]), torch.stack(seen[1]), _returns(seen[2])
        return -(chances * (rewards - values.detach())).sum() + F.smooth_l1_loss(values, rewards, reduction="sum")

    for episode in range(EPISODES):
        world = _World(episode)
        chances, values, rewards = [], [], []
        for _ in range(6):
            logits, value = model(world.state)
            choice = Categorical(logits=logits)
            action = choice.sample()
            chances.append(choice.log_prob(action))
            values.append(value)
            rewards.append(world.step(int(action))[1])
        yield loop.step((chances, values, rewards), loss_of)


@case("control, AdamW, a target network, gradients clamped by hooks", shape="reinforcement_q_learning tutorial")
def deep_q_learning(start: Start) -> Iterator[float]:
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 2))
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    target = copy.deepcopy(model)
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-2, amsgrad=True))

    def loss_of(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            wanted = batch[1].mean(1) + 0.99 * target(batch[1]).max(1).values
        return F.smooth_l1_loss(net(batch[0]).max(1).values, wanted)

    for step in range(2 * EPISODES):
        before = noise(16, WIDTH, seed=step)
        yield loop.step((before, before * 0.9), loss_of)
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.05)


@case("control, Adam, several epochs a rollout, clipped, BF16", shape="PPO")
def ppo(start: Start) -> Iterator[float]:
    model = _Policy()
    setting = Setting(mode=PrecisionMode.MIXED_BF16, max_grad_norm=0.5)
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-5), setting)

    def loss_of(net: nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        states, actions, old, advantages = batch
        logits, values = net(states)
        choice = Categorical(logits=logits.float())
        ratio = (choice.log_prob(actions) - old).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        loss: torch.Tensor = F.mse_loss(values.float(), advantages) - gain - 0.01 * choice.entropy().mean()
        return loss

    for rollout in range(4):
        states = noise(16, WIDTH, seed=rollout)
        with torch.no_grad():
            choice = Categorical(logits=model(states)[0])
            actions = choice.sample()
            old = choice.log_prob(actions)
        for rows in torch.randperm(32).remainder(16).split(8):
            yield loop.step((states[rows], actions[rows], old[rows], states.mean(1)[rows]), loss_of)
