"""What an emitted kernel calls: take the tile of a slot, wait for its chunks, tell the peers when done.

The layouts of the table (`schedule`) and of the control block (`control`) are drawn in
include/syncopate/emit/table.hpp. Both may be passed as tensors, or as addresses (int64).

On the GPU each function is one block of PTX, run by every thread of the program: the first warp waits, a barrier
holds the others until it is done. Nothing here is pure, so that neither Triton nor ptxas
moves it, and a tile's coordinates follow from its result, so that no load of that tile is issued before its wait.

With TRITON_INTERPRET=1 the same names are plain Python on the interpreter's values.
"""

import triton
import triton.language as tl

__all__ = [
    "SyncopateFault",
    "sy_acquire",
    "sy_acquire_2d",
    "sy_acquire_3d",
    "sy_acquire_phase",
    "sy_all_rows",
    "sy_finish",
    "sy_linear_2d",
    "sy_linear_3d",
    "sy_load_offset",
    "sy_load_row",
    "sy_num_phases",
    "sy_offset",
    "sy_post",
    "sy_post_at_once",
    "sy_post_last",
    "sy_post_previous",
    "sy_range",
    "sy_row",
    "sy_sum",
    "sy_tile",
    "sy_tile_2d",
    "sy_tile_3d",
]


# The rows of a descriptor that spans the heaps of all ranks: where one ends is for the schedule to say.
sy_all_rows = tl.constexpr(2**31 - 1)


class SyncopateFault(RuntimeError):
    """A signal did not come before the deadline, or another wait of the same call has already failed."""


def _wait_ptx(schedule: str, control: str, slot: str, load_bounds: str, results: str) -> str:
    """The PTX of a wait.

    `schedule`, `control` and `slot` are operands. `load_bounds` changes sy_at and sy_end, the offsets (in words) of the
    first wait and past the last one, where they are not those of the slot; `results` sets the outputs.

    The call's number and the table's head, which the program's end looks at, are fetched along with the slot's record.

    Only the first warp polls, with a pause between polls: the word lies in one slice of the L2 cache, which the peers'
    writes have to pass, too.

    Memory order: `ld.acquire.sys` of a word that the writer released at system scope makes all that was written before
    that release visible to the polling threads' generic loads, the barrier hands that on to the other threads, and
    each thread's `fence.proxy.async` extends it to its TMA loads.
    The votes make every branch uniform in its warp, so that the warp is whole again for the matrix instructions, and so that
    ptxas knows a tile's coordinates for the warp's: it would issue each bulk copy in a loop over the threads.
    A deadline is looked at on every 64th poll; whoever finds it over writes the fault words, the first one wins, and
    every later wait of the call then returns at once, so that the kernel ends (with a result that nobody may use).
    """
    return f"""
    {{
        .reg .pred sy_p;
        .reg .b32 sy_tile_r, sy_at, sy_end, sy_phase_r, sy_word, sy_lag, sy_seen, sy_want, sy_epoch, sy_polls, sy_t, sy_lo, sy_hi;
        .reg .b64 sy_record, sy_addr, sy_now, sy_start, sy_limit;
        mul.wide.s32 sy_record, {slot}, 32;
        add.s64 sy_record, {schedule}, sy_record;
        ld.global.b32 sy_epoch, [{control}];
        prefetch.global.L1 [{schedule}];
        ld.global.v4.b32 {{sy_tile_r, sy_at, sy_end, sy_phase_r}}, [sy_record + 64];
        {load_bounds}
        setp.ge.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_DONE;
        mov.u32 sy_t, %tid.x;
        setp.ge.u32 sy_p, sy_t, 32;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_FENCE;
    SY_WAIT:
        mul.wide.s32 sy_addr, sy_at, 4;
        add.s64 sy_addr, {schedule}, sy_addr;
        ld.global.v2.b32 {{sy_word, sy_lag}}, [sy_addr];
        sub.s32 sy_want, sy_epoch, sy_lag;
        mul.wide.s32 sy_addr, sy_word, 4;
        add.s64 sy_addr, {control}, sy_addr;
        mov.b32 sy_polls, 0;
        mov.b64 sy_start, 0;
    SY_POLL:
        ld.acquire.sys.global.b32 sy_seen, [sy_addr];
        sub.s32 sy_t, sy_seen, sy_want;
        setp.ge.s32 sy_p, sy_t, 0;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_NEXT;
        nanosleep.u32 100;
        add.s32 sy_polls, sy_polls, 1;
        and.b32 sy_t, sy_polls, 63;
        setp.ne.s32 sy_p, sy_t, 1;
        @sy_p bra.uni SY_POLL;
        ld.relaxed.sys.global.b32 sy_t, [{control} + 12];
        setp.ne.s32 sy_p, sy_t, 0;
        vote.sync.any.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_FENCE;
        ld.global.b32 sy_t, [{control} + 8];
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p bra.uni SY_POLL;
        mul.wide.u32 sy_limit, sy_t, 1000000;
        mov.u64 sy_now, %globaltimer;
        setp.eq.s64 sy_p, sy_start, 0;
        selp.b64 sy_start, sy_now, sy_start, sy_p;
        sub.s64 sy_now, sy_now, sy_start;
        setp.lt.s64 sy_p, sy_now, sy_limit;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_POLL;
        sub.s32 sy_t, sy_word, 32;
        shr.s32 sy_t, sy_t, 3;
        add.s32 sy_t, sy_t, 1;
        atom.relaxed.sys.global.cas.b32 sy_t, [{control} + 12], 0, sy_t;
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p st.global.b32 [{control} + 16], sy_seen;
        @sy_p st.global.b32 [{control} + 20], sy_want;
        @sy_p st.global.b32 [{control} + 24], {slot};
        bra.uni SY_FENCE;
    SY_NEXT:
        add.s32 sy_at, sy_at, 2;
        setp.lt.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_WAIT;
    SY_FENCE:
        bar.sync 0;
        fence.proxy.async.global;
    SY_DONE:
        {results}
    }}
    """


