"""Scripts of lab/harmless: training with the trainer is training without it. All of them: ``make harmless``."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch

from lab.harmless import measure
from lab.harmless.__main__ import missed
from lab.harmless.script import CASES, REFUSALS, Case
from precision_trainer.checkpoint.tensors import nonfinite_buffers
from precision_trainer.distributed.ddp import _WithTelemetry

measure.load()
QUICK = ("nano_gpt", "dcgan", "overflowing_fp16", "failing_backward")
MENDED = (
    "gcn",
    "graph_sage",
    "double_default",
    "double_default_fp16",
    "steps_without_gradients",
    "clipped_steps_without_gradients",
    "recovers_from_nan",
)
"""Runs that the trainer once ended."""

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", QUICK + MENDED)
def test_a_script_has_the_same_losses_without_and_with_us(name: str) -> None:
    outcome = measure.train(CASES[name])
    assert outcome.finished, outcome.reported
    assert outcome.losses_equal


@pytest.mark.parametrize("name", ["ddp_experts", "ddp_gan"])
def test_ranks_train_as_under_plain_ddp(name: str) -> None:
    outcome = measure.apart(CASES[name])
    assert outcome.finished, outcome.reported
    assert outcome.losses_equal


def test_a_mode_that_the_model_fails_in_is_reported_as_refused() -> None:
    (sentence,) = measure.train(CASES["graph_sage"]).reported
    assert sentence.startswith("request_refused: bf16 refused")


@pytest.mark.parametrize("name", sorted(name for name, refusal in REFUSALS.items() if refusal.ranks == 1))
def test_what_cannot_be_trained_rightly_is_refused_at_construction(name: str) -> None:
    assert "; " in measure.refuse(REFUSALS[name])  # what was expected, then what to do


def _line(case: Case) -> dict[str, object]:
    return measure.Outcome([1.0, float("nan")], [1.0, float("nan")], finished=True).line(case)


def test_a_line_of_the_file_is_json_and_says_what_was_compared() -> None:
    line = json.loads(json.dumps(_line(CASES["nano_gpt"]), allow_nan=False))
    assert line["without_us"] == line["with_us"] == [1.0, "nan"]
    assert (line["id"], line["finished"], line["losses_equal"], line["reported"]) == ("nano_gpt", True, True, [])
    assert line["stack"]
    assert line["public_shape"] == "nanoGPT"


def test_a_case_that_ends_early_or_differs_and_a_refusal_that_is_missing_are_named() -> None:
    case = CASES["mnist"]
    ended = measure.Outcome([1.0], [], reported=["did not finish"]).line(case)
    differs = measure.Outcome([1.0], [1.0 + 2**-52], finished=True).line(case)
    assert [text.partition(":")[0] for text in missed([ended, differs], [], whole=False)] == ["mnist", "mnist"]
    assert missed([], [{"id": "lbfgs", "message": ""}], whole=False)
    assert not missed([], [{"id": "lbfgs", "message": "refused"}], whole=False)


def test_a_training_in_16_bits_that_the_sentinel_never_looked_into_proves_nothing() -> None:
    case = CASES["mnist_in_bf16"]
    unseen = measure.Outcome([1.0], [1.0], finished=True, low=True)
    assert [text.partition(":")[0] for text in missed([unseen.line(case)], [], whole=False)] == ["mnist_in_bf16"]
    assert missed([replace(unseen, looked=True).line(case)], [], whole=False) == []
    assert missed([replace(unseen, reported=["refused"]).line(case)], [], whole=False) == []


def test_the_sentinel_looks_into_a_short_training_in_bf16() -> None:
    outcome = measure.train(CASES["vae_in_bf16"])
    assert (outcome.finished, outcome.losses_equal, outcome.low, outcome.looked) == (True, True, True, True)


def test_too_few_cases_are_a_failure_and_there_are_enough() -> None:
    lines = [_line(case) for case in CASES.values()]
    assert missed(lines, []) == []
    assert missed([line for line in lines if not line["public_shape"]], [])
    assert missed(lines[:29], [])


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_of_sparse_buffers_the_values_are_looked_at() -> None:
    model = torch.nn.Module()
    for name, value in (("good", 1.0), ("bad", float("inf"))):
        model.register_buffer(name, torch.diag(torch.tensor([0.0, value])).to_sparse())
    model.register_buffer("rows", model.get_buffer("bad").to_sparse_csr())
    model.register_buffer("empty", torch.zeros(2, 2).to_sparse())
    assert nonfinite_buffers(model) == {"bad", "rows"}


class _Mapping(dict[str, torch.Tensor]):
    """pytree does not know it."""


@dataclass(frozen=True)
class _Output:
    logits: torch.Tensor
    more: tuple[_Mapping, str]


def test_the_telemetry_is_in_the_graph_of_whatever_a_model_returns() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> _Output:
            return _Output(x * 2, (_Mapping(hidden=x * 3), "text"))

    telemetry = torch.nn.Parameter(torch.zeros(3))
    found = _WithTelemetry(Model(), telemetry, in_graph=True)(torch.ones(2, requires_grad=True))
    assert isinstance(found, _Output)
    assert isinstance(found.more[0], _Mapping)
    assert found.more[1] == "text"
    for tensor, value in ((found.logits, 2.0), (found.more[0]["hidden"], 3.0)):
        assert tensor.tolist() == [value, value]
        assert tensor.grad_fn is not None
        leaves = [getattr(node, "variable", None) for node, _ in tensor.grad_fn.next_functions if node is not None]
        assert any(leaf is telemetry for leaf in leaves)
