"""Graph scripts: a whole graph is one batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F

from lab.harmless.script import Setting, Start, case, noise, numbers
from precision_trainer import PrecisionMode

STEPS, NODES, WIDTH = 20, 12, 8
Graph = tuple[torch.Tensor, torch.Tensor]


def _adjacency() -> torch.Tensor:
    edges = (noise(NODES, NODES, seed=5) > 0.8).float()
    edges = ((edges + edges.T + torch.eye(NODES)) > 0).float()
    scale = edges.sum(1).rsqrt()
    return scale[:, None] * edges * scale[None, :]


def _nodes() -> Graph:
    return noise(NODES, WIDTH, seed=1), numbers(3, NODES, seed=2)


def _labels(net: nn.Module, graph: Graph) -> torch.Tensor:
    return F.nll_loss(net(graph[0]).float().log_softmax(1)[:8], graph[1][:8])


class _Convolution(nn.Module):
    """The adjacency is a sparse buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("adjacency", _adjacency().to_sparse())
        self.first, self.second = nn.Linear(WIDTH, 16, bias=False), nn.Linear(16, 3, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        adjacency = self.get_buffer("adjacency")
        x = F.dropout(F.relu(torch.sparse.mm(adjacency, self.first(x))), 0.5, self.training)
        out: torch.Tensor = torch.sparse.mm(adjacency, self.second(x))
        return out


@case("graphs, Adam, a sparse adjacency as a buffer", shape="gcn")
def gcn(start: Start) -> Iterator[float]:
    model = _Convolution()
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4), Setting(replay=True))
    for _ in range(STEPS):
        yield loop.step(_nodes(), _labels)


class _Messages(nn.Module):
    """Sums FP32 zeros and what neighbours send: that fails where autocast makes the messages 16-bit."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(2 * WIDTH, 3)
        self.register_buffer("edges", _adjacency().nonzero().T)

    def _around(self, x: torch.Tensor) -> torch.Tensor:
        source, target = self.get_buffer("edges")
        return torch.cat((x, torch.zeros(x.shape).index_add(0, target, x[source])), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self._around(F.relu(self.first(self._around(x)))))
        return out


@case("graphs, Adam, a sum that fails in BF16: the mode is refused", shape="GraphSAGE with AMP")
def graph_sage(start: Start) -> Iterator[float]:
    model = _Messages()
    setting = Setting(mode=PrecisionMode.MIXED_BF16, trained_in=PrecisionMode.FP32)
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), setting)
    for _ in range(STEPS):
        yield loop.step(_nodes(), _labels)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(WIDTH, 16, bias=False)
        self.left, self.right = nn.Parameter(torch.randn(16, 1)), nn.Parameter(torch.randn(16, 1))
        self.out = nn.Linear(16, 3)
        self.register_buffer("edges", _adjacency() > 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = F.dropout(self.values(x), 0.3, self.training)
        score = F.leaky_relu(values @ self.left + (values @ self.right).T, 0.2)
        share = score.masked_fill(~self.get_buffer("edges"), float("-inf")).softmax(1)
        out: torch.Tensor = self.out(F.elu(share @ values))
        return out


@case("graphs, Adam, attention masked by edges, BF16", shape="gat")
def gat(start: Start) -> Iterator[float]:
    model = _Attention()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, weight_decay=5e-4, amsgrad=True)
    loop = start(model, optimizer, Setting(mode=PrecisionMode.MIXED_BF16, replay=True))
    for _ in range(STEPS):
        yield loop.step(_nodes(), _labels)


class _Taste(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(20, 8), nn.Embedding(30, 8)
        self.mlp = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, pairs: torch.Tensor) -> torch.Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        out: torch.Tensor = (user * item).sum(1) + self.mlp(torch.cat((user, item), 1)).squeeze(1)
        return out


@case("recommendation, Adagrad, embeddings with dense gradients", shape="neural collaborative filtering")
def recommender(start: Start) -> Iterator[float]:
    model = _Taste()
    loop = start(model, torch.optim.Adagrad(model.parameters(), lr=0.05), Setting(replay=True))
    for step in range(STEPS):
        batch = numbers(20, 16, 2, seed=step), numbers(2, 16, seed=step).float()
        yield loop.step(batch, lambda net, rated: F.binary_cross_entropy_with_logits(net(rated[0]), rated[1]))
