"""Reads a node's configuration: `stepward.toml`, and what overrides it, into the two classes of `config`.

Everything that is wrong is found in one reading, each with the line where it stands, as far as that can be told.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from stepward.server import config
from stepward.server.addresses import ADDRESS_RULE
from stepward.server.config import ClusterConfig, ConfigError, NodeConfig, TlsFiles
from stepward.server.core.limits import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Key = tuple[str, ...]

# A file that is larger was not meant, and is not read into memory to say so.
FILE_BYTES_MAX: Final = 1 << 20

# What stands in which section, and what it is in the classes. Whole sections are below.
_TEXTS: Final[dict[Key, str]] = {
    ("node", "id"): "node_id",
    ("node", "host"): "host",
    ("node", "advertise"): "advertise",
    ("http", "host"): "http_host",
    ("incidents", "webhook_url"): "webhook_url",
}
_NUMBERS: Final[dict[Key, str]] = {
    ("node", "port"): "port",
    ("http", "port"): "http_port",
    ("cluster", "session_ttl_ms"): "session_ttl_ms",
    ("cluster", "retention_ms"): "retention_ms",
}
_CLUSTER_FIELDS: Final = frozenset({"session_ttl_ms", "retention_ms"})
_HTTP_ENABLED: Final = ("http", "enabled")
_TRUSTED: Final = ("node", "trusted_network")
_FLAGS: Final[dict[Key, str]] = {_HTTP_ENABLED: "http_port", _TRUSTED: "trusted_network"}
_DATA: Final = ("node", "data")
_ID: Final = ("node", "id")
# What is compared with the entry of the node itself.
_OF_THE_ID: Final = frozenset({"node_id", "port", "host"})
_SECRET: Final = ("incidents", "webhook_secret_file")
_NODES: Final = ("cluster", "nodes")
_TLS: Final[dict[Key, str]] = {("tls", name): name for name in TlsFiles.__struct_fields__}
# Everything else of a node that has a bound.
_LIMITS: Final[dict[Key, str]] = {
    ("limits", bound.field): bound.field for bound in config.NODE_BOUNDS if bound.field not in _NUMBERS.values()
}

KEYS: Final[tuple[Key, ...]] = (_DATA, _SECRET, *_TEXTS, _NODES, *_NUMBERS, *_FLAGS, *_TLS, *_LIMITS)
SECTIONS: Final = frozenset(key[0] for key in KEYS)

_HEADER: Final = re.compile(r"\s*\[\s*([A-Za-z0-9_.\"' -]+?)\s*\]")
_ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")


class Override(NamedTuple):
    """A value that counts more than the file's. `source` names the variable or option that it came from."""

    source: str
    key: Key
    text: str


class Problem(NamedTuple):
    """One thing that is wrong. `place` is a line of the file, a variable or an option; empty: nowhere in particular."""

    place: str
    text: str

    @property
    def line(self) -> str:
        """The whole of it, for a person."""
        return f"{self.place}: {self.text}" if self.place else self.text


