"""Models that DDP has to be told about, on every rank: called by name through process_group.py, as scenarios.py."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.errors import ConfigError
from precision_trainer.values.request import PrecisionRequest
from tests.support.training.preflight_scenarios import model_that_fails
from tests.support.training.scenarios import WIDTH, Result, fingerprint

STEPS = 6


class Experts(torch.nn.Module):
    """Of three experts a batch uses one, by its number; the last is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = torch.nn.Linear(WIDTH, 4)

    def forward(self, batch: torch.Tensor, number: int) -> dict[str, torch.Tensor]:
        """A dictionary, as models of transformers return one."""
        return {"logits": self.head(torch.nn.functional.gelu(self.experts[number](batch)))}


def _batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(100 * step + rank))


def _loss(model: torch.nn.Module, batch: torch.Tensor, number: int) -> torch.Tensor:
    output: dict[str, torch.Tensor] = model(batch, number)
    return output["logits"].square().mean()


def _model() -> tuple[Experts, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = Experts()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def _trainer(rank: int, world: int, *, unused: bool = False, static: bool = False) -> ExtendedFP16Trainer:
    model, optimizer = _model()
    config = ExtendedFP16Config(
        enabled=False, max_grad_norm=0.0, use_ddp=True, find_unused_parameters=unused, static_graph=static
    )
    return ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)


def _step(trainer: ExtendedFP16Trainer, number: int) -> None:
    batch = _batch(trainer.step, trainer.rank)
    trainer.backward_and_step(trainer.training_step(batch, lambda model, data: _loss(model, data, number)))


