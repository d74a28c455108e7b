"""An authority of a test's own, and the certificates that it signs."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID = timedelta(days=1)
LOOPBACK = ("localhost", "127.0.0.1")


class Files(NamedTuple):
    """Paths of files in PEM."""

    ca: Path
    certificate: Path
    key: Path


class Authority:
    """Signs certificates and keeps them in a folder."""

    def __init__(self, folder: Path, name: str = "ca", *, valid: timedelta = 3 * VALID) -> None:
        """Of an authority that began a day ago."""
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(self._name, self._name, self._key.public_key(), datetime.now(UTC) - VALID, valid)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def files(
        self,
        name: str,
        *,
        uri: str,
        hosts: tuple[str, ...] = LOOPBACK,
        starts_at: datetime | None = None,
        valid: timedelta = VALID,
        usages: tuple[x509.ObjectIdentifier, ...] = (),
    ) -> Files:
        """Files of somebody who is named by a URI and reached at hosts. Valid from `starts_at`, or now; for any use."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri)]
        names += [_host(host) for host in hosts]
        starts_at = starts_at or datetime.now(UTC) - timedelta(minutes=5)
        builder = _builder(subject, self._name, key.public_key(), starts_at, valid)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if usages:
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        paths = Files(self.ca, self._folder / f"{name}.pem", self._folder / f"{name}.key")
        paths.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return paths


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, starts_at: datetime, valid: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts_at)
        .not_valid_after(starts_at + valid)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
