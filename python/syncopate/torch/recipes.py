"""How C++ carries out the calls of a custom op that look like one that Python has made (python/torch_ops/interface.hpp): the
steps of a fused call, or of the collective and the product that take its place, all of them data. The op's call that is being
set up in this thread gets them; any other use of these functions leaves nothing."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d as c10d

from .. import _syncopate
from ..call import cache
from . import buckets, report

if TYPE_CHECKING:  # ops import Triton, before its interpreter can be asked for
    from ..ops.unfused import Unfused

FP32 = 6  # torch's number of the dtype

LIBRARY = Path(_syncopate.__file__).with_name("libsyncopate_torch.so")


def load() -> list[tuple[str, str]]:
    """Loads the ops' library. The schemas that are to be defined before `start`."""
    schemas = _syncopate.load_torch_ops(os.fspath(LIBRARY), _failed)
    cache.on_removal.append(lambda entry: _syncopate.drop_recipes(entry.token))
    cache.last_uses.append(lambda entry: _syncopate.last_use(entry.token))
    report.counted.append(_syncopate.recipe_counts)
    report.cleared.append(_syncopate.clear_recipe_counts)
    buckets.on_change.append(_syncopate.set_generation)
    _watch_groups()
    atexit.register(_syncopate.drop_all_recipes)  # before the interpreter ends: recipes hold Python's objects
    os.register_at_fork(after_in_child=_syncopate.drop_all_recipes)
    return schemas


start = _syncopate.start_torch_ops


def _failed(handle: int, error: BaseException) -> None:
    """A call by C++ has failed with this. What is to be forgotten then is so by every way of calling."""
    for entry in list(cache.entries.values()):
        for operator in cache.parts_of(entry.operator):
            executable = getattr(operator, "_executable", None)
            if executable is None or executable.native.handle != handle:
                continue
            if cache.is_final(error):
                cache.forget(entry.operator)
            elif operator.drops():
                _syncopate.drop_recipes(entry.token)


def _watch_groups() -> None:
    """Recipes know a process group by its name, which another one may have later."""
    for name in ("_unregister_process_group", "_unregister_all_process_groups"):
        original = getattr(c10d, name, None)
        if original is None:
            continue

        def forgetting(*args: Any, original: Any = original) -> Any:
            _syncopate.forget_all_calls()
            if args:
                _syncopate.drop_recipes_of_group(args[0])
            else:
                _syncopate.drop_all_recipes()
            return original(*args)

        setattr(c10d, name, forgetting)


@functools.cache
def takes_names() -> bool:
    """Whether torch's collectives take the name of a group as a text. From 2.13 on they take "any", which torch's C interface
    does not pass: then Python makes that step (custom_ops.py)."""
    schema = torch.ops._c10d_functional.all_reduce_.default._schema
    return str(schema.arguments[-1].type) == "str"


