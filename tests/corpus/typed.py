"""What kernels ask of types: a tensor or its descriptor, the width of an element, element types as arguments, tensors of fp8,
booleans and unsigned numbers that wrap around, tuples of one tensor, block pointers that are made and never used."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from .cases import Case, case, normal, numbers, unset


@triton.jit
def as_descriptor(desc_or_ptr, shape, strides, block_shape):
    if isinstance(desc_or_ptr, tl.tensor_descriptor):
        return desc_or_ptr
    else:
        return tl.make_tensor_descriptor(desc_or_ptr, shape, strides, block_shape)


@triton.jit
def scaled_rows(x, y, M, N: tl.constexpr, B: tl.constexpr):
    """Takes tensors and descriptors alike."""
    x = as_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[B, N])
    y = as_descriptor(y, shape=[M, N], strides=[N, 1], block_shape=[B, N])
    row = tl.program_id(0) * B
    y.store([row, 0], x.load([row, 0]) * 2)


def either_case(seed, wrap):
    x, y = numbers((20, 16), seed), unset((20, 16))
    args = {"x": wrap(x), "y": wrap(y), "M": 20, "N": 16, "B": 8}
    return Case(scaled_rows, (3,), args, {"y": x * 2}, axes=(3,), gather={"x": 0}, scatter={"y": 0})


@case
def descriptors_where_tensors_would_do(seed):
    return either_case(seed, lambda t: TensorDescriptor.from_tensor(t, [8, 16]))


@case
def tensors_where_descriptors_would_do(seed):
    return either_case(seed, lambda t: t)


@triton.jit
def vectors(x_ptr, y_ptr, n):
    """As many elements as 16 bytes hold, four vectors a program."""
    WIDTH: tl.constexpr = 128 // x_ptr.dtype.element_ty.primitive_bitwidth
    at = tl.program_id(0) * 4 * WIDTH + tl.arange(0, 4 * WIDTH)
    tl.store(y_ptr + at, tl.load(x_ptr + at, mask=at < n) + 1, mask=at < n)


@case
def blocks_as_wide_as_sixteen_bytes(seed):
    x = numbers((75,), seed, torch.float16)
    return Case(vectors, (3,), {"x_ptr": x, "y_ptr": unset((75,), torch.float16), "n": 75}, {"y_ptr": x + 1}, gather={"x_ptr": 0})  # fmt: skip


@triton.jit
def optional_bias(x_ptr, bias_ptr, y_ptr, M, N: tl.constexpr, B: tl.constexpr, BIAS: tl.constexpr):
    """A block pointer of a tensor that may be missing."""
    x = tl.make_block_ptr(x_ptr, (M, N), (N, 1), (tl.program_id(0) * B, 0), (B, N), (1, 0))
    y = tl.make_block_ptr(y_ptr, (M, N), (N, 1), (tl.program_id(0) * B, 0), (B, N), (1, 0))
    count = tl.load(bias_ptr).to(tl.int32)
    bias = tl.make_block_ptr(bias_ptr, (count,), (1,), (0,), (N,), (0,))
    value = tl.load(x, boundary_check=(0,))
    if BIAS:
        value += tl.load(bias)[None, :]
    tl.store(y, value, boundary_check=(0,))


@case
def block_pointers_that_are_never_loaded(seed):
    x = numbers((12, 8), seed)
    args = {
        "x_ptr": x,
        "bias_ptr": numbers((8,), seed + 1),
        "y_ptr": unset((12, 8)),
        "M": 12,
        "N": 8,
        "B": 8,
        "BIAS": False,
    }
    return Case(optional_bias, (2,), args, {"y_ptr": x}, gather={"x_ptr": 0}, scatter={"y_ptr": 0})


@triton.jit
def nibbles(packed_ptr, y_ptr, n, B: tl.constexpr):
    """Two numbers of 4 bits in each byte."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    byte = tl.load(packed_ptr + at, mask=at < n, other=0)
    low, high = (byte & 15).to(tl.int32) - 8, (byte >> 4).to(tl.int32) - 8
    tl.store(y_ptr + 2 * at, low, mask=at < n)
    tl.store(y_ptr + 2 * at + 1, high, mask=at < n)


