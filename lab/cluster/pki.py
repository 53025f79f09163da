"""Keys and certificates of a cluster that lives for hours: one authority, one key type, no ceremony."""

from __future__ import annotations

import base64
import secrets
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.process import run

_DAYS = "30"


@dataclass(frozen=True)
class Certificate:
    """A key and the certificate for it, as files."""

    key: Path
    certificate: Path

    def serving(self) -> ssl.SSLContext:
        """A server's context that presents it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        return context


class Authority:
    """Signs the certificates of one cluster."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.certificate = directory / "ca.crt"
        self._key = directory / "ca.key"

    def ensure(self) -> None:
        """Make the authority, and the key pair for ServiceAccount tokens, unless they exist."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.certificate.exists() and self.service_account_key.exists():
            return
        _new_key(self._key)
        _openssl(
            "req", "-x509", "-new", "-key", self._key, "-subj", "/CN=genesis-precision-lab", "-days", _DAYS,
            "-addext", "keyUsage=critical,keyCertSign,digitalSignature", "-out", self.certificate,
        )  # fmt: skip
        _new_key(self.service_account_key)
        _openssl("pkey", "-in", self.service_account_key, "-pubout", "-out", self.service_account_public_key)

    @property
    def service_account_key(self) -> Path:
        """Signs ServiceAccount tokens."""
        return self._directory / "service-account.key"

    @property
    def service_account_public_key(self) -> Path:
        """Verifies ServiceAccount tokens."""
        return self._directory / "service-account.pub"

    def issue(self, name: str, user: str, *, groups: Sequence[str] = (), addresses: Sequence[str] = ()) -> Certificate:
        """Issue a certificate for a user (a client) or for addresses (a server), kept under `name`; an existing one is
        used.
        """
        issued = Certificate(self._directory / f"{name}.key", self._directory / f"{name}.crt")
        if issued.certificate.exists():
            return issued
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={user}"
        extensions = self._directory / f"{name}.ext"
        alternatives = ",".join(("IP:" if _is_address(word) else "DNS:") + word for word in addresses)
        extensions.write_text(
            "keyUsage=critical,digitalSignature\nextendedKeyUsage=clientAuth,serverAuth\n"
            + (f"subjectAltName={alternatives}\n" if alternatives else "")
        )
        request = self._directory / f"{name}.csr"
        _new_key(issued.key)
        _openssl("req", "-new", "-key", issued.key, "-subj", subject, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-days", _DAYS,
            "-set_serial", str(secrets.randbits(63)), "-extfile", extensions, "-out", issued.certificate,
        )  # fmt: skip
        return issued


def encoded(path: Path) -> str:
    """Return a file as base64, as kubeconfigs hold it."""
    return base64.b64encode(path.read_bytes()).decode()


def _new_key(path: Path) -> None:
    path.touch(mode=0o600)
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", path)


def _openssl(*arguments: str | Path) -> None:
    run(["openssl", *arguments], timeout=30)


def _is_address(word: str) -> bool:
    return word.replace(".", "").isdigit() or ":" in word
