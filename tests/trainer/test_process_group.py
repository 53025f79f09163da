"""Agreement of two and of four real ranks over gloo."""

from __future__ import annotations

import torch

from precision_trainer.step.weights import LOOK_AFTER_STEPS
from tests.support.training.process_group import ProcessGroup, Result


def test_parameters_stay_identical_through_every_switch(process_group: ProcessGroup) -> None:
    first, second = process_group.run("switch_through_all_modes")
    assert first["prints"] == second["prints"]
    assert first["changes"] == second["changes"]
    assert [change[1:] for change in first["changes"]] == [
        ["fp16", "fp32", 1],
        ["fp32", "bf16", 2],
        ["bf16", "fp16", 3],
    ]
    assert first["dtypes"] == ["torch.float32"]
    assert not any("telemetry" in name for name in first["names"])


def test_request_is_applied_within_two_steps_of_the_boundary_that_read_it(process_group: ProcessGroup) -> None:
    for result in process_group.run("switch_through_all_modes"):
        for read_at, change in zip((4, 8, 12), result["changes"], strict=True):
            assert 1 <= change[0] - read_at <= 2


def test_scaler_is_frozen_while_another_mode_trains(process_group: ProcessGroup) -> None:
    scales = process_group.run("switch_through_all_modes")[0]["scales"]
    assert set(scales) == {1024.0}


def test_loss_scale_and_growth_interval_change_once_on_both_ranks_at_one_boundary(process_group: ProcessGroup) -> None:
    _check_tuning(process_group.run("tune_the_loss_scale"))


def _check_tuning(results: list[Result]) -> None:
    assert all(result == results[0] for result in results)
    assert results[0]["changes"] == [[4, "fp16", 1], [7, "fp16", 2], [10, "bf16", 3]]
    third = float(torch.tensor(1024.0) * (1 / 3))
    tenth = float(torch.tensor(third) * 0.3)
    # After the second request the scale grows every 2 good steps; the third one, to BF16, leaves it as it is.
    assert results[0]["scales"] == [1024.0] * 4 + [third] * 3 + [tenth] * 2 + [tenth * 2] * 4
    assert results[0]["state"]["growth_interval"] == 2.0


def test_request_inside_an_accumulation_window_waits_for_the_boundary(process_group: ProcessGroup) -> None:
    for result in process_group.run("request_inside_a_window"):
        assert result["ends"] == [False, False, False, True] * 4
        assert result["step"] == 4
        assert result["refused"] == 12
        # Offered at micro-batch 5: read at the boundary before 8, carried by 8 to 11, in force from 12 on.
        assert result["modes"] == ["fp32"] * 12 + ["bf16"] * 4


def test_ranks_speak_once_a_step_however_many_micro_batches_it_has(process_group: ProcessGroup) -> None:
    first, second = process_group.run("reduce_once_a_step")
    assert first == second
    assert first["reduced"] == [0, 1, 2]


def test_request_arrives_although_the_carrying_step_is_nan_on_one_rank(process_group: ProcessGroup) -> None:
    for result in process_group.run("nan_on_one_rank"):
        assert result["unchanged"]
        assert result["scale_ratio"] == 0.5
        assert result["generation"] == 2**40 + 12345
        assert result["checkpoint"]
        assert result["overflow"]
        assert not result["nonfinite"]
        assert result["stats"]["overflow_steps"] == 1


def test_overflow_on_one_rank_is_skipped_on_all(process_group: ProcessGroup) -> None:
    first, second = process_group.run("overflow_on_one_rank")
    assert first == second
    assert first["scale"] == 512.0
    assert first["stats"]["overflow_steps"] == 1
    assert first["stats"]["training_steps"] == 6


def test_a_stop_asked_of_one_rank_stops_all_at_one_boundary(process_group: ProcessGroup) -> None:
    assert [result["stopped_at"] for result in process_group.run("stop_on_one_rank")] == [4, 4]