@case
def numbers_of_four_bits(seed):
    packed = torch.randint(0, 256, (36,), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    wide = packed.to(torch.int32)
    wanted = torch.stack([(wide & 15) - 8, (wide >> 4) - 8], 1).flatten()
    args = {"packed_ptr": packed, "y_ptr": unset((72,), torch.int32), "n": 36, "B": 16}
    return Case(nibbles, (3,), args, {"y_ptr": wanted}, gather={"packed_ptr": 0})


@triton.jit
def in_the_type_asked_for(x_ptr, y_ptr, n, OUT: tl.constexpr, B: tl.constexpr):
    """The element type of the result is an argument."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros((B,), dtype=OUT)
    acc += tl.load(x_ptr + at, mask=at < n, other=0.0).to(OUT)
    if OUT == tl.float16:
        acc *= 2
    tl.store(y_ptr + at, acc, mask=at < n)


@case
def element_types_as_arguments(seed):
    x = numbers((30,), seed)
    args = {"x_ptr": x, "y_ptr": unset((30,), torch.float16), "n": 30, "OUT": tl.float16, "B": 8}
    return Case(in_the_type_asked_for, (4,), args, {"y_ptr": (x * 2).half()}, axes=(4,), gather={"x_ptr": 0}, scatter={"y_ptr": 0})  # fmt: skip


@triton.jit
def summed(xs, y_ptr, n, COUNT: tl.constexpr, B: tl.constexpr):
    """As many inputs as the tuple has."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for i in tl.static_range(COUNT):
        acc += tl.load(xs[i] + at, mask=at < n, other=0.0)
    tl.store(y_ptr + at, acc, mask=at < n)


@case
def tuples_of_one_tensor(seed):
    x = numbers((30,), seed)
    args = {"xs": (x,), "y_ptr": unset((30,)), "n": 30, "COUNT": 1, "B": 8}
    return Case(
        summed, (4,), args, {"y_ptr": x}, reduction="i", axes=(4,), gather={"xs[0]": 0}, scatter={"y_ptr": 0}
    )


@triton.jit
def rounded(x_ptr, y_ptr, n, B: tl.constexpr):
    """Different ways for narrow and wide elements, chosen by the tensor's own type."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + at, mask=at < n)
    if x_ptr.dtype.element_ty.primitive_bitwidth < 32:
        x = x.to(tl.float32) + 1
    tl.store(y_ptr + at, x.to(y_ptr.dtype.element_ty), mask=at < n)


@case
def ways_chosen_by_the_width_of_elements(seed):
    x = numbers((30,), seed, torch.bfloat16)
    args = {"x_ptr": x, "y_ptr": unset((30,), torch.bfloat16), "n": 30, "B": 8}
    return Case(rounded, (4,), args, {"y_ptr": (x.float() + 1).bfloat16()}, axes=(4,), gather={"x_ptr": 0})


@triton.jit
def counted(x_ptr, bins_ptr, n, BINS: tl.constexpr, B: tl.constexpr):
    """A histogram: which bin is added to is data."""
    # @sy.reads bins_ptr[:]
    # @sy.writes bins_ptr[:]
    at = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    tl.atomic_add(bins_ptr + x, 1, mask=at < n)


@case
def histogram_with_both_halves_stated(seed):
    x = torch.randint(0, 8, (40,), generator=torch.Generator().manual_seed(seed), dtype=torch.int32)
    args = {"x_ptr": x, "bins_ptr": torch.zeros(8, dtype=torch.int32), "n": 40, "BINS": 8, "B": 16}
    wanted = torch.bincount(x, minlength=8).to(torch.int32)
    return Case(counted, (3,), args, {"bins_ptr": wanted}, inexact="any bin", gather={"x_ptr": 0})


@triton.jit
def chosen_expert(x_ptr, w_ptr, expert_ptr, y_ptr, K: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    """The weights of a row's expert through a block pointer, whose base is loaded, and advanced."""
    # @sy.reads w_ptr[:, :, :]
    row = tl.program_id(0)
    expert = tl.load(expert_ptr + row)
    w = tl.make_block_ptr(w_ptr + expert * K * N, (K, N), (N, 1), (0, 0), (B, N), (1, 0))
    acc = tl.zeros((N,), tl.float32)
    for k in range(0, K, B):
        x = tl.load(x_ptr + row * K + k + tl.arange(0, B))
        acc += tl.sum(x[:, None] * tl.load(w), 0)
        w = tl.advance(w, (B, 0))
    tl.store(y_ptr + row * N + tl.arange(0, N), acc)


@case
def block_pointers_with_a_loaded_base(seed):
    x, w = numbers((5, 16), seed), numbers((3, 16, 8), seed + 50)
    expert = torch.tensor([2, 0, 1, 1, 2], dtype=torch.int32)
    args = {"x_ptr": x, "w_ptr": w, "expert_ptr": expert, "y_ptr": unset((5, 8)), "K": 16, "N": 8, "B": 8}
    wanted = torch.einsum("rk,rkn->rn", x, w[expert.long()])
    return Case(
        chosen_expert,
        (5,),
        args,
        {"y_ptr": wanted},
        inexact="any expert",
        axes=(5,),
        reduction="k",
        gather={"x_ptr": 0},
    )


@case
def block_pointers_with_a_known_base(seed):
    made = block_pointers_with_a_loaded_base(seed)
    made.values = ("expert_ptr",)
    return made


@triton.jit
def softmax_in(x_ptr, y_ptr, N, B: tl.constexpr, dtype: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, B)
    x = tl.load(x_ptr + row * N + c, mask=c < N, other=-float("inf")).to(dtype)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * N + c, (e / tl.sum(e, 0)).to(y_ptr.type.element_ty), mask=c < N)


