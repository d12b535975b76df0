"""What Gluon of Triton 3.6 to 3.9 does differently, under one name each: kernels are written once, and import from here what has
another name, or other rules, from one version to the next (`make versions` tries them)."""

import math
from typing import Any

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import tma
from triton.language.core import PropagateNan
from triton.language.core import _aggregate as aggregate

from ..device.versions import triton_before

__all__ = [
    "VIEWS_HAVE_ANY_SIZE",
    "PropagateNan",
    "Slabs",
    "aggregate",
    "block_at",
    "few_rows",
    "load_block",
    "slabs",
    "store_block",
    "threads_meet",
]

# Until 3.7 async_copy_…, in 3.8 both, from 3.9 on these.
load_block = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
store_block = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global

#: All threads of the partition; each then sees what the others wrote. `barrier` in later versions.
threads_meet = getattr(gl, "barrier", None) or gl.thread_barrier

# Until 3.7 a view of shared memory may have any size. 3.8 wants it as large as what it is of, 3.9 no larger.
VIEWS_HAVE_ANY_SIZE = triton_before(3, 8)
_VIEWS_HAVE_ANY_SIZE = gl.constexpr(VIEWS_HAVE_ANY_SIZE)
_WGMMA_ROWS = gl.constexpr(64)


@builtin
def _view(memory: Any, shape: Any, _semantic: Any = None) -> Any:
    shape = [gl.constexpr(extent).value for extent in shape]
    view = getattr(memory, "reinterpret", None) or memory._reinterpret  # public from 3.9 on
    return view(memory.dtype, shape, memory.layout, _semantic=_semantic)


@builtin
def block_at(ring: Any, place: Any, shape: Any, _semantic: Any = None) -> Any:
    """The block of `shape` that begins at place `place` of `ring` [places, …]. Blocks stand side by side: it begins at a multiple of
    its own size."""
    if VIEWS_HAVE_ANY_SIZE:
        return _view(ring.index(place, _semantic=_semantic), shape, _semantic=_semantic)
    shape = [gl.constexpr(extent).value for extent in shape]
    whole, block = math.prod(ring.shape[1:]), math.prod(shape)
    place = _semantic.to_tensor(place)
    if block > whole:
        place = place.__floordiv__(block // whole, _semantic=_semantic)
    elif block < whole:
        place = place.__mul__(whole // block, _semantic=_semantic)
    blocks = _view(ring, [ring.shape[0] * whole // block, *shape], _semantic=_semantic)
    return blocks.index(place, _semantic=_semantic)


@aggregate
class Slabs:
    """Places of ALL slabs each, of which the first FIRST are one block and the others another one."""

    ring: (
        gl.shared_memory_descriptor
    )  # where views have any size all slabs, place by place; else the first FIRST of each place
    others: gl.shared_memory_descriptor | gl.constexpr
    FIRST: gl.constexpr
    ALL: gl.constexpr

    @gluon.constexpr_function
    def __init__(self, ring, others, FIRST, ALL):
        self.ring = ring
        self.others = gl.constexpr(None) if others is None else others
        self.FIRST = gl.constexpr(FIRST)
        self.ALL = gl.constexpr(ALL)

    @gluon.jit
    def slab(self, place, number: gl.constexpr):
        """Slab `number` of `place`."""
        if _VIEWS_HAVE_ANY_SIZE or self.others is None:
            return self.ring.index(place * self.ALL + number)
        elif number < self.FIRST:
            return self.ring.index(place * self.FIRST + number)
        else:
            return self.others.index(place * (self.ALL - self.FIRST) + (number - self.FIRST))

    @gluon.jit
    def block(self, place, SECOND: gl.constexpr, ROWS: gl.constexpr, COLUMNS: gl.constexpr):
        """The first or the second block of `place`, [ROWS, COLUMNS]."""
        if _VIEWS_HAVE_ANY_SIZE:
            index = place * self.ALL
            if SECOND:
                return block_at(self.ring, index + self.FIRST, [ROWS, COLUMNS])
            else:
                return block_at(self.ring, index, [ROWS, COLUMNS])
        elif SECOND:
            return block_at(self.others, place * (self.ALL - self.FIRST), [ROWS, COLUMNS])
        else:
            return block_at(self.ring, place * self.FIRST, [ROWS, COLUMNS])


@builtin
def slabs(
    dtype: Any, places: Any, first: Any, all: Any, shape: Any, layout: Any, _semantic: Any = None
) -> Any:
    """Shared memory for Slabs of `shape`."""
    places, first, all = (gl.constexpr(number).value for number in (places, first, all))

    def allocate(each: int) -> Any:
        return gl.allocate_shared_memory(dtype, [places * each, *shape], layout, _semantic=_semantic)

    if VIEWS_HAVE_ANY_SIZE or first == all:
        return Slabs(allocate(all), None, first, all)
    return Slabs(allocate(first), allocate(all - first), first, all)


@gluon.jit
def few_rows(ring, place, SUMS: gl.constexpr):
    """What a wgmma with sums in layout SUMS takes as its 64 rows where place `place` of `ring` has the first 16 or 32 and nobody
    uses what comes of the others. Until 3.7 these are what stands behind the place, so that nothing is moved. Later versions refuse
    that view: there each warp loads rows of the place into its registers, so a place has all rows of a tile (GluonTiling.boxes)."""
    ROWS: gl.constexpr = ring.shape[1]
    DEPTH: gl.constexpr = ring.shape[2]
    if _VIEWS_HAVE_ANY_SIZE:
        return _view(ring.index(place), [_WGMMA_ROWS, DEPTH])
    else:
        WIDTH: gl.constexpr = 32 // ring.dtype.primitive_bitwidth
        REPEATED: gl.constexpr = _repeated_rows(ROWS, DEPTH, WIDTH)
        rows = gl.expand_dims(ring.index(place).load(gl.SliceLayout(0, REPEATED)), 0)
        rows = rows.broadcast_to((_WGMMA_ROWS // ROWS, ROWS, DEPTH)).reshape((_WGMMA_ROWS, DEPTH))
        return gl.convert_layout(rows, gl.DotOperandLayout(0, SUMS, WIDTH), assert_trivial=True)


@gluon.constexpr_function
def _repeated_rows(rows: int, depth: int, width: int) -> Any:
    """[64 / rows, rows, depth] as a wgmma's first operand in registers: in the first dimension, each warp has rows of its own."""
    registers = [[0, 0, 1 << bit] for bit in range(width.bit_length() - 1)] + [[0, 8, 0]]
    registers += [[0, 0, at] for at in _powers(4 * width, depth)]
    lanes = [[0, 0, width], [0, 0, 2 * width], [0, 1, 0], [0, 2, 0], [0, 4, 0]]
    warps = [[0, at, 0] if at < rows else [at // rows, 0, 0] for at in (16, 32)]
    return gl.DistributedLinearLayout(registers, lanes, warps, [], [64 // rows, rows, depth])


@gluon.constexpr_function
def _powers(first: int, end: int) -> list[int]:
    """first, 2 first, … below end."""
    return [] if first >= end else [first, *_powers(2 * first, end)]
