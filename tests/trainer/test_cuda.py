"""On a real GPU: speed, memory, every mode, overflow, layers of all kinds, NCCL. Without one: "not run" (conftest)."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from precision_tools.analyzer.comparison import compare
from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.models.data import LibraryText
from precision_trainer.models.task import Loss
from precision_trainer.models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from precision_trainer.step import fp8
from precision_trainer.step.hardware import cuda_capability, fp8_missing
from precision_trainer.step.steps import StepRecord
from precision_trainer.telemetry import memory
from precision_trainer.values.request import PrecisionRequest
from tests.support.training.process import TRAIN, Process

pytestmark = pytest.mark.cuda

ROOT = Path(__file__).parents[2]
DEVICE = torch.device("cuda")
FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
CAPABILITY = cuda_capability() or (0, 0)
CONTEXT = 256
needs_tensor_cores = pytest.mark.skipif(CAPABILITY < (7, 0), reason="not run: needs tensor cores, CUDA capability 7.0")


@pytest.fixture(scope="module")
def text() -> LibraryText:
    return LibraryText(CONTEXT, max_bytes=1 << 20)


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    yield
    torch.cuda.empty_cache()


def model(width: int = 128) -> nn.Module:
    """At width 1024: 50 M parameters, bound by its products."""
    torch.manual_seed(0)
    return ByteTransformer(TransformerConfig(width=width, layers=4, context=CONTEXT)).to(DEVICE)


def trainer(mode: PrecisionMode, subject: nn.Module, **settings: Any) -> ExtendedFP16Trainer:  # noqa: ANN401 - of the config
    if mode is BF16 and CAPABILITY < (8, 0):
        pytest.skip("not run: BF16 needs CUDA capability 8.0")
    optimizer = torch.optim.AdamW(subject.parameters(), lr=1e-3, fused=True)
    return ExtendedFP16Trainer(subject, optimizer, ExtendedFP16Config(precision_mode=mode, **settings), DEVICE)


def train(subject: ExtendedFP16Trainer, text: LibraryText, steps: int, size: int = 16) -> list[float]:
    """Losses of the steps, as the process group agreed on them."""
    records: list[StepRecord] = []
    for _ in range(steps):
        records += subject.begin_step().records
        batch = text.batch(subject.step * size, size).to(DEVICE)
        subject.backward_and_step(subject.training_step(batch, next_byte_loss))
    records += subject.drain().records
    assert {record.mode for record in records} == {subject.mode}
    return [record.loss for record in records]


@pytest.mark.parametrize("mode", [FP32, FP16, BF16], ids=lambda mode: mode.wire)
def test_learns_and_keeps_weights_gradients_and_moments_fp32(mode: PrecisionMode, text: LibraryText) -> None:
    subject = trainer(mode, model(), loss_scale=1024.0)
    losses = train(subject, text, 30)
    assert statistics.fmean(losses[-5:]) < losses[0] - 1
    state = [value for entry in subject.optimizer.state.values() for value in entry.values()]
    assert {value.dtype for value in (*subject.model.parameters(), *state)} == {torch.float32}


@needs_tensor_cores
def test_is_faster_than_strict_fp32_where_products_bound_it(text: LibraryText) -> None:
    modes = ["fp32", "fp16", *(["bf16"] if CAPABILITY >= (8, 0) else [])]

    def loss(module: nn.Module, batch: object) -> torch.Tensor:
        assert isinstance(batch, torch.Tensor)
        return next_byte_loss(module, batch)

    typed: Loss = loss
    runs = compare(
        model(1024), lambda step: text.batch(16 * step, 16).to(DEVICE), typed, DEVICE,
        modes=modes, steps=15, loss_scale=1024.0,
    )  # fmt: skip
    for run in runs[1:]:
        print(
            f"{torch.cuda.get_device_name()}: {run.mode} {run.speedup:.2f}x strict FP32, {run.step_seconds * 1e3:.1f} ms"
        )
        assert run.speedup > 1.3
        assert run.final_loss == pytest.approx(runs[0].final_loss, rel=0.05)


@needs_tensor_cores
def test_takes_less_memory_than_fp32(text: LibraryText) -> None:
    peaks = {}
    for mode in (FP32, FP16):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        train(trainer(mode, model(1024), loss_scale=1024.0), text, 3)
        peaks[mode] = torch.cuda.max_memory_allocated() - before
    print(f"{torch.cuda.get_device_name()}: FP32 {peaks[FP32]:,} bytes, FP16 {peaks[FP16]:,}")
    assert peaks[FP16] < 0.9 * peaks[FP32]


def test_an_overflow_skips_the_step_lowers_the_scale_and_training_goes_on(text: LibraryText) -> None:
    subject = trainer(FP16, model(), loss_scale=2.0**24)
    before = [parameter.detach().clone() for parameter in subject.model.parameters()]
    batch = text.batch(0, 16).to(DEVICE)
    subject.backward_and_step(subject.training_step(batch, next_byte_loss) * 1e4)
    first = subject.drain().records[0]
    assert first.overflow
    assert first.loss_scale == 2.0**23
    assert all(torch.equal(*pair) for pair in zip(before, subject.model.parameters(), strict=True))
    losses = train(subject, text, 40)
    assert statistics.fmean(losses[-5:]) < losses[0] - 1


class EveryKind(nn.Module):
    """Convolution, batch and layer norm, recurrence, attention and embedding: images [B, 3, 16, 16] -> [B, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.picture = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(2))
        self.place = nn.Embedding(16, 256)
        self.attention = nn.MultiheadAttention(256, 4, batch_first=True)
        self.norm = nn.LayerNorm(256)
        self.memory = nn.GRU(256, 64, batch_first=True)
        self.head = nn.Linear(64, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        seen = self.picture(images) + self.place.weight
        seen = self.norm(seen + self.attention(seen, seen, seen, need_weights=False)[0])
        output: torch.Tensor = self.head(self.memory(seen)[0][:, -1])
        return output


@pytest.mark.parametrize("mode", [FP16, BF16], ids=lambda mode: mode.wire)
def test_layers_of_every_kind_train(mode: PrecisionMode) -> None:
    torch.manual_seed(0)
    subject = trainer(mode, EveryKind().to(DEVICE), loss_scale=256.0)
    images = torch.randn(32, 3, 16, 16, device=DEVICE)
    targets = images.mean((1, 2, 3))[:, None]
    for _ in range(30):
        subject.backward_and_step(
            subject.training_step(images, lambda module, batch: (module(batch).float() - targets).square().mean())
        )
    records = subject.drain().records
    assert not any(record.skipped for record in records)
    assert subject.get_stats()["training_steps"] == 30
    assert all(parameter.isfinite().all() for parameter in subject.model.parameters())


def test_a_switch_is_in_force_within_two_steps_and_loses_none(text: LibraryText) -> None:
    subject = trainer(FP16, model(), loss_scale=1024.0)
    subject.request_source = lambda applied: PrecisionRequest(1, FP32) if applied < 1 else None
    changes, steps = [], []
    for _ in range(6):
        boundary = subject.begin_step()
        changes += [boundary.change] if boundary.change else []
        steps += [record.step for record in boundary.records]
        subject.backward_and_step(subject.training_step(text.batch(0, 4).to(DEVICE), next_byte_loss))
    steps += [record.step for record in subject.drain().records]
    assert [(change.after, change.step <= 2) for change in changes] == [(FP32, True)]
    assert steps == list(range(6))


@pytest.mark.parametrize("mode", [FP32, FP16, BF16], ids=lambda mode: mode.wire)
def test_no_step_makes_the_host_wait(mode: PrecisionMode, text: LibraryText) -> None:
    subject, batch = trainer(mode, model(), loss_scale=1024.0), text.batch(0, 16).to(DEVICE)

    def step() -> None:
        subject.begin_step()
        subject.backward_and_step(subject.training_step(batch, next_byte_loss))

    for _ in range(5):
        step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(10):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_memory_is_told_of_the_device() -> None:
    free, total = torch.cuda.mem_get_info()
    headroom = memory.headroom_bytes(DEVICE)
    assert headroom is not None
    assert 0 < headroom <= total
    assert headroom >= 0.9 * free
    held = torch.zeros(1 << 20, device=DEVICE)
    assert (memory.peak_bytes(DEVICE) or 0) >= held.nbytes
    size = held.nbytes
    del held
    memory.begin_stretch(DEVICE)
    assert (memory.peak_bytes(DEVICE) or 0) < torch.cuda.memory_allocated() + size


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_over_nccl_train_to_the_end(ranks: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"not run: {ranks} ranks over NCCL need as many GPUs")
    request = tmp_path / "request"
    request.write_text('{"generation":1,"mode":"fp16"}')
    result = subprocess.run(
        [sys.executable, "-m", "precision_trainer", "launch", "--nproc-per-node", str(ranks), "--master-port", "0",
         "train", "transformer", "--backend", "nccl", "--steps", "20", "--metrics-port", "-1"],
        env={"PYTHONPATH": str(ROOT / "trainer_image"), "PRECISION_REQUEST_FILE": str(request)},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
    assert "training complete" in {line.get("message") for line in lines}
    assert not [line for line in lines if line.get("level") == "error"]


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_over_nccl_change_precision_at_one_step_without_losing_any(
    ranks: int, start: Callable[..., Process]
) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"not run: {ranks} ranks over NCCL need as many GPUs")
    launch = ["-m", "precision_trainer", "launch", "--nproc-per-node", str(ranks), "--master-port", "0"]
    job = start([*launch, *TRAIN[2:], "--backend", "nccl"])
    job.until_training()
    for generation, mode in enumerate(("fp16", *(["bf16"] if CAPABILITY >= (8, 0) else []), "fp32"), start=1):
        job.request.write_text(json.dumps({"generation": generation, "mode": mode}))
        job.until_metric(f'genesis_precision_info{{generation="{generation}",mode="{mode}"}} 1.0')
    assert job.stop() == 143, job.text
    changes = job.events("precision_changed")
    for generation in {change["generation"] for change in changes}:
        steps = [change["step"] for change in changes if change["generation"] == generation]
        assert len(steps) == ranks
        assert len(set(steps)) == 1
    assert {line["step"] for line in job.events("stopping")} == {line["step"] for line in job.events("checkpoint")}


@pytest.mark.skipif(fp8_missing(cuda_capability()) is not None, reason="not run: FP8 needs CUDA capability 8.9")
@pytest.mark.parametrize("recipe", fp8.RECIPES)
def test_fp8_learns_as_bf16_does(recipe: str, text: LibraryText) -> None:
    expected = train(trainer(BF16, model(256)), text, 40)
    subject = model(256)
    assert len(fp8.install(subject, recipe)) == 4 * 4 + 1
    found = train(trainer(BF16, subject), text, 40)
    assert statistics.fmean(found[-5:]) == pytest.approx(statistics.fmean(expected[-5:]), rel=0.05)
