"""`syncopate run moe:…`: a mixture of experts on all ranks of this machine, checked against torch, which has all experts.

moe:T=64,E=16,topk=4,H=256,F=128,bound=96,dtype=bf16[,parallel=tensor], or dtype=fp8e4m3,scales=row
bound is how many rows come to a rank at most, by default all that could. Each call has another routing.
"""

from __future__ import annotations

import argparse
from typing import Any

from .. import _syncopate
from ..measure.stopwatch import stopwatch
from ..ranks import Place
from .run_calls import Result, compared, make_group, start, torch_device
from .spec import Spec, UsageError, rank_count, require_memory

SCALED, LARGEST = _syncopate.ops.SCALED, 448.0  # elements that share a scale; of float8_e4m3fn


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
    require_memory(options, ranks, bytes_of_a_rank(spec, options.device, ranks))
    kind = kind_of(spec.words.get("parallel", "expert"), bool(spec.scales))
    of_fp8 = {"scales": spec.scales, "out_dtype": spec.out} if spec.scales else {}

    def work(place: Place) -> Result:
        group, device = make_group(place, options), torch_device(place, options)
        late = {
            "deadline": options.deadline,
            "host_delay": options.delay_ms * 1e-3,
            "seed": options.seed + place.rank,
        }
        op = kind(*shape, spec.dtype, group, bound=bound, **of_fp8, **late)
        data = (ScaledData if spec.scales else Data)(op, options.seed, device)
        w1, w2 = (
            data.random(2 + n, experts, *size)
            for n, size in enumerate(((hidden, 2 * inner), (inner, hidden)))
        )
        weights = data.own(w1, w2)
        times: list[float] = []
        error = 0.0 if options.check else None
        for index in range(options.calls):
            given = data.call(index, place.rank)
            started = stopwatch(device)
            y, _, _ = op.run(*given, *weights, *data.scales_of_a_call())
            times.append(started())
            op.check()
            if options.check:
                _, off = compared(y, in_torch(*data.exact(given), w1, w2))
                error = max(error, off) if off == off else off
        op.close()
        return Result(place.rank, options.calls, sorted(times)[len(times) // 2], None, error)

    return start(options, ranks, work)


def bytes_of_a_rank(spec: Spec, device: str, ranks: int) -> int:
    """Of its heap, and of all experts' weights, with which torch says what is right. Raises UsageError for what is no mixture."""
    from ..ops.mixture_function import kind_of

    sizes = spec.extents
    shape = tuple(sizes[name] for name in ("t", "e", "topk", "h", "f"))
    of_fp8 = {"scales": spec.scales, "out_dtype": spec.out} if spec.scales else {}
    try:
        kind = kind_of(spec.words.get("parallel", "expert"), bool(spec.scales))
        heap = kind.bytes_ahead(
            *shape, spec.dtype, ranks, bound=sizes["bound"] or None, device=device, **of_fp8
        )
    except ValueError as error:
        raise UsageError(f"{spec.text}: {error}") from None
    return heap + sizes["e"] * 3 * sizes["h"] * sizes["f"] * spec.dtype.itemsize


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
        return made.to(self.op.out_dtype).to(self.device)

    def call(self, index: int, rank: int) -> tuple[Any, Any, Any]:
        """x, and of each token `topk` experts and their weights, which are 1 together."""
        import torch

        generator, op = self.generator(1, 1 + index, rank), self.op
        x = torch.randn(op.tokens, op.hidden, generator=generator).to(op.out_dtype)
        scores, ids = torch.rand(op.tokens, op.experts, generator=generator).topk(op.topk)
        return x.to(self.device), ids.to(self.device), scores.softmax(1).to(self.device)

    def own(self, w1: Any, w2: Any) -> tuple[Any, Any]:
        return self.op.own(w1, w2)

    def scales_of_a_call(self) -> tuple[Any, ...]:
        return ()

    def exact(self, given: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        return given


class ScaledData(Data):
    """Of fp8: rows of x, and w by rows or blocks, as large as fp8 takes them."""

    def random(self, number: int, *shape: int) -> Any:
        """What w then is."""
        import torch

        made = torch.randn(*shape, generator=self.generator(number)) * shape[-2] ** -0.5
        values, scale = self._scaled(made.transpose(1, 2))
        setattr(self, f"w{number - 1}", (values.contiguous().to(self.device), scale.to(self.device)))
        return self._whole(values, scale).transpose(1, 2).to(self.device)

    def call(self, index: int, rank: int) -> tuple[Any, Any, Any]:
        x, ids, weights = super().call(index, rank)
        self.x, self.scale_x = self._scaled(x)
        return self.x, ids, weights

    def own(self, w1: Any, w2: Any) -> tuple[Any, Any]:
        from ..ops.mixture_scaled import own_weights

        return own_weights(*self._place(), *(values.transpose(1, 2) for values, _ in (self.w1, self.w2)))

    def scales_of_a_call(self) -> tuple[Any, ...]:
        from ..ops.mixture_scaled import own_scales

        return ((self.scale_x, *own_scales(*self._place(), *(scale for _, scale in (self.w1, self.w2)))),)

    def _place(self) -> tuple[str, int, int]:
        return self.op.parallel, self.op.group.rank, self.op.group.size

    def exact(self, given: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
        return self._whole(self.x, self.scale_x), *given[1:]

    def _spread(self, scale: Any, shape: Any) -> Any:
        if len(scale.shape) < len(shape):
            return scale[..., None].expand(shape)
        made = scale.repeat_interleave(SCALED, -1)[..., : shape[-1]]
        return made.repeat_interleave(SCALED, -2)[..., : shape[-2], :] if len(shape) == 3 else made

    def _scaled(self, made: Any) -> tuple[Any, Any]:
        """[., K] or [E, N, K]."""
        import torch

        most, by_block, rows = made.float().abs(), self.op.scales == "block", SCALED if made.dim() == 3 else 1
        if by_block:
            padded = torch.nn.functional.pad(most, (0, -made.shape[-1] % SCALED, 0, -made.shape[-2] % rows))
            most = padded.unflatten(-1, (-1, SCALED)).unflatten(-3, (-1, rows)).amax((-1, -3))
        else:
            most = most.amax(-1)
        scale = (most / LARGEST).clamp_min(1e-12)
        return (made.float() / self._spread(scale, made.shape)).to(torch.float8_e4m3fn), scale

    def _whole(self, values: Any, scale: Any) -> Any:
        return values.float() * self._spread(scale, values.shape)


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
