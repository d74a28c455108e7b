"""Who may import whom: the floors of the building.

core < store < logbook < the rest of the server; agents and client stand beside the server and speak to it through the
contract alone.
"""

import ast
import re
import sys

import pytest

from tests.repo.sources import PORTIONS, Import, Source, below, sources

SERVER = "server/stepward/server"

# Tests of handlers run the rules of the server. One module may import them, and nobody may import that one at once.
BENCH_RULES = "agents/stepward/agents/testing/rules.py"

# What knows a time, a chance, a place or a neighbour. The core is given all of these as arguments.
IMPURE = (
    *("asyncio", "concurrent", "contextvars", "multiprocessing", "queue", "sched", "selectors", "signal", "threading"),
    *("io", "os", "pathlib", "shutil", "socket", "ssl", "subprocess", "sys", "tempfile", "platform"),
    *("time", "secrets", "logging", "warnings"),
)

# Attributes that read a clock or throw a die, of modules whose types are welcome.
IMPURE_ATTRIBUTES = frozenset({"now", "utcnow", "today", "uuid1", "uuid4", "uuid6", "uuid7", "urandom", "SystemRandom"})

# `hash` of a string differs from process to process, and so does `id`.
IMPURE_BUILTINS = frozenset({"open", "print", "input", "hash", "id", "breakpoint"})

# The examples' definitions in Python, as files and as modules.
BUILDS_A_DEFINITION = re.compile(r"/examples/\w+/definition\.py$")
DEFINITION_MODULE = re.compile(r"stepward\.agents\.examples\.\w+\.definition")


def breaches(found: list[tuple[Source, Import]]) -> list[str]:
    """The offending imports as lines that an editor can jump to."""
    return [f"{source.path}:{item.line}: {item.module}" for source, item in found]


def imports(*folders: str) -> list[tuple[Source, Import]]:
    """Everything that is imported below the folders."""
    return [(source, item) for source in below(*folders) for item in source.imports()]


def test_core_imports_only_what_is_pure() -> None:
    """The core knows the standard library's values, msgspec and itself; no time, no chance, no I/O, no gRPC."""
    wrong = [
        (source, item)
        for source, item in imports(f"{SERVER}/core")
        if item.within(*IMPURE)
        or not (item.within("msgspec", "stepward.server.core") or item.module.split(".")[0] in sys.stdlib_module_names)
    ]

    assert breaches(wrong) == []


def test_core_takes_only_the_type_of_random() -> None:
    """Chance comes in as a `random.Random`; the functions of the module share one hidden state."""
    wrong = [
        f"{source.path}:{item.line}: {item.module}"
        for source, item in imports(f"{SERVER}/core")
        if item.within("random") and item.module not in {"random", "random.Random"}
    ]
    wrong += [
        f"{source.path}:{node.lineno}: random.{node.attr}"
        for source in below(f"{SERVER}/core")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "random"
        and node.attr != "Random"
    ]

    assert wrong == []


def test_core_reads_no_clock_and_throws_no_die() -> None:
    """The same rows, commands and clocks give the same batch, on every machine and at every time."""
    wrong = []
    for source in below(f"{SERVER}/core"):
        for node in ast.walk(source.tree):
            match node:
                case ast.Attribute(attr=name) if name in IMPURE_ATTRIBUTES:
                    wrong.append(f"{source.path}:{node.lineno}: .{name}")
                case ast.Call(func=ast.Name(id=name)) if name in IMPURE_BUILTINS:
                    wrong.append(f"{source.path}:{node.lineno}: {name}()")

    assert wrong == []


@pytest.mark.parametrize(
    ("library", "home"),
    [
        # Each is made safe behind one seam.
        ("lmdb", f"{SERVER}/store"),
        ("pysyncobj", f"{SERVER}/logbook"),
    ],
)
def test_library_has_one_importer(library: str, home: str) -> None:
    """What a library cannot promise is mended in one place, so only that place may touch it."""
    wrong = [
        (source, item)
        for source, item in imports("server", "agents", "client", "loadtest")
        if item.within(library) and not source.path.startswith(f"{home}/")
    ]

    assert breaches(wrong) == []


