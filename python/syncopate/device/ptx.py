"""The PTX of what an emitted kernel calls (language.py), as text.

The layouts of the table (`schedule`) and of the control block (`control`) are drawn in
include/syncopate/emit/layout.hpp; the texts are made from its numbers (_syncopate.layout) and have none of their own. What
they keep, by number: docs/protocol.md.
They are tl.constexpr, the only globals that Triton lets a kernel read.
"""

import triton.language as tl

from .._syncopate import layout

_WORD = 4  # bytes
_PAIR = _WORD * layout.PAIR_WORDS
_RECORD = _WORD * layout.SLOT_WORDS  # of a slot
_UNIT = 20  # a deadline is counted in units of 2^20 ns, so that registers of 32 bits do


def _at(base: str, word: int) -> str:
    """The address of word `word` of a block."""
    return f"[{base} + {_WORD * word}]" if word else f"[{base}]"


def _of_slot(base: str, word: int) -> str:
    """The address of a word of a slot's record; `base`: of the table, further on by the records before."""
    return _at(base, layout.FIRST_SLOT + word)


def _together(by_warp: bool) -> str:
    """Holds the threads that call until all of them are here: those of the program, or of the one warp that calls."""
    return "bar.warp.sync 0xffffffff;" if by_warp else "bar.sync 0;"


def _fetch_wait(schedule: str, control: str) -> str:
    """Sets sy_addr and sy_want to the word and the value that the wait at sy_at is for [P1, P4, P5]."""
    return f"""
        mul.wide.s32 sy_addr, sy_at, {_WORD};
        add.s64 sy_addr, {schedule}, sy_addr;
        ld.global.v2.b32 {{sy_word, sy_lag}}, [sy_addr];
        and.b32 sy_want, sy_lag, {(1 << layout.WAIT_COUNT_SHIFT) - 1};
        sub.s32 sy_want, sy_epoch, sy_want;
        shr.u32 sy_lag, sy_lag, {layout.WAIT_COUNT_SHIFT};
        mad.lo.s32 sy_want, sy_want, sy_lag, sy_want;
        mul.wide.s32 sy_addr, sy_word, {_WORD};
        add.s64 sy_addr, {control}, sy_addr;"""


def _poll(over: str) -> str:
    """From label SY_POLL on: to label `over` when what all lanes wait for has come."""
    return f"""
        mov.b32 sy_polls, 0;
        mov.b32 sy_last, 0;
    SY_POLL:
        ld.acquire.sys.global.b32 sy_seen, [sy_addr];
        sub.s32 sy_t, sy_seen, sy_want;
        setp.ge.s32 sy_p, sy_t, 0;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni {over};"""


