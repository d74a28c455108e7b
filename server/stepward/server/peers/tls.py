"""TLS between nodes and towards callers: one certificate a node, from one CA for all."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any, Final

import grpc

from stepward.server.store.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from stepward.server.config import TlsFiles

# A certificate says with such a URI that its holder is a node, and which.
NODE_URI: Final = "stepward://node/"
# Two are enough for TLS 1.3, and a few more for what came before it.
_HANDSHAKE_ROUNDS_MAX: Final = 10
# Where gRPC keeps the URIs of a caller's certificate.
_URIS: Final = "peer_uri"


class TlsUnusable(ServerError):  # noqa: N818 - a state of files, named as such
    """The files for TLS are not what they must be."""

    def __init__(self, files: TlsFiles, reason: str) -> None:
        super().__init__(
            f"the TLS files {files.ca}, {files.certificate} and {files.key} cannot be used: {reason}; "
            "they must be PEM: the CA's certificate, this node's certificate, and the key that belongs to it"
        )
        self.files = files


def check(files: TlsFiles, node_id: str) -> None:
    """Look whether the files fit together and name this node, as the others will look at them.

    gRPC would only say that the port cannot be listened on; and the others would only refuse, each for itself.

    Raises:
        TlsUnusable: They do not, or one is no PEM.
        OSError: One cannot be read.
    """
    for path in (files.ca, files.certificate, files.key):
        _read(path)
    try:
        uris = _own_uris(files)
    except (ssl.SSLError, ValueError) as error:
        raise TlsUnusable(files, str(error)) from error
    if f"{NODE_URI}{node_id}" not in uris:
        shown = ", ".join(sorted(uris)) or "no URI"
        raise TlsUnusable(files, f"the certificate names {shown}, and this node needs {NODE_URI}{node_id}")


def _own_uris(files: TlsFiles) -> frozenset[str]:
    """The URIs in this node's certificate, as somebody sees them who trusts its CA: by shaking hands with itself.

    Raises:
        ssl.SSLError: The files do not fit, or the certificate is not good for both sides at this time.
        ValueError: The key has a password.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Which hosts it is good for matters to those who call one.
    client.check_hostname = False
    for context in (server, client):
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = (client.wrap_bio(back, there), server.wrap_bio(there, back, server_side=True))
    for _ in range(_HANDSHAKE_ROUNDS_MAX):
        # Each in turn, since what one says is what the other waits for.
        done = [_has_shaken_hands(side) for side in sides]
        if all(done):
            break
    # Pairs of kind and name, of which the type checker's stubs know nothing.
    names: Any = (sides[0].getpeercert() or {}).get("subjectAltName", ())
    return frozenset(name for kind, name in names if kind == "URI")


def _has_shaken_hands(side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """What this node shows; nobody without a certificate of the CA gets in."""
    pair = (_read(files.key), _read(files.certificate))
    return grpc.ssl_server_credentials([pair], _read(files.ca), require_client_auth=True)


def channel_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """What this node shows to another one, whose certificate must name the address under which it is reached."""
    return grpc.ssl_channel_credentials(_read(files.ca), _read(files.key), _read(files.certificate))


def node_ids(auth_context: Mapping[str, Iterable[bytes]]) -> frozenset[str]:
    """The nodes as which a caller's certificate may speak; empty for agents and clients."""
    uris = (uri.decode(errors="replace") for uri in auth_context.get(_URIS, ()))
    return frozenset(uri.removeprefix(NODE_URI) for uri in uris if uri.startswith(NODE_URI))


def _read(path: Path) -> bytes:
    return path.read_bytes()


def _no_password() -> str:
    raise ValueError("the key is encrypted; a node that starts by itself cannot be asked for its password")
