"""Kernels in the form that torch.compile (Inductor) writes, its heuristics and hints left out."""

import torch
import triton
import triton.language as tl
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_helpers import math as tl_math

from .cases import Case, case, normal, unset

# fmt: off
# ruff: noqa: E501, F841


@triton.jit
def triton_poi_fused_add_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 64
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)[:]
    x2 = xindex
    x0 = (xindex % 16)
    tmp0 = tl.load(in_ptr0 + (x2), None)
    tmp1 = tl.load(in_ptr1 + (x0), xmask, eviction_policy='evict_last')
    tmp2 = tmp0 + tmp1
    tl.store(out_ptr0 + (x2), tmp2, None)


@case
def pointwise_of_whole_blocks(seed):
    x, bias = normal((4, 16), seed), normal((16,), seed + 1)
    args = {"in_ptr0": x, "in_ptr1": bias, "out_ptr0": unset((4, 16)), "xnumel": 64, "XBLOCK": 32}
    return Case(
        triton_poi_fused_add_0, (2,), args, {"out_ptr0": x + bias}, axes={"M": 2}, gather={"in_ptr0": 0},
        scatter={"out_ptr0": 0},
    )  # fmt: skip


@triton.jit
def triton_per_fused_native_layer_norm_0(in_ptr0, in_ptr1, in_ptr2, out_ptr2, xnumel, r0_numel, XBLOCK : tl.constexpr):
    xnumel = 8
    r0_numel = 48
    R0_BLOCK: tl.constexpr = 64
    rnumel = r0_numel
    RBLOCK: tl.constexpr = R0_BLOCK
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = xindex < xnumel
    r0_index = tl.arange(0, R0_BLOCK)[None, :]
    r0_offset = 0
    r0_mask = r0_index < r0_numel
    roffset = r0_offset
    rindex = r0_index
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 48*x0), r0_mask & xmask, other=0.0)
    tmp24 = tl.load(in_ptr1 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp26 = tl.load(in_ptr2 + (r0_1), r0_mask, eviction_policy='evict_last', other=0.0)
    tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
    tmp4 = tl.broadcast_to(tmp1, [XBLOCK, R0_BLOCK])
    tmp6 = tl.where(r0_mask & xmask, tmp4, 0)
    tmp7 = tl.sum(tmp6, 1)[:, None]
    tmp8 = tl.full([XBLOCK, 1], 48, tl.int32)
    tmp9 = tmp8.to(tl.float32)
    tmp10 = (tmp7 / tmp9)
    tmp11 = tmp1 - tmp10
    tmp12 = tmp11 * tmp11
    tmp13 = tl.broadcast_to(tmp12, [XBLOCK, R0_BLOCK])
    tmp15 = tl.where(r0_mask & xmask, tmp13, 0)
    tmp16 = tl.sum(tmp15, 1)[:, None]
    tmp17 = tmp0 - tmp10
    tmp18 = 48.0
    tmp19 = (tmp16 / tmp18)
    tmp20 = 1e-05
    tmp21 = tmp19 + tmp20
    tmp22 = tl.rsqrt(tmp21)
    tmp23 = tmp17 * tmp22
    tmp25 = tmp23 * tmp24
    tmp27 = tmp25 + tmp26
    tl.store(out_ptr2 + (r0_1 + 48*x0), tmp27, r0_mask & xmask)


@case
def layer_norm_in_one_block(seed):
    x, weight, bias = normal((8, 48), seed), normal((48,), seed + 1), normal((48,), seed + 2)
    args = {
        "in_ptr0": x, "in_ptr1": weight, "in_ptr2": bias, "out_ptr2": unset((8, 48)), "xnumel": 8, "r0_numel": 48,
        "XBLOCK": 2,
    }  # fmt: skip
    wanted = torch.nn.functional.layer_norm(x, (48,), weight, bias)
    return Case(
        triton_per_fused_native_layer_norm_0, (4,), args, {"out_ptr2": wanted}, tolerance=1e-5,
        axes={"M": 4}, gather={"in_ptr0": 0}, scatter={"out_ptr2": 0},
    )  # fmt: skip


@triton.jit
def triton_per_fused__softmax_0(in_ptr0, out_ptr2, xnumel, r0_numel):
    xnumel = 6
    XBLOCK: tl.constexpr = 1
    r0_numel = 64
    R0_BLOCK: tl.constexpr = 64
    xoffset = tl.program_id(0) * XBLOCK
    xindex = tl.full([1], xoffset, tl.int32)
    xmask = tl.full([R0_BLOCK], True, tl.int1)
    r0_index = tl.arange(0, R0_BLOCK)[:]
    r0_mask = tl.full([R0_BLOCK], True, tl.int1)
    r0_1 = r0_index
    x0 = xindex
    tmp0 = tl.load(in_ptr0 + (r0_1 + 64*x0), None)
    tmp1 = tl.broadcast_to(tmp0, [R0_BLOCK])
    tmp3 = tl.max(tmp1, 0)
    tmp4 = tmp0 - tmp3
    tmp5 = tl.exp(tmp4)
    tmp6 = tl.broadcast_to(tmp5, [R0_BLOCK])
    tmp8 = tl.sum(tmp6, 0)
    tmp9 = (tmp5 / tmp8)
    tl.store(out_ptr2 + (r0_1 + 64*x0), tmp9, r0_mask & xmask)


@case
def softmax_of_one_row_a_program(seed):
    x = normal((6, 64), seed)
    args = {"in_ptr0": x, "out_ptr2": unset((6, 64)), "xnumel": 6, "r0_numel": 64}
    return Case(
        triton_per_fused__softmax_0, (6,), args, {"out_ptr2": torch.softmax(x, 1)}, tolerance=1e-6,
        axes={"M": 6}, gather={"in_ptr0": 0}, scatter={"out_ptr2": 0},
    )  # fmt: skip


@triton.jit
def triton_red_fused_sum_0(in_ptr0, out_ptr0, xnumel, r0_numel, XBLOCK : tl.constexpr, R0_BLOCK : tl.constexpr):
    xnumel = 8
    r0_numel = 100
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:, None]
    xmask = tl.full([XBLOCK, 1], True, tl.int1)
    r0_base = tl.arange(0, R0_BLOCK)[None, :]
    x0 = xindex
    _tmp2 = tl.full([XBLOCK, R0_BLOCK], 0, tl.float32)
    for r0_offset in range(0, r0_numel, R0_BLOCK):
        r0_index = r0_offset + r0_base
        r0_mask = r0_index < r0_numel
        r0_1 = r0_index
        tmp0 = tl.load(in_ptr0 + (r0_1 + 100*x0), r0_mask & xmask, eviction_policy='evict_first', other=0.0)
        tmp1 = tl.broadcast_to(tmp0, [XBLOCK, R0_BLOCK])
        tmp3 = _tmp2 + tmp1
        _tmp2 = tl.where(r0_mask & xmask, tmp3, _tmp2)
    tmp2 = tl.sum(_tmp2, 1)[:, None]
    tl.store(out_ptr0 + (x0), tmp2, None)


