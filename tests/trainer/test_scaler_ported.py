"""What torch's own tests ask of GradScaler, asked of ours; docs/trainer.md lists what differs, and why."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer
from precision_trainer.errors import ConfigError
from precision_trainer.step.scaler import LossScaler
from precision_trainer.step.update import GradientUpdate
from precision_trainer.values.sentinel import SentinelConfig

_CPU = torch.device("cpu")
BAD_STEP, START = 2, 128.0
Data = list[tuple[torch.Tensor, torch.Tensor]]
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def _config(**fields: float) -> ExtendedFP16Config:
    return ExtendedFP16Config(
        loss_scale=fields.get("scale", START),
        growth_factor=fields.get("growth", 2.0),
        backoff_factor=fields.get("backoff", 0.5),
        growth_interval=int(fields.get("interval", 1)),
        min_loss_scale=0.0,
        max_grad_norm=0.0,
        sentinel=SentinelConfig(enabled=False),
    )


def _sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


class _Pair:
    """A model that is trained without scaling, and its twin that is trained with it; four batches for both."""

    def __init__(self, make: Make = _sgd, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.control = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        self.scaled = copy.deepcopy(self.control)
        self.control_optimizer = make(list(self.control.parameters()))
        self.scaled_optimizer = make(list(self.scaled.parameters()))
        self.data: Data = [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(4)]

    def poison(self) -> None:
        """An overflow in one gradient of the twin."""
        gradient = self.scaled[1].weight.grad
        assert isinstance(gradient, torch.Tensor)
        gradient.fill_(float("inf"))

    def overflow_once(self) -> None:
        """The same, in the backward pass of BAD_STEP."""
        steps = iter(range(len(self.data)))
        last = self.scaled[1]
        assert isinstance(last, nn.Linear)
        last.weight.register_hook(
            lambda gradient: gradient.fill_(float("inf")) if next(steps) == BAD_STEP else gradient
        )

    def assert_close(self, absolute: float = 1e-7) -> None:
        for one, other in zip(self.control.parameters(), self.scaled.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=absolute, rtol=1e-5)


def _loss(model: nn.Module, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return F.mse_loss(model(pair[0]), pair[1])


def _penalised(model: nn.Module, pair: tuple[torch.Tensor, torch.Tensor], scaler: LossScaler | None) -> torch.Tensor:
    """The loss and the norm of its own gradient."""
    loss = _loss(model, pair)
    root = scaler.scale(loss) if scaler is not None else loss
    gradients = torch.autograd.grad(root, list(model.parameters()), create_graph=True)
    inverse = 1.0 / float(scaler.scale_value) if scaler is not None else 1.0
    return loss + torch.stack([(gradient * inverse).square().sum() for gradient in gradients]).sum().sqrt()


# --- the kernels ------------------------------------------------------------------------------------------------------


def test_the_scale_grows_after_its_interval_and_backs_off_after_an_overflow() -> None:
    scaler = LossScaler(_config(scale=4.0, growth=2.0, backoff=0.25, interval=2), _CPU)
    seen = []
    for found in (0.0, 0.0, 1.0):
        scaler.update(torch.tensor(found))
        seen.append((float(scaler.scale_value), int(scaler._growth_tracker)))
    assert seen == [(4.0, 1), (8.0, 0), (2.0, 0)]


def _gradients(bad: int | None = None, value: float = float("inf")) -> list[torch.Tensor]:
    """Contiguous, transposed, of a slice, and of another type."""
    whole = torch.full((20, 20), 4.0)
    found = [whole.clone(), whole.clone().t(), whole.clone()[:, :5], whole.clone().half()]
    if bad is not None:
        found[bad][2, 2] = value
    return found


def test_gradients_of_every_layout_and_type_are_unscaled() -> None:
    gradients = _gradients()
    assert not LossScaler(_config(scale=4.0), _CPU).unscale_(gradients)
    assert all(bool((gradient == 1.0).all()) for gradient in gradients)


@pytest.mark.parametrize("bad", range(4))
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_one_bad_number_in_any_of_them_is_found(bad: int, value: float) -> None:
    assert LossScaler(_config(scale=4.0), _CPU).unscale_(_gradients(bad, value))


def test_the_scale_never_becomes_infinite() -> None:
    scaler = LossScaler(_config(scale=1e38, growth=16.0), _CPU)
    scaler.update(torch.tensor(0.0))
    assert float(scaler.scale_value) < float("inf")


# --- the state --------------------------------------------------------------------------------------------------------


def test_a_loaded_state_brings_the_scale_and_leaves_the_settings() -> None:
    saved = LossScaler(_config(scale=3.0, growth=4.0, backoff=0.5, interval=2), _CPU)
    loaded = LossScaler(_config(scale=6.0, growth=7.0, backoff=0.8, interval=1), _CPU)
    loaded.load_state_dict(saved.state_dict())
    assert float(loaded.scale_value) == 3.0
    loaded.update(torch.tensor(0.0))
    assert float(loaded.scale_value) == 21.0  # its own factor and interval


def test_a_pickled_scaler_goes_on_where_it_was_with_its_own_settings() -> None:
    scaler = LossScaler(_config(scale=3.0, growth=4.0, backoff=0.25, interval=2), _CPU)
    scaler.update(torch.tensor(0.0))
    again: LossScaler = pickle.loads(pickle.dumps(scaler))
    assert float(again.scale(torch.tensor(4.0))) == 12.0
    seen = []
    for found in (0.0, 1.0):
        again.update(torch.tensor(found))
        seen.append(float(again.scale_value))
    assert seen == [12.0, 3.0]


# --- a training of four steps, one of which overflows -----------------------------------------------------------------


def _kinds() -> list[tuple[str, Make]]:
    found: list[tuple[str, Make]] = []
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        for how in ("forloop", "foreach", "fused"):
            options: dict[str, bool] = {"foreach": how == "foreach", "fused": how == "fused"}

            def make(parameters: list[nn.Parameter], kind: Callable[..., torch.optim.Optimizer] = kind,
                     options: dict[str, bool] = options) -> torch.optim.Optimizer:  # fmt: skip
                return kind(parameters, lr=0.1, **options)

            found.append((f"{kind.__name__}-{how}", make))
    return found


@pytest.mark.parametrize("make", [make for _, make in _kinds()], ids=[name for name, _ in _kinds()])
def test_fp16_training_equals_autocast_with_torchs_scaler_bit_for_bit(make: Make) -> None:
    pair = _Pair(make)
    torchs = torch.amp.GradScaler("cpu", init_scale=START, growth_interval=1)
    trainer = ExtendedFP16Trainer(pair.scaled, pair.scaled_optimizer, _config(), allow_cpu=True)
    pair.overflow_once()
    for step, batch in enumerate(pair.data):
        pair.control_optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = _loss(pair.control, batch)
        torchs.scale(loss).backward()
        if step == BAD_STEP:
            assert isinstance(pair.control[1].weight.grad, torch.Tensor)
            pair.control[1].weight.grad.fill_(float("inf"))
        torchs.step(pair.control_optimizer)
        torchs.update()
        trainer.backward_and_step(trainer.training_step(batch, _loss))
    for one, other in zip(pair.control.parameters(), pair.scaled.parameters(), strict=True):
        assert torch.equal(one, other)
        state, twin = pair.control_optimizer.state[one], pair.scaled_optimizer.state[other]
        assert state.keys() == twin.keys()
        assert all(
            torch.equal(state[name].squeeze(), twin[name].squeeze()) for name in state if state[name] is not None
        )
    assert float(trainer.scaler.scale_value) == torchs.get_scale() == START * 2**3 * 0.5


def test_a_scaler_that_is_pickled_after_every_step_scales_as_one_that_is_not() -> None:
    pair, twin = _Pair(), _Pair()
    updates = _Update(pair), _Update(twin)
    for number, batch in enumerate(pair.data):
        for update in updates:
            update.scaler.scale(_loss(update.pair.scaled, batch)).backward()
            update.step(number)
        updates[1].scaler = pickle.loads(pickle.dumps(updates[1].scaler))
    assert all(map(torch.equal, pair.scaled.parameters(), twin.scaled.parameters()))
    assert float(updates[1].scaler.scale_value) == START * 2**3 * 0.5


def test_fp16_training_comes_close_to_fp32_training_that_leaves_the_overflow_out() -> None:
    pair = _Pair()
    trainer = ExtendedFP16Trainer(pair.scaled, pair.scaled_optimizer, _config(), allow_cpu=True)
    pair.overflow_once()
    for step, batch in enumerate(pair.data):
        pair.control_optimizer.zero_grad()
        _loss(pair.control, batch).backward()
        if step != BAD_STEP:
            pair.control_optimizer.step()
        trainer.backward_and_step(trainer.training_step(batch, _loss))
    pair.assert_close(1e-3)


def test_a_trainer_that_is_not_enabled_scales_nothing() -> None:
    pair = _Pair()
    config = ExtendedFP16Config(enabled=False, max_grad_norm=0.0, loss_scale=START)
    trainer = ExtendedFP16Trainer(pair.scaled, pair.scaled_optimizer, config)
    for batch in pair.data:
        pair.control_optimizer.zero_grad()
        _loss(pair.control, batch).backward()
        pair.control_optimizer.step()
        trainer.backward_and_step(trainer.training_step(batch, _loss))
    assert all(map(torch.equal, pair.control.parameters(), pair.scaled.parameters()))
    assert trainer.get_stats()["current_scale"] == 1.0


_ADAM_OPTIONS: list[dict[str, object]] = [
    {},
    {"amsgrad": True},
    {"weight_decay": 0.1, "maximize": True},
    {"lr": torch.tensor(0.1)},
]
_FUSED: list[tuple[Callable[..., torch.optim.Optimizer], dict[str, object]]] = [
    (torch.optim.SGD, {"momentum": 0.9}),
    (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    (torch.optim.Adagrad, {"weight_decay": 0.1}),
    *((kind, options) for kind in (torch.optim.Adam, torch.optim.AdamW) for options in _ADAM_OPTIONS),
]


@pytest.mark.parametrize(("kind", "options"), _FUSED)
def test_a_fused_kernel_comes_to_what_the_one_that_is_not_fused_does(
    kind: Callable[..., torch.optim.Optimizer], options: dict[str, object]
) -> None:
    pair = _Pair()
    runs = []
    for model, fused in ((pair.control, False), (pair.scaled, True)):
        optimizer = kind(model.parameters(), fused=fused, **{"lr": 0.1, **options})
        runs.append(ExtendedFP16Trainer(model, optimizer, _config(), allow_cpu=True))
    for batch in pair.data:
        for trainer in runs:
            trainer.backward_and_step(trainer.training_step(batch, _loss))
        pair.assert_close(1e-5)
        states = [trainer.optimizer.state_dict()["state"] for trainer in runs]
        torch.testing.assert_close(*states, atol=1e-5, rtol=1e-5)


class _Update:
    """Step and update of the twin, as the trainer does it."""

    def __init__(self, pair: _Pair, max_norm: float = 0.0) -> None:
        self.pair, self.scaler = pair, LossScaler(_config(), _CPU)
        self._update = GradientUpdate(pair.scaled_optimizer, max_norm, device=_CPU)

    def step(self, number: int) -> None:
        if number == BAD_STEP:
            self.pair.poison()
        self._update(self.scaler, measure=False)


@pytest.mark.parametrize("ours", [False, True], ids=["by the script, of scaled gradients", "by us, of unscaled ones"])
def test_clipping_with_scaling_is_clipping_without(ours: bool) -> None:
    pair = _Pair()
    update = _Update(pair, 0.2 if ours else 0.0)
    for number, batch in enumerate(pair.data):
        pair.control_optimizer.zero_grad()
        _loss(pair.control, batch).backward()
        torch.nn.utils.clip_grad_norm_(pair.control.parameters(), 0.2)
        if number != BAD_STEP:
            pair.control_optimizer.step()
        update.scaler.scale(_loss(pair.scaled, batch)).backward()
        if not ours:
            torch.nn.utils.clip_grad_norm_(pair.scaled.parameters(), 0.2 * float(update.scaler.scale_value))
        update.step(number)
    pair.assert_close(1e-5)
    assert float(update.scaler.scale_value) == START * 2**3 * 0.5


def test_a_gradient_penalty_with_scaling_is_one_without() -> None:
    pair = _Pair()
    update = _Update(pair)
    for number, batch in enumerate(pair.data):
        pair.control_optimizer.zero_grad()
        _penalised(pair.control, batch, None).backward()
        if number != BAD_STEP:
            pair.control_optimizer.step()
        update.scaler.scale(_penalised(pair.scaled, batch, update.scaler)).backward()
        update.step(number)
    pair.assert_close(1e-5)
    assert float(update.scaler.scale_value) == START * 2**3 * 0.5


def test_accumulated_gradients_are_unscaled_once() -> None:
    pair = _Pair()
    update = _Update(pair)
    for number, batch in enumerate(pair.data):
        (_loss(pair.control, batch) / 2).backward()
        update.scaler.scale(_loss(pair.scaled, batch) / 2).backward()
        if number % 2:
            pair.control_optimizer.step()
            pair.control_optimizer.zero_grad()
            update.step(0)
    pair.assert_close()
    assert float(update.scaler.scale_value) == START * 2**2


def test_two_optimizers_may_share_a_scale_and_skip_each_by_itself() -> None:
    pairs = [_Pair(), _Pair(seed=1)]
    scaler = LossScaler(_config(), _CPU)
    for number, batch in enumerate(pairs[0].data):
        found = []
        for scaled in (False, True):
            models = [pair.scaled if scaled else pair.control for pair in pairs]
            outputs = [model(batch[0]) for model in models]
            losses = [F.mse_loss(a * outputs[0] + b * outputs[1], batch[1]) for a, b in ((0.3, 0.7), (0.6, -0.4))]
            torch.autograd.backward([scaler.scale(loss) if scaled else loss for loss in losses])
        if number == BAD_STEP:
            pairs[1].poison()
        for pair in pairs:
            found.append(scaler.unscale_([p.grad for p in pair.scaled.parameters() if p.grad is not None]))
            if not found[-1]:
                pair.scaled_optimizer.step()
            if pair is pairs[0] or number != BAD_STEP:
                pair.control_optimizer.step()
            pair.scaled_optimizer.zero_grad()
            pair.control_optimizer.zero_grad()
        scaler.update(torch.stack(found).sum())
    for pair in pairs:
        pair.assert_close(1e-6)
    assert float(scaler.scale_value) == START * 2**3 * 0.5


# --- optimizers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["forloop", "foreach", "fused"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {}),
        (torch.optim.Adam, {}),
        (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
        (torch.optim.AdamW, {}),
        (torch.optim.AdamW, {"weight_decay": 0.1}),
    ],
)
def test_gradients_that_are_broken_after_unscaling_reach_the_weights(
    kind: Callable[..., torch.optim.Optimizer], options: dict[str, object], how: str
) -> None:
    pair = _Pair()
    optimizer = kind(pair.scaled.parameters(), lr=0.1, foreach=how == "foreach", fused=how == "fused", **options)
    trainer = ExtendedFP16Trainer(pair.scaled, optimizer, _config(), allow_cpu=True)

    def break_all(*_: object) -> None:
        for number, parameter in enumerate(pair.scaled.parameters()):
            assert parameter.grad is not None
            parameter.grad.fill_(float("inf") if number % 2 else float("nan"))

    optimizer.register_step_pre_hook(break_all)
    trainer.backward_and_step(trainer.training_step(pair.data[0], _loss))
    assert all(not bool(parameter.isfinite().all()) for parameter in pair.scaled.parameters())


class _Told(torch.optim.Optimizer):
    """Says that its kernel reads found_inf itself, and keeps what it was told."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {})
        self._step_supports_amp_scaling = True
        self.told: list[tuple[object, object, object]] = []

    def step(self, closure: None = None, *, grad_scaler: object = None) -> None:  # type: ignore[override]
        self.told.append((grad_scaler, vars(self).get("grad_scale"), vars(self).get("found_inf")))


