"""A real Kubernetes: its control plane in seconds, and a node with containers where the machine allows it."""

from lab.cluster.control_plane import ControlPlane
from lab.cluster.full import Cluster
from lab.cluster.kubectl import Kubectl

__all__ = ["Cluster", "ControlPlane", "Kubectl"]
