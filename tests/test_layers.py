"""The rules of the house that a machine can check: imports, names, sizes, and no loose ends."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "satchel"
FILES = sorted(SOURCE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

# A room imports rooms of lower levels only. `satchel.api` is what programs see of the engine.
LEVELS = {
    "base": 0,
    "errors": 0.5,
    "formats": 1,
    "machine": 1,
    "files": 2,
    "graph": 2,
    "text": 2,
    "lang": 3,
    "runtime": 3,
    "archs": 4,
    "kernels": 4,
    "compiler": 5,
    "engine": 6,
    "api": 6.5,
    "__init__": 6.7,
    "hybrid": 7,
    "measure": 7,
    "personal": 7,
    "quantize": 7,
    "serve": 7,
    "cli": 8,
    "__main__": 9,
}
# These import late what a command may not need, so that `import satchel` and `--help` are cheap.
MAY_IMPORT_LATE = {"__init__", "api", "cli"}
# These import late what a warm start does without: archs, passes, and the sources of kernels.
WARM_START = {"compiler/model.py", "compiler/packing.py"}
BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "handler"}
ISA = re.compile(
    r"x86|avx|sse4|vnni|neon|dotprod|i8mm|aarch64|riscv|rvv|simd128|wasm", re.IGNORECASE
)
ISA_ROOMS = ("lang/rules", "lang/target", "machine", "runtime/devices")
ARCHS = {"llama", "mistral", "qwen2", "qwen3", "gemma3"}
ARCH_ROOMS = {"archs", "files", "text"}  # text/: tokenizers bear their first model's name
FILE_LINES, FUNCTION_LINES = 500, 60


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def place(path: Path, node: ast.expr | ast.stmt) -> str:
    return f"{name(path)}:{node.lineno}"


def imported_rooms(path: Path, node: ast.AST) -> Iterator[str]:
    """The rooms of ours that an import statement names."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            package = ("satchel", *path.relative_to(SOURCE).parts)[: -node.level]
            base = ".".join(package) + (f".{node.module}" if node.module else "")
        else:
            base = node.module or ""
        modules = [f"{base}.{alias.name}" for alias in node.names] if base == "satchel" else [base]
    else:
        return
    for module in modules:
        parts = module.split(".")
        if parts[0] == "satchel":
            # `from satchel import load` names what the package itself offers
            inside = parts[1] if len(parts) > 1 else "__init__"
            yield inside if inside in LEVELS else "__init__"


def first_words(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return (ast.get_docstring(node) or "").split("\n", 1)[0]


def test_a_room_imports_only_lower_rooms() -> None:
    unknown = [name(path) for path in FILES if room(path) not in LEVELS]
    assert not unknown, "no room of the house"
    wrong = [
        f"{place(path, node)} imports {other}, which is not below {room(path)}"
        for path in FILES
        for node in nodes(path)
        for other in imported_rooms(path, node)
        if other != room(path) and LEVELS[other] >= LEVELS[room(path)]
    ]
    assert not wrong


def test_our_rooms_are_imported_at_the_top() -> None:
    late = {
        place(path, node)
        for path in FILES
        if room(path) not in MAY_IMPORT_LATE
        and path.relative_to(SOURCE).as_posix() not in WARM_START
        for function in nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if list(imported_rooms(path, node))
    }
    assert not late


def test_names_of_instruction_sets_stay_in_their_rooms() -> None:
    said: list[str] = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        elsewhere = not path.relative_to(SOURCE).as_posix().startswith(ISA_ROOMS)
        if not elsewhere or not ISA.search(text):
            continue
        docs = {
            n.body[0].lineno
            for n in nodes(path)
            if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(n)
        }
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NAME, tokenize.STRING) and token.start[0] not in docs:
                found = ISA.search(token.string)
                said += [f"{name(path)}:{token.start[0]} says {token.string}"] if found else []
    assert not said


def test_names_of_architectures_stay_in_their_rooms() -> None:
    said: list[str] = []
    for path in FILES:
        is_a_table_of_real_models = path.relative_to(SOURCE).as_posix() == "measure/shapes.py"
        if room(path) in ARCH_ROOMS or is_a_table_of_real_models:
            continue
        for node in nodes(path):
            word = {
                ast.Constant: lambda n: n.value,
                ast.Name: lambda n: n.id,
                ast.Attribute: lambda n: n.attr,
                ast.ImportFrom: lambda n: (n.module or "").rpartition(".")[2],
            }.get(type(node), lambda _: None)(node)
            if isinstance(word, str) and word.lower() in ARCHS:
                said.append(f"{name(path)} says {word}")
    assert not said


def test_the_environment_is_read_in_one_place() -> None:
    read = [
        place(path, node)
        for path in FILES
        if path.name != "options.py"
        for node in nodes(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and f"{node.value.id}.{node.attr}" in ("os.environ", "os.getenv", "os.environb")
    ]
    assert not read


def test_files_and_functions_are_short() -> None:
    """Longer ones say why in their first line, with the word `long`."""
    too_long: list[str] = []
    for path in FILES + TESTS:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES and "long" not in first_words(tree(path)):
            too_long.append(f"{name(path)} has {lines} lines")
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES and "long" not in first_words(node):
                    too_long.append(f"{name(path)}: {node.name} has {lines} lines")
    assert not too_long


def test_nothing_is_left_undone() -> None:
    skips = ("skip", "skipif", "xfail", "importorskip", "skipTest")
    undone: list[str] = []
    for path in FILES + TESTS:
        if BANNED_NAMES & set(path.with_suffix("").relative_to(ROOT).parts):
            undone.append(f"{name(path)} has a name that says nothing")
        for node in nodes(path):
            if isinstance(node, ast.Name) and node.id == "NotImplementedError":
                undone.append(place(path, node))
            if isinstance(node, ast.Attribute) and node.attr in skips:
                undone.append(f"{place(path, node)} leaves out a test")
    assert not undone


def test_every_room_with_code_has_tests() -> None:
    rooms = {room(p) for p in FILES if p.parent != SOURCE and p.name != "__init__.py"}
    tested = {p.relative_to(ROOT / "tests").parts[0] for p in TESTS if p.name.startswith("test_")}
    assert rooms <= tested, f"no tests for {sorted(rooms - tested)}"
