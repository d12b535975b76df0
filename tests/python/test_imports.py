"""No module of the package imports one that imports it, on the way to others or inside a function."""

import ast
import graphlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "python" / "syncopate"


def modules() -> dict[str, Path]:
    """By dotted name; a package has its own."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports_in(node: ast.AST) -> Iterator[ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            yield child
        elif not for_types_only(child):
            yield from imports_in(child)


def imported_by(name: str, file: Path, known: dict[str, Path]) -> set[str]:
    """The package itself aside, which every module of it imports."""
    package = name.split(".") if file.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in imports_in(ast.parse(file.read_text())):
        base = package[: len(package) - node.level + 1] if node.level else []
        base += node.module.split(".") if node.module else []
        for alias in node.names:
            whole = ".".join([*base, alias.name])
            found.add(whole if whole in known else ".".join(base))
    return found & known.keys() - {"syncopate", name}


def test_modules_import_each_other_in_no_circle():
    known = modules()
    assert len(known) > 100
    graph = {name: imported_by(name, file, known) for name, file in known.items() if name != "syncopate"}
    assert "syncopate.strategy" in graph["syncopate.ops.operator"]
    assert "syncopate.bench.case" in graph["syncopate.measure.search"]
    list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


@pytest.mark.parametrize("module", ["syncopate", "syncopate.command.run", "syncopate.command.demo"])
def test_triton_is_not_imported_before_it_is_known_how_kernels_run(module):
    # It reads TRITON_INTERPRET at its import: the commands set it where there is no GPU.
    pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    code = f"import sys, {module}; print('triton' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "PYTHONPATH": str(PACKAGE.parent)}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.stdout == "False\n", done.stdout + done.stderr
