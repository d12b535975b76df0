"""`syncopate run attention:…`: attention on all ranks of this machine, checked against the unfused kernel on the whole
sequence.

attention:B=1,H=32,HKV=8,S=4096,D=128,causal=1,kind=all_gather,window=0,sharding=zigzag,inner=0
causal is 1 unless it is given, and sharding contiguous: rows in the order of the ranks.

attention:S=65536,kind=ring,bounded=16384       K and V of so many rows at a time
attention:S=4096,cu_seqlens=0:137:4096          documents: where each begins, and the end of the last
"""

from __future__ import annotations

import argparse
from typing import Any

from ..measure.stopwatch import stopwatch
from ..ranks import Place
from .run_calls import Result, make_group, record_last, start, torch_device
from .spec import Spec, UsageError, rank_count, require_memory


def options_of(spec: Spec) -> dict[str, Any]:
    """What Attention is asked for besides its shape."""
    made: dict[str, Any] = {name: int(value) for name, value in spec.call.items() if name != "cu_seqlens"}
    if "cu_seqlens" in spec.call:
        made["cu_seqlens"] = [int(cut) for cut in spec.call["cu_seqlens"].split(":")]
    if spec.strategy is not None:
        made["strategy"] = spec.strategy
    return made | spec.words | {"causal": bool(spec.extents["causal"])}


def bytes_of_a_rank(spec: Spec) -> int:
    """About: the whole of q, k, v and o, and what is checked, some of it as fp32, too."""
    e = spec.extents
    return 6 * e["b"] * e["s"] * e["d"] * (e["h"] + e["hkv"]) * spec.dtype.itemsize


def run_attention(spec: Spec, options: argparse.Namespace) -> list[Result]:
    """q, k and v are random; every rank makes the whole and takes its rows."""
    shape = {name: spec.extents[name] for name in ("b", "h", "hkv", "s", "d")}
    ranks = rank_count(options)
    require_memory(options, ranks, bytes_of_a_rank(spec))
    given = options_of(spec)

    def work(place: Place) -> Result:
        import torch

        from ..ops.attention import Attention

        group = make_group(place, options)
        device = torch_device(place, options)
        try:
            op = Attention(
                **shape,
                dtype=spec.dtype,
                group=group,
                deadline=options.deadline,
                host_delay=options.delay_ms * 1e-3,
                seed=options.seed + place.rank,
                **given,
            )
        except ValueError as error:
            raise UsageError(f"{spec.text}: {error}") from None

        def data(heads: int, *seed: int) -> torch.Tensor:
            number = options.seed + sum(n * 7919**i for i, n in enumerate(seed))
            generator = torch.Generator().manual_seed(number)
            made = torch.randn(op.b, heads, op.s, op.d, generator=generator)
            return made.to(op.dtype).to(device)

        def whole(index: int) -> list[torch.Tensor]:
            return [data(heads, index, number) for number, heads in enumerate((op.h, op.hkv, op.hkv))]

        times, error = [], 0.0 if options.check else None
        for index in range(options.calls):
            q, k, v = whole(index)
            own = [op.shard(tensor) for tensor in (q, k, v)]
            started = stopwatch(device)
            o, lse = op(*own)
            times.append(started())
            op.check()
            if not options.check:
                continue
            for found, expected in zip((o, lse), op.unfused(q, k, v), strict=True):
                wanted = op.shard(expected).double()
                off = float((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30))
                error = max(error, off) if off == off else off
        result = Result(place.rank, options.calls, sorted(times)[len(times) // 2], None, error)
        if options.trace:
            own = [op.shard(tensor) for tensor in whole(0)]
            result.trace = record_last(group, lambda: op.record(*own))
        op.close()
        return result

    return start(options, ranks, work)