@case
def sum_in_a_loop(seed):
    x = normal((8, 100), seed)
    args = {"in_ptr0": x, "out_ptr0": unset((8,)), "xnumel": 8, "r0_numel": 100, "XBLOCK": 2, "R0_BLOCK": 32}
    return Case(
        triton_red_fused_sum_0, (4,), args, {"out_ptr0": x.sum(1)}, tolerance=1e-5, axes={"M": 4},
        reduction="r0_offset", gather={"in_ptr0": 0}, scatter={"out_ptr0": 0},
    )  # fmt: skip


@triton.jit
def triton_poi_fused_cat_0(in_ptr0, in_ptr1, in_ptr2, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 128
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x1 = xindex // 32
    x0 = (xindex % 32)
    x2 = xindex
    tmp0 = x1
    tmp1 = tl.full([1], 0, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tl.full([1], 1, tl.int64)
    tmp4 = tmp0 < tmp3
    tmp5 = tl.load(in_ptr0 + (x0), tmp4, eviction_policy='evict_last', other=0.0)
    tmp6 = tmp0 >= tmp3
    tmp7 = tl.full([1], 3, tl.int64)
    tmp8 = tmp0 < tmp7
    tmp9 = tmp6 & tmp8
    tmp10 = tl.load(in_ptr1 + (x0 + 32*((-1) + x1)), tmp9, other=0.0)
    tmp11 = tmp0 >= tmp7
    tmp12 = tl.full([1], 4, tl.int64)
    tmp13 = tmp0 < tmp12
    tmp14 = tl.load(in_ptr2 + (x0), tmp11, eviction_policy='evict_last', other=0.0)
    tmp15 = tl.where(tmp9, tmp10, tmp14)
    tmp16 = tl.where(tmp4, tmp5, tmp15)
    tl.store(out_ptr0 + (x2), tmp16, None)


@case
def concatenation_of_three(seed):
    a, b, c = normal((1, 32), seed), normal((2, 32), seed + 1), normal((1, 32), seed + 2)
    args = {"in_ptr0": a, "in_ptr1": b, "in_ptr2": c, "out_ptr0": unset((4, 32)), "xnumel": 128, "XBLOCK": 64}
    return Case(triton_poi_fused_cat_0, (2,), args, {"out_ptr0": torch.cat([a, b, c])}, axes={"M": 2})


@triton.jit
def triton_poi_fused_triu_0(in_ptr0, out_ptr0, ynumel, xnumel, YBLOCK : tl.constexpr, XBLOCK : tl.constexpr):
    ynumel = 16
    xnumel = 16
    yoffset = tl.program_id(1) * YBLOCK
    yindex = yoffset + tl.arange(0, YBLOCK)[:, None]
    ymask = tl.full([YBLOCK, XBLOCK], True, tl.int1)
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[None, :]
    xmask = xindex < xnumel
    x1 = xindex
    y0 = yindex
    tmp0 = x1 + ((-1)*y0)
    tmp1 = tl.full([1, 1], 0, tl.int64)
    tmp2 = tmp0 >= tmp1
    tmp3 = tl.full([1, 1], True, tl.int1)
    tmp4 = tl.full([1, 1], False, tl.int1)
    tmp5 = tl.where(tmp2, tmp3, tmp4)
    tmp6 = tl.load(in_ptr0 + (x1 + 16*y0), tmp5 & (xmask & ymask), eviction_policy='evict_last', other=0.0)
    tl.store(out_ptr0 + (y0 + 16*x1), tmp6, xmask & ymask)


@case
def upper_triangle_transposed(seed):
    x = normal((16, 16), seed)
    args = {
        "in_ptr0": x, "out_ptr0": unset((16, 16)), "ynumel": 16, "xnumel": 16, "YBLOCK": 4, "XBLOCK": 8,
    }  # fmt: skip
    return Case(triton_poi_fused_triu_0, (2, 4), args, {"out_ptr0": x.triu().T}, axes={"M": 2, "N": 4})


@triton.jit
def triton_poi_fused_embedding_0(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 64
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = tl.full([XBLOCK], True, tl.int1)
    x1 = xindex // 16
    x0 = (xindex % 16)
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (x1), xmask, eviction_policy='evict_last')
    tmp1 = tl.full([XBLOCK], 100, tl.int32)
    tmp2 = tmp0 + tmp1
    tmp3 = tmp0 < 0
    tmp4 = tl.where(tmp3, tmp2, tmp0)
    tl.device_assert(((0 <= tmp4) & (tmp4 < 100)) | ~(xmask), "index out of bounds: 0 <= tmp4 < 100")
    tmp6 = tl.load(in_ptr1 + (x0 + 16*tmp4), xmask)
    tl.store(out_ptr0 + (x2), tmp6, xmask)


def embedding(seed, **more):
    at = torch.randint(-100, 100, (4,), generator=torch.Generator().manual_seed(seed))
    table = normal((100, 16), seed)
    args = {"in_ptr0": at, "in_ptr1": table, "out_ptr0": unset((4, 16)), "xnumel": 64, "XBLOCK": 32}
    return Case(triton_poi_fused_embedding_0, (2,), args, {"out_ptr0": table[at]}, **more)


@case
def embedding_of_rows_that_data_names(seed):
    return embedding(
        seed, refused="the address `in_ptr1 + (x0 + 16*tmp4)` cannot be known before the kernel runs: it depends "
        "on data loaded by `tl.load(in_ptr0 + (x1), xmask, eviction_policy='evict_last')`",
    )


@case
def embedding_of_rows_that_are_given(seed):
    return embedding(seed, values=("in_ptr0",))


@triton.jit
def triton_poi_fused_reflection_pad1d_0(in_ptr0, out_ptr0, ks0, xnumel, XBLOCK : tl.constexpr):
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    xmask = xindex < xnumel
    x0 = (xindex % 12)
    x1 = triton_helpers.div_floor_integer(xindex,  12)
    x2 = xindex
    tmp0 = tl.load(in_ptr0 + (7 + ((-1)*tl_math.abs((-7) + tl_math.abs((-2) + x0))) + ks0*x1), xmask, eviction_policy='evict_last')
    tmp1 = tl.full([1], 0, tl.int32)
    tmp2 = triton_helpers.maximum(tmp1, tmp0)
    tl.store(out_ptr0 + (x2), tmp2, xmask)


@case
def reflection_with_a_size_that_varies(seed):
    x = normal((4, 8), seed)
    padded = torch.nn.functional.pad(x, (2, 2), mode="reflect").relu()
    args = {"in_ptr0": x, "out_ptr0": unset((4, 12)), "ks0": 8, "xnumel": 48, "XBLOCK": 16}
    return Case(
        triton_poi_fused_reflection_pad1d_0, (3,), args, {"out_ptr0": padded}, gather={"in_ptr0": 0},
        scatter={"out_ptr0": 0},
    )  # fmt: skip
