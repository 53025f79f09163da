"""The message between two real ranks over gloo, in a gradient bucket that a script treats in its own way."""

from __future__ import annotations

import pytest

from tests.support.training.process_group import ProcessGroup


def test_requests_arrive_whole_in_a_bucket_that_is_compressed_to_bf16(process_group: ProcessGroup) -> None:
    first, second = process_group.run("bucket_scenarios.compressed_to_bf16")
    assert first == second
    assert first["states"] == [
        *[["fp32", 0]] * 3,
        *[["bf16", 303]] * 3,
        *[["fp32", 304]] * 3,
        *[["fp16", 2**49 + 305]] * 2,
    ]
    assert first["tuned"] == pytest.approx([1024 * 0.7, 777])
    assert first["unread"] == []


def test_a_damaged_message_changes_nothing_and_is_told_once(process_group: ProcessGroup) -> None:
    first, second = process_group.run("bucket_scenarios.damaged_for_some_steps")
    assert first["states"] == second["states"] == [["fp32", 0]] * 6 + [["bf16", 47]] * 2
    assert first["print"] == second["print"]
    assert (first["unread"], second["unread"]) == (["Damaged"], [])


def test_a_message_that_is_not_averaged_is_read_by_no_rank_and_that_is_told_once(process_group: ProcessGroup) -> None:
    first, second = process_group.run("bucket_scenarios.not_averaged_for_some_steps")
    for way, found in first.items():
        # Asked for before step 1; the first step that is averaged again is step 4.
        expected = [["fp32", 0, False]] * 4 + [["fp32", 1, True]] * 2
        assert found["states"] == second[way]["states"] == expected, way
        assert (found["unread"], second[way]["unread"]) == (["NotAveraged"], []), way


def test_of_four_ranks_that_average_in_pairs_none_reads_a_message(four_ranks: ProcessGroup) -> None:
    for rank, result in enumerate(four_ranks.run("bucket_scenarios.averaged_in_pairs")):
        assert result["states"] == [["fp32", 0]] + [["fp32", 1]] * 5
        assert result["unread"] == ([] if rank else ["NotAveraged"])


def test_four_ranks_of_which_one_has_less_input_enter_no_mode(four_ranks: ProcessGroup) -> None:
    for result in four_ranks.run("bucket_scenarios.uneven_inputs"):
        for short in (1, 0):
            found = result[f"short: {short}"]
            assert found["states"] == [["fp32", 0, False]] * 3 + [["fp32", 0, True]], short
            assert found["unread"] == ["UnevenInputs"], short


def test_with_uneven_inputs_training_goes_on_and_no_mode_is_entered_that_some_would_miss(
    process_group: ProcessGroup,
) -> None:
    for result in process_group.run("bucket_scenarios.uneven_inputs"):
        for short in (1, 0):
            found = result[f"short: {short}"]
            assert found["same"], short
            assert found["states"] == [["fp32", 0, False]] * 3 + [["fp32", 0, True]], short
            assert found["unread"] == ["UnevenInputs"], short
