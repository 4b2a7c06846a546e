"""The shape that the house style asks for, read from the sources: what a reader may rely on in every file."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]
SOURCES = sorted((TOP / "src").rglob("*.py"))
TESTS = sorted((TOP / "tests").rglob("*.py"))
GUEST = sorted(path for suffix in ("*.c", "*.h") for path in (TOP / "guest").rglob(suffix) if "build" not in path.parts)

LINES = 600
FUNCTION_LINES = 60
PUBLIC_METHODS = 12
MIRRORS = (TOP / "src" / "proofbox" / "sync.py", TOP / "src" / "proofbox" / "sync_files.py")
"""Say of themselves that the asynchronous API describes them, which they follow name by name; tests hold that."""
BANNED_NAMES = ("Manager", "Helper", "Util", "Utils", "Base", "Impl")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def name_of(path: Path) -> str:
    return str(path.relative_to(TOP))


def functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def public_functions(tree: ast.Module) -> Iterator[Function]:
    """The functions of a module and of its public classes that a user can reach, overloads and Protocols apart."""
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_") and not is_described_by_its_class(node):
            for inner in node.body:
                if isinstance(inner, Function) and not inner.name.startswith("_") and not is_a_field(inner):
                    yield inner


def is_described_by_its_class(node: ast.ClassDef) -> bool:
    """A Protocol says in its own docstring what its members are."""
    return any("Protocol" in ast.unparse(parent) for parent in node.bases) and ast.get_docstring(node) is not None


def is_a_field(function: Function) -> bool:
    """Properties read like fields, and overloads repeat what the function itself says."""
    return any("property" in ast.unparse(d) or "overload" in ast.unparse(d) for d in function.decorator_list)


def length(node: Function) -> int:
    """Lines of the body, its docstring not counted: explaining more must cost nothing."""
    end = node.end_lineno or node.lineno
    first = node.body[0]
    documented = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    return end - node.lineno + 1 - ((first.end_lineno or 0) - first.lineno + 1 if documented else 0)


def is_silent(handler: ast.ExceptHandler) -> bool:
    """It catches everything and neither raises again nor uses what it caught."""
    caught = "BaseException" if handler.type is None else ast.unparse(handler.type)
    if not any(name in ("Exception", "BaseException") for name in caught.strip("()").replace(" ", "").split(",")):
        return False
    inside = [node for statement in handler.body for node in ast.walk(statement)]
    raises = any(isinstance(node, ast.Raise) for node in inside)
    uses = any(isinstance(node, ast.Name) and node.id == handler.name for node in inside)
    logs = any(isinstance(node, ast.Attribute) and node.attr in ("exception", "print_exc") for node in inside)
    return not (raises or uses or logs)


@pytest.mark.parametrize("path", [*SOURCES, *TESTS, *GUEST], ids=name_of)
def test_no_file_is_too_long(path: Path) -> None:
    """A file of more than 600 lines holds more than one thing."""
    assert len(path.read_text().splitlines()) <= LINES


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=name_of)
def test_no_function_is_too_long(path: Path) -> None:
    """A function of more than 60 lines cannot be read at once."""
    tree = ast.parse(path.read_text())
    assert [f"{node.name}: {length(node)} lines" for node in functions(tree) if length(node) > FUNCTION_LINES] == []


@pytest.mark.parametrize("path", [path for path in SOURCES if path not in MIRRORS], ids=name_of)
def test_no_class_has_too_many_public_methods(path: Path) -> None:
    """A class with more than twelve public methods is several."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            public = [
                f.name
                for f in node.body
                if isinstance(f, Function) and not f.name.startswith("_") and not is_a_field(f)
            ]
            assert len(public) <= PUBLIC_METHODS, f"{node.name} has {len(public)}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_classes_are_named_for_what_they_are(path: Path) -> None:
    """Names that say nothing (Manager, Helper, Util, Base, Impl) are not used."""
    names = [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
    assert [name for name in names if name.endswith(BANNED_NAMES)] == []


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=name_of)
def test_no_broad_except_is_silent(path: Path) -> None:
    """What catches every exception raises again, hands on what it caught, or says why not: a lost error is a score."""
    text = path.read_text()
    lines = text.splitlines()
    handlers = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler) and is_silent(node)]
    assert [node.lineno for node in handlers if "# noqa: BLE001 - " not in lines[node.lineno - 1]] == []


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_public_names_are_documented(path: Path) -> None:
    """Every module, public class and public function says what it is for."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the module has no docstring"
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    if path in MIRRORS:
        return
    bare = [node.name for node in (*classes, *public_functions(tree)) if not ast.get_docstring(node)]
    assert bare == []


@pytest.mark.parametrize("path", TESTS, ids=name_of)
def test_tests_say_what_they_prove(path: Path) -> None:
    """Every test has a sentence of its own, and not the name repeated."""
    for node in functions(ast.parse(path.read_text())):
        if node.name.startswith("test_"):
            sentence = ast.get_docstring(node) or ""
            assert len(sentence.split()) >= 3, f"{node.name} has no sentence"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_runtimes_are_reached_by_name_only(path: Path) -> None:
    """No module outside of a runtime imports one: the registry finds them by their registered names."""
    if "runtimes" in path.parts:
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("proofbox.runtimes"), f"line {node.lineno}"
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("proofbox.runtimes") for alias in node.names), f"line {node.lineno}"