def _later(control: str, where: str, leave: str = "SY_FENCE", by_lane: bool = False) -> str:
    """After a poll that came too soon: back to SY_POLL, after a pause; or to label `leave`, where there is a fault: what copies
    post from then on is no number of this call [P30]. Once this wait's deadline is over [P28] it makes one, with its words [P29].
    `where`: for them. `by_lane`: lanes wait for different words, and some are not late."""
    named = (
        "sub.s32 sy_t, sy_seen, sy_want; setp.ge.s32 sy_p, sy_t, 0; @sy_p bra SY_NAMED;" if by_lane else ""
    )
    return f"""
        nanosleep.u32 100;
        add.s32 sy_polls, sy_polls, 1;
        and.b32 sy_t, sy_polls, 63;
        setp.ne.s32 sy_p, sy_t, 1;
        @sy_p bra.uni SY_POLL;
        ld.acquire.sys.global.b32 sy_t, {_at(control, layout.FAULT)};
        setp.eq.s32 sy_p, sy_t, 0;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_TIME;
        ld.global.b32 sy_t, {_at(control, layout.FAULT_CALL)};
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p st.global.b32 {_at(control, layout.FAULT_CALL)}, sy_epoch;
        sub.s32 sy_t, sy_epoch, 2;
        atom.relaxed.sys.global.exch.b32 sy_t, {_at(control, layout.PUBLISHED)}, sy_t;
        bra.uni {leave};
    SY_TIME:
        ld.global.b32 sy_t, {_at(control, layout.DEADLINE_MS)};
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p bra.uni SY_POLL;
        mul.hi.u32 sy_left, sy_t, {1_000_000 << (32 - _UNIT)};
        mov.u64 sy_now, %globaltimer;
        shr.u64 sy_now, sy_now, {_UNIT};
        cvt.u32.u64 sy_t, sy_now;
        or.b32 sy_t, sy_t, 1;
        setp.eq.s32 sy_p, sy_last, 0;
        selp.b32 sy_last, sy_t, sy_last, sy_p;
        sub.s32 sy_t, sy_t, sy_last;
        setp.lt.s32 sy_p, sy_t, sy_left;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_POLL;
        {named}
        atom.relaxed.sys.global.cas.b32 sy_t, {_at(control, layout.FAULT_CLAIM)}, 0, {layout.CLAIMING:#x};
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p st.global.b32 {_at(control, layout.FAULT_SEEN)}, sy_seen;
        @sy_p st.global.b32 {_at(control, layout.FAULT_EPOCH)}, sy_want;
        @sy_p st.global.b32 {_at(control, layout.FAULT_WHERE)}, {where};
        @sy_p st.global.b32 {_at(control, layout.FAULT_CALL)}, sy_epoch;
        @sy_p fence.acq_rel.sys;
        sub.s32 sy_lag, sy_word, {layout.FIRST_SIGNAL};
        shr.s32 sy_lag, sy_lag, {layout.SIGNAL_STRIDE.bit_length() - 1};
        add.s32 sy_lag, sy_lag, 1;
        @sy_p atom.relaxed.sys.global.cas.b32 sy_t, {_at(control, layout.FAULT)}, 0, sy_lag;
        @sy_p min.u32 sy_t, sy_t, 1;
        @sy_p sub.s32 sy_t, sy_t, 1;
        @sy_p and.b32 sy_lag, sy_lag, sy_t;
        @sy_p st.global.b32 {_at(control, layout.FAULT_CLAIM)}, sy_lag;
        {"SY_NAMED:" if by_lane else ""}
        bra.uni SY_POLL;"""


def _wait_ptx(
    schedule: str, control: str, slot: str, load_bounds: str, results: str, by_warp: bool = False
) -> str:
    """The PTX of a wait. `by_warp`: one warp alone calls it, else the whole program.

    `schedule`, `control` and `slot` are operands. `load_bounds` changes sy_at and sy_end, the offsets (in words) of the
    first wait and past the last one, where they are not those of the slot; `results` sets the outputs.

    The call's number and the table's head, which the program's end looks at, are fetched along with the slot's record.

    Only the first warp polls, with a pause between polls: the word lies in one slice of the L2 cache, which the peers'
    writes have to pass, too.

    Memory order: [P19, P20].
    The votes make every branch uniform in its warp, so that the warp is whole again for the matrix instructions, and so that
    ptxas knows a tile's coordinates for the warp's: it would issue each bulk copy in a loop over the threads.
    """
    leave_other_warps = (
        ""
        if by_warp
        else """
        mov.u32 sy_t, %tid.x;
        setp.ge.u32 sy_p, sy_t, 32;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_FENCE;"""
    )
    return f"""
    {{
        .reg .pred sy_p;
        .reg .b32 sy_tile_r, sy_at, sy_end, sy_phase_r, sy_word, sy_lag, sy_seen, sy_want, sy_epoch, sy_polls, sy_t, sy_lo, sy_hi, sy_last, sy_left;
        .reg .b64 sy_record, sy_addr, sy_now;
        mul.wide.s32 sy_record, {slot}, {_RECORD};
        add.s64 sy_record, {schedule}, sy_record;
        ld.global.b32 sy_epoch, {_at(control, layout.EPOCH)};
        prefetch.global.L1 [{schedule}];
        ld.global.v4.b32 {{sy_tile_r, sy_at, sy_end, sy_phase_r}}, {_of_slot("sy_record", layout.SLOT_TILE)};
        {load_bounds}
        setp.ge.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_DONE;
        {leave_other_warps}
    SY_WAIT:
        {_fetch_wait(schedule, control)}
        {_poll("SY_NEXT")}
        {_later(control, slot)}
    SY_NEXT:
        add.s32 sy_at, sy_at, {layout.PAIR_WORDS};
        setp.lt.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_WAIT;
    SY_FENCE:
        {_together(by_warp)}
        fence.proxy.async.global;
    SY_DONE:
        {results}
    }}
    """


