"""Who may ask: the browser that was given the token, on a page of our own, and nobody else.

Pure: requests come as values. What is refused, and why:

- another ``Host``: a foreign name that was made to resolve to 127.0.0.1 (DNS rebinding);
- another ``Origin``, or a browser's word that another site asks;
- no cookie: another browser, or another program, of this machine;
- a write without ``HEADER``: a form of another page cannot send it.
"""

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

HEADER = "X-Precision-Dashboard"
"""Of every request that may write; another origin's page needs our leave to send it, which is never given."""
COOKIE = "precision-dashboard"
SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_READS = ("GET", "HEAD")
_OWN_SITE = (None, "same-origin", "none")
"""Of ``Sec-Fetch-Site``: none is an address that the user typed or pasted."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What of a request tells who asks."""

    method: str
    host: str | None
    origin: str | None = None
    site: str | None = None
    """``Sec-Fetch-Site``; None: a browser that sends none, or a program."""
    header: str | None = None
    cookie: str | None = None
    token: str | None = None
    """Of the address that was printed."""


@dataclass(slots=True)
class Guard:
    """The secrets of one run."""

    port: int
    path: str = field(default_factory=lambda: f"/{secrets.token_urlsafe(12)}/")
    """Where all is served: a cookie is sent to every port of its host, but to no other path."""
    _token: str | None = field(default_factory=lambda: secrets.token_urlsafe(32))
    """None: it was used."""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """What the cookie holds."""

    @property
    def address(self) -> str:
        """The page's address, with the token that opens it once."""
        return f"http://127.0.0.1:{self.port}{self.path}?token={self._token}"

    def refusal(self, ask: Ask) -> str:
        """Why this request is refused, whatever its cookie; empty: it may go on."""
        hosts = (f"127.0.0.1:{self.port}", f"localhost:{self.port}")
        if ask.host not in hosts:
            return f"expected the host {hosts[0]}, found another; open the address that the dashboard printed"
        if ask.origin is not None and ask.origin not in [f"http://{host}" for host in hosts]:
            return "a page of another origin asked; only the dashboard's own page may"
        if ask.site not in _OWN_SITE:
            return "another site asked; open the address that the dashboard printed"
        if ask.method not in _READS and (ask.header is None or ask.origin is None):
            return f"expected the headers Origin and {HEADER}, which the dashboard's own page sends"
        return ""

    def known(self, ask: Ask) -> bool:
        """Whether the browser has the cookie."""
        return ask.cookie is not None and _same(ask.cookie, self.key)

    def admit(self, ask: Ask) -> bool:
        """Whether the token opens the page: it does once."""
        if self._token is None or ask.token is None or not _same(ask.token, self._token):
            return False
        self._token = None
        return True


def _same(given: str, kept: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), kept.encode())