@pytest.mark.parametrize(
    ("floor", "may_import"),
    [
        ("core", ("core",)),
        ("store", ("core", "store")),
        ("logbook", ("core", "store", "logbook")),
    ],
)
def test_floor_stands_on_lower_floors_only(floor: str, may_import: tuple[str, ...]) -> None:
    """A lower floor can be read, tested and trusted without the ones above."""
    allowed = tuple(f"stepward.server.{name}" for name in may_import)
    wrong = [
        (source, item)
        for source, item in imports(f"{SERVER}/{floor}")
        if item.within("stepward.server") and item.module != "stepward.server" and not item.within(*allowed)
    ]

    assert breaches(wrong) == []


@pytest.mark.parametrize(
    ("folder", "never"),
    [
        ("server", ("stepward.client", "stepward.agents")),
        ("agents", ("stepward.server",)),
        ("client", ("stepward.server",)),
    ],
)
def test_portions_speak_through_the_contract(folder: str, never: tuple[str, ...]) -> None:
    """What a portion needs of another it asks for over gRPC, as somebody else's client or agent would."""
    wrong = [(source, item) for source, item in imports(folder) if item.within(*never) and source.path != BENCH_RULES]

    assert breaches(wrong) == []


def test_rules_of_the_server_are_imported_only_by_a_bench() -> None:
    """An agent, and a test that calls one handler, run without them."""
    wrong = [
        (source, item)
        for source, item in imports(*PORTIONS)
        if item.within("stepward.agents.testing.rules") and not item.lazy
    ]

    assert breaches(wrong) == []


def test_client_imports_agents_only_when_it_runs_them() -> None:
    """`stepward agent run` needs them; importing the client must not."""
    wrong = [(source, item) for source, item in imports("client") if item.within("stepward.agents") and not item.lazy]

    assert breaches(wrong) == []


def test_agents_import_the_client_only_when_they_use_it() -> None:
    """An agent's process starts without the command line and all that it brings.

    A module of an example that builds a definition is written as its users would write it, and no agent imports it.
    """
    wrong = [
        (source, item)
        for source, item in imports("agents")
        if item.within("stepward.client") and not item.lazy and not BUILDS_A_DEFINITION.search(source.path)
    ]
    wrong += [(source, item) for source, item in imports("agents") if DEFINITION_MODULE.fullmatch(item.module)]

    assert breaches(wrong) == []


def test_package_imports_no_tests() -> None:
    """Neither the tests nor the load test are installed."""
    wrong = [(source, item) for source, item in imports(*PORTIONS) if item.within("tests", "loadtest")]

    assert breaches(wrong) == []


def test_contract_imports_nothing_of_ours() -> None:
    """The contract can be installed and read alone."""
    generated = [source for source in sources() if source.generated]
    ours = [(source, item) for source in generated for item in source.imports() if item.within("stepward")]
    wrong = [(source, item) for source, item in ours if not item.within("stepward.v1", "stepward.internal.v1")]

    assert breaches(wrong) == []


def test_public_contract_does_not_show_the_internal_one() -> None:
    """What nodes say to each other may change with every release."""
    public = [source for source in sources() if source.path.startswith("proto/stepward/v1/")]
    wrong = [(source, item) for source in public for item in source.imports() if item.within("stepward.internal")]

    assert breaches(wrong) == []


def test_nobody_imports_through_the_folder() -> None:
    """`server.stepward.server` would be a second copy of every module, with other classes of the same name."""
    wrong = [
        (source, item)
        for source in sources()
        for item in source.imports()
        if item.within("server.stepward", "agents.stepward", "client.stepward", "proto.stepward")
    ]

    assert breaches(wrong) == []
