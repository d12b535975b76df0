"""Memory that is given back and taken again, and bundles, on real GPUs, one process each:

    torchrun --nproc-per-node 2 tests/gpu/check_bundle.py [SECTION …]

Inputs are small integers, of which sums are exact. See SECTIONS at the end.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT / "tests" / "python"))

from c_inside import Device, PrepareConfig, Tensor  # noqa: E402
from sections import expect, ours, rank, run, size  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.group import of_process_group  # noqa: E402
from syncopate.ops.mixture_function import kind_of  # noqa: E402
from syncopate.strategy import Strategy  # noqa: E402
from torch_served import CommConfig  # noqa: E402

COMMAND = ROOT / "build" / "bin" / "syncopate"


def integers(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(-2, 3, shape, device="cuda", generator=generator).to(torch.bfloat16)


def release() -> None:
    """A captured graph replays after its group's memory was away, at the same addresses; the memory was free meanwhile."""
    group = of_process_group(None, "cuda")
    m, n, k = 1024, 1024, 2048
    kinds = (ops.AllGatherMatmul, ops.MatmulReduceScatter, ops.MatmulAllReduce)
    operators = [ours(kind, m, n, k, torch.bfloat16, None) for kind in kinds]
    calls = []
    for index, op in enumerate(operators):
        x = integers(*op.shapes(rank())["x"], seed=10 * index + rank())
        w = integers(*op.shapes(rank())["w"], seed=10 * index + 5)
        y = op.empty(op.out_rows, op.n)
        op(x, w, y)
        calls.append((op, x, w, y))
    torch.cuda.synchronize()
    wanted = [y.clone() for *_, y in calls]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for op, x, w, y in calls:
            op(x, w, y)
    for round in range(3):
        for *_, y in calls:
            y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        for (op, *_, y), right in zip(calls, wanted, strict=True):
            expect(torch.equal(y, right), f"{op.name} replayed, round {round}")
        used, _ = group.memory()
        dist.barrier()  # the first one makes NCCL's communicator, of some 450 MB
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        given = group.release()
        dist.barrier()
        freed = torch.cuda.mem_get_info()[0] - before
        expect(given == used > 0, f"{given} of {used} bytes released")
        expect(freed >= given, f"{freed} bytes are free that were not, of {given} released")
        try:
            calls[0][0](*calls[0][1:])
            expect(False, "a call while the memory is away is refused")
        except Exception as error:  # noqa: BLE001
            expect("released" in str(error), f"the error of a call while the memory is away: {error}")
        expect(group.restore() == given, "what was released is restored")
        dist.barrier()
    for op, x, w, y in calls:
        y.fill_(float("nan"))
        op(x, w, y)
        op.check()
    for (op, *_, y), right in zip(calls, wanted, strict=True):
        expect(torch.equal(y, right), f"{op.name} called afterwards")
        op.close()


SPECS = {
    "ag": "all_gather_matmul:N=3584,K=8192 --rows 64,1024 --w-transposed",
    "rs": "matmul_reduce_scatter:N=8192,K=3584 --rows 64,1024,4096",
    "ar": "matmul_all_reduce:N=8192,K=3584 --rows 64,1024",
    "a2a": "matmul_all_to_all:N=4096,K=4096 --rows 1024",
    "a2am": "all_to_all_matmul:N=4096,K=4096 --rows 1024",
    "moe": "moe:E=32,topk=4,H=1024,F=512 --rows 64,1024",
    "moe_gluon": 'moe:E=32,topk=4,H=1024,F=512 --rows 1024 --strategy {"kernel":"gluon"}',
    "moe_tensor": "moe:E=16,topk=2,H=512,F=512,parallel=tensor --rows 32,512 --int32-ids",
    "moe_row": "moe:E=16,topk=2,H=512,F=512,dtype=fp8e4m3,scales=row --rows 32,512",
    "moe_block": "moe:E=16,topk=2,H=512,F=512,dtype=fp8e4m3,scales=block --rows 32,512 --int32-ids",
    "moe_row_tensor": "moe:E=16,topk=2,H=512,F=512,dtype=fp8e4m3,scales=row,parallel=tensor --rows 32,512",
    "moe_block_tensor": "moe:E=16,topk=2,H=512,F=1024,dtype=fp8e4m3,scales=block,parallel=tensor --rows 32,512",
}


