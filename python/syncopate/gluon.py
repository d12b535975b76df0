"""What a Gluon kernel calls to follow a schedule: the tile of a slot, waits before its loads, posts after its stores.

A warp-specialised kernel calls these from partitions of one warp: the loader awaits, the storer posts. The other
partitions only ask which tile a slot holds. All read the table that emitted kernels read, and the same control block
(include/syncopate/emit/layout.hpp). `schedule` and `control` are their addresses (int64).

Memory order (docs/protocol.md), of this warp alone unless an mbarrier of the block orders the others:
- sy_await, sy_await_phase: [P19, P20].
- sy_await_sum: [P19]. Loads are by the L2 cache (`.cg`), as another program's last call may have left lines in L1.
- sy_post, sy_post_each: [P17, P18].
- sy_finish: [P17] of all that the program has read, but not [P18]. The caller must know that the program's other warps
  read and write nothing any more.
- sy_count_end, sy_finish_counted: none; the next kernel in the stream starts when this one's stores are complete.
- sy_loaded: as sy_finish, of what the program has loaded, and of nothing that it stores. The caller must have seen every
  load complete (its mbarrier), and know that no warp reads any more what peers send, or give.
Waits return past the deadline, and after a fault [P28].

Constexprs of these names are filled in, where the kernel has them:
- FUSED: False in an unfused call. A kernel without it then gets a table in which every tile runs in order and waits for
  nothing.
- FETCHED, PUSHED: `placed` parameters are loaded, or stored, where the slot says.
- OWN, with a parameter `sy_own`: tiles load the rank's own part through `sy_own` where their slot says so (`sy_reads_own`; in
  CUDA C++ `own_offset`).
- COPIES: the number of places where a tile is stored, if more than one.
- TELLS: the loaders, and not the kernel's end, tell other ranks that what they sent has been read. Each program asks for the
  call's number at its begin (sy_call). When all its loads are complete, one warp calls sy_loaded. For kernels of which no other
  warp reads what peers send.
- COUNTS_END: the program may count itself while its last tile's stores are on their way (sy_count_end, sy_finish_counted),
  which saves up to 1 µs.
- what the statement names as `sums`: the number of contributions that the programs add up when they have made their tiles; 0:
  none. The calls are sy_turn, sy_posts, sy_post_each, sy_await_sum, sy_add_up and sy_await_kernel_before.
"""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon

from ._syncopate import layout
from .device.ptx import (
    ADD_BY_WARP,
    COUNT_END_BY_WARP,
    FINISH_BY_WARP,
    FINISH_COUNTED_BY_WARP,
    LOADED_BY_WARP,
    POST_BY_WARP,
    POST_NUMBERED_BY_WARP,
    POSTS_BY_WARP,
    WAIT_BY_WARP,
    WAIT_PHASE_BY_WARP,
    WAIT_SUM_BY_WARP,
)

__all__ = [
    "sy_add_up",
    "sy_await",
    "sy_await_kernel_before",
    "sy_await_phase",
    "sy_await_sum",
    "sy_call",
    "sy_count_end",
    "sy_finish",
    "sy_finish_counted",
    "sy_load_row",
    "sy_loaded",
    "sy_num_phases",
    "sy_group",
    "sy_group_rows",
    "sy_head_start",
    "sy_num_slots",
    "sy_phase",
    "sy_post",
    "sy_post_each",
    "sy_posts",
    "sy_prefetch",
    "sy_reads_own",
    "sy_row",
    "sy_start_next",
    "sy_summands",
    "sy_tile",
    "sy_turn",
]

