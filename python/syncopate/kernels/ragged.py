"""What brings the rows of a ragged plan to a user's own kernel (ops/ragged.cpp), in Triton, for GPUs and for the host's interpreter.

The call brings how many rows this rank has for each expert. `ragged_counts` tells every rank; `ragged_layout` makes of all
counts where groups of rows (source rank, expert) lie, the offsets that the user's kernel reads, and the slots of the
stages after it; `ragged_rows` stores this rank's rows where their experts are. Where what is made of them goes back,
`ragged_back` stores it at the ranks of its rows, and `ragged_take` copies it from there to where the user wants it. Nothing
of it is read by the host.
"""

import triton
import triton.language as tl

from .._syncopate import layout
from ..language import (
    sy_acquire,
    sy_finish,
    sy_group,
    sy_group_rows,
    sy_num_slots,
    sy_post,
    sy_post_at_once,
    sy_post_last,
    sy_post_previous,
    sy_start_next,
)
from .moe_layout import _BAD, _CALLS_BAD, _CALLS_OVER, _OVER, _at_rank, _make_slots, _places
from .moe_rows import store_rows

_NUM_SLOTS = tl.constexpr(layout.NUM_SLOTS)
_FIRST_SLOT = tl.constexpr(layout.FIRST_SLOT)
_SLOT_WORDS = tl.constexpr(layout.SLOT_WORDS)
_SLOT_TILE = tl.constexpr(layout.SLOT_TILE)
_SLOT_WAITS = tl.constexpr(layout.SLOT_WAITS)
_SLOT_GROUP = tl.constexpr(layout.SLOT_GROUP)
_SLOT_ROWS = tl.constexpr(layout.SLOT_ROWS)
_GROUPS = tl.constexpr(layout.GROUPS)
_GROUP_HEAD = tl.constexpr(4)
_MOST = tl.constexpr(
    2**30
)  # rows: sums of it stay within 64 bits, and what all ranks tell of a call within 32


