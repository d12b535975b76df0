"""What an emitted kernel calls (language.py) when Triton interprets it, with TRITON_INTERPRET=1.

The layouts of the table (`schedule`) and of the control block (`control`) are drawn in
include/syncopate/emit/table.hpp.

The interpreter runs the programs of a rank one after another in one thread, so a plain += counts them. Signals
are written by other threads and processes: an aligned 4-byte load or store is atomic, and x86 keeps loads in
order and stores in order, so that a load serves as an acquire and a store as a release.
"""

import ctypes
import time

import triton.language as tl
from triton.runtime import interpreter as _interpreter

from .language_fault import SyncopateFault

# Triton 3.6's interpreter makes an int of a one-element array wherever a kernel's scalar is an index, as in
# range(n); NumPy 2.4 refuses that. The scope that Triton patches for each launch is kept, this one method replaced.
_patch_lang_tensor = _interpreter._patch_lang_tensor


def _patch_lang_tensor_with_index(tensor, scope):
    _patch_lang_tensor(tensor, scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())


_interpreter._patch_lang_tensor = _patch_lang_tensor_with_index

_EPOCH, _FINISHED, _DEADLINE_MS, _FAULT, _FAULT_SEEN, _FAULT_EPOCH, _FAULT_WHERE = range(7)
_FIRST_SIGNAL, _SIGNAL_STRIDE, _FIRST_SLOT, _SLOT_WORDS = 32, 8, 16, 8
_MAKES, _STORE, _MADE_WORDS = 4, 6, 8  # of a slot's record (two of them); of a made chunk's
_AT_ONCE = 1 << 30
_LOADS = 10
_OWN_BASE = 1 << 62  # emit::table::own_base

sy_range = range


def _number(value):
    return int(value.handle.data.item()) if isinstance(value, tl.tensor) else int(value)


def _words(block):
    return ctypes.POINTER(ctypes.c_int32).from_buffer(ctypes.c_void_p(_number(block)))


def _signed(value):
    return (value + 2**31) % 2**32 - 2**31


def _scalar(value):
    return _interpreter.interpreter_semantic.to_tensor(int(value))


def _record(table, slot):
    begin = _FIRST_SLOT + _SLOT_WORDS * _number(slot)
    return table[begin], table[begin + 1], table[begin + 2], table[begin + 3]


def _fault_message(control):
    return (
        f"signal {control[_FAULT] - 1} did not come: slot {control[_FAULT_WHERE]} waits for epoch "
        f"{control[_FAULT_EPOCH]} and last saw {control[_FAULT_SEEN]}"
    )


def _wait_all(table, control, slot, begin, end):
    epoch = control[_EPOCH]
    for at in range(begin, end, 2):
        word, want = table[at], _signed(epoch - table[at + 1])
        start, polls = None, 0
        while True:
            seen = control[word]
            if _signed(seen - want) >= 0:
                break
            if control[_FAULT] != 0:
                raise SyncopateFault(_fault_message(control))
            polls += 1
            if polls < 200:
                time.sleep(0)
                continue
            time.sleep(50e-6)
            now = time.monotonic()
            start = now if start is None else start
            deadline = control[_DEADLINE_MS]
            if deadline and now - start > deadline * 1e-3:
                control[_FAULT_SEEN], control[_FAULT_EPOCH], control[_FAULT_WHERE] = (
                    seen,
                    want,
                    _number(slot),
                )
                control[_FAULT] = 1 + (word - _FIRST_SIGNAL) // _SIGNAL_STRIDE
                raise SyncopateFault(_fault_message(control))


def sy_tile(schedule, slot):
    return _scalar(_record(_words(schedule), slot)[0])


def sy_acquire(schedule, control, slot):
    table = _words(schedule)
    tile, begin, end, _ = _record(table, slot)
    _wait_all(table, _words(control), slot, begin, end)
    return _scalar(tile)


def sy_num_phases(schedule, slot):
    table = _words(schedule)
    return _scalar(table[_record(table, slot)[3] - 4])