_ACQUIRE = tl.constexpr(_wait_ptx("$1", "$2", "$3", "", "mov.b32 $0, sy_tile_r;"))

# A phase's pair in the table is {iteration_end, wait_end}; the pair before it, that of the phase before (or of the
# slot), says where its iterations and its waits begin.
_ACQUIRE_PHASE = tl.constexpr(
    _wait_ptx(
        "$2",
        "$3",
        "$4",
        """
        mad.lo.s32 sy_at, $5, 2, sy_phase_r;
        mul.wide.s32 sy_addr, sy_at, 4;
        add.s64 sy_addr, $2, sy_addr;
        ld.global.v2.b32 {sy_lo, sy_at}, [sy_addr + -8];
        ld.global.v2.b32 {sy_hi, sy_end}, [sy_addr];
        """,
        "mov.b32 $0, sy_lo; mov.b32 $1, sy_hi;",
    )
)

# Thread 0 of the last program to end posts. Its own program's reads are over (the barrier before), the other
# programs' by the acquire-release count; the fence and the release at system scope publish that to the peers.
# The kernel may have been started beside the one before it in its stream: griddepcontrol.wait (a no-op otherwise) lets it
# end only after that one. Then the last program advances the epoch, for the next call.
_FINISH = tl.constexpr("""
    {
        .reg .pred sy_p;
        .reg .b32 sy_t, sy_old, sy_epoch, sy_posts, sy_at, sy_lo, sy_hi;
        .reg .b64 sy_addr, sy_distance;
        mov.b32 $0, 0;
        mov.u32 sy_t, %tid.x;
        setp.ne.s32 sy_p, sy_t, 0;
        @sy_p bra SY_DONE;
        ld.global.b32 sy_epoch, [$2];
        ld.global.b32 sy_t, [$1 + 12];
        mul.lo.s32 sy_t, sy_t, sy_epoch;
        atom.acq_rel.gpu.global.add.u32 sy_old, [$2 + 4], 1;
        add.s32 sy_old, sy_old, 1;
        setp.ne.s32 sy_p, sy_old, sy_t;
        @sy_p bra SY_WAIT_BEFORE;
        ld.relaxed.sys.global.b32 sy_t, [$2 + 12];
        setp.ne.s32 sy_p, sy_t, 0;
        @sy_p bra SY_WAIT_BEFORE;
        fence.acq_rel.sys;
        ld.global.b32 sy_posts, [$1 + 4];
        ld.global.b32 sy_at, [$1 + 8];
        mul.wide.s32 sy_addr, sy_at, 4;
        add.s64 sy_addr, $1, sy_addr;
    SY_POST:
        setp.le.s32 sy_p, sy_posts, 0;
        @sy_p bra SY_ADVANCE;
        ld.global.v2.b32 {sy_lo, sy_hi}, [sy_addr];
        mov.b64 sy_distance, {sy_lo, sy_hi};
        add.s64 sy_distance, $2, sy_distance;
        st.relaxed.sys.global.b32 [sy_distance], sy_epoch;
        add.s64 sy_addr, sy_addr, 8;
        sub.s32 sy_posts, sy_posts, 1;
        bra SY_POST;
    SY_ADVANCE:
        griddepcontrol.wait;
        add.s32 sy_epoch, sy_epoch, 1;
        st.global.b32 [$2], sy_epoch;
        bra SY_DONE;
    SY_WAIT_BEFORE:
        griddepcontrol.wait;
    SY_DONE:
    }
    """)


