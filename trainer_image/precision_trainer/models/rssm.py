"""A recurrent state-space model in the manner of DreamerV3 (arXiv 2301.04104), small.

The state has a deterministic part h, carried by a GRU, and a stochastic part z of S one-hot variables with C classes each.
The *posterior* of z sees the observation, the *prior* foresees it from h alone; training pulls them together, and
reconstruction, reward and "does it continue" are read off (h, z).

What is batched over time (encoder, prior, heads) runs in the trainer's precision. The scan over time stays in FP32: its
matrices are small, so that casting them at every step costs more than 16 bits give. Softmax, KL and losses are FP32 too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from .replay import Sequences

UNIMIX = 0.01
"""Share of the uniform distribution in every categorical: no probability reaches 0, no KL infinity."""
FREE_NATS = 1.0
"""A KL below this is good enough and trains nothing."""
DYNAMICS_WEIGHT, REPRESENTATION_WEIGHT = 0.5, 0.1
"""KL balance: the prior moves towards the posterior faster than the posterior towards the prior."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RssmConfig:
    """Sizes. DreamerV3 uses a deterministic state of 512 to 4096 and 32 variables of 32 classes."""

    observation_size: int
    """O."""
    action_size: int
    """A."""
    deterministic: int = 128
    """D, width of h."""
    variables: int = 16
    """S."""
    classes: int = 16
    """C."""
    hidden: int = 128
    """Width of the layers between."""


class RssmState(NamedTuple):
    """Where a sequence stands."""

    h: torch.Tensor
    """[B, D]"""
    z: torch.Tensor
    """[B, S * C], S one-hot vectors."""


class Reading(NamedTuple):
    """What the model reads off its states."""

    observations: torch.Tensor
    """[T, B, O], in symlog space."""
    rewards: torch.Tensor
    """[T, B], in symlog space."""
    continues: torch.Tensor
    """[T, B], logits."""


class Rollout(NamedTuple):
    """One pass over a batch of sequences."""

    prior: torch.Tensor
    """[T, B, S, C], logits."""
    posterior: torch.Tensor
    """[T, B, S, C], logits."""
    observations: torch.Tensor
    rewards: torch.Tensor
    continues: torch.Tensor


