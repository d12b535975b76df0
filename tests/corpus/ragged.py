"""Ragged data whose shape the host knows, and images: segments, sparse rows, bags of words, groups of tiles, windows, pools."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, normal, numbers, unset


@triton.jit
def segment_sums(x_ptr, starts_ptr, y_ptr, D: tl.constexpr, B: tl.constexpr):
    """Rows [starts[s], starts[s + 1]) are added up, a block at a time."""
    s, d = tl.program_id(0), tl.arange(0, D)
    begin, end = tl.load(starts_ptr + s), tl.load(starts_ptr + s + 1)
    acc = tl.zeros((D,), tl.float32)
    for row in range(begin, end, B):
        r = row + tl.arange(0, B)
        x = tl.load(x_ptr + r[:, None] * D + d[None, :], mask=r[:, None] < end, other=0.0)
        acc += tl.sum(x, 0)
    tl.store(y_ptr + s * D + d, acc)


@case
def sums_of_known_segments(seed):
    x, starts = numbers((21, 8), seed), [0, 9, 9, 14, 21]
    wanted = torch.stack([x[a:b].sum(0) for a, b in zip(starts, starts[1:], strict=False)])
    args = {"x_ptr": x, "starts_ptr": torch.tensor(starts), "y_ptr": unset((4, 8)), "D": 8, "B": 4}
    return Case(
        segment_sums,
        (4,),
        args,
        {"y_ptr": wanted},
        values=("starts_ptr",),
        reduction="row",
        axes=(4,),
        gather={"x_ptr": 0},
    )


@triton.jit
def sparse_rows(value_ptr, column_ptr, row_ptr, b_ptr, c_ptr, N: tl.constexpr, B: tl.constexpr):
    """A sparse matrix by rows times a dense one."""
    row, n = tl.program_id(0), tl.arange(0, N)
    acc = tl.zeros((N,), tl.float32)
    for at in range(tl.load(row_ptr + row), tl.load(row_ptr + row + 1)):
        column = tl.load(column_ptr + at)
        acc += tl.load(value_ptr + at) * tl.load(b_ptr + column * N + n)
    tl.store(c_ptr + row * N + n, acc)


@case
def sparse_times_dense(seed):
    dense = numbers((6, 9), seed) * (numbers((6, 9), 7) > 1)
    sparse, b = dense.to_sparse_csr(), numbers((9, 8), seed + 50)
    mask = (numbers((6, 9), 7) > 1).float().to_sparse_csr()
    args = {
        "value_ptr": dense[mask.to_dense() > 0], "column_ptr": mask.col_indices().int(),
        "row_ptr": mask.crow_indices().int(), "b_ptr": b, "c_ptr": unset((6, 8)), "N": 8, "B": 1,
    }  # fmt: skip
    assert sparse.shape == dense.shape
    return Case(
        sparse_rows,
        (6,),
        args,
        {"c_ptr": dense @ b},
        values=("column_ptr", "row_ptr"),
        reduction="at",
        axes=(6,),
        gather={"b_ptr": 0},
    )


@triton.jit
def bag_of_words(table_ptr, word_ptr, start_ptr, y_ptr, D: tl.constexpr):
    """The mean of the rows that a bag lists."""
    bag, d = tl.program_id(0), tl.arange(0, D)
    begin, end = tl.load(start_ptr + bag), tl.load(start_ptr + bag + 1)
    acc = tl.zeros((D,), tl.float32)
    at = begin
    while at < end:
        acc += tl.load(table_ptr + tl.load(word_ptr + at) * D + d)
        at += 1
    tl.store(y_ptr + bag * D + d, acc / tl.maximum(end - begin, 1))


@case
def bags_of_known_words(seed):
    table, words, starts = numbers((10, 8), seed), [3, 9, 3, 0, 7, 1, 2], [0, 2, 2, 6, 7]
    wanted = torch.stack([
        table[words[a:b]].sum(0) / max(b - a, 1) for a, b in zip(starts, starts[1:], strict=False)
    ])  # fmt: skip
    args = {
        "table_ptr": table, "word_ptr": torch.tensor(words, dtype=torch.int32), "start_ptr": torch.tensor(starts),
        "y_ptr": unset((4, 8)), "D": 8,
    }  # fmt: skip
    return Case(
        bag_of_words,
        (4,),
        args,
        {"y_ptr": wanted},
        values=("word_ptr", "start_ptr"),
        axes=(4,),
        gather={"table_ptr": 0},
    )


@triton.jit
def grouped_tiles(
    a_ptr, b_ptr, c_ptr, start_ptr, GROUPS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, B: tl.constexpr,
    PROGRAMS: tl.constexpr,
):  # fmt: skip
    """All tiles of all groups in one row, PROGRAMS apart; groups are found on the way."""
    tile = tl.program_id(0)
    before = 0
    for g in range(GROUPS):
        begin = tl.load(start_ptr + g)
        end = tl.load(start_ptr + g + 1)
        columns = tl.cdiv(N, B)
        tiles = tl.cdiv(end - begin, B) * columns
        while tile >= before and tile < before + tiles:
            r = begin + (tile - before) // columns * B + tl.arange(0, B)
            c = (tile - before) % columns * B + tl.arange(0, B)
            k = tl.arange(0, K)
            a = tl.load(a_ptr + r[:, None] * K + k[None, :], mask=r[:, None] < end, other=0.0)
            b = tl.load(b_ptr + g * K * N + k[:, None] * N + c[None, :], mask=c[None, :] < N, other=0.0)
            acc = tl.dot(a, b, input_precision="ieee")
            tl.store(c_ptr + r[:, None] * N + c[None, :], acc, mask=(r[:, None] < end) & (c[None, :] < N))
            tile += PROGRAMS
        before += tiles


@case
def tiles_of_known_groups(seed):
    starts, n, k = [0, 20, 23, 40], 24, 16
    a, b = numbers((40, k), seed), numbers((3, k, n), seed + 50)
    wanted = torch.cat([a[x:y] @ b[g] for g, (x, y) in enumerate(zip(starts, starts[1:], strict=False))])
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((40, n)), "start_ptr": torch.tensor(starts, dtype=torch.int32), "GROUPS": 3,
        "N": n, "K": k, "B": 16, "PROGRAMS": 4,
    }  # fmt: skip
    return Case(grouped_tiles, (4,), args, {"c_ptr": wanted}, values=("start_ptr",), gather={"a_ptr": 0})


@triton.jit
def walked_groups(
    a_ptr, b_ptr, c_ptr, start_ptr, GROUPS, N: tl.constexpr, K: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """The same, asking for the end of a group only: that the tile is none of those before, it has seen."""
    tile = tl.program_id(0)
    before = 0
    for g in range(GROUPS):
        begin, end = tl.load(start_ptr + g), tl.load(start_ptr + g + 1)
        tiles = tl.cdiv(end - begin, B) * tl.cdiv(N, B)
        while tile < before + tiles:
            r = begin + (tile - before) // tl.cdiv(N, B) * B + tl.arange(0, B)
            c = (tile - before) % tl.cdiv(N, B) * B + tl.arange(0, B)
            k = tl.arange(0, K)
            a = tl.load(a_ptr + r[:, None] * K + k[None, :], mask=r[:, None] < end, other=0.0)
            b = tl.load(b_ptr + g * K * N + k[:, None] * N + c[None, :], mask=c[None, :] < N, other=0.0)
            acc = tl.dot(a, b, input_precision="ieee")
            tl.store(c_ptr + r[:, None] * N + c[None, :], acc, mask=(r[:, None] < end) & (c[None, :] < N))
            tile += tl.num_programs(0)
        before += tiles


@case
def groups_that_programs_walk_through(seed):
    starts, n, k = [0, 20, 23, 40], 24, 16
    a, b = numbers((40, k), seed), numbers((3, k, n), seed + 50)
    wanted = torch.cat([a[x:y] @ b[g] for g, (x, y) in enumerate(zip(starts, starts[1:], strict=False))])
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((40, n)), "start_ptr": torch.tensor(starts, dtype=torch.int32), "GROUPS": 3,
        "N": n, "K": k, "B": 16,
    }  # fmt: skip
    return Case(walked_groups, (4,), args, {"c_ptr": wanted}, values=("start_ptr",), gather={"a_ptr": 0})


@triton.jit
def scatter_rows(x_ptr, to_ptr, y_ptr, n, D: tl.constexpr, B: tl.constexpr):
    """Rows go where a permutation says."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    to = tl.load(to_ptr + i, mask=i < n, other=0)
    d = tl.arange(0, D)
    x = tl.load(x_ptr + i[:, None] * D + d[None, :], mask=i[:, None] < n)
    tl.store(y_ptr + to[:, None] * D + d[None, :], x, mask=i[:, None] < n)


