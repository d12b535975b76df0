"""`syncopate run mlp_chain:M=256,H=12288,F=6144`: two dependent products on one GPU, or on one host rank, checked
against the same kernels in stream order."""

from __future__ import annotations

import argparse
from typing import Any

from ..measure.stopwatch import stopwatch
from ..ranks import Place
from .run_calls import Result, judge, start, torch_device
from .spec import Spec, UsageError, require_memory


def run_chain(spec: Spec, options: argparse.Namespace) -> list[Result]:
    """y = x [M, H] @ w1 [H, F] @ w2 [F, H]; x is new in each call."""
    if options.ranks > 1:
        raise UsageError(
            f"{spec.text}: a chain is one GPU's, and moves nothing between ranks: leave out --ranks"
        )
    if options.trace:
        raise UsageError(f"{spec.text}: --trace records programs of one stage")
    m, h, f = (spec.extents[name] for name in ("m", "h", "f"))
    require_memory(options, 1, spec.dtype.itemsize * (2 * h * f + m * (3 * h + 2 * f)))

    def work(place: Place) -> Result:
        import torch

        from ..bench.mlp_chain import MlpChain
        from ..strategy import SMALL, Strategy

        device = torch_device(place, options)
        strategy = Strategy(tilings=(SMALL,)) if options.device == "host" else None

        def made(way: str | None) -> MlpChain:
            try:
                return MlpChain(
                    m, h, h, f, spec.dtype, device=options.device, strategy=strategy, way=way,
                    deadline=options.deadline,
                )  # fmt: skip
            except ValueError as error:
                raise UsageError(f"{spec.text}: {error}") from None

        def data(seed: int, *shape: int) -> torch.Tensor:
            made = torch.randn(*shape, generator=torch.Generator().manual_seed(options.seed + seed))
            return (made * shape[0] ** -0.5).to(spec.dtype).to(device)

        chain, weights, times = made(None), (data(1, h, f), data(2, f, h)), []
        plain = made("stream") if options.check else None

        def call(index: int) -> tuple[list[Any], list[Any] | None]:
            x = data(3 + index, m, h)
            y, right = (torch.full_like(x, float("nan")) for _ in range(2))
            started = stopwatch(device)
            chain(x, *weights, y)
            times.append(started())
            chain.check()
            return [y], None if plain is None else [plain(x, *weights, right)]

        result = judge(place.rank, options, call, times)
        for one in (chain, plain):
            if one is not None:
                one.close()
        return result

    return start(options, 1, work)
