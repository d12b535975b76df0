"""Parameters that are tuples of tensors and numbers, indexed by constants: many tensors in one launch."""

import triton
import triton.language as tl

from .cases import Case, case, cdiv, numbers, unset


@triton.jit
def scale_all(x_ptrs, y_ptrs, sizes, scale, B: tl.constexpr):
    """Of each tensor a program has one block; they differ in length."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    for i in tl.static_range(len(x_ptrs)):
        inside = at < sizes[i]
        tl.store(y_ptrs[i] + at, tl.load(x_ptrs[i] + at, mask=inside) * scale, mask=inside)


@case
def several_tensors_at_once(seed):
    lengths = (20, 33, 7)
    xs = tuple(numbers((n,), seed + n) for n in lengths)
    ys = tuple(unset((n,)) for n in lengths)
    args = {"x_ptrs": xs, "y_ptrs": ys, "sizes": lengths, "scale": 2.0, "B": 8}
    return Case(
        scale_all, (cdiv(33, 8),), args, {}, outputs=[(y, 2 * x) for x, y in zip(xs, ys, strict=True)], axes=(5,), reduction="i",
        gather={"x_ptrs[1]": 0}, scatter={"y_ptrs[1]": 0}, compile={},
    )  # fmt: skip


@triton.jit
def product(a_ptr, b_ptr, c_ptr, tile, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    columns = tl.cdiv(N, BN)
    rm = (tile // columns) * BM + tl.arange(0, BM)
    rn = (tile % columns) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        rk = k * BK + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rm[:, None] * K + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :], other=0.0
        )
        b = tl.load(
            b_ptr + rk[:, None] * N + rn[None, :], mask=(rk < K)[:, None] & (rn < N)[None, :], other=0.0
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


@triton.jit
def grouped(
    a_ptrs, b_ptrs, c_ptrs, shapes, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Products of different shapes: a program finds the one that its id falls into. shapes: (M, N, K) of each."""
    pid = tl.program_id(0)
    first = 0
    for g in tl.static_range(len(a_ptrs)):
        M, N, K = shapes[g]
        tiles = tl.cdiv(M, BM) * tl.cdiv(N, BN)
        if pid >= first and pid < first + tiles:
            product(a_ptrs[g], b_ptrs[g], c_ptrs[g], pid - first, M, N, K, BM, BN, BK)
        first += tiles


def group(seed):
    shapes = ((20, 18, 24), (36, 40, 20))
    a = tuple(numbers((m, k), seed + m) for m, n, k in shapes)
    b = tuple(numbers((k, n), seed + 50 + m) for m, n, k in shapes)
    return shapes, a, b, tuple(unset((m, n)) for m, n, _ in shapes)


@case
def grouped_product_of_tuples(seed):
    shapes, a, b, c = group(seed)
    args = {"a_ptrs": a, "b_ptrs": b, "c_ptrs": c, "shapes": shapes, "BM": 16, "BN": 16, "BK": 16}
    return Case(
        grouped, (4 + 9,), args, {}, outputs=[(z, x @ y) for x, y, z in zip(a, b, c, strict=True)],
        gather={"a_ptrs[1]": 0}, scatter={"c_ptrs[0]": 0}, compile={},
    )  # fmt: skip


@triton.jit
def merge(x_ptrs, out_ptr, M, N, WEIGHTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Σ WEIGHTS[i] · x[i], with constants that are a tuple."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)[:, None]
    rn = tl.program_id(1) * BN + tl.arange(0, BN)[None, :]
    inside = (rm < M) & (rn < N)
    at = rm * N + rn
    total = tl.zeros((BM, BN), tl.float32)
    for i in tl.static_range(len(WEIGHTS)):
        total += WEIGHTS[i] * tl.load(x_ptrs[i] + at, mask=inside, other=0.0)
    tl.store(out_ptr + at, total, mask=inside)


@case
def weighted_sum_of_a_tuple(seed):
    m, n, weights = 20, 12, (1.0, -2.0, 3.0)
    xs = tuple(numbers((m, n), seed + i) for i in range(3))
    args = {"x_ptrs": xs, "out_ptr": unset((m, n)), "M": m, "N": n, "WEIGHTS": weights, "BM": 8, "BN": 8}
    wanted = sum(w * x for w, x in zip(weights, xs, strict=True))
    return Case(
        merge, (3, 2), args, {"out_ptr": wanted}, axes=(3, 2), reduction="i", gather={"x_ptrs[2]": 0}, scatter={"out_ptr": 1},
        compile={},
    )  # fmt: skip