def sy_acquire_phase(schedule, control, slot, phase):
    table = _words(schedule)
    at = _record(table, slot)[3] + 2 * _number(phase)
    _wait_all(table, _words(control), slot, table[at - 1], table[at + 1])
    return tl.tuple([_scalar(table[at - 2]), _scalar(table[at])])


def _post(schedule, control, slot, when=None):
    if _number(slot) < 0:
        return
    table, words = _words(schedule), _words(control)
    at = _FIRST_SLOT + _SLOT_WORDS * _number(slot) + _MAKES
    if when is not None and bool(table[at + 1] & _AT_ONCE) != when:
        return
    for record in range(table[at], table[at + 1] & ~_AT_ONCE, _MADE_WORDS):
        counter, tiles, posts, posts_end = (table[record + n] for n in range(4))
        words[counter] += 1
        if words[counter] == tiles:
            words[counter] = 0
            _post_all(table, control, posts, posts_end)


def sy_post(schedule, control, slot):
    _post(schedule, control, slot)


def sy_post_previous(schedule, control, slot):
    _post(schedule, control, _number(slot) - _programs(0), False)


def sy_post_at_once(schedule, control, slot):
    _post(schedule, control, slot, True)


def sy_post_last(schedule, control):
    slots, programs, program = (
        _words(schedule)[0],
        _programs(0),
        _interpreter.interpreter_builder.grid_idx[0],
    )
    if program < slots:
        _post(schedule, control, program + (slots - 1 - program) // programs * programs, False)


def _store(schedule, slot, copy):
    table = _words(schedule)
    at = _FIRST_SLOT + _SLOT_WORDS * _number(slot) + _STORE
    if copy is not None:
        at = table[at] + 2 * _number(copy)
    return _long(table, at)


def sy_row(schedule, slot, copy=None):
    return _scalar(_store(schedule, slot, copy))


def sy_offset(schedule, slot, copy=None, multiple=1):
    return _interpreter.interpreter_semantic.to_tensor(_store(schedule, slot, copy))


def _from(schedule, slot):
    table = _words(schedule)
    return _long(table, table[_LOADS] + 2 * _number(slot))


def sy_load_row(schedule, slot):
    return _scalar(_from(schedule, slot))


def sy_load_offset(schedule, slot, multiple=1):
    return _interpreter.interpreter_semantic.to_tensor(_from(schedule, slot))


def sy_reads_own(schedule, slot):
    return _from(schedule, slot) != 0


def sy_own_offset(schedule, slot, own, multiple=1):
    there = _number(own) - _OWN_BASE if _from(schedule, slot) else 0
    return _interpreter.interpreter_semantic.to_tensor(there)


def _long(table, at):
    return (table[at] & 0xFFFFFFFF) | (table[at + 1] << 32)


def _post_all(table, control, begin, end):
    for at in range(begin, end, 2):
        ctypes.c_int32.from_address(_number(control) + _long(table, at)).value = _words(control)[_EPOCH]


def sy_finish(schedule, control):
    table, words = _words(schedule), _words(control)
    words[_FINISHED] = _signed(words[_FINISHED] + 1)
    if words[_FINISHED] != _signed(words[_EPOCH] * table[3]) or words[_FAULT] != 0:
        return
    _post_all(table, control, table[2], table[2] + 2 * table[1])


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


def sy_acquire_2d(schedule, control, x, y):
    return _split_2d(sy_acquire(schedule, control, sy_linear_2d(x, y)))


def sy_acquire_3d(schedule, control, x, y, z):
    return _split_3d(sy_acquire(schedule, control, sy_linear_3d(x, y, z)))


def sy_tile_2d(schedule, x, y):
    return _split_2d(sy_tile(schedule, sy_linear_2d(x, y)))


def sy_tile_3d(schedule, x, y, z):
    return _split_3d(sy_tile(schedule, sy_linear_3d(x, y, z)))