def test_an_optimizer_that_reads_found_inf_is_given_it_with_gradients_that_are_unscaled_already() -> None:
    pair = _Pair()
    optimizer = _Told(list(pair.scaled.parameters()))
    trainer = ExtendedFP16Trainer(pair.scaled, optimizer, _config(), allow_cpu=True)
    trainer._gradient_update.on_device = True  # on a CPU the host reads found_inf
    trainer.backward_and_step(trainer.training_step(pair.data[0], _loss))
    ((grad_scaler, grad_scale, found_inf),) = optimizer.told
    assert grad_scaler is None
    assert grad_scale is None
    assert isinstance(found_inf, torch.Tensor)
    assert not {"grad_scale", "found_inf"} & vars(optimizer).keys()


@pytest.mark.parametrize("on_device", [False, True])
def test_a_gradient_scale_that_a_script_sets_on_its_optimizer_divides_once_more_for_one_step(on_device: bool) -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.Adam([weight], lr=1.0, fused=True)
    update = GradientUpdate(optimizer, 0.0, device=_CPU)
    update.on_device = on_device
    seen: list[float] = []
    optimizer.register_step_post_hook(lambda *_: seen.append(float(weight.grad)) if weight.grad is not None else None)
    vars(optimizer)["grad_scale"] = torch.tensor([3.0])
    for _ in range(2):
        weight.grad = torch.full((1,), 15.0)
        update(LossScaler(_config(scale=5.0), _CPU), measure=False)
    assert seen == [1.0, 3.0]
    assert "grad_scale" not in vars(optimizer)


def test_fp16_gradients_and_sparse_ones_are_refused_before_the_first_step() -> None:
    half = nn.Linear(8, 8).half()
    sparse = nn.Embedding(8, 8, sparse=True)
    for model, word in ((half, "float16"), (sparse, "sparse")):
        with pytest.raises(ConfigError, match=word):
            ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=1.0), _config(), allow_cpu=True)


def test_a_step_without_any_gradient_counts_as_a_good_one() -> None:
    pair = _Pair()
    update = _Update(pair)
    update.step(0)
    assert float(update.scaler.scale_value) == START * 2