def bundles() -> None:
    """Compiled ahead, run by C++ alone in one process with a thread for each GPU, also for rows that were never seen."""
    if rank() == 0:
        with tempfile.TemporaryDirectory() as folder:
            for name, spec in SPECS.items():
                file = str(Path(folder) / f"{name}.sybundle")
                env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
                words = ["compile", *spec.split(), "--ranks", str(size()), "-o", file]
                made = subprocess.run([COMMAND, *words], env=env, capture_output=True, text=True)
                expect(made.returncode == 0, f"compile {spec}: {made.stderr}")
                # Kernels of one process that wait for each other need a GPU each.
                if torch.cuda.device_count() < size():
                    continue
                ran = subprocess.run(
                    [COMMAND, "bundle", "run", file, "--check"], env=env, capture_output=True, text=True
                )
                print(ran.stdout, end="", flush=True)
                expect(ran.returncode == 0, f"bundle run {spec}: {ran.stderr}")
    # A barrier by NCCL would spin on a GPU that the runs need.
    store = dist.distributed_c10d._get_default_store()
    store.set("bundles", "over") if rank() == 0 else store.wait(["bundles"])


def dl_tensor(tensor: torch.Tensor) -> Tensor:
    """As the C API takes it; its shape lives as long as this process."""
    shape = (ctypes.c_int64 * tensor.dim())(*tensor.shape)
    SHAPES.append(shape)
    code, bits = {
        torch.bfloat16: (4, 16),
        torch.float32: (2, 32),
        torch.int32: (0, 32),
        torch.int64: (0, 64),
        torch.float8_e4m3fn: (10, 8),
    }[tensor.dtype]
    device = Device(2, tensor.device.index)
    return Tensor(tensor.data_ptr(), device, tensor.dim(), code, bits, 1, ctypes.addressof(shape))


SHAPES: list[ctypes.Array[ctypes.c_int64]] = []


TOKENS, TOPK, HIDDEN, INNER = 512, 4, 1024, 512
#: By name: kernel, parallel, scales, dtype of ids.
MIXTURES = {
    "plain": ("plain", "expert", "", torch.int64),
    "gluon": ("gluon", "expert", "", torch.int64),
    "tensor": ("plain", "tensor", "", torch.int32),
    "row": ("plain", "expert", "row", torch.int32),
    "block": ("plain", "expert", "block", torch.int64),
    "row_tensor": ("plain", "tensor", "row", torch.int64),
    "block_tensor": ("plain", "tensor", "block", torch.int64),
}


def operands_of(theirs: Any) -> tuple[dict[str, torch.Tensor], tuple[torch.Tensor, ...]]:
    """x, w1 and w2 as the operator takes them, and the scales of fp8."""
    own, h, f = theirs.own_experts, theirs.hidden, theirs.inner
    x = integers(TOKENS, h, seed=rank())
    if not theirs.scales:
        w1 = integers(own, h, 2 * f, seed=100 + rank())
        return {"x": x, "w1": w1, "w2": integers(own, f, h, seed=200 + rank())}, ()
    w1, w2 = (integers(own, *of, seed=s + rank()) for of, s in (((2 * f, h), 100), ((h, f), 200)))
    fp8 = {name: one.to(theirs.dtype) for name, one in {"x": x, "w1": w1, "w2": w2}.items()}
    scales = (torch.rand(*shape, device="cuda") / 8 + 0.01 for shape in theirs.scale_shapes().values())
    return fp8, tuple(scales)


