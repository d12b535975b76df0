"""`syncopate run moe:…`: a mixture of experts on all ranks of this machine, checked against torch, which has all experts.

moe:T=64,E=16,topk=4,H=256,F=128,bound=96,dtype=bf16[,parallel=tensor]
bound is how many rows come to a rank at most, by default all that could. Each call has another routing.
"""

from __future__ import annotations

import argparse
from typing import Any

from ..measure.stopwatch import stopwatch
from ..ranks import Place
from .run_calls import Result, compared, make_group, start, torch_device
from .spec import Spec, UsageError, rank_count, require_memory


def run_moe(spec: Spec, options: argparse.Namespace) -> list[Result]:
    """Tokens, routings and weights are random; every rank makes those that it needs of other ranks, too."""
    from ..ops.mixture_function import kind_of

    if options.trace:
        raise UsageError(f"{spec.text}: --trace records programs of one stage")
    if spec.words.get("part", "whole") != "whole":
        raise UsageError(f"{spec.text}: it is run as a whole: leave out part=")
    ranks, sizes = rank_count(options), spec.extents
    shape = tuple(sizes[name] for name in ("t", "e", "topk", "h", "f"))
    experts, hidden, inner = sizes["e"], sizes["h"], sizes["f"]
    bound = sizes["bound"] or None
    kind = kind_of(spec.words.get("parallel", "expert"))
    try:
        heap = kind.bytes_ahead(*shape, spec.dtype, ranks, bound=bound, device=options.device)
    except ValueError as error:
        raise UsageError(f"{spec.text}: {error}") from None
    weights = 3 * hidden * inner * spec.dtype.itemsize
    require_memory(options, ranks, heap + experts * weights)

    def work(place: Place) -> Result:
        group, device = make_group(place, options), torch_device(place, options)
        late = {
            "deadline": options.deadline,
            "host_delay": options.delay_ms * 1e-3,
            "seed": options.seed + place.rank,
        }
        op = kind(*shape, spec.dtype, group, bound=bound, **late)
        data = Data(op, options.seed, device)
        w1, w2 = (
            data.random(2 + n, experts, *size)
            for n, size in enumerate(((hidden, 2 * inner), (inner, hidden)))
        )
        own_w1, own_w2 = op.own(w1, w2)
        times: list[float] = []
        error = 0.0 if options.check else None
        for index in range(options.calls):
            given = data.call(index, place.rank)
            started = stopwatch(device)
            y, _, _ = op.run(*given, own_w1, own_w2)
            times.append(started())
            op.check()
            if options.check:
                _, off = compared(y, in_torch(*given, w1, w2))
                error = max(error, off) if off == off else off
        op.close()
        return Result(place.rank, options.calls, sorted(times)[len(times) // 2], None, error)

    return start(options, ranks, work)


class Data:
    """As large as it is wide, so that products of products stay small."""

    def __init__(self, op: Any, seed: int, device: Any) -> None:
        self.op, self.seed, self.device = op, seed, device

    def generator(self, *numbers: int) -> Any:
        import torch

        return torch.Generator().manual_seed(self.seed + sum(n * 7919**i for i, n in enumerate(numbers)))

    def random(self, number: int, *shape: int) -> Any:
        import torch

        made = torch.randn(*shape, generator=self.generator(number)) * shape[-2] ** -0.5
        return made.to(self.op.dtype).to(self.device)

    def call(self, index: int, rank: int) -> tuple[Any, Any, Any]:
        """x, and of each token `topk` experts and their weights, which are 1 together."""
        import torch

        generator, op = self.generator(1, 1 + index, rank), self.op
        x = torch.randn(op.tokens, op.hidden, generator=generator).to(op.dtype)
        scores, ids = torch.rand(op.tokens, op.experts, generator=generator).topk(op.topk)
        return x.to(self.device), ids.to(self.device), scores.softmax(1).to(self.device)


def in_torch(x: Any, ids: Any, weights: Any, w1: Any, w2: Any) -> Any:
    """y [T, H] in fp32, expert by expert."""
    import torch

    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for expert in ids.unique().tolist():
        token, choice = (ids == expert).nonzero(as_tuple=True)
        gate, up = (x[token].float() @ w1[expert].float()).chunk(2, 1)
        made = (torch.nn.functional.silu(gate) * up) @ w2[expert].float()
        y.index_add_(0, token, made * weights[token, choice].float()[:, None])
    return y
