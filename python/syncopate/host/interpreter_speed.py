"""Spares Triton's interpreter work that it repeats: results are the same, and a launch takes less than half of the time.

Triton's interpreter prepares `triton.language` anew whenever a kernel calls a function, which takes longer than the
function; makes a table of types for each operation; and computes whether integers overflow, though without its debug option
it drops the answer.
"""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def spare_repetition() -> None:
    """For all launches of this process."""
    import dataclasses

    from triton.runtime import interpreter

    _patch_once(interpreter)
    _keep_types(interpreter)
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _patch_once(interpreter: Any) -> None:
    """The language is patched once per launch, and once more for a function that sees another module of it."""
    tl, patch, scope_type = interpreter.tl, interpreter._patch_lang, interpreter._LangPatchScope
    patched: set[Any] = set()  # modules, until what patched them is restored

    def patch_lang(function: Any) -> Any:
        seen = {value for value in function.__globals__.values() if value is tl or value is tl.core}
        if seen and seen <= patched:
            return scope_type()  # which has nothing to restore
        scope = patch(function)
        patched.update(seen)
        restore = scope.restore

        def restore_all() -> None:
            patched.clear()
            restore()

        scope.restore = restore_all
        return scope

    interpreter._patch_lang = patch_lang


def _keep_types(interpreter: Any) -> None:
    tl, find = interpreter.tl, interpreter._get_np_dtype
    by_name: dict[str, Any] = {}

    def numpy_type(dtype: Any) -> Any:
        scalar = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if isinstance(scalar, tl.pointer_type):
            return find(scalar)
        found = by_name.get(scalar.name)
        if found is None:
            found = by_name[scalar.name] = find(scalar)
        return found

    interpreter._get_np_dtype = numpy_type
