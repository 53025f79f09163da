"""The sentinel at work in real training: real overflow, real NaN, nothing made up but the model's size."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.distributed.agreement import decode, encode
from precision_trainer.errors import DivergedError
from precision_trainer.job import drill
from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import ByteTransformer, TransformerConfig, next_byte_loss
from precision_trainer.sentinel.diagnose import diagnose
from precision_trainer.sentinel.guard import Guard
from precision_trainer.sentinel.layers import Layers
from precision_trainer.sentinel.probe import ActivationProbe
from precision_trainer.step.replay import Replay, ReplayError
from precision_trainer.values.levels import Finding, Level
from precision_trainer.values.logs import JsonLog
from precision_trainer.values.request import PrecisionRequest
from precision_trainer.values.sentinel import SentinelConfig

FP32, FP16, BF16 = PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16
CONTEXT, BATCH = 16, 2
QUICK = SentinelConfig(window_steps=8, patience_windows=2, dwell_steps=24, max_dwell_steps=96, probe_steps=16)

pytestmark = pytest.mark.usefixtures("one_thread")


def make(
    mode: PrecisionMode = FP16,
    sentinel: SentinelConfig = QUICK,
    **settings: Any,  # noqa: ANN401 - fields of the config
) -> ExtendedFP16Trainer:
    torch.manual_seed(0)
    model = ByteTransformer(TransformerConfig(width=16, layers=2, context=CONTEXT))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    config = ExtendedFP16Config(precision_mode=mode, loss_scale=1024.0, sentinel=sentinel, **settings)
    return ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)


def run(trainer: ExtendedFP16Trainer, text: LibraryText, steps: int, *, poison: bool = False) -> list[int]:
    """Train; the numbers of the steps at whose boundary the sentinel asked for a rewind."""

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return next_byte_loss(model, batch) * (float("nan") if poison else 1.0)

    rewinds = []
    for _ in range(steps):
        if trainer.begin_step().rewind:
            rewinds.append(trainer.step)
        trainer.backward_and_step(trainer.training_step(text.batch(trainer.step * BATCH, BATCH), loss, loss))
    return rewinds


def events(capsys: pytest.CaptureFixture[str], name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line["event"] == name]


class Drill:
    """The demo's fault: one layer's activation overflows in FP16 and nowhere else."""

    def __init__(self, trainer: ExtendedFP16Trainer, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path.write_text("overflow=1.0")
        monkeypatch.setenv(drill.ENV, str(path))
        fault = drill.installed(trainer.model, JsonLog())
        assert fault is not None
        fault.begin_step(0)


def test_an_overflowing_layer_is_found_and_pinned_and_fp16_goes_on_without_overflow(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make()
    Drill(trainer, tmp_path / "fault", monkeypatch)
    run(trainer, text, 24)
    assert trainer.get_stats()["pinned_layers"] == ["blocks.0.qkv"]
    assert trainer.get_stats()["sentinel_level"] == "pin"
    assert trainer.mode is FP16
    before = trainer.get_stats()["overflow_steps"]
    run(trainer, text, 10)
    assert trainer.get_stats()["overflow_steps"] == before
    (event,) = events(capsys, "sentinel_transition")
    assert (event["from"], event["to"], event["reason"]) == ("nominal", "pin", "ForwardOverflow")
    assert event["layer"] == "blocks.0.qkv"


def test_with_no_module_to_pin_it_goes_to_bf16_says_so_and_comes_back_after_a_clean_dwell(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(sentinel=SentinelConfig(window_steps=8, dwell_steps=24, max_dwell_steps=96, max_pins=0))
    Drill(trainer, tmp_path / "fault", monkeypatch)
    run(trainer, text, 24)
    stats = trainer.get_stats()
    assert (stats["precision_mode"], stats["requested_mode"], stats["sentinel_level"]) == ("bf16", "fp16", "bf16")
    (tmp_path / "fault").unlink()
    monkeypatch.delenv(drill.ENV)
    run(trainer, text, 70)
    path = [(event["from"], event["to"], event["reason"]) for event in events(capsys, "sentinel_transition")]
    assert path[:2] == [("nominal", "bf16", "ForwardOverflow"), ("bf16", "lower_scale", "Recovered")]
    # The model still overflows: a relapse.
    assert path[2][:2] == ("lower_scale", "bf16")


def test_a_request_with_a_higher_generation_clears_the_level(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(sentinel=SentinelConfig(window_steps=8, dwell_steps=1000, max_pins=0))
    Drill(trainer, tmp_path / "fault", monkeypatch)
    run(trainer, text, 24)
    assert trainer.mode is BF16
    trainer.request_source = lambda applied: PrecisionRequest(1, FP16)
    run(trainer, text, 3)
    assert trainer.mode is FP16
    assert trainer.get_stats()["sentinel_level"] == "nominal"
    trainer.request_source = lambda applied: PrecisionRequest(2, FP32)
    run(trainer, text, 30)
    assert trainer.mode is FP32


def test_a_bad_batch_is_told_from_bad_precision_and_changes_no_mode(
    text: LibraryText, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(BF16)
    run(trainer, text, 3)
    run(trainer, text, 30, poison=True)
    run(trainer, text, 3)
    assert trainer.mode is BF16
    warnings = events(capsys, "sentinel_warning")
    assert warnings
    assert {warning["reason"] for warning in warnings} == {"DataFault"}


def _masked(trainer: ExtendedFP16Trainer, steps: int, one_in: int) -> None:
    """Train on labels that are all masked in one batch of ``one_in``: that loss is NaN, its gradients are 0."""

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(batch[0]).float(), batch[1])

    for step in range(steps):
        labels = torch.full((4,), -100) if step % one_in == 0 else torch.arange(4)
        trainer.backward_and_step(trainer.training_step((torch.eye(4), labels), loss))
    trainer.drain()


@pytest.mark.parametrize("mode", [BF16, FP16])
def test_batches_with_every_label_masked_are_reported_once_a_window_and_change_no_mode(
    mode: PrecisionMode, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 4)
    config = ExtendedFP16Config(precision_mode=mode, loss_scale=1024.0, sentinel=QUICK)
    trainer = ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), config, allow_cpu=True)
    _masked(trainer, 64, one_in=3)
    assert (trainer.mode, trainer.get_stats()["sentinel_level"]) == (mode, "nominal")
    warnings = events(capsys, "sentinel_warning")
    unexplained = [warning for warning in warnings if warning["reason"] == "NonFiniteUnexplained"]
    assert 4 <= len(unexplained) <= 64 // QUICK.window_steps
    assert "of 8 steps were not finite" in str(unexplained[0]["message"])
    _masked(trainer, 32, one_in=1)
    assert trainer.mode is not mode


def test_poisoned_weights_ask_for_a_rewind_within_four_steps(text: LibraryText) -> None:
    trainer = make(FP32)
    assert trainer.sentinel is not None
    trainer.sentinel.can_rewind = True
    run(trainer, text, 3)
    with torch.no_grad():
        next(trainer.model.parameters())[65] = float("nan")
        list(trainer.model.parameters())[2].fill_(float("nan"))
    (rewound,) = run(trainer, text, 6)
    assert rewound <= 3 + 4
    assert trainer.sentinel.level is Level.REWIND


def test_poisoned_weights_without_a_checkpoint_end_training_with_the_next_step(text: LibraryText) -> None:
    trainer = make(BF16)
    assert trainer.sentinel is not None
    trainer.sentinel.can_exit = True
    run(trainer, text, 3)
    with torch.no_grad():
        list(trainer.model.parameters())[2].fill_(float("nan"))
    with pytest.raises(DivergedError, match=r"NonFiniteWeights.*older checkpoint"):
        run(trainer, text, 8)


def test_level_pins_and_relapses_outlive_the_process_unless_somebody_ordered_anew(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make()
    Drill(trainer, tmp_path / "fault", monkeypatch)
    run(trainer, text, 24)
    assert trainer.sentinel is not None
    saved = trainer.sentinel.state_dict()
    assert json.loads(json.dumps(saved)) == saved
    assert saved["order"] == "fp16@0"
    for order, level, pinned in (("fp16@0", Level.PIN, ["blocks.0.qkv"]), ("fp16@7", Level.NOMINAL, [])):
        sentinel = make().sentinel
        assert sentinel is not None
        sentinel.load_state_dict({**saved, "order": order})
        assert (sentinel.level, sentinel.pinned) == (level, pinned)
        assert sentinel.state_dict()["strikes"] == 1
    assert sentinel is not None
    sentinel.load_state_dict({})


def test_a_level_that_was_loaded_is_in_force_before_the_first_step() -> None:
    trainer = make()
    assert trainer.sentinel is not None
    trainer.sentinel.load_state_dict({"level": int(Level.REWIND), "pinned": [], "strikes": 3, "order": "fp16@0"})
    change = trainer.modes.settle(trainer.step)
    assert change is not None
    assert (change.before, change.after, change.source) == (FP16, FP32, "sentinel")
    assert trainer.sentinel.level is Level.FP32


# --- parts ---------------------------------------------------------------------------------------------------------------


def _chain() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8, bias=False) for _ in range(5)))


def test_a_backward_overflow_is_localised_by_the_clipping_norms() -> None:
    model = _chain()
    layers = Layers(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def overflow(_module: object, inputs: tuple[torch.Tensor], _outputs: object) -> tuple[torch.Tensor]:
        return (inputs[0] * float("inf"),)

    model[2].register_full_backward_hook(overflow)
    model(torch.ones(2, 8)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients)).tolist()
    origin = layers.origin(norms)
    assert layers.name(origin) == "1"  # the gradient that left layer 2 is the first to be infinite
    by_layer = layers.norms(norms)
    assert by_layer is not None
    assert list(by_layer) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
def test_it_is_localised_in_every_bad_step_with_clipping_and_without(
    max_grad_norm: float, capsys: pytest.CaptureFixture[str]
) -> None:
    model = _chain()

    def overflow(_module: object, inputs: tuple[torch.Tensor], _outputs: object) -> tuple[torch.Tensor]:
        return (inputs[0] * (float("inf") if inputs[0].dtype is torch.float16 else 1.0),)

    model[2].register_full_backward_hook(overflow)
    config = ExtendedFP16Config(precision_mode=FP16, loss_scale=1024.0, max_grad_norm=max_grad_norm, sentinel=QUICK)
    trainer = ExtendedFP16Trainer(model, torch.optim.AdamW(model.parameters(), fused=True), config, allow_cpu=True)
    for _ in range(100):
        trainer.backward_and_step(
            trainer.training_step(torch.ones(2, 8), lambda net, batch: net(batch).square().mean())
        )
    layers = [event["layer"] for event in events(capsys, "sentinel_transition") if event["to"] == "pin"]
    assert layers[:1] == ["1"]


def test_norms_that_are_all_bad_or_incomplete_name_no_layer() -> None:
    model = _chain()
    layers = Layers(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert layers.origin([float("inf")] * 5) is None
    assert layers.origin([1.0] * 5) is None
    assert layers.origin([float("inf"), 1.0]) is None


class _Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class _Noisy(torch.nn.Module):
    """Dropout and running statistics: what a second look must not disturb."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(
            torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 8)
        )
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.net(x * self.factor).square().mean()
        return loss


