"""Which replicas of a test's operators the API server sends new pods to."""

from __future__ import annotations

from dataclasses import dataclass

from lab.cluster import Kubectl
from lab.cluster.webhook import publish, serving_port, withdraw
from lab.waiting import wait_for
from tests.support.cluster_scene import Operators


@dataclass
class Endpoints:
    """The endpoints of the webhook's Service, one slice for each replica."""

    kubectl: Kubectl
    operators: Operators

    def port(self, replica: str) -> int:
        """Where a replica says that it serves admission."""

        def serving() -> int | None:
            return serving_port((self.operators.directory / f"{replica}.log").read_text())

        return wait_for(serving, what=f"{replica} to serve admission", seconds=60, found=self.operators.logs)

    def add(self, replica: str) -> None:
        """It is ready."""
        publish(self.kubectl, replica, self.port(replica))

    def remove(self, replica: str) -> None:
        """It is ready no more; harmless where it never was."""
        withdraw(self.kubectl, replica)

    def clear(self) -> None:
        """No replica is ready."""
        for replica in self.operators.running:
            self.remove(replica)
