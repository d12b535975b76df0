"""More of what public kernels do: generated elementwise code with flat indices, a flattened persistent product, split
decoding, pooling by division and remainder, normalisation of groups, hints of every kind, a table of blocks."""

import torch
import triton
import triton.language as tl

from .cases import Case, case, cdiv, normal, numbers, unset


@triton.jit
def permuted(in_ptr0, out_ptr0, ks0, ks1, xnumel, XBLOCK: tl.constexpr):
    """As a compiler writes it: one flat index, taken apart by // and %, [A, B, C] to [A, C, B]."""
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = xindex % ks0
    x1 = (xindex // ks0) % ks1
    x2 = xindex // (ks0 * ks1)
    tmp0 = tl.load(in_ptr0 + (x1 + ks1 * x0 + ks0 * ks1 * x2), xmask, eviction_policy="evict_last")
    tl.store(out_ptr0 + (xindex), tmp0 + 1.0, xmask)


@case
def generated_permutation(seed):
    a, b, c = 3, 5, 6
    x = numbers((a, b, c), seed)
    args = {"in_ptr0": x, "out_ptr0": unset((a, c, b)), "ks0": b, "ks1": c, "xnumel": x.numel(), "XBLOCK": 16}
    return Case(
        permuted, (cdiv(90, 16),), args, {"out_ptr0": x.transpose(1, 2).contiguous() + 1}, gather={"in_ptr0": 0},
        scatter={"out_ptr0": 0}, compile={},
    )  # fmt: skip


@triton.jit
def combine_moments(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta = mean_b - mean_a
    n = n_a + n_b
    share = tl.where(n == 0.0, 0.0, n_b / n)
    return mean_a + delta * share, m2_a + m2_b + delta * delta * n_a * share, n


@triton.jit
def welford(in_ptr0, in_ptr1, out_ptr0, xnumel, rnumel, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
    """Generated layer norm: moments by tl.reduce of a tuple, over blocks of the row, then a second pass."""
    xindex = tl.program_id(0) * XBLOCK + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    rbase = tl.arange(0, RBLOCK)[None, :]
    mean = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    m2 = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    weight = tl.zeros([XBLOCK, RBLOCK], tl.float32)
    for roffset in range(0, rnumel, RBLOCK):
        rindex = roffset + rbase
        rmask = rindex < rnumel
        value = tl.load(in_ptr0 + (rindex + rnumel * xindex), rmask & xmask, other=0.0).to(tl.float32)
        more = tl.where(rmask & xmask, 1.0, 0.0)
        mean_next, m2_next, weight_next = combine_moments(mean, m2, weight, value, 0.0, more)
        mean = tl.where(rmask & xmask, mean_next, mean)
        m2 = tl.where(rmask & xmask, m2_next, m2)
        weight = tl.where(rmask & xmask, weight_next, weight)
    mean_r, m2_r, weight_r = tl.reduce((mean, m2, weight), 1, combine_moments)
    mean_r, m2_r = mean_r[:, None], m2_r[:, None]
    for roffset in range(0, rnumel, RBLOCK):
        rindex = roffset + rbase
        rmask = rindex < rnumel
        value = tl.load(
            in_ptr0 + (rindex + rnumel * xindex), rmask & xmask, eviction_policy="evict_first", other=0.0
        )
        gain = tl.load(in_ptr1 + (tl.broadcast_to(rindex, [XBLOCK, RBLOCK])), rmask & xmask, other=0.0)
        out = (value - mean_r) * tl.rsqrt(m2_r / rnumel + 1e-5) * gain
        tl.store(out_ptr0 + (rindex + rnumel * xindex), out, rmask & xmask)


@case
def generated_layer_norm(seed):
    m, n = 13, 21
    x, w = normal((m, n), seed), normal((n,), seed + 50)
    args = {
        "in_ptr0": x,
        "in_ptr1": w,
        "out_ptr0": unset((m, n)),
        "xnumel": m,
        "rnumel": n,
        "XBLOCK": 4,
        "RBLOCK": 8,
    }
    return Case(
        welford, (cdiv(m, 4),), args, {"out_ptr0": torch.nn.functional.layer_norm(x, (n,), w)}, tolerance=1e-5,
        axes=(4,), gather={"in_ptr0": 0}, scatter={"out_ptr0": 0}, compile={},
    )  # fmt: skip


@triton.jit
def flattened(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
    NUM_SMS: tl.constexpr,
):  # fmt: skip
    """The persistent product of an earlier tutorial: one loop over all steps of K of all tiles of the program."""
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_SIZE_M)
    num_pid_n = tl.cdiv(N, BLOCK_SIZE_N)
    k_tiles = tl.cdiv(K, BLOCK_SIZE_K)
    num_tiles = num_pid_m * num_pid_n
    tiles_per_SM = num_tiles // NUM_SMS
    if start_pid < num_tiles % NUM_SMS:
        tiles_per_SM += 1
    tile_id = start_pid - NUM_SMS
    ki = -1
    offs_k_for_mask = tl.arange(0, BLOCK_SIZE_K)
    num_pid_in_group = GROUP_SIZE_M * num_pid_n
    pid_m = 0
    pid_n = 0
    offs_am = tl.arange(0, BLOCK_SIZE_M)
    offs_bn = tl.arange(0, BLOCK_SIZE_N)
    accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)
    for _ in range(0, k_tiles * tiles_per_SM):
        ki = tl.where(ki == k_tiles - 1, 0, ki + 1)
        if ki == 0:
            tile_id += NUM_SMS
            group_id = tile_id // num_pid_in_group
            first_pid_m = group_id * GROUP_SIZE_M
            group_size_m = min(num_pid_m - first_pid_m, GROUP_SIZE_M)
            pid_m = first_pid_m + (tile_id % group_size_m)
            pid_n = (tile_id % num_pid_in_group) // group_size_m
            offs_am = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
            offs_bn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
            offs_am = tl.where(offs_am < M, offs_am, 0)
            offs_bn = tl.where(offs_bn < N, offs_bn, 0)
            offs_am = tl.max_contiguous(tl.multiple_of(offs_am, BLOCK_SIZE_M), BLOCK_SIZE_M)
            offs_bn = tl.max_contiguous(tl.multiple_of(offs_bn, BLOCK_SIZE_N), BLOCK_SIZE_N)
        offs_k = ki * BLOCK_SIZE_K + tl.arange(0, BLOCK_SIZE_K)
        a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
        b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)
        a = tl.load(a_ptrs, mask=offs_k_for_mask[None, :] < K - ki * BLOCK_SIZE_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k_for_mask[:, None] < K - ki * BLOCK_SIZE_K, other=0.0)
        accumulator = tl.dot(a, b, accumulator, input_precision="ieee")
        if ki == k_tiles - 1:
            offs_cm = pid_m * BLOCK_SIZE_M + tl.arange(0, BLOCK_SIZE_M)
            offs_cn = pid_n * BLOCK_SIZE_N + tl.arange(0, BLOCK_SIZE_N)
            c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
            c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
            tl.store(c_ptrs, accumulator, mask=c_mask)
            accumulator = tl.zeros((BLOCK_SIZE_M, BLOCK_SIZE_N), dtype=tl.float32)