@pytest.mark.parametrize(
    ("factor", "fp32_finite", "origin"), [(1.0, True, None), (1e6, True, "net.0"), (float("inf"), False, "net.0")]
)
def test_a_second_look_tells_precision_from_data_and_disturbs_nothing(
    factor: float, fp32_finite: bool, origin: str | None
) -> None:
    model = _Noisy(factor)
    layers = Layers(model, torch.optim.SGD(model.parameters(), lr=0.1))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    replay = Replay(lambda net, batch: net(batch), torch.ones(4, 8) * 0.5, whole_step=True)
    finding = diagnose(model, layers, replay, FP16, torch.device("cpu"), guard=Guard(JsonLog()))
    assert (finding.fp32_finite, finding.weights_finite, layers.name(finding.origin)) == (fp32_finite, True, origin)
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    "shape",
    [
        lambda tensor: tensor,
        lambda tensor: (torch.zeros(2), tensor),
        lambda tensor: ["an id", 3, None, tensor],
        lambda tensor: {"id": "a", "ids": tensor},
        lambda tensor: ({"ids": [torch.zeros(2), tensor]}, 7),
        lambda tensor: _Pair(torch.zeros(2), tensor),
    ],
    ids=["tensor", "tuple", "list with plain values", "dict", "nested", "named tuple"],
)
def test_a_batch_of_any_shape_that_was_written_to_is_not_computed_again(
    shape: Callable[[torch.Tensor], object],
) -> None:
    tensor = torch.ones(4)
    replay = Replay(lambda _net, _batch: tensor.sum(), shape(tensor), whole_step=True)
    assert float(replay(torch.nn.Identity())) == 4.0
    tensor.add_(1.0)
    with pytest.raises(ReplayError, match="written to"):
        replay(torch.nn.Identity())


