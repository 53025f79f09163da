"""Making and reading the webhook's certificates: an authority of its own, and a leaf for its Service's name."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

SKEW_SECONDS = 300.0
"""By how much a certificate is valid before it was made, at most: clocks differ."""
SKEW_SHARE = 10
"""And no more than this part of its life."""

RENEWED_AT = 2 / 3
"""Of its life: then a certificate is replaced."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes


def read_certificates(pem: bytes) -> tuple[x509.Certificate, ...]:
    """The certificates of a PEM file, in order; none where it is not one."""
    try:
        return tuple(x509.load_pem_x509_certificates(pem))
    except ValueError:
        return ()


def to_pem(certificates: Sequence[x509.Certificate]) -> bytes:
    """One PEM file."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def belongs(key: bytes, certificate: x509.Certificate) -> bool:
    """Whether a PEM key is the certificate's."""
    try:
        public = load_pem_private_key(key, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return public.public_bytes(*form) == certificate.public_key().public_bytes(*form)


def can_sign(key: bytes, certificate: x509.Certificate) -> bool:
    """Whether the two can issue leaves that are believed: a person may have put something else in their place."""
    try:
        extensions = certificate.extensions
        authority = extensions.get_extension_for_class(x509.BasicConstraints).value.ca
        extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        known = isinstance(certificate.public_key(), ec.EllipticCurvePublicKey | rsa.RSAPublicKey)
    except (x509.ExtensionNotFound, ValueError, UnsupportedAlgorithm):
        return False
    return authority and known and belongs(key, certificate)


def issued_by(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether the authority signed it."""
    try:
        leaf.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def names_of(leaf: x509.Certificate) -> frozenset[str]:
    """The DNS names that it is for."""
    try:
        found = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return frozenset()
    return frozenset(found.get_values_for_type(x509.DNSName))


def issued_at(certificate: x509.Certificate) -> float:
    """When it was made, in seconds since the epoch."""
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return begin + min(SKEW_SECONDS, (end - begin) / (SKEW_SHARE + 1))


def valid(certificate: x509.Certificate, now: float) -> bool:
    """Whether it is neither too young nor too old."""
    return certificate.not_valid_before_utc.timestamp() <= now < certificate.not_valid_after_utc.timestamp()


def due(certificate: x509.Certificate, now: float) -> bool:
    """Whether it is to be replaced."""
    begin, end = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    return now >= begin + RENEWED_AT * (end - begin)


def new_authority(now: float, seconds: float) -> Pair:
    """A new authority, with a name of its own: an older one may be trusted beside it."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    name = _name(f"precision-operator webhook {serial & 0xFFFFFFFF:08x}")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    built = (
        _begun(name, name, key.public_key(), serial=serial, now=now, seconds=seconds)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(built, key)


def new_leaf(authority: Pair, names: Sequence[str], *, now: float, seconds: float) -> Pair:
    """A server's certificate for these DNS names."""
    issuer = read_certificates(authority.certificate)[0]
    issuer_key = cast(ec.EllipticCurvePrivateKey, load_pem_private_key(authority.key, None))
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = issuer.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    subject = x509.Name([])  # a common name may have 64 characters at most; the alternative names count
    usage = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
    built = (
        _begun(subject, issuer.subject, key.public_key(), serial=x509.random_serial_number(), now=now, seconds=seconds)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(built, key)


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    serial: int,
    now: float,
    seconds: float,
) -> x509.CertificateBuilder:
    made = datetime.fromtimestamp(now, tz=UTC)
    skew = timedelta(seconds=min(SKEW_SECONDS, seconds / SKEW_SHARE))
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(made - skew)
        .not_valid_after(made + timedelta(seconds=seconds))
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    raw = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM), raw)
