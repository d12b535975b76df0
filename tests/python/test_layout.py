"""The layout of the schedule table and of the control block is declared once, in emit/layout.hpp: what Python makes of it
has no numbers of its own. So all of it works as well with a layout in which every word is elsewhere."""

import ast
import json
import re

import pytest
from conftest import ROOT
from test_emit import INTERPRETED, run_python

DECLARED = pytest.importorskip("syncopate._syncopate", reason="the extension module is not built").layout

MOVED = {
    "EPOCH": 6, "FINISHED": 4, "LOADED": 13, "DEADLINE_MS": 7, "FAULT": 11, "FAULT_SEEN": 8, "FAULT_EPOCH": 12, "FAULT_WHERE": 9,
    "FAULT_CALL": 21, "RANK": 5, "MIRROR": 14, "FIRST_BLOCK": 16, "NEXT_BLOCK": 18, "NUM_RANKS": 20, "MIRROR_FAULT": 3, "MIRROR_SEEN": 5, "MIRROR_BEGUN": 10,
    "FAULT_OF_PEER": 1 << 30, "AT_KERNEL_SUM": -18, "SUM": 20, "OTHER": 21, "HEAD_START": 22, "SUM_WAITS": 4, "SUM_ELEMENTS": 6, "SUM_SUMMANDS": 7, "SUM_PLACES": 8,
    "FIRST_SIGNAL": 64, "SIGNAL_STRIDE": 16, "GATE": 6,
    "NUM_SLOTS": 5, "NUM_KERNEL_POSTS": 2, "KERNEL_POSTS": 9, "NUM_PROGRAMS": 7, "TRACE": 12, "TRACE_ENDS": 14,
    "LOADS": 3, "FIRST_SLOT": 24, "PAIR_WORDS": 4, "SLOT_WORDS": 16, "SLOT_TILE": 4, "SLOT_WAITS": 5, "SLOT_PHASES": 7,
    "SLOT_MAKES": 8, "SLOT_STORE": 12, "LOOPS": 16, "GRID": 18, "PHASE_WORDS": 8, "PHASE_BEGIN": 4, "PHASE_WAITS": 6, "MADE_WORDS": 16, "MADE_COUNTER": 4, "MADE_TILES": 5,
    "MADE_POSTS": 6, "MADE_GATES": 8, "MADE_TOLD": 10, "AT_ONCE": 1 << 29, "TRACE_WAIT": 2, "TRACE_START": 4,
    "TRACE_PLACE": 5, "WAIT_COUNT_SHIFT": 10, "OWN_BASE": 1 << 61,
    "FAULT_CLAIM": 22, "PUBLISHED": 24, "CLAIMING": 1 << 30, "MOST_BETWEEN_NS": 250_000_000,
    "GROUPS": 10, "SLOT_GROUP": 14, "SLOT_ROWS": 15, "MADE_GROUPS": 12,
}  # fmt: skip

#: C++ writes the words of a fault where its own layout has them: here that is done by the other one.
USE_MOVED = f"""
import ctypes, types
def raise_fault(block, signal, seen, want, where):
    words = ctypes.POINTER(ctypes.c_int32).from_buffer(ctypes.c_void_p(block))
    at = sys.modules["syncopate._syncopate"].layout
    words[at.FAULT], words[at.FAULT_SEEN], words[at.FAULT_EPOCH], words[at.FAULT_WHERE] = signal + 1, seen, want, where
sys.modules["syncopate._syncopate"] = types.SimpleNamespace(
    layout=types.SimpleNamespace(**{MOVED!r}), raise_fault=raise_fault)
"""

LANGUAGE = ROOT / "python" / "syncopate"


def declared() -> dict[str, int]:
    return {name: value for name, value in vars(DECLARED).items() if name.isupper()}


def test_the_other_layout_has_every_name_and_moves_it():
    assert set(MOVED) == set(declared())
    assert [name for name, value in declared().items() if MOVED[name] == value] == []


def ptx_lines(setup: str) -> list[str]:
    """The lines of all texts of device/ptx.py."""
    print_texts = """
import json
import syncopate.device.ptx as ptx
texts = (v.value for v in vars(ptx).values() if type(v).__name__ == "constexpr")
print(json.dumps([text for text in texts if isinstance(text, str)]))
"""
    texts = json.loads(run_python(setup + print_texts))
    return [line.strip() for text in texts for line in text.splitlines()]


# Numbers in PTX that are no place of the layout: bytes of a word, threads, pauses and polls, nanoseconds, a hint, and a post
# whose address is an operand.
NO_PLACE = [
    re.compile(pattern)
    for pattern in (
        r"mul\.wide\.s32 \w+, \w+, 4;",
        r"setp\.\S+ \w+, \w+, 32;",
        r"vote\.\S+ \w+, \w+, 0xffffffff;",
        r"nanosleep\.u32 100;",
        r"and\.b32 \w+, sy_polls, 63;",
        r"mul\.hi\.u32 sy_left, sy_t, 4096000000;",  # a deadline's milliseconds in units of 2^20 ns
        r"shr\.u64 sy_now, sy_now, 20;",
        r"sub\.s32 sy_t, sy_epoch, 2;",  # calls back [P30]
        r"prefetch\.global\.L1 \[\$\d\];",
        r"bar\.warp\.sync 0xffffffff;",
        r"@sy_p red\.relaxed\.sys\.global\.add\.u32 \[\$1\], 1;",
    )
]