class Recipe:
    """The steps of one kind of call. Variables are numbers; the call's tensors are the first, in the order of the schema."""

    def __init__(self, name: str, group_name: str, inputs: int, outcome: str, token: int) -> None:
        counted = name.replace("matmuls", "matmul")  # as calls.find counts those of several products
        self.made = _syncopate.Recipe(counted, outcome, token, group_name, inputs)
        self._constants: list[tuple[int, torch.Tensor]] = []
        self._group_name = group_name

    @property
    def group_size(self) -> int:
        return c10d._resolve_process_group(self._group_name).size()

    def call(self, op: str, *arguments: Any, keeps: bool = True) -> int:
        """torch's op: NAMESPACE::NAME or with .OVERLOAD."""
        name, _, overload = op.partition(".")
        return self.made.call(name, overload, list(arguments), keeps)

    def constant(self, tensor: torch.Tensor) -> int:
        """The variable of a tensor that every call has."""
        variable = self.made.variable()
        self._constants.append((variable, tensor))
        return variable

    def learn(self, *results: int) -> None:
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # into a graph goes the operator of another stream
        for variable, tensor in self._constants:  # held for as long as the recipe is known: of no other
            self.made.constant(variable, torch.ops.syncopate._hold(tensor))
        self.made.give(list(results))
        self.made.learn()

    # Products and collectives, as unfused.py and ops/unfused.py do them.

    def product(self, x: int, w: int, bias: int | None = None) -> int:
        if bias is None:
            return self.call("aten::mm", var(x), var(w))
        turned = self.call("aten::t", var(w))
        return self.call("aten::linear", var(x), var(turned), maybe(bias))  # by addmm

    def activated(self, x: int, activation: str) -> int:
        if not activation:
            return x
        given = [text("tanh")] if activation == "gelu" else []
        return self.call(f"aten::{activation}", var(x), *given)

    def gather(self, x: int) -> int:
        self.made.contiguous(x)
        return self._collected("all_gather_into_tensor", x, number(self.group_size))

    def scatter(self, x: int) -> int:
        self.made.contiguous(x)
        return self._collected("reduce_scatter_tensor", x, text("sum"), number(self.group_size))

    def reduce(self, x: int) -> int:
        return self._collected("all_reduce_", x, text("sum"))

    def exchange(self, x: int) -> int:
        self.made.contiguous(x)
        return self._collected("all_to_all_single", x)

    def _collected(self, collective: str, x: int, *arguments: Any) -> int:
        if collective == "all_to_all_single" or not takes_names():
            return self.call("syncopate::_collect", var(x), text(collective), text(self._group_name))
        made = self.call(f"_c10d_functional::{collective}", var(x), *arguments, text(self._group_name))
        return self.call("_c10d_functional::wait_tensor", var(made))

    def operator(self, operator: Any, variables: dict[str, int], out_of: int) -> int | None:
        """A call of an operator of ops. `variables`: of x and the weights by name, -1 - v for the transpose of v; `out_of`:
        that of a tensor of y's dtype. None where it cannot be told so."""
        from ..ops.block import Apart
        from ..ops.unfused import Unfused

        instead = getattr(operator, "_instead", None)
        if isinstance(instead, Apart):
            return None  # a recipe has one executable: were the second refused, the first would have run
        if isinstance(instead, Unfused):
            return self._two_shots(operator, instead, variables, out_of)
        if operator._executable is None:
            return None
        out = self.made.empty([operator.out_rows, operator.n], out_of)
        operands = [variables[name] for name in operator._shapes]
        self.made.run(operator._executable.native, [*operands, out])
        return out

    def _two_shots(self, operator: Any, pair: Unfused, variables: dict[str, int], out_of: int) -> int | None:
        if pair.reduced is None or "bias" in variables:
            return None
        place, w = self.constant(pair.reduced), variables["w"]
        whole = -1 - w if w < 0 else w  # of the call's own tensor [K, N], whichever way it lies
        self.call("aten::mm.out", var(variables["x"]), var(whole), var(place), keeps=False)
        out = self.made.empty([operator.out_rows, operator.n], out_of)
        given = var(place), text("sum"), text(self._group_name), var(out)
        self.call("symm_mem::two_shot_all_reduce_out", *given, keeps=False)
        return out


def var(number: int) -> tuple[str, bool, int]:
    return "variable", False, number


def maybe(number: int | None) -> tuple[str, bool, Any]:
    return ("nothing", True, None) if number is None else ("variable", True, number)


def text(value: str) -> tuple[str, bool, str]:
    return "text", False, value


def number(value: int) -> tuple[str, bool, int]:
    return "integer", False, value


def learn_product(
    name: str, group_name: str, entry: cache.Entry, w_transposed: bool, bias: torch.Tensor | None
) -> None:
    """Of an op of x, w and maybe a bias, by the operator of the entry."""
    recipe = Recipe(name, group_name, 3, entry.outcome, entry.token)
    for given in (0, 1):
        recipe.made.rows(given)
    if bias is not None:
        recipe.made.contiguous(2)
    variables = {"x": 0, "w": -2 if w_transposed else 1} | ({} if bias is None else {"bias": 2})
    if (out := recipe.operator(entry.operator, variables, 0)) is not None:
        recipe.learn(out)


