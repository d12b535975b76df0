"""`syncopate run feed_forward:M=…,K=…,F=…,N=…`: fresh data for every call, and with --check the unfused kernels on every
rank's data, put together here."""

from __future__ import annotations

import argparse

from . import run

KEYS = ("M", "N", "K", "F", "dtype", "rows", "split", "pull", "activation")


def run_feed_forward(spec: str, pairs: dict[str, str], options: argparse.Namespace) -> list[run.Result]:
    """x is M x K on all ranks together; w1 is K x F and w2 F x N on every rank."""
    for key in pairs:
        if key not in KEYS:
            raise run.UsageError(f"{spec}: unknown key '{key}'; known: {', '.join(sorted(KEYS))}")
    m, n, k, f = (run.number_of(spec, pairs, key) for key in "MNKF")
    rows, split, pull = (
        run.number_of(spec, pairs, key, d) for key, d in (("rows", 1), ("split", 0), ("pull", 0))
    )
    from .fused import DTYPES

    dtype = DTYPES.get(pairs.get("dtype", "bf16"))
    if dtype is None:
        raise run.UsageError(f"{spec}: unknown dtype '{pairs['dtype']}'; expected bf16, fp16 or fp32")
    ranks = run.rank_count(options)
    from . import ops
    from .kernels.matmul import ACTIVATIONS

    activation = pairs.get("activation", "")
    if activation not in ACTIVATIONS:
        known = ", ".join(filter(None, ACTIVATIONS))
        raise run.UsageError(f"{spec}: unknown activation '{activation}'; known: {known}")
    try:
        ops.require_supported(m, f, k, dtype)
        ops.require_supported(m, n, f, dtype)
    except ValueError as error:
        raise run.UsageError(f"{spec}: {error}") from None
    run.require_memory(
        options, ranks, dtype.itemsize * (3 * m * k + 3 * m * f + 5 * m * n + 2 * f * (n + k)) + 8 * m * n
    )

    def work(place: run.Place) -> run.Result:
        import torch

        from .stopwatch import stopwatch

        group = run.make_group(place, options)
        device = run.torch_device(place, options)
        host = options.device == "host"
        tiling = ops.Tiling(32, 32, 32, 2, -1, "ieee", 2)
        op = ops.FeedForward(
            m, k, f, n, dtype, group, activation=activation, tilings=(tiling, tiling) if host else None,
            rows=max(rows, 1), split=split or None, pull=bool(pull), deadline=options.deadline,
            host_delay=options.delay_ms * 1e-3, seed=options.seed + place.rank,
        )  # fmt: skip

        def data(height: int, width: int, *seed: int) -> torch.Tensor:
            number = options.seed + sum(n * 7919**i for i, n in enumerate(seed))
            made = torch.randn(height, width, generator=torch.Generator().manual_seed(number))
            return (made * height**-0.5).to(dtype).to(device)

        def weights(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
            return data(k, f, 1, rank), data(f, n, 2, rank)

        def expected(x: torch.Tensor, mine: slice) -> torch.Tensor:
            total = None
            for rank in range(place.size):  # in rank order, rounded once: as the runtime sums
                h, c = (torch.full((m, w), float("nan"), dtype=dtype, device=device) for w in (f, n))
                part = op.unfused(x, *weights(rank), h, c)
                total = part.float() if total is None else total + part.float()
            return total[mine].to(dtype)

        own = weights(place.rank)
        first = sum(m // place.size + (r < m % place.size) for r in range(place.rank))
        mine = slice(first, first + op.shard_rows)

        def call(index: int) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
            x = data(m, k, 3, index)
            out = torch.full((op.shard_rows, n), float("nan"), dtype=dtype, device=device)
            started = stopwatch(device)
            op(x[mine].contiguous(), *own, out)
            times.append(started())
            op.check()
            return [out], [expected(x, mine)] if options.check else None

        times: list[float] = []
        result = run.judge(place.rank, options, call, times)
        op.close()
        return result

    return run.start(options, ranks, work)
