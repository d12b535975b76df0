"""Kernels that move or count: transpose, concatenation, embedding, histogram, top-k, reductions, lists of tensors."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, numbers, unset


@triton.jit
def transpose(
    x_ptr, y_ptr, M, N, stride_xm, stride_xn, stride_ym, stride_yn, BM: tl.constexpr, BN: tl.constexpr
):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    x = tl.load(
        x_ptr + rm[:, None] * stride_xm + rn[None, :] * stride_xn, mask=(rm[:, None] < M) & (rn[None, :] < N)
    )
    y_at = y_ptr + rn[:, None] * stride_ym + rm[None, :] * stride_yn
    tl.store(y_at, tl.trans(x), mask=(rn[:, None] < N) & (rm[None, :] < M))


@case
def transpose_of_a_matrix(seed):
    x = normal((21, 13), seed)
    args = {
        "x_ptr": x, "y_ptr": unset((13, 21)), "M": 21, "N": 13, "stride_xm": 13, "stride_xn": 1, "stride_ym": 21,
        "stride_yn": 1, "BM": 8, "BN": 8,
    }  # fmt: skip
    return Case(
        transpose, (3, 2), args, {"y_ptr": x.t().contiguous()}, gather={"x_ptr": 0}, scatter={"y_ptr": 0}
    )


@triton.jit
def concatenate(a_ptr, b_ptr, out_ptr, NA, NB, BLOCK: tl.constexpr):
    """Rows of two matrices side by side: where the column lies says which is read."""
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    from_a = cols < NA
    a = tl.load(a_ptr + row * NA + cols, mask=from_a, other=0.0)
    b = tl.load(b_ptr + row * NB + (cols - NA), mask=(cols >= NA) & (cols < NA + NB), other=0.0)
    tl.store(out_ptr + row * (NA + NB) + cols, tl.where(from_a, a, b), mask=cols < NA + NB)


@case
def concatenation_of_columns(seed):
    a, b = normal((5, 11), seed), normal((5, 18), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "out_ptr": unset((5, 29)), "NA": 11, "NB": 18, "BLOCK": 8}
    return Case(
        concatenate, (5, 4), args, {"out_ptr": torch.cat([a, b], 1)}, axes=(5, 4), gather={"b_ptr": 0},
        scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def embedding(index_ptr, table_ptr, out_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr):
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = tl.program_id(1) * BD + tl.arange(0, BD)
    index = tl.load(index_ptr + t, mask=t < T, other=0)
    mask = (t < T)[:, None] & (d < D)[None, :]
    rows = tl.load(table_ptr + index[:, None] * D + d[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + t[:, None] * D + d[None, :], rows, mask=mask)


@triton.jit
def embedding_stated(index_ptr, table_ptr, out_ptr, T, D, BT: tl.constexpr, BD: tl.constexpr):
    # @sy.reads table_ptr[:, pid_d * BD:(pid_d + 1) * BD]
    pid_d = tl.program_id(1)
    t = tl.program_id(0) * BT + tl.arange(0, BT)
    d = pid_d * BD + tl.arange(0, BD)
    index = tl.load(index_ptr + t, mask=t < T, other=0)
    mask = (t < T)[:, None] & (d < D)[None, :]
    rows = tl.load(table_ptr + index[:, None] * D + d[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + t[:, None] * D + d[None, :], rows, mask=mask)


def embedding_case(kernel, seed, **more):
    table = normal((12, 20), seed)
    index = torch.tensor([3, 11, 0, 5, 5, 7, 1], dtype=torch.int32)
    args = {
        "index_ptr": index, "table_ptr": table, "out_ptr": unset((7, 20)), "T": 7, "D": 20, "BT": 4, "BD": 16,
    }  # fmt: skip
    return Case(kernel, (2, 2), args, {"out_ptr": table[index.long()]}, **more)


@case
def embedding_by_index(seed):
    return embedding_case(
        embedding, seed,
        refused="the address `table_ptr + index[:, None] * D + d[None, :]` cannot be known before the kernel runs: it "
        "depends on data loaded by `tl.load(index_ptr + t, mask=t < T, other=0)`",
    )  # fmt: skip


@case
def embedding_with_directives(seed):
    return embedding_case(
        embedding_stated,
        seed,
        inexact="any row",
        axes=(2, 2),
        gather={"table_ptr": 0},
        scatter={"out_ptr": 0},
    )


@triton.jit
def embedding_gradient(index_ptr, grad_ptr, table_ptr, D, BLOCK: tl.constexpr):
    """Rows of the gradient are added where their index says, by atomics."""
    # @sy.writes table_ptr[:, :]
    # @sy.reads table_ptr[:, :]
    t = tl.program_id(0)
    d = tl.arange(0, BLOCK)
    index = tl.load(index_ptr + t)
    tl.atomic_add(table_ptr + index * D + d, tl.load(grad_ptr + t * D + d, mask=d < D, other=0.0), mask=d < D)


@case
def gradient_of_an_embedding(seed):
    grad = numbers((7, 20), seed)
    index = torch.tensor([3, 11, 0, 5, 5, 7, 1], dtype=torch.int32)
    table = torch.zeros(12, 20)
    args = {"index_ptr": index, "grad_ptr": grad, "table_ptr": table, "D": 20, "BLOCK": 32}
    return Case(
        embedding_gradient, (7,), args, {"table_ptr": table.index_add(0, index.long(), grad)}, inexact="any row",
        gather={"grad_ptr": 0}, scatter={"table_ptr": 0},
    )  # fmt: skip


@triton.jit
def histogram(x_ptr, counts_ptr, N, BLOCK: tl.constexpr, BINS: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < N, other=0)
    tl.atomic_add(counts_ptr + tl.arange(0, BINS), tl.histogram(x, BINS, mask=at < N))


@case
def histogram_by_atomics(seed):
    x = torch.randint(0, 8, (50,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    args = {"x_ptr": x, "counts_ptr": torch.zeros(8, dtype=torch.int32), "N": 50, "BLOCK": 16, "BINS": 8}
    return Case(
        histogram, (4,), args, {"counts_ptr": torch.bincount(x, minlength=8).int()}, gather={"x_ptr": 0},
        scatter={"counts_ptr": 0},
    )  # fmt: skip


@triton.jit
def top_k(x_ptr, value_ptr, index_ptr, N, K: tl.constexpr, BLOCK: tl.constexpr):
    """The K largest of a row, one after the other."""
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + cols, mask=cols < N, other=-float("inf"))
    for i in tl.static_range(K):
        best, at = tl.max(x, 0, return_indices=True)
        tl.store(value_ptr + row * K + i, best)
        tl.store(index_ptr + row * K + i, at)
        x = tl.where(cols == at, -float("inf"), x)


@case
def top_k_of_rows(seed):
    x = normal((6, 13), seed)
    values, indices = x.topk(3, dim=1)
    args = {
        "x_ptr": x, "value_ptr": unset((6, 3)), "index_ptr": unset((6, 3), torch.int32), "N": 13, "K": 3, "BLOCK": 16,
    }  # fmt: skip
    return Case(
        top_k, (6,), args, {"value_ptr": values, "index_ptr": indices.int()}, axes=(6,), gather={"x_ptr": 0},
        scatter={"value_ptr": 0},
    )  # fmt: skip


@triton.jit
def sum_and_count(x_ptr, sum_ptr, done_ptr, N, BLOCK: tl.constexpr):
    """The last program to count itself closes the sum: a look at atomics that return something."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x_ptr + at, mask=at < N, other=0.0), 0)
    tl.atomic_add(sum_ptr, part)
    before = tl.atomic_add(done_ptr, 1)
    if before == tl.num_programs(0) - 1:
        tl.store(sum_ptr + 1, tl.load(sum_ptr))


