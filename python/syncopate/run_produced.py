"""`syncopate run OPERATOR:…` for the operators of ops_produce: fresh data for every call, and with --check the unfused
kernel on every rank's data, put together here."""

from __future__ import annotations

import argparse

from . import run

OPERATORS = {
    "matmul_reduce_scatter": "MatmulReduceScatter",
    "matmul_all_reduce": "MatmulAllReduce",
    "matmul_all_to_all": "MatmulAllToAll",
    "all_to_all_matmul": "AllToAllMatmul",
}
KEYS = ("M", "N", "K", "dtype", "split", "backend")
BACKENDS = ("auto", "copy_engine", "host", "tma_dedicated", "ldst_dedicated", "tma_inline", "ldst_inline")


def backend_of(spec: str, pairs: dict[str, str]) -> dict[str, str]:
    """The operator's option `backend`, where the key is given."""
    backend = pairs.get("backend")
    if backend is not None and backend not in BACKENDS:
        raise run.UsageError(f"{spec}: unknown backend '{backend}'; expected one of {', '.join(BACKENDS)}")
    return {} if backend is None else {"backend": backend}


def run_produced(
    name: str, spec: str, pairs: dict[str, str], options: argparse.Namespace
) -> list[run.Result]:
    """x is M x K and w is K x N on every rank; `split`: chunks per shard, or per block; `backend`: what transfers go by."""
    for key in pairs:
        if key not in KEYS:
            raise run.UsageError(f"{spec}: unknown key '{key}'; known: {', '.join(sorted(KEYS))}")
    m, n, k = (run.number_of(spec, pairs, key) for key in "MNK")
    split = run.number_of(spec, pairs, "split", 0)
    backend = backend_of(spec, pairs).get("backend", "auto")
    from .fused import DTYPES

    dtype = DTYPES.get(pairs.get("dtype", "bf16"))
    if dtype is None:
        raise run.UsageError(f"{spec}: unknown dtype '{pairs['dtype']}'; expected bf16, fp16 or fp32")
    ranks = run.rank_count(options)
    from . import ops, ops_produce

    operator = getattr(ops_produce, OPERATORS[name])
    try:
        ops.require_supported(m, n, k, dtype)
        if operator in (ops_produce.MatmulAllToAll, ops_produce.AllToAllMatmul):
            ops_produce.require_blocks(m, ranks)
    except ValueError as error:
        raise run.UsageError(f"{spec}: {error}") from None
    # x of each rank in turn (in fp32, then converted), w, the heap's two tensors, the outputs, what is checked
    run.require_memory(options, ranks, dtype.itemsize * (2 * m * k + 2 * n * k + 5 * m * n) + 8 * m * (k + n))

    def work(place: run.Place) -> run.Result:
        import torch

        from .stopwatch import stopwatch

        group = run.make_group(place, options)
        device = run.torch_device(place, options)
        tiling = ops.Tiling(32, 32, 32, 2, -1, "ieee", 2) if options.device == "host" else None
        op = operator(
            m, n, k, dtype, group, tiling=tiling, split=split or None, backend=backend, deadline=options.deadline,
            host_delay=options.delay_ms * 1e-3, seed=options.seed + place.rank,
        )  # fmt: skip

        def data(rows: int, columns: int, *seed: int) -> torch.Tensor:
            number = options.seed + sum(n * 7919**i for i, n in enumerate(seed))
            made = torch.randn(rows, columns, generator=torch.Generator().manual_seed(number))
            return made.to(dtype).to(device)

        def x_of(rank: int, index: int) -> torch.Tensor:
            return data(m, k, 1 + index, rank)

        def w_of(rank: int) -> torch.Tensor:
            return data(k, n, 0, 0, 1 + rank)

        def alone(x: torch.Tensor, rank: int) -> torch.Tensor:
            return op.unfused(x, w_of(rank), torch.full((m, n), float("nan"), dtype=dtype, device=device))

        def expected(index: int) -> torch.Tensor:
            block = slice(place.rank * (m // place.size), (place.rank + 1) * (m // place.size))
            if operator is ops_produce.AllToAllMatmul:
                blocks = [x_of(rank, index)[block] for rank in range(place.size)]
                return alone(torch.cat(blocks), place.rank)
            parts = [alone(x_of(rank, index), rank) for rank in range(place.size)]
            if operator is ops_produce.MatmulAllToAll:
                return torch.cat([part[block] for part in parts])
            total = parts[0].float()
            for part in parts[1:]:  # in rank order, rounded once: as the runtime sums
                total = total + part.float()
            if operator is ops_produce.MatmulAllReduce:
                return total.to(dtype)
            first = sum(m // place.size + (r < m % place.size) for r in range(place.rank))
            return total[first : first + op.out_rows].to(dtype)

        w = w_of(place.rank)

        def call(index: int) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
            x = x_of(place.rank, index)
            out = torch.full((op.out_rows, n), float("nan"), dtype=dtype, device=device)
            started = stopwatch(device)
            op(x, w, out)
            times.append(started())
            op.check()
            return [out], [expected(index)] if options.check else None

        times: list[float] = []
        result = run.judge(place.rank, options, call, times)
        if options.trace:
            from . import trace

            x = x_of(place.rank, 0)
            result.trace = run.record_last(
                group, lambda: trace.record(op.fused, op.grid, **op.trace_arguments(x, w), **op.options)
            )
        op.close()
        return result

    return run.start(options, ranks, work)
