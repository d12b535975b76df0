"""Kernels of inference servers and of training with long rows: weights of 4 bits, fp8 with scales of blocks,
quantisation by group, pages behind a table, jagged rows, rotation in place, states that scan, locks, dropout by a seed,
losses that end early."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, normal, numbers, unset


@triton.jit
def packed_weights(
    a_ptr, b_ptr, c_ptr, scale_ptr, zero_ptr, M, N: tl.constexpr, K: tl.constexpr, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """16-bit activations by weights of 4 bits, eight in a word; scales and zeros by group of K, zeros packed, too."""
    columns = tl.cdiv(N, BN)
    m, n = tl.program_id(0) // columns, tl.program_id(0) % columns
    rows, cols, ks = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_ptrs = a_ptr + rows[:, None] * K + ks[None, :]
    b_ptrs = b_ptr + (ks[:, None] // 8) * N + cols[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        group = (ks + k * BK) // GROUP
        scales = tl.load(scale_ptr + group[:, None] * N + cols[None, :])
        zeros = tl.load(zero_ptr + group[:, None] * (N // 8) + cols[None, :] // 8)
        zeros = (zeros >> ((cols % 8) * 4)[None, :]) & 15
        a = tl.load(a_ptrs, mask=rows[:, None] < M, other=0.0)
        b = (tl.load(b_ptrs) >> ((ks % 8) * 4)[:, None]) & 15
        acc += tl.dot(a, ((b - zeros) * scales).to(a.dtype))
        a_ptrs += BK
        b_ptrs += (BK // 8) * N
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=rows[:, None] < M)


@case
def weights_of_four_bits_by_group(seed):
    M, N, K, GROUP = 20, 32, 64, 32
    draw = torch.Generator().manual_seed(seed)
    a, scale = numbers((M, K), seed, torch.float16), numbers((K // GROUP, N), seed + 1, torch.float16)
    weight, zero = (
        torch.randint(0, 16, (K, N), generator=draw),
        torch.randint(0, 16, (K // GROUP, N), generator=draw),
    )
    places = torch.arange(8) * 4
    packed = (weight.reshape(K // 8, 8, N) << places[:, None]).sum(1).to(torch.uint32).view(torch.int32)
    zeros = (zero.reshape(K // GROUP, N // 8, 8) << places).sum(2).to(torch.uint32).view(torch.int32)
    whole = (weight - zero.repeat_interleave(GROUP, 0)) * scale.repeat_interleave(GROUP, 0).float()
    args = {
        "a_ptr": a, "b_ptr": packed, "c_ptr": unset((M, N)), "scale_ptr": scale, "zero_ptr": zeros, "M": M, "N": N,
        "K": K, "GROUP": GROUP, "BM": 8, "BN": 16, "BK": 16,
    }  # fmt: skip
    return Case(packed_weights, (6,), args, {"c_ptr": a.float() @ whole}, axes=(3, 2), reduction="k", gather={"a_ptr": 0}, scatter={"c_ptr": 0})  # fmt: skip


@triton.jit
def scaled_blocks(
    a_ptr, b_ptr, c_ptr, a_s_ptr, b_s_ptr, M, N: tl.constexpr, K: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """fp8 by fp8, a scale for each stretch of a row of A and each square block of B; rows wrap around."""
    m, n, steps = tl.program_id(0), tl.program_id(1), tl.cdiv(K, BK)
    rows, cols, ks = (m * BM + tl.arange(0, BM)) % M, (n * BN + tl.arange(0, BN)) % N, tl.arange(0, BK)
    a_ptrs, b_ptrs = a_ptr + rows[:, None] * K + ks[None, :], b_ptr + cols[None, :] * K + ks[:, None]
    a_s, b_s = a_s_ptr + rows * steps, b_s_ptr + (cols // BK) * steps
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(steps):
        a = tl.load(a_ptrs, mask=ks[None, :] < K - i * BK, other=0.0).to(tl.float32)
        b = tl.load(b_ptrs, mask=ks[:, None] < K - i * BK, other=0.0).to(tl.float32)
        acc += tl.dot(a, b) * tl.load(a_s)[:, None] * tl.load(b_s)[None, :]
        a_ptrs += BK
        b_ptrs += BK
        a_s += 1
        b_s += 1
    rows, cols = m * BM + tl.arange(0, BM), n * BN + tl.arange(0, BN)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < M) & (cols[None, :] < N))


@case
def fp8_with_scales_of_blocks(seed):
    M, N, K = 20, 48, 64
    a, b = numbers((M, K), seed).to(torch.float8_e4m3fn), numbers((N, K), seed + 1).to(torch.float8_e4m3fn)
    a_s, b_s = numbers((M, 4), seed + 2), numbers((3, 4), seed + 3)
    wide = a.float() * a_s.repeat_interleave(16, 1)
    wanted = wide @ (b.float() * b_s.repeat_interleave(16, 0).repeat_interleave(16, 1)).T
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((M, N)), "a_s_ptr": a_s, "b_s_ptr": b_s, "M": M, "N": N, "K": K,
        "BM": 8, "BN": 16, "BK": 16,
    }  # fmt: skip
    return Case(scaled_blocks, (3, 3), args, {"c_ptr": wanted}, axes=(3, 3), reduction="i", gather={"a_ptr": 0}, scatter={"c_ptr": 0})  # fmt: skip


@triton.jit
def quantise_groups(y_ptr, q_ptr, s_ptr, size, columns, stride, most, B: tl.constexpr):
    """A program for each group of a row; what it divides by is the group's own."""
    a_row = columns // size
    group = tl.program_id(0)
    y_ptr += (group // a_row).to(tl.int64) * stride + (group % a_row).to(tl.int64) * size
    q_ptr += group.to(tl.int64) * size
    at = tl.arange(0, B)
    y = tl.load(y_ptr + at, mask=at < size, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(y)), 1e-10) / most
    tl.store(q_ptr + at, tl.clamp(y / scale, -most, most).to(q_ptr.dtype.element_ty), mask=at < size)
    tl.store(s_ptr + group, scale)


