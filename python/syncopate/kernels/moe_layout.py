"""Mixture of experts, and rows in groups at all: where they lie, in Triton, for GPUs and for the host's interpreter.

How many rows go to an expert only the call knows. `moe_count` counts and tells every rank; `moe_layout` makes of the counts of
all ranks where each group of rows (source rank, expert) lies, and the slots of the stages after it: their tables hold a record
for each group, with what its tiles wait for and post, which is written once for each tile (include/syncopate/emit/layout.hpp,
"groups"). It is C++'s lay_groups (plan/model/ragged.hpp), on the device. Nothing of it is read by the host.

A rank's heap lies `stride` bytes after that of the rank before, so a peer's place is the own one plus a multiple of that.
"""

import triton
import triton.language as tl

from .._syncopate import layout
from ..language import sy_acquire, sy_finish, sy_num_slots, sy_post

_NUM_SLOTS = tl.constexpr(layout.NUM_SLOTS)
_FIRST_SLOT = tl.constexpr(layout.FIRST_SLOT)
_SLOT_WORDS = tl.constexpr(layout.SLOT_WORDS)
_SLOT_TILE = tl.constexpr(layout.SLOT_TILE)
_SLOT_GROUP = tl.constexpr(layout.SLOT_GROUP)
_SLOT_ROWS = tl.constexpr(layout.SLOT_ROWS)
_SLOT_MAKES = tl.constexpr(layout.SLOT_MAKES)
_GROUPS = tl.constexpr(layout.GROUPS)
_GROUP_HEAD = tl.constexpr(4)  # words before the groups' records
_MADE_WORDS = tl.constexpr(layout.MADE_WORDS)
_MADE_TILES = tl.constexpr(layout.MADE_TILES)
_MADE_GROUPS = tl.constexpr(layout.MADE_GROUPS)
_AT_ONCE = tl.constexpr(layout.AT_ONCE)
# Of the words of `status`: rows over the bound, of the rank to which most come, and ids of all ranks that name no expert.
_OVER = tl.constexpr(0)
_BAD = tl.constexpr(1)
_NO_ROUTE = tl.constexpr(-1)  # an id of what fills a call up: it adds nothing, and is counted nowhere
# Of the words of `seen` behind these (ops/mixture.hpp): in how many calls there were any.
_CALLS_OVER = tl.constexpr(2)
_CALLS_BAD = tl.constexpr(3)


@triton.jit
def _at_rank(ptr, rank, own, stride):
    """Where rank `rank` has what this rank, `own`, has at `ptr`; `stride` in elements."""
    return ptr + (rank - own).to(tl.int64) * stride


