"""torch.compile: every mode is compiled before training, and a switch compiles nothing.

With backend aot_eager, which traces and guards as inductor does and needs no C++ compiler; inductor takes minutes here.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.errors import ConfigError
from precision_trainer.job.loop import Loop
from precision_trainer.values.modes import HOT
from precision_trainer.values.request import PrecisionRequest
from precision_trainer.values.sentinel import SentinelConfig
from tests.support.training.process_group import ProcessGroup
from tests.support.training.session import Session

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def _compilations() -> int:
    return int(counters["stats"]["unique_graphs"])


def _loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = model(batch).float().square().mean()
    return loss


def _trainer(sentinel: SentinelConfig | None = None) -> ExtendedFP16Trainer:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 4)
    )
    config = ExtendedFP16Config(
        precision_mode=FP32, loss_scale=1024.0, compile_backend="aot_eager", sentinel=sentinel or SentinelConfig()
    )
    return ExtendedFP16Trainer(model, torch.optim.AdamW(model.parameters(), fused=True), config, "cpu", allow_cpu=True)


def _steps(trainer: ExtendedFP16Trainer, number: int, scale: float = 1.0) -> None:
    for _ in range(number):
        batch = torch.randn(8, 16, generator=torch.Generator().manual_seed(trainer.step)) * scale
        trainer.backward_and_step(trainer.training_step(batch, _loss, _loss))


def test_no_switch_between_modes_compiles_anything_after_the_pre_warming() -> None:
    trainer = _trainer()
    trainer.prewarm(torch.randn(8, 16), _loss, HOT)
    warm = _compilations()
    assert warm == len(HOT)
    for generation, mode in enumerate((FP16, BF16, FP32, FP16), start=1):
        trainer.request_source = lambda _, g=generation, m=mode: PrecisionRequest(g, m)
        _steps(trainer, 4)
        assert (trainer.mode, trainer.generation) == (mode, generation)
    assert _compilations() == warm


def test_without_it_the_first_step_of_each_mode_compiles() -> None:
    trainer = _trainer()
    seen = []
    for generation, mode in enumerate((FP32, FP16, BF16, FP32), start=1):
        trainer.apply(PrecisionRequest(generation, mode))
        _steps(trainer, 2)
        seen.append(_compilations())
    assert seen == [1, 2, 3, 3]


def test_pre_warming_leaves_weights_gradients_buffers_and_random_state_as_they_were() -> None:
    trainer = _trainer()
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    random_state = torch.get_rng_state()
    trainer.prewarm(torch.randn(8, 16, generator=torch.Generator().manual_seed(1)), _loss, HOT)
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(parameter.grad is None for parameter in trainer.model.parameters())
    assert trainer.step == 0


def test_an_overflow_inside_a_compiled_model_is_still_traced_to_its_layer_and_pinned() -> None:
    trainer = _trainer(SentinelConfig(window_steps=8, dwell_steps=64))
    assert trainer.sentinel is not None
    seen: list[tuple[str, str | None]] = []
    trainer.sentinel.observer = lambda move, layer: seen.append((move.after.label, layer))
    trainer.apply(PrecisionRequest(1, FP16))
    _steps(trainer, 40, scale=1e5)
    assert seen[0] == ("pin", "0")
    assert trainer.mode is FP16


class _Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(16), torch.nn.Linear(16, 16)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = batch + self.linear(self.norm(batch))
        return out


class _DecoratedBlock(_Block):
    @torch.compile(backend="eager", fullgraph=True)
    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return super().forward(batch)


Loss = Callable[[torch.nn.Module, torch.Tensor], torch.Tensor]


def _wrapped() -> tuple[torch.nn.Module, Loss]:
    model = torch.nn.Sequential(_Block(), _Block())
    wrapped: torch.nn.Module = torch.compile(model, backend="eager", fullgraph=True)  # type: ignore[assignment]
    return wrapped, _loss


def _in_place() -> tuple[torch.nn.Module, Loss]:
    model = torch.nn.Sequential(_Block(), _Block())
    model.compile(backend="eager", fullgraph=True)
    return model, _loss


def _one_block() -> tuple[torch.nn.Module, Loss]:
    model = torch.nn.Sequential(_Block(), _Block())
    model[1].compile(backend="eager", fullgraph=True)
    return model, _loss


def _decorated() -> tuple[torch.nn.Module, Loss]:
    return torch.nn.Sequential(_DecoratedBlock(), _Block()), _loss


def _own_function() -> tuple[torch.nn.Module, Loss]:
    called = torch.compile(lambda model, batch: model(batch), backend="eager", fullgraph=True)
    return torch.nn.Sequential(_Block(), _Block()), lambda model, batch: _loss(lambda x: called(model, x), batch)  # type: ignore[arg-type]


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf"
)  # torch's own, where a part is compiled
@pytest.mark.parametrize("pinned", [(), ("*.norm",)], ids=["", "pinned"])
@pytest.mark.parametrize("compiled", [_wrapped, _in_place, _one_block, _decorated, _own_function])
def test_measuring_activations_neither_ends_nor_recompiles_a_model_that_is_compiled_in_any_way(
    compiled: Callable[[], tuple[torch.nn.Module, Loss]], pinned: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    model, loss = compiled()
    config = ExtendedFP16Config(
        precision_mode=BF16, sentinel=SentinelConfig(probe_steps=16, shadow_steps=12), fp32_modules=pinned
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", allow_cpu=True)
    assert trainer.sentinel is not None
    batch = torch.randn(8, 16)
    seen = []
    for _ in range(32):
        trainer.backward_and_step(trainer.training_step(batch, loss, loss))
        seen.append(_compilations())
    assert seen[0] == seen[-1] > 0
    assert trainer.sentinel.measurements.shadow is not None
    assert trainer.sentinel.measurements.reading is None
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    off = [line["check"] for line in lines if line["event"] == "sentinel_check_off"]
    if compiled is _own_function and not pinned:  # torch passes its hooks over: they measure nothing, and harm nothing
        assert off == []
    else:
        assert off == ["probe of the activation gradients"]


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError, match=r"compile_backend='magic': expected one of .*inductor"):
        ExtendedFP16Trainer(
            model := torch.nn.Linear(2, 2),
            torch.optim.SGD(model.parameters()),
            ExtendedFP16Config(compile_backend="magic"),
            allow_cpu=True,
        )


def test_a_backend_that_fails_says_what_to_do() -> None:
    class Relu(torch.nn.Linear):
        def forward(self, batch: torch.Tensor) -> torch.Tensor:
            return torch.relu(super().forward(batch))

    model = Relu(4, 4)
    trainer = ExtendedFP16Trainer(
        model,
        torch.optim.SGD(model.parameters()),
        ExtendedFP16Config(compile_backend="relu_compile_error_TESTING_ONLY"),
        allow_cpu=True,
    )
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler"):
        trainer.prewarm(torch.randn(2, 4), _loss, (FP32,))


def test_a_job_compiles_every_mode_before_its_first_step_and_none_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = Session(tmp_path, monkeypatch, capsys)
    monkeypatch.setenv("FP16_LOSS_SCALE", "1024")
    counted: list[int] = []
    original = Loop._step

    def step(own: Loop) -> None:
        counted.append(_compilations())
        original(own)

    monkeypatch.setattr(Loop, "_step", step)
    modes = {4: "fp16", 8: "bf16", 12: "fp32"}
    session.run(
        {at: session.write(f'{{"generation":{at},"mode":"{mode}"}}') for at, mode in modes.items()},
        steps=18,
        compile="aot_eager",
    )
    assert [change["to"] for change in session.events("precision_changed")] == list(modes.values())
    assert [line["modes"] for line in session.events("compiled")] == [["fp32", "fp16", "bf16"]]
    assert counted[0] >= len(HOT)
    assert len(counted) == 18
    assert all(first == second for first, second in itertools.pairwise(counted))


def test_two_ranks_switch_without_compiling_and_stay_alike(process_group: ProcessGroup) -> None:
    first, second = process_group.run("switch_a_compiled_model")
    assert first["prints"] == second["prints"]
    assert first["modes"] == ["fp16", "bf16", "fp32"]
    assert (first["warm"], first["after"]) == (second["warm"], second["after"])
    assert first["warm"] == first["after"] > 0
