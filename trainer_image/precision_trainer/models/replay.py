"""Trajectories and the buffer that a world model trains from: sequences by their position, so that a resume is exact."""

from __future__ import annotations

import hashlib
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..errors import ConfigError

# Weyl sequence modulo 2^64, as in data.py: consecutive samples start far apart.
_STRIDE = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode of ``L`` actions. ``observations[t + 1]`` and ``rewards[t]`` follow from ``actions[t]``."""

    observations: torch.Tensor
    """[L + 1, O] float32."""
    actions: torch.Tensor
    """[L, A] float32; one-hot where the environment's are discrete."""
    rewards: torch.Tensor
    """[L] float32."""
    terminated: bool
    """The last observation is terminal: no future. False where only time ran out."""

    def __post_init__(self) -> None:
        """Check shapes; ConfigError says which one is wrong."""
        steps = self.actions.shape[0]
        good = (
            (self.observations.dim(), self.actions.dim(), self.rewards.dim()) == (2, 2, 1)
            and steps > 0
            and self.observations.shape[0] == steps + 1
            and self.rewards.shape[0] == steps
        )
        if not good:
            found = [tuple(part.shape) for part in (self.observations, self.actions, self.rewards)]
            raise ConfigError(f"trajectory of shapes {found}: expected [L + 1, O], [L, A] and [L] with L > 0")


class Sequences(NamedTuple):
    """A batch, time first. At time t stands what was seen then, and the action that led to it."""

    observations: torch.Tensor
    """[T, B, O]"""
    actions: torch.Tensor
    """[T, B, A]; 0 where an episode begins."""
    rewards: torch.Tensor
    """[T, B]; 0 where an episode begins."""
    is_first: torch.Tensor
    """[T, B]: 1 where an episode begins: what came before does not count."""
    continues: torch.Tensor
    """[T, B]: 0 where the episode ended for good, else 1."""


class ReplayBuffer:
    """The newest trajectories, whole ones, up to a number of steps."""

    def __init__(self, length: int = 32, capacity_steps: int = 1_000_000) -> None:
        """Give out sequences of ``length`` steps; forget the oldest trajectories beyond ``capacity_steps``."""
        if length < 2 or capacity_steps < length:
            raise ConfigError(
                f"length={length}, capacity_steps={capacity_steps}: expected 2 <= length <= capacity_steps"
            )
        self.length, self._capacity = length, capacity_steps
        self._episodes: deque[Sequences] = deque()
        self._flat: Sequences | None = None
        self.steps = 0
        """Observations held."""

    def __len__(self) -> int:
        """Trajectories held."""
        return len(self._episodes)

    def add(self, trajectory: Trajectory) -> None:
        """Take one in. Raises ConfigError if its observations or actions are as wide as no other's here."""
        episode = _episode(trajectory)
        if self._episodes:
            widths = [(part.shape[1]) for part in self._episodes[0][:2]]
            if widths != [part.shape[1] for part in episode[:2]]:
                raise ConfigError(
                    f"observation and action sizes {[part.shape[1] for part in episode[:2]]}: expected {widths}, as in the "
                    "other trajectories; keep one buffer an environment"
                )
        self._episodes.append(episode)
        self.steps += len(episode.rewards)
        while self.steps > self._capacity and len(self._episodes) > 1:
            self.steps -= len(self._episodes.popleft().rewards)
        self._flat = None

    @property
    def sizes(self) -> tuple[int, int]:
        """Width of observations and of actions (O, A). Raises ConfigError while the buffer is empty."""
        flat = self._all()
        return flat.observations.shape[1], flat.actions.shape[1]

    @property
    def fingerprint(self) -> str:
        """Names the data: 16 hexadecimal digits of a sha256."""
        digest = hashlib.sha256()
        for part in self._all():
            digest.update(part.numpy().tobytes())
        return digest.hexdigest()[:16]

    def batch(self, position: int, size: int) -> Sequences:
        """Sequences ``position`` to ``position + size - 1`` of an endless stream: [T, size, ...].

        A sequence may run over the end of an episode into the next; ``is_first`` marks where.
        """
        flat = self._all()
        starts = self.steps - self.length + 1
        if starts < 1:
            raise ConfigError(
                f"the buffer holds {self.steps} steps: expected at least {self.length}, the length of a sequence; "
                "add trajectories"
            )
        first = [((index * _STRIDE) & 0xFFFFFFFFFFFFFFFF) % starts for index in range(position, position + size)]
        index = torch.tensor(first) + torch.arange(self.length).unsqueeze(1)  # [T, size]
        return Sequences(*(part[index] for part in flat))

    def _all(self) -> Sequences:
        if self._flat is None:
            if not self._episodes:
                raise ConfigError("the replay buffer is empty: add trajectories first (models.environments.collect)")
            self._flat = Sequences(*(torch.cat(parts) for parts in zip(*self._episodes, strict=True)))
        return self._flat


def _episode(trajectory: Trajectory) -> Sequences:
    """One trajectory, aligned as in Sequences, without the batch dimension: [L + 1, ...]."""
    steps = trajectory.actions.shape[0] + 1
    first, continues = torch.zeros(steps), torch.ones(steps)
    first[0] = 1.0
    continues[-1] = 0.0 if trajectory.terminated else 1.0
    return Sequences(
        trajectory.observations.float(),
        torch.cat((torch.zeros_like(trajectory.actions[:1]), trajectory.actions)).float(),
        torch.cat((torch.zeros(1), trajectory.rewards.float())),
        first,
        continues,
    )