def test_every_place_in_a_ptx_text_comes_from_the_layout():
    here, there = ptx_lines(""), ptx_lines(USE_MOVED)
    same = [line for line, other in zip(here, there, strict=True) if line == other]
    assert len(here) - len(same) > 40

    def holds_a_place(line: str) -> bool:
        # A number by itself, or a block that is read at its begin.
        numbers = set(re.findall(r"(?<![\w.$%])\d\w*|\[\$\d\]", line)) - {"0", "1"}
        return bool(numbers) and not any(pattern.fullmatch(line) for pattern in NO_PLACE)

    assert [line for line in same if holds_a_place(line)] == []


def test_the_interpreted_language_follows_another_layout():
    run_python(
        USE_MOVED
        + INTERPRETED
        + """
from syncopate.language import SyncopateFault
kernel = load('''
    @triton.jit
    def kernel(out, x, sy_schedule, sy_control):
        slot = tl.program_id(0)
        tile = sy_acquire(sy_schedule, sy_control, slot)
        at = 0
        for sy_phase in range(sy_num_phases(sy_schedule, slot)):
            sy_lo, sy_hi = sy_acquire_phase(sy_schedule, sy_control, slot, sy_phase)
            for k in range(sy_lo, sy_hi):
                tl.store(out + at + 3 * sy_tile(sy_schedule, slot), k + 100 * sy_phase)
                at += 1
        tl.store(out + 6 + sy_offset(sy_schedule, slot), tl.load(x + sy_load_offset(sy_schedule, slot)))
        sy_post_previous(sy_schedule, sy_control, slot)
        sy_post_at_once(sy_schedule, sy_control, slot)
        sy_post_last(sy_schedule, sy_control)
        sy_finish(sy_schedule, sy_control)
    ''')
control = torch.zeros(512, dtype=torch.int32)
slots = [(1, [(0, 0)], [(2, []), (3, [(1, 0)])]), (0, [], [(1, []), (3, [(1, 1)])])]
schedule = with_makes(table(slots, 2, posts=[4 * signal(5)]), [[0], [0, 1]], [(2, [4 * signal(3)]), (-1, [4 * signal(4)])], signal(8))
places = numbers([0, 1]), numbers([2, 3])
schedule = torch.cat([schedule, torch.tensor(places[0] + places[1], dtype=torch.int32)])
schedule[LOADS] = len(schedule) - 2 * PAIR_WORDS
for slot in (0, 1):
    at = record(slot, SLOT_STORE)
    schedule[at : at + 2] = torch.tensor([slot, 0], dtype=torch.int32)
for call in (1, 2):
    out = torch.zeros(8, dtype=torch.int32)
    control[EPOCH], control[signal(0)], control[signal(1)] = call, call, call
    kernel[(2,)](out, torch.arange(10, 14, dtype=torch.int32), schedule, control)
    assert out.tolist() == [0, 101, 102, 0, 1, 102, 12, 13], out
    assert [int(control[signal(n)]) for n in (3, 4, 5)] == [call] * 3, control
    assert int(control[FINISHED]) == 2 * call and int(control[signal(8)]) == 0
control[EPOCH], control[DEADLINE_MS] = 3, 20
try:
    kernel[(2,)](out, out, schedule, control)
except Exception as error:
    fault = error if isinstance(error, SyncopateFault) else error.__cause__
    assert "signal 0 did not come: slot 0" in str(fault), repr(error)
else:
    raise AssertionError("no fault")
assert [int(control[word]) for word in (FAULT, FAULT_SEEN, FAULT_EPOCH, FAULT_WHERE)] == [1, 2, 3, 0]
changed = control.nonzero().flatten().tolist()
known = {EPOCH, FINISHED, DEADLINE_MS, FAULT, FAULT_SEEN, FAULT_EPOCH} | {signal(n) for n in (0, 1, 3, 4, 5)}
known |= {signal(n) + GATE + gate for n in (8, 9) for gate in (0, 1)}  # of copies, and of sums
assert set(changed) == known, changed
""",
        TRITON_INTERPRET="1",
    )


def numbers_of(file: str) -> dict[str, set[int]]:
    """By function, the integers above 1 that stand in its code."""
    found: dict[str, set[int]] = {}
    for function in ast.walk(ast.parse((LANGUAGE / file).read_text())):
        if isinstance(function, ast.FunctionDef):
            constants = (node.value for node in ast.walk(function) if isinstance(node, ast.Constant))
            numbers = {value for value in constants if type(value) is int and value > 1}
            if numbers:
                found[function.name] = numbers
    return found


@pytest.mark.parametrize(
    ("file", "known"),
    [
        ("language.py", {}),
        (
            "host/language.py",
            {"_signed": {2, 31, 32}, "_wait_all": {2, 32, 200}, "_post": {2}, "_long": {0xFFFFFFFF, 32}},
        ),
        ("device/traced.py", {"sy_clock": {8}, "_program": {2}}),
    ],
)
def test_a_function_of_the_language_holds_no_number_of_the_layout(file, known):
    """`known`: those that are none, such as the bits of a word."""
    assert numbers_of(file) == known
