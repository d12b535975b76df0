"""Memory that is given back and taken again, and bundles, on real GPUs, one process each:

    torchrun --nproc-per-node 2 tests/gpu/check_bundle.py [SECTION …]

Inputs are small integers, of which sums are exact. See SECTIONS at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests"))

from sections import expect, ours, rank, run, size  # noqa: E402
from syncopate import ops  # noqa: E402
from syncopate.group import of_process_group  # noqa: E402

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
                ran = subprocess.run(
                    [COMMAND, "bundle", "run", file, "--check"], env=env, capture_output=True, text=True
                )
                print(ran.stdout, end="", flush=True)
                expect(ran.returncode == 0, f"bundle run {spec}: {ran.stderr}")
    # A barrier by NCCL would spin on a GPU that the runs need.
    store = dist.distributed_c10d._get_default_store()
    store.set("bundles", "over") if rank() == 0 else store.wait(["bundles"])


SECTIONS = {"release": release, "bundles": bundles}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
