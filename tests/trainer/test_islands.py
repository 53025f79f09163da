"""Layers pinned to FP32, and what becomes of a pin in a copy of the model."""

from __future__ import annotations

import copy
import inspect
import io
import json
from collections.abc import Callable

import pytest
import torch

from precision_trainer.errors import ConfigError
from precision_trainer.sentinel.guard import Guard
from precision_trainer.sentinel.islands import Islands, pin_by_name
from precision_trainer.sentinel.layers import Layers
from precision_trainer.values.logs import JsonLog

CPU, WIDTH = torch.device("cpu"), 8


class _Layer(torch.nn.Linear):
    """Fails in FP32, once it is told to."""

    only_in_16_bits = False

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out = super().forward(value)
        if self.only_in_16_bits and out.dtype is torch.float32:
            raise RuntimeError("\"half_linear\" not implemented for 'Float'")
        return out


def _model() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(_Layer(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH))


def _islands(model: torch.nn.Module) -> Islands:
    return Islands(Layers(model, torch.optim.SGD(model.parameters())), CPU, Guard(JsonLog()))


def _out(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        out: torch.Tensor = model(torch.full((2, WIDTH), 0.3))
    return out


def _saved_and_read(model: torch.nn.Module) -> torch.nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    read: torch.nn.Module = torch.load(file, weights_only=False)
    return read


def _pinned_by_sentinel(model: torch.nn.Module) -> Islands:
    islands = _islands(model)
    islands.set([0, 1])
    return islands


def _pinned_by_name(model: torch.nn.Module) -> None:
    pin_by_name(model, ["*"], CPU)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, _saved_and_read])
@pytest.mark.parametrize("pin", [_pinned_by_sentinel, _pinned_by_name])
def test_a_copy_of_a_pinned_model_computes_with_its_own_weights(
    pin: Callable[[torch.nn.Module], object], duplicate: Callable[[torch.nn.Module], torch.nn.Module]
) -> None:
    model = _model()
    pin(model)
    before = _out(model)
    assert before.dtype is torch.float32
    other = duplicate(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(_out(other), before)
    assert not torch.equal(_out(model), before)


def test_releasing_the_original_leaves_the_copy_usable() -> None:
    model = _model()
    islands = _pinned_by_sentinel(model)
    other = copy.deepcopy(model)
    before = _out(other)
    islands.set([])
    assert _out(model).dtype is torch.bfloat16
    assert torch.equal(_out(other), before)


def test_a_layer_that_does_not_run_in_fp32_goes_on_as_it_was_in_a_copy_too(capsys: pytest.CaptureFixture[str]) -> None:
    model = _model()
    _pinned_by_sentinel(model)
    other = copy.deepcopy(model)
    for each in (model, other):
        vars(each[0])["only_in_16_bits"] = True
        assert _out(each).isfinite().all()
        assert _out(each).isfinite().all()
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert line["check"] == "0 in FP32"


def test_the_forward_of_a_pinned_layer_shows_the_arguments_of_the_layer() -> None:
    model = _model()
    before = inspect.signature(model[0].forward)
    _pinned_by_sentinel(model)
    assert inspect.signature(model[0].forward) == before


@pytest.mark.parametrize("message", ["\"half_linear\" not implemented for 'Float'", "no kernel image is available"])
def test_a_layer_that_fails_in_fp32_alone_goes_on_as_it_was_whatever_the_error_says(
    message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fails(torch.nn.Linear):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            if not torch.is_autocast_enabled("cpu"):
                raise NotImplementedError(message)
            return super().forward(value)

    model = torch.nn.Sequential(Fails(WIDTH, WIDTH))
    _islands(model).set([0])
    assert _out(model).dtype is torch.bfloat16
    assert _out(model).dtype is torch.bfloat16
    (line,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (line["check"], line["error"]) == ("0 in FP32", message)


def test_a_layer_that_fails_as_it_was_too_raises_that_error_and_stays_pinned(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = torch.full((2, WIDTH), -1.0)

    class Fails(torch.nn.Linear):
        def forward(self, value: torch.Tensor) -> torch.Tensor:
            if torch.equal(value.float(), bad):
                raise ValueError("a batch of an odd length, float32")
            return super().forward(value)

    model = torch.nn.Sequential(Fails(WIDTH, WIDTH))
    _islands(model).set([0])
    with pytest.raises(ValueError, match="odd length"):
        model(bad)
    assert _out(model).dtype is torch.float32
    assert not capsys.readouterr().out


class _Net(torch.nn.Module):
    """What is not called itself: lists, a shared layer under a second name, the output layer of an attention."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.ModuleList([torch.nn.Linear(WIDTH, WIDTH)]) for _ in range(2)])
        self.attention = torch.nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.first = self.second = torch.nn.Linear(WIDTH, WIDTH)
        self.scaled = _Scaled()
        self.types: dict[str, torch.dtype] = {}

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for outer in self.layers:
            assert isinstance(outer, torch.nn.ModuleList)
            value = outer[0](value)
        self.types["layers"] = value.dtype
        value, _ = self.attention(value, value, value)
        self.types["attention"] = value.dtype
        value = self.first(value)
        self.types["second"] = value.dtype
        value = self.scaled(value)
        self.types["scaled"] = value.dtype
        return value


class _Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = torch.nn.ParameterList([torch.ones(WIDTH, WIDTH)])

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = value @ self.scales[0]
        return out


@pytest.mark.parametrize(
    ("pattern", "pinned"),
    [
        ("layers", "layers"), ("layers.*", "layers"), ("attention.out_proj", "attention"), ("second", "second"),
        ("scaled.scales", "scaled"),
    ],
)  # fmt: skip
def test_a_module_that_is_never_called_itself_is_pinned_by_what_computes_with_it(pattern: str, pinned: str) -> None:
    net = _Net()
    pin_by_name(net, [pattern], CPU)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        net(torch.ones(2, 3, WIDTH))
    assert {name for name, dtype in net.types.items() if dtype is torch.float32} == {pinned}


def test_a_module_that_several_patterns_name_is_pinned_once() -> None:
    net = _Net()
    pin_by_name(net, ["first", "second", "*"], CPU)
    wide = vars(net.first)["forward"]
    assert not isinstance(wide.__wrapped__, type(wide))
    assert "forward" not in vars(net.layers)


def test_parameters_that_the_whole_model_computes_with_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'sc\*' matches scales, whose parameters the whole model computes with"):
        pin_by_name(_Scaled(), ["sc*"], CPU)