_PHASE_BOUNDS = f"""
        mad.lo.s32 sy_at, $5, {layout.PHASE_WORDS}, sy_phase_r;
        mul.wide.s32 sy_addr, sy_at, {_WORD};
        add.s64 sy_addr, $2, sy_addr;
        ld.global.v4.b32 {{sy_lo, sy_hi, sy_at, sy_end}}, {_at("sy_addr", layout.PHASE_BEGIN)};
        """


def _acquire(by_warp: bool) -> tl.constexpr:
    return tl.constexpr(_wait_ptx("$1", "$2", "$3", "", "mov.b32 $0, sy_tile_r;", by_warp))


def _acquire_phase(by_warp: bool) -> tl.constexpr:
    results = "mov.b32 $0, sy_lo; mov.b32 $1, sy_hi;"
    return tl.constexpr(_wait_ptx("$2", "$3", "$4", _PHASE_BOUNDS, results, by_warp))


_ACQUIRE = _acquire(by_warp=False)
_ACQUIRE_PHASE = _acquire_phase(by_warp=False)
WAIT_BY_WARP = _acquire(by_warp=True)
WAIT_PHASE_BY_WARP = _acquire_phase(by_warp=True)


def _report(control: str) -> str:
    """One warp: tells the host and, of a fault of its own, the other ranks [P8, P9, P31]. As report_fault does
    (src/runtime/cuda/boundary/boundary.cuh), for calls that have no kernel but their own."""
    words = "\n".join(
        f"""
        ld.global.b32 sy_t, {_at(control, word)};
        st.global.b32 {_at("sy_addr", layout.MIRROR_SEEN + index)}, sy_t;"""
        for index, word in enumerate(
            (layout.FAULT_SEEN, layout.FAULT_EPOCH, layout.FAULT_WHERE, layout.FAULT_CALL)
        )
    )
    return f"""
        bar.warp.sync 0xffffffff;
        mov.u32 sy_t, %laneid;
        setp.ne.s32 sy_p, sy_t, 0;
        @sy_p bra SY_FENCE;
        ld.global.b64 sy_addr, {_at(control, layout.MIRROR)};
        setp.eq.s64 sy_p, sy_addr, 0;
        @sy_p bra SY_FENCE;
        ld.acquire.sys.global.b32 sy_seen, {_at(control, layout.FAULT_CLAIM)};
        {words}
        ld.relaxed.sys.global.b32 sy_word, {_at(control, layout.FAULT)};
        setp.ne.b32 sy_p, sy_seen, 0;
        setp.ne.and.b32 sy_p, sy_seen, {layout.CLAIMING:#x}, sy_p;
        @sy_p mov.b32 sy_word, sy_seen;
        st.release.sys.global.b32 {_at("sy_addr", layout.MIRROR_FAULT)}, sy_word;
        setp.lt.s32 sy_p, sy_word, 0;
        @sy_p bra SY_FENCE;
        ld.global.b32 sy_word, {_at(control, layout.RANK)};
        ld.global.b64 sy_start, {_at(control, layout.FIRST_BLOCK)};
        ld.global.b64 sy_now, {_at(control, layout.NEXT_BLOCK)};
        ld.global.b32 sy_want, {_at(control, layout.NUM_RANKS)};
        or.b32 sy_seen, sy_word, {layout.FAULT_OF_PEER:#x};
        add.s64 sy_addr, {control}, sy_start;
        mov.b32 sy_t, 0;
    SY_TELL:
        setp.eq.s64 sy_p, sy_addr, {control};
        @sy_p bra SY_TOLD;
        atom.relaxed.sys.global.cas.b32 sy_lag, {_at("sy_addr", layout.FAULT)}, 0, sy_seen;
    SY_TOLD:
        add.s64 sy_addr, sy_addr, sy_now;
        add.s32 sy_t, sy_t, 1;
        setp.lt.s32 sy_p, sy_t, sy_want;
        @sy_p bra SY_TELL;"""


# One lane of the first program tells the host that the call has begun [P9], as tell_begun does (boundary.cuh).
_TELL_BEGUN = f"""
        mov.u32 sy_t, %ctaid.x;
        mov.u32 sy_word, %laneid;
        or.b32 sy_t, sy_t, sy_word;
        setp.ne.s32 sy_p, sy_t, 0;
        @sy_p bra SY_TOLD_BEGUN;
        ld.global.b64 sy_addr, {_at("$2", layout.MIRROR)};
        setp.eq.s64 sy_p, sy_addr, 0;
        @sy_p bra SY_TOLD_BEGUN;
        st.relaxed.sys.global.b32 {_at("sy_addr", layout.MIRROR_BEGUN)}, sy_epoch;
    SY_TOLD_BEGUN:
        bar.warp.sync 0xffffffff;"""


