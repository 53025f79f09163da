"""What the demo applies is what it says it applies."""

from lab.demo.story import POLICY


def test_demo_policy_has_fifteen_lines_at_most() -> None:
    assert len(POLICY.read_text().splitlines()) <= 15