@case
def softmax_in_a_wider_type(seed):
    x = normal((7, 21), seed, torch.float16)
    args = {"x_ptr": x, "y_ptr": unset((7, 21), torch.float16), "N": 21, "B": 32, "dtype": tl.float32}
    return Case(
        softmax_in, (7,), args, {"y_ptr": x.float().softmax(1).half()}, tolerance=1e-3, axes=(7,), gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )  # fmt: skip


@triton.jit
def dequantised(x_ptr, scale_ptr, y_ptr, N: tl.constexpr, B: tl.constexpr):
    """fp8 rows, each with a scale."""
    row, c = tl.program_id(0), tl.arange(0, N)
    x = tl.load(x_ptr + row * N + c).to(tl.float32)
    tl.store(y_ptr + row * N + c, x * tl.load(scale_ptr + row))


def fp8_case(seed, dtype):
    x, scale = numbers((6, 16), seed).to(dtype), numbers((6,), seed + 50)
    args = {"x_ptr": x, "scale_ptr": scale, "y_ptr": unset((6, 16)), "N": 16, "B": 16}
    return Case(
        dequantised, (6,), args, {"y_ptr": x.float() * scale[:, None]}, axes=(6,), gather={"scale_ptr": 0}
    )


@case
def rows_of_fp8(seed):
    return fp8_case(seed, torch.float8_e5m2)


@triton.jit
def select(keep_ptr, a_ptr, b_ptr, y_ptr, n, B: tl.constexpr):
    """A tensor of booleans decides, element by element."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = tl.load(keep_ptr + at, mask=at < n, other=0).to(tl.int1)
    a, b = tl.load(a_ptr + at, mask=at < n), tl.load(b_ptr + at, mask=at < n)
    tl.store(y_ptr + at, tl.where(keep, a, b), mask=at < n)


@case
def elements_chosen_by_booleans(seed):
    a, b = numbers((40,), seed), numbers((40,), seed + 50)
    keep = numbers((40,), seed + 90) > 0
    args = {"keep_ptr": keep, "a_ptr": a, "b_ptr": b, "y_ptr": unset((40,)), "n": 40, "B": 16}
    return Case(select, (3,), args, {"y_ptr": torch.where(keep, a, b)}, axes=(3,), gather={"a_ptr": 0}, scatter={"y_ptr": 0})  # fmt: skip


@triton.jit
def mixed_bits(x_ptr, y_ptr, n, B: tl.constexpr):
    """A hash of unsigned numbers."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + at, mask=at < n, other=0)
    x = (x ^ (x >> 7)) * 3
    tl.store(y_ptr + at, x & 0xFFFF, mask=at < n)


@case
def hashes_of_unsigned_numbers(seed):
    x = torch.randint(0, 1 << 15, (30,), generator=torch.Generator().manual_seed(seed))
    wanted = ((x ^ (x >> 7)) * 3) & 0xFFFF
    args = {"x_ptr": x.to(torch.uint32), "y_ptr": torch.zeros(30, dtype=torch.uint32), "n": 30, "B": 8}
    return Case(mixed_bits, (4,), args, {"y_ptr": wanted.to(torch.uint32)}, axes=(4,))


@case
def rows_of_fp8_with_a_wide_mantissa(seed):
    return fp8_case(seed, torch.float8_e4m3fn)


@triton.jit
def hashed_rows(x_ptr, y_ptr, N: tl.constexpr, ROWS: tl.constexpr):
    """Rows in the order of a hash, whose product leaves 32 bits."""
    row, c = tl.program_id(0), tl.arange(0, N)
    h = (row + 1).to(tl.uint32) * 2654435769
    h ^= h >> 15
    h *= 2246822519
    tl.store(y_ptr + row * N + c, tl.load(x_ptr + (h >> 7) % ROWS * N + c))