# By one warp: until all that the sum's record waits for has come, a wait a lane (32 at most). $3: the call's number. Memory order: as a wait's; each
# lane acquires what it has polled, and the barrier hands that on to the others.
WAIT_SUM_BY_WARP = tl.constexpr(f"""
    {{
        .reg .pred sy_p;
        .reg .b32 sy_at, sy_end, sy_word, sy_lag, sy_seen, sy_want, sy_epoch, sy_polls, sy_t, sy_last, sy_left;
        .reg .b64 sy_addr, sy_now, sy_start;
        mov.b32 sy_epoch, $3;
        {_TELL_BEGUN}
        ld.global.b32 sy_at, {_at("$1", layout.SUM)};
        mul.wide.s32 sy_addr, sy_at, {_WORD};
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {{sy_at, sy_end}}, {_at("sy_addr", layout.SUM_WAITS)};
        setp.ge.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_FENCE;
        mov.u32 sy_t, %laneid;
        mad.lo.s32 sy_at, sy_t, {layout.PAIR_WORDS}, sy_at;
        sub.s32 sy_end, sy_end, {layout.PAIR_WORDS};
        min.s32 sy_at, sy_at, sy_end;
        {_fetch_wait("$1", "$2")}
        {_poll("SY_FENCE")}
        {_later("$2", str(layout.AT_KERNEL_SUM), "SY_REPORT", by_lane=True)}
    SY_REPORT:
        {_report("$2")}
    SY_FENCE:
        bar.warp.sync 0xffffffff;
        mov.b32 $0, 0;
    }}
    """)


# Of the kernel's posts: how many there are, how many programs, and the first one.
_FETCH_KERNEL_POSTS = f"""
        ld.global.v4.b32 {{sy_t, sy_posts, sy_at, sy_programs}}, {_at("$1", layout.NUM_SLOTS)};
        mul.wide.s32 sy_addr, sy_at, {_WORD};
        add.s64 sy_addr, $1, sy_addr;
        setp.gt.s32 sy_some, sy_posts, 0;
        @sy_some ld.global.v2.b32 {{sy_lo, sy_hi}}, [sy_addr];"""


def _kernel_posts(leave: str) -> str:
    """What has been fetched so is posted [P3, P17]; after a fault [P30] it goes to label `leave`."""
    return f"""
        ld.relaxed.sys.global.b32 sy_t, {_at("$2", layout.FAULT)};
        @sy_some fence.acq_rel.sys;
        setp.ne.s32 sy_p, sy_t, 0;
        @sy_p bra {leave};
        @!sy_some bra SY_TOLD;
    SY_POST:
        mov.b64 sy_distance, {{sy_lo, sy_hi}};
        add.s64 sy_distance, $2, sy_distance;
        st.relaxed.sys.global.b32 [sy_distance], sy_epoch;
        add.s64 sy_addr, sy_addr, {_PAIR};
        sub.s32 sy_posts, sy_posts, 1;
        setp.gt.s32 sy_p, sy_posts, 0;
        @sy_p ld.global.v2.b32 {{sy_lo, sy_hi}}, [sy_addr];
        @sy_p bra SY_POST;
    SY_TOLD:"""


# The kernel may have been started beside the one before it in its stream: griddepcontrol.wait (a no-op otherwise) lets it
# end only after that one. The grid's last program waits so, as one is enough: the others leave their multiprocessors to
# the programs that have not started. The call's last program advances the epoch [P1].
def _advance(control: str) -> str:
    """Of the call's last program; from label SY_WAIT_BEFORE on, of the others."""
    return f"""
        griddepcontrol.wait;
        add.s32 sy_epoch, sy_epoch, 1;
        st.global.b32 {_at(control, layout.EPOCH)}, sy_epoch;
        bra SY_DONE;
    SY_WAIT_BEFORE:
        mov.u32 sy_t, %ctaid.x;
        mov.u32 sy_at, %nctaid.x;
        sub.s32 sy_lo, sy_at, sy_t;
        mov.u32 sy_t, %ctaid.y;
        mov.u32 sy_at, %nctaid.y;
        sub.s32 sy_at, sy_at, sy_t;
        max.s32 sy_lo, sy_lo, sy_at;
        mov.u32 sy_t, %ctaid.z;
        mov.u32 sy_at, %nctaid.z;
        sub.s32 sy_at, sy_at, sy_t;
        max.s32 sy_lo, sy_lo, sy_at;
        setp.ne.s32 sy_p, sy_lo, 1;
        @sy_p bra SY_DONE;
        griddepcontrol.wait;
    SY_DONE:"""


