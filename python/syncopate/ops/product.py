"""What the operators around one product have in common: its bias, its scales, and the functions that make and keep them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch

from ..call import known
from ..call.arguments import require_whole
from ..call.autocast import cast_operands, is_any_enabled
from ..call.cache import run
from ..call.executable import ALIGNED_ROWS, CONTIGUOUS
from ..call.in_graphs import refuse_tracing, runs_whole, traced
from ..call.laid_out import rows, weight
from ..call.places import check_operand, check_rows, require_tensors, written
from ..group import Group
from ..strategy import Strategy, given
from . import scales as scaling
from .differentiable import STRATEGY_REFUSED, recorded, wanted
from .no_elements import of_nothing
from .operator import Data, Operator, Weights, cached, members_of, problem_of
from .scales import Scales
from .shards import count, rows_of
from .unfused import activated


class OneProduct(Operator):
    """An operator around y = x [M, K] @ w [K, N]. It is made as `Kind(m, n, k, dtype, group, strategy=…)`, and called with
    x, w and maybe the tensor that takes y. `w_transposed`: w is given as [N, K]. `bias`: calls give a bias of this rank's
    as well, which is added to this rank's fp32 product: 1: [N], a value a column; 2: [M, N], one for each element. Where
    products are then summed over ranks, so are the biases: see Reduction.

    dtype float8_e4m3fn: y has `out_dtype`, bf16 or fp16, and w is given as [N, K]. `scales`: "row" or "block" (ops.scales):
    calls give the scales of x and of w as well, by which the fp32 product is multiplied."""

    shares_rows: ClassVar[bool] = False  # each rank gets some rows of y

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        dtype: torch.dtype = torch.bfloat16,
        group: Group | Any | None = None,
        *,
        strategy: Strategy | None = None,
        device: Any = None,
        bias: int = 0,
        out_dtype: torch.dtype | None = None,
        scales: str = "",
        **options: Any,
    ) -> None:
        if bias not in (0, 1, 2):
            raise ValueError(f"bias: expected 0, 1 or 2 axes, got {bias}")
        self.bias = int(bias)
        members = members_of(group, device)
        problem = problem_of(self.name, m, n, k, dtype, members, out=out_dtype, scales=scales)
        super().__init__(problem, members, strategy, **options)

    @runs_whole
    def __call__(
        self,
        x: torch.Tensor,
        w: torch.Tensor,
        out: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
        scales: Scales | tuple[()] = (),
        copy: torch.Tensor | None = None,
    ) -> torch.Tensor:
        refuse_tracing(type(self).__name__)
        given = {"bias": bias is not None, "scales": bool(scales), "copy": copy is not None}
        taken = {"bias": bool(self.bias), "scales": bool(self.problem.scales), "copy": self.copied}
        if given != taken:
            name = next(name for name in given if given[name] != taken[name])
            takes = "takes them" if name == "scales" else "takes one"
            raise ValueError(f"{name}: this op " + (takes if taken[name] else "was made without"))
        given = [one for one in (bias, *scales, copy) if one is not None]
        if isinstance(copy, torch.Tensor):
            written(copy)
        y = self.run(x, (w, *given), out)
        if copy is not None and not self.tiles_copy:
            copy.copy_(self.gathered())
        return y

    @property
    def tiles_copy(self) -> bool:
        """With `copied`: the kernel's tiles store what they load. Else it is kept in the heap, and copied after the product."""
        return self.copied and self.strategy.kernel == "gluon" and self.group.device == "cuda"

    @property
    def keeps(self) -> bool:
        return self.keep or (self.copied and not self.tiles_copy)

    def gathered(self) -> torch.Tensor:
        """Where it stays: what the last call gathered, [M, K] in the heap. It is the caller's until this rank's next call."""
        return self.fused.result(self.prepare(), "A")

    def shapes(self, rank):
        bias = {0: {}, 1: {"bias": (self.n,)}, 2: {"bias": (self.m, self.n)}}[self.bias]
        shapes = super().shapes(rank) | bias
        scales = scaling.shapes_of(self.problem.scales, self.x_rows(rank), self.n, self.k)
        return shapes | scales | ({"copy": (self.m, self.k)} if self.copied else {})

    def x_rows(self, rank: int) -> int:
        """Rows of x on `rank`."""
        return self.m

    def _layout_of(self, name):
        if self._is_met(name):
            return ALIGNED_ROWS
        return CONTIGUOUS if name == "bias" or name.startswith("scale") else super()._layout_of(name)

    def _is_met(self, name: str) -> bool:
        """Whether it is an x or y that the kernel meets where it is, as nothing of it moves."""
        parameter = {"x": "a_desc", "out": "c_desc"}.get(name)
        return parameter is not None and self._instead is None and parameter not in self.bindings[0]

    def _check_operand(self, name, tensor, shape):
        if name != "bias" and not name.startswith("scale"):
            super()._check_operand(name, tensor, shape)
            if self._is_met(name):
                check_rows(name, tensor)
            return
        check_operand(name, tensor, shape, self.dtype_of(name), self.group.device)
        if not tensor.is_contiguous():
            raise ValueError(f"{name}: it must be contiguous, its strides are {list(tensor.stride())}")

    def named(self, weights: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """By their names in `shapes`."""
        return dict(zip(self._place_of, weights, strict=True))

    def calls(self, heap, x, weights, y):
        (bound,) = self.bindings
        x = heap[bound["a_desc"]] if "a_desc" in bound else x
        y = heap[bound["c_desc"]] if "c_desc" in bound else y
        given = self.named(weights) | {name: heap[tensor] for name, tensor in self.input_scales.items()}
        return [self.products[0].call(x, given["w"], y, given.get("bias"), _scales(given), given.get("copy"))]

    def unfused(
        self,
        a: torch.Tensor,
        w: torch.Tensor,
        c: torch.Tensor,
        bias: torch.Tensor | None = None,
        scales: Scales | tuple[()] = (),
    ) -> torch.Tensor:
        """The unmodified kernel alone: c [M, N] = a [M, K] @ w + bias. Without `bias` where it takes one: 0."""
        if bias is None and self.bias:
            bias = self.operand("bias").zero_()
        self.products[0].run(a, w, c, bias, scales)
        return c

    def product_of(self, a: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        """The same into a new tensor; the weights are those of `a`."""
        given = self.named(weights)
        c = torch.full_like(self.empty(self.m, self.n), float("nan"))
        return self.unfused(a, given["w"], c, given.get("bias"), _scales(given))

    def product_of_all(
        self, x: Data, weights: Weights, part: slice = slice(None), axis: int = 0
    ) -> torch.Tensor:
        """Of this rank's w and those rows of every rank's x, put together along `axis`."""
        ranks = range(self.group.size)
        given = self.named(weights(self.group.rank))
        if "scale_x" in given:
            given["scale_x"] = torch.cat([self.named(weights(rank))["scale_x"][part] for rank in ranks])
        return self.product_of(torch.cat([x(rank)[part] for rank in ranks], axis), list(given.values()))


def _scales(given: Mapping[str, torch.Tensor]) -> Scales | tuple[()]:
    return (given["scale_x"], given["scale_w"]) if "scale_x" in given else ()


@runs_whole
def call_cached(
    kind: type[OneProduct],
    x: torch.Tensor,
    w: torch.Tensor,
    group: Any,
    out: torch.Tensor | None,
    *,
    gathered: int | None = None,
    bias: torch.Tensor | None = None,
    scales: Sequence[torch.Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
    **options: Any,
) -> torch.Tensor:
    """kind's function of x [M, K] and w [K, N]. `gathered`: the axis along which x is this rank's part. `scales`: of x
    and w, as a user gives them. `options`: of the operator; `strategy` only where a user gives one. The function itself does no more
    than call it, so that torch.compile may take its frame."""
    if torch.compiler.is_compiling():
        refused = {
            "scales": scales is not None,
            "out_dtype": out_dtype is not None,
            "a strategy": "strategy" in options,
        }
        return traced(kind.name, (x, w), group, refused, out, bias=bias, **options)
    if out is None and is_any_enabled():  # with `out` torch.mm casts nothing either
        x, w, bias = cast_operands(x, w, bias)
    called = kind, group, out_dtype, scales is None, *options.values()
    tensors = x, w, bias, *(scales if isinstance(scales, Sequence) else ())
    if (y := known.call(called, tensors, out)) is not None:
        return y
    require_tensors(
        x=x, w=w, **{name: one for name, one in (("bias", bias), ("out", out)) if one is not None}
    )
    if "axis" in options:
        require_whole("axis", options["axis"])
    if gathered not in (None, 0, 1):
        raise ValueError(f"axis: expected 0 (rows) or 1 (columns), got {gathered}")
    if bias is not None and bias.dim() not in (1, 2):
        raise ValueError(f"bias: expected [N], or an element for each of the product, got {list(bias.shape)}")
    members = members_of(group, "cuda" if x.is_cuda else "host")
    extents = list(x.shape)
    if gathered is not None and x.dim() == 2:
        extents[gathered] *= members.size
    if x.dim() != 2 or w.dim() != 2 or extents[1] != w.shape[0]:
        raise ValueError(f"expected x [rows, K] and w [K, N], got {list(x.shape)} and {list(w.shape)}")
    m, k, n = *extents, w.shape[1]
    given = {
        "x": x,
        "w": w,
        "bias": bias,
        **dict(zip(("scale of x", "scale of w"), tensors[3:], strict=False)),
    }
    if names := wanted({**given, "out": out}):
        refused = {
            "a product with scales has none": scales is not None,
            "out= takes no call that is recorded": out is not None,
            f"its rows, {m}, must be a multiple of the ranks then": kind.shares_rows and m % members.size > 0,
            STRATEGY_REFUSED: "strategy" in options,
        }
        return recorded(kind.name, members, (x, w), names, refused, bias=bias, **options)
    kinds, scales = scaling.taken(scales, x.shape[0], n, k)
    if 0 in (m, n, k):
        of_y = out_dtype or (torch.bfloat16 if x.dtype == torch.float8_e4m3fn else x.dtype)
        y = of_nothing(
            kind.name, members, (m, n, k), {"x": x, "w": w} | ({} if bias is None else {"bias": bias}),
            (count(rows_of(m, members.size, members.rank)) if kind.shares_rows else m, n),
            out=out, dtype=of_y, dtypes={"bias": (of_y,)}, options=str(options),
        )  # fmt: skip
        return activated(y if bias is None else y.add_(bias), options.get("activation", ""))
    laid, (given_w, transposed) = rows(x), weight(w)
    bias = None if bias is None else bias.contiguous()
    entry = cached(
        kind,
        (m, n, k),
        x.dtype,
        members,
        w_transposed=transposed,
        bias=0 if bias is None else bias.dim(),
        scales=kinds,
        out_dtype=out_dtype,
        **options,
    )
    y = run(entry.operator, laid, given_w, out, bias, scales)
    taken = [laid, given_w.t() if transposed else given_w, *([] if bias is None else [bias]), *scales]
    known.learn(called, tensors, taken, entry, transposed)
    return y


def function_of(kind: type[OneProduct], text: str):  # of which type checkers see the parameters
    """The function of a pair without a bias, of its operator's name; `text` says what it does."""

    def call(
        x: torch.Tensor,
        w: torch.Tensor,
        group: Group | Any | None = None,
        out: torch.Tensor | None = None,
        *,
        scales: Sequence[torch.Tensor] | None = None,
        out_dtype: torch.dtype | None = None,
        strategy: Strategy | str = "auto",
    ) -> torch.Tensor:
        return call_cached(kind, x, w, group, out, scales=scales, out_dtype=out_dtype, **given(strategy))

    call.__name__ = call.__qualname__ = kind.name
    call.__module__, call.__doc__ = kind.__module__, text
    call.__code__ = call.__code__.replace(co_name=kind.name)  # by its code torch.compile knows a function
    return call
