"""The webhook's server and its certificates, for tests that speak TLS."""

from __future__ import annotations

import ssl
import time

from precision_operator.settings import AdmissionSettings
from precision_operator.webhook.keeper import CertificateKeeper
from tests.support.fake_kube import FakeKube

NAMESPACE = "precision-system"
SERVICE = AdmissionSettings().service
NAME = f"{SERVICE}.{NAMESPACE}.svc"


class WallClock:
    """Now, and no waiting: certificates are checked against the machine's time."""

    def time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """CLOCK_MONOTONIC."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Never called by a single look."""
        raise AssertionError(f"nothing waits {seconds} s here")


async def kept(kube: FakeKube) -> CertificateKeeper:
    """A leader's certificates, made and loaded."""
    keeper = CertificateKeeper(
        kube, WallClock(), settings=AdmissionSettings(), namespace=NAMESPACE, leading=lambda: True
    )
    await keeper.look()
    assert keeper.loaded
    return keeper


def trusting(keeper: CertificateKeeper) -> ssl.SSLContext:
    """A client's context that trusts what API servers are told to trust."""
    return ssl.create_default_context(cadata=keeper.trusted.decode())