# Thread 0 of the last program to end posts [P10, P12]. Its own program's reads are over (the barrier before), the other
# programs' by the acquire-release count. This is the end of every call, so what the posts need is fetched before the count.
def _finish_ptx(thread: str) -> str:
    """`thread`: the register that is 0 in the thread that acts."""
    return f"""
    {{
        .reg .pred sy_p, sy_some;
        .reg .b32 sy_t, sy_old, sy_epoch, sy_posts, sy_programs, sy_at, sy_lo, sy_hi;
        .reg .b64 sy_addr, sy_distance;
        mov.b32 $0, 0;
        mov.u32 sy_t, {thread};
        setp.ne.s32 sy_p, sy_t, 0;
        @sy_p bra SY_DONE;
        ld.global.b32 sy_epoch, {_at("$2", layout.EPOCH)};
        {_FETCH_KERNEL_POSTS}
        mul.lo.s32 sy_t, sy_programs, sy_epoch;
        atom.acq_rel.gpu.global.add.u32 sy_old, {_at("$2", layout.FINISHED)}, 1;
        add.s32 sy_old, sy_old, 1;
        setp.ne.s32 sy_p, sy_old, sy_t;
        @sy_p bra SY_WAIT_BEFORE;
        {_kernel_posts("SY_WAIT_BEFORE")}
        {_advance("$2")}
    }}
    """


_FINISH = tl.constexpr(_finish_ptx("%tid.x"))
FINISH_BY_WARP = tl.constexpr(_finish_ptx("%laneid"))

# The same in two steps, where nobody is told by the end. The count is on its way while the last tile's stores complete: what it
# answers, and how many programs there are, is looked at only in the second step. It orders nothing (relaxed).
COUNT_END_BY_WARP = tl.constexpr(f"""
    {{
        .reg .pred sy_p;
        .reg .b32 sy_t;
        mov.b32 $0, 0;
        mov.b32 $1, 0;
        mov.u32 sy_t, %laneid;
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p ld.global.b32 $1, {_at("$2", layout.NUM_PROGRAMS)};
        @sy_p atom.relaxed.gpu.global.add.u32 $0, {_at("$3", layout.FINISHED)}, 1;
    }}
    """)
FINISH_COUNTED_BY_WARP = tl.constexpr(f"""
    {{
        .reg .pred sy_p;
        .reg .b32 sy_t, sy_old, sy_epoch, sy_at, sy_lo;
        mov.b32 $0, 0;
        mov.u32 sy_t, %laneid;
        setp.ne.s32 sy_p, sy_t, 0;
        @sy_p bra SY_DONE;
        mov.b32 sy_epoch, $2;
        add.s32 sy_old, $3, 1;
        mul.lo.s32 sy_t, $4, sy_epoch;
        setp.ne.s32 sy_p, sy_old, sy_t;
        @sy_p bra SY_WAIT_BEFORE;
        {_advance("$1")}
    }}
    """)

# A program has loaded all that it will: of the $4 times as many programs as end, the last one to say so makes the kernel's
# posts [P15], while others still multiply and store. $3: the call's number, from before the program's end.
LOADED_BY_WARP = tl.constexpr(f"""
    {{
        .reg .pred sy_p, sy_some;
        .reg .b32 sy_t, sy_old, sy_epoch, sy_posts, sy_programs, sy_at, sy_lo, sy_hi;
        .reg .b64 sy_addr, sy_distance;
        mov.b32 $0, 0;
        mov.u32 sy_t, %laneid;
        setp.ne.s32 sy_p, sy_t, 0;
        @sy_p bra SY_DONE;
        mov.b32 sy_epoch, $3;
        {_FETCH_KERNEL_POSTS}
        mul.lo.s32 sy_t, sy_programs, sy_epoch;
        mul.lo.s32 sy_t, sy_t, $4;
        atom.acq_rel.gpu.global.add.u32 sy_old, {_at("$2", layout.LOADED)}, 1;
        add.s32 sy_old, sy_old, 1;
        setp.ne.s32 sy_p, sy_old, sy_t;
        @sy_p bra SY_DONE;
        {_kernel_posts("SY_DONE")}
    SY_DONE:
    }}
    """)


