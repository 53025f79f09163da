"""Cold modes, and one file that goes from any mode to any."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from precision_trainer import ExtendedFP16Config, ExtendedFP16Trainer, PrecisionMode
from precision_trainer.checkpoint import files, plain
from precision_trainer.errors import CheckpointError, ConfigError
from precision_trainer.models.data import LibraryText
from precision_trainer.models.transformer import next_byte_loss
from precision_trainer.values.request import PrecisionRequest
from tests.support.training.forked import context
from tests.support.training.steps import BATCH, BF16, FP16, FP32, make, step, weights

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("mode", [PrecisionMode.FP16, PrecisionMode.BF16])
def test_cold_modes_learn_with_16_bit_weights_and_fp32_masters(mode: PrecisionMode, text: LibraryText) -> None:
    trainer = make(mode, loss_scale=1024.0)
    losses = [step(trainer, text) for _ in range(25)]
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.4
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float16 if mode.uses_scaler else torch.bfloat16}
    masters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    assert {p.dtype for p in masters} == {torch.float32}
    for half, master in zip(trainer.model.parameters(), masters, strict=True):
        assert torch.equal(half, master.to(half.dtype))


def test_no_request_reaches_or_changes_a_cold_mode(text: LibraryText) -> None:
    trainer = make(PrecisionMode.BF16)
    trainer.request_source = lambda applied: PrecisionRequest(1, FP32)
    with pytest.raises(ConfigError, match="cold mode: no request can change it"):
        step(trainer, text)
    assert PrecisionMode.from_wire("bf16") is BF16


def test_cold_modes_are_refused_under_ddp_and_after_the_first_step(text: LibraryText) -> None:
    with pytest.raises(ConfigError, match="MIXED_BF16"):
        make(PrecisionMode.BF16, use_ddp=True)
    used = make(FP32)
    step(used, text)
    with pytest.raises(ConfigError, match="already has state"):
        ExtendedFP16Trainer(
            used.model, used.optimizer, ExtendedFP16Config(precision_mode=PrecisionMode.BF16), allow_cpu=True
        )


@pytest.mark.parametrize("saved", [FP32, FP16, PrecisionMode.BF16])
@pytest.mark.parametrize("loaded", [FP32, BF16, PrecisionMode.FP16])
def test_one_file_goes_from_any_mode_to_any_without_changing_a_weight(
    saved: PrecisionMode, loaded: PrecisionMode, text: LibraryText, tmp_path: Path
) -> None:
    first, second = make(saved, loss_scale=64.0), make(loaded)
    for _ in range(3):
        step(first, text)
    first.save_checkpoint(tmp_path / "one.pt")
    second.load_checkpoint(tmp_path / "one.pt")
    assert second.step == 3

    def masters(trainer: ExtendedFP16Trainer) -> list[torch.Tensor]:
        return [p.detach() for group in trainer.optimizer.param_groups for p in group["params"]]

    assert all(torch.equal(a, b) for a, b in zip(masters(first), masters(second), strict=True))
    assert float(second.scaler.scale_value) == 64.0
    step(second, text)


def test_a_file_of_another_model_changes_nothing(text: LibraryText, tmp_path: Path) -> None:
    torch.save({"model_state_dict": {"x": torch.zeros(2)}}, tmp_path / "other.pt")
    for mode in (FP32, PrecisionMode.BF16):
        trainer = make(mode)
        before = weights(trainer)
        with pytest.raises(CheckpointError):
            trainer.load_checkpoint(tmp_path / "other.pt")
        assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))


def test_a_file_of_an_unfused_optimizer_leaves_a_fused_one_fused(text: LibraryText, tmp_path: Path) -> None:
    unfused, fused = make(FP32, fused=False), make(FP16, loss_scale=1024.0)
    step(unfused, text)
    unfused.save_checkpoint(tmp_path / "one.pt")
    fused.load_checkpoint(tmp_path / "one.pt")
    before = weights(fused)
    step(fused, text, float("inf"))
    # torch refuses found_inf in an unfused one, in the middle of the next step.
    assert all(torch.equal(a, b) for a, b in zip(before, weights(fused), strict=True))


@pytest.mark.parametrize("mode", [FP32, FP16])
def test_an_old_file_of_weights_alone_loads_in_any_mode_with_a_warning(
    mode: PrecisionMode, text: LibraryText, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = make(FP32), make(mode)
    step(first, text)
    torch.save({"model_state_dict": first.model.state_dict()}, tmp_path / "old.pt")
    second.load_checkpoint(tmp_path / "old.pt")
    assert all(torch.equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines if line.get("level") == "warning"] == ["resumed_plain"]
    second.save_checkpoint(tmp_path / "ours.pt")
    second.load_checkpoint(tmp_path / "ours.pt")
    assert "resumed_plain" not in capsys.readouterr().out


def test_a_file_with_a_broken_scaler_changes_nothing(text: LibraryText, tmp_path: Path) -> None:
    trainer = make(FP16)
    trainer.save_checkpoint(tmp_path / "one.pt")
    state = torch.load(tmp_path / "one.pt", weights_only=True)
    state["scaler"]["growth_interval"] = 0.5
    torch.save(state, tmp_path / "one.pt")
    step(trainer, text)
    before = weights(trainer)
    with pytest.raises(CheckpointError, match="growth_interval"):
        trainer.load_checkpoint(tmp_path / "one.pt")
    assert all(torch.equal(a, b) for a, b in zip(before, weights(trainer), strict=True))


def test_a_file_that_is_replaced_while_it_is_loaded_gives_weights_and_step_of_one_state(
    text: LibraryText, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, first, second = tmp_path / "one.pt", make(FP32), make(FP32)
    first.save_checkpoint(path)
    saved = weights(first)
    step(first, text)
    read = files.read_plain

    def read_then_replace(path: Path) -> object:
        state = read(path)
        first.save_checkpoint(path)
        return state

    monkeypatch.setattr(files, "read_plain", read_then_replace)
    second.load_checkpoint(path)
    assert second.step == 0
    assert all(torch.equal(a, b) for a, b in zip(saved, weights(second), strict=True))


@pytest.mark.parametrize("frozen", [torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn])
def test_a_file_gives_a_frozen_tensor_back_in_its_own_type_bit_for_bit(frozen: torch.dtype, tmp_path: Path) -> None:
    def trainer() -> ExtendedFP16Trainer:
        model = torch.nn.Linear(4, 4)
        model.register_parameter(
            "frozen", torch.nn.Parameter((torch.arange(8).double() / 3).to(frozen), requires_grad=False)
        )
        optimizer = torch.optim.SGD([model.weight, model.bias], lr=0.1)
        return ExtendedFP16Trainer(model, optimizer, ExtendedFP16Config(precision_mode=FP32))

    first, second = trainer(), trainer()
    first.save_checkpoint(tmp_path / "file")
    with torch.no_grad():
        second.model.get_parameter("frozen").zero_()
    second.load_checkpoint(tmp_path / "file")
    found, expected = (one.model.get_parameter("frozen") for one in (second, first))
    assert found.dtype is frozen
    assert found.double().tolist() == expected.double().tolist()
    weights, _ = plain.load(tmp_path / "file", second.model, second.optimizer)
    assert weights["frozen"].double().tolist() == expected.double().tolist()


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]] = {
    "one cycle, momentum too": lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=1e-2, total_steps=20
    ),
    "cosine": lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20),
}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_a_schedule_goes_on_in_its_middle_as_if_nothing_had_stopped(
    name: str, text: LibraryText, tmp_path: Path
) -> None:
    plain = make(FP32)
    model, optimizer = plain.model, plain.optimizer  # trained by torch alone
    schedule = SCHEDULES[name](optimizer)
    for number in range(20):
        next_byte_loss(model, text.batch(number * BATCH, BATCH)).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()

    first = make(FP32)
    schedule = SCHEDULES[name](first.optimizer)
    for _ in range(9):
        step(first, text)
        schedule.step()
    first.save_checkpoint(tmp_path / "file")
    torch.save(schedule.state_dict(), tmp_path / "schedule")

    second = make(FP32)
    schedule = SCHEDULES[name](second.optimizer)
    second.load_checkpoint(tmp_path / "file")
    schedule.load_state_dict(torch.load(tmp_path / "schedule", weights_only=True))
    while second.step < 20:
        step(second, text)
        schedule.step()
    assert second.optimizer.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
    assert all(torch.equal(a, b.detach()) for a, b in zip(weights(second), model.parameters(), strict=True))


def _no_locks(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


def test_what_a_killed_process_left_while_it_wrote_a_file_is_removed_after_an_hour_where_nothing_can_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "one.pt"
    monkeypatch.setattr("precision_trainer.checkpoint.plain.fcntl.flock", _no_locks)

    def killed(_folder: object, **_how: object) -> None:
        """As after SIGKILL: nothing is tidied up."""

    with monkeypatch.context() as patch:
        patch.setattr("precision_trainer.checkpoint.plain.shutil.rmtree", killed)
        for name in ("one.pt", "one.pt", "other.pt"):
            plain.write(tmp_path / name, {"weights": torch.zeros(1)})
    left = sorted(folder for folder in tmp_path.iterdir() if folder.is_dir())
    old, recent, others = left
    own = tmp_path / ".one.pt.kept"
    own.mkdir()
    for folder in (old, others, own):
        os.utime(folder, (0, 0))
    plain.write(path, {"weights": torch.ones(1)})
    assert {folder for folder in tmp_path.iterdir() if folder.is_dir()} == {recent, others, own}


def _killed_while_it_writes(path: Path) -> None:
    os.fsync = lambda fd: os.kill(os.getpid(), signal.SIGKILL)
    plain.write(path, {"weights": torch.zeros(1 << 18)})


def test_what_killed_processes_left_is_gone_with_the_next_file(tmp_path: Path) -> None:
    path = tmp_path / "one.pt"
    for _ in range(2):
        killed = context().Process(target=_killed_while_it_writes, args=(path,))
        killed.start()
        killed.join(120)
        assert killed.exitcode == -signal.SIGKILL
        (left,) = tmp_path.iterdir()  # the second one has removed what the first one left
        assert left.name.startswith(".one.pt.writing-")
    plain.write(path, {"weights": torch.ones(1)})
    assert list(tmp_path.iterdir()) == [path]


def test_what_another_process_is_writing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "one.pt", os.fsync
    folders: list[int] = []

    def meanwhile(descriptor: int) -> None:
        if not folders:
            folders.append(0)
            plain.write(path, {"weights": torch.zeros(1)})
            folders.append(sum(entry.is_dir() for entry in tmp_path.iterdir()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", meanwhile)
    plain.write(path, {"weights": torch.ones(1)})
    assert folders == [0, 1]
    assert torch.equal(torch.load(path, weights_only=True)["weights"], torch.ones(1))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("known", [True, False])
def test_the_lock_of_a_file_on_another_mount_says_nothing(tmp_path: Path, known: bool) -> None:
    path = tmp_path / "one.pt"
    folder = tmp_path / f".one.pt.writing-{plain._lock_table(tmp_path) if known else '01234567'}-abcdefgh"
    folder.mkdir()
    (folder / path.name).write_bytes(b"half")
    plain.write(path, {"weights": torch.ones(1)})
    assert folder.exists() is not known
    for entry in (folder / path.name, folder) if folder.exists() else ():
        os.utime(entry, (0, 0))
    plain.write(path, {"weights": torch.ones(1)})
    assert list(tmp_path.iterdir()) == [path]
