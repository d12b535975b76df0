"""Persistent matrix products: pointers, descriptors made in the kernel and on the host, subtiled epilogues, batches."""

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .cases import Case, case, cdiv, numbers, unset


@triton.jit
def tile_of(tile_id, num_in_group, num_pid_m, GROUP_M: tl.constexpr):
    group = tile_id // num_in_group
    first = group * GROUP_M
    size = min(num_pid_m - first, GROUP_M)
    return first + (tile_id % size), (tile_id % num_in_group) // size


@triton.jit
def with_pointers(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    """Masks by tl.where and % on the offsets; the mask of c is recomputed."""
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BM)
    num_pid_n = tl.cdiv(N, BN)
    k_tiles = tl.cdiv(K, BK)
    num_tiles = num_pid_m * num_pid_n
    offs_k = tl.arange(0, BK)
    num_in_group = GROUP_M * num_pid_n
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS):
        pid_m, pid_n = tile_of(tile_id, num_in_group, num_pid_m, GROUP_M)
        start_m = pid_m * BM
        start_n = pid_n * BN
        offs_am = start_m + tl.arange(0, BM)
        offs_bn = start_n + tl.arange(0, BN)
        offs_am = tl.where(offs_am < M, offs_am, 0)
        offs_bn = tl.where(offs_bn < N, offs_bn, 0)
        offs_am = tl.max_contiguous(tl.multiple_of(offs_am, BM), BM)
        offs_bn = tl.max_contiguous(tl.multiple_of(offs_bn, BN), BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for ki in range(k_tiles):
            at_k = ki * BK + tl.arange(0, BK)
            a = tl.load(
                a_ptr + (offs_am[:, None] * K + at_k[None, :]), mask=offs_k[None, :] < K - ki * BK, other=0.0
            )
            b = tl.load(
                b_ptr + (at_k[:, None] * N + offs_bn[None, :]), mask=offs_k[:, None] < K - ki * BK, other=0.0
            )
            acc = tl.dot(a, b, acc, input_precision="ieee")
        offs_cm = start_m + tl.arange(0, BM)
        offs_cn = start_n + tl.arange(0, BN)
        c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
        if c_ptr.dtype.element_ty == tl.float16:
            c = acc.to(tl.float16)
        else:
            c = acc
        tl.store(c_ptr + N * offs_cm[:, None] + offs_cn[None, :], c, mask=c_mask)


def sizes(m, n, k, **more):
    return {"M": m, "N": n, "K": k, "BM": 16, "BN": 16, "BK": 16, **more}


GEMM = {"axes": {"M": 4, "N": 3}, "compile": {"BM": 64, "BN": 64, "BK": 32, "NUM_SMS": 132, "PROGRAMS": 132}}


@case
def pointers_in_grouped_order(seed):
    m, n, k = 50, 44, 40
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), **sizes(m, n, k, GROUP_M=2, NUM_SMS=5)}
    return Case(
        with_pointers, (5,), args, {"c_ptr": a @ b}, reduction="ki", gather={"a_ptr": 0}, scatter={"c_ptr": 0}, **GEMM,
    )  # fmt: skip