# A tile is stored. Every thread waits until its own TMA stores are complete (Triton itself waits only until they have
# read shared memory; the completion of a bulk copy is followed by an implicit proxy fence), and the barrier collects all
# threads' stores in thread 0. That one fences once, whatever follows, and adds to the gates that streams of this GPU wait
# for: it needs no answer, and so does not stand still (GPU scope, since copy engines read through this GPU's L2 cache,
# too). Where others are to be told, it also counts; the tile that counts last acquires and releases at system scope (one
# fence for all posts), and sets the count back for the next call. What the chunk's record says is fetched while the stores
# complete. The votes keep the first warp whole, and branches uniform: see _wait_ptx. A slot below 0 stands for no tile.
def _post_ptx(when: str, told: str) -> str:
    """`when`: all slots, or those whose makes_end has the bit at_once ("now"), or those without ("later"). `told`: which
    chunks also count: "all", or the "some" that others than streams wait for."""
    leave = {"all": "", "now": "@!sy_p bra.uni SY_DONE;", "later": "@sy_p bra.uni SY_DONE;"}[when]
    unless_told = {"all": "", "some": "@sy_p bra.uni SY_NEXT;"}[told]
    fetch_record = """
        mul.wide.s32 sy_addr, sy_at, 4;
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v4.b32 {sy_word, sy_tiles, sy_post, sy_post_end}, [sy_addr];
        ld.global.v4.b32 {sy_lo, sy_hi, sy_told, sy_t}, [sy_addr + 16];
    """
    return f"""
    {{
        .reg .pred sy_p, sy_first, sy_last;
        .reg .b32 sy_t, sy_at, sy_end, sy_word, sy_tiles, sy_post, sy_post_end, sy_old, sy_epoch, sy_lo, sy_hi, sy_told;
        .reg .b64 sy_addr, sy_counter, sy_distance, sy_gates;
        mov.b32 $0, 0;
        setp.lt.s32 sy_p, $3, 0;
        @sy_p bra.uni SY_DONE;
        mul.wide.s32 sy_addr, $3, 32;
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {{sy_at, sy_end}}, [sy_addr + 80];
        and.b32 sy_t, sy_end, 0x40000000;
        setp.ne.s32 sy_p, sy_t, 0;
        {leave}
        and.b32 sy_end, sy_end, 0x3fffffff;
        setp.ge.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_DONE;
        {fetch_record}
        cp.async.bulk.wait_group 0;
        bar.sync 0;
        mov.u32 sy_t, %tid.x;
        setp.ge.u32 sy_p, sy_t, 32;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_DONE;
        setp.eq.s32 sy_first, sy_t, 0;
        @sy_first fence.release.gpu;
    SY_CHUNK:
        mul.wide.s32 sy_counter, sy_word, 4;
        add.s64 sy_counter, $2, sy_counter;
        mov.b64 sy_gates, {{sy_lo, sy_hi}};
        setp.ne.and.s64 sy_p, sy_gates, 0, sy_first;
        @sy_p red.relaxed.gpu.global.add.u64 [sy_counter + 8], sy_gates;
        setp.eq.s32 sy_p, sy_told, 0;
        {unless_told}
        mov.b32 sy_old, 0;
        @sy_first atom.relaxed.gpu.global.add.u32 sy_old, [sy_counter], 1;
        add.s32 sy_t, sy_old, 1;
        setp.eq.and.s32 sy_last, sy_t, sy_tiles, sy_first;
        vote.sync.any.pred sy_p, sy_last, 0xffffffff;
        @!sy_p bra.uni SY_NEXT;
        @sy_last st.relaxed.gpu.global.b32 [sy_counter], 0;
        @sy_last fence.acq_rel.sys;
        ld.global.b32 sy_epoch, [$2];
    SY_EACH:
        setp.ge.s32 sy_p, sy_post, sy_post_end;
        @sy_p bra.uni SY_NEXT;
        mul.wide.s32 sy_addr, sy_post, 4;
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {{sy_lo, sy_hi}}, [sy_addr];
        mov.b64 sy_distance, {{sy_lo, sy_hi}};
        add.s64 sy_distance, $2, sy_distance;
        @sy_last st.relaxed.sys.global.b32 [sy_distance], sy_epoch;
        add.s32 sy_post, sy_post, 2;
        bra.uni SY_EACH;
    SY_NEXT:
        add.s32 sy_at, sy_at, 8;
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

# Whether what a tile sums has come ($0: 1 or 0). $1: schedule, $2: control, $3: slot, $4: the sum's record. The first warp
# polls until the patience (word 9) is over; if it is, the slot is marked with the epoch, and the other blocks of the same
# tile are late, too, without waiting. A fault makes it late. All threads agree by the barrier's vote, which also hands on
# what the acquiring loads have made visible.
_COME = tl.constexpr("""
    {
        .reg .pred sy_p, sy_in_time;
        .reg .b32 sy_at, sy_end, sy_word, sy_lag, sy_seen, sy_want, sy_epoch, sy_t, sy_patience, sy_sums;
        .reg .b64 sy_addr, sy_late, sy_now, sy_start, sy_limit;
        setp.eq.s32 sy_in_time, 0, 0;
        mov.u32 sy_t, %tid.x;
        setp.ge.u32 sy_p, sy_t, 32;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @sy_p bra.uni SY_TOGETHER;
        ld.global.v2.b32 {sy_sums, sy_patience}, [$1 + 32];
        mad.lo.s32 sy_t, $3, 2, sy_sums;
        mul.wide.s32 sy_late, sy_t, 4;
        add.s64 sy_late, $1, sy_late;
        add.s64 sy_late, sy_late, 4;
        ld.global.b32 sy_epoch, [$2];
        ld.relaxed.gpu.global.b32 sy_t, [sy_late];
        setp.ne.s32 sy_in_time, sy_t, sy_epoch;
        @!sy_in_time bra.uni SY_TOGETHER;
        mul.wide.s32 sy_addr, $4, 4;
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {sy_at, sy_end}, [sy_addr];
        mov.u64 sy_start, %globaltimer;
        cvt.u64.u32 sy_limit, sy_patience;
        add.s64 sy_limit, sy_limit, sy_start;
    SY_WAIT:
        setp.ge.s32 sy_p, sy_at, sy_end;
        @sy_p bra.uni SY_TOGETHER;
        mul.wide.s32 sy_addr, sy_at, 4;
        add.s64 sy_addr, $1, sy_addr;
        ld.global.v2.b32 {sy_word, sy_lag}, [sy_addr];
        sub.s32 sy_want, sy_epoch, sy_lag;
        mul.wide.s32 sy_addr, sy_word, 4;
        add.s64 sy_addr, $2, sy_addr;
    SY_POLL:
        ld.acquire.sys.global.b32 sy_seen, [sy_addr];
        sub.s32 sy_t, sy_seen, sy_want;
        setp.ge.s32 sy_in_time, sy_t, 0;
        vote.sync.all.pred sy_in_time, sy_in_time, 0xffffffff;
        @sy_in_time bra.uni SY_NEXT;
        mov.u64 sy_now, %globaltimer;
        setp.lt.u64 sy_p, sy_now, sy_limit;
        ld.relaxed.sys.global.b32 sy_t, [$2 + 12];
        setp.eq.and.s32 sy_p, sy_t, 0, sy_p;
        vote.sync.all.pred sy_p, sy_p, 0xffffffff;
        @!sy_p bra.uni SY_LATE;
        nanosleep.u32 100;
        bra.uni SY_POLL;
    SY_NEXT:
        add.s32 sy_at, sy_at, 2;
        bra.uni SY_WAIT;
    SY_LATE:
        mov.u32 sy_t, %tid.x;
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p st.relaxed.gpu.global.b32 [sy_late], sy_epoch;
    SY_TOGETHER:
        bar.red.and.pred sy_in_time, 0, sy_in_time;
        selp.b32 $0, 1, 0, sy_in_time;
    }
    """)

# Two neighbours in a row at once, as fp32 in registers: $0, $1 from address $2 + $3 bytes; and back, to $1 + $2, from $3, $4.
_LOAD_PAIR = {
    "bf16": """ld.global.b32 sy_t, [sy_addr]; shl.b32 sy_u, sy_t, 16; and.b32 sy_t, sy_t, 0xffff0000;
               mov.b32 $0, sy_u; mov.b32 $1, sy_t;""",
    "fp16": """ld.global.b32 sy_t, [sy_addr]; mov.b32 {sy_a, sy_b}, sy_t;
               cvt.f32.f16 $0, sy_a; cvt.f32.f16 $1, sy_b;""",
    "fp32": "ld.global.v2.f32 {$0, $1}, [sy_addr];",
}
_STORE_PAIR = {
    "bf16": "cvt.rn.bf16x2.f32 sy_t, $4, $3; st.global.b32 [sy_addr], sy_t;",
    "fp16": "cvt.rn.f16x2.f32 sy_t, $4, $3; st.global.b32 [sy_addr], sy_t;",
    "fp32": "st.global.v2.f32 [sy_addr], {$3, $4};",
}


def _pair_ptx(body: str, base: str, offset: str) -> str:
    return f"""
    {{
        .reg .b32 sy_t, sy_u;
        .reg .b16 sy_a, sy_b;
        .reg .b64 sy_addr;
        mad.wide.s32 sy_addr, {offset}, 1, {base};
        {body}
    }}
    """


_LOAD_BF16, _LOAD_FP16, _LOAD_FP32 = (
    tl.constexpr(_pair_ptx(_LOAD_PAIR[name], "$2", "$3")) for name in ("bf16", "fp16", "fp32")
)
_STORE_BF16, _STORE_FP16, _STORE_FP32 = (
    tl.constexpr(_pair_ptx("mov.b32 $0, 0; " + _STORE_PAIR[name], "$1", "$2"))
    for name in ("bf16", "fp16", "fp32")
)
# A block is summed: the copies that wait for the sum's gate may read it (GPU scope, as for what is made).
_SUMMED = tl.constexpr("""
    {
        .reg .pred sy_p;
        .reg .b32 sy_t;
        bar.sync 0;
        mov.u32 sy_t, %tid.x;
        setp.eq.s32 sy_p, sy_t, 0;
        @sy_p red.release.gpu.global.add.u32 [$1], 1;
        mov.b32 $0, 0;
    }
    """)
# The tile's own stores are complete before others go to the same place.
_STORED = tl.constexpr("cp.async.bulk.wait_group 0; bar.sync 0; mov.b32 $0, 0;")

if not triton.knobs.runtime.interpret:
    sy_range = tl.static_range  # over the places of a tile that is stored several times

    @triton.jit
    def _address(block):
        return block.to(tl.int64, bitcast=False)

    @triton.jit
    def sy_tile(schedule, slot):
        """The tile of `slot` (int32). No wait: for addresses of stores, of tiles that were acquired before."""
        words = _address(schedule).to(tl.pointer_type(tl.int32))
        return tl.load(words + 16 + 8 * slot)

    @triton.jit
    def sy_acquire(schedule, control, slot):
        """The tile of `slot` (int32), once the signals that it waits for have come."""
        return tl.inline_asm_elementwise(
            _ACQUIRE,
            "=r,l,l,r",
            [_address(schedule), _address(control), slot],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def sy_num_phases(schedule, slot):
        """Into how many phases the reduction loop of `slot` is cut (at least 1 in a phased schedule)."""
        words = _address(schedule).to(tl.pointer_type(tl.int32))
        return tl.load(words + tl.load(words + 16 + 8 * slot + 3) - 4)

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
        tl.inline_asm_elementwise(
            _FINISH,
            "=r,l,l",
            [_address(schedule), _address(control)],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def _post(ptx: tl.constexpr, schedule, control, slot):
        tl.inline_asm_elementwise(
            ptx,
            "=r,l,l,r",
            [_address(schedule), _address(control), slot],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )

    @triton.jit
    def _last_slot(schedule):
        slots = tl.load(_address(schedule).to(tl.pointer_type(tl.int32)))
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
        words = _address(schedule).to(tl.pointer_type(tl.int32)) + 16 + 8 * slot + 6
        if copy is not None:
            words = _address(schedule).to(tl.pointer_type(tl.int32)) + tl.load(words) + 2 * copy
        return words

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
        words = _address(schedule).to(tl.pointer_type(tl.int32))
        return words + tl.load(words + 10) + 2 * slot

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
    def _load_pairs(base, offsets, like):
        """As fp32, the elements at these offsets (bytes) and their right neighbours."""
        ptx: tl.constexpr = (
            _LOAD_BF16
            if like.dtype == tl.bfloat16
            else _LOAD_FP16
            if like.dtype == tl.float16
            else _LOAD_FP32
        )
        return tl.inline_asm_elementwise(
            ptx, "=f,=f,l,r", [base, offsets], dtype=(tl.float32, tl.float32), is_pure=True, pack=1
        )

    @triton.jit
    def _store_pairs(base, offsets, left, right, like):
        ptx: tl.constexpr = (
            _STORE_BF16
            if like.dtype == tl.bfloat16
            else _STORE_FP16
            if like.dtype == tl.float16
            else _STORE_FP32
        )
        tl.inline_asm_elementwise(
            ptx, "=r,l,r,f,f", [base, offsets, left, right], dtype=tl.int32, is_pure=False, pack=1
        )

    @triton.jit
    def _sum_block(own, staged, staged_pitch, slots, place, step, to, pitch):
        """Adds to `own`, the contribution number `place`, the others at `staged` (addresses of [0, 0], `step` bytes apart),
        and stores the sum at `to`."""
        # Pairs of columns: in the layout of a product that is what a thread has side by side, and its bytes need not pass
        # through shared memory, of which the kernel has none to spare.
        pairs: tl.constexpr = own.shape[1] // 2
        left, right = tl.split(tl.reshape(own, (own.shape[0], pairs, 2)))
        rows = tl.arange(0, own.shape[0])[:, None]
        columns = tl.arange(0, pairs)[None, :] * (own.dtype.primitive_bitwidth // 4)
        lefts = tl.full(left.shape, -0.0, tl.float32)  # to which the first one is added as it is
        rights = tl.full(left.shape, -0.0, tl.float32)
        for contribution in tl.range(0, slots + 1, num_stages=1):
            if contribution == place:
                lefts += left.to(tl.float32)
                rights += right.to(tl.float32)
            if contribution < slots:
                sent = _load_pairs(staged, rows * staged_pitch + columns, own)
                lefts += sent[0]
                rights += sent[1]
                staged += step
        # The own place may be where the sum goes.
        tl.inline_asm_elementwise(_STORED, "=r,r", [slots], dtype=tl.int32, is_pure=False, pack=1)
        _store_pairs(to, rows * pitch + columns, lefts, rights, own)

    @triton.jit
    def sy_sum(schedule, control, slot, out, pitch, desc, value, row, column):
        """A block of the tile of `slot` is stored through `desc` at [row, column]: adds what other ranks sent for it, as
        fp32 in rank order, and stores the sum in `out` (an address, int64, of [0, 0]; rows `pitch` bytes apart). Does
        nothing where the tile is not summed, or, but for marking it, where something has not come in time.
        """
        words = _address(schedule).to(tl.pointer_type(tl.int32))
        at = tl.load(words + tl.load(words + 8) + 2 * slot)
        if at > 0:
            come = tl.inline_asm_elementwise(
                _COME,
                "=r,l,l,r,r",
                [_address(schedule), _address(control), slot, at],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
            if come > 0:
                own = value.to(desc.dtype)
                width: tl.constexpr = desc.dtype.primitive_bitwidth // 8
                slots = tl.load(words + at + 2)
                place = tl.load(words + at + 3)
                distance = tl.load((words + at + 4).to(tl.pointer_type(tl.int64)))
                step = tl.load((words + at + 6).to(tl.pointer_type(tl.int64)))
                staged_pitch = tl.load(words + at + 8) * width
                # `come` is 1: what is loaded follows from it, so that no load is issued before the wait.
                staged = _address(control) + distance + (come - 1)
                staged += row.to(tl.int64) * staged_pitch + column.to(tl.int64) * width
                to = _address(out) + row.to(tl.int64) * pitch + column.to(tl.int64) * width
                if own.shape[1] > 128:  # totals of half of it: not all fit the registers
                    half: tl.constexpr = own.shape[1] // 2
                    first, second = tl.split(tl.permute(tl.reshape(own, (own.shape[0], 2, half)), (0, 2, 1)))
                    _sum_block(first, staged, staged_pitch, slots, place, step, to, pitch)
                    beside: tl.constexpr = half * width
                    _sum_block(second, staged + beside, staged_pitch, slots, place, step, to + beside, pitch)
                else:
                    _sum_block(own, staged, staged_pitch, slots, place, step, to, pitch)
                gate = tl.load(words + at + 9)
                if gate > 0:
                    tl.inline_asm_elementwise(
                        _SUMMED,
                        "=r,l",
                        [_address(control) + gate.to(tl.int64) * 4],
                        dtype=tl.int32,
                        is_pure=False,
                        pack=1,
                    )

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

else:
    # The interpreter runs the programs of a rank one after another in one thread, so a plain += counts them. Signals
    # are written by other threads and processes: an aligned 4-byte load or store is atomic, and x86 keeps loads in
    # order and stores in order, so that a load serves as an acquire and a store as a release.
    import ctypes
    import time

    import numpy as np
    from triton.runtime import interpreter as _interpreter

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

    def _all_come(table, words, begin, end, patience):
        """Whether the signals of these waits come within `patience` seconds."""
        limit = time.monotonic() + patience
        for at in range(begin, end, 2):
            while _signed(words[table[at]] - _signed(words[_EPOCH] - table[at + 1])) < 0:
                if words[_FAULT] != 0 or time.monotonic() >= limit:
                    return False
                time.sleep(0)
        return True

    def _long(table, at):
        return (table[at] & 0xFFFFFFFF) | (table[at + 1] << 32)

    def _block(address, shape, pitch, dtype):
        """Memory as an array: rows `pitch` bytes apart."""
        rows, columns = shape
        held = (ctypes.c_uint8 * ((rows - 1) * pitch + columns * dtype.itemsize)).from_address(address)
        return np.ndarray(shape, dtype, held, 0, (pitch, dtype.itemsize))

    def _widened(bits, dtype):
        """fp32 of an array of elements, which the interpreter holds as they are, bf16 as their bits."""
        if dtype == tl.bfloat16:
            return (bits.astype(np.uint32) << 16).view(np.float32)
        return bits.astype(np.float32)

    def _narrowed(values, dtype):
        if dtype == tl.bfloat16:  # to nearest, ties to even
            bits = values.view(np.uint32).astype(np.uint64)
            return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        return values.astype(np.float16 if dtype == tl.float16 else np.float32)

    def sy_sum(schedule, control, slot, out, pitch, desc, value, row, column):
        table, words = _words(schedule), _words(control)
        at, late = table[8] + 2 * _number(slot), table[8] + 2 * _number(slot) + 1
        record = table[at]
        if record == 0 or table[late] == words[_EPOCH]:
            return
        if not _all_come(table, words, table[record], table[record + 1], table[9] * 1e-9):
            table[late] = words[_EPOCH]
            return
        own = value.to(desc.dtype)
        dtype, shape = own.dtype, own.handle.data.shape
        element = np.dtype(
            np.uint16 if dtype == tl.bfloat16 else np.float16 if dtype == tl.float16 else np.float32
        )
        slots, place, staged_pitch = (
            table[record + 2],
            table[record + 3],
            table[record + 8] * element.itemsize,
        )
        beside = _number(column) * element.itemsize
        staged = _number(control) + _long(table, record + 4) + _number(row) * staged_pitch + beside
        total = np.full(shape, -0.0, np.float32)
        for contribution in range(slots + 1):
            if contribution == place:
                total = total + _widened(own.handle.data, dtype)
            if contribution < slots:
                sent = _block(staged + contribution * _long(table, record + 6), shape, staged_pitch, element)
                total = total + _widened(sent, dtype)
        to = _number(out) + _number(row) * _number(pitch) + beside
        _block(to, shape, _number(pitch), element)[...] = _narrowed(total, dtype)
        if gate := table[record + 9]:
            words[gate] += 1

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
