"""Two dependent products on one GPU, y [M, H] = x [M, H] @ w1 [H, F] @ w2 [F, H]: by two kernels of the library, which
`sy.fuse` overlaps tile by tile where that is the faster way. No data moves between ranks; several ranks each do all of
it."""

from __future__ import annotations

from typing import Any

import torch

from ..call.stage_call import Stage
from ..face.chain import ChainKernel
from ..group import alone
from ..ops.product_kernel import Product
from ..strategy import PROGRAMS_ON_HOST, Problem, Strategy, complete, require


class MlpChain:
    """One set of its arrays, called as an operator: op(x, w1, w2, y). `way` as of sy.fuse."""

    name = "mlp_chain"
    input = output = ""

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        f: int,
        dtype: torch.dtype = torch.bfloat16,
        *,
        device: str = "cuda",
        strategy: Strategy | None = None,
        way: str | None = None,
        deadline: float = 30.0,
    ) -> None:
        self.way = way
        group = alone(device)
        num_sms = group.multiprocessors(PROGRAMS_ON_HOST)
        # Its two products are those of a feed-forward block on one rank.
        problem = Problem("feed_forward", m, n, k, dtype, 1, num_sms, device, f)
        require(problem)
        self.strategy = complete(problem, Strategy(kernel="gluon") if strategy is None else strategy)
        gluon, programs = self.strategy.kernel == "gluon", self.strategy.programs
        self.products = [
            Product(*shape, tiling, programs, gluon=gluon)
            for shape, tiling in zip(problem.products, self.strategy.tilings, strict=True)
        ]
        where = torch.device("cuda", group.ordinal) if device == "cuda" else torch.device("cpu")
        self.inner = torch.empty(m, f, dtype=dtype, device=where)
        stages = [
            Stage(product.kernel, bind)
            for product, bind in zip(self.products, ({"c_desc": "H"}, {"a_desc": "H"}), strict=True)
        ]
        self.chain = ChainKernel(stages, group, way=way, deadline=deadline)

    @property
    def plan(self) -> Any:
        return self.chain.plan

    def __call__(self, x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        up, down = self.products
        if self.way == "stream" and not x.is_cuda:  # where a chain knows no other way than tiles
            up.run(x, w1, self.inner)
            down.run(self.inner, w2, y)
            return y
        self.chain.run([up.call(x, w1, self.inner), down.call(self.inner, w2, y)])
        return y

    def run_local(self, *_: torch.Tensor) -> None:
        raise NotImplementedError("a chain has no transfers to run without")

    def check(self) -> None:
        self.chain.check()

    def close(self) -> None:
        self.chain.close()
