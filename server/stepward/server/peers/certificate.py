"""The files with which a node shows who it is, looked at before anybody else does.

gRPC takes any and fails later without a word, and the other nodes would only refuse, each for itself. So the node
shakes hands with itself here, as somebody who trusts its authority, and tells what is wrong, each with its file.
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepward.server.addresses import parse_address
from stepward.server.config import ConfigError, NodeConfig, TlsFiles
from stepward.server.store.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# A certificate says with such a URI that its holder is a node, and which.
NODE_URI: Final = "stepward://node/"
# How long before its end that is told: a person who renews it by hand may be on leave.
ENDS_SOON: Final = timedelta(days=30)
# Two are enough for TLS 1.3, and a few more for what came before it.
_HANDSHAKE_ROUNDS_MAX: Final = 10
# OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which `ssl` has no name. Of a certificate that has ended one could not read
# when it did.
_NO_CHECK_TIME: Final = 0x200000
# OpenSSL's X509_V_ERR_* of what is told in words of ours.
_NOT_YET_VALID, _EXPIRED, _WRONG_PURPOSE, _OTHER_HOST, _OTHER_NUMBER = 9, 10, 26, 62, 64

_CALLED, _CALLER = "the called one", "the caller"


class TlsUnusable(ServerError):  # noqa: N818 - a state of files, named as such
    """The files for TLS are not what they must be; everything that is wrong with them."""

    def __init__(self, faults: Sequence[ConfigError]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = tuple(faults)


class _Seen(NamedTuple):
    """What somebody reads in a node's certificate who trusts its authority."""

    uris: frozenset[str]
    hosts: tuple[str, ...]
    starts_at: datetime
    ends_at: datetime


def check(config: NodeConfig, now: datetime) -> datetime:
    """Look whether the files fit together and name this node, as the others will look at them; when they end.

    Raises:
        TlsUnusable: They do not, or one is no PEM.
        OSError: One cannot be read.
    """
    assert config.tls is not None, "there are files to look at"
    faults = list(_unfit_files(config.tls))
    if faults:
        raise TlsUnusable(faults)
    try:
        seen = _seen(config.tls)
    except _Refused as refused:
        raise TlsUnusable([_refusal(config.tls, refused)]) from refused.error
    faults = [*_other_names(config, seen), *_other_times(config.tls, seen, now)]
    if faults:
        raise TlsUnusable(faults)
    return seen.ends_at


def ends_soon(ends_at: datetime, now: datetime) -> str:
    """What to tell of a certificate whose end is near, for a person; empty: it is far."""
    left = ends_at - now
    if left > ENDS_SOON:
        return ""
    if left <= timedelta():
        return (
            f"its certificate ended at {_told(ends_at)}: no new connection is made; renew it and start the node again"
        )
    span = f"{left.days} days" if left >= timedelta(days=2) else f"{left // timedelta(hours=1)} hours"
    return f"its certificate ends in {span}, at {_told(ends_at)}; renew it and start the node again before"


def _told(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _fault(files: TlsFiles, field: str, rule: str) -> ConfigError:
    path: Path = getattr(files, field)
    return ConfigError(f"tls.{field}", path, rule)


def _unfit_files(files: TlsFiles) -> Iterator[ConfigError]:
    """What is no PEM of its kind, and a key that does not fit."""
    for field, kind in (("ca", "the certificate of an authority"), ("certificate", "the certificate of this node")):
        path: Path = getattr(files, field)
        try:
            path.read_bytes()  # whose error, unlike that of `ssl`, names the file
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError:
            yield _fault(files, field, f"it must hold {kind} in PEM, and holds none")
            return
    try:
        files.key.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.certificate, files.key, password=_no_password)
    except ssl.SSLError as error:
        fits = f"it must hold the key that belongs to the certificate in {files.certificate}"
        if error.reason == "KEY_VALUES_MISMATCH":
            yield _fault(files, "key", f"{fits}, and holds another")
        else:
            yield _fault(files, "key", f"{fits}, in PEM, and holds no key")
    except _KeyEncrypted:
        rule = "it must not be encrypted: a node that starts by itself cannot be asked for its password"
        yield _fault(files, "key", rule)


class _KeyEncrypted(Exception):  # noqa: N818 - a state of the file, named as such
    """The key has a password."""


def _no_password() -> str:
    raise _KeyEncrypted


class _Refused(Exception):  # noqa: N818 - what a side does, named as such
    """One side of the handshake does not take the other's certificate."""

    def __init__(self, side: str, error: ssl.SSLError) -> None:
        super().__init__(str(error))
        self.side = side
        self.error = error