@triton.jit
def ragged_counts(
    given_ptr, counts_ptr, rank, stride, sy_schedule, sy_control, ROWS, E: tl.constexpr, R: tl.constexpr, BALL: tl.constexpr,
):  # fmt: skip
    """This rank's counts [E] to all ranks, as far as it has so many rows; the last column says by how many they are wrong:
    below 0, or more than there are rows."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        first = tl.minimum(sy_acquire(sy_schedule, sy_control, slot), 0)
        every = tl.arange(0, BALL)
        given = tl.load(given_ptr + first + every, mask=every < E, other=0).to(tl.int64)
        most = tl.minimum(tl.maximum(given, 0), _MOST)
        before = tl.cumsum(most, 0) - most
        taken = tl.minimum(most, tl.maximum(ROWS - before, 0))
        wrong = tl.minimum(tl.sum(tl.minimum(tl.abs(given - taken), _MOST), 0), _MOST // R)
        for peer in range(R):
            there = _at_rank(counts_ptr, peer, rank, stride) + rank * (E + 1)
            tl.store(there + every, taken.to(tl.int32), mask=every < E)
            tl.store(there + E, wrong.to(tl.int32))
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def _place_tiles(table_ptr, first, run, rows, expert_ptr, row_ptr, TILES: tl.constexpr, EXPERTS: tl.constexpr,
                 BE: tl.constexpr, BLOCK: tl.constexpr, ORDER_ROWS: tl.constexpr, ORDER_COLUMNS: tl.constexpr,
                 ORDER_APART: tl.constexpr, ORDER_COUNT: tl.constexpr, COUNTS: tl.constexpr,
                 READS_ON: tl.constexpr):  # fmt: skip
    """The slots of the user's kernel, one a tile, in its own order. A tile waits and posts as its group does, an expert's
    or all (`expert_ptr`, below 0: none); one that begins (`row_ptr`) behind the group's `rows` has nothing to wait for.
    ORDER_ROWS: not 0, where tiles are numbered expert after expert (ops/ragged.hpp); COUNTS: there are no others. READS_ON: not 0,
    where tiles read blocks of so many rows: an expert's last one reaches into those behind it, whose waits lie beside its own."""
    records = table_ptr + tl.load(table_ptr + _GROUPS) + _GROUP_HEAD
    word, experts = tl.arange(0, _SLOT_WORDS)[None, :], tl.arange(0, BE)[None, :]
    of_record = (
        tl.load(records + _SLOT_WORDS * experts + _SLOT_TILE, mask=experts < EXPERTS, other=first - 1) - first
    )
    if READS_ON:
        reach = run + (rows + READS_ON - 1) // READS_ON * READS_ON
        here = (of_record == tl.arange(0, BE)[:, None]) & (experts < EXPERTS)
        at_wait = records + _SLOT_WORDS * experts + _SLOT_WAITS
        wait_begins = tl.sum(tl.where(here, tl.load(at_wait, mask=experts < EXPERTS, other=0), 0), 1)
        wait_ends = tl.sum(tl.where(here, tl.load(at_wait + 1, mask=experts < EXPERTS, other=0), 0), 1)
    if ORDER_ROWS:
        ends = tl.cumsum((rows + ORDER_ROWS - 1) // ORDER_ROWS * ORDER_COLUMNS, 0)
        total = tl.max(ends, 0)
    if tl.program_id(0) == 0:
        tl.store(table_ptr + _NUM_SLOTS, total if ORDER_ROWS and COUNTS else TILES)
    for begin in range(tl.program_id(0) * BLOCK, TILES, tl.num_programs(0) * BLOCK):
        tile = begin + tl.arange(0, BLOCK)
        if ORDER_ROWS:
            number = tile // ORDER_APART % ORDER_COUNT
            expert = tl.sum((ends[None, :] <= number[:, None]).to(tl.int32), 1)
            expert = tl.where(number < total, expert, -1)
            row = tile * 0
        else:
            expert = tl.load(expert_ptr + tile, mask=tile < TILES, other=-1)
            row = tl.load(row_ptr + tile, mask=tile < TILES, other=0)
        mine = (of_record == expert[:, None]) & (experts < EXPERTS)
        record = tl.sum(tl.where(mine, experts, 0), 1)
        left = tl.sum(tl.where(experts == expert[:, None], rows[None, :], 0), 1) - row
        named = expert >= 0
        made = tl.load(
            records + _SLOT_WORDS * record[:, None] + word,
            mask=named[:, None] & (word < _SLOT_WORDS),
            other=0,
        )
        if READS_ON:
            until = tl.sum(tl.where(experts == expert[:, None], reach[None, :], 0), 1)
            behind = (experts > expert[:, None]) & (rows[None, :] > 0) & (run[None, :] < until[:, None])
            reads = named[:, None] & (experts < EXPERTS) & ((experts == expert[:, None]) | behind)
            begin_of = tl.min(tl.where(reads, wait_begins[None, :], 2**30), 1)
            end_of = tl.max(tl.where(reads, wait_ends[None, :], 0), 1)
            made = tl.where(named[:, None] & (word == _SLOT_WAITS), begin_of[:, None], made)
            made = tl.where(named[:, None] & (word == _SLOT_WAITS + 1), end_of[:, None], made)
        waits = (word == _SLOT_WAITS) | (word == _SLOT_WAITS + 1)
        made = tl.where(waits & (left <= 0)[:, None], 0, made)
        made = tl.where(word == _SLOT_TILE, tile[:, None], made)
        made = tl.where(word == _SLOT_GROUP, expert[:, None], made)
        made = tl.where(word == _SLOT_ROWS, tl.maximum(left, 0)[:, None], made)
        tl.store(
            table_ptr + _FIRST_SLOT + _SLOT_WORDS * tile[:, None] + word, made, mask=(tile < TILES)[:, None]
        )


@triton.jit
def _tell_blocks(experts_ptr, places_ptr, padded_ptr, run, rows, EXPERTS: tl.constexpr, BOUND: tl.constexpr,
                 TOLD: tl.constexpr, BLOCKS: tl.constexpr, BE: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """Of BLOCKS blocks of TOLD places whose expert each is, and of each place the row there, BOUND: none."""
    blocks = (rows + TOLD - 1) // TOLD
    ends = tl.cumsum(blocks, 0)
    tl.store(padded_ptr, tl.max(ends, 0) * TOLD)
    every = tl.arange(0, BE)[None, :]
    for begin in range(tl.program_id(0) * BLOCK, BLOCKS * TOLD, tl.num_programs(0) * BLOCK):
        place = begin + tl.arange(0, BLOCK)
        inside = place < BLOCKS * TOLD
        block = place // TOLD
        expert = tl.sum((ends[None, :] <= block[:, None]).to(tl.int32), 1)
        mine = every == expert[:, None]
        at = place - tl.sum(tl.where(mine, (ends - blocks)[None, :] * TOLD, 0), 1)
        row = tl.sum(tl.where(mine, run[None, :], 0), 1) + at
        there = (expert < EXPERTS) & (at < tl.sum(tl.where(mine, rows[None, :], 0), 1))
        tl.store(places_ptr + place, tl.where(there, row, BOUND), mask=inside)
        tl.store(
            experts_ptr + block, tl.where(expert < EXPERTS, expert, 0), mask=inside & (place % TOLD == 0)
        )


@triton.jit
def ragged_layout(
    counts_ptr, sent_ptr, group_ptr, offsets_ptr, ends_ptr, sizes_ptr, status_ptr, seen_ptr, rows_ptr, user_ptr, expert_ptr, row_ptr,
    from_ptr, to_ptr, back_ptr, experts_ptr, places_ptr, padded_ptr, rank, sy_schedule, sy_control, E: tl.constexpr,
    R: tl.constexpr, EXPERTS: tl.constexpr, BOUND: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr, BE: tl.constexpr,
    BR: tl.constexpr, BALL: tl.constexpr, SLOTS: tl.constexpr, BACK: tl.constexpr, USERS: tl.constexpr,
    ORDER_ROWS: tl.constexpr, ORDER_COLUMNS: tl.constexpr, ORDER_APART: tl.constexpr, ORDER_COUNT: tl.constexpr,
    COUNTS: tl.constexpr, READS_ON: tl.constexpr, TOLD: tl.constexpr, BLOCKS: tl.constexpr, SENT: tl.constexpr,
):  # fmt: skip
    """Of the counts of all ranks:

    sent_ptr [2, E]          of this rank's group for each expert: where it begins there, how many of its rows come
    group_ptr [E]            where the group begins among the rows that the call brings
    offsets_ptr [E / R + 1]  of each expert of this rank where its rows begin, and the end of the last ones
    ends_ptr [E / R]         and where they end
    sizes_ptr [E / R]        how many they are
    experts_ptr, places_ptr, padded_ptr  TOLD: the same by block of so many places (ops/ragged_told.hpp)
    status_ptr [2]           rows over the bound, of the rank to which most come; by how many all ranks' counts are wrong
    seen_ptr [4]             of all calls: the most of the first, the sum of the second; in how many there were any of each
    from_ptr, to_ptr [E / R, R]  BACK: of each group of this rank's experts where it begins here, and among its source's rows
    the tables of the stages that follow; SENT: rows of a slot of those that come
    """
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        # A tile is not below 0, but only the device knows: no count is loaded before the wait is over.
        counts_ptr += tl.minimum(sy_acquire(sy_schedule, sy_control, slot), 0)
    experts, sources, every = tl.arange(0, BE), tl.arange(0, BR)[None, :], tl.arange(0, BALL)
    count = tl.load(counts_ptr + rank * (E + 1) + every, mask=every < E, other=0)
    group = tl.cumsum(count, 0) - count
    tl.store(group_ptr + every, group, mask=every < E)
    over = tl.sum(count, 0) * 0
    for peer in range(R):
        begin, taken, run, rows, left = _places(counts_ptr, peer, E, EXPERTS, BOUND, 1, BE, BR, R)
        over = tl.maximum(over, left)
        place = peer * EXPERTS + experts
        tl.store(sent_ptr + place, tl.sum(tl.where(sources == rank, begin, 0), 1), mask=experts < EXPERTS)
        tl.store(sent_ptr + E + place, tl.sum(tl.where(sources == rank, taken, 0), 1), mask=experts < EXPERTS)
    bad = tl.sum(tl.load(counts_ptr + tl.arange(0, BR) * (E + 1) + E, mask=tl.arange(0, BR) < R, other=0), 0)
    begin, taken, run, rows, left = _places(counts_ptr, rank, E, EXPERTS, BOUND, 1, BE, BR, R)
    tl.store(offsets_ptr + experts, run, mask=experts < EXPERTS)
    tl.store(offsets_ptr + EXPERTS, tl.sum(rows, 0))
    tl.store(ends_ptr + experts, run + rows, mask=experts < EXPERTS)
    tl.store(sizes_ptr + experts, rows, mask=experts < EXPERTS)
    if TOLD:
        _tell_blocks(experts_ptr, places_ptr, padded_ptr, run, rows, EXPERTS, BOUND, TOLD, BLOCKS, BE, SLOTS)
    tl.store(status_ptr + _OVER, over)
    tl.store(status_ptr + _BAD, bad)
    if tl.program_id(0) == 0:
        tl.atomic_max(seen_ptr + _OVER, over)
        tl.atomic_add(seen_ptr + _BAD, bad)
        tl.atomic_add(seen_ptr + _CALLS_OVER, tl.minimum(over, 1))
        tl.atomic_add(seen_ptr + _CALLS_BAD, tl.minimum(bad, 1))
    if BACK:
        group_of = tl.arange(0, BE)[:, None] * R + sources
        inside = (experts < EXPERTS)[:, None] & (sources < R)
        tl.store(from_ptr + group_of, begin, mask=inside)
        for peer in range(R):
            told = tl.load(counts_ptr + peer * (E + 1) + every, mask=every < E, other=0)
            own = (every >= rank * EXPERTS) & (every < (rank + 1) * EXPERTS)
            tl.store(to_ptr + (every - rank * EXPERTS) * R + peer, tl.cumsum(told, 0) - told, mask=own)
        group_of = tl.reshape(tl.where(inside, group_of, EXPERTS * R), [BE * BR])
        many, first = tl.reshape(taken, [BE * BR]), tl.reshape(begin, [BE * BR])
        _make_slots(
            back_ptr,
            rank * EXPERTS * R,
            many,
            first,
            group_of,
            EXPERTS * R,
            TILE,
            1,
            SLOTS,
            E,
            0,
            EXPERTS * R,
            1,
        )
    # The user's tiles wait for their expert's rows, or, where they are of one group, for all.
    waits = rows if USERS == EXPERTS else tl.where(experts == 0, tl.sum(rows, 0), 0)
    _place_tiles(user_ptr, rank * USERS, run, waits, expert_ptr, row_ptr, TILES, USERS, BE, SLOTS, ORDER_ROWS, ORDER_COLUMNS,
                 ORDER_APART, ORDER_COUNT, COUNTS, READS_ON)  # fmt: skip
    tl.debug_barrier()
    # As moe_layout: the first expert of each rank, the next rank's first.
    expert = (rank + 1 + every % R) % R * EXPERTS + every // R
    going = tl.load(sent_ptr + E + expert, mask=every < E, other=0)
    first = tl.load(group_ptr + expert, mask=every < E, other=0)
    _make_slots(rows_ptr, 0, going, first, every, E, SENT, 1, SLOTS, 0, rank, EXPERTS, R)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def ragged_rows(
    given_ptr, given_more_ptr, group_ptr, sent_ptr, x_ptr, more_ptr, rank, stride, stride_more, sy_schedule, sy_control,
    EXPERTS: tl.constexpr, H: tl.constexpr, MORE: tl.constexpr, LANES: tl.constexpr, COLUMNS: tl.constexpr,
    STARTS_NEXT: tl.constexpr,
):  # fmt: skip
    """Rows of `given` [., H], which lie expert by expert, to where their experts are, and beside them, where MORE is not 0, those of
    `given_more` [., MORE]. As moe_dispatch: STARTS_NEXT: the user's kernel starts beside it. A slot's rows go in parts of LANES."""
    if STARTS_NEXT:
        sy_start_next()
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        first = sy_acquire(sy_schedule, sy_control, slot)
        expert, rows = sy_group(sy_schedule, slot), sy_group_rows(sy_schedule, slot)
        shift = tl.load(sent_ptr + expert) + first - tl.load(group_ptr + expert)
        peer = expert // EXPERTS
        there = _at_rank(x_ptr, peer, rank, stride)
        for part in range(0, rows, LANES):
            lane = part + tl.arange(0, LANES)
            source, row = first + lane, shift + lane
            store_rows(given_ptr, source, there, row, lane, rows, given_ptr, lane, H, COLUMNS, False)
            if MORE:
                more = _at_rank(more_ptr, peer, rank, stride_more)
                store_rows(
                    given_more_ptr, source, more, row, lane, rows, given_ptr, lane, MORE, COLUMNS, False
                )
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def ragged_back(
    made_ptr, from_ptr, to_ptr, y_ptr, rank, stride, sy_schedule, sy_control,
    R: tl.constexpr, H: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Rows of `made` [., H], to the ranks of the rows that they were made of, where those lie as the call brought them. As moe_down,
    a slot is posted when the next one is stored: by then its stores have arrived, for which no program has to stand still."""
    lane = tl.arange(0, TILE)
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        first = sy_acquire(sy_schedule, sy_control, slot)
        group, rows = sy_group(sy_schedule, slot), sy_group_rows(sy_schedule, slot)
        row = tl.load(to_ptr + group) + first - tl.load(from_ptr + group)
        there = _at_rank(y_ptr, group % R, rank, stride)
        sy_post_previous(sy_schedule, sy_control, slot)
        store_rows(made_ptr, first + lane, there, row + lane, lane, rows, made_ptr, lane, H, COLUMNS, False)
        sy_post_at_once(sy_schedule, sy_control, slot)
    sy_post_last(sy_schedule, sy_control)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def ragged_take(
    y_ptr, group_ptr, sent_ptr, counts_ptr, out_ptr, taken_ptr, rank, sy_schedule, sy_control,
    E: tl.constexpr, H: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr, PROGRAMS: tl.constexpr, BALL: tl.constexpr,
):  # fmt: skip
    """What was made of this rank's rows, to `out` [., H]; zeros for rows that were left out as over the bound."""
    every, lane = tl.arange(0, BALL)[None, :], tl.arange(0, TILE)
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        part = sy_acquire(sy_schedule, sy_control, slot) % PROGRAMS
        group = tl.load(group_ptr + every, mask=every < E, other=0)
        end = group + tl.load(sent_ptr + E + every, mask=every < E, other=0)
        rows = tl.sum(tl.load(counts_ptr + rank * (E + 1) + every, mask=every < E, other=0))
        for first in range(part * TILE, rows, PROGRAMS * TILE):
            row = first + lane
            came = tl.sum(((row[:, None] >= group) & (row[:, None] < end)).to(tl.int32), 1) > 0
            at = row.to(tl.int64)[:, None] * H
            for begin in range(0, H, COLUMNS):
                column = begin + tl.arange(0, COLUMNS)[None, :]
                inside = (row < rows)[:, None] & (column < H)
                value = tl.load(y_ptr + at + column, mask=inside & came[:, None], other=0.0)
                tl.store(out_ptr + at + column, value, mask=inside)
        tl.store(taken_ptr + rank * PROGRAMS + part, 1)
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


#: Before the user's kernel, as ops/ragged.cpp has them.
STAGES = [ragged_counts, ragged_layout, ragged_rows]
#: Behind it, where what it makes goes back.
BACK = [ragged_back, ragged_take]


def options_of(kernel, apart):
    """How one of these is compiled. `apart`: few programs send, on multiprocessors of their own; else two of 80 registers a thread
    leave most of one to the user's kernel."""
    if kernel is not ragged_rows:
        return {"num_warps": 4, "num_stages": 2}
    return {"num_warps": 16} if apart else {"num_warps": 4, "num_stages": 2, "maxnreg": 80}