@triton.jit
def device_descriptors(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    """Descriptors made in the kernel; the accumulator is stored in two halves."""
    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BM, BK])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BM, BN // 2])
    columns = tl.cdiv(N, BN)
    for tile_id in tl.range(tl.program_id(0), tl.cdiv(M, BM) * columns, NUM_SMS, flatten=True):
        offs_m = (tile_id // columns) * BM
        offs_n = (tile_id % columns) * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for ki in range(tl.cdiv(K, BK)):
            a = a_desc.load([offs_m, ki * BK])
            b = b_desc.load([offs_n, ki * BK])
            acc = tl.dot(a, b.T, acc, input_precision="ieee")
        halves = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))
        left, right = tl.split(halves)
        c_desc.store([offs_m, offs_n], left)
        c_desc.store([offs_m, offs_n + BN // 2], right)


@case
def subtiled_by_device_descriptors(seed):
    m, n, k = 50, 44, 40
    a, b = numbers((m, k), seed), numbers((n, k), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), **sizes(m, n, k, NUM_SMS=3)}
    return Case(
        device_descriptors, (3,), args, {"c_ptr": a @ b.t()}, reduction="ki", gather={"a_ptr": 0},
        scatter={"c_ptr": 0}, **GEMM,
    )  # fmt: skip


@triton.jit
def host_descriptors(
    a_desc, b_desc, c_desc, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP_M: tl.constexpr, NUM_SMS: tl.constexpr,
):  # fmt: skip
    """Descriptors made on the host; the epilogue counts its tiles apart, as flattened loops do."""
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BM)
    num_pid_n = tl.cdiv(N, BN)
    num_tiles = num_pid_m * num_pid_n
    tile_id_c = start_pid - NUM_SMS
    num_in_group = GROUP_M * num_pid_n
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS, flatten=True):
        pid_m, pid_n = tile_of(tile_id, num_in_group, num_pid_m, GROUP_M)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for ki in range(tl.cdiv(K, BK)):
            a = a_desc.load([pid_m * BM, ki * BK])
            b = b_desc.load([pid_n * BN, ki * BK])
            acc = tl.dot(a, b.T, acc, input_precision="ieee")
        tile_id_c += NUM_SMS
        pid_m, pid_n = tile_of(tile_id_c, num_in_group, num_pid_m, GROUP_M)
        c_desc.store([pid_m * BM, pid_n * BN], acc.to(c_desc.dtype))


@case
def host_descriptors_and_an_epilogue_apart(seed):
    m, n, k = 50, 44, 40
    a, b, c = numbers((m, k), seed), numbers((n, k), seed + 50), unset((m, n))
    args = {
        "a_desc": TensorDescriptor.from_tensor(a, [16, 16]), "b_desc": TensorDescriptor.from_tensor(b, [16, 16]),
        "c_desc": TensorDescriptor.from_tensor(c, [16, 16]), **sizes(m, n, k, GROUP_M=2, NUM_SMS=5),
    }  # fmt: skip
    return Case(
        host_descriptors, (5,), args, {"c_desc": a @ b.t()}, reduction="ki", gather={"a_desc": 0},
        scatter={"c_desc": 0}, axes={"M": 4, "N": 3}, compile={"NUM_SMS": 132},
    )  # fmt: skip


@triton.jit
def batched(
    a_ptr, b_ptr, c_ptr, Z, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """The batch is a third coordinate of the tile's id; a while loop runs over the tiles."""
    rows = tl.cdiv(M, BM)
    columns = tl.cdiv(N, BN)
    tile = tl.program_id(0)
    total = Z * rows * columns
    while tile < total:
        z = tile // (rows * columns)
        rest = tile % (rows * columns)
        rm = (rest // columns) * BM + tl.arange(0, BM)
        rn = (rest % columns) * BN + tl.arange(0, BN)
        a_base = a_ptr + z * M * K
        b_base = b_ptr + z * K * N
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            rk = k + tl.arange(0, BK)
            a = tl.load(
                a_base + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0
            )
            b = tl.load(
                b_base + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0
            )
            acc += tl.dot(a, b, input_precision="ieee")
        at = c_ptr + z * M * N + rm[:, None] * N + rn[None, :]
        tl.store(at, acc, mask=(rm[:, None] < M) & (rn[None, :] < N))
        tile += PROGRAMS


@case
def batched_by_a_while_loop(seed):
    z, m, n, k = 3, 20, 24, 20
    a, b = numbers((z, m, k), seed), numbers((z, k, n), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": unset((z, m, n)), "Z": z, **sizes(m, n, k, PROGRAMS=5)}
    return Case(
        batched, (5,), args, {"c_ptr": a @ b}, axes={"B": 3, "M": 2, "N": 2}, reduction="k", gather={"a_ptr": 0},
        scatter={"c_ptr": 0}, compile=GEMM["compile"],
    )  # fmt: skip


@triton.jit
def in_bands(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PER_PROGRAM: tl.constexpr,
):  # fmt: skip
    """Each program has a contiguous band of tiles, not every n-th one; a tuple carries the coordinates."""
    columns = tl.cdiv(N, BN)
    total = tl.cdiv(M, BM) * columns
    first = tl.program_id(0) * PER_PROGRAM
    for tile in range(first, min(first + PER_PROGRAM, total)):
        place = (tile // columns, tile % columns)
        rm = place[0] * BM + tl.arange(0, BM)
        rn = place[1] * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(tl.cdiv(K, BK)):
            rk = k * BK + tl.arange(0, BK)
            a = tl.load(
                a_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0
            )
            b = tl.load(
                b_ptr + rk[:, None] * N + rn[None, :], mask=(rk[:, None] < K) & (rn[None, :] < N), other=0.0
            )
            acc += tl.dot(a, b, input_precision="ieee")
        tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm[:, None] < M) & (rn[None, :] < N))


@case
def bands_of_tiles(seed):
    m, n, k = 50, 44, 24
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), **sizes(m, n, k, PER_PROGRAM=5)}
    return Case(
        in_bands, (cdiv(12, 5),), args, {"c_ptr": a @ b}, reduction="k", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        axes={"M": 4, "N": 3}, compile={"BM": 64, "BN": 64, "BK": 32},
    )  # fmt: skip