@case
def quantisation_of_groups_to_fp8(seed):
    y = normal((5, 36), seed)
    groups = y.reshape(15, 12)
    scale = groups.abs().amax(1) / 448.0
    args = {
        "y_ptr": y, "q_ptr": torch.zeros((5, 36), dtype=torch.float8_e4m3fn), "s_ptr": unset((15,)), "size": 12,
        "columns": 36, "stride": 36, "most": 448.0, "B": 16,
    }  # fmt: skip
    return Case(
        quantise_groups, (15,), args, {"s_ptr": scale}, tolerance=1e-6, axes=(5, 3), gather={"y_ptr": 0}
    )


@triton.jit
def paged_heads(
    out_ptr, q_ptr, k_ptr, v_ptr, table_ptr, length_ptr, scale, PER: tl.constexpr, TABLE: tl.constexpr, HEADS: tl.constexpr,
    PAGE: tl.constexpr, D: tl.constexpr, X: tl.constexpr,
):  # fmt: skip
    """Grouped heads over a cache of pages, whose keys are laid out [page, head, D / X, slot, X]."""
    sequence, kv = tl.program_id(0), tl.program_id(1)
    head, d, slot = kv * PER + tl.arange(0, PER), tl.arange(0, D), tl.arange(0, PAGE)
    q_at = sequence * HEADS * PER * D + head[:, None] * D + d[None, :]
    q = tl.load(q_ptr + q_at)
    length = tl.load(length_ptr + sequence)
    most = tl.full([PER], float("-inf"), dtype=tl.float32)
    total, acc = tl.zeros([PER], tl.float32), tl.zeros([PER, D], tl.float32)
    for j in range(0, tl.cdiv(length, PAGE)):
        page = tl.load(table_ptr + sequence * TABLE + j)
        first = (page * HEADS + kv) * D * PAGE
        k = tl.load(k_ptr + first + (d[:, None] // X) * PAGE * X + slot[None, :] * X + d[:, None] % X)
        v = tl.load(v_ptr + first + d[None, :] * PAGE + slot[:, None])
        s = tl.where((j * PAGE + slot)[None, :] < length, scale * tl.dot(q, k), float("-inf"))
        now = tl.maximum(most, tl.max(s, 1))
        p, alpha = tl.exp(s - now[:, None]), tl.exp(most - now)
        acc, total, most = acc * alpha[:, None] + tl.dot(p, v), total * alpha + tl.sum(p, 1), now
    tl.store(out_ptr + q_at, acc / total[:, None])


@case
def pages_of_split_keys_by_a_known_table(seed):
    HEADS, PER, D, PAGE, X = 2, 2, 8, 4, 4
    q, keys, values = (
        normal((3, 4, D), seed),
        normal((10, HEADS, D, PAGE), seed + 1),
        normal((10, HEADS, D, PAGE), seed + 2),
    )
    table = torch.tensor([[1, 2, 3], [4, 5, 0], [7, 8, 9]], dtype=torch.int32)
    lengths = torch.tensor([9, 5, 12], dtype=torch.int32)
    wanted = torch.empty_like(q)
    for i, length in enumerate(lengths.tolist()):
        k, v = (
            t[table[i].long()].permute(1, 2, 0, 3).reshape(HEADS, D, -1)[..., :length] for t in (keys, values)
        )
        k, v = k.repeat_interleave(PER, 0), v.repeat_interleave(PER, 0)
        wanted[i] = torch.einsum("ht,hdt->hd", (torch.einsum("hd,hdt->ht", q[i], k) * 0.25).softmax(1), v)
    args = {
        "out_ptr": unset((3, 4, D)), "q_ptr": q, "k_ptr": keys.reshape(10, HEADS, D // X, X, PAGE).transpose(3, 4).contiguous(),
        "v_ptr": values, "table_ptr": table, "length_ptr": lengths, "scale": 0.25, "PER": PER, "TABLE": 3, "HEADS": HEADS,
        "PAGE": PAGE, "D": D, "X": X,
    }  # fmt: skip
    return Case(
        paged_heads, (3, 2), args, {"out_ptr": wanted}, values=("table_ptr", "length_ptr"), tolerance=1e-5, axes=(3, 2),
        reduction="j", gather={"q_ptr": 0}, scatter={"out_ptr": 0},
    )  # fmt: skip


@triton.jit
def to_dense(x_ptr, offset_ptr, y_ptr, most, D: tl.constexpr, B: tl.constexpr):
    """Jagged rows, filled up to the longest."""
    row = tl.program_id(0)
    begin, end = tl.load(offset_ptr + row), tl.load(offset_ptr + row + 1)
    t, d = tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, D)
    x = tl.load(x_ptr + (begin + t)[:, None] * D + d[None, :], mask=(t < end - begin)[:, None], other=-1.0)
    tl.store(y_ptr + row * most * D + t[:, None] * D + d[None, :], x, mask=(t < most)[:, None])


@case
def jagged_rows_to_dense(seed):
    x, offsets, wanted = numbers((12, 8), seed), [0, 5, 5, 12], torch.full((3, 7, 8), -1.0)
    for row in range(3):
        wanted[row, : offsets[row + 1] - offsets[row]] = x[offsets[row] : offsets[row + 1]]
    args = {
        "x_ptr": x,
        "offset_ptr": torch.tensor(offsets),
        "y_ptr": unset((3, 7, 8)),
        "most": 7,
        "D": 8,
        "B": 4,
    }
    return Case(to_dense, (3, 2), args, {"y_ptr": wanted}, values=("offset_ptr",), axes=(3, 2), gather={"x_ptr": 0}, scatter={"y_ptr": 0})  # fmt: skip


@triton.jit
def rotate_in_place(
    q_ptr,
    k_ptr,
    cos_ptr,
    sin_ptr,
    length,
    QH: tl.constexpr,
    KH: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
):
    """Both halves of queries and keys of a token, where they are; heads that are no power of two are padded."""
    token = tl.program_id(0).to(tl.int64)
    q_ptr, k_ptr = q_ptr + token * QH * D, k_ptr + token * KH * D
    d = tl.arange(0, H)
    inside = d < D // 2
    cos = tl.load(cos_ptr + token % length * D + d, mask=inside, other=0)[None, :]
    sin = tl.load(sin_ptr + token % length * D + d, mask=inside, other=0)[None, :]
    for which in tl.static_range(2):
        heads: tl.constexpr = QH if which == 0 else KH
        ptr = q_ptr if which == 0 else k_ptr
        at = tl.arange(0, heads)[:, None] * D + d[None, :]
        x, y = tl.load(ptr + at, mask=inside[None, :]), tl.load(ptr + at + D // 2, mask=inside[None, :])
        tl.store(ptr + at, x * cos - y * sin, mask=inside[None, :])
        tl.store(ptr + at + D // 2, y * cos + x * sin, mask=inside[None, :])


@case
def rotation_of_queries_and_keys_in_place(seed):
    q, k, cos, sin = (
        numbers((10, 2, 12), seed),
        numbers((10, 1, 12), seed + 1),
        numbers((5, 12), seed + 2),
        numbers((5, 12), seed + 3),
    )

    def rotated(x):
        c, s = cos.repeat(2, 1)[:, None, :6], sin.repeat(2, 1)[:, None, :6]
        return torch.cat([x[..., :6] * c - x[..., 6:] * s, x[..., 6:] * c + x[..., :6] * s], -1)

    args = {
        "q_ptr": q.clone(),
        "k_ptr": k.clone(),
        "cos_ptr": cos,
        "sin_ptr": sin,
        "length": 5,
        "QH": 2,
        "KH": 1,
        "D": 12,
        "H": 8,
    }
    return Case(
        rotate_in_place,
        (10,),
        args,
        {"q_ptr": rotated(q), "k_ptr": rotated(k)},
        axes=(10,),
        reduction="which",
        gather={"cos_ptr": 0},
    )


@triton.jit
def selective_scan(u_ptr, step_ptr, a_ptr, b_ptr, c_ptr, y_ptr, L, DIM, N: tl.constexpr, B: tl.constexpr):
    """A state of N numbers for each channel walks along the sequence."""
    batch, d, n = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, N)
    a = tl.load(a_ptr + d[:, None] * N + n[None, :], mask=d[:, None] < DIM, other=0.0)
    state = tl.zeros((B, N), tl.float32)
    for t in range(L):
        at = (batch * L + t) * DIM + d
        u, step = (
            tl.load(u_ptr + at, mask=d < DIM, other=0.0),
            tl.load(step_ptr + at, mask=d < DIM, other=0.0),
        )
        b, c = tl.load(b_ptr + (batch * L + t) * N + n), tl.load(c_ptr + (batch * L + t) * N + n)
        state = tl.exp(step[:, None] * a) * state + (step * u)[:, None] * b[None, :]
        tl.store(y_ptr + at, tl.sum(state * c[None, :], 1), mask=d < DIM)


@case
def states_along_a_sequence(seed):
    u, step, a = (
        normal((2, 6, 20), seed),
        normal((2, 6, 20), seed + 1).abs(),
        -normal((20, 4), seed + 2).abs(),
    )
    b, c, state, wanted = (
        normal((2, 6, 4), seed + 3),
        normal((2, 6, 4), seed + 4),
        torch.zeros(2, 20, 4),
        torch.empty(2, 6, 20),
    )
    for t in range(6):
        state = torch.exp(step[:, t, :, None] * a) * state + (step * u)[:, t, :, None] * b[:, t, None]
        wanted[:, t] = (state * c[:, t, None]).sum(-1)
    args = {
        "u_ptr": u,
        "step_ptr": step,
        "a_ptr": a,
        "b_ptr": b,
        "c_ptr": c,
        "y_ptr": unset((2, 6, 20)),
        "L": 6,
        "DIM": 20,
        "N": 4,
        "B": 8,
    }
    return Case(
        selective_scan,
        (2, 3),
        args,
        {"y_ptr": wanted},
        tolerance=1e-5,
        gather={"u_ptr": 0},
        scatter={"y_ptr": 2},
    )


@triton.jit
def gradients_behind_locks(dy_ptr, x_ptr, dx_ptr, dw_ptr, lock_ptr, N, LOCKS: tl.constexpr, B: tl.constexpr):
    """Rows add to a few partial sums; who takes a lock first finds its count at 0 and stores."""
    row, at = tl.program_id(0), tl.arange(0, B)
    dy = tl.load(dy_ptr + row * N + at, mask=at < N, other=0.0)
    x = tl.load(x_ptr + row * N + at, mask=at < N, other=0.0)
    tl.store(dx_ptr + row * N + at, dy * 2, mask=at < N)
    lock = lock_ptr + row % LOCKS
    dw = dw_ptr + row % LOCKS * N + at
    part = dy * x
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    if tl.load(lock + LOCKS) == 0:
        tl.atomic_xchg(lock + LOCKS, 1)
    else:
        part += tl.load(dw, mask=at < N)
    tl.store(dw, part, mask=at < N)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@case
def sums_of_rows_behind_locks(seed):
    dy, x = numbers((10, 30), seed), numbers((10, 30), seed + 1)
    dw = torch.stack([(dy * x)[i::4].sum(0) for i in range(4)])
    args = {
        "dy_ptr": dy, "x_ptr": x, "dx_ptr": unset((10, 30)), "dw_ptr": unset((4, 30)),
        "lock_ptr": torch.zeros(8, dtype=torch.int32), "N": 30, "LOCKS": 4, "B": 32,
    }  # fmt: skip
    return Case(
        gradients_behind_locks, (10,), args, {"dx_ptr": dy * 2, "dw_ptr": dw}, axes=(10,), gather={"x_ptr": 0},
        inexact="the first row of a lock only stores",
    )  # fmt: skip


@triton.jit
def dropout(x_ptr, y_ptr, n, p, seed, B: tl.constexpr):
    """Random numbers that follow from a seed and the place."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + at, mask=at < n)
    tl.store(y_ptr + at, tl.where(tl.rand(seed, at) > p, x / (1 - p), 0.0), mask=at < n)


@case
def dropout_by_a_seed(seed):
    x = numbers((50,), seed)
    args = {"x_ptr": x, "y_ptr": unset((50,)), "n": 50, "p": -1.0, "seed": 7, "B": 16}  # nothing is dropped
    return Case(dropout, (4,), args, {"y_ptr": x / 2}, axes=(4,), gather={"x_ptr": 0}, scatter={"y_ptr": 0})


@triton.jit
def loss_and_gradient(x_ptr, label_ptr, loss_ptr, n, IGNORED: tl.constexpr, B: tl.constexpr):
    """Softmax online, the gradient in place of the logits; a row without a label ends early."""
    row = tl.program_id(0)
    label = tl.load(label_ptr + row)
    x_ptr += row * n
    if label == IGNORED:
        for i in range(0, n, B):
            at = i + tl.arange(0, B)
            tl.store(x_ptr + at, 0.0, mask=at < n)
        return
    most, total = float("-inf"), 0.0
    own = tl.load(x_ptr + label)
    for i in range(0, n, B):
        at = i + tl.arange(0, B)
        x = tl.load(x_ptr + at, mask=at < n, other=float("-inf"))
        now = tl.maximum(most, tl.max(x))
        total = total * tl.exp(most - now) + tl.sum(tl.exp(x - now))
        most = now
    for j in range(0, n, B):
        at = j + tl.arange(0, B)
        x = tl.load(x_ptr + at, mask=at < n, other=float("-inf"))
        tl.store(x_ptr + at, tl.exp(x - most) / total, mask=at < n)
    tl.debug_barrier()
    tl.store(loss_ptr + row, most + tl.log(total) - own)
    tl.store(x_ptr + label, tl.load(x_ptr + label) - 1.0)


@case
def losses_that_end_early_by_known_labels(seed):
    x, labels = normal((6, 50), seed), [3, -100, 2, 7, 49, 0]
    gradient, loss = x.softmax(1), unset((6,))
    for row, label in enumerate(labels):
        if label < 0:
            gradient[row] = 0
        else:
            loss[row] = x[row].logsumexp(0) - x[row, label]
            gradient[row, label] -= 1
    args = {
        "x_ptr": x.clone(),
        "label_ptr": torch.tensor(labels),
        "loss_ptr": unset((6,)),
        "n": 50,
        "IGNORED": -100,
        "B": 16,
    }
    return Case(
        loss_and_gradient, (6,), args, {"x_ptr": gradient, "loss_ptr": loss}, values=("label_ptr",), tolerance=1e-5,
        axes=(6,),
    )  # fmt: skip


@triton.jit
def rows_by_blocks(x_ptr, place_ptr, y_ptr, n, D: tl.constexpr, B: tl.constexpr, DESCRIPTOR: tl.constexpr):
    """Rows in the order of a table that is loaded through a block pointer or a descriptor."""
    first, d = tl.program_id(0) * B, tl.arange(0, D)
    if DESCRIPTOR:
        place = tl.make_tensor_descriptor(place_ptr, [n], [1], [B]).load([first])
    else:
        block = tl.make_block_ptr(place_ptr, (n,), (1,), (0,), (B,), (0,))
        place = tl.load(tl.advance(block, (first,)), boundary_check=(0,))
    at = first + tl.arange(0, B)
    inside = (at < n)[:, None]
    x = tl.load(x_ptr + place[:, None] * D + d[None, :], mask=inside)
    tl.store(y_ptr + at[:, None] * D + d[None, :], x, mask=inside)


def placed_case(seed, descriptor):
    x, place = numbers((9, 8), seed), torch.tensor([4, 8, 1, 1, 0, 7, 6, 5, 3, 2], dtype=torch.int32)
    args = {
        "x_ptr": x, "place_ptr": place, "y_ptr": unset((10, 8)), "n": 10, "D": 8, "B": 4, "DESCRIPTOR": descriptor,
    }  # fmt: skip
    return Case(
        rows_by_blocks, (3,), args, {"y_ptr": x[place.long()]}, values=("place_ptr",), axes=(3,), gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )  # fmt: skip


@case
def rows_by_a_known_table_through_a_block_pointer(seed):
    return placed_case(seed, False)


@case
def rows_by_a_known_table_through_a_descriptor(seed):
    return placed_case(seed, True)
