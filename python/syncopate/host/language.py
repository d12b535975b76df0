"""What an emitted kernel calls (language.py) when Triton interprets it, with TRITON_INTERPRET=1.

The layouts of the table (`schedule`) and of the control block (`control`) are drawn in
include/syncopate/emit/layout.hpp.

The interpreter runs the programs of a rank one after another in one thread, so a plain += counts them. Signals
are written by other threads and processes: an aligned 4-byte load or store is atomic, and x86 keeps loads in
order and stores in order [P27]. Waits: [P5].
"""

import ctypes
import time

import triton.language as tl
from triton.runtime import interpreter as _interpreter

from .._syncopate import layout, raise_fault
from ..device.fault import SyncopateFault
from ..device.versions import triton_before

if triton_before(3, 7):
    # Its interpreter makes an int of a one-element array wherever a kernel's scalar is an index, as in range(n); NumPy 2.4
    # refuses that. The scope that Triton patches for each launch is kept, this one method replaced.
    _patch_lang_tensor = _interpreter._patch_lang_tensor

    def _patch_lang_tensor_with_index(tensor, scope):
        _patch_lang_tensor(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    _interpreter._patch_lang_tensor = _patch_lang_tensor_with_index

sy_range = range


def _number(value):
    return int(value.handle.data.item()) if isinstance(value, tl.tensor) else int(value)


def _words(block):
    return ctypes.POINTER(ctypes.c_int32).from_buffer(ctypes.c_void_p(_number(block)))


def _signed(value):
    return (value + 2**31) % 2**32 - 2**31


def _scalar(value):
    return _interpreter.interpreter_semantic.to_tensor(int(value))


def _slot_record(slot):
    return layout.FIRST_SLOT + layout.SLOT_WORDS * _number(slot)


def _pairs(begin, end):
    """The places of the pairs in [begin, end)."""
    return range(begin, end, layout.PAIR_WORDS)


def _fault_message(control):
    return (
        f"signal {control[layout.FAULT] - 1} did not come: slot {control[layout.FAULT_WHERE]} waits for epoch "
        f"{control[layout.FAULT_EPOCH]} and last saw {control[layout.FAULT_SEEN]}"
    )


#: Seconds between two looks that count for a deadline.
MOST_BETWEEN = layout.MOST_BETWEEN_NS * 1e-9


def _wait_all(table, block, slot, begin, end):
    control = _words(block)
    epoch = control[layout.EPOCH]
    for at in _pairs(begin, end):
        lag = table[at + 1] & ((1 << layout.WAIT_COUNT_SHIFT) - 1)
        posts = 1 + (table[at + 1] >> layout.WAIT_COUNT_SHIFT)
        word, want = table[at], _signed((epoch - lag) * posts)
        last, waited, polls = None, 0.0, 0
        while True:
            seen = control[word]
            if _signed(seen - want) >= 0:
                break
            if control[layout.FAULT] != 0:
                raise SyncopateFault(_fault_message(control))
            polls += 1
            if polls < 200:
                time.sleep(0)
                continue
            time.sleep(50e-6)
            now = time.monotonic()
            # Of a host that was frozen between two looks the time is nobody's (src/runtime/waiting_clock.hpp).
            waited += 0.0 if last is None else min(now - last, MOST_BETWEEN)
            last = now
            deadline = control[layout.DEADLINE_MS]
            if deadline and waited > deadline * 1e-3:
                signal = (word - layout.FIRST_SIGNAL) // layout.SIGNAL_STRIDE
                raise_fault(_number(block), signal, seen % 2**32, want % 2**32, _number(slot))
                raise SyncopateFault(_fault_message(control))


def sy_start_next():
    """Nothing: programs of the host run one after another."""


def sy_tile(schedule, slot):
    return _scalar(_words(schedule)[_slot_record(slot) + layout.SLOT_TILE])


def sy_group(schedule, slot):
    return _scalar(_words(schedule)[_slot_record(slot) + layout.SLOT_GROUP])


def sy_group_rows(schedule, slot):
    return _scalar(_words(schedule)[_slot_record(slot) + layout.SLOT_ROWS])


def sy_acquire(schedule, control, slot):
    table = _words(schedule)
    waits = _slot_record(slot) + layout.SLOT_WAITS
    _wait_all(table, control, slot, table[waits], table[waits + 1])
    return sy_tile(schedule, slot)


def sy_num_slots(schedule):
    return _scalar(_words(schedule)[layout.NUM_SLOTS])


def _phases_of_loop(schedule, slot, loop):
    table = _words(schedule)
    at = table[_slot_record(slot) + layout.SLOT_PHASES] - layout.PAIR_WORDS * (_number(loop) + 1)
    return table[at], table[at + 1]


def sy_first_phase(schedule, slot, loop):
    return _scalar(_phases_of_loop(schedule, slot, loop)[0])


def sy_num_phases(schedule, slot, loop=0):
    return _scalar(_phases_of_loop(schedule, slot, loop)[1])


def sy_acquire_phase(schedule, control, slot, phase):
    table = _words(schedule)
    at = table[_slot_record(slot) + layout.SLOT_PHASES] + layout.PHASE_WORDS * _number(phase)
    waits = at + layout.PHASE_WAITS
    _wait_all(table, control, slot, table[waits], table[waits + 1])
    begin = at + layout.PHASE_BEGIN
    return tl.tuple([_scalar(table[begin]), _scalar(table[begin + 1])])


def _post(schedule, control, slot, when=None):
    if _number(slot) < 0:
        return
    table, words = _words(schedule), _words(control)
    at = _slot_record(slot) + layout.SLOT_MAKES
    if when is not None and bool(table[at + 1] & layout.AT_ONCE) != when:
        return
    for record in range(table[at], table[at + 1] & ~layout.AT_ONCE, layout.MADE_WORDS):
        counter = table[record + layout.MADE_COUNTER]
        for gate in range(2):
            word = counter + layout.GATE + gate
            words[word] = _signed(words[word] + table[record + layout.MADE_GATES + gate])
        words[counter] += 1
        if words[counter] == table[record + layout.MADE_TILES]:
            words[counter] = 0
            posts = record + layout.MADE_POSTS
            _post_all(table, control, table[posts], table[posts + 1])


def sy_post(schedule, control, slot):
    _post(schedule, control, slot)


def sy_post_previous(schedule, control, slot):
    _post(schedule, control, _number(slot) - _programs(0), False)


def sy_post_at_once(schedule, control, slot):
    _post(schedule, control, slot, True)


def sy_post_last(schedule, control):
    slots, programs, program = (
        _words(schedule)[layout.NUM_SLOTS],
        _programs(0),
        _interpreter.interpreter_builder.grid_idx[0],
    )
    if program < slots:
        _post(schedule, control, program + (slots - 1 - program) // programs * programs, False)


def _store(schedule, slot, copy):
    table = _words(schedule)
    at = _slot_record(slot) + layout.SLOT_STORE
    if copy is not None:
        at = table[at] + layout.PAIR_WORDS * _number(copy)
    return _long(table, at)


def sy_row(schedule, slot, copy=None):
    return _scalar(_store(schedule, slot, copy))


def sy_offset(schedule, slot, copy=None, multiple=1):
    return _interpreter.interpreter_semantic.to_tensor(_store(schedule, slot, copy))


def _from(schedule, slot):
    table = _words(schedule)
    return _long(table, table[layout.LOADS] + layout.PAIR_WORDS * _number(slot))


def sy_load_row(schedule, slot):
    return _scalar(_from(schedule, slot))


def sy_load_offset(schedule, slot, multiple=1):
    return _interpreter.interpreter_semantic.to_tensor(_from(schedule, slot))


def sy_reads_own(schedule, slot):
    return _from(schedule, slot) != 0


def sy_own_offset(schedule, slot, own, multiple=1):
    there = _number(own) - layout.OWN_BASE if _from(schedule, slot) else 0
    return _interpreter.interpreter_semantic.to_tensor(there)


def _long(table, at):
    return (table[at] & 0xFFFFFFFF) | (table[at + 1] << 32)


def _post_all(table, control, begin, end):
    for at in _pairs(begin, end):
        ctypes.c_int32.from_address(_number(control) + _long(table, at)).value = _words(control)[layout.EPOCH]


def sy_finish(schedule, control):
    table, words = _words(schedule), _words(control)
    words[layout.FINISHED] = _signed(words[layout.FINISHED] + 1)
    all_ended = words[layout.FINISHED] == _signed(words[layout.EPOCH] * table[layout.NUM_PROGRAMS])
    if not all_ended or words[layout.FAULT] != 0:
        return
    posts = table[layout.KERNEL_POSTS]
    _post_all(table, control, posts, posts + layout.PAIR_WORDS * table[layout.NUM_KERNEL_POSTS])


def _programs(axis):
    return _interpreter.interpreter_builder.grid_dim[axis]


def sy_linear_2d(x, y):
    return _scalar(_number(x) + _programs(0) * _number(y))


def sy_linear_3d(x, y, z):
    return _scalar(_number(x) + _programs(0) * (_number(y) + _programs(1) * _number(z)))


def _split_2d(tile):
    return tl.tuple([_scalar(_number(tile) % _programs(0)), _scalar(_number(tile) // _programs(0))])


def _split_3d(tile):
    rest = _number(tile) // _programs(0)
    return tl.tuple(
        [
            _scalar(_number(tile) % _programs(0)),
            _scalar(rest % _programs(1)),
            _scalar(rest // _programs(1)),
        ]
    )


def sy_split_2d(schedule, tile):
    x = _words(schedule)[layout.GRID]
    return tl.tuple([_scalar(_number(tile) % x), _scalar(_number(tile) // x)])


def sy_split_3d(schedule, tile):
    x, y = (_words(schedule)[layout.GRID + axis] for axis in (0, 1))
    rest = _number(tile) // x
    return tl.tuple([_scalar(_number(tile) % x), _scalar(rest % y), _scalar(rest // y)])


def sy_acquire_2d(schedule, control, x, y):
    return _split_2d(sy_acquire(schedule, control, sy_linear_2d(x, y)))


def sy_acquire_3d(schedule, control, x, y, z):
    return _split_3d(sy_acquire(schedule, control, sy_linear_3d(x, y, z)))


def sy_tile_2d(schedule, x, y):
    return _split_2d(sy_tile(schedule, sy_linear_2d(x, y)))


def sy_tile_3d(schedule, x, y, z):
    return _split_3d(sy_tile(schedule, sy_linear_3d(x, y, z)))
