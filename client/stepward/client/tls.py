"""Who the client trusts and who it says that it is, as files; and why a connection does not come about.

gRPC says of most refused certificates only "Socket closed". So when nothing helps, one connection is made with Python's
own `ssl`, which knows the reason.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.client.errors import TlsFilesWrong

if TYPE_CHECKING:
    import grpc

# How long each move of the connection that finds out the reason may take.
DIAGNOSIS_S_MAX = 1.0


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of files in PEM.

    `ca` holds the authorities whose nodes are trusted. `certificate`, with what links it to the authority, and `key`
    say who the client is; a cluster that was given certificates lets in nobody without.
    """

    ca: str | Path
    certificate: str | Path | None = None
    key: str | Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """What gRPC wants, from the files as they are now.

        Raises:
            TlsFilesWrong: One of them cannot be used, or certificate and key do not belong together.
        """
        import grpc

        self._context()
        key = Path(self.key).read_bytes() if self.key else None
        certificate = Path(self.certificate).read_bytes() if self.certificate else None
        return grpc.ssl_channel_credentials(Path(self.ca).read_bytes(), key, certificate)

    def _context(self) -> ssl.SSLContext:
        """The same for `ssl`, which looks at what it is given: gRPC fails later and without a word."""
        if (self.certificate is None) != (self.key is None):
            raise TlsFilesWrong("a certificate and its key are given together, or neither is")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _read(self.ca, "holds no certificate of an authority in PEM", context.load_verify_locations)
        if self.certificate and self.key:
            certificate, key = self.certificate, self.key
            _read(key, "cannot be read", lambda path: Path(path).read_bytes())
            text = f"is no certificate in PEM to which the key in {key} belongs"
            _read(certificate, text, lambda path: context.load_cert_chain(path, key))
        return context


def _read(path: str | Path, wrong: str, load: Callable[[str | Path], object]) -> None:
    try:
        load(path)
    except ssl.SSLError:
        raise TlsFilesWrong(f"{path} {wrong}") from None
    except OSError as error:
        raise TlsFilesWrong(f"{path} cannot be read: {error.strerror}") from None


def why_refused(address: str, files: TlsFiles | None) -> str:
    """Why no call comes through to an address, as far as certificates are the reason; empty: they are not.

    Makes a connection of its own and may take some seconds: for the moment at which everything else has failed.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with socket.create_connection((host, int(port)), timeout=DIAGNOSIS_S_MAX) as plain:
            return _without(plain) if files is None else _with(plain, host, files)
    except OSError:
        # Nobody listens there, or says nothing; gRPC has said so.
        return ""


def _without(plain: socket.socket) -> str:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        context.wrap_socket(plain).close()
    except ssl.SSLError as error:
        # One that wants to see our certificate first has spoken TLS, too.
        return _WANTS_TLS if "ALERT" in (error.reason or "") else ""
    return _WANTS_TLS


_WANTS_TLS = "the node speaks TLS, and no authority to trust was given"


def _with(plain: socket.socket, host: str, files: TlsFiles) -> str:
    context = files._context()
    context.set_alpn_protocols(["h2"])
    try:
        secured = context.wrap_socket(plain, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        return f"the node's certificate is not trusted: {error.verify_message}"
    except ssl.SSLError:
        return "the node speaks no TLS"
    with secured:
        return "" if _is_welcome(secured) else _unwelcome(files)


def _is_welcome(secured: ssl.SSLSocket) -> bool:
    """Whether the node says something. In TLS 1.3 it judges our certificate after we believe that all is well."""
    try:
        return secured.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        # An alert, the end without one, or a reset: how it refuses depends on its software.
        return False


def _unwelcome(files: TlsFiles) -> str:
    if files.certificate is None:
        return "the node wants to see a certificate, and none was given"
    return (
        f"the node refuses the certificate in {files.certificate}: it has expired, or the node trusts another authority"
    )
