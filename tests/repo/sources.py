"""The files of this repository as the guards read them.

Files that are not committed yet count too: a guard that speaks only after the commit speaks too late.
"""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[2]

# Folder of each portion of the namespace `stepward`. The protos' package is named by the contract's version.
PORTIONS = ("server", "agents", "client", "proto")


@dataclass(frozen=True)
class Import:
    """One name that a module imports."""

    module: str
    """In full; of `from a.b import c` both `a.b` and `a.b.c`, since `c` may be a module."""
    line: int
    lazy: bool
    """Inside a function, or for type checkers only: not run when the module is imported."""

    def within(self, *packages: str) -> bool:
        """Whether this is one of the packages or lies inside one."""
        return any(self.module == package or self.module.startswith(package + ".") for package in packages)


@dataclass(frozen=True)
class Source:
    """One Python file."""

    path: str
    """From the root of the repository."""
    text: str = field(repr=False)
    tree: ast.Module = field(repr=False)

    @property
    def generated(self) -> bool:
        """Whether protoc wrote it."""
        return is_generated(self.path)

    @property
    def module(self) -> str:
        """Its import name."""
        parts = PurePosixPath(self.path).with_suffix("").parts
        if parts[0] in PORTIONS:
            parts = parts[1:]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def imports(self) -> list[Import]:
        """All that it imports, in no particular order."""
        lazy = {
            id(inner)
            for outer in ast.walk(self.tree)
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
            or (isinstance(outer, ast.If) and ast.unparse(outer.test) == "TYPE_CHECKING")
            for inner in ast.walk(outer)
        }
        return [
            Import(module=module, line=node.lineno, lazy=id(node) in lazy)
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for module in self._modules(node)
        ]

    def _modules(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = node.module or ""
        if node.level:
            package = self.module.split(".")
            if not self.path.endswith("/__init__.py"):
                package.pop()
            package = package[: len(package) - node.level + 1]
            base = ".".join([*package, *([base] if base else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def is_generated(path: str) -> bool:
    """Whether protoc wrote the file."""
    return path.endswith(("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi"))


@cache
def files() -> tuple[str, ...]:
    """All files that are in the repository or would be with `git add --all`, from its root."""
    # Whoever owns the clone: in a container that is often not who runs the tests.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(sorted(path for path in set(listed.split("\0")) if path and (ROOT / path).is_file()))


@cache
def texts() -> dict[str, str]:
    """Path and text of every file that is text."""
    found = {}
    for path in files():
        content = (ROOT / path).read_bytes()
        if b"\0" not in content:
            found[path] = content.decode()
    return found


@cache
def parsed() -> tuple[tuple[Source, ...], tuple[SyntaxError, ...]]:
    """All Python files, and what is wrong with those that are none: one broken file must not hide all other guards."""
    found = []
    broken = []
    for path, text in texts().items():
        if path.endswith(".py"):
            try:
                found.append(Source(path=path, text=text, tree=ast.parse(text, filename=path)))
            except SyntaxError as error:
                broken.append(error)
    return tuple(found), tuple(broken)


def sources() -> tuple[Source, ...]:
    """All Python files, generated ones too."""
    return parsed()[0]


def written() -> tuple[Source, ...]:
    """The Python files that people write."""
    return tuple(source for source in sources() if not source.generated)


def below(*folders: str) -> tuple[Source, ...]:
    """The Python files that people write, below one of the folders."""
    return tuple(source for source in written() if source.path.startswith(tuple(f"{folder}/" for folder in folders)))
