"""The waiter of kernels.gluon_matmul: it awaits what the loader is about to load, up to AHEAD waits ahead of it, so that the trips
to the schedule, to the signals and through their fences take no time of the loader's."""

import triton.experimental.gluon.language as gl
from triton.experimental import gluon
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from ..gluon import sy_await, sy_await_kernel_before, sy_await_phase, sy_num_phases

AHEAD = gl.constexpr(4)  # waits that are over and that the loader has not come to
_HALF = gl.constexpr(16)  # bits of a bound: K has fewer than 32768 blocks
_LANES = gl.constexpr(gl.BlockedLayout([4], [32], [1], [0]))


@gluon.jit
def _tell(call, word, told):
    """Hands `word`, after `told` others, on to the loader; returns how many there are. Memory order: this warp has acquired what it
    awaited, at system scope, and fenced it for TMA; the mbarrier, released here and acquired there, puts the loads behind that."""
    at = told % AHEAD
    mbarrier.wait(call.told.index(at), (told // AHEAD & 1) ^ 1)
    call.words.index(at).store(gl.full((128,), 0, gl.int32, layout=_LANES) + word)
    mbarrier.arrive(call.over.index(at))
    return told + 1


@gluon.jit
def awaited(call, told):
    """The loader's side, after `told` words: the next one, once its wait is over, and how many there are."""
    at = told % AHEAD
    mbarrier.wait(call.over.index(at), told // AHEAD & 1)
    word = gl.max(call.words.index(at).load(_LANES), 0)
    mbarrier.arrive(call.told.index(at))
    return word, told + 1


@gluon.jit
def bounds(word):
    """The iterations [begin, end) that a phase's word says."""
    return word & ((1 << _HALF) - 1), word >> _HALF


@gluon.jit
def waiter(call):
    """For each slot its number of phases, once what all of it waits for has come; then for each phase its bounds likewise."""
    begin_turn, end_turn, step = call.turns()
    k_begin, k_end = call.share()
    if call.AFTER_KERNEL:
        sy_await_kernel_before()
    told = 0
    for turn in range(begin_turn, end_turn, step):
        slot = call.slot(turn)
        sy_await(call.sy_schedule, call.sy_control, slot)
        phases = sy_num_phases(call.sy_schedule, slot)
        told = _tell(call, phases, told)
        covered = k_begin
        for phase in range(phases):
            # When this program's share is loaded others may end the call, whose number a wait asks for.
            if covered < k_end:
                begin, end = sy_await_phase(call.sy_schedule, call.sy_control, slot, phase)
                covered = end
                begin = gl.maximum(begin, k_begin)
                end = gl.maximum(gl.minimum(end, k_end), begin)
                told = _tell(call, begin | (end << _HALF), told)
