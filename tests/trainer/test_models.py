"""Models and optimizers as people bring them: trained rightly, or refused at construction with the reason."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.distributed.launch import free_port
from precision_trainer.errors import ConfigError
from precision_trainer.precision.setup import check_parameters
from tests.support.training.process_group import ProcessGroup


def test_experts_in_turn_train_as_under_plain_ddp(process_group: ProcessGroup) -> None:
    for result in process_group.run("model_scenarios.experts_that_differ_by_step_and_rank"):
        assert result["ours"] == result["plain"]


def test_a_loss_may_use_parts_of_the_model_by_name_as_under_plain_ddp(process_group: ProcessGroup) -> None:
    assert process_group.run("model_scenarios.parts_of_a_model_in_its_loss") == [{"same": True}] * 2


def test_a_loss_may_write_to_the_model_and_take_layers_by_number_as_under_plain_ddp(
    process_group: ProcessGroup,
) -> None:
    results = process_group.run("model_scenarios.a_model_that_its_loss_writes_to")
    assert results == [{"same": True, "calls": 6}] * 2


def test_a_loss_sees_the_parameters_names_and_state_of_the_model_as_under_plain_ddp(
    process_group: ProcessGroup,
) -> None:
    results = process_group.run("model_scenarios.the_model_as_a_loss_sees_it")
    assert results == [{"same": True, "as seen": True, "loaded": True, "training": False}] * 2


def test_a_static_graph_trains_as_under_plain_ddp(process_group: ProcessGroup) -> None:
    for result in process_group.run("model_scenarios.one_expert_for_all_time"):
        assert result["ours"] == result["plain"]


def test_a_buffer_that_training_reads_is_that_of_rank_0_where_that_is_asked_for(process_group: ProcessGroup) -> None:
    first, second = process_group.run("model_scenarios.a_buffer_that_training_reads")
    for mode in ("fp32", "bf16"):
        assert first[mode]["broadcast"], mode
        assert second[mode] == {"broadcast": True, "own": False}, mode


def test_unused_parameters_are_answered_with_our_own_settings(process_group: ProcessGroup) -> None:
    for result in process_group.run("model_scenarios.unused_without_a_word"):
        assert "set find_unused_parameters=True (--find-unused-parameters of train)" in result["error"]


def test_a_request_reaches_all_ranks_although_parameters_are_unused(process_group: ProcessGroup) -> None:
    first, second = process_group.run("model_scenarios.a_request_among_unused_experts")
    assert first == second
    assert first["mode"] == "bf16"


def test_a_mode_is_proven_among_unused_parameters_without_a_trace(process_group: ProcessGroup) -> None:
    for result in process_group.run("model_scenarios.a_mode_proven"):
        assert result == {"0, 1": True, "3, 1": True, "0, 2": True, "3, 2": True}


def test_a_mode_that_fails_among_unused_parameters_is_refused(process_group: ProcessGroup) -> None:
    first, second = process_group.run("model_scenarios.a_mode_that_experts_fail_in")
    assert (first["mode"], second["mode"]) == ("fp32", "fp32")
    assert "rank 1: RuntimeError" in first["refused"][0]
    assert first["print"] == second["print"]


def test_the_model_under_ddp_is_saved_copied_and_asked_for_its_class_as_with_plain_ddp(
    process_group: ProcessGroup,
) -> None:
    for result in process_group.run("model_scenarios.the_model_kept_as_a_script_does"):
        assert result["ours"] == result["plain"]


def test_what_contradicts_the_process_group_is_refused_with_what_to_pass(process_group: ProcessGroup) -> None:
    for result in process_group.run("model_scenarios.refused_at_construction"):
        errors = result["errors"]
        wrapped, replicated = {"wrapped", "wrapped twice", "wrapped inside"}, {"replicated", "replicated inside"}
        assert set(errors) == {*wrapped, *replicated, "alone in a group", "another rank"}
        assert all("pass model.module" in errors[name] for name in wrapped)
        assert all("pass it without replicate()" in errors[name] for name in replicated)
        assert all("world_size=dist.get_world_size()" in text for text in errors.values())


def test_what_ddp_is_told_to_ignore_stays_each_ranks_own_or_is_refused(process_group: ProcessGroup) -> None:
    for result in process_group.run("model_scenarios.what_ddp_is_told_to_ignore"):
        assert "parameter experts.2.weight is trained and DDP is told to ignore it" in result["error"]
        assert result["kept"] == [True, True]


def test_ddp_without_a_process_group_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"call init_distributed\(\) first"):
        ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), ExtendedFP16Config(use_ddp=True))


@pytest.mark.parametrize("name", ["find_unused_parameters", "static_graph", "broadcast_buffers"])
def test_ddps_switches_without_ddp_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=True: expected False without use_ddp=True"):
        ExtendedFP16Config(**{name: True})  # type: ignore[arg-type]


def test_a_static_graph_with_accumulation_is_refused() -> None:
    with pytest.raises(ConfigError, match="static_graph=True: expected False with gradient_accumulation_steps above 1"):
        ExtendedFP16Config(use_ddp=True, static_graph=True, gradient_accumulation_steps=2)


def test_trained_parameters_on_several_devices_are_refused_and_frozen_ones_are_not() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, device="meta"))
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="trained parameters are on cpu, meta: expected one device"):
        check_parameters(model, optimizer)
    model[1].requires_grad_(requires_grad=False)
    check_parameters(model, optimizer)


def test_an_optimizer_that_needs_a_closure_is_refused() -> None:
    model = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"LBFGS\.step\(\) needs a closure"):
        ExtendedFP16Trainer(model, torch.optim.LBFGS(model.parameters()))


def test_an_embedding_with_sparse_gradients_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(4, 4, sparse=True))
    with pytest.raises(ConfigError, match="module 0 has sparse gradients"):
        ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize("mode", list(PrecisionMode)[:3])
def test_a_sparse_gradient_of_a_function_is_refused_at_the_first_step_with_what_to_pass(
    mode: PrecisionMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PRECISION_ALLOW_CPU", "true")
    model = torch.nn.Embedding(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = ExtendedFP16Trainer(model, optimizer, ExtendedFP16Config(precision_mode=mode))

    def looked_up(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(batch, model.get_parameter("weight"), sparse=True).sum()

    loss = trainer.training_step(torch.tensor([1, 2]), looked_up)
    with pytest.raises(ConfigError, match=r"shape \(4, 4\) has a sparse gradient.*sparse=False"):
        trainer.backward_and_step(loss)


def test_a_loss_that_is_a_dictionary_is_refused_with_what_to_return() -> None:
    model = torch.nn.Linear(2, 2)
    trainer = ExtendedFP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="loss_fn returned dict"):
        trainer.training_step(torch.ones(1, 2), lambda model, batch: {"loss": model(batch).sum()})  # type: ignore[arg-type, return-value]


def _networks() -> tuple[torch.nn.Module, torch.nn.Module]:
    torch.manual_seed(0)
    generator = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    return generator, torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def _noise(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    return torch.randn(8, 4, generator=random), torch.randn(8, 2, generator=random)


def _judged(discriminator: torch.nn.Module, batch: torch.Tensor, *, real: bool) -> torch.Tensor:
    scores: torch.Tensor = discriminator(batch)
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def test_a_gan_with_two_trainers_trains_both_networks_as_by_hand() -> None:
    generator, discriminator = _networks()
    optimizers = [torch.optim.Adam(network.parameters(), lr=1e-2) for network in (generator, discriminator)]
    settings = ExtendedFP16Config(enabled=False, max_grad_norm=0.0)
    ours, theirs = (
        ExtendedFP16Trainer(network, optimizer, settings)
        for network, optimizer in zip((generator, discriminator), optimizers, strict=True)
    )
    for number in range(5):
        noise, real = _noise(number)
        fake = generator(noise).detach()
        loss = theirs.training_step(
            (real, fake), lambda d, pair: _judged(d, pair[0], real=True) + _judged(d, pair[1], real=False)
        )
        theirs.backward_and_step(loss)
        ours.backward_and_step(ours.training_step(noise, lambda g, batch: _judged(discriminator, g(batch), real=True)))
    trained = [*generator.parameters(), *discriminator.parameters()]

    generator, discriminator = _networks()
    for_generator, for_discriminator = (
        torch.optim.Adam(network.parameters(), lr=1e-2) for network in (generator, discriminator)
    )
    for number in range(5):
        noise, real = _noise(number)
        for_discriminator.zero_grad()
        fake = generator(noise).detach()
        (_judged(discriminator, real, real=True) + _judged(discriminator, fake, real=False)).backward()
        for_discriminator.step()
        for_generator.zero_grad()
        _judged(discriminator, generator(noise), real=True).backward()
        for_generator.step()
    assert all(
        torch.equal(found, expected)
        for found, expected in zip(trained, [*generator.parameters(), *discriminator.parameters()], strict=True)
    )


def test_an_overflow_in_one_network_leaves_the_other_one_and_its_scale_alone() -> None:
    networks = _networks()
    generator, discriminator = networks
    trainers = []
    for network in networks:
        settings = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_FP16, loss_scale=1024.0, max_grad_norm=0.0)
        optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
        trainers.append(ExtendedFP16Trainer(network, optimizer, settings, allow_cpu=True))
    makes, judges = trainers
    before = [[parameter.clone() for parameter in network.parameters()] for network in networks]
    noise, real = _noise(0)
    fake = generator(noise).detach()
    judges.backward_and_step(judges.training_step((real, fake), lambda d, pair: _judged(d, pair[0], real=True)))
    loss = makes.training_step(noise, lambda g, batch: _judged(discriminator, g(batch), real=True))
    makes.backward_and_step(loss * float("inf"))
    assert all(map(torch.equal, before[0], generator.parameters()))
    assert not any(map(torch.equal, before[1], discriminator.parameters()))
    assert [float(trainer.scaler.scale_value) for trainer in trainers] == [512.0, 1024.0]


@pytest.fixture
def group_of_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    monkeypatch.setenv("USE_LIBUV", os.environ.get("USE_LIBUV", "0"))
    dist.init_process_group("gloo", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group_of_one")
def test_a_sharded_model_is_refused() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ConfigError, match="is sharded"):
        ExtendedFP16Trainer(model, torch.optim.AdamW(model.parameters()), ExtendedFP16Config(use_ddp=True))


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("inside", [False, True])
def test_a_model_that_is_sharded_the_older_way_is_refused(inside: bool) -> None:
    sharded = FullyShardedDataParallel(torch.nn.Linear(4, 4), device_id=torch.device("cpu"))
    model = torch.nn.Sequential(sharded) if inside else sharded
    named = "module 0" if inside else "the model"
    with pytest.raises(ConfigError, match=f"{named} is wrapped in FullyShardedDataParallel"):
        ExtendedFP16Trainer(model, torch.optim.AdamW(model.parameters()), ExtendedFP16Config(use_ddp=True))


@pytest.mark.parametrize("dampening", [0.0, 0.5])
def test_fused_sgd_with_momentum_survives_an_overflow_in_the_first_step(dampening: float) -> None:
    def train(*, fused: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 4))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=dampening, fused=fused)
        config = ExtendedFP16Config(precision_mode=PrecisionMode.MIXED_FP16, loss_scale=1024.0)
        trainer = ExtendedFP16Trainer(model, optimizer, config, allow_cpu=True)
        trainer._gradient_update.on_device = fused  # the way of a device: its kernel skips, not the host
        for number in range(6):
            batch = torch.randn(8, 64, generator=torch.Generator().manual_seed(number))
            factor = float("inf") if number == 0 else 1.0
            loss = trainer.training_step(batch, lambda model, data: model(data).square().mean() * factor)  # noqa: B023
            trainer.backward_and_step(loss)
        return [parameter.detach().clone() for parameter in model.parameters()]

    for found, expected in zip(train(fused=True), train(fused=False), strict=True):
        torch.testing.assert_close(found, expected)


class Adapted(torch.nn.Module):
    """A frozen BF16 layer with a trained FP32 adapter beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = torch.nn.Linear(8, 8, dtype=torch.bfloat16).requires_grad_(requires_grad=False)
        self.down, self.up = torch.nn.Linear(8, 2, bias=False), torch.nn.Linear(2, 8, bias=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.base(batch.bfloat16()).float() + self.up(self.down(batch))
        return output


def _adapted(mode: PrecisionMode) -> ExtendedFP16Trainer:
    torch.manual_seed(0)
    model = Adapted()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    config = ExtendedFP16Config(precision_mode=mode, enabled=mode is not PrecisionMode.FP32)
    return ExtendedFP16Trainer(model, torch.optim.AdamW(trained, lr=1e-2), config, allow_cpu=True)


@pytest.mark.parametrize("mode", [PrecisionMode.FP32, PrecisionMode.MIXED_FP16, PrecisionMode.MIXED_BF16])
def test_adapters_over_a_frozen_bf16_model_train_and_are_kept(mode: PrecisionMode, tmp_path: Path) -> None:
    trainer = _adapted(mode)
    before = trainer.model.state_dict()["base.weight"].clone()
    batch = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(30):
        loss = trainer.training_step(batch, lambda model, data: (model(data) - 1).square().mean())
        trainer.backward_and_step(loss)
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    state = trainer.model.state_dict()
    assert torch.equal(state["base.weight"], before)
    trainer.save_checkpoint(tmp_path / "adapted.pt")
    other = _adapted(mode)
    other.load_checkpoint(tmp_path / "adapted.pt")
    assert all(torch.equal(value, state[name]) for name, value in other.model.state_dict().items())
    assert other.model.state_dict()["base.weight"].dtype is torch.bfloat16
