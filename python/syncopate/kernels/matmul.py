"""The GEMM kernels behind ``syncopate.ops``: ordinary Triton kernels that run alone, fused like any user's.

``matmul`` is persistent, with host-made TMA descriptors and one tile shape. ``matmul_mixed`` covers the first
columns with wide tiles (BLOCK_M x BLOCK_N) and the rest with narrow ones (BLOCK_M x BLOCK_N / 2), so that the last
wave of tiles is full. Both take their tile shapes from the descriptors' block shapes through constexprs.
"""

import triton
import triton.language as tl

#: Elements along K, and along N, that share a scale of SCALES "block".
SCALED = tl.constexpr(128)

#: What the kernels can apply to a product, as fp32, before they round and store it; "" is nothing.
ACTIVATIONS = ("", "relu", "gelu", "silu")


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    """gelu: with tanh, x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)) (Hendrycks and Gimpel, 2016)."""
    if ACTIVATION == "relu":
        x = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "gelu":
        x = x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    elif ACTIVATION == "silu":
        x = x * tl.sigmoid(x)
    return x


@triton.jit
def _finish(
    x,
    bias_ptr,
    row,
    column,
    M,
    N,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    WHOLE_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    """act(x + bias) of rows [row, row + HEIGHT) and columns [column, column + WIDTH), as fp32."""
    if bias_ptr is not None:
        columns = column + tl.arange(0, WIDTH)
        if WHOLE_BIAS:
            rows = row + tl.arange(0, HEIGHT)
            places = bias_ptr + rows.to(tl.int64)[:, None] * N + columns[None, :]
            there = (rows < M)[:, None] & (columns < N)[None, :]
            x += tl.load(places, mask=there, other=0.0).to(tl.float32)
        else:
            x += tl.load(bias_ptr + columns, mask=columns < N, other=0.0).to(tl.float32)[None, :]
    return _activate(x, ACTIVATION)


@triton.jit
def _load_scales(scale_a_ptr, scale_b_ptr, row, column, M, N, HEIGHT: tl.constexpr, WIDTH: tl.constexpr):
    """One for each row, and one for each column."""
    rows = row + tl.arange(0, HEIGHT)
    columns = column + tl.arange(0, WIDTH)
    scale_a = tl.load(scale_a_ptr + rows, mask=rows < M, other=0.0)
    scale_b = tl.load(scale_b_ptr + columns, mask=columns < N, other=0.0)
    return scale_a, scale_b


@triton.jit
def _scale_block(
    x, scale_a_ptr, scale_b_ptr, row, column, k, M, N, K, HEIGHT: tl.constexpr, WIDTH: tl.constexpr
):
    """x, a product over elements from k on, by the scales of their block of K."""
    blocks = tl.cdiv(K, SCALED)
    rows = row + tl.arange(0, HEIGHT)
    columns = column + tl.arange(0, WIDTH)
    scale_a = tl.load(scale_a_ptr + rows * blocks + k // SCALED, mask=rows < M, other=0.0)
    scale_b = tl.load(scale_b_ptr + columns // SCALED * blocks + k // SCALED, mask=columns < N, other=0.0)
    return x * (scale_a[:, None] * scale_b[None, :])


@triton.jit
def _tile_coordinates(tile_id, num_pid_m, num_pid_n, GROUP_M: tl.constexpr):
    """Row-grouped order: GROUP_M rows of tiles share the same columns of B while these are in L2."""
    tiles_per_group = GROUP_M * num_pid_n
    first_pid_m = (tile_id // tiles_per_group) * GROUP_M
    group_size = tl.minimum(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + (tile_id % group_size)
    pid_n = (tile_id % tiles_per_group) // group_size
    return pid_m, pid_n


@triton.jit
def matmul(
    a_desc,  # [M, K], block [BLOCK_M, BLOCK_K]
    b_desc,  # [K, N], block [BLOCK_K, BLOCK_N]; with B_TRANSPOSED [N, K], block [BLOCK_N, BLOCK_K]
    c_desc,  # [M, N], block [BLOCK_M, BLOCK_N / SPLIT_STORE]
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_SMS: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    SPLIT_STORE: tl.constexpr,
    PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr = "",
    bias_ptr=None,  # [N], or with WHOLE_BIAS [M, N]
    scale_a_ptr=None,  # SCALES "row": fp32 [M]; "block": fp32 [M, cdiv(K, 128)]
    scale_b_ptr=None,  # SCALES "row": fp32 [N]; "block": fp32 [cdiv(N, 128), cdiv(K, 128)]
    SCALES: tl.constexpr = "",
    WHOLE_BIAS: tl.constexpr = False,
):
    start_pid = tl.program_id(0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_tiles = num_pid_m * num_pid_n
    # The epilogue computes its coordinates anew, so that the flattened loop can fetch the next tile meanwhile.
    tile_id_c = start_pid - NUM_SMS
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS, flatten=True):
        pid_m, pid_n = _tile_coordinates(tile_id, num_pid_m, num_pid_n, GROUP_M)
        row = pid_m * BLOCK_M
        column = pid_n * BLOCK_N
        if SCALES == "row":
            scale_a, scale_b = _load_scales(scale_a_ptr, scale_b_ptr, row, column, M, N, BLOCK_M, BLOCK_N)
        accumulator = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            a = a_desc.load([row, k * BLOCK_K])
            if B_TRANSPOSED:
                b = b_desc.load([column, k * BLOCK_K]).T
            else:
                b = b_desc.load([k * BLOCK_K, column])
            if SCALES == "block":
                part = tl.dot(a, b, input_precision=PRECISION)
                accumulator += _scale_block(
                    part, scale_a_ptr, scale_b_ptr, row, column, k * BLOCK_K, M, N, K, BLOCK_M, BLOCK_N
                )
            else:
                accumulator = tl.dot(a, b, accumulator, input_precision=PRECISION)
        tile_id_c += NUM_SMS
        pid_m, pid_n = _tile_coordinates(tile_id_c, num_pid_m, num_pid_n, GROUP_M)
        row = pid_m * BLOCK_M
        column = pid_n * BLOCK_N
        if SCALES == "row":
            accumulator = accumulator * scale_a[:, None] * scale_b[None, :]
        if SPLIT_STORE == 2:
            # Split first: beside the ring there is no room for a whole tile of a bias.
            HALF: tl.constexpr = BLOCK_N // 2
            left, right = tl.split(tl.permute(tl.reshape(accumulator, (BLOCK_M, 2, HALF)), (0, 2, 1)))
            left = _finish(left, bias_ptr, row, column, M, N, BLOCK_M, HALF, WHOLE_BIAS, ACTIVATION)
            c_desc.store([row, column], left.to(c_desc.dtype))
            right = _finish(right, bias_ptr, row, column + HALF, M, N, BLOCK_M, HALF, WHOLE_BIAS, ACTIVATION)
            c_desc.store([row, column + HALF], right.to(c_desc.dtype))
        else:
            accumulator = _finish(
                accumulator, bias_ptr, row, column, M, N, BLOCK_M, BLOCK_N, WHOLE_BIAS, ACTIVATION
            )
            c_desc.store([row, column], accumulator.to(c_desc.dtype))


@triton.jit
def matmul_mixed(
    a_desc,  # [M, K], block [BLOCK_M, BLOCK_K]
    b_desc,  # [K, N], block [BLOCK_K, BLOCK_N]; with B_TRANSPOSED [N, K], block [BLOCK_N, BLOCK_K]
    b_narrow_desc,  # the same tensor, block [BLOCK_K, BLOCK_N / 2] or [BLOCK_N / 2, BLOCK_K]
    c_desc,  # [M, N], block [BLOCK_M, BLOCK_N / 2]
    M,
    N,
    K,
    num_wide,  # columns of wide tiles: they cover [0, num_wide * BLOCK_N)
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_SMS: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
    PRECISION: tl.constexpr,
    ACTIVATION: tl.constexpr = "",
    bias_ptr=None,  # [N]
):
    NARROW_N: tl.constexpr = BLOCK_N // 2
    start_pid = tl.program_id(0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_narrow = tl.cdiv(N - num_wide * BLOCK_N, NARROW_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_wide_tiles = num_pid_m * num_wide
    num_tiles = num_wide_tiles + num_pid_m * num_narrow
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS):
        if tile_id < num_wide_tiles:
            pid_m, pid_n = _tile_coordinates(tile_id, num_pid_m, num_wide, GROUP_M)
            row = pid_m * BLOCK_M
            column = pid_n * BLOCK_N
            wide = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
            for k in tl.range(0, k_tiles, num_stages=4):
                a = a_desc.load([row, k * BLOCK_K])
                if B_TRANSPOSED:
                    b = b_desc.load([column, k * BLOCK_K]).T
                else:
                    b = b_desc.load([k * BLOCK_K, column])
                wide = tl.dot(a, b, wide, input_precision=PRECISION)
            wide = _finish(wide, bias_ptr, row, column, M, N, BLOCK_M, BLOCK_N, False, ACTIVATION)
            left, right = tl.split(tl.permute(tl.reshape(wide, (BLOCK_M, 2, NARROW_N)), (0, 2, 1)))
            c_desc.store([row, column], left.to(c_desc.dtype))
            c_desc.store([row, column + NARROW_N], right.to(c_desc.dtype))
        else:
            pid_m, pid_n = _tile_coordinates(tile_id - num_wide_tiles, num_pid_m, num_narrow, GROUP_M)
            row = pid_m * BLOCK_M
            column = num_wide * BLOCK_N + pid_n * NARROW_N
            narrow = tl.zeros((BLOCK_M, NARROW_N), dtype=tl.float32)
            # A narrow tile needs the same bytes in flight at half the bytes an iteration: more stages.
            for k in tl.range(0, k_tiles, num_stages=6):
                a = a_desc.load([row, k * BLOCK_K])
                if B_TRANSPOSED:
                    b = b_narrow_desc.load([column, k * BLOCK_K]).T
                else:
                    b = b_narrow_desc.load([k * BLOCK_K, column])
                narrow = tl.dot(a, b, narrow, input_precision=PRECISION)
            narrow = _finish(narrow, bias_ptr, row, column, M, N, BLOCK_M, NARROW_N, False, ACTIVATION)
            c_desc.store([row, column], narrow.to(c_desc.dtype))
