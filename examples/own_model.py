"""A model of your own, 30 lines: classify noisy waves by their frequency.

precision-trainer train examples.own_model:build --steps 200 --batch-size 64
"""

import torch
from torch import nn
from torch.nn import functional as F

CLASSES, LENGTH = 8, 64


def waves(position: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples position to position + size - 1 of an endless stream: [size, LENGTH] and their classes [size]."""
    rows = [torch.Generator().manual_seed(index) for index in range(position, position + size)]
    classes = torch.cat([torch.randint(CLASSES, (1,), generator=row) for row in rows])
    phases = torch.cat([torch.rand(1, 1, generator=row) for row in rows])
    noise = torch.cat([torch.randn(1, LENGTH, generator=row) for row in rows])
    time = torch.linspace(0, 1, LENGTH)
    return torch.sin(6.283 * ((classes[:, None] + 1) * time + phases)) + 0.3 * noise, classes


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy; in FP32 whatever the mode."""
    inputs, classes = batch
    return F.cross_entropy(model(inputs).float(), classes)


def build():
    """What the trainer asks for: model, data, loss."""
    model = nn.Sequential(nn.Linear(LENGTH, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, CLASSES))
    return model, waves, loss
