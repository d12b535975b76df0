"""The emitted kernels on stock Triton: they compile for sm_90 with the pipelining of the unmodified kernel, and on the
interpreter the device helpers wait, time out and post. No GPU is needed."""

import functools
import json
import os
import re
import subprocess
import textwrap
from pathlib import Path

import goldens
import pytest
from conftest import HUNG, warm_python

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = goldens.folder()
SOURCES = ROOT / "examples"

pytest.importorskip("triton")


# The device helpers need the package's extension module, for the layout, but not its __init__.
ONLY_LANGUAGE = f"""
import sys, types
package = types.ModuleType("syncopate")
package.__path__ = [{str(ROOT / "python" / "syncopate")!r}]
sys.modules["syncopate"] = package
"""


def run_python(code: str, **environment: str) -> str:
    """A fresh interpreter: whether Triton interprets or compiles is decided when it is imported."""
    result = subprocess.run(
        [warm_python(), "-c", ONLY_LANGUAGE + code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=HUNG,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


# ---------------------------------------------------------------------------------------------------------------------
# The interpreter

INTERPRETED = """
import importlib.util, pathlib, tempfile, textwrap, threading, time
import torch, triton
import triton.language as tl
from syncopate._syncopate import layout

globals().update(vars(layout))

def signal(n):
    return FIRST_SIGNAL + SIGNAL_STRIDE * n  # its word of the control block

def record(slot, word=0):
    return FIRST_SLOT + SLOT_WORDS * slot + word

def pairs(items):
    return [word for low, high in items for word in (low, high, *[0] * (PAIR_WORDS - 2))]

def numbers(values):  # of 64 bits
    return pairs(((v & 0xFFFFFFFF) - (2**32 if v & 2**31 else 0), v >> 32) for v in values)

def table(slots, programs, posts=()):
    # slots: (tile, waits, phases), waits: (signal, lag), phases: (end, waits); the layout of emit/layout.hpp
    words = [0] * record(len(slots))
    words[NUM_SLOTS], words[NUM_KERNEL_POSTS], words[NUM_PROGRAMS] = len(slots), len(posts), programs
    ends = {}
    for n, (tile, waits, phases) in enumerate(slots):
        words[record(n, SLOT_TILE)], words[record(n, SLOT_WAITS)] = tile, len(words)
        words += pairs((signal(s), lag) for s, lag in waits)
        words[record(n, SLOT_WAITS) + 1] = len(words)
        for p, (_, waits) in enumerate(phases):
            begin = len(words)
            words += pairs((signal(s), lag) for s, lag in waits)
            ends[n, p] = begin, len(words)
    words[LOOPS] = 1
    for n, (_, _, phases) in enumerate(slots):
        if phases:
            words += [0] * ((-len(words) - PAIR_WORDS) % 4)
            words += pairs([(0, len(phases))])
            words[record(n, SLOT_PHASES)] = len(words)
            before = 0
            for p, (end, _) in enumerate(phases):
                phase = [0] * PHASE_WORDS
                phase[PHASE_BEGIN : PHASE_BEGIN + 2] = before, end
                phase[PHASE_WAITS : PHASE_WAITS + 2] = ends[n, p]
                words, before = words + phase, end
    words[KERNEL_POSTS] = len(words)
    return torch.tensor(words + numbers(posts), dtype=torch.int32)

def with_makes(words, makes, chunks, counter):
    # makes: by slot, which chunks; chunks: (tiles, distances to post to); counter: word of the first counter. A chunk
    # with a negative number of tiles is in a hurry.
    words = words.tolist()
    posts = []
    for tiles, distances in chunks:
        begin = len(words)
        words += numbers(distances)
        posts.append((begin, len(words)))
    words += [0] * (-len(words) % 4)
    for slot, of in enumerate(makes):
        words[record(slot, SLOT_MAKES)] = len(words)
        for chunk in of:
            made = [0] * MADE_WORDS
            made[MADE_COUNTER], made[MADE_TILES] = counter + SIGNAL_STRIDE * chunk, abs(chunks[chunk][0])
            made[MADE_POSTS], made[MADE_POSTS + 1] = posts[chunk]
            made[MADE_GATES] = made[MADE_GATES + 1] = made[MADE_TOLD] = 1
            words += made
        hurry = any(chunks[chunk][0] < 0 for chunk in of)
        words[record(slot, SLOT_MAKES) + 1] = len(words) | (AT_ONCE if hurry else 0)
    return torch.tensor(words, dtype=torch.int32)

def load(text, **words):
    path = pathlib.Path(tempfile.mkdtemp()) / "kernel.py"
    path.write_text("import triton\\nimport triton.language as tl\\nfrom syncopate.language import *\\n\\n" + textwrap.dedent(text.format(**words)))
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel

SIMPLE = '''
@triton.jit
def kernel(out, sy_schedule, sy_control):
    slot = tl.program_id(0)
    tile = sy_acquire(sy_schedule, sy_control, slot)
    tl.store(out + slot, tile + 10 * sy_tile(sy_schedule, slot))
    sy_finish(sy_schedule, sy_control)
'''
control = torch.zeros(128, dtype=torch.int32)
control[EPOCH] = 1
"""


def interpret(code: str) -> str:
    return run_python(INTERPRETED + textwrap.dedent(code), TRITON_INTERPRET="1")


def test_interpreted_slots_take_their_tiles_and_the_last_program_posts():
    interpret("""
        out = torch.zeros(3, dtype=torch.int32)
        schedule = table([(2, [], []), (0, [], []), (1, [], [])], 3, posts=[4 * signal(0), 4 * signal(2)])
        load(SIMPLE)[(3,)](out, schedule, control)
        assert out.tolist() == [22, 0, 11], out
        assert control[FINISHED] == 3 and control[signal(0)] == 1 and control[signal(2)] == 1 and control[signal(1)] == 0
        control[EPOCH] = 2
        load(SIMPLE)[(3,)](out, sy_schedule=schedule, sy_control=control)
        assert control[FINISHED] == 6 and control[signal(0)] == 2
    """)


def test_interpreted_kernels_take_addresses_as_well_as_tensors():
    interpret("""
        out = torch.zeros(2, dtype=torch.int32)
        schedule = table([(1, [], []), (0, [], [])], 2, posts=[4 * signal(0)])
        load(SIMPLE)[(2,)](out, schedule.data_ptr(), control.data_ptr())
        assert out.tolist() == [11, 0] and control[signal(0)] == 1
    """)


def test_interpreted_waits_end_when_the_signal_comes():
    interpret("""
        out = torch.zeros(1, dtype=torch.int32)
        schedule = table([(0, [(0, 0), (1, 1)], [])], 1)
        control[EPOCH] = 5
        control[signal(1)] = 4  # lag 1: enough
        def post():
            time.sleep(0.2)
            control[signal(0)] = 5
        thread = threading.Thread(target=post)
        thread.start()
        begin = time.monotonic()
        load(SIMPLE)[(1,)](out, schedule, control)
        assert time.monotonic() - begin > 0.15
        thread.join()
    """)


def test_interpreted_epochs_wrap_around():
    interpret("""
        out = torch.zeros(1, dtype=torch.int32)
        schedule = table([(0, [(0, 1)], [])], 1, posts=[4 * signal(1)])
        control[EPOCH], control[signal(0)] = -(2**31), 2**31 - 1  # the signal is one call behind, as unsigned numbers
        control[FINISHED] = 2**31 - 1
        load(SIMPLE)[(1,)](out, schedule, control)
        assert control[signal(1)] == -(2**31)
    """)


def test_interpreted_waits_that_time_out_name_the_signal_and_post_nothing():
    interpret("""
        from syncopate.language import SyncopateFault
        out = torch.zeros(2, dtype=torch.int32)
        schedule = table([(0, [], []), (1, [(3, 0)], [])], 2, posts=[4 * signal(0)])
        control[DEADLINE_MS] = 50
        try:
            load(SIMPLE)[(2,)](out, schedule, control)
        except Exception as error:
            fault = error if isinstance(error, SyncopateFault) else error.__cause__
            assert isinstance(fault, SyncopateFault), repr(error)
            assert "signal 3 did not come: slot 1" in str(fault), str(fault)
        else:
            raise AssertionError("no fault")
        faults = [int(control[word]) for word in (FAULT, FAULT_SEEN, FAULT_EPOCH, FAULT_WHERE)]
        assert faults == [4, 0, 1, 1], faults
        assert control[signal(0)] == 0
    """)


def test_interpreted_phases_run_all_iterations_in_order():
    interpret("""
        kernel = load('''
            @triton.jit
            def kernel(out, n, sy_schedule, sy_control):
                slot = tl.program_id(0)
                sy_slot = slot
                slot = sy_acquire(sy_schedule, sy_control, slot)
                at = 0
                for sy_phase in range(sy_num_phases(sy_schedule, sy_slot)):
                    sy_lo, sy_hi = sy_acquire_phase(sy_schedule, sy_control, sy_slot, sy_phase)
                    for k in range(sy_lo, sy_hi):
                        tl.store(out + at, k + 100 * sy_phase)
                        at += 1
                sy_finish(sy_schedule, sy_control)
            ''')
        out = torch.zeros(5, dtype=torch.int32)
        control[signal(1)] = 1
        kernel[(1,)](out, 5, table([(0, [], [(2, []), (3, [(1, 0)]), (5, [])])], 1), control)
        assert out.tolist() == [0, 1, 102, 203, 204], out
    """)


def test_interpreted_posts_count_tiles_and_the_last_one_of_a_chunk_posts():
    interpret("""
        kernel = load('''
            @triton.jit
            def kernel(out, sy_schedule, sy_control):
                slot = tl.program_id(0)
                tile = sy_acquire(sy_schedule, sy_control, slot)
                tl.store(out + tile, tile)
                sy_post(sy_schedule, sy_control, slot)
                if slot == 1:
                    tl.store(out + 3, tl.load(sy_control + {first}) + 10 * tl.load(sy_control + {second}))
                sy_finish(sy_schedule, sy_control)
            ''', first=signal(0), second=signal(1))
        # Chunk 0 is made by slots 0 and 1 and posts to signal 0; chunk 1 by slots 1 and 2, to signals 1 and 2.
        plain = table([(2, [], []), (1, [], []), (0, [], [])], 3)
        schedule = with_makes(plain, [[0], [0, 1], [1]], [(2, [4 * signal(0)]), (2, [4 * signal(1), 4 * signal(2)])], signal(3))
        for call in (1, 2, 3):
            out = torch.zeros(4, dtype=torch.int32)
            control[EPOCH] = call
            kernel[(3,)](out, schedule, control)
            assert out.tolist() == [0, 1, 2, call + 10 * (call - 1)], out  # after slot 1: chunk 0 only
            assert control[signal(0)] == control[signal(1)] == control[signal(2)] == call
            assert control[signal(3)] == control[signal(4)] == 0  # counted anew in the next call
    """)


def test_interpreted_persistent_kernels_post_for_the_tile_before_or_at_once():
    interpret("""
        kernel = load('''
            @triton.jit
            def kernel(seen, sy_schedule, sy_control):
                for slot in range(tl.program_id(0), 3, 1):
                    tile = sy_acquire(sy_schedule, sy_control, slot)
                    sy_post_previous(sy_schedule, sy_control, slot)
                    tl.store(seen + 3 * slot, tl.load(sy_control + {later}))
                    tl.store(seen + 3 * slot + 1, tl.load(sy_control + {at_once}))
                    sy_post_at_once(sy_schedule, sy_control, slot)
                    tl.store(seen + 3 * slot + 2, tl.load(sy_control + {at_once}))
                sy_post_last(sy_schedule, sy_control); sy_finish(sy_schedule, sy_control)
            ''', later=signal(0), at_once=signal(1))
        # Chunk 0 of slots 0 and 2, later; chunk 1 of slot 1, at once.
        plain = table([(n, [], []) for n in range(3)], 1)
        schedule = with_makes(plain, [[0], [1], [0]], [(2, [4 * signal(0)]), (-1, [4 * signal(1)])], signal(2))
        for call in (1, 2):
            seen = torch.zeros(9, dtype=torch.int32)
            control[EPOCH] = call
            kernel[(1,)](seen, schedule, control)
            assert seen.tolist() == [call - 1, call - 1, call - 1] + [call - 1, call - 1, call] + [call - 1, call, call]
            assert control[signal(0)] == control[signal(1)] == call
    """)


def test_interpreted_stores_go_where_the_table_says():
    interpret("""
        kernel = load('''
            @triton.jit
            def kernel(out, sy_schedule, sy_control):
                slot = tl.program_id(0)
                tile = sy_acquire(sy_schedule, sy_control, slot)
                tl.store(out + tile + sy_offset(sy_schedule, slot), sy_row(sy_schedule, slot))
                sy_finish(sy_schedule, sy_control)
            ''')
        schedule = table([(0, [], []), (1, [], [])], 2)
        schedule[record(0, SLOT_STORE)], schedule[record(1, SLOT_STORE)], schedule[record(1, SLOT_STORE) + 1] = 4, -1, -1
        out = torch.zeros(6, dtype=torch.int32)
        kernel[(2,)](out, schedule, control)
        assert out.tolist() == [-1, 0, 0, 0, 4, 0], out
        copies = load('''
            @triton.jit
            def kernel(out, sy_schedule, sy_control):
                slot = tl.program_id(0)
                tile = sy_acquire(sy_schedule, sy_control, slot)
                for sy_copy in sy_range(2): tl.store(out + tile + sy_offset(sy_schedule, slot, sy_copy), 7)
                sy_finish(sy_schedule, sy_control)
            ''')
        schedule = torch.cat([table([(0, [], [])], 1), torch.tensor([1, 0, 3, 0], dtype=torch.int32)])
        schedule[record(0, SLOT_STORE)] = len(schedule) - 4
        out = torch.zeros(6, dtype=torch.int32)
        control[FINISHED] = 0
        copies[(1,)](out, schedule, control)
        assert out.tolist() == [0, 7, 0, 7, 0, 0], out
    """)


def test_interpreted_loads_come_from_where_the_table_says():
    interpret("""
        kernel = load('''
            @triton.jit
            def kernel(out, x, sy_schedule, sy_control):
                slot = tl.program_id(0)
                tile = sy_acquire(sy_schedule, sy_control, slot)
                tl.store(out + tile, tl.load(x + tile + sy_load_offset(sy_schedule, slot, multiple=1)))
                tl.store(out + 2 + tile, sy_load_row(sy_schedule, slot))
                sy_finish(sy_schedule, sy_control)
            ''')
        schedule = torch.cat([table([(0, [], []), (1, [], [])], 2), torch.tensor([3, 0, -1, -1], dtype=torch.int32)])
        schedule[LOADS] = len(schedule) - 4
        out = torch.zeros(4, dtype=torch.int32)
        kernel[(2,)](out, torch.arange(10, 16, dtype=torch.int32), schedule, control)
        assert out.tolist() == [13, 10, 3, -1], out
    """)


def test_interpreted_grids_of_two_and_three_axes_follow_the_linear_id():
    interpret("""
        kernel = load('''
            @triton.jit
            def kernel(out, sy_schedule, sy_control):
                x = tl.program_id(0)
                y = tl.program_id(1)
                slot = sy_linear_2d(x, y)
                x, y = sy_acquire_2d(sy_schedule, sy_control, x, y)
                tl.store(out + slot, 10 * y + x)
                sy_finish(sy_schedule, sy_control)
            ''')
        out = torch.zeros(6, dtype=torch.int32)
        kernel[(3, 2)](out, table([(5 - n, [], []) for n in range(6)], 6), control)
        assert out.tolist() == [12, 11, 10, 2, 1, 0], out
        kernel = load('''
            @triton.jit
            def kernel(out, sy_schedule, sy_control):
                x = tl.program_id(0)
                y = tl.program_id(1)
                z = tl.program_id(2)
                slot = sy_linear_3d(x, y, z)
                x, y, z = sy_acquire_3d(sy_schedule, sy_control, x, y, z)
                tl.store(out + slot, 100 * z + 10 * y + x)
            ''')
        out = torch.zeros(8, dtype=torch.int32)
        kernel[(2, 2, 2)](out, table([(n, [], []) for n in range(8)], 8), control)
        assert out.tolist() == [0, 1, 10, 11, 100, 101, 110, 111], out
    """)


# ---------------------------------------------------------------------------------------------------------------------
# The compiler

COMPILE = """
import importlib.util, json, re, subprocess, tempfile
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource


def measure(path, example, blocks, options):
    spec = importlib.util.spec_from_file_location("example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kernel = module.matmul_kernel
    m, n, k = blocks
    constants = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "NUM_SMS": 132, "PRECISION": "ieee"}
    descriptors = {"a_desc": (m, k), "b_desc": (n, k), "c_desc": (m, n)}
    signature, attributes = {}, {}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    for index, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
        elif name in descriptors or name == "sy_own" and "a_desc" in kernel.arg_names:
            signature[name] = "tensordesc<bf16[%d,%d]>" % descriptors.get(name, descriptors["a_desc"])
        elif name.endswith("_ptr"):
            signature[name] = "*bf16"
        elif name == "sy_own":
            signature[name] = "i64"
        elif name.startswith("sy_"):
            signature[name] = "*i32"
        elif name in ("stride_ak", "stride_bn", "stride_cn"):  # as the launcher specialises a stride of one
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
        if signature[name] in ("*bf16", "*i32", "i32") or name == "sy_own" and signature[name] == "i64":  # and sizes and addresses that 16 divides
            attributes[(index,)] = [["tt.divisibility", 16]]
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", 90, 32),
        options=options,
    )
    ptx, ttgir = compiled.asm["ptx"], compiled.asm["ttgir"]
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "k.ptx").write_text(ptx)
        log = subprocess.run(
            [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", "k.ptx", "-o", "k.o"], cwd=folder, capture_output=True, text=True
        ).stderr
        sass = subprocess.run([tools / "nvdisasm", "-c", "k.o"], cwd=folder, capture_output=True, text=True).stdout
    buffers = re.findall(r"ttg.local_alloc\\b.*?memdesc<(\\d+)x\\d+x\\d+x(?:bf16)", ttgir)
    return {
        "depth": max([int(d) for d in buffers], default=1),
        "pending": max([int(p) for p in re.findall(r"warp_group_dot_wait.*?pendings = (\\d+)", ttgir)], default=0),
        "shared": compiled.metadata.shared,
        "registers": int(re.search(r"Used (\\d+) registers", log).group(1)),
        "spills": sum(int(s) for s in re.findall(r"(\\d+) bytes spill", log)),
        "serialized": "serialized" in log,
        "loops": len(re.findall(r"BRA\\.U\\.ANY", sass)),
        "bulk": len(re.findall(r"UTMALDG", sass)),
        "ptx": ptx,
        "ttgir": ttgir,
    }
"""

SHAPES = {
    "matmul_pointers": ((128, 128, 64), {"num_warps": 8, "num_stages": 3}),
    "matmul_persistent_device_tma": ((128, 256, 64), {"num_warps": 8, "num_stages": 3}),
    "matmul_persistent_host_tma": ((128, 256, 64), {"num_warps": 8, "num_stages": 3}),
}


# Tests of one example share what is compiled, so that they run in one process.
EXAMPLES = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in sorted(SHAPES)]


@functools.cache
def compile_all(example: str) -> dict:
    blocks, options = SHAPES[example]
    paths = {
        "original": SOURCES / f"{example}.py",
        "fused": GOLDEN / f"{example}.py",
        "phased": GOLDEN / f"{example}_phased.py",
        "producer": GOLDEN / f"{example}_producer.py",
        "inline": GOLDEN / f"{example}_inline.py",
        "fetched": GOLDEN / f"{example}_fetched.py",
    }
    if example != "matmul_persistent_device_tma":
        paths["own"] = GOLDEN / f"{example}_own.py"
    said = run_python(
        COMPILE
        + f"""
measured = {{}}
for form, path in { ({form: str(path) for form, path in paths.items()})!r}.items():
    measured[form] = measure(path, {example!r}, {blocks!r}, {options!r})
print(json.dumps(measured))
"""
    )
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("example", EXAMPLES)
def test_emitted_kernels_keep_pipelining_shared_memory_and_registers(example):
    measured = compile_all(example)
    for form, m in measured.items():
        print(example, form, {key: value for key, value in m.items() if key not in ("ttgir", "ptx")})
    original = measured["original"]
    assert original["depth"] > 1, "the unmodified kernel pipelines"
    for form in measured.keys() - {"original"}:
        m = measured[form]
        assert m["depth"] >= original["depth"], form
        assert m["pending"] >= original["pending"], form
        assert m["registers"] < 255 and m["spills"] == 0, form
        if (example, form) == ("matmul_pointers", "phased"):
            # Triton carries blocks of pointers through the outer loop in another layout than the inner loop loads by:
            # twice the registers, and shared memory to convert them once a phase. Pipelining is as before.
            continue
        assert m["shared"] == original["shared"], form
        more = 20 if form == "own" else 16  # a descriptor more
        assert m["registers"] <= original["registers"] + more, form
        assert not m["serialized"], form
        # A branch on the thread's number before a tile's coordinates are there makes ptxas take them for different in each
        # thread, and issue every bulk copy in a loop over the threads.
        assert m["bulk"] >= original["bulk"] and m["loops"] <= original["loops"], form


@pytest.mark.xdist_group("matmul_pointers")
def test_pointers_to_other_ranks_are_still_loaded_and_stored_sixteen_bytes_at_once():
    measured = compile_all("matmul_pointers")
    for form, access in (
        ("inline", r"st\.global\.v4"),
        ("fetched", r"cp\.async\.cg\.shared\.global .*, 0x10,"),
    ):
        wide = len(re.findall(access, measured["original"]["ptx"]))
        assert wide > 0 and len(re.findall(access, measured[form]["ptx"])) == wide, form


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_phase_runs_the_iterations_that_its_acquire_gave(example):
    ttgir = compile_all(example)["phased"]["ttgir"]
    acquire = re.search(r"(%\w+):2 = tt\.elementwise_inline_asm", ttgir)
    assert acquire
    # Not a constant: Triton 3.6 loses a lower bound that an outer loop carries.
    assert re.search(rf"scf\.for %\w+ = {acquire.group(1)}#0 to {acquire.group(1)}#1 ", ttgir)


@pytest.mark.xdist_group("matmul_persistent_host_tma")
def test_a_flattened_tile_loop_stays_flat_and_prefetches_from_the_next_tiles_acquire():
    measured = compile_all("matmul_persistent_host_tma")
    flat, original = measured["fused"]["ttgir"], measured["original"]["ttgir"]
    assert flat.count("scf.for") == original.count("scf.for")
    # Inside the one loop, the coordinates of a TMA load are the results of a branch whose arm acquires.
    loop = flat[flat.rindex("scf.for") :]
    branch = re.search(r"(%\w+):(\d+) = scf\.if .*?\{\n(.*?)\} else \{", loop, re.DOTALL)
    assert branch and "elementwise_inline_asm" in branch.group(3), loop[:2000]
    loads = re.findall(r"async_tma_copy_global_to_local %\w+\[(%\w+)#\d+,", loop)
    assert len(loads) == 2 and set(loads) == {branch.group(1)}, loads


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_post_comes_after_the_tiles_last_store_and_waits_until_that_is_complete(example):
    ptx = compile_all(example)["producer"]["ptx"]
    stores = [
        m.end() for m in re.finditer(r"cp\.async\.bulk\.tensor\.2d\.global\.shared|st\.global\.v4", ptx)
    ]
    posts = [
        m.start() for m in re.finditer(r"cp\.async\.bulk\.wait_group 0", ptx)
    ]  # Triton's own wait is for reads
    assert stores and posts and max(posts) > max(stores)
    # In this order: the stores complete, all threads' are collected, added to the streams' gates, counted, let go at
    # system scope.
    places = [ptx.index(text, min(at for at in posts if at > max(stores))) for text in (
        "bar.sync 0", "fence.release.gpu", "red.relaxed.gpu", "atom.relaxed.gpu", "fence.acq_rel.sys",
        "st.relaxed.sys.global.b32",
    )]  # fmt: skip
    assert places == sorted(places)


# ---------------------------------------------------------------------------------------------------------------------
# One GPU plays a rank whose chunks arrive late


def gpu_is_there() -> bool:
    torch = pytest.importorskip("torch")
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 9


needs_gpu = pytest.mark.skipif("not gpu_is_there()")

ON_GPU = f"""
GOLDEN, SOURCES = pathlib.Path({str(GOLDEN)!r}), pathlib.Path({str(SOURCES)!r})
triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))


def kernel_of(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.matmul_kernel


def launch(path, a, b, c, blocks, **more):
    from triton.tools.tensor_descriptor import TensorDescriptor
    kernel, (m, n, k) = kernel_of(path), blocks
    (M, K), N = a.shape, c.shape[1]
    tiles = triton.cdiv(M, m) * triton.cdiv(N, n)
    arguments = dict(M=M, N=N, K=K, BLOCK_M=m, BLOCK_N=n, BLOCK_K=k, GROUP_M=8, num_warps=8, num_stages=3, **more)
    grid = (tiles,)
    if "NUM_SMS" in kernel.arg_names:
        arguments["NUM_SMS"] = 132
        grid = (min(tiles, 132),)
    if "a_desc" in kernel.arg_names:
        arguments.update(a_desc=TensorDescriptor.from_tensor(a, [m, k]), b_desc=TensorDescriptor.from_tensor(b, [n, k]),
                         c_desc=TensorDescriptor.from_tensor(c, [m, n]))
    else:
        arguments.update(a_ptr=a, b_ptr=b, c_ptr=c)
    if "stride_am" in kernel.arg_names:  # this one takes B as K x N
        arguments.update(stride_am=K, stride_ak=1, stride_bk=1, stride_bn=K, stride_cm=N, stride_cn=1)
    return lambda: kernel[grid](**arguments)


def programs(path, M, N, blocks):
    tiles = triton.cdiv(M, blocks[0]) * triton.cdiv(N, blocks[1])
    return min(tiles, 132) if "NUM_SMS" in kernel_of(path).arg_names else tiles
"""


def on_gpu(code: str) -> str:
    return run_python(INTERPRETED + ON_GPU + textwrap.dedent(code))


@needs_gpu
@pytest.mark.parametrize("form", ["", "_phased"])
@pytest.mark.parametrize("example", sorted(SHAPES))
def test_on_a_gpu_late_chunks_give_the_same_bits(example, form):
    print(
        on_gpu(f"""
        name, form, blocks = {example!r}, {form!r}, {SHAPES[example][0]!r}
        # The late copies are kernels: a grid of one tile per program must leave them some SMs.
        M, N, K = (1024, 1024, 2048) if name == "matmul_pointers" else (2048, 3584, 2048)
        a = torch.randn(M, K, device="cuda").bfloat16()
        b = torch.randn(N, K, device="cuda").bfloat16()
        expected, c = torch.empty(M, N, device="cuda").bfloat16(), torch.empty(M, N, device="cuda").bfloat16()
        launch(SOURCES / (name + ".py"), a, b, expected, blocks)()
        path = GOLDEN / (name + form + ".py")
        tiles = triton.cdiv(M, blocks[0]) * triton.cdiv(N, blocks[1])
        trips, half = K // blocks[2], K // 2
        if form:  # the left half of A comes with signal 0, the right half with signal 1
            slots = [(tiles - 1 - s, [(0, 0)], [(trips // 2, []), (trips, [(1, 0)])]) for s in range(tiles)]
        else:
            slots = [(tiles - 1 - s, [(0, 0), (1, 0)], []) for s in range(tiles)]
        count = programs(path, M, N, blocks)
        schedule = table(slots, count, posts=[4 * signal(2), 4 * signal(3)]).cuda()
        control = torch.zeros(128, dtype=torch.int32, device="cuda")
        arrived = torch.empty_like(a)
        run = launch(path, arrived, b, c, blocks, sy_schedule=schedule, sy_control=control)
        control[DEADLINE_MS] = 10000
        late, main = torch.cuda.Stream(), torch.cuda.Stream()
        for call in range(1, 21):
            arrived.fill_(float("nan"))
            c.fill_(-1)
            control[EPOCH] = call
            torch.cuda.synchronize()
            with torch.cuda.stream(late):
                torch.cuda._sleep(1_000_000 if call % 2 else 0)
                arrived[:, :half].copy_(a[:, :half])
                control[signal(0)].fill_(call)
                torch.cuda._sleep(500_000 if call % 3 else 0)
                arrived[:, half:].copy_(a[:, half:])
                control[signal(1)].fill_(call)
            with torch.cuda.stream(main):
                run()
            torch.cuda.synchronize()
            assert torch.equal(c, expected), (call, (c != expected).sum())
            assert control[FINISHED] == call * count and control[signal(2)] == call and control[signal(3)] == call, control[:64]
            assert control[FAULT] == 0
        """)
    )


@needs_gpu
@pytest.mark.parametrize("example", sorted(SHAPES))
def test_on_a_gpu_a_chunk_that_was_let_go_is_complete(example):
    print(
        on_gpu(f"""
        name, blocks = {example!r}, {SHAPES[example][0]!r}
        M, N, K = (1024, 1024, 512) if name == "matmul_pointers" else (2048, 3584, 512)
        a = torch.randn(M, K, device="cuda").bfloat16()
        b = torch.randn(N, K, device="cuda").bfloat16()
        expected, c = torch.empty(M, N, device="cuda").bfloat16(), torch.empty(M, N, device="cuda").bfloat16()
        launch(SOURCES / (name + ".py"), a, b, expected, blocks)()
        path = GOLDEN / (name + "_producer.py")
        rows, columns = triton.cdiv(M, blocks[0]), triton.cdiv(N, blocks[1])
        tiles = rows * columns
        # A chunk is a row of tiles; with groups of 8 rows the tile id counts rows fastest in a group.
        def row_of(tile):
            group = min(rows - tile // (8 * columns) * 8, 8)
            return tile // (8 * columns) * 8 + (tile % group if name.endswith("host_tma") else tile % (8 * columns) % group)
        order = list(range(tiles - 1, -1, -1))
        plain = table([(tile, [], []) for tile in order], programs(path, M, N, blocks))
        schedule = with_makes(plain, [[row_of(t)] for t in order], [(columns, [4 * signal(r)]) for r in range(rows)],
                              signal(rows)).cuda()
        control = torch.zeros(signal(2 * rows), dtype=torch.int32, device="cuda")
        run = launch(path, a, b, c, blocks, sy_schedule=schedule, sy_control=control)
        copy, late, main = torch.empty_like(c), torch.cuda.Stream(), torch.cuda.Stream()
        seen = torch.zeros(rows, dtype=torch.int32, device="cuda")
        control[EPOCH] = 1
        run()
        torch.cuda.synchronize()
        for call in range(2, 22):
            c.fill_(float("nan"))
            control[EPOCH] = call
            torch.cuda.synchronize()
            with torch.cuda.stream(main):
                run()
            with torch.cuda.stream(late):  # copies beside the kernel what it says is there
                for turn in range(20):
                    seen.copy_(control[signal(0) : signal(rows) : SIGNAL_STRIDE])
                    copy.copy_(c)
                    there = (seen == call).repeat_interleave(blocks[0])[:M]
                    assert not (copy.ne(expected) & there[:, None]).any(), (call, turn)
            torch.cuda.synchronize()
            assert torch.equal(c, expected)
            counters = control[signal(rows) :: SIGNAL_STRIDE]
            assert (counters == 0).all() and (control[signal(0) : signal(rows) : SIGNAL_STRIDE] == call).all()
            gates = [control[signal(rows) + GATE + of :: SIGNAL_STRIDE] for of in (0, 1)]
            assert all((gate == call * columns).all() for gate in gates), "nobody has closed them"
        """)
    )


@needs_gpu
@pytest.mark.parametrize("form", ["", "_phased"])
def test_on_a_gpu_a_signal_that_never_comes_ends_the_kernel_with_its_name(form):
    on_gpu(f"""
        form, blocks = {form!r}, (128, 256, 64)
        path = GOLDEN / ("matmul_persistent_host_tma" + form + ".py")
        a, b, c = (torch.zeros(1024, 1024, device="cuda").bfloat16() for _ in range(3))
        waits, late = ([(1, 0)], [(2, 0)]) if form else ([(1, 0), (2, 0)], [])
        slots = [(s, waits if s >= 3 else [], [(8, []), (16, late if s >= 3 else [])] if form else []) for s in range(32)]
        control = torch.zeros(128, dtype=torch.int32, device="cuda")
        control[EPOCH], control[DEADLINE_MS], control[signal(1)], control[signal(2)] = 7, 200, 7, 5
        schedule = table(slots, 32, posts=[4 * signal(4)]).cuda()
        torch.cuda.synchronize()
        begin = time.monotonic()
        launch(path, a, b, c, blocks, sy_schedule=schedule, sy_control=control)()
        torch.cuda.synchronize()
        seconds = time.monotonic() - begin
        assert control[FAULT] == 3 and control[FAULT_SEEN] == 5 and control[FAULT_EPOCH] == 7 and 3 <= control[FAULT_WHERE] < 32, control[:8]
        assert control[signal(4)] == 0, "a call that failed posts nothing"
        assert seconds < 20, seconds
    """)


@needs_gpu
def test_on_a_gpu_waits_that_are_over_cost_next_to_nothing():
    print(
        on_gpu("""
        blocks = (128, 256, 64)
        M, N, K = 8192, 3584, 8192
        a, b, c = (torch.randn(s, device="cuda").bfloat16() for s in ((M, K), (N, K), (M, N)))
        control = torch.zeros(128, dtype=torch.int32, device="cuda")
        tiles = M // 128 * (N // 256)
        for name in ("matmul_persistent_host_tma", "matmul_persistent_device_tma", "matmul_pointers"):
            if name == "matmul_pointers":
                blocks, tiles = (128, 128, 64), M // 128 * (N // 128)
            times = {}
            times["original"] = triton.testing.do_bench(launch(SOURCES / (name + ".py"), a, b, c, blocks), rep=300)
            for form in ("", "_phased"):
                path = GOLDEN / (name + form + ".py")
                phases = [(64, []), (128, [(1, 0)])] if form else []
                schedule = table([(s, [(0, 0)], phases) for s in range(tiles)], programs(path, M, N, blocks)).cuda()
                run = launch(path, a, b, c, blocks, sy_schedule=schedule, sy_control=control)
                times["fused" + form] = triton.testing.do_bench(run, rep=300)
            print(name, {key: round(1000 * ms) for key, ms in times.items()}, "us")
            assert times["fused"] < 1.1 * times["original"], times
        """)
    )
