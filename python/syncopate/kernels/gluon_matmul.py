"""The library's GEMM for Hopper, in Gluon: c = act(a @ b + bias), alone or following a schedule (a stated kernel).

One block has up to six partitions, each of which walks the same slots:

    waiter (1 warp)      awaits slots and phases, ahead of the loader; only where the kernel follows a schedule
    loader (1 warp)      fills a ring of STAGES pairs (rows of a, block of b) by TMA, as the waiter tells it
    consumer (4 warps)   64 rows of the tile each: wgmma from the ring, epilogue in registers, rows into shared memory
    storer (1 warp)      stores the tile by TMA (here or at a peer), posts it, and ends the program

Waits stand in the waiter: the loader and the consumers go on with what has come while it polls. Posts stand in the
storer: consumers start the next tile while the stores complete. With SPLIT_K > 1 as many blocks share a tile: each adds
up an even share of K and writes fp32 partial sums; the block that is last adds all of them in the order of K, so that the
bits do not depend on who that is, and finishes the tile. Nobody waits for another block.

Rows of a that a has not are not loaded, but for those of a load's own last ones: asking for many of them is slow. What stands
in their place makes rows that nobody stores.

A wgmma multiplies 64 rows. A tile of 16 or 32 loads, sums and stores only those: its place in the ring is as small, and
the 64 rows that the wgmma reads from there on go over into the places behind it. What these hold makes rows of the
product that nobody stores.

With SUMS the consumers add up what all ranks' tiles have stored here, each program an even share, when they have made
their tiles: the loader waits for that, and the storer ends the program after it.

With a_copy_desc tiles also store the rows of a that they load, from the ring, those of a row each an equal part of K: what
was gathered then lies in a tensor of the caller's when the kernel ends. A place is filled again when the store has read
it.

wgmma takes any number of columns, blocks of Triton only powers of two. A tile of 96 or 192 is 64 and 32 or 128 and 64
columns, each with sums of its own; b and c are moved in slabs of 32 or 64 columns, of which several side by side are a
block. A GATED one of 96 has as first sums 64 columns of each half of b, as second ones 32.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..gluon import sy_prefetch, sy_start_next
from .gluon_launch import slab_columns
from .gluon_matmul_consumer import consumer
from .gluon_matmul_loader import loader
from .gluon_matmul_storer import storer
from .gluon_matmul_tiles import Call
from .gluon_matmul_waiter import AHEAD, waiter
from .gluon_versions import slabs


@gluon.jit(do_not_specialize=["M", "N", "K"])
def gluon_matmul(
    a_desc,  # [M, K], block [64, BLOCK_K], or of 16 or 32 rows (GluonTiling.boxes) [rows, 128 bytes]
    b_desc,  # [K, N], block [K of a_desc, BLOCK_N or slab_columns]; with B_TRANSPOSED [N, K] likewise; GATED: 2 N for N
    c_desc,  # [M, N], block [64 or BLOCK_M, columns of b_desc]
    bias_ptr,  # [N], or with WHOLE_BIAS [M, N]; or None
    scale_a_ptr,  # SCALES "row": fp32 [M]; "block": fp32 [M, cdiv(K, 128)]; else None
    scale_b_ptr,  # SCALES "row": fp32 [N]; "block": fp32 [cdiv(N, 128), cdiv(K, 128)]; else None
    M,
    N,
    K,
    sy_schedule,
    sy_control,
    sy_own,  # OWN: as a_desc, of what this rank was given; else None
    sy_workspace,  # SPLIT_K > 1: fp32, MAX_SPLIT_TILES words of 0, then partial sums (make_workspace); else None
    sy_sums,  # SUMS > 0: where the sums go; else None
    BLOCK_M: gl.constexpr,  # 64 * CONSUMERS; with one of them also 16 or 32
    BLOCK_N: gl.constexpr,  # 96, 192: BLOCK_K 64, GATED only 96; below 64 rows 32 or 64: c's rows of 128 bytes at most
    BLOCK_K: gl.constexpr,
    SPLIT_K: gl.constexpr,
    STAGES: gl.constexpr,
    CONSUMERS: gl.constexpr,  # 1 to 3
    GROUP_M: gl.constexpr,
    B_TRANSPOSED: gl.constexpr,
    GATED: gl.constexpr = False,  # c = act(a @ b[:, :N]) * (a @ b[:, N:])
    ACTIVATION: gl.constexpr = "",
    SCALES: gl.constexpr = "",
    WHOLE_BIAS: gl.constexpr = False,
    FUSED: gl.constexpr = False,  # follows the schedule; else sy_schedule and sy_control are not looked at
    B_EARLY: gl.constexpr = False,  # the first blocks of b leave before the first wait: b is nothing that a plan brings
    AFTER_KERNEL: gl.constexpr = False,  # launched programmatically: it awaits the kernel before it, after B_EARLY's loads
    HEAD_START: gl.constexpr = False,  # this program may run more tiles than others (sy_head_start)
    STARTS_NEXT: gl.constexpr = False,  # the next kernel awaits the tiles that it reads, so it may start beside this one
    FETCHED: gl.constexpr = False,  # tiles of a are loaded where the schedule says, by such a descriptor
    PUSHED: gl.constexpr = False,  # tiles are stored where the schedule says, by a descriptor over the heaps of all ranks
    COPIES: gl.constexpr = 0,  # places where each tile is stored then
    OWN: gl.constexpr = False,  # tiles of this rank's own part are loaded by sy_own
    TELLS: gl.constexpr = False,  # loaders say when all is loaded, unless there are SCALES
    COUNTS_END: gl.constexpr = False,  # the end tells nobody, but in the place of TELLS
    SUMS: gl.constexpr = 0,  # contributions that programs add up when they have made their tiles
    a_copy_desc=None,  # as a_desc, of another [M, K], which takes what tiles load of a; or None
):
    if STARTS_NEXT or AFTER_KERNEL:
        sy_start_next()
    SLAB: gl.constexpr = slab_columns(BLOCK_N)
    gl.static_assert(SLAB == 0 or (BLOCK_K == 64 and SCALES != "block" and (not GATED or BLOCK_N == 96)))
    gl.static_assert(BLOCK_M >= 64 or BLOCK_N * c_desc.dtype.primitive_bitwidth <= 1024)
    COLUMNS: gl.constexpr = BLOCK_N * (2 if GATED else 1)  # of b
    NUM_B: gl.constexpr = COLUMNS // (SLAB if SLAB > 0 else BLOCK_N)
    WIDTH: gl.constexpr = COLUMNS // 3 * 2 if SLAB > 0 else BLOCK_N
    PARTS: gl.constexpr = BLOCK_K // a_desc.block_shape[1]
    ROWS: gl.constexpr = a_desc.block_shape[0]
    BOXES: gl.constexpr = BLOCK_M // ROWS
    BEHIND: gl.constexpr = (64 - BLOCK_M) // ROWS if BLOCK_M < 64 else 0
    gl.static_assert(PARTS == 1 or SCALES != "block")
    C_BLOCK: gl.constexpr = [64, SLAB if SLAB > 0 else BLOCK_N]
    FIRST_B: gl.constexpr = WIDTH // SLAB if SLAB > 0 else 1
    WARPS: gl.constexpr = [4] * (CONSUMERS - 1) + [1] * (3 if FUSED else 2)
    REGISTERS: gl.constexpr = [216 if CONSUMERS == 2 else 152] * (CONSUMERS - 1) + [40] * (3 if FUSED else 2)
    BARRIER: gl.constexpr = mbarrier.MBarrierLayout()
    call = Call(
        a_desc=a_desc,
        b_desc=b_desc,
        c_desc=c_desc,
        a_copy_desc=a_copy_desc,
        bias_ptr=bias_ptr,
        scale_a_ptr=scale_a_ptr,
        scale_b_ptr=scale_b_ptr,
        M=M,
        N=N,
        K=K,
        sy_schedule=sy_schedule,
        sy_control=sy_control,
        sy_own=sy_own,
        sy_workspace=sy_workspace,
        sy_sums=sy_sums,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        SPLIT_K=SPLIT_K,
        STAGES=STAGES,
        CONSUMERS=CONSUMERS,
        GROUP_M=GROUP_M,
        B_TRANSPOSED=B_TRANSPOSED,
        NUM_B=NUM_B,
        PARTS=PARTS,
        BOXES=BOXES,
        SLAB=SLAB,
        WIDTH=WIDTH,
        PAIR=SLAB > 0 or GATED,
        OTHER_WIDTH=COLUMNS - WIDTH if SLAB > 0 else BLOCK_N,
        PARTIAL_SUMS=BLOCK_M * COLUMNS,
        GATED=GATED,
        ACTIVATION=ACTIVATION,
        SCALES=SCALES,
        WHOLE_BIAS=WHOLE_BIAS,
        FUSED=FUSED,
        B_EARLY=B_EARLY,
        AFTER_KERNEL=AFTER_KERNEL,
        HEAD_START=HEAD_START,
        FETCHED=FETCHED,
        PUSHED=PUSHED,
        COPIES=COPIES,
        OWN=OWN,
        # A plan may bring the scales of a, too, and consumers read them behind the loaders: then the end tells.
        TELLS=TELLS and SCALES == "",
        COUNTS_END=COUNTS_END and not (TELLS and SCALES != ""),
        SUMMANDS=SUMS,
        a_ring=gl.allocate_shared_memory(
            a_desc.dtype, [STAGES * PARTS * BOXES + BEHIND] + a_desc.block_shape, a_desc.layout
        ),
        b_ring=slabs(b_desc.dtype, STAGES * PARTS, FIRST_B, NUM_B, b_desc.block_shape, b_desc.layout),
        c_tile=slabs(
            c_desc.dtype, CONSUMERS, 2 if SLAB > 0 else 1, 3 if SLAB > 0 else 1, C_BLOCK, c_desc.layout
        ),
        verdict=gl.allocate_shared_memory(gl.int32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        full=gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        empty=gl.allocate_shared_memory(gl.int64, [STAGES, 1], BARRIER),
        stored=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        ready=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        parts_ready=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        verdict_ready=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        arrived=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        summed=gl.allocate_shared_memory(gl.int64, [1], BARRIER),
        words=gl.allocate_shared_memory(gl.int32, [AHEAD, 128], gl.SwizzledSharedLayout(1, 1, 1, [0])),
        over=gl.allocate_shared_memory(gl.int64, [AHEAD, 1], BARRIER),
        told=gl.allocate_shared_memory(gl.int64, [AHEAD, 1], BARRIER),
    )
    if FUSED:
        sy_prefetch(sy_schedule, sy_control, gl.program_id(0) // SPLIT_K)
    for stage in gl.static_range(STAGES):
        mbarrier.init(call.full.index(stage), count=1)
        mbarrier.init(call.empty.index(stage), count=CONSUMERS)
    mbarrier.init(call.stored, count=1)
    mbarrier.init(call.ready, count=CONSUMERS)
    if SPLIT_K > 1:
        mbarrier.init(call.parts_ready, count=CONSUMERS)
        mbarrier.init(call.verdict_ready, count=1)
    if call.SUMMANDS > 0 or call.TELLS:
        mbarrier.init(call.arrived, count=1)
        mbarrier.init(call.summed, count=CONSUMERS)
    if FUSED:
        for place in gl.static_range(AHEAD):
            mbarrier.init(call.over.index(place), count=1)
            mbarrier.init(call.told.index(place), count=1)
    if FUSED:
        # The waiter in front of the loader: behind the storer the assembler puts loops around the loads' addresses
        # (tests/python/gluon_resources.py, address_loops).
        gl.warp_specialize(
            [
                (consumer, (2, call)),
                (consumer, (1, call)),
                (consumer, (0, call)),
                (waiter, (call,)),
                (loader, (call,)),
                (storer, (call,)),
            ][3 - CONSUMERS :],
            WARPS,
            REGISTERS,
        )
    else:
        gl.warp_specialize(
            [
                (consumer, (2, call)),
                (consumer, (1, call)),
                (consumer, (0, call)),
                (loader, (call,)),
                (storer, (call,)),
            ][3 - CONSUMERS :],
            WARPS,
            REGISTERS,
        )
