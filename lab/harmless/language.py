"""Language scripts over random tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lab.harmless.script import Setting, Start, case, noise, numbers
from precision_trainer import PrecisionMode

STEPS, TOKENS, WIDTH, LENGTH = 16, 24, 16, 8
Pair = tuple[torch.Tensor, torch.Tensor]
_BF16 = PrecisionMode.MIXED_BF16


def _text(step: int) -> Pair:
    tokens = numbers(TOKENS, 4, LENGTH + 1, seed=step)
    return tokens[:, :-1], tokens[:, 1:]


def next_token(model: nn.Module, batch: Pair) -> torch.Tensor:
    """Cross-entropy of the next token."""
    logits = model(batch[0])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[1].flatten())


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU]) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.body = kind(WIDTH, WIDTH, 2, dropout=0.2)
        self.head = nn.Linear(WIDTH, TOKENS)
        self.head.weight = self.embed.weight  # tied

    def forward(self, tokens: torch.Tensor, state: object) -> tuple[torch.Tensor, object]:
        out, state = self.body(F.dropout(self.embed(tokens), 0.2, self.training), state)
        return self.head(out), state


def _detached(state: object) -> object:
    return state.detach() if isinstance(state, torch.Tensor) else tuple(map(_detached, state)) if isinstance(
        state, tuple) else None  # fmt: skip


def _word_language_model(start: Start, kind: type[nn.LSTM] | type[nn.GRU], setting: Setting) -> Iterator[float]:
    """The hidden state goes from batch to batch, cut off from its graph."""
    model, state = _Recurrent(kind), None
    carried: list[object] = [state]

    def loss_of(net: nn.Module, batch: Pair) -> torch.Tensor:
        logits, after = net(batch[0].T, _detached(carried[0]))
        carried[0] = after
        return F.cross_entropy(logits.float().flatten(0, 1), batch[1].T.flatten())

    loop = start(model, torch.optim.SGD(model.parameters(), lr=2.0), setting)
    for step in range(STEPS):
        yield loop.step(_text(step), loss_of)


@case("language, SGD, clipped, a hidden state carried on", shape="word_language_model LSTM")
def lstm_language_model(start: Start) -> Iterator[float]:
    yield from _word_language_model(start, nn.LSTM, Setting(max_grad_norm=0.25))


@case("language, SGD, clipped, a hidden state carried on, BF16", shape="word_language_model GRU")
def gru_language_model(start: Start) -> Iterator[float]:
    yield from _word_language_model(start, nn.GRU, Setting(max_grad_norm=0.25, mode=_BF16))


class _Encoder(nn.Module):
    """A causal mask of -inf and the positions are buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.2, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.register_buffer("mask", torch.full((LENGTH, LENGTH), -math.inf).triu(1))
        angle = torch.arange(LENGTH).unsqueeze(1) * torch.exp(torch.arange(0, WIDTH, 2) * (-math.log(1e4) / WIDTH))
        self.register_buffer("positions", torch.stack((angle.sin(), angle.cos()), 2).flatten(1), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) * math.sqrt(WIDTH) + self.get_buffer("positions")
        logits: torch.Tensor = self.head(self.body(x, mask=self.get_buffer("mask"), is_causal=True))
        return logits


@case("language, AdamW, dropout, a mask of -inf", shape="word_language_model Transformer")
def transformer_language_model(start: Start) -> Iterator[float]:
    model = _Encoder()
    loop = start(model, torch.optim.AdamW(model.parameters(), lr=1e-3), Setting(max_grad_norm=0.25, replay=True))
    for step in range(STEPS):
        yield loop.step(_text(step), next_token)


@torch.library.custom_op("harmless::attention", mutates_args=())
def _half_only(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention that refuses FP32, as the kernels of flash-attn do. torch itself has none such for a CPU."""
    if query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    return F.scaled_dot_product_attention(query, key, value, is_causal=True).contiguous()


def _keep(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _half_only_backward(ctx: torch.autograd.function.FunctionCtx, gradient: torch.Tensor) -> tuple[torch.Tensor, ...]:
    saved: tuple[torch.Tensor, ...] = ctx.saved_tensors  # type: ignore[attr-defined]
    with torch.enable_grad():
        inputs = [tensor.detach().requires_grad_() for tensor in saved]
        out = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], is_causal=True)
    return torch.autograd.grad(out, inputs, gradient)


torch.library.register_autograd("harmless::attention", _half_only_backward, setup_context=_keep)


class _Block(nn.Module):
    def __init__(self, *, half_only: bool) -> None:
        super().__init__()
        self._half_only = half_only
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.attention(self.before(x)).unflatten(2, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        if self._half_only:
            mixed = torch.ops.harmless.attention(heads[0], heads[1], heads[2])
        else:
            mixed = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y: torch.Tensor = x + self.mlp(self.between(x))
        return y


class GPT(nn.Module):
    """Two blocks; ``recompute``: activation checkpointing, reentrant or not; ``half_only``: attention that has no FP32."""

    def __init__(self, recompute: bool | None = None, *, half_only: bool = False) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(TOKENS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(_Block(half_only=half_only) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.embed.weight = self.head.weight
        self._reentrant = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x) if self._reentrant is None else checkpoint(block, x, use_reentrant=self._reentrant)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def decayed(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    """AdamW that decays matrices alone."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


@case("language, AdamW fused, tied weights, accumulation, clipped, BF16", shape="nanoGPT")
def nano_gpt(start: Start) -> Iterator[float]:
    model = GPT()
    optimizer = decayed(model)
    loop = start(model, optimizer, Setting(mode=_BF16, accumulation=4, max_grad_norm=1.0, replay=True))
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / 4)
        for micro in range(4):
            yield loop.step(_text(4 * step + micro), next_token)