class ConfigInvalid(Exception):  # noqa: N818 - a state of the file, named as such
    """The configuration cannot be used; all that is wrong with it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(problem.line for problem in problems))
        self.problems = tuple(problems)


class Configuration(NamedTuple):
    """What a node is told."""

    cluster: ClusterConfig
    node: NodeConfig


def read(path: Path | None, overrides: Sequence[Override] = ()) -> Configuration:
    """The configuration of a file, if there is one, and of what overrides it. The last override of a key counts.

    Relative paths in the file count from its folder, others from the current one.

    Raises:
        ConfigInvalid: With every problem.
    """
    text = "" if path is None else _text(path)
    reading = _Reading(path, text, overrides)
    settings = reading.configuration()
    if reading.problems:
        raise ConfigInvalid(reading.problems)
    assert settings is not None, "a reading without problems gives a configuration"
    return settings


def placed(path: Path | None, overrides: Sequence[Override], errors: Iterable[ConfigError]) -> list[Problem]:
    """What was found wrong with a configuration after it was read, each where it stands.

    Raises:
        ConfigInvalid: The file cannot be read any more.
    """
    reading = _Reading(path, "" if path is None else _text(path), overrides)
    for error in errors:
        reading.add_error(error)
    return reading.problems


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
        if len(raw) > FILE_BYTES_MAX:
            raise ConfigInvalid([Problem(str(path), f"it must be at most {FILE_BYTES_MAX} bytes")])
        return raw.decode()
    except OSError as error:
        raise ConfigInvalid([Problem(str(path), f"it cannot be read: {error.strerror}")]) from None
    except UnicodeDecodeError as error:
        raise ConfigInvalid([Problem(str(path), f"byte {error.start} is no UTF-8, which TOML is")]) from None


class _Reading:
    """One reading: collects what is wrong."""

    def __init__(self, path: Path | None, text: str, overrides: Sequence[Override]) -> None:
        self.problems: list[Problem] = []
        self._path = path
        self._lines = lines_of(text)
        self._overrides = {override.key: override for override in overrides}
        self._values = self._parsed(text)

    def configuration(self) -> Configuration | None:
        """What all values give; None when they give nothing that could be checked as a whole."""
        if self.problems:
            # Nothing was read, so whatever else could be said would be said of nothing.
            return None
        self._refuse_unknown()
        node: dict[str, Any] = {}
        limits: dict[str, int] = {}
        for key, field in _TEXTS.items():
            self._take(node, field, self._text_of(key))
        for key, field in (*_NUMBERS.items(), *_LIMITS.items()):
            self._take(limits if field in _CLUSTER_FIELDS else node, field, self._number_of(key))
        self._take(node, "trusted_network", self._flag_of(_TRUSTED))
        if self._flag_of(_HTTP_ENABLED) is False:
            node["http_port"] = None
        self._take(node, "nodes", self._nodes())
        self._take(node, "tls", self._tls())
        self._take(node, "webhook_secret_file", self._path_of(_SECRET))
        data = self._path_of(_DATA)
        if data is None:
            if _DATA not in self._values and _DATA not in self._overrides:
                self._add(_DATA, "is missing; name the folder that holds what must not be lost")
            return None
        configuration = Configuration(ClusterConfig(limits=Limits(**limits)), NodeConfig(data=data, **node))
        nameless = self._is_nameless(configuration.node)
        if nameless:
            nodes = ", ".join(sorted(configuration.node.nodes))
            self._add(_ID, f"is missing; with several nodes it must say which of them this one is: {nodes}")
        for problem in config.problems(*configuration):
            # What follows from an id that nobody gave is no news.
            if not (nameless and problem.field in _OF_THE_ID):
                self.add_error(problem)
        return configuration

    def _is_nameless(self, node: NodeConfig) -> bool:
        return len(node.nodes) > 1 and _ID not in self._values and _ID not in self._overrides

    @staticmethod
    def _take(fields: dict[str, Any], field: str, value: Any) -> None:
        if value is not None:
            fields[field] = value

    def add_error(self, error: ConfigError) -> None:
        """Note what is wrong with a field of the classes."""
        self._add(_key_of(error.field), f"is {error.value}; {error.rule}")

    def _add(self, key: Key, text: str) -> None:
        self.problems.append(Problem(self._place(key), f"{'.'.join(key)} {text}"))

    def _place(self, key: Key) -> str:
        """Where a key, or the last part of it that stands anywhere, was read."""
        for count in range(len(key), 0, -1):
            part = key[:count]
            if part in self._overrides:
                return self._overrides[part].source
            if part in self._lines:
                return f"{self._path}:{self._lines[part]}"
        return "" if self._path is None else str(self._path)

    # What stands where.

    def _parsed(self, text: str) -> dict[Key, Any]:
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"at line (\d+), column (\d+)", str(error))
            place = f"{self._path}:{found[1]}" if found else str(self._path)
            self.problems.append(Problem(place, f"it is no TOML: {error}"))
            return {}
        values: dict[Key, Any] = {}
        for section, content in document.items():
            if section in SECTIONS and isinstance(content, Mapping):
                values.update({(section, name): value for name, value in content.items()})
            else:
                values[(section,)] = content
        return values

    def _refuse_unknown(self) -> None:
        for key in self._values:
            if key not in KEYS:
                # The section is what is forgotten first, so only the last part is compared.
                known = {other[-1]: ".".join(other) for other in sorted(KEYS, key=lambda other: other[0] == key[0])}
                near = difflib.get_close_matches(key[-1], known, n=1)
                self._add(key, f"is not known{f'; is {known[near[0]]} meant?' if near else ''}")

    def _value(self, key: Key) -> tuple[Any, bool]:
        """What stands under a key, and whether it is text from outside the file."""
        if key in self._overrides:
            return self._overrides[key].text, True
        return self._values.get(key), False

    def _text_of(self, key: Key) -> str | None:
        value, _ = self._value(key)
        if value is None or isinstance(value, str):
            return value
        self._add(key, f"is {value!r}; it must be text, in quotes")
        return None

    def _number_of(self, key: Key) -> int | float | None:
        value, from_outside = self._value(key)
        if from_outside and re.fullmatch(r"-?[0-9]{1,18}", value):
            return int(value)
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
            return self._whole(key, value)
        self._add(key, f"is {value!r}; it must be a whole number")
        return None

    def _whole(self, key: Key, value: float | None) -> int | float | None:
        if isinstance(value, float) and key[-1] not in _FRACTIONS:
            self._add(key, f"is {value!r}; it must be a whole number")
            return None
        return value

    def _flag_of(self, key: Key) -> bool | None:
        value, _ = self._value(key)
        if value in ("true", "false"):
            return bool(value == "true")
        if value is None or isinstance(value, bool):
            return value
        self._add(key, f"is {value!r}; it must be true or false")
        return None

    def _path_of(self, key: Key) -> Path | None:
        text = self._text_of(key)
        if text is None:
            return None
        if not text:
            self._add(key, "is ''; it must be a path")
            return None
        if self._path is None or key in self._overrides:
            return Path(text)
        return self._path.parent / text

    def _tls(self) -> TlsFiles | None:
        """All of the files, or none."""
        files = {field: self._path_of(key) for key, field in _TLS.items()}
        given = [key for key in _TLS if key in self._overrides or key in self._values]
        if not given:
            return None
        for key in _TLS:
            if key not in given:
                self._add(key, f"is missing; it must be there with {', '.join('.'.join(other) for other in given)}")
        if None in files.values():
            return None
        return TlsFiles(**{field: path for field, path in files.items() if path is not None})

    def _nodes(self) -> dict[str, str] | None:
        value, from_outside = self._value(_NODES)
        if from_outside:
            return self._nodes_of_text(value)
        if value is None:
            return None
        if not isinstance(value, Mapping) or not value:
            self._add(_NODES, f'is {value!r}; it must be a table of addresses by node id, as in {{ n1 = "host:7654" }}')
            return None
        wrong = {node_id: address for node_id, address in value.items() if not isinstance(address, str)}
        for node_id, address in wrong.items():
            self._add((*_NODES, node_id), f"is {address!r}; {ADDRESS_RULE}")
        return {node_id: address for node_id, address in value.items() if node_id not in wrong}

    def _nodes_of_text(self, text: str) -> dict[str, str] | None:
        pairs = [part.strip().partition("=") for part in text.split(",")]
        nodes = {node_id: address for node_id, _, address in pairs}
        if any(not equals for _, equals, _ in pairs) or len(nodes) < len(pairs):
            self._add(_NODES, f"is {text!r}; it must be as in n1=host:7654,n2=host:7654, each node once")
            return None
        return nodes


# The few numbers that need not be whole.
_FRACTIONS: Final = frozenset(
    field for field in NodeConfig.__struct_fields__ if NodeConfig.__annotations__[field] == "float"
)


def lines_of(text: str) -> dict[Key, int]:
    """The line of each section and key, from 1. A reader of lines, no parser: what it does not find has no line."""
    lines: dict[Key, int] = {}
    section: Key = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            section = _parts(header[1])
            lines.setdefault(section, number)
        elif assignment := _ASSIGNMENT.match(line):
            lines.setdefault((*section, *_parts(assignment[1])), number)
    return lines


def _parts(name: str) -> Key:
    return tuple(part.strip().strip("\"'") for part in name.split("."))


def _fields() -> Iterator[tuple[str, Key]]:
    for fields in (_TEXTS, _NUMBERS, _LIMITS):
        for key, field in fields.items():
            yield field, key
    for key, field in _TLS.items():
        yield f"tls.{field}", key


_KEYS_OF_FIELDS: Final = {
    "data": _DATA,
    "nodes": _NODES,
    "trusted_network": _TRUSTED,
    "webhook_secret_file": _SECRET,
    **dict(_fields()),
}


def _key_of(field: str) -> Key:
    """Where a field of the classes stands in the file."""
    if field.startswith("nodes."):
        return (*_NODES, field.removeprefix("nodes."))
    return _KEYS_OF_FIELDS[field]
