"""How long the host takes for a call, to compare two commits: torchrun --nproc-per-node 2 tests/gpu/host_time.py [--host]

µs of the host for sy.ops.matmul_all_reduce with 64 rows, while the GPU works through calls that were enqueued before: the median of
20 rounds of 50 calls. Where there is one GPU, both ranks share it. `--host`: on CPUs, to see that the script runs."""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

HOST = "--host" in sys.argv
if HOST:
    os.environ["TRITON_INTERPRET"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

ROWS, ROUNDS, CALLS = 64, (2 if HOST else 20), (2 if HOST else 50)


def main() -> None:
    rank = int(os.environ["RANK"])
    if not HOST:
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("gloo")
    device, dtype, n = ("cpu", torch.float32, 64) if HOST else ("cuda", torch.bfloat16, 1024)
    x, w = torch.ones(ROWS, n, dtype=dtype, device=device), torch.ones(n, n, dtype=dtype, device=device)
    out = torch.empty(ROWS, n, dtype=dtype, device=device)

    def finish() -> None:
        if not HOST:
            torch.cuda.synchronize()
        dist.barrier()

    for _ in range(3):
        sy.ops.matmul_all_reduce(x, w, out=out)
    times = []
    for _ in range(ROUNDS):
        finish()
        if not HOST:
            torch.cuda._sleep(20_000_000)  # so that no call finds the stream empty
        started = time.perf_counter()
        for _ in range(CALLS):
            sy.ops.matmul_all_reduce(x, w, out=out)
        times.append((time.perf_counter() - started) / CALLS * 1e6)
    finish()
    assert (out == n * dist.get_world_size()).all(), "wrong sums"
    print(f"rank {rank}: {statistics.median(times):.2f} µs a call, least {min(times):.2f}", flush=True)
    sy.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