def _plain(rank: int, which: Callable[[int], int], *, unused: bool = False, static: bool = False) -> str:
    """The same training by torch alone."""
    model, optimizer = _model()
    wrapped = DistributedDataParallel(
        model, gradient_as_bucket_view=True, find_unused_parameters=unused, static_graph=static
    )
    for number in range(STEPS):
        _loss(wrapped, _batch(number, rank), which(number)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return " ".join(str(parameter.detach().flatten().tolist()) for parameter in model.parameters())


def _ours(trainer: ExtendedFP16Trainer, which: Callable[[int], int]) -> str:
    for number in range(STEPS):
        _step(trainer, which(number))
    return " ".join(str(parameter.detach().flatten().tolist()) for parameter in trainer.model.parameters())


def experts_that_differ_by_step_and_rank(rank: int, world: int) -> Result:
    """Beside plain DDP with the same switch."""

    def which(step: int) -> int:
        return (step + rank) % 2

    ours = _ours(_trainer(rank, world, unused=True), which)
    return {"ours": ours, "plain": _plain(rank, which, unused=True)}


def one_expert_for_all_time(rank: int, world: int) -> Result:
    """Beside plain DDP with a static graph."""
    ours = _ours(_trainer(rank, world, static=True), lambda step: 0)
    return {"ours": ours, "plain": _plain(rank, lambda step: 0, static=True)}


def unused_without_a_word(rank: int, world: int) -> Result:
    """What a person reads who did not know that parameters are unused."""
    trainer = _trainer(rank, world)
    try:
        for _ in range(3):
            _step(trainer, 0)
    except ConfigError as error:
        return {"error": str(error)}
    return {"error": ""}


def a_request_among_unused_experts(rank: int, world: int) -> Result:
    """The request travels in the gradient bucket, whatever else of it is unused."""
    trainer = _trainer(rank, world, unused=True)
    if rank == 0:
        request = PrecisionRequest(1, PrecisionMode.MIXED_BF16)
        trainer.request_source = lambda applied: request if applied < 1 else None
    for number in range(STEPS):
        _step(trainer, (number + rank) % 2)
    trainer.begin_step()
    return {"mode": trainer.mode.wire, "print": fingerprint(trainer)}


def a_mode_proven(rank: int, world: int) -> Result:
    """Among unused parameters: trained in BF16 from the start or from a request on, with the mode proven and not."""
    found: Result = {}
    for asked_at, accumulation in ((0, 1), (3, 1), (0, 2), (3, 2)):
        weights = []
        for proven in (False, True):
            model, optimizer = _model()
            model.experts[1].eval()
            config = ExtendedFP16Config(
                precision_mode=PrecisionMode.MIXED_BF16,
                enabled=not asked_at,
                use_ddp=True,
                find_unused_parameters=True,
                gradient_accumulation_steps=accumulation,
            )
            trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
            for micro in range(2 * STEPS * accumulation):
                if micro == asked_at * accumulation > 0:
                    trainer.begin_step()
                    trainer.apply(PrecisionRequest(1, PrecisionMode.MIXED_BF16))
                if not proven:
                    trainer.modes.trial = None
                number = (micro + rank) % 2 if micro % 4 < 2 else 0

                def loss_of(net: torch.nn.Module, data: torch.Tensor, number: int = number) -> torch.Tensor:
                    bare = net.module if isinstance(net, DistributedDataParallel) else net
                    weight: torch.Tensor = bare.head.weight  # type: ignore[union-attr,assignment]
                    return _loss(net, data, number) + 1e-2 * weight.square().mean()

                trainer.backward_and_step(trainer.training_step(_batch(micro, rank), loss_of))
            trainer.drain()
            assert trainer.mode is PrecisionMode.MIXED_BF16
            assert model.training
            assert not model.experts[1].training
            weights.append([parameter.tolist() for parameter in model.parameters()])
        found[f"{asked_at}, {accumulation}"] = weights[0] == weights[1]
    return found


def a_mode_that_experts_fail_in(rank: int, world: int) -> Result:
    """Asked for among unused parameters: rank 1 fails in it."""
    model, optimizer = _model()
    fails = model_that_fails("forward", torch.bfloat16).get_submodule("1")
    config = ExtendedFP16Config(enabled=False, use_ddp=True, find_unused_parameters=True)
    trainer = ExtendedFP16Trainer(model, optimizer, config, "cpu", rank, world, allow_cpu=True)
    refused: list[str] = []
    trainer.modes.on_refused = lambda _reason, message: refused.append(message)
    if rank == 0:
        request = PrecisionRequest(1, PrecisionMode.MIXED_BF16)
        trainer.request_source = lambda applied: request if applied < 1 else None
    else:
        model.head = torch.nn.Sequential(model.head, fails)  # type: ignore[assignment]
    for number in range(STEPS):
        _step(trainer, (number + rank) % 2)
    trainer.drain()
    return {"mode": trainer.mode.wire, "refused": refused, "print": fingerprint(trainer)}


def refused_at_construction(rank: int, world: int) -> Result:
    """What contradicts the group that this process is in."""
    # Takes seconds, and other scenarios need none of it.
    from torch.distributed._composable.replicate import replicate

    found = {}
    size = dist.get_world_size()
    wrapped = DistributedDataParallel(_model()[0])
    inner = torch.nn.Sequential(DistributedDataParallel(_model()[0]))
    replicated = replicate(_model()[0])
    cases: dict[str, tuple[torch.nn.Module, bool, int, int]] = {
        "wrapped": (wrapped, False, rank, size),
        "wrapped twice": (wrapped, True, rank, size),
        "wrapped inside": (inner, True, rank, size),
        "replicated": (replicated, True, rank, size),
        "replicated inside": (torch.nn.Sequential(replicate(_model()[0])), True, rank, size),
        "alone in a group": (_model()[0], False, 0, 1),
        "another rank": (_model()[0], True, (rank + 1) % size, size),
    }
    for name, (model, use_ddp, own, number) in cases.items():
        optimizer = torch.optim.AdamW(model.parameters())
        try:
            ExtendedFP16Trainer(model, optimizer, ExtendedFP16Config(use_ddp=use_ddp), "cpu", own, number)
        except ConfigError as error:
            found[name] = str(error)
    return {"errors": found}


def what_ddp_is_told_to_ignore(rank: int, world: int) -> Result:
    """Each rank has an expert and a count of its own, beside plain DDP: trained, then frozen."""

    def own() -> torch.nn.Module:
        model = _model()[0]
        model.register_buffer("count", torch.full((1,), float(rank)))
        expert = model.experts[2]
        assert isinstance(expert, torch.nn.Linear)
        torch.nn.init.constant_(expert.weight, float(rank))
        names = ["experts.2.weight", "count"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        return model

    def build(model: torch.nn.Module) -> DistributedDataParallel:
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
        settings = ExtendedFP16Config(use_ddp=True, enabled=False, find_unused_parameters=True)
        net = ExtendedFP16Trainer(model, optimizer, settings, "cpu", rank, world).module
        assert isinstance(net, DistributedDataParallel)
        return net

    def kept(net: DistributedDataParallel) -> bool:
        with net.join():  # its end gives the weights of the last rank to all
            pass
        state = net.state_dict()
        return all(bool((state[name] == rank).all()) for name in ("module.experts.2.weight", "module.count"))

    error = ""
    try:
        build(own())
    except ConfigError as refused:
        error = str(refused)
    ours, plain = own(), own()
    for model in (ours, plain):
        model.get_parameter("experts.2.weight").requires_grad_(False)
    return {"error": error, "kept": [kept(net) for net in (build(ours), DistributedDataParallel(plain))]}


def parts_of_a_model_in_its_loss(rank: int, world: int) -> Result:
    """A loss that calls the head by its name, ``net.module.head``, as scripts for DDP do; beside plain DDP."""

    def loss(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = net(data, 0)["logits"]
        weight: torch.Tensor = net.module.head.weight  # type: ignore[union-attr,assignment]
        return hidden.square().mean() + 1e-2 * weight.square().mean()

    model, optimizer = _model()
    net = DistributedDataParallel(model, gradient_as_bucket_view=True, find_unused_parameters=True)
    trainer = _trainer(rank, world, unused=True)
    for step in range(STEPS):
        loss(net, _batch(step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        trainer.backward_and_step(trainer.training_step(_batch(step, rank), loss))
    ours, plain = (list(one.parameters()) for one in (trainer.model, model))
    return {"same": all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True))}


class Recurrent(torch.nn.Sequential):
    """Its loss reads and writes what it keeps between steps."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        super().__init__(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, WIDTH))
        self.hidden, self.calls = torch.zeros(WIDTH), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = super().forward(x + self.hidden)
        return out


def a_model_that_its_loss_writes_to(rank: int, world: int) -> Result:
    """``net.module.hidden = ...``, and layers by number, as scripts for DDP have them; beside plain DDP."""

    def loss(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = net(data)
        module: Recurrent = net.module  # type: ignore[assignment]
        module.hidden = 0.5 * module.hidden + out.detach().mean(0)
        module.calls += 1
        weights = [layer.weight.square().sum() for layer in module if isinstance(layer, torch.nn.Linear)]
        assert len(module) == 3
        return out.square().mean() + 1e-3 * sum(weights) + 1e-3 * module[0].get_parameter("bias").square().sum()

    plain, model = Recurrent(), Recurrent()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, fused=True)
    net = DistributedDataParallel(plain, gradient_as_bucket_view=True)
    config = ExtendedFP16Config(enabled=False, max_grad_norm=0.0, use_ddp=True)
    own = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    trainer = ExtendedFP16Trainer(model, own, config, "cpu", rank, world, allow_cpu=True)
    for step in range(STEPS):
        loss(net, _batch(step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        trainer.backward_and_step(trainer.training_step(_batch(step, rank), loss))
    pairs = zip((*model.parameters(), model.hidden), (*plain.parameters(), plain.hidden), strict=True)
    return {"same": all(torch.equal(one, other) for one, other in pairs), "calls": model.calls}


class _Codebook(torch.nn.Module):
    """Training reads a buffer that each rank fills from its own data."""

    centre: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("centre", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.linear(x) - self.centre
        with torch.no_grad():
            self.centre = 0.5 * self.centre + 0.5 * x.mean(0)
        return out


def a_buffer_that_training_reads(rank: int, world: int) -> Result:
    """Beside plain DDP, which gives rank 0's buffers to all, in FP32 and in BF16."""
    return {mode.wire: _codebooks(rank, world, mode) for mode in (PrecisionMode.FP32, PrecisionMode.MIXED_BF16)}


def _codebooks(rank: int, world: int, mode: PrecisionMode) -> Result:
    def loss(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = net(data)
        return out.square().mean()

    low = mode is PrecisionMode.MIXED_BF16
    found: Result = {}
    plain, models = _Codebook(), {name: _Codebook() for name in ("broadcast", "own")}
    net, optimizer = DistributedDataParallel(plain), torch.optim.AdamW(plain.parameters(), lr=1e-2, fused=True)
    for step in range(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            value = loss(net, _batch(step, rank))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, model in models.items():
        config = ExtendedFP16Config(
            precision_mode=mode, enabled=low, use_ddp=True, broadcast_buffers=name == "broadcast"
        )
        own = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
        trainer = ExtendedFP16Trainer(model, own, config, "cpu", rank, world, allow_cpu=True)
        for step in range(STEPS):
            trainer.backward_and_step(trainer.training_step(_batch(step, rank), loss))
        found[name] = torch.equal(model.linear.weight, plain.linear.weight)
    return found


def _normed() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)


def the_model_as_a_loss_sees_it(rank: int, world: int) -> Result:
    """A penalty over ``net.parameters()``, names, a state to save and to load, evaluation; beside plain DDP."""

    def loss(net: torch.nn.Module, data: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = net(data)
        penalty = torch.stack([parameter.square().sum() for parameter in net.parameters()]).sum()
        return out.square().mean() + 1e-2 * penalty

    plain, optimizer = _normed()
    net = DistributedDataParallel(plain, gradient_as_bucket_view=True)
    model, own = _normed()
    config = ExtendedFP16Config(enabled=False, max_grad_norm=0.0, use_ddp=True)
    trainer = ExtendedFP16Trainer(model, own, config, "cpu", rank, world, allow_cpu=True)
    for step in range(STEPS):
        loss(net, _batch(step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
        trainer.backward_and_step(trainer.training_step(_batch(step, rank), loss))

    def seen(net: torch.nn.Module) -> list[list[str]]:
        inner = net.module
        assert isinstance(inner, torch.nn.Module)
        found = [
            [name for one in (net, inner) for name, _ in one.named_parameters()],
            [name for one in (net, inner) for name, _ in one.named_buffers()],
            [name for one in (net, inner) for name, _ in one.named_modules()],
            [*net.state_dict(), *inner.state_dict()],
        ]
        net.load_state_dict({name: torch.ones_like(value) for name, value in net.state_dict().items()})
        inner.load_state_dict({name: 2 * value for name, value in inner.state_dict().items()})
        net.eval()
        return [*found, [str(part.training) for part in net.modules()]]

    same = [torch.equal(one, other) for one, other in zip(model.parameters(), plain.parameters(), strict=True)]
    as_seen = seen(trainer.module) == seen(net)
    twice = all(bool((value == 2).all()) for value in model.state_dict().values())
    return {"same": all(same), "as seen": as_seen, "loaded": twice, "training": model.training}


def the_model_kept_as_a_script_does(rank: int, world: int) -> Result:
    """``net.module`` and ``net`` saved whole, copied and asked for their class; beside plain DDP."""
    plain, model = _normed()[0], _normed()
    trainer = ExtendedFP16Trainer(*model, ExtendedFP16Config(enabled=False, use_ddp=True), "cpu", rank, world)

    def kept(net: DistributedDataParallel) -> list[object]:
        inner = net.module
        assert isinstance(inner, torch.nn.Module)
        file = io.BytesIO()
        torch.save({"model": inner, "whole": net}, file)
        file.seek(0)
        text = b"precision_trainer" in file.getvalue()
        read = torch.load(file, weights_only=False)
        models = [copy.deepcopy(inner), copy.deepcopy({"a": inner})["a"], copy.copy(inner), read["model"]]
        found: list[object] = [text, isinstance(inner, torch.nn.Sequential), inner.__class__.__name__, repr(inner)]
        for one in (*models, read["whole"].module):
            same = all(torch.equal(value, one.state_dict()[name]) for name, value in inner.state_dict().items())
            found.append([type(one).__name__, same, one[0].weight is inner[0].weight])  # type: ignore[index]
        return found

    ours = trainer.module
    assert isinstance(ours, DistributedDataParallel)
    return {"ours": kept(ours), "plain": kept(DistributedDataParallel(plain))}
