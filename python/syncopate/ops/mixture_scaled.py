"""A mixture of experts of fp8 with scales for one shape (mixture_function.py calls it), expert parallel or tensor parallel. Weights
lie with K last, as wgmma takes fp8, and as torch._scaled_grouped_mm and vLLM have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from ..call.in_graphs import refuse_tracing, runs_whole
from ..kernels import gluon_moe_call
from ..kernels import moe_scaled as kernels
from .mixture import Moe
from .mixture_scales import Scales, shapes_of
from .mixture_tensor import TensorMoe
from .scales import SCALES, blocks


def own_weights(
    parallel: str, rank: int, size: int, w1: torch.Tensor, w2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the whole w1 [E, H, 2 F] and w2 [E, F, H], K last, what a rank has: K last, too."""
    if parallel == "expert":
        return w1.chunk(size)[rank], w2.chunk(size)[rank]
    of_w1, of_w2 = _columns(w1.transpose(1, 2), rank, size), w2.transpose(1, 2).chunk(size, 2)[rank]
    return of_w1.transpose(1, 2), of_w2.contiguous().transpose(1, 2)


def own_scales(
    parallel: str, rank: int, size: int, of_w1: torch.Tensor, of_w2: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the whole w1's and w2's scales those of what a rank has. Of rows, each column of w2 has one on all ranks."""
    if parallel == "expert":
        return of_w1.chunk(size)[rank], of_w2.chunk(size)[rank]
    mine = of_w2 if of_w2.dim() == 2 else of_w2.chunk(size, 2)[rank].contiguous()
    return _columns(of_w1, rank, size), mine


def _columns(of_w1: torch.Tensor, rank: int, size: int) -> torch.Tensor:
    """A rank's of the gates, then of what they gate."""
    return torch.cat([half.chunk(size, 1)[rank] for half in of_w1.chunk(2, 1)], 1)


class ScaledMoe(Moe):
    """As Moe, of x, w1 and w2 in float8_e4m3fn; y, and the weights of the routes where they are not fp32, have `out_dtype`, bf16 or
    fp16. w1 [E / ranks, H, 2 F] and w2 [E / ranks, F, H] are transposes of contiguous ones, [E / ranks, 2 F, H] and
    [E / ranks, H, F]. `scales`: "row" or "block" (mixture_scaled.shapes_of); calls give them, fp32, for x, w1 and w2. What the
    first product makes is fp8 as well, with a scale for each 128 elements of a row."""

    def __init__(
        self, *shape: Any, scales: str, out_dtype: torch.dtype = torch.bfloat16, **options: Any
    ) -> None:
        if scales not in SCALES[1:]:
            raise ValueError(f"scales: expected 'row' or 'block', got {scales!r}")
        self.scales = scales
        super().__init__(*shape, out_dtype=out_dtype, **options)

    def _options_of_kind(self) -> dict[str, Any]:
        return {"scales": self.scales, "out_dtype": self.out_dtype}

    @property
    def _is_gluon(self) -> bool:
        """Scales of blocks cost a product its pipeline in Triton: with many rows, Gluon's kernels."""
        tiles = self.tiling
        fits = gluon_moe_call.takes(tiles.block_m, tiles.block_n, tiles.block_k)
        return self.scales == "block" and self.streams and fits

    def _kernel(self, name: str) -> Any:
        if self._is_gluon and name in ("moe_up", "moe_down"):
            from ..kernels import gluon_moe_scaled

            return getattr(gluon_moe_scaled, f"gluon_{name}_scaled")
        return getattr(kernels, f"{name}_scaled", None) or super()._kernel(name)

    @property
    def streams(self) -> bool:
        return self._has_tma() and self.hidden % 16 == 0 and self.inner % 16 == 0

    def _stand_ins(self) -> dict[str, torch.Tensor]:
        def empty(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=self.device)

        own, h, f = self.own_experts, self.hidden, self.inner
        made = super()._stand_ins()
        made["w1"] = empty((own, 2 * f, h), self.dtype).transpose(1, 2)
        made["w2"] = empty((own, h, f), self.dtype).transpose(1, 2)
        return made | {name: empty(shape) for name, shape in self.scale_shapes().items()}

    def scale_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the scales that a call takes, in their order."""
        return shapes_of(self.scales, self.tokens, self.own_experts, self.hidden, self.inner)

    def _known(self, given: Mapping[str, torch.Tensor], tables: Mapping[str, torch.Tensor]) -> dict[str, Any]:
        per_row = blocks(self.hidden) if self.scales == "block" else 1
        return super()._known(given, tables) | {
            "given_scale_ptr": given["scale_x"], "stride_scales": self._strides.get("x_scale", 0),
            "SCALES": per_row, "WIDE": triton.next_power_of_2(per_row), "BLOCKS": self.scales == "block",
        }  # fmt: skip

    def _options(self, name: str) -> dict[str, int]:
        if self._is_gluon and name in ("moe_up", "moe_down"):
            return gluon_moe_call.OPTIONS
        return super()._options(name)

    def _product(self, name: str, rows: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> dict[str, Any]:
        w = w.transpose(1, 2)
        made = {"w_scale_ptr": scale}
        if not self.streams or w.data_ptr() % 16:
            return made | {name: rows, "w_ptr": w, "STREAMED": False}
        m, n, k = self.tiling.block_m, self.tiling.block_n, self.tiling.block_k
        of_rows, of_w = TensorDescriptor.from_tensor(rows, [m, k]), TensorDescriptor.from_tensor(w, [1, n, k])
        return made | {name: of_rows, "w_ptr": of_w, "STREAMED": True}

    def _gluon_products(self, given: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        w1, w2 = (given[name].transpose(1, 2) for name in ("w1", "w2"))
        up = gluon_moe_call.up_operands(self.heap["X"], w1, self.heap["A"])
        down = gluon_moe_call.down_operands(self.heap["A"], w2)
        up |= {
            "w_scale_ptr": given["scale_w1"],
            "STAGES": gluon_moe_call.stages_of("moe_up", self.tiling.stages),
        }
        down |= {
            "w_scale_ptr": given["scale_w2"],
            "STAGES": gluon_moe_call.stages_of("moe_down", self.tiling.stages),
        }
        return up, down

    def _products(self, given: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], dict[str, Any]]:
        if self._is_gluon:
            return self._gluon_products(given)
        return (
            self._product("x_ptr", self.heap["X"], given["w1"], given["scale_w1"]),
            self._product("a_ptr", self.heap["A"], given["w2"], given["scale_w2"]),
        )

    @runs_whole
    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
        scales: Scales = (),
    ) -> tuple[torch.Tensor, None, tuple[torch.Tensor, ...]]:
        """y [T, H]."""
        refuse_tracing(type(self).__name__)
        own, h, f = self.own_experts, self.hidden, self.inner

        def check() -> None:  # over nodes what one rank finds is an error on all
            if len(scales) != 3:
                raise ValueError(f"scales: expected those of x, of w1 and of w2, got {len(scales)} tensors")
            for name, w in (("w1", w1), ("w2", w2)):
                if w.dim() != 3 or not w.transpose(1, 2).is_contiguous():
                    raise ValueError(
                        f"{name}: products of fp8 take the transpose of a contiguous one: {name}.transpose(1, 2) must be contiguous"
                    )
            shapes = self.scale_shapes()
            factors = dict(zip(shapes, scales, strict=True))
            self._check({
                "x": (x, (self.tokens, h), (self.dtype,)), **self._routed(ids, weights),
                "w1": (w1.transpose(1, 2), (own, 2 * f, h), (self.dtype,)),
                "w2": (w2.transpose(1, 2), (own, h, f), (self.dtype,)),
                **{n: (factors[n], shape, (torch.float32,)) for n, shape in shapes.items()},
            })  # fmt: skip

        if self.over_nodes is not None:
            return self.over_nodes.run(check, (x, ids, weights, w1, w2), scales)
        check()
        if self._is_gluon:
            w1, w2 = gluon_moe_call.aligned(w1), gluon_moe_call.aligned(w2)
        made = self.scratch()
        out = torch.empty(self.tokens, h, dtype=self.out_dtype, device=self.device)
        given = {"given_ptr": x, "ids_ptr": ids, "weights_ptr": weights, "w1": w1, "w2": w2, "out_ptr": out}
        self.launch(made | given | dict(zip(self.scale_shapes(), scales, strict=True)))
        self._done(made["status_ptr"])
        return out, None, ()

    @classmethod
    def bytes_ahead(
        cls, *shape: Any, scales: str, out_dtype: torch.dtype = torch.bfloat16, **options: Any
    ) -> int:
        return super().bytes_ahead(*shape, scales=scales, out_dtype=out_dtype, **options)


class ScaledTensorMoe(ScaledMoe, TensorMoe):
    """As ScaledMoe, of tensor parallel experts: w1 [E, H, 2 F / ranks] and w2 [E, F / ranks, H] lie with K last, and their scales are
    those of what this rank has of them (mixture_scaled.own_scales)."""

    parallel: ClassVar[str] = "tensor"

    def own(self, w1: torch.Tensor, w2: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return own_weights(self.parallel, self.group.rank, self.group.size, w1, w2)
