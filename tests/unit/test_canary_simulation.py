"""The figures of docs/canary-rollback.md come from the functions that ship."""

import numpy as np
import pytest

from lab.canary import NONE, SHORT, SOME, Case, differences, judged, main
from precision_operator.api.canary import Verdict


@pytest.mark.parametrize("case", NONE[:5], ids=lambda case: case.text)
def test_what_is_no_difference_is_not_called_one(case: Case) -> None:
    dice = np.random.default_rng(1)
    called = sum(judged(differences(case, dice, SHORT))[0] is not Verdict.OPEN for _ in range(60))
    assert called <= 3


@pytest.mark.parametrize("case", SOME[:3], ids=lambda case: case.text)
def test_what_helps_is_found_within_the_default_window(case: Case) -> None:
    dice = np.random.default_rng(1)
    assert all(judged(differences(case, dice, SHORT))[0] is Verdict.BETTER for _ in range(20))


def test_the_command_prints_a_row_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replications", "2"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert len(rows) == len(NONE) + len(SOME) + 2
