"""Operators of fp8 on host ranks, which meet through gloo: each scale in its place, the same bits as the unfused
kernel, and the vendors' pair."""

import sys

import syncopate as sy
import torch
import torch.distributed as dist
from syncopate import ops, ranks
from syncopate.ops import scales as scaling

FP8 = torch.float8_e4m3fn
SMALL = sy.Strategy(tilings=(sy.strategy.SMALL,))
N, K = 144, 160  # two blocks of scales along each, the last ones not whole


def check(place) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{place.folder}/meet", rank=place.rank, world_size=place.size
    )
    for scales in scaling.SCALES:
        check_operators(place.rank, place.size, scales)
    check_functions(place.rank, place.size)
    check_pair(place.rank, place.size)
    check_refusals(place.size)
    dist.destroy_process_group()


class Data:
    """Of all ranks: x [m, K], w [N, K] and their scales; `parts` each rank's x alone, else a part of one x."""

    def __init__(self, m: int, scales: str, size: int) -> None:
        generator = torch.Generator().manual_seed(m)
        self.x = [torch.randn(m, K, generator=generator).to(FP8) for _ in range(size)]
        self.w = torch.randn(N, K, generator=generator).to(FP8)
        shapes = scaling.shapes_of(scales, m, N, K)
        self.scale_x = [self._factors(shapes["scale_x"], generator) if shapes else None for _ in range(size)]
        self.scale_w = self._factors(shapes["scale_w"], generator) if shapes else None

    @staticmethod
    def _factors(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
        return torch.rand(*shape, generator=generator) + 0.5

    def scales(self, rank: int, rows: slice = slice(None)) -> tuple:
        return () if self.scale_w is None else (self.scale_x[rank][rows], self.scale_w)

    def exact_x(self, rank: int) -> torch.Tensor:
        return self.x[rank].double() * spread(self.scale_x[rank], self.x[rank].shape, 1)

    def product(self, rank: int) -> torch.Tensor:
        return self.exact_x(rank) @ self.exact_w().t()

    def exact_w(self) -> torch.Tensor:
        return self.w.double() * spread(self.scale_w, self.w.shape, scaling.SCALED)


def spread(scale: torch.Tensor | None, shape: tuple[int, ...], rows: int) -> torch.Tensor:
    """A factor for each element: of a scale a row, or of one for each `rows` x 128."""
    if scale is None:
        return torch.ones(shape, dtype=torch.float64)
    if scale.dim() == 1:
        return scale.double()[:, None].expand(shape)
    of_rows = scale.double().repeat_interleave(rows, 0)[: shape[0]]
    return of_rows.repeat_interleave(scaling.SCALED, 1)[:, : shape[1]]


def check_operators(rank: int, size: int, scales: str) -> None:
    options = {
        "scales": scales,
        "out_dtype": torch.float16,
        "w_transposed": True,
        "device": "host",
        "strategy": SMALL,
    }
    m = 40 * size + 1
    data = Data(m, scales, size)
    own = ops.shards.rows_of(m, size, rank)
    total = sum(data.product(r).half().double() for r in range(size))
    sliced = sy.Strategy(tilings=(sy.strategy.SMALL,), chunking=sy.Chunking(2, 2))
    for strategy in (SMALL, sliced):
        gather = ops.AllGatherMatmul(m, N, K, FP8, bias=True, **options | {"strategy": strategy})
        bias = torch.arange(N).half()
        y = gather(data.x[0][own], data.w, None, bias, data.scales(0, own))
        alone = gather.unfused(data.x[0], data.w, torch.full_like(y, float("nan")), bias, data.scales(0))
        expect_same(y, alone, f"all_gather_matmul, scales {scales!r}")
        expect(y, data.product(0) + bias.double(), f"all_gather_matmul, scales {scales!r}")
        gather.close()
    copying = ops.AllGatherMatmul(m, N, K, FP8, copied=True, **options)
    copy = torch.zeros_like(data.x[0])
    y = copying(data.x[0][own], data.w, scales=data.scales(0, own), copy=copy)
    expect(y, data.product(0), f"all_gather_matmul, scales {scales!r}, beside a copy")
    expect_same(copy.view(torch.uint8), data.x[0].view(torch.uint8), f"the copy, scales {scales!r}")
    copying.close()
    scatter = ops.MatmulReduceScatter(m, N, K, FP8, **options)
    expect(scatter(data.x[rank], data.w, scales=data.scales(rank)), total[own], "matmul_reduce_scatter")
    reduce = ops.MatmulAllReduce(m, N, K, FP8, **options)
    expect(reduce(data.x[rank], data.w, scales=data.scales(rank)), total, "matmul_all_reduce")
    m = 24 * size
    data, block = Data(m, scales, size), slice(24 * rank, 24 * rank + 24)
    receive = ops.AllToAllMatmul(m, N, K, FP8, **options)
    came = torch.cat([data.exact_x(r)[block] for r in range(size)]) @ data.exact_w().t()
    expect(receive(data.x[rank], data.w, scales=data.scales(rank)), came, "all_to_all_matmul")
    send = ops.MatmulAllToAll(m, N, K, FP8, **options)
    went = torch.cat([data.product(r)[block] for r in range(size)])
    expect(send(data.x[rank], data.w, scales=data.scales(rank)), went, "matmul_all_to_all")
    for op in (scatter, reduce, receive, send):
        op.close()


def check_functions(rank: int, size: int) -> None:
    """Scales as users give them: a number for all, a column for the rows of x and a row for the columns of w."""
    data = Data(32 * size, "row", size)
    own = slice(32 * rank, 32 * rank + 32)
    scale_x, scale_w = data.scales(0, own)
    y = ops.all_gather_matmul(
        data.x[0][own], data.w.t(), scales=(scale_x[:, None], scale_w[None]), out_dtype=torch.float16
    )
    expect(y, data.product(0), "scales of columns and rows")
    two, half = torch.tensor(2.0), torch.tensor([0.5])
    y = ops.matmul_reduce_scatter(data.x[0], data.w.t(), scales=(two, half))
    wanted = size * (data.x[0].double() @ data.w.double().t())[own]
    expect(y, wanted, "scales of one number", 2e-2)  # bf16, which the interpreter cuts off
    if y.dtype != torch.bfloat16:
        raise AssertionError(f"the default is bf16, got {y.dtype}")


def check_pair(rank: int, size: int) -> None:
    unfused = sy.Strategy(unfused=True)
    options = {"w_transposed": True, "device": "host", "strategy": unfused, "scales": "row"}
    m = 32 * size
    data, own = Data(m, "row", size), slice(32 * rank, 32 * rank + 32)
    gather = ops.AllGatherMatmul(m, N, K, FP8, **options)
    expect(gather(data.x[0][own], data.w, scales=data.scales(0, own)), data.product(0), "the pair", 1e-2)
    scatter = ops.MatmulReduceScatter(m, N, K, FP8, **options)
    total = sum(data.product(r) for r in range(size))
    expect(scatter(data.x[rank], data.w, scales=data.scales(rank)), total[own], "the pair", 1e-2)
    receive = ops.AllToAllMatmul(m, N, K, FP8, **options)
    came = torch.cat([data.exact_x(r)[own] for r in range(size)]) @ data.exact_w().t()
    expect(receive(data.x[rank], data.w, scales=data.scales(rank)), came, "the pair", 1e-2)


def check_refusals(size: int) -> None:
    def made(kind=ops.MatmulReduceScatter, dtype=FP8, **options):
        return kind(
            32 * size, N, K, dtype, device="host", **{"w_transposed": True, "strategy": SMALL} | options
        )

    x, w = torch.zeros(32 * size, K).to(FP8), torch.zeros(N, K).to(FP8)
    good = (torch.ones(32 * size), torch.ones(N))
    inline = sy.Strategy(backend="ldst_inline")
    for message, call in (
        ("w: products of fp8 take the transpose", lambda: made(w_transposed=False)),
        ("expected out bf16 or fp16", lambda: made(out_dtype=torch.float32)),
        ("scales: a product of bf16 takes none", lambda: made(dtype=torch.bfloat16, scales="row")),
        ("feed_forward takes no fp8", lambda: ops.FeedForward(32 * size, K, N, K, FP8, device="host")),
        ("axis=1: scales are of whole rows", lambda: made(ops.AllGatherMatmul, scales="row", axis=1)),
        ("tiles that fetch x themselves", lambda: made(ops.AllGatherMatmul, scales="row", strategy=inline)),
        (
            "its product takes no scales of blocks",
            lambda: made(scales="block", strategy=sy.Strategy(unfused=True)),
        ),
        ("scales: this op was made without", lambda: made()(x, w, scales=good)),
        ("scales: this op takes them", lambda: made(scales="row")(x, w)),
        ("scale_x: expected shape", lambda: made(scales="row")(x, w, scales=(torch.ones(3), good[1]))),
        ("scale_w: expected dtype", lambda: made(scales="row")(x, w, scales=(good[0], good[1].double()))),
        ("scales: expected [", lambda: ops.matmul_all_reduce(x, w.t(), scales=(torch.ones(3), good[1]))),
        (
            "scale of x: expected dtype",
            lambda: ops.matmul_all_reduce(x, w.t(), scales=(good[0].half(), good[1])),
        ),
    ):
        try:
            call()
        except ValueError as error:
            if message not in str(error):
                raise AssertionError(f"expected '{message}', got '{error}'") from error
        else:
            raise AssertionError(f"no ValueError: {message}")


def expect(y: torch.Tensor, wanted: torch.Tensor, what: str, most: float = 2e-3) -> None:
    error = ((y.double() - wanted).norm() / wanted.norm()).item()
    if not error < most:
        raise AssertionError(f"{what}: relative error {error:.1e}")


def expect_same(y: torch.Tensor, alone: torch.Tensor, what: str) -> None:
    if not torch.equal(y, alone):
        raise AssertionError(f"{what} differs from the unfused kernel")


if __name__ == "__main__":
    ranks.run(int(sys.argv[1]), check, timeout=300)
