"""What an emitted kernel calls: take the tile of a slot, wait for its chunks, tell the peers when done.

The layouts of the table (`schedule`) and of the control block (`control`) are drawn in
include/syncopate/emit/layout.hpp. Both may be passed as tensors, or as addresses (int64).

On the GPU each function is one block of PTX (device/ptx.py), run by every thread of the program: the first warp
waits, a barrier holds the others until it is done. Nothing here is pure, so that neither Triton nor ptxas
moves it, and a tile's coordinates follow from its result, so that no load of that tile is issued before its wait.

With TRITON_INTERPRET=1 the same names are plain Python on the interpreter's values: host/language.py.
"""

import triton
import triton.language as tl

from .device.fault import SyncopateFault

__all__ = [
    "SyncopateFault",
    "sy_acquire",
    "sy_acquire_2d",
    "sy_acquire_3d",
    "sy_acquire_phase",
    "sy_all_rows",
    "sy_finish",
    "sy_group",
    "sy_group_rows",
    "sy_first_phase",
    "sy_linear_2d",
    "sy_linear_3d",
    "sy_load_offset",
    "sy_load_row",
    "sy_num_phases",
    "sy_num_slots",
    "sy_offset",
    "sy_own_offset",
    "sy_post",
    "sy_post_at_once",
    "sy_post_last",
    "sy_post_previous",
    "sy_range",
    "sy_reads_own",
    "sy_row",
    "sy_split_2d",
    "sy_split_3d",
    "sy_start_next",
    "sy_tile",
    "sy_tile_2d",
    "sy_tile_3d",
]


# The rows of a descriptor that spans the heaps of all ranks: where one ends is for the schedule to say.
sy_all_rows = tl.constexpr(2**31 - 1)

if triton.knobs.runtime.interpret:
    from .host.language import *  # noqa: F403
