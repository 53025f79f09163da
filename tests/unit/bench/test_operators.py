"""What a benchmark's operators say of themselves."""

from lab.bench.operators import Operator, allocator
from lab.cluster.ports import free_ports


def test_an_operator_that_does_not_answer_does_not_lead() -> None:
    operator = object.__new__(Operator)  # without its process
    operator._port = free_ports(1)[0]
    assert not operator.leads


def test_operators_are_measured_with_the_allocator_of_their_image() -> None:
    assert {"MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} <= allocator().keys()