_NUM_SLOTS = gl.constexpr(layout.NUM_SLOTS)
_HEAD_START = gl.constexpr(layout.HEAD_START)
_LOADS = gl.constexpr(layout.LOADS)
_EPOCH = gl.constexpr(layout.EPOCH)
_FIRST_SLOT = gl.constexpr(layout.FIRST_SLOT)
_SLOT_WORDS = gl.constexpr(layout.SLOT_WORDS)
_SLOT_TILE = gl.constexpr(layout.SLOT_TILE)
_SLOT_PHASES = gl.constexpr(layout.SLOT_PHASES)
_SLOT_STORE = gl.constexpr(layout.SLOT_STORE)
_SLOT_GROUP = gl.constexpr(layout.SLOT_GROUP)
_SLOT_ROWS = gl.constexpr(layout.SLOT_ROWS)
_PAIR_WORDS = gl.constexpr(layout.PAIR_WORDS)
_PHASE_WORDS = gl.constexpr(layout.PHASE_WORDS)
_PHASE_BEGIN = gl.constexpr(layout.PHASE_BEGIN)
_SUM = gl.constexpr(layout.SUM)
_OTHER = gl.constexpr(layout.OTHER)
_SUM_ELEMENTS = gl.constexpr(layout.SUM_ELEMENTS)
_SUM_PLACES = gl.constexpr(layout.SUM_PLACES)


@gluon.jit
def _words(schedule):
    return schedule.to(gl.int64).to(gl.pointer_type(gl.int32), bitcast=True)


@gluon.jit
def _asm(ptx: gl.constexpr, constraints: gl.constexpr, operands):
    """A block that is not pure, so that it stays where it is between the others."""
    return gl.inline_asm_elementwise(ptx, constraints, operands, gl.int32, is_pure=False, pack=1)


@gluon.jit
def sy_num_slots(schedule):
    """How many slots (int32) this rank's schedule has. Program p of P runs slots p, p + P, …; but see sy_head_start."""
    return gl.load(_words(schedule) + _NUM_SLOTS)


@gluon.jit
def sy_head_start(schedule):
    """Of a kernel whose statement has `head_start`, where that is set: (H, R), int32. Programs p < H first run slots p, p + H, …,
    R of each; then all P programs take turns: H * R + p, H * R + p + P, …"""
    head = _words(schedule) + _HEAD_START
    return gl.load(head), gl.load(head + 1)


@gluon.jit
def sy_tile(schedule, slot):
    """The tile of `slot` (int32). It waits for nothing."""
    return gl.load(_words(schedule) + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_TILE)


@gluon.jit
def sy_group(schedule, slot):
    """The group that the tile of `slot` is of (int32), where the call makes the slots. It waits for nothing."""
    return gl.load(_words(schedule) + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_GROUP)


@gluon.jit
def sy_group_rows(schedule, slot):
    """How many rows of its group the tile of `slot` has (int32); 0: it only waits and posts. It waits for nothing."""
    return gl.load(_words(schedule) + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_ROWS)


@gluon.jit
def sy_prefetch(schedule, control, slot):
    """Asks the L2 cache for what this program reads first: it reads one after the other, each a miss of its own. `slot`: its
    first one. It waits for nothing, and reads nothing."""
    record = schedule + 4 * (_FIRST_SLOT + _SLOT_WORDS * slot).to(gl.int64)
    _asm(
        "prefetch.global.L2 [$1]; prefetch.global.L2 [$2]; prefetch.global.L2 [$3]; mov.u32 $0, 0;",
        "=r,l,l,l",
        (schedule, record, control),
    )


@gluon.jit
def sy_start_next():
    """Lets the stream's next kernel start once every program of this one has come here or ended, if it was launched so. Orders
    no memory: that kernel waits for the tiles that it reads (sy_await), or for all of this one (sy_await_kernel_before)."""
    _asm("griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", ())


@gluon.jit
def sy_await_kernel_before():
    """Waits until the kernel before this one in its stream has ended and what it wrote is visible, TMA loads of this warp
    included. For a programmatic launch whose kernel waits by itself; of any other launch it waits for nothing."""
    _asm("griddepcontrol.wait; fence.proxy.async.global; mov.u32 $0, 0;", "=r", ())


@gluon.jit
def sy_await(schedule, control, slot):
    """The tile of `slot` (int32), once the signals that all of it waits for have come. By one whole warp."""
    return _asm(WAIT_BY_WARP, "=r,l,l,r", (schedule, control, slot))


@gluon.jit
def sy_num_phases(schedule, slot):
    """Into how many ranges the loop of `slot` is cut that are awaited one by one; 0: it runs whole after sy_await. Of a
    loop that may run in any order, a range need not begin where the one before it ends."""
    words = _words(schedule)
    begin = gl.load(words + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_PHASES)
    phases = 0
    if begin != 0:
        phases = gl.load(words + begin - _PAIR_WORDS + 1)
    return phases


