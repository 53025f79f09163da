"""The figures of docs/canary-rollback.md come from the functions that ship."""

import numpy as np
import pytest

from lab.canary import (
    NONE,
    ROLLOUT,
    SAME,
    SHORT,
    SOME,
    WORSE,
    Case,
    differences,
    fallings,
    judged,
    main,
    regressed_after,
)
from precision_operator.api.canary import CanaryVerdict

pytestmark = pytest.mark.slow

LOOKS, REPLICATIONS = 200, 60


@pytest.mark.parametrize("case", NONE[:5], ids=lambda case: case.text)
def test_what_is_no_difference_is_not_called_one(case: Case) -> None:
    dice = np.random.default_rng(1)
    called = sum(judged(differences(case, dice, SHORT))[0] is not CanaryVerdict.OPEN for _ in range(60))
    assert called <= 3


@pytest.mark.parametrize("case", SOME[:3], ids=lambda case: case.text)
def test_what_helps_is_found_within_the_default_window(case: Case) -> None:
    dice = np.random.default_rng(1)
    assert all(judged(differences(case, dice, SHORT))[0] is CanaryVerdict.BETTER for _ in range(20))


@pytest.mark.parametrize("case", SAME, ids=lambda case: case.text)
def test_a_rollout_canary_that_is_as_good_is_called_worse_at_no_time_more_often_than_promised(case: Case) -> None:
    dice = np.random.default_rng(1)
    called = sum(regressed_after(fallings(case, dice, LOOKS)) is not None for _ in range(REPLICATIONS))
    assert called <= ROLLOUT.false_alarm_rate * REPLICATIONS


@pytest.mark.parametrize("case", WORSE, ids=lambda case: case.text)
def test_a_rollout_canary_that_is_worse_within_the_thresholds_is_found_within_a_day(case: Case) -> None:
    dice = np.random.default_rng(1)
    assert all(regressed_after(fallings(case, dice, 288)) is not None for _ in range(10))


def test_the_command_prints_a_row_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replications", "2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == len(NONE) + len(SOME) + len(SAME) + len(WORSE) + 4
