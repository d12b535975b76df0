"""Seeds for a fuzzer: fuzz_seeds.py FOLDER SOURCE…. Files of the source folders, a Python file one kernel at a time.

A kernel comes with the imports and the constants of its file and with what it calls there; that is what the front end
reads of it, and a fuzzer tries many small inputs in the time of one large.
"""

import ast
import sys
from pathlib import Path


def is_kernel(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef) and any("jit" in ast.unparse(d) for d in node.decorator_list)


def names_in(node: ast.AST) -> set[str]:
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


def text_of(text: str, node: ast.stmt) -> str:
    lines = text.splitlines(keepends=True)
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return "".join(lines[first - 1 : node.end_lineno])


def kernels(text: str) -> list[str]:
    """One text for each kernel of a file; the whole file where it is no Python."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return [text]
    functions = {node.name: node for node in body if is_kernel(node)}
    values = {
        n.targets[0].id: n for n in body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name)
    }
    head = "".join(text_of(text, n) for n in body if isinstance(n, (ast.Import, ast.ImportFrom)))
    seeds = []
    for kernel in functions.values():
        wanted, parts = [kernel], []
        for node in wanted:  # grows: helpers of helpers
            parts.insert(0, text_of(text, node))
            for name in sorted(names_in(node)):
                more = functions.get(name) or values.get(name)
                if more is not None and more not in wanted:
                    wanted.append(more)
        seeds.append(head + "\n\n" + "\n\n".join(parts))
    return seeds


def main() -> None:
    folder, sources = Path(sys.argv[1]), sys.argv[2:]
    for source in sources:
        for path in sorted(Path(source).rglob("*")):
            if not path.is_file() or "__pycache__" in path.parts:
                continue
            text = path.read_bytes()
            parts = [text]
            if path.suffix == ".py":
                parts = [part.encode() for part in kernels(text.decode("utf-8", "surrogateescape"))]
            for number, part in enumerate(parts):
                (folder / f"{path.stem}_{number}").write_bytes(part)


if __name__ == "__main__":
    main()
