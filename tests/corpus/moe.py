"""Mixtures of experts and grouped products: which rows meet which weights is data. Each once as it stands, with the
diagnostic, and once with directives."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, normal, numbers, unset


@triton.jit
def experts(
    a_ptr, b_ptr, c_ptr, sorted_ptr, expert_ptr, N, K, num_valid, top_k: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Tokens sorted by expert and padded to whole blocks; a block has one expert."""
    pid = tl.program_id(axis=0)
    columns = tl.cdiv(N, BN)
    pid_m, pid_n = pid // columns, pid % columns
    tokens = tl.load(sorted_ptr + pid_m * BM + tl.arange(0, BM))
    valid = tokens < num_valid
    expert = tl.load(expert_ptr + pid_m)
    cols = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + (tokens[:, None] // top_k) * K + rk[None, :],
            mask=valid[:, None] & (rk[None, :] < K),
            other=0.0,
        )
        b = tl.load(
            b_ptr + expert * K * N + rk[:, None] * N + cols[None, :],
            mask=(rk[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + tokens[:, None] * N + cols[None, :], acc, mask=valid[:, None] & (cols[None, :] < N))


@triton.jit
def experts_stated(
    a_ptr, b_ptr, c_ptr, sorted_ptr, expert_ptr, N, K, num_valid, top_k: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As above: any token may be anywhere, and any expert; columns are known."""
    # @sy.reads a_ptr[:, :]
    # @sy.reads b_ptr[:, :, pid_n * BN:(pid_n + 1) * BN]
    # @sy.writes c_ptr[:, pid_n * BN:(pid_n + 1) * BN]
    pid = tl.program_id(axis=0)
    columns = tl.cdiv(N, BN)
    pid_m, pid_n = pid // columns, pid % columns
    tokens = tl.load(sorted_ptr + pid_m * BM + tl.arange(0, BM))
    valid = tokens < num_valid
    expert = tl.load(expert_ptr + pid_m)
    cols = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + (tokens[:, None] // top_k) * K + rk[None, :],
            mask=valid[:, None] & (rk[None, :] < K),
            other=0.0,
        )
        b = tl.load(
            b_ptr + expert * K * N + rk[:, None] * N + cols[None, :],
            mask=(rk[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + tokens[:, None] * N + cols[None, :], acc, mask=valid[:, None] & (cols[None, :] < N))


def experts_case(kernel, seed, **more):
    tokens, top_k, e, n, k, block = 10, 2, 3, 24, 20, 16
    a, b = numbers((tokens, k), seed), numbers((e, k, n), seed + 50)
    chosen = torch.stack(
        [torch.randperm(e, generator=torch.Generator().manual_seed(t))[:top_k] for t in range(tokens)]
    )
    flat = chosen.flatten()
    order, of_block = [], []
    for expert in range(e):
        mine = (flat == expert).nonzero().flatten().tolist()
        mine += [flat.numel()] * (-len(mine) % block)
        order += mine
        of_block += [expert] * (len(mine) // block)
    wanted = torch.stack([a[i // top_k] @ b[flat[i]] for i in range(flat.numel())])
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset(wanted.shape), "sorted_ptr": torch.tensor(order, dtype=torch.int32),
        "expert_ptr": torch.tensor(of_block, dtype=torch.int32), "N": n, "K": k, "num_valid": flat.numel(),
        "top_k": top_k, "BM": block, "BN": 16, "BK": 16,
    }  # fmt: skip
    return Case(kernel, (len(of_block) * cdiv(n, 16),), args, {"c_ptr": wanted}, **more)


@case
def experts_by_sorted_tokens(seed):
    return experts_case(
        experts, seed,
        refused="it depends on data loaded by `tl.load(sorted_ptr + pid_m * BM + tl.arange(0, BM))`",
    )  # fmt: skip


@case
def experts_with_directives(seed):
    return experts_case(
        experts_stated, seed, inexact="the directives say which columns, not which tokens", gather={"a_ptr": 0},
        scatter={"c_ptr": 0}, compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def grouped(
    a_ptr, b_ptr, c_ptr, start_ptr, N: tl.constexpr, K: tl.constexpr, GROUPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Rows [start[g], start[g + 1]) of A meet B[g]; a program goes through all groups for its column block."""
    pid_n = tl.program_id(0)
    cols = pid_n * BN + tl.arange(0, BN)
    for g in range(GROUPS):
        row = tl.load(start_ptr + g)
        end = tl.load(start_ptr + g + 1)
        while row < end:
            rows = row + tl.arange(0, BM)
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for k in range(0, K, BK):
                rk = k + tl.arange(0, BK)
                a = tl.load(a_ptr + rows[:, None] * K + rk[None, :], mask=(rows[:, None] < end) & (rk[None, :] < K),
                            other=0.0)  # fmt: skip
                b = tl.load(b_ptr + g * K * N + rk[:, None] * N + cols[None, :],
                            mask=(rk[:, None] < K) & (cols[None, :] < N), other=0.0)  # fmt: skip
                acc += tl.dot(a, b, input_precision="ieee")
            tl.store(
                c_ptr + rows[:, None] * N + cols[None, :],
                acc,
                mask=(rows[:, None] < end) & (cols[None, :] < N),
            )
            row += BM


@triton.jit
def grouped_stated(
    a_ptr, b_ptr, c_ptr, start_ptr, N: tl.constexpr, K: tl.constexpr, GROUPS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As above: the column block is known, the loops over rows are not."""
    # @sy.reads a_ptr[:, :]
    # @sy.reads b_ptr[:, :, pid_n * BN:(pid_n + 1) * BN]
    # @sy.writes c_ptr[:, pid_n * BN:(pid_n + 1) * BN]
    pid_n = tl.program_id(0)
    cols = pid_n * BN + tl.arange(0, BN)
    for g in range(GROUPS):
        row = tl.load(start_ptr + g)
        end = tl.load(start_ptr + g + 1)
        while row < end:
            rows = row + tl.arange(0, BM)
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for k in range(0, K, BK):
                rk = k + tl.arange(0, BK)
                a = tl.load(a_ptr + rows[:, None] * K + rk[None, :], mask=(rows[:, None] < end) & (rk[None, :] < K),
                            other=0.0)  # fmt: skip
                b = tl.load(b_ptr + g * K * N + rk[:, None] * N + cols[None, :],
                            mask=(rk[:, None] < K) & (cols[None, :] < N), other=0.0)  # fmt: skip
                acc += tl.dot(a, b, input_precision="ieee")
            tl.store(
                c_ptr + rows[:, None] * N + cols[None, :],
                acc,
                mask=(rows[:, None] < end) & (cols[None, :] < N),
            )
            row += BM


def grouped_case(kernel, seed, **more):
    starts, n, k = torch.tensor([0, 5, 5, 26], dtype=torch.int32), 24, 20
    a, b = numbers((26, k), seed), numbers((3, k, n), seed + 50)
    wanted = torch.cat(
        [a[lo:hi] @ b[g] for g, (lo, hi) in enumerate(zip(starts[:-1], starts[1:], strict=True))]
    )
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((26, n)), "start_ptr": starts, "N": n, "K": k, "GROUPS": 3, "BM": 16,
        "BN": 16, "BK": 16,
    }  # fmt: skip
    return Case(kernel, (2,), args, {"c_ptr": wanted}, **more)


@case
def grouped_by_loaded_offsets(seed):
    return grouped_case(grouped, seed, refused="it depends on data loaded by `tl.load(start_ptr + g)`")


@case
def grouped_with_directives(seed):
    return grouped_case(
        grouped_stated, seed, inexact="a group may be empty", axes=(2,), reduction="g", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def list_of_pointers(
    a_ptrs, b_ptrs, c_ptrs, sizes_ptr, NUM_GROUPS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    NUM_SM: tl.constexpr,
):  # fmt: skip
    """Addresses of matrices, and their sizes, in device memory; persistent over all tiles of all groups."""
    tile_idx = tl.program_id(0)
    last_end = 0
    for g in range(NUM_GROUPS):
        m = tl.load(sizes_ptr + g * 3)
        n = tl.load(sizes_ptr + g * 3 + 1)
        k = tl.load(sizes_ptr + g * 3 + 2)
        columns = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * columns
        while tile_idx >= last_end and tile_idx < last_end + tiles:
            a = tl.load(a_ptrs + g).to(tl.pointer_type(tl.float32))
            b = tl.load(b_ptrs + g).to(tl.pointer_type(tl.float32))
            c = tl.load(c_ptrs + g).to(tl.pointer_type(tl.float32))
            here = tile_idx - last_end
            rm = (here // columns) * BM + tl.arange(0, BM)
            rn = (here % columns) * BN + tl.arange(0, BN)
            rk = tl.arange(0, BK)
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for kk in range(0, tl.cdiv(k, BK)):
                at_k = kk * BK + rk
                left = tl.load(
                    a + rm[:, None] * k + at_k[None, :],
                    mask=(rm[:, None] < m) & (at_k[None, :] < k),
                    other=0.0,
                )
                right = tl.load(b + at_k[:, None] * n + rn[None, :], mask=(at_k[:, None] < k) & (rn[None, :] < n),
                                other=0.0)  # fmt: skip
                acc += tl.dot(left, right, input_precision="ieee")
            tl.store(c + rm[:, None] * n + rn[None, :], acc, mask=(rm[:, None] < m) & (rn[None, :] < n))
            tile_idx += NUM_SM
        last_end = last_end + tiles


KEEP = []  # what the addresses below point to


@case
def grouped_by_lists_of_pointers(seed):
    shapes = [(20, 16, 24), (5, 24, 16)]
    a = [numbers((m, k), seed + i) for i, (m, n, k) in enumerate(shapes)]
    b = [numbers((k, n), seed + 50 + i) for i, (m, n, k) in enumerate(shapes)]
    c = [unset((m, n)) for m, n, _ in shapes]
    KEEP.append((a, b, c))
    pointers = {
        name: torch.tensor([t.data_ptr() for t in group])
        for name, group in (("a_ptrs", a), ("b_ptrs", b), ("c_ptrs", c))
    }
    args = {
        **pointers, "sizes_ptr": torch.tensor(shapes, dtype=torch.int32), "NUM_GROUPS": 2, "BM": 16, "BN": 16, "BK": 16,
        "NUM_SM": 2,
    }  # fmt: skip
    made = Case(list_of_pointers, (2,), args, {"c_ptrs": pointers["c_ptrs"].clone()}, refused="depends on")
    made.outputs = list(zip(c, [x @ y for x, y in zip(a, b, strict=True)], strict=True))
    return made


@triton.jit
def combine(y_ptr, weight_ptr, out_ptr, N, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """The weighted sum of a token's experts: rows TOP_K · token and on, nothing looked up."""
    token = tl.program_id(0).to(tl.int64)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for j in tl.static_range(TOP_K):
        w = tl.load(weight_ptr + token * TOP_K + j)
        acc += w * tl.load(y_ptr + (token * TOP_K + j) * N + cols, mask=cols < N, other=0.0)
    tl.store(out_ptr + token * N + cols, acc, mask=cols < N)


@case
def weighted_sum_of_experts(seed):
    t, top_k, n = 7, 2, 21
    y, w = normal((t, top_k, n), seed), normal((t, top_k), seed + 50)
    args = {"y_ptr": y, "weight_ptr": w, "out_ptr": unset((t, n)), "N": n, "TOP_K": top_k, "BLOCK": 16}
    return Case(
        combine, (t, 2), args, {"out_ptr": (y * w[..., None]).sum(1)}, tolerance=1e-6, axes=(7, 2), reduction="j",
        gather={"y_ptr": 0}, scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def grouped_by_tiles(
    a_ptr, b_ptr, c_ptr, row_ptr, end_ptr, expert_ptr, N, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """A grouped product as its users write it: tables say of each tile its first row, where its group ends, and whose weights."""
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    row, end, expert = tl.load(row_ptr + pid_m), tl.load(end_ptr + pid_m), tl.load(expert_ptr + pid_m)
    rows = row + tl.arange(0, BM)
    cols = pid_n * BN + tl.arange(0, BN)
    inside = (rows[:, None] < end) & (cols[None, :] < N)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(
            a_ptr + rows[:, None] * K + rk[None, :], mask=(rows[:, None] < end) & (rk[None, :] < K), other=0.0
        )
        b = tl.load(
            b_ptr + expert * K * N + rk[:, None] * N + cols[None, :],
            mask=(rk[:, None] < K) & (cols[None, :] < N),
            other=0.0,
        )
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=inside)


@case
def grouped_by_known_tiles(seed):
    """Groups of 5, 0, 24 and 3 rows: what tiles read and write is known by the tables' values, row by row."""
    ends, n, k = (5, 5, 29, 32), 24, 20
    tiles = [(0, 5, 0), (5, 29, 2), (21, 29, 2), (29, 32, 3)]
    a, b = numbers((32, k), seed), numbers((4, k, n), seed + 50)
    wanted = torch.cat([a[lo:hi] @ b[g] for g, (lo, hi) in enumerate(zip((0, *ends), ends, strict=False))])
    tables = [torch.tensor(column, dtype=torch.int32) for column in zip(*tiles, strict=True)]
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((32, n)), "row_ptr": tables[0], "end_ptr": tables[1],
        "expert_ptr": tables[2], "N": n, "K": k, "BM": 16, "BN": 16, "BK": 16,
    }  # fmt: skip
    return Case(
        grouped_by_tiles, (4, 2), args, {"c_ptr": wanted}, values=("row_ptr", "end_ptr", "expert_ptr"), axes=(4, 2), reduction="k",
        gather={"a_ptr": 0}, scatter={"c_ptr": 0}, compile={"BN": 64, "BK": 32},
    )  # fmt: skip
