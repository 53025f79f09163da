"""What gates have in common."""

from precision_operator.core.gates import names


def test_a_list_of_names_is_sorted_and_bounded_and_says_how_many_are_left_out() -> None:
    assert names(["b", "a"]) == "a, b"
    assert names(list("gfedcba")) == "a, b, c, d, e and 2 more"
    assert names(list("edcba")) == "a, b, c, d, e"
