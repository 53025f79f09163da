"""Precision modes and their order of safety."""

from enum import StrEnum


class Mode(StrEnum):
    """What a workload trains in. FP16 and BF16 mean the mixed modes: parameters stay FP32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"

    __hash__ = str.__hash__
    """As its value: see ``Signal``."""

    @property
    def reduced(self) -> bool:
        """Less than FP32."""
        return self is not Mode.FP32


_SAFETY = {Mode.FP32: 2, Mode.BF16: 1, Mode.FP16: 0}


def safety(mode: Mode) -> int:
    """Higher: safer."""
    return _SAFETY[mode]


def is_safer(mode: Mode, than: Mode) -> bool:
    """Whether ``mode`` is strictly safer: FP32 > BF16 > FP16."""
    return _SAFETY[mode] > _SAFETY[than]


def at_least_as_safe(mode: Mode, as_: Mode) -> bool:
    """Whether ``mode`` needs no rollback to be as safe as ``as_``."""
    return _SAFETY[mode] >= _SAFETY[as_]


def parse_mode(text: str | None) -> Mode | None:
    """The mode named by ``text`` in any case, or None where it names none."""
    try:
        return Mode((text or "").strip().lower())
    except ValueError:
        return None
