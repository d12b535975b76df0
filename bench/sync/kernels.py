"""The plain Triton kernels that bench/sync/work.py chains. None knows of a chain; `PDL`: 1 makes a rival of it, which waits for
the whole kernel before it (griddepcontrol.wait)."""

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def product(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr = "",
    PDL: tl.constexpr = 0,
):
    """C = act(A @ Bᵀ): rows of tiles one after another, by any number of programs."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * tiles_n
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile // tiles_n * BLOCK_M
        column = tile % tiles_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(tl.cdiv(K, BLOCK_K)):
            a = a_desc.load([row, k * BLOCK_K])
            b = b_desc.load([column, k * BLOCK_K])
            acc = tl.dot(a, b.T, acc)
        if ACTIVATION == "relu":
            acc = tl.maximum(acc, 0.0)
        c_desc.store([row, column], acc.to(c_desc.dtype))


@triton.jit
def gated(g_ptr, h_ptr, M, F, ROWS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr = 0):
    """H = silu(gate) * up, the two halves of G [M, 2 F]: a tile reads two that lie F columns apart (the policy `strided`)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] & (columns < F)[None, :]
    at = rows[:, None] * (2 * F) + columns[None, :]
    gate = tl.load(g_ptr + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(g_ptr + F + at, mask=inside, other=0.0).to(tl.float32)
    h = gate * tl.sigmoid(gate) * up
    tl.store(h_ptr + rows[:, None] * F + columns[None, :], h.to(h_ptr.dtype.element_ty), mask=inside)


@triton.jit
def rms_norm(x_ptr, w_ptr, y_ptr, K, EPS, BLOCK: tl.constexpr, PDL: tl.constexpr = 0):
    """Y = X / rms(X) * w, a row a program."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0)
    columns = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * K + columns, mask=columns < K, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x) / K + EPS)
    w = tl.load(w_ptr + columns, mask=columns < K, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * K + columns, (x * scale * w).to(y_ptr.dtype.element_ty), mask=columns < K)


@triton.jit
def attention(qkv_desc, o_desc, M, HEADS, SCALE, BLOCK: tl.constexpr, D: tl.constexpr, PDL: tl.constexpr = 0):
    """Causal attention over QKV [M, 3 HEADS D], a block of rows of a head a program: it reads the head's Q, K and V, which lie
    HEADS D columns apart (the policy `consecutive`)."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)
    row = tl.program_id(1) * BLOCK
    rows = row + tl.arange(0, BLOCK)
    q = qkv_desc.load([row, head * D])
    most = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    acc = tl.zeros((BLOCK, D), dtype=tl.float32)
    for j in range(0, row + BLOCK, BLOCK):
        k = qkv_desc.load([j, (HEADS + head) * D])
        s = tl.dot(q, k.T) * SCALE
        s = tl.where(rows[:, None] >= (j + tl.arange(0, BLOCK))[None, :], s, float("-inf"))
        now = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        old = tl.exp2(most - now)
        total = total * old + tl.sum(p, 1)
        v = qkv_desc.load([j, (2 * HEADS + head) * D])
        acc = tl.dot(p.to(v.dtype), v, acc * old[:, None])
        most = now
    o_desc.store([row, head * D], (acc / total[:, None]).to(o_desc.dtype))


@triton.jit
def convolution(
    x_desc,
    w_desc,
    y_desc,
    P,
    K,
    C,
    HEIGHT,
    WIDTH,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PDL: tl.constexpr = 0,
):
    """Y = relu(3×3 convolution of X), stride 1, as an implicit GEMM. X [P, C] and Y [P, K] hold images row by row, each row of
    pixels followed by a zero one and each image by a row of zeros, so that each of the nine taps is a box of X, a few rows
    on or back; what lies outside of X reads as zero. W is [K, 9 C]. A tile reads a halo of WIDTH + 2 pixels."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    pitch = WIDTH + 1
    tiles_n = tl.cdiv(K, BLOCK_N)
    tiles = tl.cdiv(P, BLOCK_M) * tiles_n
    steps = tl.cdiv(C, BLOCK_K)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile // tiles_n * BLOCK_M
        column = tile % tiles_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(9 * steps):
            tap = step // steps
            c = step % steps * BLOCK_K
            x = x_desc.load([row + (tap // 3 - 1) * pitch + tap % 3 - 1, c])
            w = w_desc.load([column, tap * C + c])
            acc = tl.dot(x, w.T, acc)
        pixel = row + tl.arange(0, BLOCK_M)
        inside = (pixel % pitch < WIDTH) & (pixel // pitch % (HEIGHT + 1) < HEIGHT)
        acc = tl.where(inside[:, None], tl.maximum(acc, 0.0), 0.0)
        y_desc.store([row, column], acc.to(y_desc.dtype))


@triton.jit
def stream_k(
    a_desc,
    b_desc,
    c_desc,
    partial_ptr,
    flag_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ACTIVATION: tl.constexpr = "",
):
    """C = act(A @ Bᵀ) by Stream-K (Osama et al., PPoPP 2023): each program takes an equal share of all iterations of all tiles.
    Who begins a tile adds up what the others have made of it, in fp32, and stores it. All programs must be resident.
    PARTIAL is [programs, BLOCK_M, BLOCK_N], FLAG [programs], zero."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    tiles_n = tl.cdiv(N, BLOCK_N)
    steps = tl.cdiv(K, BLOCK_K)
    work = tl.cdiv(M, BLOCK_M) * tiles_n * steps
    at = (work * program // programs).to(tl.int32)
    end = (work * (program + 1) // programs).to(tl.int32)
    places = tl.arange(0, BLOCK_M)[:, None] * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    while at < end:
        tile = at // steps
        row = tile // tiles_n * BLOCK_M
        column = tile % tiles_n * BLOCK_N
        first = at - tile * steps
        last = tl.minimum(steps, end - tile * steps)
        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(first, last):
            a = a_desc.load([row, k * BLOCK_K])
            b = b_desc.load([column, k * BLOCK_K])
            acc = tl.dot(a, b.T, acc)
        if first > 0:  # the rest of a tile that an earlier program begins
            tl.store(partial_ptr + program.to(tl.int64) * BLOCK_M * BLOCK_N + places, acc)
            tl.debug_barrier()
            tl.atomic_xchg(flag_ptr + program, 1, sem="release")
        else:
            reached = last
            other = program
            while reached < steps:
                other += 1
                while tl.atomic_cas(flag_ptr + other, 1, 0, sem="acquire") != 1:
                    pass
                tl.debug_barrier()
                acc += tl.load(partial_ptr + other.to(tl.int64) * BLOCK_M * BLOCK_N + places, volatile=True)
                reached = tl.minimum(steps, (work * (other + 1) // programs).to(tl.int32) - tile * steps)
            if ACTIVATION == "relu":
                acc = tl.maximum(acc, 0.0)
            c_desc.store([row, column], acc.to(c_desc.dtype))
        at = tile * steps + last