@triton.jit
def moe_count(
    ids_ptr, position_ptr, counts_ptr, rank, stride, sy_schedule, sy_control,
    ROUTES: tl.constexpr, E: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of each expert how many of the routes (a token's choice of one of its topk experts) name it, and of each route how many
    before it name the same. Counts [R, E + 1] go to all ranks; the last column counts what names no expert, but for _NO_ROUTE."""
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        expert = sy_acquire(sy_schedule, sy_control, slot) % (E + 1)
        so_far = expert * 0
        route = tl.arange(0, BLOCK)
        coming = tl.load(ids_ptr + route, mask=route < ROUTES, other=0)
        for begin in range(0, ROUTES, BLOCK):
            route = begin + tl.arange(0, BLOCK)
            ids = coming.to(tl.int64)  # those behind are on their way meanwhile
            coming = tl.load(ids_ptr + BLOCK + route, mask=BLOCK + route < ROUTES, other=0)
            named = tl.where((ids < _NO_ROUTE) | (ids >= E), E, ids) == expert
            mine = (named & (route < ROUTES)).to(tl.int32)
            tl.store(position_ptr + route, so_far + tl.cumsum(mine, 0) - mine, mask=mine != 0)
            so_far += tl.sum(mine, 0)
        for peer in range(R):
            there = _at_rank(counts_ptr, peer, rank, stride)
            tl.store(there + rank * (E + 1) + expert, so_far)
        sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def _places(counts_ptr, peer, E: tl.constexpr, EXPERTS: tl.constexpr, BOUND: tl.constexpr, ALIGN: tl.constexpr,
            BE: tl.constexpr, BR: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """Of the groups of rank `peer`, by expert of it and source rank [BE, BR]: where each begins, how many of its rows come; by
    expert where its run begins and how many rows it has; and how many rows do not come."""
    e = tl.arange(0, BE)[:, None]
    s = tl.arange(0, BR)[None, :]
    count = tl.load(counts_ptr + s * (E + 1) + peer * EXPERTS + e, mask=(e < EXPERTS) & (s < R), other=0)
    of_expert = tl.sum(count, 1)
    before = (tl.cumsum(of_expert, 0) - of_expert)[:, None] + tl.cumsum(count, 1) - count
    taken = tl.minimum(count, tl.maximum(BOUND - before, 0))
    rows = tl.sum(taken, 1)
    room = (rows + ALIGN - 1) // ALIGN * ALIGN
    run = tl.cumsum(room, 0) - room
    begin = run[:, None] + tl.cumsum(taken, 1) - taken
    return begin, taken, run, rows, tl.sum(of_expert, 0) - tl.sum(rows, 0)


@triton.jit
def _pick(values, index, at):
    """values[at], of a block that `index` numbers."""
    return tl.sum(tl.where(index == at, values, 0), 0)


@triton.jit
def _make_slots(table_ptr, first, rows, run, index, GROUPS: tl.constexpr, TILE: tl.constexpr, COLUMNS: tl.constexpr,
                BLOCK: tl.constexpr, FROM: tl.constexpr, rank, EXPERTS: tl.constexpr, R: tl.constexpr):  # fmt: skip
    """The slots of a stage, from the records of its groups, whose own numbers begin with `first`. They come in an order of EXPERTS
    by R: the same one of EXPERTS of each of R ranks, from the rank behind `rank` on, then the next one. `rows`, `run`: by place
    in it, which `index` numbers: how many rows a group has, and its first one. A slot's tile is its first row times COLUMNS,
    plus its column. FROM: the program that makes the first record's."""
    tiles = tl.where(index < GROUPS, tl.maximum((rows + TILE - 1) // TILE * COLUMNS, 1), 0)
    total = tl.sum(tiles, 0)
    slots = tl.cumsum(tiles, 0) - tiles
    if tl.program_id(0) == 0:
        tl.store(table_ptr + _NUM_SLOTS, total)
    records = table_ptr + tl.load(table_ptr + _GROUPS) + _GROUP_HEAD
    word = tl.arange(0, _SLOT_WORDS)[None, :]
    programs = tl.num_programs(0)
    for record in range((tl.program_id(0) + programs - FROM % programs) % programs, GROUPS, programs):
        record_ptr = records + _SLOT_WORDS * record
        group = (tl.load(record_ptr + _SLOT_TILE) - first) % GROUPS
        place = group % EXPERTS * R + (group // EXPERTS + R - 1 - rank) % R
        many, slot, row, num = (
            _pick(tiles, index, place), _pick(slots, index, place), _pick(run, index, place), _pick(rows, index, place)
        )  # fmt: skip
        copied = tl.load(record_ptr + word)
        for begin in range(0, many, BLOCK):
            n = begin + tl.arange(0, BLOCK)[:, None]
            down = tl.maximum((num + TILE - 1) // TILE, 1)
            at = n % down * TILE  # the rows of a column first: they share its weights
            made = tl.where(word == _SLOT_TILE, (row + at) * COLUMNS + n // down, copied)
            made = tl.where(word == _SLOT_GROUP, group, made)
            made = tl.where(word == _SLOT_ROWS, tl.minimum(tl.maximum(num - at, 0), TILE), made)
            tl.store(table_ptr + _FIRST_SLOT + _SLOT_WORDS * (slot + n) + word, made, mask=n < many)
        end = tl.load(record_ptr + _SLOT_MAKES + 1) & ~_AT_ONCE
        for chunk in range(tl.load(record_ptr + _SLOT_MAKES), end, _MADE_WORDS):
            of_one = tl.load(table_ptr + chunk + _MADE_GROUPS) == 1
            tl.store(table_ptr + chunk + _MADE_TILES, tl.where(of_one, many, total))


@triton.jit
def moe_layout(
    ids_ptr, position_ptr, counts_ptr, sent_ptr, order_ptr, group_ptr, own_ptr, status_ptr, seen_ptr,
    turn_ptr, dispatch_ptr, up_ptr, down_ptr, rank, sy_schedule, sy_control,
    ROUTES: tl.constexpr, E: tl.constexpr, R: tl.constexpr, EXPERTS: tl.constexpr, BOUND: tl.constexpr,
    TILE: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr,
    BE: tl.constexpr, BR: tl.constexpr, BALL: tl.constexpr, BLOCK: tl.constexpr, SLOTS: tl.constexpr,
    DISPATCHES: tl.constexpr, SENT: tl.constexpr,
):  # fmt: skip
    """Of the counts of all ranks:

    sent_ptr [2, E]    of this rank's group for each expert: where it begins there, how many of its rows come
    group_ptr [E]      where this rank's routes for each expert begin in `order`
    order_ptr [ROUTES] this rank's routes, by expert
    own_ptr [2, E / R] of each expert of this rank: where its rows begin, how many they are
    status_ptr [2]     rows over the bound, of the rank to which most come; ids of all ranks that name no expert
    seen_ptr [4]       of all calls: the most of the first, the sum of the second; in how many there were any of each
    turn_ptr [1]       0: whose turn it is to take a tile of the first product
    the tables of the stages that follow, of which dispatch has SENT rows a slot; UP, DOWN: how many columns of tiles they have (0: there is none)
    """
    for slot in range(tl.program_id(0), sy_num_slots(sy_schedule), tl.num_programs(0)):
        # A tile is not below 0, but only the device knows: no count is loaded before the wait is over.
        counts_ptr += tl.minimum(sy_acquire(sy_schedule, sy_control, slot), 0)
    experts = tl.arange(0, BE)
    sources = tl.arange(0, BR)[None, :]
    every = tl.arange(0, BALL)
    count = tl.load(counts_ptr + rank * (E + 1) + every, mask=every < E, other=0)
    group = tl.cumsum(count, 0) - count
    tl.store(group_ptr + every, group, mask=every < E)
    over = tl.sum(count, 0) * 0
    for peer in range(R):
        begin, taken, run, rows, left = _places(counts_ptr, peer, E, EXPERTS, BOUND, TILE, BE, BR, R)
        over = tl.maximum(over, left)
        place = peer * EXPERTS + experts
        tl.store(sent_ptr + place, tl.sum(tl.where(sources == rank, begin, 0), 1), mask=experts < EXPERTS)
        tl.store(sent_ptr + E + place, tl.sum(tl.where(sources == rank, taken, 0), 1), mask=experts < EXPERTS)
    bad = tl.sum(tl.load(counts_ptr + tl.arange(0, BR) * (E + 1) + E, mask=tl.arange(0, BR) < R, other=0), 0)
    tl.store(status_ptr + _OVER, over)
    tl.store(status_ptr + _BAD, bad)
    begin, taken, run, rows, left = _places(counts_ptr, rank, E, EXPERTS, BOUND, TILE, BE, BR, R)
    tl.store(own_ptr + experts, run, mask=experts < EXPERTS)
    tl.store(own_ptr + EXPERTS + experts, rows, mask=experts < EXPERTS)
    if UP:
        _make_slots(up_ptr, rank * EXPERTS, rows, run, experts, EXPERTS, TILE, UP, SLOTS, 0, 0, EXPERTS, 1)
    if DOWN:
        _make_slots(
            down_ptr, rank * EXPERTS, rows, run, experts, EXPERTS, TILE, DOWN, SLOTS, EXPERTS, 0, EXPERTS, 1
        )
    tl.debug_barrier()
    if DISPATCHES:
        # The first expert of each rank, then the second: an expert's products can begin when all its rows have come. The next
        # rank's first: all ranks sending to one would leave the links to the others idle.
        expert = (rank + 1 + every % R) % R * EXPERTS + every // R
        going = tl.load(sent_ptr + E + expert, mask=every < E, other=0)
        first = tl.load(group_ptr + expert, mask=every < E, other=0)
        _make_slots(
            dispatch_ptr, 0, going, first, every, E, SENT, 1, 8 * SLOTS, 2 * EXPERTS, rank, EXPERTS, R
        )
        if tl.program_id(0) == 0:
            tl.store(turn_ptr, 0)
            tl.atomic_max(seen_ptr + _OVER, over)
            tl.atomic_add(seen_ptr + _BAD, bad)
            tl.atomic_add(seen_ptr + _CALLS_OVER, tl.minimum(over, 1))
            tl.atomic_add(seen_ptr + _CALLS_BAD, tl.minimum(bad, 1))
        for first in range(tl.program_id(0) * BLOCK, ROUTES, tl.num_programs(0) * BLOCK):
            route = first + tl.arange(0, BLOCK)
            ids = tl.load(ids_ptr + route, mask=route < ROUTES, other=-1)
            good = (ids >= 0) & (ids < E)
            at = tl.load(group_ptr + ids, mask=good, other=0) + tl.load(
                position_ptr + route, mask=good, other=0
            )
            tl.store(order_ptr + at, route, mask=good)
    sy_finish(sy_schedule, sy_control)
