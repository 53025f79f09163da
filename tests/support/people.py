"""Two administrators who give commands on one policy, each with credentials of their own."""

from __future__ import annotations

from pathlib import Path

from lab.cluster import ControlPlane
from tests.support.users import PREFIX, Client, Json, custom, said


class People:
    """A namespace in which alice and bob give commands on the policy `fleet`."""

    def __init__(self, control_plane: ControlPlane, namespace: str, directory: Path) -> None:
        self.namespace = namespace
        self.path = custom(namespace, "precisionpolicies", "fleet")
        rights = ["system:masters"]
        self._clients = {
            name: Client(control_plane.user_kubeconfig(name, groups=rights), directory / name)
            for name in ("alice", "bob")
        }

    def __getitem__(self, user: str) -> Client:
        return self._clients[user]

    def create(self, user: str, body: Json) -> Json:
        """Our annotations on what was made."""
        self[user].made("POST", custom(self.namespace, "precisionpolicies"), body)
        return self.annotations()

    def annotate(self, user: str, **values: str | None) -> Json:
        """Set annotations, named without our prefix and with `_` for `-`; None removes one."""
        return self.patch(user, {"metadata": {"annotations": _named(values)}})

    def patch(self, user: str, body: Json) -> Json:
        """Our annotations after a merge patch that must be accepted."""
        self[user].made("PATCH", self.path, body)
        return self.annotations()

    def refused(self, user: str, body: Json | None = None, **values: str | None) -> str:
        """What the refusal of this patch says; fails where it is accepted."""
        answer = self[user]("PATCH", self.path, body or {"metadata": {"annotations": _named(values)}})
        assert answer.status_code == 403, said(answer)
        return said(answer)

    def annotations(self) -> Json:
        """Ours, without the prefix."""
        found = self["alice"].made("GET", self.path)["metadata"].get("annotations", {})
        return {key.removeprefix(PREFIX): value for key, value in found.items() if key.startswith(PREFIX)}

    def close(self) -> None:
        """End their connections."""
        for client in self._clients.values():
            client.close()


def _named(values: dict[str, str | None]) -> Json:
    return {PREFIX + name.replace("_", "-"): value for name, value in values.items()}