@case
def rows_to_known_places(seed):
    x, to = numbers((14, 8), seed), torch.randperm(14, generator=torch.Generator().manual_seed(3))
    wanted = torch.empty_like(x)
    wanted[to] = x
    args = {"x_ptr": x, "to_ptr": to.int(), "y_ptr": unset((14, 8)), "n": 14, "D": 8, "B": 4}
    return Case(
        scatter_rows, (4,), args, {"y_ptr": wanted}, values=("to_ptr",), axes=(4,), gather={"x_ptr": 0}
    )


@triton.jit
def windowed_attention(
    q_ptr, k_ptr, v_ptr, o_ptr, T, scale, D: tl.constexpr, WINDOW: tl.constexpr, B: tl.constexpr
):
    """Each query sees the WINDOW keys up to its own place."""
    first = tl.program_id(0) * B
    r, d = first + tl.arange(0, B), tl.arange(0, D)
    q = tl.load(q_ptr + r[:, None] * D + d[None, :], mask=r[:, None] < T, other=0.0)
    top = tl.full((B,), -1.0e30, tl.float32)
    total = tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, D), tl.float32)
    for start in range(max(0, (first - WINDOW + 1) // B * B), min(first + B, T), B):
        c = start + tl.arange(0, B)
        k = tl.load(k_ptr + c[:, None] * D + d[None, :], mask=c[:, None] < T, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where((c[None, :] <= r[:, None]) & (c[None, :] > r[:, None] - WINDOW), s, -1.0e30)
        new_top = tl.maximum(top, tl.max(s, 1))
        p, alpha = tl.exp(s - new_top[:, None]), tl.exp(top - new_top)
        v = tl.load(v_ptr + c[:, None] * D + d[None, :], mask=c[:, None] < T, other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p, v, input_precision="ieee")
        total, top = total * alpha + tl.sum(p, 1), new_top
    tl.store(o_ptr + r[:, None] * D + d[None, :], acc / total[:, None], mask=r[:, None] < T)


@case
def attention_in_a_window(seed):
    q, k, v = (normal((60, 16), seed + 30 * i) for i in range(3))
    i = torch.arange(60)
    far = (i[None] > i[:, None]) | (i[None] <= i[:, None] - 20)
    wanted = ((q @ k.T) * 0.25).masked_fill(far, float("-inf")).softmax(1) @ v
    args = {
        "q_ptr": q,
        "k_ptr": k,
        "v_ptr": v,
        "o_ptr": unset((60, 16)),
        "T": 60,
        "scale": 0.25,
        "D": 16,
        "WINDOW": 20,
        "B": 16,
    }
    return Case(
        windowed_attention, (4,), args, {"o_ptr": wanted}, tolerance=1e-5, reduction="start", axes=(4,), gather={"k_ptr": 0},
        scatter={"o_ptr": 0},
    )  # fmt: skip


@triton.jit
def pooled(x_ptr, y_ptr, W, OW, C: tl.constexpr, P: tl.constexpr):
    """The largest of P × P pixels, channels last."""
    oy, ox, c = tl.program_id(1), tl.program_id(0), tl.arange(0, C)
    best = tl.full((C,), -float("inf"), tl.float32)
    for dy in tl.static_range(P):
        for dx in tl.static_range(P):
            at = ((oy * P + dy) * W + ox * P + dx) * C + c
            best = tl.maximum(best, tl.load(x_ptr + at))
    tl.store(y_ptr + (oy * OW + ox) * C + c, best)


@case
def largest_of_pixels(seed):
    x = numbers((8, 10, 4), seed)
    wanted = torch.nn.functional.max_pool2d(x.permute(2, 0, 1), 2).permute(1, 2, 0).contiguous()
    args = {"x_ptr": x, "y_ptr": unset((4, 5, 4)), "W": 10, "OW": 5, "C": 4, "P": 2}
    return Case(
        pooled,
        (5, 4),
        args,
        {"y_ptr": wanted},
        axes=(4, 5),
        reduction="dy",
        gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )


@triton.jit
def to_space(x_ptr, y_ptr, H, W, R: tl.constexpr, C: tl.constexpr, B: tl.constexpr):
    """R × R channels become a square of pixels."""
    row = tl.program_id(0)
    at = tl.program_id(1) * B + tl.arange(0, B)
    oy, dy = row // R, row % R
    ox, dx = at // R, at % R
    c = tl.arange(0, C)
    x = tl.load(
        x_ptr + ((oy * W + ox[:, None]) * R * R + dy * R + dx[:, None]) * C + c[None, :],
        mask=at[:, None] < W * R,
    )
    tl.store(y_ptr + (row * W * R + at[:, None]) * C + c[None, :], x, mask=at[:, None] < W * R)


@case
def channels_to_pixels(seed):
    h, w, r, c = 3, 5, 2, 4
    x = numbers((h, w, r, r, c), seed)
    args = {"x_ptr": x, "y_ptr": unset((h * r, w * r, c)), "H": h, "W": w, "R": r, "C": c, "B": 8}
    wanted = x.permute(0, 2, 1, 3, 4).reshape(h * r, w * r, c).contiguous()
    return Case(
        to_space, (h * r, cdiv(w * r, 8)), args, {"y_ptr": wanted}, gather={"x_ptr": 0}, scatter={"y_ptr": 0}
    )


@triton.jit
def rolled(x_ptr, y_ptr, N, shift, B: tl.constexpr):
    """Elements move on by `shift`, those at the end to the front."""
    row = tl.program_id(0)
    at = tl.program_id(1) * B + tl.arange(0, B)
    x = tl.load(x_ptr + row * N + (at + N - shift) % N, mask=at < N)
    tl.store(y_ptr + row * N + at, x, mask=at < N)


@case
def rows_rolled(seed):
    x = numbers((6, 30), seed)
    args = {"x_ptr": x, "y_ptr": unset((6, 30)), "N": 30, "shift": 11, "B": 16}
    return Case(
        rolled, (6, 2), args, {"y_ptr": x.roll(11, 1)}, axes=(6, 2), gather={"x_ptr": 0}, scatter={"y_ptr": 0}
    )


@triton.jit
def complex_product(a_ptr, b_ptr, c_ptr, n, B: tl.constexpr):
    """Real and imaginary parts lie side by side."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    ar, ai = tl.load(a_ptr + 2 * at, mask=keep), tl.load(a_ptr + 2 * at + 1, mask=keep)
    br, bi = tl.load(b_ptr + 2 * at, mask=keep), tl.load(b_ptr + 2 * at + 1, mask=keep)
    tl.store(c_ptr + 2 * at, ar * br - ai * bi, mask=keep)
    tl.store(c_ptr + 2 * at + 1, ar * bi + ai * br, mask=keep)


@case
def products_of_complex_numbers(seed):
    a, b = numbers((27, 2), seed), numbers((27, 2), seed + 50)
    wanted = torch.view_as_real(torch.view_as_complex(a) * torch.view_as_complex(b))
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": unset((27, 2)), "n": 27, "B": 8}
    return Case(complex_product, (4,), args, {"c_ptr": wanted}, gather={"a_ptr": 0}, scatter={"c_ptr": 0})
