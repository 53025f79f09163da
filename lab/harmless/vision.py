"""Image scripts. Images are 1 or 3 channels of 8 to 16 pixels, random and fixed by a seed."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from lab.harmless.script import Setting, Start, case, noise, numbers
from precision_trainer import PrecisionMode

Labelled = tuple[torch.Tensor, torch.Tensor]
STEPS = 20
_BF16 = Setting(mode=PrecisionMode.MIXED_BF16)


def _labelled(step: int, channels: int = 1, size: int = 8) -> Labelled:
    labels = numbers(4, 8, seed=step)
    return noise(8, channels, size, size, seed=step) + labels.view(-1, 1, 1, 1), labels


def classify(model: nn.Module, batch: Labelled) -> torch.Tensor:
    """Cross-entropy of the logits."""
    return F.cross_entropy(model(batch[0]), batch[1])


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        out += x
        return F.relu_(out)


def small_resnet() -> nn.Module:
    """Two residual blocks with batch norm, four classes."""
    stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(stem, _Residual(8), _Residual(8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


@case("vision, SGD with momentum, batch norm, StepLR, evaluation between steps", shape="imagenet loop")
def imagenet(start: Start) -> Iterator[float]:
    model = small_resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 8, 0.1)
    loop = start(model, optimizer)
    for step in range(STEPS):
        model.train()
        yield loop.step(_labelled(step, 3), classify)
        schedule.step()
        if step % 5 == 4:
            model.eval()
            with torch.no_grad():
                yield classify(model, _labelled(100 + step, 3)).item()


@case("vision, SGD, channels_last, BF16", shape="imagenet loop with AMP")
def imagenet_channels_last(start: Start) -> Iterator[float]:
    model = small_resnet().to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    loop = start(model, optimizer, _BF16)
    for step in range(STEPS):
        images, labels = _labelled(step, 3)
        yield loop.step((images.to(memory_format=torch.channels_last), labels), classify)


@case("vision, SGD, additions in place, FP16 with loss scaling", shape="imagenet loop with GradScaler")
def imagenet_fp16(start: Start) -> Iterator[float]:
    model = small_resnet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loop = start(model, optimizer, Setting(mode=PrecisionMode.MIXED_FP16, replay=True))
    for step in range(2 * STEPS):
        yield loop.step(_labelled(step, 3), classify)


@case("vision, Adadelta, dropout", shape="mnist")
def mnist(start: Start) -> Iterator[float]:
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25), nn.Flatten(),
        nn.Linear(72, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4), nn.LogSoftmax(1),
    )  # fmt: skip
    loop = start(model, torch.optim.Adadelta(model.parameters(), lr=1.0), Setting(replay=True))
    for step in range(STEPS):
        yield loop.step(_labelled(step), lambda net, batch: F.nll_loss(net(batch[0]), batch[1]))


class _Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 16))
        self.head = nn.Sequential(nn.Linear(32, 16), nn.ReLU(inplace=True), nn.Linear(16, 1), nn.Sigmoid())

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        both: torch.Tensor = self.head(torch.cat((self.trunk(left), self.trunk(right)), 1))
        return both.squeeze(1)


@case("vision, Adadelta, one trunk called twice", shape="siamese network")
def siamese(start: Start) -> Iterator[float]:
    model = _Siamese()
    loop = start(model, torch.optim.Adadelta(model.parameters(), lr=1.0))
    for step in range(STEPS):
        left, right = _labelled(2 * step), _labelled(2 * step + 1)
        same = (left[1] == right[1]).float()
        yield loop.step(
            (left[0], right[0], same), lambda net, batch: F.binary_cross_entropy(net(batch[0], batch[1]), batch[2])
        )


@case("vision, Adam, PixelShuffle, BF16", shape="super_resolution")
def super_resolution(start: Start) -> Iterator[float]:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1), nn.ReLU(),
        nn.Conv2d(8, 4, 3, padding=1), nn.PixelShuffle(2),
    )  # fmt: skip
    nn.init.orthogonal_(next(model[0].parameters()))
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-3), _BF16)
    for step in range(STEPS):
        large = noise(4, 1, 16, 16, seed=step)
        yield loop.step((F.avg_pool2d(large, 2), large), lambda net, batch: F.mse_loss(net(batch[0]), batch[1]))


def _gram(features: torch.Tensor) -> torch.Tensor:
    flat = features.flatten(2)
    return flat @ flat.transpose(1, 2) / flat[0].numel()


def _features() -> nn.Module:
    """In the place of a pretrained network: frozen."""
    frozen = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
    return frozen.requires_grad_(requires_grad=False).eval()


@case("vision, Adam, instance norm, a frozen second network", shape="fast_neural_style")
def fast_neural_style(start: Start) -> Iterator[float]:
    seen = _features()
    style = _gram(seen(noise(1, 3, 8, 8, seed=7)))
    model = nn.Sequential(
        nn.ReflectionPad2d(1), nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True), nn.ReLU(),
        nn.Upsample(scale_factor=1), nn.Conv2d(8, 3, 3, padding=1),
    )  # fmt: skip

    def loss_of(net: nn.Module, images: torch.Tensor) -> torch.Tensor:
        made = seen(net(images))
        return F.mse_loss(made, seen(images)) + 1e3 * F.mse_loss(_gram(made), style.expand(len(images), -1, -1))

    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-3), Setting(replay=True))
    for step in range(STEPS):
        yield loop.step(noise(4, 3, 8, 8, seed=step), loss_of)


class _Picture(nn.Module):
    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.pixels = nn.Parameter(start.clone())

    def forward(self) -> torch.Tensor:
        return self.pixels


@case("vision, Adam over the pixels, no batch", shape="neural style transfer")
def style_transfer(start: Start) -> Iterator[float]:
    seen, content = _features(), noise(1, 3, 8, 8, seed=1)
    style, model = _gram(seen(noise(1, 3, 8, 8, seed=2))), _Picture(content)

    def loss_of(net: nn.Module, _: None) -> torch.Tensor:
        made = seen(net())
        return F.mse_loss(made, seen(content)) + 1e4 * F.mse_loss(_gram(made), style)

    loop = start(model, torch.optim.Adam(model.parameters(), lr=0.05))
    for _ in range(STEPS):
        with torch.no_grad():
            model.pixels.clamp_(-3, 3)
        yield loop.step(None, loss_of)


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
        )
        self.head = nn.Linear(16, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat((self.token.to(tokens.dtype).expand(len(tokens), -1, -1), tokens), 1)
        logits: torch.Tensor = self.head(self.layers(tokens)[:, 0])
        return logits


@case("vision, AdamW fused, clipped, cosine schedule with warm-up, BF16", shape="vision_transformer")
def vision_transformer(start: Start) -> Iterator[float]:
    model = _Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm_up, cosine], [4])
    loop = start(model, optimizer, Setting(mode=PrecisionMode.MIXED_BF16, max_grad_norm=1.0))
    for step in range(STEPS):
        yield loop.step(_labelled(step, 3), classify)
        schedule.step()


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(inplace=True))
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.out = nn.Conv2d(16, 2, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        high = self.down(images)
        masks: torch.Tensor = self.out(torch.cat((high, self.up(self.deep(high))), 1))
        return masks


def _dice(model: nn.Module, batch: Labelled) -> torch.Tensor:
    logits = model(batch[0])
    one_hot = F.one_hot(batch[1], 2).permute(0, 3, 1, 2).float()
    chance = logits.softmax(1).float()
    dice = (2 * (chance * one_hot).sum() + 1e-6) / (chance.sum() + one_hot.sum() + 1e-6)
    loss: torch.Tensor = F.cross_entropy(logits, batch[1]) + 1 - dice
    return loss


@case("vision, RMSprop, clipped, FP16 with loss scaling", shape="U-Net segmentation")
def unet(start: Start) -> Iterator[float]:
    model = _UNet()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-4, weight_decay=1e-8, momentum=0.9, foreach=True)
    loop = start(model, optimizer, Setting(mode=PrecisionMode.MIXED_FP16, max_grad_norm=1.0))
    for step in range(STEPS):
        yield loop.step((noise(2, 1, 8, 8, seed=step), numbers(2, 2, 8, 8, seed=step)), _dice)


@case("vision, Adam, a frozen teacher", shape="knowledge distillation tutorial")
def distillation(start: Start) -> Iterator[float]:
    teacher = small_resnet().eval().requires_grad_(requires_grad=False)
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU(), nn.Linear(16, 4))

    def loss_of(net: nn.Module, batch: Labelled) -> torch.Tensor:
        logits = net(batch[0])
        soft = F.kl_div((logits / 2).log_softmax(1), (teacher(batch[0]) / 2).log_softmax(1), log_target=True)
        loss: torch.Tensor = 0.5 * soft + F.cross_entropy(logits, batch[1])
        return loss

    loop = start(
        model, torch.optim.Adam(model.parameters(), lr=1e-3), Setting(mode=PrecisionMode.MIXED_BF16, replay=True)
    )
    for step in range(STEPS):
        yield loop.step(_labelled(step, 3), loss_of)


@case("vision, one optimizer and one loop a layer, local losses", shape="mnist_forward_forward")
def forward_forward(start: Start) -> Iterator[float]:
    layers = [nn.Sequential(nn.Linear(64, 32), nn.ReLU()), nn.Sequential(nn.Linear(32, 32), nn.ReLU())]
    loops = [start(layer, torch.optim.Adam(layer.parameters(), lr=0.03)) for layer in layers]

    def loss_of(layer: nn.Module, batch: Labelled) -> torch.Tensor:
        good, bad = (layer(part).square().mean(1) for part in batch)
        return F.softplus(torch.cat((2 - good, bad - 2))).mean()

    for step in range(STEPS):
        pair = noise(8, 64, seed=2 * step), noise(8, 64, seed=2 * step + 1)
        for layer, loop in zip(layers, loops, strict=True):
            yield loop.step(pair, loss_of)
            pair = layer(pair[0]).detach(), layer(pair[1]).detach()