@case
def rows_in_the_order_of_a_hash(seed):
    x = numbers((13, 8), seed)
    rows = [(r + 1) * 2654435769 % 2**32 for r in range(10)]
    rows = [(h ^ h >> 15) * 2246822519 % 2**32 for h in rows]
    args = {"x_ptr": x, "y_ptr": unset((10, 8)), "N": 8, "ROWS": 13}
    wanted = x[[(h >> 7) % 13 for h in rows]]
    return Case(hashed_rows, (10,), args, {"y_ptr": wanted}, axes=(10,), compile={})


@triton.jit
def ring_of_bytes(x_ptr, y_ptr, start, B: tl.constexpr):
    """A ring of 256 elements, whose indices are bytes: they wrap around by themselves, row by row of a block."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    at = row.to(tl.uint8)[:, None] * 37 + (start.to(tl.uint8) + tl.arange(0, 4).to(tl.uint8))[None, :]
    tl.store(y_ptr + row[:, None] * 4 + tl.arange(0, 4)[None, :], tl.load(x_ptr + at))


@case
def indices_of_a_byte(seed):
    x = numbers((256,), seed)
    at = torch.arange(24)[:, None] * 37 + 250 + torch.arange(4)[None, :]
    args = {"x_ptr": x, "y_ptr": unset((24, 4)), "start": 250, "B": 8}
    return Case(ring_of_bytes, (3,), args, {"y_ptr": x[at % 256]}, axes=(3,), compile={})


@triton.jit
def half_rows(x_ptr, y_ptr, B: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, B).to(row.dtype)
    src = tl.where(at >= B // 2, at - B // 2, at).to(at.dtype)
    off = tl.full((B,), row * B, dtype=at.dtype) + tl.zeros((B,), dtype=at.type.scalar)
    tl.store(y_ptr + off + at, tl.load(x_ptr + off + src).to(y_ptr.dtype.element_ty))


@case
def casts_to_the_type_of_a_value(seed):
    x = numbers((3, 8), seed)
    wanted = torch.cat([x[:, :4], x[:, :4]], 1).half()
    args = {"x_ptr": x, "y_ptr": unset((3, 8), torch.float16), "B": 8}
    return Case(half_rows, (3,), args, {"y_ptr": wanted}, axes=(3,))


@triton.jit
def doubled(x, at):
    """As long as what it is given."""
    return tl.arange(0, x.shape[0]) + at * x.numel


@triton.jit
def by_what_is_loaded(x_ptr, y_ptr, B: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * B + tl.arange(0, B))
    y = tl.exp(x - tl.max(x, 0)) / 2
    WHOLE: tl.constexpr = x.dtype == tl.float16 and y.dtype.is_fp32() and y.shape == x.shape
    N: tl.constexpr = B if WHOLE and not y.type.is_ptr() else B // 2
    at = row * B + tl.arange(0, N)
    tl.store(y_ptr + at, tl.load(x_ptr + doubled(y, row)) + 1)


@case
def block_by_the_type_of_data(seed):
    x = numbers((3, 8), seed, torch.float16)
    args = {"x_ptr": x, "y_ptr": unset((3, 8), torch.float16), "B": 8}
    return Case(by_what_is_loaded, (3,), args, {"y_ptr": x + 1}, axes=(3,), gather={"x_ptr": 0})


@triton.jit
def sums_by_shape(x_ptr, y_ptr, BM: tl.constexpr, B: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    x = tl.load(x_ptr + rows[:, None] * B + tl.arange(0, B)[None, :])
    s = tl.sum(x, axis=1)[:, None]
    acc = tl.zeros((BM, B), x.dtype)
    for _ in range(2):
        acc += x
    SAME: tl.constexpr = acc.dtype == x_ptr.dtype.element_ty and s.dtype in (tl.float16, tl.float32)
    N: tl.constexpr = tl.trans(x).shape[0] if SAME else 1
    at = (tl.program_id(0) * s.shape[0] + tl.arange(0, s.shape[0]))[:, None] * B + tl.arange(0, N)[None, :]
    tl.store(y_ptr + at, acc + s)


@case
def shapes_of_sums_and_transposes(seed):
    x = numbers((8, 16), seed)
    args = {"x_ptr": x, "y_ptr": unset((8, 16)), "BM": 4, "B": 16}
    return Case(
        sums_by_shape, (2,), args, {"y_ptr": 2 * x + x.sum(1, keepdim=True)}, axes=(2,), gather={"x_ptr": 0},
        scatter={"y_ptr": 0},
    )  # fmt: skip
