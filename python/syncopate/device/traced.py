"""The names of syncopate.language for a call that is recorded: the same, and each leaves its times behind.

A traced kernel is the emitted one with this module imported in place of syncopate.language; nothing else changes, and
an untraced call pays nothing. The schedule table's header says where the times go, while a call is recorded; the trace's
layout is drawn in include/syncopate/emit/layout.hpp. Times are nanoseconds: %globaltimer on a GPU, time.monotonic_ns()
under TRITON_INTERPRET=1.
"""

import triton
import triton.language as tl

from ..language import *  # noqa: F403
from ..language import __all__ as __all__
from ..language import sy_acquire as _acquire
from ..language import sy_acquire_phase as _acquire_phase
from ..language import sy_finish as _finish
from ..language import sy_linear_2d, sy_linear_3d

if not triton.knobs.runtime.interpret:
    from triton.language.extra.cuda import globaltimer

    from .._syncopate import layout
    from ..language import (
        _FIRST_SLOT,
        _SLOT_PHASES,
        _SLOT_WORDS,
        _address,
        _asm,
        _last_slot,
        _post,
        _split_2d,
        _split_3d,
        _words,
    )
    from .ptx import _post_ptx

    _FAULT = tl.constexpr(layout.FAULT)
    _PHASE_WORDS = tl.constexpr(layout.PHASE_WORDS)
    _TRACE = tl.constexpr(layout.TRACE // 2)  # the table as 64-bit words
    _TRACE_ENDS = tl.constexpr(layout.TRACE_ENDS)
    _TIME = tl.constexpr(8)  # bytes
    _WAIT, _START, _PLACE = (
        tl.constexpr(8 * word) for word in (layout.TRACE_WAIT, layout.TRACE_START, layout.TRACE_PLACE)
    )

    # Every chunk counts and posts, so that its signal can be watched.
    _POST = tl.constexpr(_post_ptx("all", "all"))
    _POST_NOW = tl.constexpr(_post_ptx("now", "all"))
    _POST_LATER = tl.constexpr(_post_ptx("later", "all"))

    # One thread stores the time; like a wait, the block stays where it is between the others that are not pure.
    _STAMP = tl.constexpr("""
    {
        .reg .pred sy_p;
        .reg .b32 sy_t;
        .reg .b64 sy_now;
        mov.b32 $0, 0;
        mov.u64 sy_now, %globaltimer;
        mov.u32 sy_t, %tid.x;
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p st.global.b64 [$1], sy_now;
    }
    """)
    _STAMP_PLACE = tl.constexpr("""
    {
        .reg .pred sy_p;
        .reg .b32 sy_t, sy_sm;
        mov.b32 $0, 0;
        mov.u32 sy_sm, %smid;
        mov.u32 sy_t, %tid.x;
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p st.global.v2.b32 [$1], {$2, sy_sm};
    }
    """)

    @triton.jit
    def _trace_of(schedule):
        words = _address(schedule).to(tl.pointer_type(tl.int64))
        return tl.load(words + _TRACE)

    @triton.jit
    def _stamp(address):
        _asm(_STAMP, "=r,l", (address,))

    @triton.jit
    def _program():
        return sy_linear_3d(tl.program_id(0), tl.program_id(1), tl.program_id(2))

    @triton.jit
    def sy_acquire(schedule, control, slot):
        record = _trace_of(schedule) + _TIME * (_FIRST_SLOT + _SLOT_WORDS * slot).to(tl.int64)
        _stamp(record + _WAIT)
        tile = _acquire(schedule, control, slot)
        _stamp(record + _START)
        _asm(_STAMP_PLACE, "=r,l,r", (record + _PLACE, _program()))
        return tile

    @triton.jit
    def sy_acquire_phase(schedule, control, slot, phase):
        words = _words(schedule)
        times = _trace_of(schedule)
        first = tl.load(words + _FIRST_SLOT + _SLOT_WORDS * slot + _SLOT_PHASES)
        pair = times + _TIME * (first + _PHASE_WORDS * phase).to(tl.int64)
        _stamp(pair + _WAIT)
        begin, end = _acquire_phase(schedule, control, slot, phase)
        _stamp(pair + _START)
        return begin, end

    @triton.jit
    def sy_post(schedule, control, slot):
        _post(_POST, schedule, control, slot)

    @triton.jit
    def sy_post_previous(schedule, control, slot):
        _post(_POST_LATER, schedule, control, slot - tl.num_programs(0))

    @triton.jit
    def sy_post_at_once(schedule, control, slot):
        _post(_POST_NOW, schedule, control, slot)

    @triton.jit
    def sy_post_last(schedule, control):
        _post(_POST_LATER, schedule, control, _last_slot(schedule))

    @triton.jit
    def sy_finish(schedule, control):
        words = _words(schedule)
        tl.debug_barrier()
        _stamp(_trace_of(schedule) + _TIME * (tl.load(words + _TRACE_ENDS) + _program()).to(tl.int64))
        _finish(schedule, control)

    @triton.jit
    def sy_acquire_2d(schedule, control, x, y):
        return _split_2d(sy_acquire(schedule, control, sy_linear_2d(x, y)))

    @triton.jit
    def sy_acquire_3d(schedule, control, x, y, z):
        return _split_3d(sy_acquire(schedule, control, sy_linear_3d(x, y, z)))

    @triton.jit
    def sy_watch(control, words, posts, times, count, epoch, BLOCK: tl.constexpr):
        """Runs beside the fused kernel, in one warp. times[0]: when it began; times[1 + i]: when it saw that the signal
        at word words[i] of the control block had reached `epoch` times posts[i]. Ends early after a fault."""
        lane = tl.arange(0, BLOCK)
        word = tl.load(words + lane, mask=lane < count, other=0)
        want = epoch * tl.load(posts + lane, mask=lane < count, other=1)
        tl.store(times, globaltimer())
        missing = (lane < count).to(tl.int32)
        left = count
        while left > 0:
            seen = tl.load(control + word, volatile=True)
            now = globaltimer()
            come = (missing != 0) & (seen - want >= 0)
            tl.store(times + 1 + lane, now + tl.zeros((BLOCK,), tl.int64), mask=come)
            missing = tl.where(come, 0, missing)
            left = tl.sum(missing)
            if tl.load(control + _FAULT, volatile=True) != 0:
                left = 0

    _ANSWER = tl.constexpr("""
    {
        .reg .pred sy_p;
        .reg .b32 sy_t;
        .reg .b64 sy_now;
        mov.b32 $0, 0;
        mov.u32 sy_t, %tid.x;
        setp.eq.s32 sy_p, sy_t, 0;
        mov.u64 sy_now, %globaltimer;
        @sy_p st.release.sys.global.b64 [$1], sy_now;
    }
    """)

    @triton.jit
    def sy_clock(words, rounds, deadline):
        """One warp, of trace.clock: sees words[0] become i in the host's pinned memory and answers with the time in
        words[i], for i = 1 … rounds. Ends early when the host has not asked for `deadline` ns."""
        begin = globaltimer()
        turn = 1
        while turn <= rounds:
            if tl.load(words, volatile=True) >= turn:
                address = words.to(tl.int64, bitcast=False) + 8 * turn
                _asm(_ANSWER, "=r,l", (address,))
                turn += 1
            elif globaltimer() - begin > deadline:
                turn = rounds + 1

else:
    import ctypes
    import time

    from .._syncopate import layout
    from ..host.language import (
        _interpreter,
        _long,
        _number,
        _programs,
        _slot_record,
        _split_2d,
        _split_3d,
        _words,
    )

    def _trace_of(schedule):
        table = _words(schedule)
        return table, ctypes.POINTER(ctypes.c_int64).from_buffer(ctypes.c_void_p(_long(table, layout.TRACE)))

    def _program():
        x, y, z = _interpreter.interpreter_builder.grid_idx
        return x + _programs(0) * (y + _programs(1) * z)

    def sy_acquire(schedule, control, slot):
        _, trace = _trace_of(schedule)
        record = _slot_record(slot)
        trace[record + layout.TRACE_WAIT] = time.monotonic_ns()
        tile = _acquire(schedule, control, slot)
        trace[record + layout.TRACE_START] = time.monotonic_ns()
        trace[record + layout.TRACE_PLACE] = _program()
        return tile

    def sy_acquire_phase(schedule, control, slot, phase):
        table, trace = _trace_of(schedule)
        first = table[_slot_record(slot) + layout.SLOT_PHASES]
        pair = first + layout.PHASE_WORDS * _number(phase)
        trace[pair + layout.TRACE_WAIT] = time.monotonic_ns()
        bounds = _acquire_phase(schedule, control, slot, phase)
        trace[pair + layout.TRACE_START] = time.monotonic_ns()
        return bounds

    def sy_finish(schedule, control):
        table, trace = _trace_of(schedule)
        trace[table[layout.TRACE_ENDS] + _program()] = time.monotonic_ns()
        _finish(schedule, control)

    def sy_acquire_2d(schedule, control, x, y):
        return _split_2d(sy_acquire(schedule, control, sy_linear_2d(x, y)))

    def sy_acquire_3d(schedule, control, x, y, z):
        return _split_3d(sy_acquire(schedule, control, sy_linear_3d(x, y, z)))
