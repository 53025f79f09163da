"""Which of our tests asks what each of torch's own tests of GradScaler asks, or why none does.

By the names of torch's test/test_torch.py, test/test_cuda.py and test/test_cuda_multigpu.py as of 2025. Those of sharded
scalers (test/distributed) are left out: sharded parameters are refused.
"""

from __future__ import annotations

from pathlib import Path

import pytest

_PORTED = "test_scaler_ported"
OURS: dict[str, tuple[str, ...]] = {
    "test_pickle_gradscaler": (f"{_PORTED}.test_a_pickled_scaler_goes_on_where_it_was_with_its_own_settings",),
    "test_grad_scaling_unscale": (
        f"{_PORTED}.test_gradients_of_every_layout_and_type_are_unscaled",
        f"{_PORTED}.test_one_bad_number_in_any_of_them_is_found",
    ),
    "test_grad_scaling_update_scale": (
        f"{_PORTED}.test_the_scale_grows_after_its_interval_and_backs_off_after_an_overflow",
        "test_scaler.test_equals_torch_grad_scaler_at_floor_0_and_hysteresis_1",
    ),
    "test_grad_scaling_unscale_sparse": (
        f"{_PORTED}.test_fp16_gradients_and_sparse_ones_are_refused_before_the_first_step",
        "test_models.test_a_sparse_gradient_of_a_function_is_refused_at_the_first_step_with_what_to_pass",
    ),
    "test_grad_scaling_state_dict": (
        f"{_PORTED}.test_a_loaded_state_brings_the_scale_and_leaves_the_settings",
        "test_scaler.test_state_round_trip_and_refusal",
    ),
    "test_grad_scaling_autocast": (
        f"{_PORTED}.test_fp16_training_equals_autocast_with_torchs_scaler_bit_for_bit",
        f"{_PORTED}.test_fp16_training_comes_close_to_fp32_training_that_leaves_the_overflow_out",
        f"{_PORTED}.test_a_scaler_that_is_pickled_after_every_step_scales_as_one_that_is_not",
        f"{_PORTED}.test_a_trainer_that_is_not_enabled_scales_nothing",
    ),
    "test_params_invalidated_with_grads_invalidated_between_unscale_and_step": (
        f"{_PORTED}.test_gradients_that_are_broken_after_unscaling_reach_the_weights",
    ),
    "test_grad_scale_will_not_overflow": (f"{_PORTED}.test_the_scale_never_becomes_infinite",),
    "test_grad_scaling_clipping": (f"{_PORTED}.test_clipping_with_scaling_is_clipping_without",),
    "test_grad_scaling_clipping_separate_unscale": (f"{_PORTED}.test_clipping_with_scaling_is_clipping_without",),
    "test_grad_scaling_penalty": (f"{_PORTED}.test_a_gradient_penalty_with_scaling_is_one_without",),
    "test_grad_scaling_accumulation": (f"{_PORTED}.test_accumulated_gradients_are_unscaled_once",),
    "test_grad_scaling_multiple": (
        f"{_PORTED}.test_two_optimizers_may_share_a_scale_and_skip_each_by_itself",
        "test_models.test_an_overflow_in_one_network_leaves_the_other_one_and_its_scale_alone",
    ),
    "test_grad_scaler_pass_itself": (
        f"{_PORTED}.test_an_optimizer_that_reads_found_inf_is_given_it_with_gradients_that_are_unscaled_already",
    ),
    "test_grad_scaling_autocast_fused_optimizers": (
        f"{_PORTED}.test_a_fused_kernel_comes_to_what_the_one_that_is_not_fused_does",
        "test_models.test_fused_sgd_with_momentum_survives_an_overflow_in_the_first_step",
    ),
    "test_grad_scaler_with_preset_grad_scale": (
        f"{_PORTED}.test_a_gradient_scale_that_a_script_sets_on_its_optimizer_divides_once_more_for_one_step",
    ),
}
"""By the name of torch's test: module and name of ours."""
NOT_PORTED = {
    "test_params_invalidated_with_grads_invalidated_and_graph_partition": "the step of the optimizer is not compiled",
    "test_grad_scaler_deprecated_warning": "there is no older name",
    "test_graph_grad_scaling": "a trainer's step is not captured in a CUDA graph",
    "test_graph_scaling_fused_optimizers": "a trainer's step is not captured in a CUDA graph",
    "test_grad_scaling_device_as_key": "a trainer has one model on one device",
    "test_grad_scaling_scale": "one loss a step, on one device",
    "test_grad_scaling_multigpu": "a trainer has one model on one device",
}
"""By the name of torch's test: why."""


@pytest.mark.parametrize("name", OURS)
def test_what_torch_asks_of_its_scaler_is_asked_of_ours(name: str) -> None:
    assert name not in NOT_PORTED
    for ours in OURS[name]:
        module, function = ours.split(".")
        assert f"\ndef {function}(" in Path(__file__).with_name(f"{module}.py").read_text(encoding="utf-8"), ours
