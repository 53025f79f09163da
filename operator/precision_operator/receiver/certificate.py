"""The receiver's certificate, from two files that are read again: it is renewed without a restart."""

import ssl
from pathlib import Path

from precision_operator.errors import ConfigurationError


class CertificateFiles:
    """A server certificate and its key, as PEM."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self._files = certificate, key
        self._loaded: tuple[bytes, ...] = ()
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        """New handshakes use what was loaded last."""

    def look(self) -> None:
        """Load the files where they changed; what cannot be used leaves the context as it was.

        Raises:
            ConfigurationError: a file is absent, or they are no certificate with its key.
        """
        try:
            found = tuple(path.read_bytes() for path in self._files)
            if found != self._loaded:
                self.context.load_cert_chain(*self._files, password="")  # else it would ask on the terminal
                self._loaded = found
        except OSError as error:  # SSLError is one
            certificate, key = self._files
            raise ConfigurationError(
                f"{certificate}, {key}: expected a certificate and its key, found: {error}; mount a Secret of type "
                "kubernetes.io/tls there"
            ) from error
