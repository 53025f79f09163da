"""Alerts wake the evaluation of the policies that they concern; polling goes on without them."""

from collections.abc import Callable, Iterable

from precision_operator.shell.inventory import Inventory, PolicyKey
from precision_operator.signals.alertmanager import Alert


class Alerts:
    """Turns alerts into policies to look at now."""

    def __init__(self, inventory: Inventory, *, leading: Callable[[], bool], wake: Callable[[PolicyKey], None]) -> None:
        """``wake``: evaluate this policy anew, soon."""
        self._inventory = inventory
        self._leading = leading
        self._wake = wake

    def receive(self, alerts: Iterable[Alert]) -> int | None:
        """Wake whom the alerts concern; how many policies that were, None where another replica leads."""
        if not self._leading():
            return None
        concerned = {key for alert in alerts for key in self.concerned(alert)}
        for key in concerned:
            self._wake(key)
        return len(concerned)

    def concerned(self, alert: Alert) -> frozenset[PolicyKey]:
        """The named policy; else those of the named workload or pod; else all of the namespace."""
        known = self._inventory.policy_keys_in(alert.namespace)
        if alert.policy:
            return frozenset({PolicyKey(alert.namespace, alert.policy)} & known)
        if alert.workload:
            return self._inventory.named(alert.namespace, alert.workload)
        return self._inventory.concerned_by_pod(alert.namespace, alert.pod) if alert.pod else known
