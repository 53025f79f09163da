"""What is known of hardware, from its makers' data sheets."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Known:
    """One kind of hardware."""

    name: str
    recommended: str
    why: str
    peak_tflops: dict[str, float]
    """Dense peak by format, FP32 accumulation, from the data sheet; never the figure for sparse matrices."""


KNOWN = (
    Known("V100", "fp16", "first tensor cores: FP16 only, so with loss scaling; no BF16, no TF32",
          {"fp32": 15.7, "fp16": 125}),
    Known("T4", "fp16", "FP16 only; little power and bandwidth: measure before you believe the peak",
          {"fp32": 8.1, "fp16": 65}),
    Known("A100", "bf16", "BF16 as fast as FP16 and no loss scaling", {"fp32": 19.5, "tf32": 156, "bf16": 312, "fp16": 312}),
    Known("RTX 30", "bf16", "as the A100, at half the rate with FP32 sums (RTX 3090)",
          {"fp32": 35.6, "tf32": 35.6, "bf16": 71, "fp16": 71}),
    Known("RTX 40", "bf16", "as RTX 30; FP8 is there, for inference first (RTX 4090)",
          {"fp32": 82.6, "tf32": 82.6, "bf16": 165, "fp16": 165, "fp8": 330}),
    Known("H100", "bf16", "BF16; FP8 for large matrix products, after it was proven on the model (SXM)",
          {"fp32": 67, "tf32": 495, "bf16": 989, "fp16": 989, "fp8": 1979}),
    Known("H200", "bf16", "computes as the H100; more and faster memory",
          {"fp32": 67, "tf32": 495, "bf16": 989, "fp16": 989, "fp8": 1979}),
    Known("B200", "bf16", "BF16; FP8 (MXFP8) for large matrix products, after it was proven on the model (HGX)",
          {"fp32": 75, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500}),
    Known("L4", "bf16", "little power and bandwidth: measure before you believe the peak; FP8 for inference first",
          {"fp32": 30.3, "tf32": 60, "bf16": 121, "fp16": 121, "fp8": 242}),
    Known("L40S", "bf16", "BF16; FP8 for large matrix products, after it was proven on the model",
          {"fp32": 91.6, "tf32": 183, "bf16": 362, "fp16": 362, "fp8": 733}),
    Known("RTX 50", "bf16", "as RTX 40 (RTX 5090)",
          {"fp32": 104.8, "tf32": 104.8, "bf16": 209.5, "fp16": 209.5, "fp8": 419}),
    Known("MI300", "bf16", "BF16 as fast as FP16; its FP8 formats (FNUZ) are not those of train --fp8 (MI300X)",
          {"fp32": 163.4, "tf32": 653.7, "bf16": 1307, "fp16": 1307, "fp8": 2615}),
    Known("CPU with AMX", "bf16", "matrix units for BF16; FP16 only on those with AMX-FP16. Small models gain nothing", {}),
)  # fmt: skip


def known(device_name: str) -> Known | None:
    """The entry for a device, by the name that its driver gives it; None for one that is not in the table."""
    text = device_name.upper().replace("GEFORCE ", "")
    numbered = re.search(r"\bRTX (30|40|50)[5-9]0\b", text)
    family = f"RTX {numbered.group(1)}" if numbered else None
    # Longest first, and as a whole word: an L40S is no L4.
    for item in sorted(KNOWN, key=lambda item: -len(item.name)):
        if item.name == family or re.search(rf"\b{re.escape(item.name.upper())}[AX]?\b", text):
            return item
    return None