@gluon.jit
def sy_phase(schedule, slot, phase):
    """The iterations [begin, end) of range `phase` of `slot`. It waits for nothing."""
    words = _words(schedule)
    at = gl.load(words + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_PHASES) + _PHASE_WORDS * phase
    return gl.load(words + at + _PHASE_BEGIN), gl.load(words + at + _PHASE_BEGIN + 1)


@gluon.jit
def sy_await_phase(schedule, control, slot, phase):
    """The iterations [begin, end) of range `phase` of `slot`, once the signals that it waits for have come. By one whole
    warp."""
    return gl.inline_asm_elementwise(
        WAIT_PHASE_BY_WARP,
        "=r,=r,l,l,r,r",
        [schedule, control, slot, phase],
        dtype=(gl.int32, gl.int32),
        is_pure=False,
        pack=1,
    )


@gluon.jit
def sy_post(schedule, control, slot, call=None):
    """The tile of `slot` is stored by this warp's bulk stores: counts it in the chunks that it writes into; the last tile
    of a chunk lets it go. `call`: sy_call, to be given behind sy_count_end. By one whole warp."""
    if call is None:
        _asm(POST_BY_WARP, "=r,l,l,r", (schedule, control, slot))
    else:
        _asm(POST_NUMBERED_BY_WARP, "=r,l,l,r,r", (schedule, control, slot, call))


@gluon.jit
def sy_finish(schedule, control):
    """Ends this program's part of the call; the call's last program tells the ranks that may now overwrite what was read
    here. By one whole warp, once."""
    _asm(FINISH_BY_WARP, "=r,l,l", (schedule, control))


@gluon.jit
def sy_count_end(schedule, control):
    """The first of two steps in the place of sy_finish, where nobody is told by the end (COUNTS_END): counts this program,
    and gives what sy_finish_counted takes (a tuple), whose answer the program does not wait for before that. It orders
    nothing, and may come while stores are on their way. Behind it no warp of the program may ask for the call's number
    (sy_call, sy_await, sy_await_phase, sy_post without `call`). By one whole warp, once."""
    return gl.inline_asm_elementwise(
        COUNT_END_BY_WARP, "=r,=r,l,l", [schedule, control], dtype=(gl.int32, gl.int32), is_pure=False, pack=1
    )


@gluon.jit
def sy_finish_counted(control, call, count, programs):
    """The second step, last of all. `call`: sy_call; `count`, `programs`: of sy_count_end. By one whole warp, once."""
    _asm(FINISH_COUNTED_BY_WARP, "=r,l,r,r,r", (control, call, count, programs))


@gluon.jit
def sy_call(control):
    """The number (int32) of the call that runs. Not to be asked for once this program may have ended (sy_finish)."""
    return gl.load(_words(control) + _EPOCH)


@gluon.jit
def sy_loaded(schedule, control, call, share):
    """This program has loaded, and not only asked for, all that it will. The last one tells the ranks that may now overwrite
    that: earlier than its end would. `call`: sy_call; `share` (int32): programs of the grid for each that ends
    (`split`). By one whole warp, once in each program of the grid."""
    _asm(LOADED_BY_WARP, "=r,l,l,r,r", (schedule, control, call, share))


@gluon.jit
def sy_row(schedule, slot, copy: gl.constexpr = None):
    """What is added to the first coordinate (int32) where the tile of `slot` is stored: at a peer, through a descriptor
    that spans the heaps of all ranks. With COPIES > 1, for the `copy`-th time."""
    words = _words(schedule)
    at = words + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_STORE
    if copy is not None:
        at = words + gl.load(at) + _PAIR_WORDS * copy
    return gl.load(at)


@gluon.jit
def sy_load_row(schedule, slot):
    """What is added to the first coordinate (int32) where the tile of `slot` loads what it fetches from a peer."""
    words = _words(schedule)
    return gl.load(words + gl.load(words + _LOADS) + _PAIR_WORDS * slot)