@case
def one_loop_over_steps_of_all_tiles(seed):
    m, n, k = 52, 36, 40
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    args = {
        "a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), "M": m, "N": n, "K": k, "stride_am": k, "stride_ak": 1,
        "stride_bk": n, "stride_bn": 1, "stride_cm": n, "stride_cn": 1, "BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 16,
        "BLOCK_SIZE_K": 16, "GROUP_SIZE_M": 2, "NUM_SMS": 5,
    }  # fmt: skip
    return Case(
        flattened, (5,), args, {"c_ptr": a @ b}, gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile={"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32},
    )  # fmt: skip


@triton.jit
def decode_part(
    Q, K, V, Mid, Lse, sm_scale, N_CTX, H: tl.constexpr, SPLITS: tl.constexpr, D: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """One query a head; each program sees one of SPLITS stretches of the keys. K, V [batch, N_CTX, H, D]."""
    cur_batch = tl.program_id(0)
    cur_head = tl.program_id(1)
    split = tl.program_id(2)
    d = tl.arange(0, D)
    per_split = tl.cdiv(N_CTX, SPLITS)
    start = per_split * split
    end = tl.minimum(start + per_split, N_CTX)
    q = tl.load(Q + (cur_batch * H + cur_head) * D + d)
    e_max = -float("inf")
    e_sum = 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    if end > start:
        for start_n in range(start, end, BN):
            offs_n = start_n + tl.arange(0, BN)
            at = ((cur_batch * N_CTX + offs_n[:, None]) * H + cur_head) * D + d[None, :]
            k = tl.load(K + at, mask=offs_n[:, None] < end, other=0.0)
            qk = tl.sum(q[None, :] * k, 1) * sm_scale
            qk = tl.where(offs_n < end, qk, float("-inf"))
            v = tl.load(V + at, mask=offs_n[:, None] < end, other=0.0)
            n_max = tl.maximum(tl.max(qk, 0), e_max)
            re_scale = tl.exp(e_max - n_max)
            p = tl.exp(qk - n_max)
            acc = acc * re_scale + tl.sum(p[:, None] * v, 0)
            e_sum = e_sum * re_scale + tl.sum(p, 0)
            e_max = n_max
        place = (cur_batch * H + cur_head) * SPLITS + split
        tl.store(Mid + place * D + d, acc / e_sum)
        tl.store(Lse + place, e_max + tl.log(e_sum))


def decode_parts(seed):
    batch, n, heads, d, splits, scale = 2, 37, 3, 16, 4, 0.25
    q, k, v = (
        normal((batch, heads, d), seed),
        normal((batch, n, heads, d), seed + 1),
        normal((batch, n, heads, d), seed + 2),
    )
    mid, lse = unset((batch, heads, splits, d)), unset((batch, heads, splits))
    per = cdiv(n, splits)
    for s in range(splits):
        part = slice(s * per, min((s + 1) * per, n))
        score = torch.einsum("bhd,bnhd->bhn", q, k[:, part]) * scale
        mid[:, :, s] = torch.einsum("bhn,bnhd->bhd", score.softmax(-1), v[:, part])
        lse[:, :, s] = score.logsumexp(-1)
    return (batch, n, heads, d, splits, scale), (q, k, v), (mid, lse)


@case
def decoding_in_stretches_of_keys(seed):
    (batch, n, heads, d, splits, scale), (q, k, v), (mid, lse) = decode_parts(seed)
    args = {
        "Q": q, "K": k, "V": v, "Mid": unset(mid.shape), "Lse": unset(lse.shape), "sm_scale": scale, "N_CTX": n,
        "H": heads, "SPLITS": splits, "D": d, "BN": 8,
    }  # fmt: skip
    return Case(
        decode_part, (batch, heads, splits), args, {"Mid": mid, "Lse": lse}, tolerance=1e-5, reduction="start_n",
        gather={"K": 1}, scatter={"Mid": 1}, compile={"D": 64, "BN": 32},
    )  # fmt: skip


@triton.jit
def decode_join(Mid, Lse, Out, H: tl.constexpr, SPLITS: tl.constexpr, D: tl.constexpr):
    """The stretches' results, weighted by their sums. The pointers are moved to the head first."""
    Mid += tl.program_id(0) * H * SPLITS * D + tl.program_id(1) * SPLITS * D
    Lse += tl.program_id(0) * H * SPLITS + tl.program_id(1) * SPLITS
    e_max = -float("inf")
    e_sum = 0.0
    acc = tl.zeros([D], dtype=tl.float32)
    for split in range(SPLITS):
        value = tl.load(Mid + split * D + tl.arange(0, D))
        lse = tl.load(Lse + split)
        n_max = tl.maximum(lse, e_max)
        old, new = tl.exp(e_max - n_max), tl.exp(lse - n_max)
        acc = acc * old + new * value
        e_sum = e_sum * old + new
        e_max = n_max
    tl.store(Out + (tl.program_id(0) * H + tl.program_id(1)) * D + tl.arange(0, D), acc / e_sum)


@case
def joining_what_stretches_gave(seed):
    (batch, n, heads, d, splits, scale), (q, k, v), (mid, lse) = decode_parts(seed)
    weights = (lse - lse.logsumexp(-1, keepdim=True)).exp()
    args = {"Mid": mid, "Lse": lse, "Out": unset((batch, heads, d)), "H": heads, "SPLITS": splits, "D": d}
    return Case(
        decode_join, (batch, heads), args, {"Out": (mid * weights[..., None]).sum(2)}, tolerance=1e-5, axes=(2, 3),
        reduction="split", gather={"Mid": 1}, scatter={"Out": 1}, compile={},
    )  # fmt: skip


@triton.jit
def max_pool(
    x_ptr, y_ptr, C, H, W, OH, OW, KERNEL: tl.constexpr, STRIDE: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A flat index over one channel's output; what it reads is found by division and remainder. [C, H, W]."""
    channel = tl.program_id(1)
    out = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = out < OH * OW
    oh = out // OW
    ow = out % OW
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    for kh in tl.static_range(KERNEL):
        for kw in tl.static_range(KERNEL):
            h = oh * STRIDE + kh - PAD
            w = ow * STRIDE + kw - PAD
            ok = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            x = tl.load(x_ptr + channel * H * W + h * W + w, mask=ok, other=float("-inf"))
            best = tl.maximum(best, x)
    tl.store(y_ptr + channel * OH * OW + out, best, mask=inside)


@case
def pooling_by_division_and_remainder(seed):
    c, h, w = 3, 9, 7
    x = normal((c, h, w), seed)
    y = torch.nn.functional.max_pool2d(x, 3, 2, 1)
    args = {
        "x_ptr": x, "y_ptr": unset(y.shape), "C": c, "H": h, "W": w, "OH": y.shape[1], "OW": y.shape[2], "KERNEL": 3,
        "STRIDE": 2, "PAD": 1, "BLOCK": 8,
    }  # fmt: skip
    return Case(
        max_pool, (cdiv(y.shape[1] * y.shape[2], 8), c), args, {"y_ptr": y}, gather={"x_ptr": 0}, scatter={"y_ptr": 0},
        compile={},
    )  # fmt: skip


@triton.jit
def group_norm(
    x_ptr, w_ptr, b_ptr, y_ptr, C, HW, eps, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """GROUP neighbouring channels of one image are normalised together: [N, C, HW]; gains by channel, at // HW."""
    image, group = tl.program_id(0), tl.program_id(1)
    base = (image * C + group * GROUP) * HW
    size = GROUP * HW
    total = tl.zeros((BLOCK,), tl.float32)
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + base + at, mask=at < size, other=0.0)
        total += x
        squares += x * x
    mean = tl.sum(total) / size
    rstd = 1.0 / tl.sqrt(tl.sum(squares) / size - mean * mean + eps)
    for start in range(0, size, BLOCK):
        at = start + tl.arange(0, BLOCK)
        channel = group * GROUP + at // HW
        w = tl.load(w_ptr + channel, mask=at < size)
        b = tl.load(b_ptr + channel, mask=at < size)
        x = tl.load(x_ptr + base + at, mask=at < size)
        tl.store(y_ptr + base + at, (x - mean) * rstd * w + b, mask=at < size)


@case
def normalisation_of_groups_of_channels(seed):
    n, c, hw, group = 2, 6, 10, 3
    x, w, b = normal((n, c, hw), seed), normal((c,), seed + 1), normal((c,), seed + 2)
    args = {
        "x_ptr": x, "w_ptr": w, "b_ptr": b, "y_ptr": unset((n, c, hw)), "C": c, "HW": hw, "eps": 1e-5, "GROUP": group,
        "BLOCK": 8,
    }  # fmt: skip
    return Case(
        group_norm, (n, c // group), args, {"y_ptr": torch.nn.functional.group_norm(x, c // group, w, b)},
        tolerance=1e-5, axes=(2, 2), gather={"x_ptr": 1}, scatter={"y_ptr": 1}, compile={},
    )  # fmt: skip


@triton.jit
def channels_last(
    x_ptr, y_ptr, C, H, W, BC: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """[N, C, H, W] to [N, H, W, C] by blocks of three axes that tl.permute turns."""
    image = tl.program_id(2)
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    w = tl.arange(0, BW)
    place = (c[:, None, None] * H + h[None, :, None]) * W + w[None, None, :]
    inside = (c < C)[:, None, None] & (h < H)[None, :, None] & (w < W)[None, None, :]
    x = tl.load(x_ptr + image * C * H * W + place, mask=inside)
    there = (h[:, None, None] * W + w[None, :, None]) * C + c[None, None, :]
    tl.store(y_ptr + image * C * H * W + there, tl.permute(x, (1, 2, 0)), mask=tl.permute(inside, (1, 2, 0)))


@case
def channels_moved_last(seed):
    n, c, h, w = 2, 6, 5, 7
    x = numbers((n, c, h, w), seed)
    args = {"x_ptr": x, "y_ptr": unset((n, h, w, c)), "C": c, "H": h, "W": w, "BC": 4, "BH": 2, "BW": 8}
    return Case(
        channels_last, (2, 3, n), args, {"y_ptr": x.permute(0, 2, 3, 1).contiguous()}, axes=(2, 3, 2),
        gather={"x_ptr": 1}, scatter={"y_ptr": 3}, compile={},
    )  # fmt: skip


@triton.jit
def swiglu_backward(dc_ptr, a_ptr, b_ptr, stride, n_cols: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """In place: the gradients take the place of the inputs. The pointers are moved to the row first."""
    program_id = tl.program_id(0).to(tl.int64)
    dc_ptr += program_id * stride
    a_ptr += program_id * stride
    b_ptr += program_id * stride
    col_offsets = tl.arange(0, BLOCK_SIZE)
    mask = col_offsets < n_cols
    dc_row = tl.load(dc_ptr + col_offsets, mask=mask, other=0)
    a_row = tl.load(a_ptr + col_offsets, mask=mask, other=0).to(tl.float32)
    b_row = tl.load(b_ptr + col_offsets, mask=mask, other=0)
    sig_a = tl.sigmoid(a_row)
    silu_a = a_row * sig_a
    db_row = dc_row * silu_a
    da_row = dc_row * (silu_a * (1 - sig_a) + sig_a) * b_row
    tl.store(a_ptr + col_offsets, da_row, mask=mask)
    tl.store(b_ptr + col_offsets, db_row, mask=mask)


@case
def gradients_in_place_of_inputs(seed):
    m, n = 7, 20
    dc, a, b = (normal((m, n), seed + s) for s in range(3))
    s = a.sigmoid()
    wanted = {"a_ptr": dc * (a * s * (1 - s) + s) * b, "b_ptr": dc * a * s}
    args = {"dc_ptr": dc, "a_ptr": a.clone(), "b_ptr": b.clone(), "stride": n, "n_cols": n, "BLOCK_SIZE": 32}
    return Case(
        swiglu_backward, (m,), args, wanted, tolerance=1e-5, axes=(7,), gather={"dc_ptr": 0}, compile={}
    )


@triton.jit
def hinted(x_ptr, y_ptr, M, N, stride_m, BM: tl.constexpr, HALF: tl.constexpr, DEBUG: tl.constexpr = False):
    """Hints and checks that change no address; constants made in the kernel; arguments by keyword."""
    BN: tl.constexpr = 2 * HALF
    tl.static_assert(BN % 2 == 0, "an even width")
    tl.assume(stride_m > 0)
    if DEBUG:
        tl.static_print("width", BN)
        tl.device_print("row", tl.program_id(axis=0))
    rows = tl.max_contiguous(tl.multiple_of(tl.program_id(axis=0) * BM + tl.arange(start=0, end=BM), BM), BM)
    tl.device_assert(stride_m >= N, f"rows of {BN} overlap")
    total: tl.tensor = tl.zeros([BM], dtype=tl.float32)
    for n in tl.range(0, N, BN, num_stages=2, loop_unroll_factor=1):
        cols = n + tl.arange(0, BN)
        x = tl.load(
            pointer=x_ptr + rows[:, None] * stride_m + cols[None, :],
            mask=(rows[:, None] < M) & (cols[None, :] < N),
            other=0.0,
            cache_modifier=".cg",
        )
        total += tl.sum(x, axis=1)
    tl.debug_barrier()
    tl.store(pointer=y_ptr + rows, value=total, mask=rows < M)


@case
def hints_and_keywords(seed):
    m, n = 21, 30
    x = numbers((m, n), seed)
    args = {"x_ptr": x, "y_ptr": unset((m,)), "M": m, "N": n, "stride_m": n, "BM": 8, "HALF": 4}
    return Case(
        hinted, (3,), args, {"y_ptr": x.sum(1)}, axes=(3,), reduction="n", gather={"x_ptr": 1}, scatter={"y_ptr": 0},
        compile={},
    )  # fmt: skip


@triton.jit
def greedy(logits_ptr, token_ptr, V, BLOCK: tl.constexpr):
    """The index of a row's largest value, block by block: a scalar is stored."""
    row = tl.program_id(0)
    best = float("-inf")
    token = 0
    for start in range(0, V, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(logits_ptr + row * V + at, mask=at < V, other=float("-inf"))
        top = tl.max(x, axis=0)
        place = start + tl.argmax(x, axis=0)
        token = tl.where(top > best, place, token)
        best = tl.maximum(best, top)
    tl.store(token_ptr + row, token)


@case
def greedy_choice_of_a_token(seed):
    t, v = 7, 45
    x = torch.stack(
        [torch.randperm(v, generator=torch.Generator().manual_seed(seed + i)) for i in range(t)]
    ).float()
    args = {"logits_ptr": x, "token_ptr": unset((t,), torch.int32), "V": v, "BLOCK": 16}
    return Case(
        greedy, (t,), args, {"token_ptr": x.argmax(1).int()}, axes=(7,), reduction="start", gather={"logits_ptr": 1},
        scatter={"token_ptr": 0}, compile={},
    )  # fmt: skip


@triton.jit
def depthwise(
    x_ptr, w_ptr, y_ptr, C, H, W, KERNEL: tl.constexpr, BH: tl.constexpr, BW: tl.constexpr,
):  # fmt: skip
    """Every channel has a filter of its own, padded to the same size; the grid's first axis is image and channel."""
    nc = tl.program_id(0)
    c = nc % C
    h = tl.program_id(1) * BH + tl.arange(0, BH)
    w = tl.program_id(2) * BW + tl.arange(0, BW)
    acc = tl.zeros((BH, BW), tl.float32)
    for i in range(KERNEL * KERNEL):
        dh, dw = i // KERNEL - KERNEL // 2, i % KERNEL - KERNEL // 2
        ih, iw = h + dh, w + dw
        ok = ((ih >= 0) & (ih < H))[:, None] & ((iw >= 0) & (iw < W))[None, :]
        x = tl.load(x_ptr + nc * H * W + ih[:, None] * W + iw[None, :], mask=ok, other=0.0)
        acc += x * tl.load(w_ptr + c * KERNEL * KERNEL + i)
    tl.store(y_ptr + nc * H * W + h[:, None] * W + w[None, :], acc, mask=(h < H)[:, None] & (w < W)[None, :])


@case
def filters_by_channel(seed):
    n, c, h, w = 2, 3, 9, 10
    x, f = numbers((n, c, h, w), seed), numbers((c, 3, 3), seed + 50)
    wanted = torch.nn.functional.conv2d(x, f[:, None], padding=1, groups=c)
    args = {
        "x_ptr": x,
        "w_ptr": f,
        "y_ptr": unset((n, c, h, w)),
        "C": c,
        "H": h,
        "W": w,
        "KERNEL": 3,
        "BH": 4,
        "BW": 8,
    }
    return Case(
        depthwise, (n * c, 3, 2), args, {"y_ptr": wanted}, reduction="i", gather={"x_ptr": 1}, scatter={"y_ptr": 1},
        compile={},
    )  # fmt: skip


@triton.jit
def block_sparse(
    a_ptr, lut_ptr, count_ptr, b_ptr, c_ptr, N, MOST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Blocks of A that are not 0, row by row of blocks, [rows, MOST, BM, BK]; a table says which columns they have."""
    row, pid_n = tl.program_id(0), tl.program_id(1)
    rm, rk = tl.arange(0, BM), tl.arange(0, BK)
    rn = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.load(count_ptr + row)):
        column = tl.load(lut_ptr + row * MOST + i)
        a = tl.load(a_ptr + (row * MOST + i) * BM * BK + rm[:, None] * BK + rk[None, :])
        b = tl.load(b_ptr + (column * BK + rk)[:, None] * N + rn[None, :], mask=(rn < N)[None, :], other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + (row * BM + rm)[:, None] * N + rn[None, :], acc, mask=(rn < N)[None, :])


@triton.jit
def block_sparse_stated(
    a_ptr, lut_ptr, count_ptr, b_ptr, c_ptr, N, MOST: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """As above: a row of blocks may have any columns."""
    row, pid_n = tl.program_id(0), tl.program_id(1)
    # @sy.reads b_ptr[:, pid_n * BN:(pid_n + 1) * BN]
    # @sy.reads a_ptr[row, :, :, :]
    # @sy.reads lut_ptr[row, :]
    rm, rk = tl.arange(0, BM), tl.arange(0, BK)
    rn = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for i in range(tl.load(count_ptr + row)):
        column = tl.load(lut_ptr + row * MOST + i)
        a = tl.load(a_ptr + (row * MOST + i) * BM * BK + rm[:, None] * BK + rk[None, :])
        b = tl.load(b_ptr + (column * BK + rk)[:, None] * N + rn[None, :], mask=(rn < N)[None, :], other=0.0)
        acc += tl.dot(a, b, input_precision="ieee")
    tl.store(c_ptr + (row * BM + rm)[:, None] * N + rn[None, :], acc, mask=(rn < N)[None, :])


def sparse_case(kernel, seed, **more):
    rows, most, n, table = 3, 2, 24, [[1], [0, 3], [2]]
    a, b = numbers((rows, most, 16, 16), seed), numbers((64, n), seed + 50)
    lut = torch.zeros((rows, most), dtype=torch.int32)
    wanted = torch.zeros((rows * 16, n))
    for r, columns in enumerate(table):
        for i, column in enumerate(columns):
            lut[r, i] = column
            wanted[r * 16 : r * 16 + 16] += a[r, i] @ b[column * 16 : column * 16 + 16]
    args = {
        "a_ptr": a, "lut_ptr": lut, "count_ptr": torch.tensor([len(t) for t in table], dtype=torch.int32), "b_ptr": b,
        "c_ptr": unset(wanted.shape), "N": n, "MOST": most, "BM": 16, "BN": 16, "BK": 16,
    }  # fmt: skip
    return Case(kernel, (rows, 2), args, {"c_ptr": wanted}, **more)


@case
def blocks_by_a_table(seed):
    return sparse_case(block_sparse, seed, refused="depends on")


@case
def blocks_by_a_table_with_directives(seed):
    return sparse_case(
        block_sparse_stated, seed, inexact="any columns may be there", axes=(3, 2), gather={"b_ptr": 0},
        scatter={"c_ptr": 0}, compile={"BN": 64},
    )  # fmt: skip
