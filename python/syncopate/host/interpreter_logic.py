"""`and`, `or` and `not` of blocks in Triton's interpreter, which takes them for Python's: it gives one of the operands. A compiler
takes them for each element."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any

from ..device.versions import triton_before


def joined(takes_all: bool, *operands: Callable[[], Any]) -> Any:
    """`and` (`takes_all`) or `or` of what the operands give; of numbers as Python does it."""
    made = operands[0]()
    for operand in operands[1:]:
        if is_block(made):
            made = made.logical_and(operand()) if takes_all else made.logical_or(operand())
        elif bool(made) == takes_all:
            made = operand()
    return made


def inverted(value: Any) -> Any:
    return value == 0 if is_block(value) else not value


def is_block(value: Any) -> bool:
    import triton.language as tl

    return isinstance(value, tl.tensor) and value.type.is_block()


@functools.cache
def repair_logic() -> None:
    """Of kernels that the interpreter reads from now on."""
    from triton.runtime import interpreter

    assign = interpreter.ASTTransformer.visit_Assign

    def call(function: str, *arguments: ast.expr) -> ast.Call:
        return ast.Call(ast.Name(function, ast.Load()), list(arguments), [])

    def later(value: ast.expr) -> ast.Lambda:
        return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)

    def visit_BoolOp(self: Any, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        if any(isinstance(part, ast.NamedExpr) for part in ast.walk(node)):
            return node  # which a function of its own would bind elsewhere
        takes_all = ast.Constant(isinstance(node.op, ast.And))
        return call("_syncopate_joined", takes_all, *map(later, node.values))

    def visit_UnaryOp(self: Any, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        return call("_syncopate_inverted", node.operand) if isinstance(node.op, ast.Not) else node

    def visit_Assign(self: Any, node: ast.Assign) -> ast.Assign:
        node.value = self.visit(node.value)
        return assign(self, node)

    interpreter.ASTTransformer.visit_BoolOp = visit_BoolOp
    interpreter.ASTTransformer.visit_UnaryOp = visit_UnaryOp
    if triton_before(3, 9):  # since then it looks into what is assigned, and twice is once too often
        interpreter.ASTTransformer.visit_Assign = visit_Assign
    # A kernel sees the names of the interpreter's module.
    interpreter._syncopate_joined, interpreter._syncopate_inverted = joined, inverted