@gluon.jit
def sy_reads_own(schedule, slot):
    """Whether the tile of `slot` loads what this rank was given where that is, through sy_own: at the same coordinates."""
    words = _words(schedule)
    return gl.load(words + gl.load(words + _LOADS) + _PAIR_WORDS * slot) != 0


@gluon.jit
def sy_turn(schedule, call):
    """Of a kernel whose programs sum: the table of this call [P16]. `call`: sy_call."""
    other = gl.load(_words(schedule) + _OTHER)
    return schedule + 4 * (other * (call & 1)).to(gl.int64)


@gluon.jit
def sy_posts(schedule, control, slot):
    """Where the tile of `slot` posts, if the kernel's programs sum: for sy_post_each alone, as lanes have different ones. By one
    whole warp."""
    return gl.inline_asm_elementwise(
        POSTS_BY_WARP, "=l,l,l,r", [schedule, control, slot], dtype=gl.int64, is_pure=False, pack=1
    )


@gluon.jit
def sy_post_each(posts):
    """As sy_post, of a kernel whose programs sum: each adds to what it posts, and waits count the programs. `posts`: sy_posts. By
    one whole warp."""
    _asm(ADD_BY_WARP, "=r,l", (posts,))


@gluon.jit
def sy_await_sum(schedule, control, call):
    """Waits until every contribution to what the kernel's programs sum has come. `call`: sy_call. By one whole warp."""
    _asm(WAIT_SUM_BY_WARP, "=r,l,l,r", (schedule, control, call))


@gluon.jit
def sy_summands(schedule, control, SUMS: gl.constexpr):
    """How many elements the kernel's programs sum, and the addresses of the SUMS contributions (a tuple). `schedule`: sy_turn."""
    words = _words(schedule)
    record = words + gl.load(words + _SUM)
    places = (record + _SUM_PLACES).to(gl.pointer_type(gl.int64), bitcast=True)
    found = ()
    for summand in gl.static_range(SUMS):
        found = found + (control + gl.load(places + summand),)
    return gl.load(record + _SUM_ELEMENTS), found


@gluon.jit
def sy_add_up(elements, summands, into, part, parts, DTYPE: gl.constexpr, SUMS: gl.constexpr):
    """Adds up share `part` of `parts` of what sy_summands has found, of DTYPE, as fp32 in rank order, and stores it at `into` (an
    address). By a partition of four warps, after sy_await_sum."""
    ONCE: gl.constexpr = 128 * (128 // DTYPE.primitive_bitwidth)  # elements: 16 bytes a thread
    MANY: gl.constexpr = 4 if SUMS <= 4 else 2  # so many loads of each summand on their way at once
    if elements > ONCE * parts:
        for block in range(part, gl.cdiv(elements, ONCE * MANY), parts):
            _add_block(elements, summands, into, block, ONCE * MANY, DTYPE, SUMS)
    else:
        if part < gl.cdiv(elements, ONCE):
            _add_block(elements, summands, into, part, ONCE, DTYPE, SUMS)


@gluon.jit
def _add_block(elements, summands, into, block, BLOCK: gl.constexpr, DTYPE: gl.constexpr, SUMS: gl.constexpr):
    # All are multiples of 16 bytes, as bulk stores are; said so that a thread loads as many at once.
    EACH: gl.constexpr = 128 // DTYPE.primitive_bitwidth
    LAYOUT: gl.constexpr = gl.BlockedLayout([EACH], [32], [4], [0])
    at = block * BLOCK + gl.arange(0, BLOCK, layout=LAYOUT)
    used = at // EACH < elements // EACH
    values = ()
    for summand in gl.static_range(SUMS):
        place = gl.multiple_of(summands[summand].to(gl.pointer_type(DTYPE), bitcast=True), 16)
        values = values + (gl.load(place + at, mask=used, cache_modifier=".cg"),)
    total = values[0].to(gl.float32)
    for summand in gl.static_range(1, SUMS):
        total += values[summand].to(gl.float32)
    to = gl.multiple_of(into.to(gl.pointer_type(DTYPE), bitcast=True), 16)
    gl.store(to + at, total.to(DTYPE), mask=used)
