"""Generative scripts: two networks against each other, latent variables, diffusion."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lab.harmless.script import Setting, Start, case, noise
from precision_trainer import PrecisionMode

STEPS = 12


def _generator() -> nn.Module:
    return nn.Sequential(
        nn.ConvTranspose2d(8, 16, 4, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(16, 1, 4, 2, 1, bias=False), nn.Tanh(),
    )  # fmt: skip


def _judge(*, normed: bool = True) -> nn.Module:
    first, last = nn.Conv2d(1, 16, 4, 2, 1, bias=False), nn.Conv2d(16, 1, 4, bias=False)
    norm = nn.BatchNorm2d(16) if normed else nn.Identity()
    return nn.Sequential(first, norm, nn.LeakyReLU(0.2, inplace=True), last, nn.Flatten(0))


def _as(label: float, judged: torch.Tensor) -> torch.Tensor:
    return F.binary_cross_entropy_with_logits(judged, torch.full_like(judged, label))


def _adversaries(start: Start, generator: nn.Module, judge: nn.Module, setting: Setting) -> Iterator[float]:
    """The judge on real and made pictures, then the generator through the judge."""
    adam = [torch.optim.Adam(net.parameters(), lr=2e-4, betas=(0.5, 0.999)) for net in (judge, generator)]
    judges, makes = start(judge, adam[0], setting), start(generator, adam[1], setting)
    for step in range(STEPS):
        real, latent = noise(8, 1, 8, 8, seed=step), torch.randn(8, 8, 1, 1)
        made = generator(latent).detach()
        yield judges.step((real, made), lambda net, both: _as(1.0, net(both[0])) + _as(0.0, net(both[1])))
        yield makes.step(latent, lambda net, code: _as(1.0, judge(net(code))))


@case("generative, Adam, two networks, batch norm", shape="dcgan")
def dcgan(start: Start) -> Iterator[float]:
    yield from _adversaries(start, _generator(), _judge(), Setting())


@case("generative, Adam, two networks, batch norm, BF16", shape="dcgan with AMP")
def dcgan_bf16(start: Start) -> Iterator[float]:
    yield from _adversaries(start, _generator(), _judge(), Setting(mode=PrecisionMode.MIXED_BF16))


@case(
    "generative, Adam, two networks, each with its own loss scale, FP16 that overflows", shape="dcgan with GradScaler"
)
def dcgan_fp16(start: Start) -> Iterator[float]:
    # Plain PyTorch has a scaler for each network here too.
    setting = Setting(mode=PrecisionMode.MIXED_FP16, loss_scale=2.0**22)
    yield from _adversaries(start, _generator(), _judge(), setting)


@case("generative, Adam, spectral norm: its buffers advance with every forward pass", shape="SN-GAN")
def spectral_gan(start: Start) -> Iterator[float]:
    judge = _judge(normed=False)
    for module in judge.modules():
        if isinstance(module, nn.Conv2d):
            spectral_norm(module)
    yield from _adversaries(start, _generator(), judge, Setting())


@case("generative, Adam, gradient penalty: a gradient inside the loss", shape="WGAN-GP")
def wgan_gp(start: Start) -> Iterator[float]:
    generator, judge = _generator(), _judge(normed=False)
    judges = start(judge, torch.optim.Adam(judge.parameters(), lr=1e-3, betas=(0.0, 0.9)))
    makes = start(generator, torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.0, 0.9)))

    def critic_loss(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        real, made = batch
        share = torch.rand(len(real), 1, 1, 1)
        between = (share * real + (1 - share) * made).requires_grad_()
        (slope,) = torch.autograd.grad(net(between).sum(), between, create_graph=True)
        penalty = (slope.flatten(1).norm(2, 1) - 1).square().mean()
        loss: torch.Tensor = net(made).mean() - net(real).mean() + 10 * penalty
        return loss

    for step in range(STEPS):
        real, latent = noise(8, 1, 8, 8, seed=step), torch.randn(8, 8, 1, 1)
        yield judges.step((real, generator(latent).detach()), critic_loss)
        if step % 3 == 0:
            yield makes.step(latent, lambda net, code: -judge(net(code)).mean())


class _Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decoder = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 64), nn.Sigmoid())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = self.encoder(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.decoder(code), mean, log_variance


def _evidence(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    made, mean, log_variance = net(x)
    divergence = -0.5 * torch.sum(1 + log_variance - mean.square() - log_variance.exp())
    return F.binary_cross_entropy(made, x, reduction="sum") + divergence


@case("generative, Adam, random numbers in forward", shape="vae")
def vae(start: Start) -> Iterator[float]:
    model = _Variational()
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-3), Setting(replay=True))
    for step in range(2 * STEPS):
        yield loop.step(noise(8, 64, seed=step).sigmoid(), _evidence)


class _Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Embedding(10, 16)
        self.body = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.GroupNorm(4, 64), nn.Linear(64, 16))

    def forward(self, noised: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(torch.cat((noised, self.time(time)), 1))
        return out


@case("generative, AdamW, an average of the weights, BF16", shape="DDPM")
def ddpm(start: Start) -> Iterator[float]:
    model = _Denoiser()
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-3), Setting(mode=PrecisionMode.MIXED_BF16))
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    kept = torch.linspace(0.99, 0.1, 10)

    def loss_of(net: nn.Module, clean: torch.Tensor) -> torch.Tensor:
        time, added = torch.randint(10, (len(clean),)), torch.randn_like(clean)
        share = kept[time].unsqueeze(1)
        return F.mse_loss(net(share.sqrt() * clean + (1 - share).sqrt() * added, time).float(), added)

    for step in range(2 * STEPS):
        yield loop.step(noise(8, 16, seed=step), loss_of)
        average.update_parameters(model)
    with torch.no_grad():
        yield loss_of(average, noise(8, 16, seed=99)).item()


class _Coupling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        fixed, moved = x.chunk(2, 1)
        scale, shift = self.net(fixed).chunk(2, 1)
        return torch.cat((moved * scale.tanh().exp() + shift, fixed), 1), scale.tanh().sum(1)


@case("generative, Adam, log-determinants, accumulation", shape="RealNVP")
def real_nvp(start: Start) -> Iterator[float]:
    model = nn.ModuleList(_Coupling() for _ in range(3))

    def loss_of(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(len(x))
        for layer in net.children():
            x, determinant = layer(x)
            total = total + determinant
        return (0.5 * x.square().sum(1) - total).mean()

    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(accumulation=3, replay=True))
    for step in range(2 * STEPS):
        yield loop.step(noise(8, 4, seed=step).exp(), loss_of)