@triton.jit
def on_two_axes(
    a_ptr, b_ptr, c_ptr, M, N, K,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PROGRAMS: tl.constexpr,
):  # fmt: skip
    """Persistent over rows; the batch is the grid's second axis."""
    z = tl.program_id(1)
    columns = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * columns, PROGRAMS):
        rm = (tile // columns) * BM + tl.arange(0, BM)
        rn = (tile % columns) * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            rk = k + tl.arange(0, BK)
            a = tl.load(a_ptr + z * M * K + rm[:, None] * K + rk[None, :], mask=(rm < M)[:, None] & (rk < K)[None, :],
                        other=0.0)  # fmt: skip
            b = tl.load(b_ptr + z * K * N + rk[:, None] * N + rn[None, :], mask=(rk < K)[:, None] & (rn < N)[None, :],
                        other=0.0)  # fmt: skip
            acc += tl.dot(a, b, input_precision="ieee")
        at = c_ptr + z * M * N + rm[:, None] * N + rn[None, :]
        tl.store(at, acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


@case
def persistent_on_a_grid_of_two_axes(seed):
    z, m, n, k = 2, 36, 24, 20
    a, b = numbers((z, m, k), seed), numbers((z, k, n), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": unset((z, m, n)), **sizes(m, n, k, PROGRAMS=2)}
    return Case(
        on_two_axes, (2, 2), args, {"c_ptr": a @ b}, axes=(2, 2), reduction="k",
        gather={"a_ptr": 1}, scatter={"c_ptr": 1}, compile=GEMM["compile"],
    )  # fmt: skip


@triton.jit
def nested(
    a_ptr, b_ptr, c_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GRID_N: tl.constexpr
):
    """Persistent along both axes: a loop over rows of tiles, in it one over columns, each with its own stride."""
    for m in range(tl.program_id(0), tl.cdiv(M, BM), tl.num_programs(0)):
        rm = m * BM + tl.arange(0, BM)
        for n in range(tl.program_id(1), tl.cdiv(N, BN), GRID_N):
            rn = n * BN + tl.arange(0, BN)
            acc = tl.zeros((BM, BN), dtype=tl.float32)
            for k in range(0, K, BK):
                rk = k + tl.arange(0, BK)
                a = tl.load(
                    a_ptr + rm[:, None] * K + rk[None, :],
                    mask=(rm < M)[:, None] & (rk < K)[None, :],
                    other=0.0,
                )
                b = tl.load(
                    b_ptr + rk[:, None] * N + rn[None, :],
                    mask=(rk < K)[:, None] & (rn < N)[None, :],
                    other=0.0,
                )
                acc += tl.dot(a, b, input_precision="ieee")
            tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc, mask=(rm < M)[:, None] & (rn < N)[None, :])


@case
def persistent_along_rows_and_columns(seed):
    m, n, k = 52, 44, 20
    a, b = numbers((m, k), seed), numbers((k, n), seed + 50)
    args = {"a_ptr": a, "b_ptr": b, "c_ptr": unset((m, n)), **sizes(m, n, k, GRID_N=2)}
    return Case(
        nested, (2, 2), args, {"c_ptr": a @ b}, axes=(2, 2), reduction="n", gather={"a_ptr": 0}, scatter={"c_ptr": 0},
        compile=GEMM["compile"],
    )  # fmt: skip
