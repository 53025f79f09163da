"""Trajectories from gymnasium's environments: real dynamics, no rendering, nothing to download."""

from __future__ import annotations

import torch

from ..errors import ConfigError
from .replay import ReplayBuffer, Trajectory


def collect(environment: str, trajectories: int, *, length: int = 32, seed: int = 0) -> ReplayBuffer:
    """Play whole episodes with random actions.

    Args:
        environment: one with vector observations, e.g. ``CartPole-v1`` or ``Pendulum-v1``.
        trajectories: episodes to play.
        length: steps of the sequences that the buffer gives out.
        seed: of environment and actions; the same one gives the same buffer.

    Raises:
        ConfigError: gymnasium or the environment is missing, or its observations or actions are of another kind.
    """
    try:
        import gymnasium
    except ModuleNotFoundError:
        raise ConfigError(
            "the world model's trajectories come from gymnasium, which is not installed: pip install gymnasium"
        ) from None
    try:
        world = gymnasium.make(environment)
    except gymnasium.error.Error as error:
        raise ConfigError(
            f"environment {environment!r}: {error}; CartPole-v1 and Pendulum-v1 are always there"
        ) from None
    spaces = gymnasium.spaces
    if not isinstance(world.observation_space, spaces.Box) or not isinstance(
        world.action_space, (spaces.Box, spaces.Discrete)
    ):
        raise ConfigError(
            f"environment {environment!r} has observations {world.observation_space} and actions {world.action_space}: "
            "expected Box observations, and Box or Discrete actions"
        )
    world.action_space.seed(seed)
    choices = int(world.action_space.n) if isinstance(world.action_space, spaces.Discrete) else 0
    buffer = ReplayBuffer(length)
    for episode in range(trajectories):
        observations = [_vector(world.reset(seed=seed + episode)[0])]
        actions, rewards = [], []
        terminated = truncated = False
        while not terminated and not truncated:
            action = world.action_space.sample()
            observation, reward, terminated, truncated, _ = world.step(action)
            observations.append(_vector(observation))
            actions.append(_one_hot(int(action), choices) if choices else _vector(action))
            rewards.append(float(reward))
        buffer.add(Trajectory(torch.stack(observations), torch.stack(actions), torch.tensor(rewards), bool(terminated)))
    world.close()
    return buffer


def _vector(value: object) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float32).reshape(-1)


def _one_hot(choice: int, choices: int) -> torch.Tensor:
    vector = torch.zeros(choices)
    vector[choice] = 1.0
    return vector