def mixtures() -> None:
    """Each kind of mixture from a bundle, called by the C API, makes the bits of sy.ops.moe by the same strategy; also replayed with
    other routings, of which one has routes that fill up."""
    c = ctypes.CDLL(str(ROOT / "build" / "libsyncopate.so"))
    c.sy_last_error.restype = ctypes.c_char_p

    def done(code: int) -> None:
        if code:
            raise RuntimeError(c.sy_last_error().decode())

    config = CommConfig(ctypes.sizeof(CommConfig), rank(), size(), 1, torch.cuda.current_device())
    comm = ctypes.c_void_p()
    done(c.sy_comm_create(ctypes.byref(config), ctypes.byref(comm)))
    for name in MIXTURES:
        mixture(name, c, comm, done)
    c.sy_comm_destroy(comm)


def mixture(name: str, c: Any, comm: Any, done: Callable[[int], None]) -> None:
    kernel, parallel, scales, of_ids = MIXTURES[name]
    experts, store = 8 * size(), dist.distributed_c10d._get_default_store()
    dtype = torch.float8_e4m3fn if scales else torch.bfloat16
    options = {"scales": scales} if scales else {}
    theirs = kind_of(parallel, bool(scales))(
        TOKENS, experts, TOPK, HIDDEN, INNER * size() if parallel == "tensor" else INNER, dtype, None,
        strategy=Strategy(kernel=kernel), **options,
    )  # fmt: skip
    given, factors = operands_of(theirs)
    weights = torch.rand(TOKENS, TOPK, device="cuda")
    file = Path(tempfile.gettempdir()) / f"check_{os.environ['MASTER_PORT']}_{name}.sybundle"
    if rank() == 0:
        spec, _, _ = theirs.spec.partition(",ranks=")
        words = [
            spec,
            "--rows",
            str(TOKENS),
            "--ranks",
            str(size()),
            "--strategy",
            f'{{"kernel":"{kernel}"}}',
        ]
        words += ["--int32-ids"] if of_ids == torch.int32 else []
        made = subprocess.run([COMMAND, "compile", *words, "-o", file], capture_output=True, text=True)
        expect(made.returncode == 0, f"compile {spec}: {made.stderr}")
        store.set(f"moe_{name}", "there")
    store.wait([f"moe_{name}"])
    bundle, op = ctypes.c_void_p(), ctypes.c_void_p()
    done(c.sy_bundle_open(str(file).encode(), ctypes.byref(bundle)))
    prepare = PrepareConfig(ctypes.sizeof(PrepareConfig), TOKENS)
    done(c.sy_prepare(comm, bundle, ctypes.byref(prepare), ctypes.byref(op)))
    ids = torch.empty(TOKENS, TOPK, dtype=of_ids, device="cuda")
    y = torch.empty(TOKENS, HIDDEN, dtype=torch.bfloat16, device="cuda")
    tensors = [dl_tensor(one) for one in (given["x"], ids, weights, given["w1"], given["w2"], *factors, y)]
    pointers = (ctypes.POINTER(Tensor) * len(tensors))(*map(ctypes.pointer, tensors))

    def call() -> None:
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        done(c.sy_run(op, pointers, len(tensors), stream))

    ids.random_(experts)
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    # Of fp8 K lies last.
    w1, w2 = (given[w].transpose(1, 2) if scales else given[w] for w in ("w1", "w2"))
    for routing in range(20):
        ids.random_(experts)
        if routing % 4 == 3:
            ids[TOKENS // 2 :] = -1
        y.fill_(float("nan"))
        graph.replay()
        right, *_ = theirs.run(given["x"], ids, weights, w1, w2, *((factors,) if scales else ()))
        torch.cuda.synchronize()
        expect(torch.equal(y, right), f"{name}, routing {routing}: {(y != right).sum()} elements differ")
    done(c.sy_status(op))
    ids[0, 0] = experts
    graph.replay()
    expect(c.sy_status(op) == 2 and b"name no expert" in c.sy_last_error(), f"{name}: {c.sy_last_error()!r}")
    done(c.sy_status(op))  # it is told once
    theirs.close()
    del graph
    done(c.sy_op_destroy(op))
    c.sy_bundle_close(bundle)


SECTIONS = {"release": release, "bundles": bundles, "mixtures": mixtures}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
