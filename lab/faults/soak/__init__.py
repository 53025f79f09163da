"""A soak on the full cluster: random kills, while a fleet of real trainers is promoted, breaks and is rolled back.

May import all of the lab.
"""

from lab.faults.soak.runner import SoakResult, run
from lab.faults.soak.scene import require_no_cluster

__all__ = ["SoakResult", "require_no_cluster", "run"]