# A tile is stored. Every thread waits for its own TMA stores [P18] (Triton itself waits only until they have read shared
# memory; the completion of a bulk copy is followed by an implicit proxy fence), and the barrier collects all threads'
# stores in thread 0. That one fences once, whatever follows, and adds to the gates [P22]: it needs no answer, and so does
# not stand still (GPU scope, since copy engines read through this GPU's L2 cache, too). Where others are to be told, it
# also counts [P7], and the last one posts [P3, P17]; not after a fault [P30], which whoever failed a wait for what the tile
# rests on has seen before. What the chunk's record says is fetched while the stores
# complete. The votes keep the first warp whole, and branches uniform: see _wait_ptx. A slot below 0 stands for no tile.
def _post_ptx(when: str, told: str, by_warp: bool = False, numbered: bool = False) -> str:
    """`by_warp`: one warp alone calls it, else the whole program. `numbered`: $4 is the call's number. `when`: all slots, or those whose makes_end has the
    bit at_once ("now"), or those without ("later"). `told`: which chunks also count: "all", or the "some" that others
    than streams wait for."""
    leave = {"all": "", "now": "@!sy_p bra.uni SY_DONE;", "later": "@sy_p bra.uni SY_DONE;"}[when]
    unless_told = {"all": "", "some": "@sy_p bra.uni SY_NEXT;"}[told]
    fetch_record = f"""
        mul.wide.s32 sy_addr, sy_at, {_WORD};
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v4.b32 {{sy_word, sy_tiles, sy_post, sy_post_end}}, {_at("sy_addr", layout.MADE_COUNTER)};
        ld.global.v4.b32 {{sy_lo, sy_hi, sy_told, sy_t}}, {_at("sy_addr", layout.MADE_GATES)};
    """
    return f"""
    {{
        .reg .pred sy_p, sy_first, sy_counts, sy_last;
        .reg .b32 sy_t, sy_at, sy_end, sy_word, sy_tiles, sy_post, sy_post_end, sy_old, sy_epoch, sy_lo, sy_hi, sy_told;
        .reg .b64 sy_addr, sy_counter, sy_distance, sy_gates;
        mov.b32 $0, 0;
        setp.lt.s32 sy_p, $3, 0;
        @sy_p bra.uni SY_DONE;
        mul.wide.s32 sy_addr, $3, {_RECORD};
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {{sy_at, sy_end}}, {_of_slot("sy_addr", layout.SLOT_MAKES)};
        and.b32 sy_t, sy_end, {layout.AT_ONCE:#x};
        setp.ne.s32 sy_p, sy_t, 0;
        {leave}
        and.b32 sy_end, sy_end, {0x7FFFFFFF & ~layout.AT_ONCE:#x};
        setp.ge.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_DONE;
        {fetch_record}
        cp.async.bulk.wait_group 0;
        {_together(by_warp)}
        mov.u32 sy_t, {"%laneid" if by_warp else "%tid.x"};
        setp.ge.u32 sy_p, sy_t, 32;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_DONE;
        setp.eq.s32 sy_first, sy_t, 0;
        ld.relaxed.sys.global.b32 sy_t, {_at("$2", layout.FAULT)};
        @sy_first fence.release.gpu;
        setp.eq.and.s32 sy_counts, sy_t, 0, sy_first;
    SY_CHUNK:
        mul.wide.s32 sy_counter, sy_word, {_WORD};
        add.s64 sy_counter, $2, sy_counter;
        mov.b64 sy_gates, {{sy_lo, sy_hi}};
        setp.ne.and.s64 sy_p, sy_gates, 0, sy_first;
        @sy_p red.relaxed.gpu.global.add.u64 {_at("sy_counter", layout.GATE)}, sy_gates;
        setp.eq.s32 sy_p, sy_told, 0;
        {unless_told}
        mov.b32 sy_old, 0;
        @sy_counts atom.relaxed.gpu.global.add.u32 sy_old, [sy_counter], 1;
        add.s32 sy_t, sy_old, 1;
        setp.eq.and.s32 sy_last, sy_t, sy_tiles, sy_counts;
        vote.sync.any.pred sy_p, sy_last, 0xffffffff;
        @!sy_p bra.uni SY_NEXT;
        @sy_last st.relaxed.gpu.global.b32 [sy_counter], 0;
        @sy_last fence.acq_rel.sys;
        {"mov.b32 sy_epoch, $4;" if numbered else f"ld.global.b32 sy_epoch, {_at('$2', layout.EPOCH)};"}
    SY_EACH:
        setp.ge.s32 sy_p, sy_post, sy_post_end;
        @sy_p bra.uni SY_NEXT;
        mul.wide.s32 sy_addr, sy_post, {_WORD};
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {{sy_lo, sy_hi}}, [sy_addr];
        mov.b64 sy_distance, {{sy_lo, sy_hi}};
        add.s64 sy_distance, $2, sy_distance;
        @sy_last st.relaxed.sys.global.b32 [sy_distance], sy_epoch;
        add.s32 sy_post, sy_post, {layout.PAIR_WORDS};
        bra.uni SY_EACH;
    SY_NEXT:
        add.s32 sy_at, sy_at, {layout.MADE_WORDS};
        setp.ge.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_DONE;
        {fetch_record}
        bra.uni SY_CHUNK;
    SY_DONE:
    }}
    """


