"""How patient the sentinel is: its settings, checked."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelConfig:
    """How patient the sentinel is. All spans are in steps. Refuses wrong values with ConfigError."""

    enabled: bool = True
    """False: nothing is watched and nothing done; the scaler skips and backs off as ever."""
    window_steps: int = 64
    """Steps a sample, [8, 65536]."""
    patience_windows: int = 2
    """Bad windows in a row until the level rises, [1, 1024]. 2: the burst in which a new scale is found is not trouble."""
    overflow_ratio: float = 0.08
    """Share of skipped FP16 steps in a window that is trouble, (0, 1]."""
    dwell_steps: int = 1000
    """Clean steps until the level falls by one, [window_steps, 2^31)."""
    max_dwell_steps: int = 64_000
    """Relapses double the dwell up to this, [dwell_steps, 2^31)."""
    diverged_steps: int = 50
    """Non-finite FP32 steps in a row that mean diverged weights, [1, 2^31)."""
    max_pins: int = 4
    """Modules pinned to FP32 at most, [0, 1023]; 0: the level is left out."""
    bf16_available: bool = True
    """Whether BF16 is a level here; without it FP16 falls back to FP32."""
    probe_steps: int = 500
    """A step in so many measures the activation gradients, [16, 2^31)."""
    shadow_steps: int = 2000
    """One good micro-batch in so many steps is computed in FP32 as well, [0, 2^31); 0: none."""

    def __post_init__(self) -> None:
        """Check every field; the first wrong one raises ConfigError."""
        limits = {
            "window_steps": (8, 65536), "patience_windows": (1, 1024), "overflow_ratio": (1e-6, 1),
            "dwell_steps": (self.window_steps, 2**31 - 1), "max_dwell_steps": (self.dwell_steps, 2**31 - 1),
            "diverged_steps": (1, 2**31 - 1), "max_pins": (0, 1023), "probe_steps": (16, 2**31 - 1),
            "shadow_steps": (0, 2**31 - 1),
        }  # fmt: skip
        for field, (low, high) in limits.items():
            value: float = getattr(self, field)
            if not low <= value <= high:
                raise ConfigError(f"sentinel {field}={value!r}: expected a number in [{low}, {high}]; correct it")