def symlog(x: torch.Tensor) -> torch.Tensor:
    """sign(x) ln(1 + |x|): large values shrink, small ones stay."""
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`symlog`."""
    return torch.sign(x) * torch.expm1(torch.abs(x))


def _layer(size: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, width, bias=False), nn.LayerNorm(width), nn.SiLU())


def _head(size: int, hidden: int, width: int) -> nn.Sequential:
    return nn.Sequential(_layer(size, hidden), nn.Linear(hidden, width))


class RSSM(nn.Module):
    """Sequences in, :class:`Rollout` out."""

    def __init__(self, config: RssmConfig) -> None:
        super().__init__()
        self.config = config
        stochastic, hidden = config.variables * config.classes, config.hidden
        full = config.deterministic + stochastic
        self.encoder = nn.Sequential(_layer(config.observation_size, hidden), _layer(hidden, hidden))
        self.mix = _layer(stochastic + config.action_size, hidden)
        self.cell = nn.GRUCell(hidden, config.deterministic)
        self.posterior = _head(config.deterministic + hidden, hidden, stochastic)
        self.prior = _head(config.deterministic, hidden, stochastic)
        self.decoder = _head(full, hidden, config.observation_size)
        self.reward = _head(full, hidden, 1)
        self.continues = _head(full, hidden, 1)

    def forward(self, batch: Sequences) -> Rollout:
        embedded = self.encoder(symlog(batch.observations))  # [T, B, hidden]
        states, posterior = self.observe(embedded, batch)
        prior = self._logits(self.prior(states.h))
        return Rollout(prior, posterior, *self.read(states))

    def observe(self, embedded: torch.Tensor, batch: Sequences) -> tuple[RssmState, torch.Tensor]:
        """The scan over time, in FP32: states [T, B, ...] and posterior logits [T, B, S, C]."""
        config = self.config
        steps, size = batch.rewards.shape
        # One draw for the whole scan: argmax(logits + Gumbel noise) is a sample, and costs no multinomial a step.
        noise = _gumbel((steps, size, config.variables, config.classes), embedded.device)
        h = embedded.new_zeros(size, config.deterministic, dtype=torch.float32)
        z = embedded.new_zeros(size, config.variables * config.classes, dtype=torch.float32)
        hs, zs, logits = [], [], []
        with torch.autocast(embedded.device.type, enabled=False):
            seen = embedded.float()
            keep = (1.0 - batch.is_first).unsqueeze(2)  # [T, B, 1]
            for time in range(steps):
                h = self.cell(self.mix(torch.cat((z * keep[time], batch.actions[time]), 1)), h * keep[time])
                step_logits = self._logits(self.posterior(torch.cat((h, seen[time]), 1)))
                z = _sample(step_logits, noise[time])
                hs.append(h)
                zs.append(z)
                logits.append(step_logits)
            return RssmState(torch.stack(hs), torch.stack(zs)), torch.stack(logits)

    @torch.no_grad()
    def imagine(self, state: RssmState, actions: torch.Tensor) -> Reading:
        """What would follow from ``state`` [B, ...] under ``actions`` [T, B, A], without seeing anything."""
        h, z = state
        config = self.config
        noise = _gumbel((*actions.shape[:2], config.variables, config.classes), actions.device)
        hs, zs = [], []
        for time in range(actions.shape[0]):
            h = self.cell(self.mix(torch.cat((z, actions[time]), 1)), h)
            z = _sample(self._logits(self.prior(h)), noise[time])
            hs.append(h)
            zs.append(z)
        return self.read(RssmState(torch.stack(hs), torch.stack(zs)))

    def read(self, states: RssmState) -> Reading:
        """The heads over states [T, B, ...]."""
        full = torch.cat((states.h, states.z), 2)
        return Reading(self.decoder(full), self.reward(full).squeeze(2), self.continues(full).squeeze(2))

    def _logits(self, flat: torch.Tensor) -> torch.Tensor:
        """[..., S * C] -> [..., S, C], FP32, with the uniform share mixed in."""
        logits = flat.float().reshape(*flat.shape[:-1], self.config.variables, self.config.classes)
        return torch.log((1.0 - UNIMIX) * F.softmax(logits, -1) + UNIMIX / self.config.classes)


def _gumbel(shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return -torch.empty(shape, device=device).exponential_().clamp_(min=1e-20).log()


def _sample(log_probabilities: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """One-hot samples [B, S * C] from [B, S, C]; the gradient goes to the probabilities (straight-through)."""
    chosen = F.one_hot((log_probabilities + noise).argmax(-1), log_probabilities.shape[-1])
    probabilities = log_probabilities.exp()
    return (chosen + probabilities - probabilities.detach()).flatten(1)


class Losses(NamedTuple):
    """The parts, 0-dim FP32 each: means over time and batch."""

    reconstruction: torch.Tensor
    reward: torch.Tensor
    continues: torch.Tensor
    dynamics: torch.Tensor
    """KL that trains the prior."""
    representation: torch.Tensor
    """KL that trains the posterior."""

    @property
    def total(self) -> torch.Tensor:
        """The loss."""
        kl = DYNAMICS_WEIGHT * self.dynamics + REPRESENTATION_WEIGHT * self.representation
        return self.reconstruction + self.reward + self.continues + kl


def losses(model: nn.Module, batch: Sequences) -> Losses:
    """Run ``model`` (an :class:`RSSM`, under DDP or not) over the batch and compare, in FP32 whatever the mode."""
    rollout: Rollout = model(batch)
    with torch.autocast(batch.rewards.device.type, enabled=False):
        error = rollout.observations.float() - symlog(batch.observations)
        return Losses(
            error.square().sum(2).mean(),
            (rollout.rewards.float() - symlog(batch.rewards)).square().mean(),
            F.binary_cross_entropy_with_logits(rollout.continues.float(), batch.continues),
            _kl(rollout.posterior.detach(), rollout.prior),
            _kl(rollout.posterior, rollout.prior.detach()),
        )


def world_model_loss(model: nn.Module, batch: Sequences) -> torch.Tensor:
    """The sum of the parts, 0-dim."""
    return losses(model, batch).total


def _kl(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """KL(left || right) of log probabilities [T, B, S, C], summed over variables, at least FREE_NATS a step."""
    return (left.exp() * (left - right)).sum((2, 3)).clamp(min=FREE_NATS).mean()
