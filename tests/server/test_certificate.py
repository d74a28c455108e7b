"""What is wrong with a node's own certificate is told at its start, each with its file, as the others would see it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from stepward.server.config import NodeConfig, TlsFiles
from stepward.server.peers import certificate
from stepward.server.peers.certificate import ENDS_SOON, TlsUnusable
from tests.certificates import VALID, Authority
from tests.server.test_membership import server

NOW = datetime.now(UTC)


def config_of(authority: Authority, **fields: Any) -> NodeConfig:
    """Of n1, as far as it is told nothing else."""
    files = authority.files("n1", **{"uri": "stepward://node/n1", "starts_at": NOW - timedelta(minutes=5), **fields})
    tls = TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)
    return NodeConfig(data=files.ca.parent / "data", tls=tls)


def reached_at(config: NodeConfig, address: str, advertise: str = "") -> NodeConfig:
    return NodeConfig(data=config.data, tls=config.tls, nodes={"n1": address}, advertise=advertise)


def faults(config: NodeConfig, now: datetime = NOW) -> list[str]:
    """What is wrong, without the path."""
    assert config.tls is not None
    with pytest.raises(TlsUnusable) as caught:
        certificate.check(config, now)
    for fault in caught.value.faults:
        assert fault.value == getattr(config.tls, fault.field.removeprefix("tls."))
    return [f"{fault.field}: {fault.rule}" for fault in caught.value.faults]


def test_good_files_say_when_they_end(tmp_path: Path) -> None:
    """Seen by somebody who calls the node where it is said to be, with either name."""
    config = config_of(Authority(tmp_path), hosts=("a.example.org", "10.0.0.7"), starts_at=NOW - timedelta(hours=1))
    everywhere = reached_at(config, "10.0.0.7:1", "a.example.org:1")

    assert certificate.check(everywhere, NOW) == (NOW - timedelta(hours=1) + VALID).replace(microsecond=0)


def no_pem(tls: TlsFiles) -> None:
    tls.certificate.write_text("no certificate")


def not_text(tls: TlsFiles) -> None:
    tls.certificate.write_bytes(bytes(range(256)))


def empty_authority(tls: TlsFiles) -> None:
    tls.ca.write_bytes(b"")


def key_as_authority(tls: TlsFiles) -> None:
    tls.ca.write_bytes(tls.key.read_bytes())


def no_key(tls: TlsFiles) -> None:
    tls.key.write_bytes(tls.certificate.read_bytes())


def key_of_another(tls: TlsFiles) -> None:
    folder = tls.key.parent / "other"
    folder.mkdir()
    tls.key.write_bytes(Authority(folder).files("n1", uri="stepward://node/n1").key.read_bytes())


def encrypted_key(tls: TlsFiles) -> None:
    key = serialization.load_pem_private_key(tls.key.read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    tls.key.write_bytes(key.private_bytes(*pem, secret))


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (no_pem, "tls.certificate: it must hold the certificate of this node in PEM, and holds none"),
        (not_text, "tls.certificate: it must hold the certificate of this node in PEM, and holds none"),
        (empty_authority, "tls.ca: it must hold the certificate of an authority in PEM, and holds none"),
        (key_as_authority, "tls.ca: it must hold the certificate of an authority in PEM, and holds none"),
        (
            no_key,
            "tls.key: it must hold the key that belongs to the certificate in CERTIFICATE, in PEM, and holds no key",
        ),
        (
            key_of_another,
            "tls.key: it must hold the key that belongs to the certificate in CERTIFICATE, and holds another",
        ),
        (
            encrypted_key,
            "tls.key: it must not be encrypted: a node that starts by itself cannot be asked for its password",
        ),
    ],
)
def test_file_that_is_not_what_it_must_be(tmp_path: Path, spoil: Callable[[TlsFiles], None], told: str) -> None:
    """Of gRPC one would only hear that the port cannot be listened on."""
    config = config_of(Authority(tmp_path))
    assert config.tls is not None
    certificate.check(config, NOW)
    spoil(config.tls)

    assert faults(config) == [told.replace("CERTIFICATE", str(config.tls.certificate))]


@pytest.mark.parametrize("name", ["ca", "certificate", "key"])
def test_file_that_is_absent_is_named(tmp_path: Path, name: str) -> None:
    """By the error of the operating system."""
    config = config_of(Authority(tmp_path))
    path: Path = getattr(config.tls, name)
    path.unlink()
    with pytest.raises(FileNotFoundError) as caught:
        certificate.check(config, NOW)

    assert caught.value.filename in (path, str(path))


@pytest.mark.parametrize("uri", ["stepward://node/n2", "stepward://client/n1"])
def test_certificate_that_names_another_node(tmp_path: Path, uri: str) -> None:
    """The others would refuse it, each for itself, and only once they are reached."""
    config = config_of(Authority(tmp_path), uri=uri)

    assert faults(config) == [f"tls.certificate: it names {uri}, and this node needs stepward://node/n1"]


@pytest.mark.parametrize(
    ("hosts", "address", "shown"),
    [
        (("other.example",), "127.0.0.1:1", "other.example"),
        (("127.0.0.1",), "localhost:1", "127.0.0.1"),
        # A wildcard is good for one label.
        (("*.example.org",), "a.b.example.org:1", "*.example.org"),
        ((), "[::1]:1", "no host"),
    ],
)
def test_certificate_for_another_host(tmp_path: Path, hosts: tuple[str, ...], address: str, shown: str) -> None:
    """The others call it where `nodes` says, and would not believe whoever answers there."""
    config = reached_at(config_of(Authority(tmp_path), hosts=hosts), address)
    host = address.rpartition(":")[0].strip("[]")

    assert faults(config) == [
        f"tls.certificate: it names {shown}, and this node is reached at {host}, as nodes.n1 says: "
        "whoever calls it there would not believe it"
    ]


def test_certificate_without_the_host_that_callers_are_told(tmp_path: Path) -> None:
    """Of two hosts each is looked at, and told by where it stands."""
    config = reached_at(config_of(Authority(tmp_path)), "localhost:1", "a.example.org:1")

    (told,) = faults(config)
    assert "this node is reached at a.example.org, as advertise says" in told


def test_wildcard_is_good_for_its_hosts(tmp_path: Path) -> None:
    """As whoever calls it would find."""
    config = reached_at(config_of(Authority(tmp_path), hosts=("*.example.org",)), "a.example.org:1")

    assert certificate.check(config, NOW) > NOW


@pytest.mark.parametrize(
    ("usage", "missing"),
    [
        (ExtendedKeyUsageOID.SERVER_AUTH, "a client (clientAuth)"),
        (ExtendedKeyUsageOID.CLIENT_AUTH, "a server (serverAuth)"),
    ],
)
def test_certificate_for_one_use_only(tmp_path: Path, usage: Any, missing: str) -> None:
    """A node calls and is called; which of both it is not good for is said."""
    (told,) = faults(config_of(Authority(tmp_path), usages=(usage,)))

    assert told.startswith(f"tls.certificate: it is not for the use of {missing}; ")


def test_certificate_of_another_authority(tmp_path: Path) -> None:
    """Whatever it says."""
    config = config_of(Authority(tmp_path, "other"))
    assert config.tls is not None
    ca = Authority(tmp_path).ca
    mixed = NodeConfig(data=config.data, tls=TlsFiles(ca=ca, certificate=config.tls.certificate, key=config.tls.key))

    (told,) = faults(mixed)
    assert told.startswith(f"tls.certificate: it must be signed by an authority in {ca}, which is given as tls.ca: ")


def test_certificate_outside_its_time(tmp_path: Path) -> None:
    """At its first and last moment, and one second beyond. The names are told in the same breath."""
    config = config_of(Authority(tmp_path), starts_at=NOW - timedelta(hours=2), uri="test:other")
    starts_at = (NOW - timedelta(hours=2)).replace(microsecond=0)
    ends_at, second = starts_at + VALID, timedelta(seconds=1)

    (name,) = faults(config, starts_at)
    assert faults(config, starts_at - second)[1].startswith("tls.certificate: it begins only at ")
    assert faults(config, ends_at - second) == [name]
    assert faults(config, ends_at)[1].endswith(": renew it")
    assert f"it ended at {ends_at:%Y-%m-%dT%H:%M:%SZ}" in faults(config, ends_at)[1]


def test_certificate_that_has_really_ended(tmp_path: Path) -> None:
    """One can read when, though OpenSSL takes it no more."""
    (told,) = faults(config_of(Authority(tmp_path), starts_at=NOW - 2 * VALID))

    assert told.startswith(f"tls.certificate: it ended at {NOW - VALID:%Y-%m-%dT%H:%M:%SZ}")


def test_authority_that_has_ended(tmp_path: Path) -> None:
    """Its certificates are worth nothing more, whatever they say of themselves."""
    config = config_of(Authority(tmp_path, valid=VALID / 2))

    assert faults(config) == ["tls.ca: the authority, or one between, has ended or has not begun yet: renew it"]


@pytest.mark.parametrize(
    ("left", "told"),
    [
        (ENDS_SOON + timedelta(seconds=1), ""),
        (ENDS_SOON, "its certificate ends in 30 days, at 2026-03-01T12:00:00Z; "),
        (timedelta(days=2), "its certificate ends in 2 days, at "),
        (timedelta(days=2, seconds=-1), "its certificate ends in 47 hours, at "),
        (timedelta(seconds=1), "its certificate ends in 0 hours, at "),
        (timedelta(), "its certificate ended at 2026-03-01T12:00:00Z: "),
    ],
)
def test_end_is_told_beforehand(left: timedelta, told: str) -> None:
    """A month before, and no sooner."""
    ends_at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    said = certificate.ends_soon(ends_at, ends_at - left)

    assert said.startswith(told)
    assert bool(said) is bool(told)


def file_of(folder: Path, config: NodeConfig) -> Path:
    """A file for a node of one, which is reached at 127.0.0.1."""
    assert config.tls is not None
    file = folder / "stepward.toml"
    tls = f'[tls]\nca = "{config.tls.ca}"\nkey = "{config.tls.key}"\ncertificate = "{config.tls.certificate}"\n'
    file.write_text(f'[node]\ndata = "data"\nport = 1\n[cluster.nodes]\nn1 = "127.0.0.1:1"\n{tls}')
    return file


def test_check_command_tells_of_the_certificate_with_its_line(tmp_path: Path) -> None:
    """Everything that is wrong with it, and nothing about PEM when it is PEM."""
    config = config_of(Authority(tmp_path), uri="stepward://node/n2", hosts=("other.example",))
    assert config.tls is not None
    file = file_of(tmp_path, config)
    ran = server("check", "--config", str(file))
    place = f"{file}:9: tls.certificate is {config.tls.certificate}; it names"

    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.splitlines() == [
        f"{place} stepward://node/n2, and this node needs stepward://node/n1",
        f"{place} other.example, and this node is reached at 127.0.0.1, as nodes.n1 says: "
        "whoever calls it there would not believe it",
    ]


def test_check_command_warns_of_an_end_that_is_near(tmp_path: Path) -> None:
    """It is right for now, so it ends with 0."""
    near = server("check", "--config", str(file_of(tmp_path, config_of(Authority(tmp_path)))))
    authority = Authority(tmp_path, valid=timedelta(days=100))
    far = server("check", "--config", str(file_of(tmp_path, config_of(authority, valid=timedelta(days=40)))))

    assert (near.returncode, far.returncode, far.stderr) == (0, 0, "")
    assert near.stderr.startswith("warning: its certificate ends in 23 hours, at ")
    assert "TLS is on" in near.stdout