@case("language, AdamW fused, an attention that only runs in 16 bits, clipped, BF16", shape="nanoGPT with flash-attn")
def half_only_attention(start: Start) -> Iterator[float]:
    model = GPT(half_only=True)
    loop = start(model, decayed(model), Setting(mode=_BF16, max_grad_norm=1.0, replay=True))
    for step in range(2 * STEPS):
        yield loop.step(_text(step), next_token)


@case("language, AdamW, activation checkpointing without reentrance, FP16 with loss scaling", shape="minGPT")
def checkpointed_gpt(start: Start) -> Iterator[float]:
    model = GPT(recompute=False)
    loop = start(model, decayed(model), Setting(mode=PrecisionMode.MIXED_FP16, loss_scale=2.0**24, replay=True))
    for step in range(2 * STEPS):
        yield loop.step(_text(step), next_token)


@case("language, AdamW, activation checkpointing with reentrance")
def reentrant_checkpoints(start: Start) -> Iterator[float]:
    model = GPT(recompute=True)
    loop = start(model, decayed(model), Setting(replay=True))
    for step in range(STEPS):
        yield loop.step(_text(step), next_token)


class _Rotated(nn.Module):
    """Rotary positions as a complex buffer, RMS norm, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(TOKENS, WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        self.norm, self.attention = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.gate, self.up, self.down = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        angles = torch.outer(torch.arange(LENGTH), 1e4 ** (-torch.arange(0, WIDTH, 2) / WIDTH))
        self.register_buffer("turn", torch.polar(torch.ones_like(angles), angles))

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.float().unflatten(2, (-1, 2)))
        return torch.view_as_real(pairs * self.get_buffer("turn")).flatten(2).type_as(x)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        query, key, value = self.attention(self.norm(x)).chunk(3, 2)
        query, key = self._rotated(query), self._rotated(key)
        x = x + F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.down(F.silu(self.gate(x)) * self.up(x))
        logits: torch.Tensor = self.head(x)
        return logits


@case("language, AdamW, a complex buffer, BF16", shape="Llama")
def llama(start: Start) -> Iterator[float]:
    model = _Rotated()
    loop = start(model, decayed(model), Setting(mode=_BF16, max_grad_norm=1.0, replay=True))
    for step in range(STEPS):
        yield loop.step(_text(step), next_token)


class _Adapter(nn.Module):
    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base
        self.a = nn.Parameter(torch.randn(2, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.base(x.to(self.base.weight.dtype)) + (x.float() @ self.a.T) @ self.b.T
        return out


@case("language, AdamW, a frozen BF16 base, adapters in FP32", shape="LoRA fine-tuning")
def lora(start: Start) -> Iterator[float]:
    model = GPT().to(torch.bfloat16).requires_grad_(requires_grad=False)
    for block in model.blocks:
        assert isinstance(block, _Block)
        block.mlp[0] = _Adapter(nn.Linear(WIDTH, 4 * WIDTH, dtype=torch.bfloat16).requires_grad_(requires_grad=False))
    trained = [p for p in model.parameters() if p.requires_grad]
    loop = start(model, torch.optim.AdamW(trained, lr=1e-2), Setting(mode=_BF16, replay=True))
    for step in range(STEPS):
        yield loop.step(_text(step), next_token)


class _Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.RNN(WIDTH, WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, name: torch.Tensor) -> torch.Tensor:
        _, hidden = self.cell(name)
        logits: torch.Tensor = self.head(hidden[0]).log_softmax(-1)
        return logits


@case("language, SGD, batches of every length", shape="char_rnn_classification tutorial")
def names(start: Start) -> Iterator[float]:
    model = _Letters()
    loop = start(model, torch.optim.SGD(model.parameters(), lr=0.05), Setting(replay=True))
    for step in range(STEPS):
        batch = noise(2 + step % 5, 1, WIDTH, seed=step), numbers(4, 1, seed=step)
        yield loop.step(batch, lambda net, pair: F.nll_loss(net(pair[0]), pair[1]))


@case("language, SGD, EmbeddingBag with dense gradients", shape="text_sentiment_ngrams tutorial")
def news(start: Start) -> Iterator[float]:
    model = nn.Sequential(nn.EmbeddingBag(TOKENS, WIDTH), nn.Linear(WIDTH, 4))
    loop = start(model, torch.optim.SGD(model.parameters(), lr=1.0), Setting(max_grad_norm=0.1))
    for step in range(STEPS):
        batch = _text(step)[0], numbers(4, 4, seed=step)
        yield loop.step(batch, lambda net, pair: F.cross_entropy(net(pair[0]), pair[1]))


class _Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):  # an expert that nobody chose has no gradient
                out = out.index_add(0, rows, (weight[rows, None] * expert(x[rows])).to(out.dtype))
        return out


@case("language, Adam, unused experts have no gradient, BF16", shape="mixture of experts")
def mixture_of_experts(start: Start) -> Iterator[float]:
    model = _Experts()
    loop = start(model, torch.optim.Adam(model.parameters(), lr=1e-2), Setting(mode=_BF16, replay=True))
    for step in range(STEPS):
        yield loop.step(noise(3, WIDTH, seed=step), lambda net, x: F.mse_loss(net(x).float(), x.flip(1)))
