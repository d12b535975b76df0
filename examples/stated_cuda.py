"""A stated kernel in CUDA C++, gathered input: y = 2 * all_gather(x).

On GPUs:     torchrun --nproc-per-node 4 examples/stated_cuda.py
On the CPU:  TRITON_INTERPRET=1 torchrun --nproc-per-node 2 examples/stated_cuda.py     the plain Triton kernel stands in for it
"""

import os
from pathlib import Path

import syncopate as sy
import triton
import triton.language as tl


@triton.jit
def scale_plain(x, y, M, N, factor, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    num_n = tl.cdiv(N, BLOCK_N)
    for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * num_n, tl.num_programs(0)):
        rows = tile // num_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        columns = tile % num_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        inside = (rows < M) & (columns < N)
        tl.store(y + rows * N + columns, factor * tl.load(x + rows * N + columns, mask=inside), mask=inside)


box = ["m*BLOCK_M : (m+1)*BLOCK_M", "n*BLOCK_N : (n+1)*BLOCK_N"]
scale = sy.kernel(
    sy.cuda_kernel(
        Path(__file__).with_name("stated_scale.cu"),
        "scale",
        {
            "x": "*fp32",
            "y": "*fp32",
            "M": "i32",
            "N": "i32",
            "factor": "fp32",
            "sy_schedule": "i64",
            "sy_control": "i64",
            "BLOCK_M": "constexpr",
            "BLOCK_N": "constexpr",
        },
        threads=128,
    ),
    tiles={"m": "cdiv(M, BLOCK_M)", "n": "cdiv(N, BLOCK_N)"},
    reads={"x": box},
    writes={"y": box},
    host=scale_plain,
)


def main() -> None:
    import torch
    import torch.distributed as dist

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    size, n = dist.get_world_size(), 1024
    m = 256 * size
    plan = sy.plans.all_gather(sy.plans.mesh_of(size), sy.Tensor("X", (m, n), "fp32"), split=2)
    fused = sy.fuse(scale, plan, bind={"x": "X"})
    x = torch.full((256, n), float(dist.get_rank()), device=device)
    y = torch.empty(m, n, device=device)
    fused[(64,)](x, y, m, n, 2.0, BLOCK_M=32, BLOCK_N=64)
    fused.check()
    right = 2.0 * torch.arange(size, device=device).repeat_interleave(256).float()[:, None].expand(m, n)
    print(f"rank {dist.get_rank()}: {'right' if torch.equal(y, right) else 'wrong'}")
    fused.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
