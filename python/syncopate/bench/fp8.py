"""Cases of products of fp8, with or without scales (ops.scales): those of case.py with other tensors."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.distributed as dist

from ..ops.scales import SCALED, shapes_of
from ..ops.unfused import multiply
from ..strategy import Strategy
from .case import Case, Rotating
from .shapes import Shape

FP8 = torch.float8_e4m3fn


class OfFp8(Case):
    """Comes before a case of one product. x and w are of fp8, w the transpose of a contiguous [N, K]; y, and what is of its
    shape, has `out`. `scale_x`, `scale_w`: where there are `scales`."""

    whole: type[Case]  # the same case in one precision
    scales: str

    def __init__(self, shape: Shape, seed: int = 1234, out: torch.dtype = torch.bfloat16) -> None:
        self._pair: Any = None
        super().__init__(shape, seed, out)

    def make_tensors(self):
        super().make_tensors()
        n, k = self.shape.n, self.shape.k
        self.x = Rotating(x.to(FP8) for x in self.x)
        self.w = Rotating(w.t().contiguous().to(FP8) for w in self.w)
        self.scale_x, self.scale_w = Rotating(), Rotating()
        for x in self.x:
            for scale, extents in zip(
                (self.scale_x, self.scale_w), shapes_of(self.scales, len(x), n, k).values(), strict=False
            ):
                scale.append(torch.rand(*extents, device=self.device) + 0.5)
        if hasattr(self, "gathered"):
            rows = self.gathered[0].shape[0]
            self.gathered = Rotating(a.to(FP8) for a in self.gathered)
            extents = shapes_of(self.scales, rows, n, k).get("scale_x", (0,))
            self.gathered_scale = torch.ones(*extents, device=self.device)

    def make_right(self):
        """By the same case of exact inputs, in fp32."""
        exact = object.__new__(self.whole)
        vars(exact).update(vars(self), dtype=torch.float32)
        exact.make_tensors()
        exact.x = Rotating(self._exact(x, i, self.scale_x, 1) for i, x in enumerate(self.x))
        exact.w = Rotating(self._exact(w, i, self.scale_w, SCALED).t() for i, w in enumerate(self.w))
        return exact.make_right()

    def _exact(self, tensor: torch.Tensor, i: int, scales: Rotating, rows: int) -> torch.Tensor:
        """`rows`: of a tensor, that share a scale of a block."""
        whole = tensor.float()
        if self.scales == "row":
            return whole * scales[i][:, None]
        if self.scales == "block":
            wide = scales[i].repeat_interleave(rows, 0)[: whole.shape[0]]
            return whole * wide.repeat_interleave(SCALED, 1)[:, : whole.shape[1]]
        return whole

    @property
    def options(self):
        return {"w_transposed": True, "scales": self.scales, "out_dtype": self.dtype}

    @property
    def dtype_of_x(self):
        return FP8

    def scales_of(self, i: int) -> tuple[torch.Tensor, ...]:
        return (self.scale_x(i), self.scale_w(i)) if self.scales else ()

    @property
    def pair(self) -> Any:
        """The operator as the vendors' libraries do it. Raises ValueError where they do not."""
        if self._pair is None:
            self._pair = self.operators(count=1, strategy=Strategy(unfused=True))[0]
        return self._pair

    def multiply(self, i, out):
        a, w, _, *rest = self.operands(i)
        scales = rest[1] if rest else ()
        given = dict(zip(("scale_x", "scale_w"), scales, strict=False))
        return multiply(self.pair, a, {"w": w, **given}, out)

    def collective(self, i):
        if not hasattr(self, "gathered"):
            return super().collective(i)
        move = dist.all_to_all_single if self.operator == "all_to_all_matmul" else dist.all_gather_into_tensor
        move(self.gathered(i).view(torch.uint8), self.x(i).view(torch.uint8))

    def unfused(self, i):
        return self.pair(self.x(i), self.w(i), self.out(i), None, self.scales_of(i))

    def operands(self, i):
        a, w, c = super().operands(i)
        if not self.scales:
            return a, w, c
        scale_a = self.gathered_scale if hasattr(self, "gathered") else self.scale_x(i)
        return a, w, c, None, (scale_a, self.scale_w(i))


@cache
def of_fp8(case: type[Case], scales: str) -> type[Case]:
    """The case with inputs of fp8. Raises ValueError for one of several products."""
    if case.sharded == "F":
        raise ValueError(f"{case.operator} takes no fp8")
    return type(f"{case.__name__}OfFp8", (OfFp8, case), {"whole": case, "scales": scales})
