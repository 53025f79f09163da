"""What to do next about the webhook's certificates. Pure: from the Secret, the bundle that API servers trust, and the time.

The order keeps every handshake good. A new authority is first trusted beside the old one. Only then does a leaf of it
replace the old leaf. The old authority is dropped when every replica has read the new leaf.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cryptography import x509

from precision_operator.webhook.certificates import (
    Pair,
    belongs,
    can_sign,
    due,
    issued_at,
    issued_by,
    names_of,
    new_authority,
    new_leaf,
    read_certificates,
    to_pem,
    valid,
)

AUTHORITIES = "ca.crt"
"""Key of the Secret: the authority that signs, and after it one that is still trusted."""
AUTHORITY_KEY = "ca.key"
LEAF = "tls.crt"
LEAF_KEY = "tls.key"

Content = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """In seconds."""

    authority: float
    leaf: float
    settle: float
    """How long after a leaf was made every replica has surely read it."""


@dataclass(frozen=True, slots=True)
class WriteSecret:
    """What the Secret must hold."""

    content: Content


@dataclass(frozen=True, slots=True)
class WriteBundle:
    """What API servers must trust."""

    bundle: bytes


Action = WriteSecret | WriteBundle


def next_action(
    secret: Content, bundles: Collection[bytes], *, names: Collection[str], lifetimes: Lifetimes, now: float
) -> Action | None:
    """The one next step; None: everything is as it should be.

    ``bundles``: one of each webhook in our configuration; none where there is no configuration. ``names``: of the server.
    """
    authorities = [a for a in read_certificates(secret.get(AUTHORITIES, b"")) if valid(a, now)]
    key = secret.get(AUTHORITY_KEY, b"")
    if not authorities or not can_sign(key, authorities[0]) or due(authorities[0], now):
        made = new_authority(now, lifetimes.authority)
        trusted = made.certificate + to_pem(authorities[:1])
        return WriteSecret({**secret, AUTHORITIES: trusted, AUTHORITY_KEY: made.key})
    current, trusted = authorities[0], to_pem(authorities)
    if any(bundle != trusted for bundle in bundles):
        return WriteBundle(trusted)
    leaf = _usable_leaf(secret, current, names=names, now=now)
    if leaf is None:
        signing = Pair(to_pem([current]), key)
        made = new_leaf(signing, sorted(names), now=now, seconds=lifetimes.leaf)
        return WriteSecret({**secret, LEAF: made.certificate, LEAF_KEY: made.key})
    if len(authorities) > 1 and now - issued_at(leaf) >= lifetimes.settle:
        return WriteSecret({**secret, AUTHORITIES: to_pem([current])})
    return None


def _usable_leaf(
    secret: Content, current: x509.Certificate, *, names: Collection[str], now: float
) -> x509.Certificate | None:
    """The leaf, where it need not be replaced."""
    found = read_certificates(secret.get(LEAF, b""))
    if not found or not valid(found[0], now) or due(found[0], now) or not issued_by(found[0], current):
        return None
    good = belongs(secret.get(LEAF_KEY, b""), found[0]) and names_of(found[0]) == frozenset(names)
    return found[0] if good else None
