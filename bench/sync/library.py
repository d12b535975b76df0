"""Chains whose products are the library's own kernels (syncopate.kernels.gluon_matmul), as work.py's are of plain
Triton: GPT-3's and LLaMA's feed-forward, and RMSNorm before a product. LLaMA's gate, up and SwiGLU are one kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from syncopate import _syncopate
from syncopate.call.stated import without_filled
from syncopate.kernels.gluon_launch import GluonTiling, gluon_arguments, make_workspace
from syncopate.kernels.stated_matmul import stated_matmul
from work import Stage, Work, mlp, norm_product, swiglu


def fitting(tiling: GluonTiling, gated: bool = False) -> GluonTiling:
    """With as many stages as fit into shared memory, at most its own."""
    while tiling.shared_bytes(2, gated) > _syncopate.tune.GLUON_SHARED_BYTES:
        tiling = replace(tiling, stages=tiling.stages - 1)
    return tiling


@dataclass
class Product:
    """C = act(A @ Wᵀ); gated: W has twice the columns of C, C = act(A @ W[:N]ᵀ) * (A @ W[N:]ᵀ)."""

    a: torch.Tensor
    w: torch.Tensor
    c: torch.Tensor
    bind: tuple[str, str]
    activation: str = ""
    gated: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        return (*self.c.shape, self.a.shape[1])

    def stage(
        self, tiling: GluonTiling, *, programs: int = 132, early: bool = True, pdl: bool = False
    ) -> Stage:
        """`early`: the first blocks of W leave before the wait. `pdl`: for programmatic launch with griddepcontrol.wait."""
        m, n, k = self.shape
        tiling = fitting(tiling, self.gated)
        workspace = make_workspace(tiling, m, n, self.a.device, self.gated)
        arguments = gluon_arguments(
            self.a,
            self.w,
            self.c,
            (m, n, k),
            tiling,
            w_transposed=True,
            workspace=workspace,
            activation=self.activation,
            gated=self.gated,
            B_EARLY=early,
            AFTER_KERNEL=pdl,
        )
        return Stage(
            stated_matmul(True, self.gated),
            dict(zip(("a_desc", "c_desc"), self.bind, strict=True)),
            tiling.grid(m, n, programs),
            without_filled(arguments) | tiling.options(),
        )


@dataclass
class LibraryWork:
    """A chain at one size, as Work is; `stages` takes a tiling for each product."""

    work: Work
    before: list[Stage]  # plain kernels
    products: list[Product]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)

    def stages(self, tilings: Sequence[GluonTiling], **options: Any) -> list[Stage]:
        made = [one.stage(tiling, **options) for one, tiling in zip(self.products, tilings, strict=True)]
        return [*self.before, *made]


def feed_forward(
    m: int, hidden: int, inner: int, gated: bool, device: str = "cuda", dtype: torch.dtype = torch.float16
) -> LibraryWork:
    work = (swiglu if gated else mlp)(m, hidden, inner, device, dtype)
    x, w1, w2 = (work.rest[name] for name in ("x", "w1", "w2"))
    h, y = work.arrays["H"], work.arrays["Y"]
    up = Product(x, w1, h, ("X", "H"), "silu" if gated else "relu", gated)
    work.made = ["H", "Y"]
    return LibraryWork(work, [], [up, Product(h, w2, y, ("H", "Y"))])


def normed(
    m: int, hidden: int, n: int, device: str = "cuda", dtype: torch.dtype = torch.float16
) -> LibraryWork:
    work = norm_product(m, hidden, n, device, dtype)
    return LibraryWork(
        work, [work.rest["norm"]], [Product(work.arrays["H"], work.rest["w"], work.arrays["Y"], ("H", "Y"))]
    )