def test_weights_that_cannot_be_looked_at_are_unknown_to_all_ranks_and_blame_neither_weights_nor_data(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_parameters: object) -> bool:
        raise NotImplementedError("no kernel")

    monkeypatch.setattr("precision_trainer.sentinel.diagnose.are_finite", fail)
    model = _Noisy(float("inf"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = ExtendedFP16Config(precision_mode=BF16, sentinel=QUICK)
    trainer = ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)
    for _ in range(4):
        loss = trainer.training_step(torch.ones(4, 8), lambda net, batch: net(batch), lambda net, batch: net(batch))
        trainer.backward_and_step(loss)
    trainer.drain()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (diagnosis,) = [line for line in lines if line["event"] == "sentinel_diagnosis"]
    assert (diagnosis["finite_in_fp32"], diagnosis["weights_finite"]) == (False, None)
    assert not [line for line in lines if line["event"] in ("sentinel_warning", "sentinel_transition")]


@pytest.mark.parametrize(
    ("found", "expected"),
    [((True, True), True), ((True, None), None), ((None, None), None), ((None, False), False), ((True, False), False)],
)
def test_what_one_rank_does_not_know_of_its_weights_no_rank_knows(
    found: tuple[bool | None, bool | None], expected: bool | None
) -> None:
    headers = [
        encode(None, leads=rank == 0, stop=False, running=FP16, finding=Finding(None, finite, None))
        for rank, finite in enumerate(found)
    ]
    means = [sum(numbers) / 2 for numbers in zip(*headers, strict=True)]
    diagnosis = decode([*means, 1.0], 2, FP16).diagnosis
    assert diagnosis is not None
    assert diagnosis.weights_finite is expected


def test_the_probe_measures_headroom_and_recommends_a_scale(text: LibraryText) -> None:
    trainer = make()
    run(trainer, text, 24)
    assert trainer.sentinel is not None
    reading = trainer.sentinel.measurements.reading
    assert reading is not None
    assert 0 < reading.gradient_amax < 65504
    assert reading.headroom_log2 > 0
    scale = reading.recommended_scale(1024.0)
    assert scale is not None
    assert 8 * reading.gradient_amax / 1024.0 * scale <= 65504.0 < 16 * reading.gradient_amax / 1024.0 * scale
    assert not any(module._forward_hooks for module in trainer.model.modules())


def _warnings_for_gradients_of(size: float, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """What a training says whose only layer gets gradients of ``size``, before scaling."""
    model = torch.nn.Linear(1, 1)
    config = ExtendedFP16Config(precision_mode=FP16, loss_scale=1024.0, sentinel=QUICK)
    trainer = ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.0), config, "cpu", allow_cpu=True)
    batch = torch.full((1, 1), 0.5)
    for _ in range(24):
        trainer.backward_and_step(trainer.training_step(batch, lambda net, x: size * net(x).sum()))
    return [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if "reason" in line]