def test_ranks_started_differently_fail_with_the_setting_named(process_group: ProcessGroup) -> None:
    for result in process_group.run("different_settings"):
        assert "batch_size: rank 0 has 8, rank 1 has 9" in result["error"]
        assert "seed" not in result["error"]


def test_ranks_in_different_modes_are_noticed(process_group: ProcessGroup) -> None:
    for result in process_group.run("different_modes"):
        assert "did not compute this step in one mode" in result["error"]


def test_ranks_that_start_in_different_modes_are_refused_at_construction(process_group: ProcessGroup) -> None:
    for result in process_group.run("different_start_modes"):
        assert "ranks disagree on precision_mode: rank 0 has" in result["error"]


def test_exchange_carries_values_of_different_length(process_group: ProcessGroup) -> None:
    for result in process_group.run("exchange_values"):
        assert [len(one["text"]) for one in result["all"]] == [0, 1000]


# --- four ranks --------------------------------------------------------------------------------------------------------


def test_four_ranks_hold_the_same_parameters_through_every_switch(four_ranks: ProcessGroup) -> None:
    results = four_ranks.run("switch_through_all_modes")
    assert len({tuple(result["prints"]) for result in results}) == 1
    assert all(result["changes"] == results[0]["changes"] for result in results)
    assert [change[2] for change in results[0]["changes"]] == ["fp32", "bf16", "fp16"]


def test_four_ranks_change_the_loss_scale_at_one_boundary(four_ranks: ProcessGroup) -> None:
    _check_tuning(four_ranks.run("tune_the_loss_scale"))


def test_of_requests_that_come_at_once_the_newest_wins_and_none_is_lost(four_ranks: ProcessGroup) -> None:
    results = four_ranks.run("late_and_twice")
    assert all(result == results[0] for result in results)
    assert results[0]["modes"] == [["fp32", 0]] * 3 + [["bf16", 6]] + [["fp16", 7]] * 4


def test_request_inside_a_window_of_four_ranks_waits_for_the_boundary(four_ranks: ProcessGroup) -> None:
    for result in four_ranks.run("request_inside_a_window"):
        assert result["modes"] == ["fp32"] * 12 + ["bf16"] * 4


def test_an_overflow_in_one_ranks_forward_pins_its_layers_on_all_ranks_at_one_boundary(
    four_ranks: ProcessGroup,
) -> None:
    results = four_ranks.run("activation_overflow_on_one_rank")
    assert all(result == results[0] for result in results)
    assert [move[1:] for move in results[0]["seen"]] == [
        ["pin", "ForwardOverflow", "0"],
        ["pin", "ForwardOverflow", "2"],
    ]
    assert results[0]["tail"] == [False] * 8
    assert (results[0]["mode"], results[0]["pinned"]) == ("fp16", ["0", "2"])


def test_poisoned_weights_of_one_rank_rewind_all_at_one_boundary(four_ranks: ProcessGroup) -> None:
    results = four_ranks.run("poisoned_weights")
    assert all(result == results[0] for result in results)
    assert len(results[0]["rewinds"]) == 1
    assert results[0]["mode"] == "fp32"


def test_without_a_sentinel_all_ranks_learn_that_one_has_weights_that_are_not_finite(
    four_ranks: ProcessGroup,
) -> None:
    results = four_ranks.run("poisoned_without_a_sentinel")
    assert results == [{"overflows": LOOK_AFTER_STEPS + 1, "nonfinite": 3}] * 4


def test_a_rank_that_dies_in_the_middle_of_a_switch_is_noticed_by_all_others(
    four_ranks: ProcessGroup,
) -> None:
    # The last test of this process group: it does not survive.
    survivors = four_ranks.run("die_in_a_switch", ranks=range(3))
    # The others ended at the step of the death, in the mode they were in: nobody flipped alone.
    # One of the three does not speak with the dead one in that step, and names it all the same.
    assert survivors == [{"lost": True, "who": "rank 3 of 4 is gone or silent", "mode": "fp32", "exit": True}] * 3
