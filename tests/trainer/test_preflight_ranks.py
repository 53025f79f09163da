"""A mode that one rank fails in is left by all: whatever DDP's settings are, and whatever a script does around it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.support.training.process_group import ProcessGroup

pytestmark = pytest.mark.usefixtures("one_thread")


def _of_each(results: list[dict[str, object]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """What every rank found, by setting."""
    return [(name, [cast("dict[str, Any]", result[name]) for result in results]) for name in results[0]]


def test_all_ranks_leave_a_mode_that_one_of_them_fails_in(process_group: ProcessGroup) -> None:
    for name, ranks in _of_each(process_group.run("preflight_scenarios.one_rank_fails")):
        for rank in ranks:
            assert rank["weights"] == rank["plain"]["weights"], name
            assert rank["buffers"] == rank["plain"]["buffers"], name
            assert (rank["mode"], rank["generation"]) == ("fp32", 0), name
        assert ranks[0]["weights"] == ranks[1]["weights"], name
        (message,) = ranks[0]["refused"]
        assert f"rank 1: RuntimeError in its {name.split()[1]} pass in 1 (" in message, name
        assert ranks[1]["refused"] == []


def test_ranks_that_start_in_a_mode_that_one_of_them_fails_in_go_on_in_fp32(process_group: ProcessGroup) -> None:
    for name, ranks in _of_each(process_group.run("preflight_scenarios.one_rank_fails_from_the_start")):
        assert [rank["mode"] for rank in ranks] == ["fp32", "fp32"], name
        assert ranks[0]["weights"] == ranks[1]["weights"], name
        (message,) = ranks[0]["refused"]
        assert message.startswith("bf16 refused: the model failed in it: rank 1: "), name


def test_the_first_step_in_a_mode_that_works_is_that_of_ddp_bit_for_bit(process_group: ProcessGroup) -> None:
    for name, ranks in _of_each(process_group.run("preflight_scenarios.a_mode_that_works")):
        for rank in ranks:
            assert rank["guarded"] == rank["plain"], name
            assert rank["guarded"]["mode"] == "bf16", name
        assert ranks[0]["guarded"]["weights"] == ranks[1]["guarded"]["weights"], name


def test_a_later_micro_batch_that_fails_on_one_rank_leaves_the_earlier_ones_out_on_all(
    process_group: ProcessGroup,
) -> None:
    results = process_group.run("preflight_scenarios.a_later_micro_batch_fails_on_one_rank")
    expected = {"mode": "fp32", "as the rest": True}
    assert results == [{"forward": expected, "backward": expected}] * 2


def test_the_first_step_in_a_mode_is_ddps_whatever_a_script_does_around_it(process_group: ProcessGroup) -> None:
    for name, ranks in _of_each(process_group.run("preflight_scenarios.what_scripts_do_around_a_trial")):
        for rank in ranks:
            assert rank["guarded"] == rank["plain"], name


def test_a_rank_that_fails_before_ddps_forward_pass_in_the_first_step_of_a_static_graph_meets_the_others(
    process_group: ProcessGroup,
) -> None:
    results = process_group.run("preflight_scenarios.static_graph_and_buffers")
    assert results[0]["steps"] == results[1]["steps"] == 4
    assert results[0]["weights"] == results[1]["weights"]


def test_a_rank_that_leaves_a_batch_out_meets_the_others_again(process_group: ProcessGroup) -> None:
    for name, ranks in _of_each(process_group.run("preflight_scenarios.leaves_out_batches")):
        assert ranks[0]["weights"] == ranks[1]["weights"], name
        for number, rank in enumerate(ranks):
            assert (rank["mode"], rank["refused"], rank["left_out"]) == ("bf16", [], 2 * number), name


def test_a_validation_with_gradients_changes_nothing(process_group: ProcessGroup) -> None:
    assert (
        process_group.run("preflight_scenarios.validates_with_gradients")
        == [{"mode": "bf16", "same 1": True, "same 2": True}] * 2
    )


def test_a_batch_that_its_loss_consumes_is_there_again_on_all_ranks(process_group: ProcessGroup) -> None:
    expected = {"same": True, "mode": "fp32", "used up": 0}
    assert (
        process_group.run("preflight_batch_scenarios.consumes_its_batch")
        == [{"forward": expected, "backward": expected}] * 2
    )


def test_all_ranks_refuse_a_mode_whose_trial_used_up_the_batch(process_group: ProcessGroup) -> None:
    ranks: list[dict[str, Any]] = process_group.run("preflight_batch_scenarios.uses_its_batch_up")
    assert [(rank["used up"], rank["mode"]) for rank in ranks] == [(1, "fp32")] * 2
    assert ranks[0]["weights"] == ranks[1]["weights"]
    (message,) = ranks[0]["refused"]
    assert "rank 1: RuntimeError in its forward pass (no such kernel); computed again in fp32" in message
    assert "rank 0: IndexError in its forward pass" in message


def test_a_mode_that_one_rank_fails_in_for_a_moment_is_entered_by_all(process_group: ProcessGroup) -> None:
    for name, ranks in _of_each(process_group.run("preflight_batch_scenarios.fails_for_a_moment")):
        for rank in ranks:
            assert rank["passed"] == rank["plain"], name
            assert (rank["passed"]["mode"], rank["passed"]["left"], rank["passed"]["refused"]) == ("bf16", 0, []), name
        assert ranks[0]["passed"]["weights"] == ranks[1]["passed"]["weights"], name


def test_no_rank_tries_again_where_one_changes_weights(process_group: ProcessGroup) -> None:
    ranks: list[dict[str, Any]] = process_group.run("preflight_batch_scenarios.one_rank_moves_weights")
    assert [(rank["in bf16"], rank["mode"]) for rank in ranks] == [(1, "fp32")] * 2
    assert ranks[0]["weights"] == ranks[1]["weights"]
    (message,) = ranks[0]["refused"]
    assert "rank 1: RuntimeError in its forward pass (no such kernel); the pass had changed weights" in message