def test_gradients_close_to_what_fp16_holds_are_reported_with_a_scale_that_gives_them_room(
    capsys: pytest.CaptureFixture[str],
) -> None:
    (warning,) = _warnings_for_gradients_of(48.0, capsys)
    assert (warning["reason"], warning["headroom_log2"], warning["recommended_scale"]) == ("LowHeadroom", 0.41, 128.0)


def test_gradients_that_are_all_zero_have_all_the_headroom_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert _warnings_for_gradients_of(0.0, capsys) == []


class _Queries(torch.nn.Module):
    """Gives its own parameter out, as the learned queries of a detector do."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = torch.nn.Parameter(torch.ones(2, 4))

    def forward(self) -> torch.Tensor:
        return self.queries


def test_the_probe_leaves_no_hook_on_a_parameter_that_a_layer_gives_out() -> None:
    layer = _Queries()
    failures: list[Exception] = []
    layers = Layers(layer, torch.optim.SGD(layer.parameters()))
    probe = ActivationProbe(layer, layers, 1, failures.append)
    for clock in range(1, 6):
        assert probe.attach_if_due(clock)
        layer().sum().backward()
        probe.detach(clock)
    reading = probe.read()
    assert reading is not None
    assert reading.gradient_amax == 1.0
    assert not failures
    assert not layer.queries._backward_hooks


def test_switched_off_it_watches_and_does_nothing(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(sentinel=SentinelConfig(enabled=False))
    Drill(trainer, tmp_path / "fault", monkeypatch)
    run(trainer, text, 40)
    assert trainer.mode is FP16
    assert trainer.get_stats()["sentinel_level"] == "off"
    assert "sentinel" not in capsys.readouterr().out
