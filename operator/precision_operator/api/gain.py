"""What precision has brought, against each workload's own FP32 baseline: what of it stands in the policy's status."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from precision_operator.api.fields import Field, Time


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure, and of how many workloads it is."""

    value: Annotated[float, Field("The figure.")]
    workloads: Annotated[int, Field("How many workloads it was measured in.", least=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What precision has brought. A figure that was measured in no workload is absent, which is not 0."""

    measured_at: Annotated[float, Time("When it was measured.")]
    workloads: Annotated[int, Field("Workloads that train in the target, or are asked to.", least=0)] = 0
    compared: Annotated[
        int, Field("Of these, the ones that could be compared with their own FP32 baseline in anything.", least=0)
    ] = 0
    speed: Annotated[
        Measured | None, Field("Samples a second as a multiple of FP32's; of several workloads the median.")
    ] = None
    memory: Annotated[
        Measured | None, Field("Peak of device memory as a multiple of FP32's; of several workloads the median.")
    ] = None
    loss: Annotated[
        Measured | None,
        Field("How far the loss lies above FP32's, as a share of it; of several workloads the median."),
    ] = None
    gpu_hours: Annotated[
        Measured | None,
        Field("GPU-hours that the work since the last FP32 baseline has saved; below 0 where training was slower."),
    ] = None
    cpu_hours: Annotated[Measured | None, Field("The same of pods that train on CPUs, in hours of pods.")] = None
    gpu_rate: Annotated[
        float | None,
        Field("GPU-hours that are saved in an hour at the speed that was measured.", name="gpuHoursAnHour"),
    ] = None
    cpu_rate: Annotated[float | None, Field("The same of pods that train on CPUs.", name="cpuHoursAnHour")] = None

    @property
    def figures(self) -> Mapping[str, float | None]:
        """What is measured, by name; None: it was not."""
        of = {
            "speed": self.speed,
            "memory": self.memory,
            "loss": self.loss,
            "gpu_hours": self.gpu_hours,
            "cpu_hours": self.cpu_hours,
        }
        values = {name: found.value if found is not None else None for name, found in of.items()}
        return {**values, "gpu_rate": self.gpu_rate, "cpu_rate": self.cpu_rate}

    @property
    def known(self) -> frozenset[str]:
        """Names of the figures that were measured."""
        return frozenset(name for name, value in self.figures.items() if value is not None)


NOT_MEASURED = Gain(measured_at=0.0)
"""Of a fleet of which nothing is known."""
