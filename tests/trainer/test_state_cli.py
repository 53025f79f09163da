"""``precision-trainer checkpoint verify|show``, and plain files of other programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from precision_trainer import cli
from precision_trainer.checkpoint import plain
from precision_trainer.store.checkpoints import CheckpointStore
from precision_trainer.values.logs import JsonLog
from tests.support.training.checkpoints import flip_a_bit, small_model, small_state


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(str(tmp_path / "checkpoints"), JsonLog())
    for step in (10, 20):
        store.save(small_state(step, small_model()))
    store.tag_healthy(10, 50)
    return store


def test_verify_says_which_are_good_and_its_exit_code_too(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(store.path(10).parent)
    assert cli.main(["checkpoint", "verify", directory]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line[:4] for line in lines] == [
        ["step-000000000010", "good", "10", "yes"],
        ["step-000000000020", "good", "20", "no"],
    ]
    flip_a_bit(store.path(20))
    assert cli.main(["checkpoint", "verify", directory]) == 1
    text = capsys.readouterr().out
    assert "step-000000000020  damaged" in text
    assert "expected sha256" in text
    assert cli.main(["checkpoint", "verify", str(store.path(10))]) == 0


def test_show_for_people_and_for_programs(store: CheckpointStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["checkpoint", "show", str(store.path(10)), "-o", "json"]) == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert (report["step"], report["samples"], report["mode"], report["generation"]) == (10, 80, "fp16", 5)
    assert (report["healthy"], report["parameters"], report["ranks"], report["error"]) == (True, 8, 1, None)
    assert cli.main(["checkpoint", "show", str(store.path(10))]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[1:])
    assert rows["parameters"].strip() == "8"
    assert rows["mode"].strip() == "fp16"


def test_a_table_needs_no_more_than_a_vendors_image_has(
    store: CheckpointStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    assert cli.main(["checkpoint", "show", str(store.path(10).parent)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["step", "10", "20"]


def test_nothing_there_is_an_error_with_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (tmp_path, tmp_path / "absent"):
        assert cli.main(["checkpoint", "verify", str(path)]) == 1
        assert "there is no checkpoint; name a directory" in capsys.readouterr().err


def _old_file(path: Path, dtype: torch.dtype, prefix: str = "") -> torch.nn.Module:
    """As a script of another project would save it, under DDP or not."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    weights = {prefix + name: tensor.to(dtype) for name, tensor in model.state_dict().items()}
    torch.save({"model_state_dict": weights, "optimizer_state_dict": optimizer.state_dict(), "epoch": 3}, path)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("prefix", ["", "module."])
def test_plain_file_loads_from_any_precision_into_fp32(tmp_path: Path, dtype: torch.dtype, prefix: str) -> None:
    saved = _old_file(tmp_path / "old.pt", dtype, prefix)
    model = small_model()
    weights, moments = plain.load(tmp_path / "old.pt", model, torch.optim.AdamW(model.parameters()))
    for name, tensor in saved.state_dict().items():
        assert torch.equal(weights[name], tensor.to(dtype).float())
    assert moments is not None
    assert cli.main(["checkpoint", "verify", str(tmp_path / "old.pt")]) == 0


def test_flipped_bit_in_a_plain_file_is_found_by_the_archives_own_checksums(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = _old_file(tmp_path / "old.pt", torch.float32)
    data = bytearray((tmp_path / "old.pt").read_bytes())
    data[data.index(saved.state_dict()["weight"].numpy().tobytes())] ^= 1
    (tmp_path / "old.pt").write_bytes(data)
    assert cli.main(["checkpoint", "verify", str(tmp_path / "old.pt")]) == 1
    assert "checksum" in capsys.readouterr().out
