"""The one codec: what it cannot read is the default, and what it writes it reads again."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import pytest

from precision_operator.api.codec import decode, encode, entries
from precision_operator.api.fields import Duration, Field, Time, Via
from precision_operator.api.selector import Requirement, parse_selector
from precision_operator.api.spec import PolicySpec, parse_spec
from precision_operator.api.wire import duration_seconds, format_duration


class Colour(StrEnum):
    RED = "Red"
    BLUE = "Blue"


AS_COLOUR = Via(Colour, read=lambda found: found is Colour.RED, write=lambda held: Colour.RED if held else Colour.BLUE)


@dataclass(frozen=True, slots=True)
class Inner:
    name: Annotated[str, Field()]
    size: Annotated[int, Field()] = 3


@dataclass(frozen=True, slots=True)
class Outer:
    colour: Annotated[Colour, Field()] = Colour.RED
    wait_seconds: Annotated[float, Duration(name="spec.wait")] = 90.0
    at: Annotated[float | None, Time()] = None
    level: Annotated[float | None, Field()] = 0.5
    colours: Annotated[tuple[Colour, ...], Field()] = (Colour.BLUE,)
    inner: Annotated[tuple[Inner, ...], Field()] = ()
    lone: Annotated[Inner | None, Field()] = None
    held: Annotated[bool, Field(via=AS_COLOUR)] = True
    counts: Annotated[dict[str, int], Field()] = field(default_factory=dict)
    private: int = 7
    """Not on the wire."""


def test_the_name_on_the_wire_is_the_attributes_in_camel_case_or_a_path() -> None:
    assert [".".join(entry.path) for entry in entries(Outer)][:3] == ["colour", "spec.wait", "at"]
    assert encode(Outer()) == {
        "colour": "Red",
        "spec": {"wait": "90s"},
        "level": 0.5,
        "colours": ["Blue"],
        "held": "Red",
    }


@pytest.mark.parametrize("wrong", [None, 7, 7.5, "x", True, [], {}, [7], {"name": 7}, {"wait": 7}])
def test_a_wrong_type_is_the_default(wrong: object) -> None:
    names = ("colour", "spec", "at", "inner", "lone", "held")
    found = decode(dict.fromkeys(names, wrong), Outer())
    assert (found.colour, found.wait_seconds, found.at, found.lone, found.held) == (Colour.RED, 90.0, None, None, True)
    assert found.inner == ()


def test_null_is_none_where_a_field_may_be_none_and_the_default_elsewhere() -> None:
    found = decode({"level": None, "colour": None}, Outer())
    assert (found.level, found.colour) == (None, Colour.RED)


def test_an_item_that_lacks_what_it_needs_is_left_out() -> None:
    found = decode({"inner": [{"size": 4}, {"name": "a", "size": "many"}, 7]}, Outer())
    assert found.inner == (Inner("a"),)


def test_members_of_an_enumeration_stand_in_its_order_whatever_is_written() -> None:
    assert decode({"colours": ["Blue", "Green", "Red"]}, Outer()).colours == (Colour.RED, Colour.BLUE)


def test_what_does_not_stand_on_the_wire_is_the_bases() -> None:
    assert decode({"colour": "Blue"}, Outer(private=8)) == Outer(colour=Colour.BLUE, private=8)


def test_whatever_is_written_is_read_again() -> None:
    outer = Outer(Colour.BLUE, 0.5, 1e9, None, (), (Inner("a", 0),), Inner("b"), False, {"n": 0})
    assert decode(encode(outer), Outer()) == Outer(
        Colour.BLUE, 0.5, 1e9, 0.5, (Colour.BLUE,), (Inner("a", 0),), Inner("b"), False, {"n": 0}
    ), "what is empty is left out, and read as the default"


def test_the_defaults_of_a_policy_survive_the_wire() -> None:
    assert parse_spec(encode(PolicySpec())) == PolicySpec()


def test_a_requirement_that_cannot_be_read_matches_nothing() -> None:
    """Left out, the selector would match more."""
    found = parse_selector({"matchLabels": {"a": "b"}, "matchExpressions": [7, {"key": "c", "operator": ["In"]}]})
    assert found.match_expressions == (Requirement(), Requirement("c"))
    assert not found.matches({"a": "b"})


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0s"), (0.5, "500ms"), (90.0, "90s"), (60.0, "1m"), (1800.0, "30m"), (604800.0, "168h")]
)
def test_a_duration_is_written_in_the_largest_unit_that_gives_a_whole_number(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
    assert duration_seconds(text, -1.0) == seconds