else:
    from ._syncopate import layout
    from .device.ptx import _ACQUIRE, _ACQUIRE_PHASE, _FINISH, _POST, _POST_LATER, _POST_NOW

    # The only globals that Triton lets a kernel read.
    _NUM_SLOTS = tl.constexpr(layout.NUM_SLOTS)
    _LOADS = tl.constexpr(layout.LOADS)
    _FIRST_SLOT = tl.constexpr(layout.FIRST_SLOT)
    _SLOT_WORDS = tl.constexpr(layout.SLOT_WORDS)
    _SLOT_TILE = tl.constexpr(layout.SLOT_TILE)
    _SLOT_PHASES = tl.constexpr(layout.SLOT_PHASES)
    _SLOT_STORE = tl.constexpr(layout.SLOT_STORE)
    _SLOT_GROUP = tl.constexpr(layout.SLOT_GROUP)
    _SLOT_ROWS = tl.constexpr(layout.SLOT_ROWS)
    _PAIR_WORDS = tl.constexpr(layout.PAIR_WORDS)
    _GRID = tl.constexpr(layout.GRID)
    _OWN_BASE = tl.constexpr(layout.OWN_BASE)
    sy_range = tl.static_range  # over the places of a tile that is stored several times

    @triton.jit
    def _address(block):
        return block.to(tl.int64, bitcast=False)

    @triton.jit
    def _asm(ptx: tl.constexpr, constraints: tl.constexpr, operands):
        """A block that is not pure, so that it stays where it is between the others."""
        return tl.inline_asm_elementwise(ptx, constraints, operands, tl.int32, is_pure=False, pack=1)

    @triton.jit
    def _words(schedule):
        return _address(schedule).to(tl.pointer_type(tl.int32))

    @triton.jit
    def sy_start_next():
        """Lets the stream's next kernel start once every program of this one has come here or ended, if it was launched so.
        Orders no memory: that kernel waits for the tiles that it reads."""
        return _asm("griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", ())

    @triton.jit
    def sy_tile(schedule, slot):
        """The tile of `slot` (int32). No wait: for addresses of stores, of tiles that were acquired before."""
        return tl.load(_words(schedule) + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_TILE)

    @triton.jit
    def sy_group(schedule, slot):
        """The group that the tile of `slot` is of, where the call makes the slots."""
        return tl.load(_words(schedule) + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_GROUP)

    @triton.jit
    def sy_group_rows(schedule, slot):
        """How many rows of its group the tile of `slot` has; 0: it only waits and posts."""
        return tl.load(_words(schedule) + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_ROWS)

    @triton.jit
    def sy_acquire(schedule, control, slot):
        """The tile of `slot` (int32), once the signals that it waits for have come."""
        return _asm(_ACQUIRE, "=r,l,l,r", (_address(schedule), _address(control), slot))

    @triton.jit
    def sy_num_slots(schedule):
        """How many slots this rank has."""
        return tl.load(_words(schedule) + _NUM_SLOTS)

    @triton.jit
    def _phases_of_loop(schedule, slot, loop):
        words = _words(schedule)
        return (
            words
            + tl.load(words + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_PHASES)
            - _PAIR_WORDS * (loop + 1)
        )

    @triton.jit
    def sy_first_phase(schedule, slot, loop):
        """The first phase of `slot` that is of the kernel's loop `loop`."""
        return tl.load(_phases_of_loop(schedule, slot, loop))

    @triton.jit
    def sy_num_phases(schedule, slot, loop=0):
        """Past the last phase of `slot` that is of the kernel's loop `loop`; of the first one, how many there are."""
        return tl.load(_phases_of_loop(schedule, slot, loop) + 1)

    @triton.jit
    def sy_acquire_phase(schedule, control, slot, phase):
        """The iterations [begin, end) of phase `phase` of `slot`, once the signals that it waits for have come."""
        return tl.inline_asm_elementwise(
            _ACQUIRE_PHASE,
            "=r,=r,l,l,r,r",
            [_address(schedule), _address(control), slot, phase],
            dtype=(tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def sy_finish(schedule, control):
        """Ends this program; the last one of the call tells the ranks that may now overwrite what was read here."""
        tl.debug_barrier()
        _asm(_FINISH, "=r,l,l", (_address(schedule), _address(control)))

    @triton.jit
    def _post(ptx: tl.constexpr, schedule, control, slot):
        _asm(ptx, "=r,l,l,r", (_address(schedule), _address(control), slot))

    @triton.jit
    def _last_slot(schedule):
        slots = sy_num_slots(schedule)
        programs, program = tl.num_programs(0), tl.program_id(0)
        last = program + (slots - 1 - program) // programs * programs
        return tl.where(program < slots, last, -1)

    @triton.jit
    def sy_post(schedule, control, slot):
        """The tile of `slot` is stored: counts it in the chunks that it writes into; the last one lets a chunk go."""
        _post(_POST, schedule, control, slot)

    @triton.jit
    def sy_post_previous(schedule, control, slot):
        """sy_post for the tile that this program stored before that of `slot`, unless that one posted at once: its stores
        are long complete."""
        _post(_POST_LATER, schedule, control, slot - tl.num_programs(0))

    @triton.jit
    def sy_post_at_once(schedule, control, slot):
        """sy_post if one of the tile's chunks wants it at once."""
        _post(_POST_NOW, schedule, control, slot)

    @triton.jit
    def sy_post_last(schedule, control):
        """sy_post_previous for the last tile of this program."""
        _post(_POST_LATER, schedule, control, _last_slot(schedule))

    @triton.jit
    def _store(schedule, slot, copy):
        words = _words(schedule)
        at = words + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_STORE
        if copy is not None:
            at = words + tl.load(at) + _PAIR_WORDS * copy
        return at

    @triton.jit
    def sy_row(schedule, slot, copy=None):
        """What is added to the first coordinate (int32) where the tile of `slot` is stored, for the `copy`-th time."""
        return tl.load(_store(schedule, slot, copy))

    @triton.jit
    def sy_offset(schedule, slot, copy=None, multiple: tl.constexpr = 1):
        """What is added to the pointers (int64, elements) where the tile of `slot` is stored, for the `copy`-th time; a
        multiple of `multiple`, which lets Triton store several elements at once."""
        return tl.multiple_of(tl.load(_store(schedule, slot, copy).to(tl.pointer_type(tl.int64))), multiple)

    @triton.jit
    def _from(schedule, slot):
        words = _words(schedule)
        return words + tl.load(words + _LOADS) + _PAIR_WORDS * slot

    @triton.jit
    def sy_load_row(schedule, slot):
        """What is added to the first coordinate (int32) where the tile of `slot` loads what it fetches."""
        return tl.load(_from(schedule, slot))

    @triton.jit
    def sy_load_offset(schedule, slot, multiple: tl.constexpr = 1):
        """What is added to the pointers (int64, elements; a multiple of `multiple`) where the tile of `slot` loads what it
        fetches."""
        return tl.multiple_of(tl.load(_from(schedule, slot).to(tl.pointer_type(tl.int64))), multiple)

    @triton.jit
    def sy_reads_own(schedule, slot):
        """Whether the tile of `slot` loads what this rank was given where that is, through sy_own."""
        return tl.load(_from(schedule, slot)) != 0

    @triton.jit
    def sy_own_offset(schedule, slot, own, multiple: tl.constexpr = 1):
        """What is added to the pointers (int64, elements; a multiple of `multiple`) where the tile of `slot` loads what this
        rank was given: `own`, less what makes it an int64 whatever it is."""
        there = own - _OWN_BASE
        return tl.multiple_of(tl.where(tl.load(_from(schedule, slot)) != 0, there, there * 0), multiple)

    @triton.jit
    def sy_linear_2d(x, y):
        """The linear id, x fastest, of a program of a two-dimensional grid."""
        return x + tl.num_programs(0) * y

    @triton.jit
    def sy_linear_3d(x, y, z):
        """The linear id, x fastest, of a program of a three-dimensional grid."""
        return x + tl.num_programs(0) * (y + tl.num_programs(1) * z)

    @triton.jit
    def _split_2d(tile):
        return tile % tl.num_programs(0), tile // tl.num_programs(0)

    @triton.jit
    def _split_3d(tile):
        rest = tile // tl.num_programs(0)
        return tile % tl.num_programs(0), rest % tl.num_programs(1), rest // tl.num_programs(1)

    @triton.jit
    def sy_split_2d(schedule, tile):
        """The coordinates of a tile in the kernel's own two-dimensional grid, where programs are launched along x only."""
        x = tl.load(_words(schedule) + _GRID)
        return tile % x, tile // x

    @triton.jit
    def sy_split_3d(schedule, tile):
        """The same of a three-dimensional grid."""
        grid = _words(schedule) + _GRID
        x, y = tl.load(grid), tl.load(grid + 1)
        rest = tile // x
        return tile % x, rest % y, rest // y

    @triton.jit
    def sy_acquire_2d(schedule, control, x, y):
        """sy_acquire for a kernel whose tiles are numbered by a two-dimensional grid."""
        return _split_2d(sy_acquire(schedule, control, sy_linear_2d(x, y)))

    @triton.jit
    def sy_acquire_3d(schedule, control, x, y, z):
        """sy_acquire for a kernel whose tiles are numbered by a three-dimensional grid."""
        return _split_3d(sy_acquire(schedule, control, sy_linear_3d(x, y, z)))

    @triton.jit
    def sy_tile_2d(schedule, x, y):
        """sy_tile for a kernel whose tiles are numbered by a two-dimensional grid."""
        return _split_2d(sy_tile(schedule, sy_linear_2d(x, y)))

    @triton.jit
    def sy_tile_3d(schedule, x, y, z):
        """sy_tile for a kernel whose tiles are numbered by a three-dimensional grid."""
        return _split_3d(sy_tile(schedule, sy_linear_3d(x, y, z)))