_POST = tl.constexpr(_post_ptx("all", "some"))
_POST_NOW = tl.constexpr(_post_ptx("now", "some"))
_POST_LATER = tl.constexpr(_post_ptx("later", "some"))
POST_BY_WARP = tl.constexpr(_post_ptx("all", "some", by_warp=True))
POST_NUMBERED_BY_WARP = tl.constexpr(_post_ptx("all", "some", by_warp=True, numbered=True))

# Where a kernel's programs sum, each of them adds to the words of what its tile's chunks post [P5]: nobody waits for an answer, or
# for the last one. First where those are, one a lane (32 at most), or 0: look-ups that need not wait for the tile.
POSTS_BY_WARP = tl.constexpr(f"""
    {{
        .reg .pred sy_p;
        .reg .b32 sy_at, sy_end, sy_post, sy_count, sy_left, sy_lo, sy_hi;
        .reg .b64 sy_addr, sy_word;
        mov.b64 sy_word, 0;
        mov.u32 sy_left, %laneid;
        mul.wide.s32 sy_addr, $3, {_RECORD};
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {{sy_at, sy_end}}, {_of_slot("sy_addr", layout.SLOT_MAKES)};
        and.b32 sy_end, sy_end, {0x7FFFFFFF & ~layout.AT_ONCE:#x};
    SY_CHUNK:
        setp.ge.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_DONE;
        mul.wide.s32 sy_addr, sy_at, {_WORD};
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {{sy_post, sy_count}}, {_at("sy_addr", layout.MADE_POSTS)};
        sub.s32 sy_count, sy_count, sy_post;
        shr.s32 sy_count, sy_count, {layout.PAIR_WORDS.bit_length() - 1};
        mad.lo.s32 sy_post, sy_left, {layout.PAIR_WORDS}, sy_post;
        mul.wide.s32 sy_addr, sy_post, {_WORD};
        add.s64 sy_addr, $1, sy_addr;
        setp.lt.s32 sy_p, sy_left, sy_count;
        setp.ge.and.s32 sy_p, sy_left, 0, sy_p;
        @sy_p ld.global.v2.b32 {{sy_lo, sy_hi}}, [sy_addr];
        @sy_p mov.b64 sy_word, {{sy_lo, sy_hi}};
        @sy_p add.s64 sy_word, $2, sy_word;
        sub.s32 sy_left, sy_left, sy_count;
        add.s32 sy_at, sy_at, {layout.MADE_WORDS};
        bra.uni SY_CHUNK;
    SY_DONE:
        mov.b64 $0, sy_word;
    }}
    """)

# Then, when the tile's bulk stores have been issued: as a post waits and releases, by every lane that has a word.
ADD_BY_WARP = tl.constexpr("""
    {
        .reg .pred sy_p;
        cp.async.bulk.wait_group 0;
        bar.warp.sync 0xffffffff;
        setp.ne.s64 sy_p, $1, 0;
        fence.acq_rel.sys;
        @sy_p red.relaxed.sys.global.add.u32 [$1], 1;
        mov.b32 $0, 0;
    }
    """)