@case
def sum_by_the_last_program(seed):
    x = numbers((50,), seed)
    args = {
        "x_ptr": x, "sum_ptr": torch.zeros(2), "done_ptr": torch.zeros(1, dtype=torch.int32), "N": 50, "BLOCK": 16,
    }  # fmt: skip
    wanted = {"sum_ptr": torch.stack([x.sum(), x.sum()]), "done_ptr": torch.tensor([4], dtype=torch.int32)}
    return Case(
        sum_and_count, (4,), args, wanted, gather={"x_ptr": 0},
        inexact="only the last program, which is data, makes the last store",
    )  # fmt: skip


@triton.jit
def strided_view(x_ptr, y_ptr, M, N, stride, BM: tl.constexpr, BN: tl.constexpr):
    """Every second column of a matrix whose rows are padded, backwards."""
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    mask = (rm < M)[:, None] & (rn < N)[None, :]
    x = tl.load(x_ptr + rm[:, None] * stride + 2 * (N - 1 - rn)[None, :], mask=mask, other=0.0)
    tl.store(y_ptr + rm[:, None] * N + rn[None, :], x, mask=mask)


@case
def every_second_column_backwards(seed):
    x = normal((10, 24), seed)[:, :14]
    args = {"x_ptr": x, "y_ptr": unset((10, 7)), "M": 10, "N": 7, "stride": 24, "BM": 4, "BN": 8}
    return Case(
        strided_view,
        (3,),
        args,
        {"y_ptr": x[:, ::2].flip(1).contiguous()},
        axes=(3,),
        scatter={"y_ptr": 0},
    )