def _seen(files: TlsFiles, *, host: str = "", ignore_time: bool = True) -> _Seen:
    """What this node's certificate says, to somebody who called it at a host.

    Raises:
        _Refused: It is not good for both sides, or not for this host.
    """
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = bool(host)
    for context in (server, client):
        context.verify_mode = ssl.CERT_REQUIRED
        if ignore_time:
            context.verify_flags = ssl.VerifyFlags(context.verify_flags | _NO_CHECK_TIME)
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    caller = client.wrap_bio(back, there, server_hostname=host or None)
    sides = {_CALLER: caller, _CALLED: server.wrap_bio(there, back, server_side=True)}
    for _ in range(_HANDSHAKE_ROUNDS_MAX):
        # Each in turn, since what one says is what the other waits for.
        done = [_has_shaken_hands(name, side) for name, side in sides.items()]
        if all(done):
            break
    # Of types that the type checker's stubs do not know.
    said: Any = caller.getpeercert() or {}
    names = said.get("subjectAltName", ())
    return _Seen(
        frozenset(name for kind, name in names if kind == "URI"),
        tuple(name for kind, name in names if kind in ("DNS", "IP Address")),
        _moment(said["notBefore"]),
        _moment(said["notAfter"]),
    )


def _has_shaken_hands(name: str, side: ssl.SSLObject) -> bool:
    try:
        side.do_handshake()
    except ssl.SSLWantReadError:
        return False
    except ssl.SSLError as error:
        raise _Refused(name, error) from error
    return True


def _moment(text: str) -> datetime:
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(text), UTC)


def _refusal(files: TlsFiles, refused: _Refused) -> ConfigError:
    """Why the files do not do, whoever is called."""
    if not isinstance(refused.error, ssl.SSLCertVerificationError):
        return _fault(files, "certificate", f"no connection comes about with it: {refused.error.reason}")
    if refused.error.verify_code == _WRONG_PURPOSE:
        # A side judges the other's certificate.
        use = "a server (serverAuth)" if refused.side == _CALLER else "a client (clientAuth)"
        rule = "its extended key usage must allow both, since nodes call and are called"
        return _fault(files, "certificate", f"it is not for the use of {use}; {rule}")
    rule = f"it must be signed by an authority in {files.ca}, which is given as tls.ca"
    return _fault(files, "certificate", f"{rule}: {refused.error.verify_message}")


def _other_names(config: NodeConfig, seen: _Seen) -> Iterator[ConfigError]:
    """Who it is, and where it is reached, which the certificate does not say."""
    assert config.tls is not None, "there are files to look at"
    needed = f"{NODE_URI}{config.node_id}"
    if needed not in seen.uris:
        shown = ", ".join(sorted(seen.uris)) or "no URI"
        yield _fault(config.tls, "certificate", f"it names {shown}, and this node needs {needed}")
    where = {f"nodes.{config.node_id}": config.nodes.get(config.node_id, ""), "advertise": config.advertise}
    for field, text in where.items():
        address = parse_address(text)
        if address is not None and not _is_good(config.tls, despite=(_OTHER_HOST, _OTHER_NUMBER), host=address.host):
            shown = ", ".join(seen.hosts) or "no host"
            rule = (
                f"it names {shown}, and this node is reached at {address.host}, as {field} says: whoever calls it there"
            )
            yield _fault(config.tls, "certificate", f"{rule} would not believe it")


def _is_good(files: TlsFiles, *, despite: tuple[int, ...], host: str = "", ignore_time: bool = True) -> bool:
    """Whether the files, which are good otherwise, are so now or for a host; OpenSSL's codes say what may ail them."""
    try:
        _seen(files, host=host, ignore_time=ignore_time)
    except _Refused as refused:
        if getattr(refused.error, "verify_code", None) not in despite:
            raise
        return False
    return True


def _other_times(files: TlsFiles, seen: _Seen, now: datetime) -> Iterator[ConfigError]:
    """What is not good now: the certificate, or what it hangs on."""
    if now < seen.starts_at:
        yield _fault(files, "certificate", f"it begins only at {_told(seen.starts_at)}, and it is {_told(now)}")
    elif now >= seen.ends_at:
        yield _fault(files, "certificate", f"it ended at {_told(seen.ends_at)}, and it is {_told(now)}: renew it")
    elif not _is_good(files, despite=(_NOT_YET_VALID, _EXPIRED), ignore_time=False):
        yield _fault(files, "ca", "the authority, or one between, has ended or has not begun yet: renew it")
