"""Which certificates are made when, and in which order they come into use."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from cryptography import x509

from precision_operator.webhook.certificates import (
    Pair,
    issued_at,
    issued_by,
    names_of,
    new_authority,
    new_leaf,
    read_certificates,
    valid,
)
from precision_operator.webhook.rotation import (
    AUTHORITIES,
    AUTHORITY_KEY,
    LEAF,
    LEAF_KEY,
    Action,
    Content,
    Lifetimes,
    WriteBundle,
    WriteSecret,
    next_action,
)

NOW = 1_700_000_000.0
DAY = 86400.0
NAMES = ("webhook.system.svc", "webhook.system.svc.cluster.local")
LIFE = Lifetimes(authority=3650 * DAY, leaf=90 * DAY, settle=31.0)


@dataclass
class World:
    """A Secret and a configuration with two webhooks, as they stand."""

    secret: Content = field(default_factory=dict)
    bundles: list[bytes] = field(default_factory=lambda: [b"", b""])
    now: float = NOW
    names: tuple[str, ...] = NAMES
    served: bytes = b""
    """The leaf that a slow replica still serves."""

    def next(self) -> Action | None:
        return next_action(self.secret, self.bundles, names=self.names, lifetimes=LIFE, now=self.now)

    def step(self) -> str:
        """Do what is next; what it was."""
        match self.next():
            case WriteSecret(content):
                changed = {key for key in content if content[key] != self.secret.get(key)}
                self.secret = content
                return "secret " + " ".join(sorted(changed))
            case WriteBundle(bundle):
                self.bundles = [bundle] * len(self.bundles)
                return "bundle"
        return "nothing"

    def settled(self) -> list[str]:
        """All steps until nothing is due."""
        done = []
        while (step := self.step()) != "nothing":
            done.append(step)
            assert len(done) < 10, done
        return done

    @property
    def leaf(self) -> bytes:
        return self.secret[LEAF]

    def trusted(self, leaf: bytes) -> bool:
        """Whether API servers accept a handshake with this leaf."""
        (found,) = read_certificates(leaf)
        return valid(found, self.now) and all(
            any(issued_by(found, a) and valid(a, self.now) for a in read_certificates(bundle))
            for bundle in self.bundles
        )


def test_the_first_leader_makes_an_authority_has_it_trusted_and_then_makes_a_leaf() -> None:
    world = World()
    assert world.settled() == ["secret ca.crt ca.key", "bundle", "secret tls.crt tls.key"]
    assert world.trusted(world.leaf)
    assert names_of(read_certificates(world.leaf)[0]) == set(NAMES)


def test_without_a_configuration_certificates_are_made_all_the_same() -> None:
    world = World(bundles=[])
    assert world.settled() == ["secret ca.crt ca.key", "secret tls.crt tls.key"]


def test_what_was_made_lasts_for_two_thirds_of_its_life() -> None:
    world = World()
    world.settled()
    first = world.leaf
    world.now = NOW + 59 * DAY
    assert world.settled() == []
    world.now = NOW + 61 * DAY
    assert world.settled() == ["secret tls.crt tls.key"]
    assert world.leaf != first
    assert world.trusted(first), "a replica that has not read the new one is trusted still"
    assert world.trusted(world.leaf)


def test_a_new_authority_is_trusted_beside_the_old_one_until_every_replica_has_its_leaf() -> None:
    world = World()
    world.settled()
    world.now = NOW + 0.67 * LIFE.authority
    world.secret = {**world.secret, **as_leaf(world, now=world.now - DAY)}
    old = world.leaf
    for expected in ("secret ca.crt ca.key", "bundle", "secret tls.crt tls.key"):
        assert world.step() == expected
        assert world.trusted(old), expected
        assert world.trusted(world.leaf), expected
    assert world.leaf != old
    world.now += LIFE.settle - 2
    assert world.settled() == [], "a replica may serve the old leaf yet"
    world.now += 2
    assert world.settled() == ["secret ca.crt", "bundle"]
    assert world.trusted(world.leaf)
    assert not world.trusted(old)


def as_leaf(world: World, *, now: float) -> Content:
    """A leaf of the world's authority, made at another time."""
    pair = Pair(world.secret[AUTHORITIES], world.secret[AUTHORITY_KEY])
    made = new_leaf(pair, NAMES, now=now, seconds=LIFE.leaf)
    return {LEAF: made.certificate, LEAF_KEY: made.key}


def test_a_configuration_that_was_applied_anew_is_given_its_bundle_again() -> None:
    world = World()
    world.settled()
    world.bundles = [world.bundles[0], b""]
    assert world.settled() == ["bundle"]


def test_a_lost_secret_is_made_anew_without_serving_what_is_not_trusted() -> None:
    world = World()
    world.settled()
    world.secret = {}
    assert world.settled() == ["secret ca.crt ca.key", "bundle", "secret tls.crt tls.key"]
    assert world.trusted(world.leaf)


@pytest.mark.parametrize(
    ("key", "value", "steps"),
    [
        (AUTHORITIES, b"garbage", ["secret ca.crt ca.key", "bundle", "secret tls.crt tls.key"]),
        (AUTHORITY_KEY, b"", ["secret ca.crt ca.key", "bundle", "secret tls.crt tls.key"]),
        (AUTHORITY_KEY, new_authority(NOW, DAY).key, ["secret ca.crt ca.key", "bundle", "secret tls.crt tls.key"]),
        (LEAF, b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", ["secret tls.crt tls.key"]),
        (LEAF_KEY, b"garbage", ["secret tls.crt tls.key"]),
        (LEAF_KEY, new_authority(NOW, DAY).key, ["secret tls.crt tls.key"]),
    ],
)
def test_what_cannot_be_used_is_made_anew(key: str, value: bytes, steps: list[str]) -> None:
    world = World()
    world.settled()
    world.secret = {**world.secret, key: value}
    assert world.settled() == steps
    assert world.trusted(world.leaf)


def test_a_pair_that_is_no_authority_signs_nothing() -> None:
    """A leaf of it would be refused by every API server, or could not be made at all."""
    world = World()
    world.settled()
    world.secret = {**world.secret, AUTHORITIES: world.leaf, AUTHORITY_KEY: world.secret[LEAF_KEY]}
    assert world.settled() == ["secret ca.crt ca.key", "bundle", "secret tls.crt tls.key"]
    authority, *_ = read_certificates(world.secret[AUTHORITIES])
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert world.trusted(world.leaf)


def test_another_name_of_the_service_makes_another_leaf() -> None:
    world = World()
    world.settled()
    world.names = ("renamed.system.svc",)
    assert world.settled() == ["secret tls.crt tls.key"]
    assert names_of(read_certificates(world.leaf)[0]) == {"renamed.system.svc"}


def test_what_ran_out_while_nobody_led_is_made_anew() -> None:
    world = World()
    world.settled()
    world.now = NOW + 2 * LIFE.authority
    assert world.settled() == ["secret ca.crt ca.key", "bundle", "secret tls.crt tls.key"]
    assert len(read_certificates(world.bundles[0])) == 1


@pytest.mark.parametrize("seconds", [30.0, 3600.0, 90 * DAY])
def test_a_certificate_shows_when_it_was_made(seconds: float) -> None:
    (found,) = read_certificates(new_authority(NOW, seconds).certificate)
    assert issued_at(found) == pytest.approx(NOW, abs=1.0)
    assert valid(found, NOW - min(300, seconds / 10) + 1), "clocks differ"
