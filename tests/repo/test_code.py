"""How code may be written, as far as a test can tell."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator

from tests.repo.sources import PORTIONS, ROOT, Source, below, parsed, texts, written

SELF = "tests/repo/test_code.py"
FUNCTION_LINES_MAX = 70
EVERYTHING = frozenset({"Exception", "BaseException"})

# The shells: the only places that may catch every exception, and why. Inside they log it with its traceback and count
# it; the core hands it out for that. A new line here is a decision to be argued for.
SHELLS: dict[str, str] = {
    "agents/stepward/agents/testing/calls.py": "around a handler on a thread: whatever it raises is its outcome",
    "agents/stepward/agents/action.py": "around the making of an output: it becomes a failure that is reported",
    "agents/stepward/agents/handler_child.py": "around the import of a handler's module, and around the handler",
    "server/stepward/server/core/decide.py": "the savepoint of a command: the others of its batch go on",
    "server/stepward/server/core/reports.py": "the savepoint of a report: the others of its batch still count",
    "server/stepward/server/core/patrol.py": "the savepoint of a job that is looked at: its rows may be broken",
    "server/stepward/server/core/retention.py": "the savepoint of a job that is removed: the others still go",
    "server/stepward/server/core/supervision.py": "the savepoint of a due subject: the others are still judged",
    "server/stepward/server/interceptor.py": "around every call: the caller is told that we are wrong",
    "server/stepward/server/row_passing.py": "around an exchange of all rows, which ends the node as a step does",
    "server/stepward/server/deliveries.py": "around one offer: the others of its batch are still delivered",
    "server/stepward/server/shard.py": "around a step, which ends the node; around those told of a batch or an answer",
    "server/stepward/server/supervisor.py": "the loop: it goes on, or ends the node",
}

# Where the environment may be read. Everything else is told.
ENVIRONMENT_READERS = re.compile(r"(__main__\.py|/cli\.py|/cli/.*\.py)$")

# An ignore, its codes, and the reason that must follow on the same line.
IGNORE = re.compile(
    r"#\s*(?:type:\s*ignore(?:\[[\w\s,-]*\])?|noqa(?::\s*[A-Z]+[0-9]+(?:[\s,]+[A-Z]+[0-9]+)*)?)(?P<rest>.*)$"
)
REASON = re.compile(r"\w+\W+\w+")

# Spelled so that this file does not find itself.
NOTES_TO_SELF = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
PATHS_OF_A_MACHINE = re.compile(r"(?<![\w.~}])/(?:work|root|home|Users)/\w")


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a file."""
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def comments(source: Source) -> Iterator[tuple[int, str]]:
    """All comments of a file, with their lines."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def catches(handler: ast.ExceptHandler) -> set[str]:
    """The names that an except clause catches; nothing for a bare one."""
    match handler.type:
        case ast.Tuple(elts=elements):
            return {ast.unparse(element) for element in elements}
        case None:
            return set()
        case one:
            return {ast.unparse(one)}


def is_blind(node: ast.AST) -> bool:
    """Whether this catches everything: an except clause, or `suppress(Exception)`."""
    match node:
        case ast.ExceptHandler():
            return bool(catches(node) & EVERYTHING)
        case ast.Call(func=ast.Name(id="suppress") | ast.Attribute(attr="suppress"), args=caught):
            return bool({ast.unparse(one) for one in caught} & EVERYTHING)
    return False


def blind_handlers() -> list[tuple[str, int, str]]:
    """Where everything is caught: path, line, and the comment on that line."""
    return [
        (source.path, line, dict(comments(source)).get(line, ""))
        for source in written()
        for node in ast.walk(source.tree)
        if is_blind(node)
        for line in [getattr(node, "lineno", 0)]
    ]


def test_every_file_is_python_of_the_oldest_version() -> None:
    """The other guards see only what parses; the oldest version that we accept is the one that CI runs."""
    assert [f"{error.filename}:{error.lineno}: {error.msg}" for error in parsed()[1]] == []


def test_functions_fit_on_a_screen() -> None:
    """Branch in the parent, compute in the leaves."""
    wrong = [
        f"{source.path}:{function.lineno}: {function.name} has {length} lines, at most {FUNCTION_LINES_MAX}"
        for source in written()
        for function in functions(source)
        if (length := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES_MAX
    ]

    assert wrong == []


def test_no_bare_except() -> None:
    """It would also catch the request to stop."""
    wrong = [
        f"{source.path}:{node.lineno}"
        for source in written()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ExceptHandler) and node.type is None
    ]

    assert wrong == []


def test_only_shells_catch_everything() -> None:
    """Elsewhere an exception that nobody expected must reach the shell, which logs and counts it."""
    wrong = [f"{path}:{line}" for path, line, _ in blind_handlers() if path not in SHELLS]

    assert wrong == [], f"Catch what you expect. If this is a shell, name it in SHELLS in {SELF} and say why."


def test_every_shell_says_why_it_catches_everything() -> None:
    """`except Exception:  # noqa: BLE001 - why`; the codes alone are no reason."""
    wrong = [
        f"{path}:{line}"
        for path, line, comment in blind_handlers()
        if not REASON.search(found["rest"] if (found := IGNORE.search(comment)) else comment)
    ]

    assert wrong == []


def test_every_shell_still_is_one() -> None:
    """A permission that nobody uses is one that somebody will."""
    written_shells = {path for path in SHELLS if (ROOT / path).exists()}

    assert written_shells <= {path for path, _, _ in blind_handlers()}


def test_environment_is_read_at_the_entrance_only() -> None:
    """Deep inside, a variable of the environment is an argument that no signature shows."""
    wrong = [
        f"{source.path}:{node.lineno}: {name}"
        for source in below(*PORTIONS)
        if not ENVIRONMENT_READERS.search(source.path)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute | ast.Name)
        if (name := ast.unparse(node)) in {"os.environ", "os.getenv", "os.environb", "environ", "getenv"}
    ]

    assert wrong == []


def test_every_ignore_has_its_reason() -> None:
    """`# type: ignore[code]  # why` and `# noqa: CODE - why`."""
    wrong = [
        f"{source.path}:{line}: {comment}"
        for source in written()
        for line, comment in comments(source)
        if (found := IGNORE.search(comment)) and not REASON.search(found["rest"])
    ]

    assert wrong == []


def test_no_notes_to_self() -> None:
    """What is to be done is written where others look for it."""
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if NOTES_TO_SELF.search(line)
    ]

    assert wrong == []


def test_no_paths_of_one_machine() -> None:
    """What works only where it was written does not work."""
    wrong = [
        f"{path}:{number}: {line.strip()}"
        for path, text in texts().items()
        for number, line in enumerate(text.splitlines(), start=1)
        if PATHS_OF_A_MACHINE.search(line)
    ]

    assert wrong == []


def test_modules_say_what_they_are() -> None:
    """A module starts with what it is and the one thing that a reader must know."""
    assert [source.path for source in written() if not ast.get_docstring(source.tree)] == []