def learn_block(group_name: str, entry: cache.Entry) -> None:
    """Of feed_forward."""
    recipe = Recipe("feed_forward", group_name, 3, entry.outcome, entry.token)
    for given in (0, 1, 2):
        recipe.made.rows(given)
    out = recipe.operator(entry.operator, {"x": 0, "w1": 1, "w2": 2}, 0)
    if out is not None:
        recipe.learn(out)


def learn_attention(group_name: str, entry: cache.Entry) -> None:
    """Of attention in one call, with heads as wide as the kernel's."""
    operator = entry.operator
    if operator._executable is None or operator.padded_d != operator.d:
        return
    recipe = Recipe("attention", group_name, 3, entry.outcome, entry.token)
    for given in (0, 1, 2):
        recipe.made.contiguous(given)
    rows = [operator.b, operator.h, operator.num_rows]
    out, lse = recipe.made.empty([*rows, operator.d], 0), recipe.made.empty(rows, 0, FP32)
    recipe.made.run(operator._executable.native, [0, 1, 2, out, lse])
    recipe.learn(out, lse)


def learn_several(
    name: str,
    group_name: str,
    entry: cache.Entry,
    first: int,
    w_transposed: bool,
    count: int,
    biased: bool,
    returned: bool,
) -> None:
    """Of an op of x and `count` w: the operator's of number `first`, the others on what has come."""
    operator = entry.operator
    recipe = Recipe(name, group_name, 1 + count * (1 + biased), entry.outcome, entry.token)
    recipe.made.rows(0)
    recipe.made.rows(1 + first)
    biases = [1 + count + index if biased else None for index in range(count)]
    variables = {"x": 0, "w": -2 - first if w_transposed else 1 + first}
    if biased:
        recipe.made.contiguous(biases[first])
        variables["bias"] = biases[first]
    if operator.copied:
        whole = variables["copy"] = recipe.made.empty([operator.m, operator.k], 0)
    out = recipe.operator(operator, variables, 0)
    if out is None:
        return
    if not operator.copied:
        whole = recipe.constant(operator.gathered())
    elif not operator.tiles_copy:
        copied = operator.gathered()
        recipe.call("aten::copy_", var(whole), var(recipe.constant(copied)), ("truth", False, 0), keeps=False)
    products = [
        out if index == first else recipe.product(whole, 1 + index, biases[index]) for index in range(count)
    ]
    recipe.learn(*products, *([whole] if returned else []))


def learn_pair(name: str, group_name: str, entry: cache.Entry, **options: Any) -> None:
    """Of an op without an operator: the collective and the products, as unfused.py makes them."""
    if options.get("axis"):
        return
    count = options.get("count", 1)
    biased = options.get("biased", False)
    several = "count" in options
    inputs = 3 if not several else 1 + count * (1 + biased)
    recipe = Recipe(name, group_name, inputs, entry.outcome, entry.token)
    if name == "feed_forward":
        inner = recipe.activated(
            recipe.call("aten::mm", var(recipe.gather(0)), var(1)), options["activation"]
        )
        recipe.learn(recipe.scatter(recipe.call("aten::mm", var(inner), var(2))))
        return
    first_bias = 1 + count if biased else None
    if name.startswith("all_gather"):
        whole = recipe.gather(0)
    elif name.startswith("all_to_all"):
        whole = recipe.exchange(0)
    else:
        made = recipe.product(0, 1, first_bias)
        ends = {
            "matmul_reduce_scatter": recipe.scatter,
            "matmul_all_reduce": recipe.reduce,
            "matmul_all_to_all": recipe.exchange,
        }
        recipe.learn(ends[name](made))
        return
    biases: Sequence[int | None] = [None if first_bias is None else first_bias + i for i in range(count)]
    products = [recipe.product(whole, 1 + index, biases[index]) for index in range(count)]
    if not several:
        products = [recipe.activated(products[0], options.get("activation", ""))]
    recipe.learn(*products, *([whole] if options.get("returned") else []))
