"""A grouped product of your own, over rows that come from all ranks for the experts of this one. How many come only the device knows,
in each call; what is made of them goes back.

    torchrun --nproc-per-node 2 examples/grouped_product.py                        on GPUs
    TRITON_INTERPRET=1 torchrun --nproc-per-node 2 examples/grouped_product.py     without one, interpreted
"""

import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def grouped_product(
    a_ptr, w_ptr, c_ptr, offsets_ptr, N, K: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Of each expert its rows of a [., K] times its w [K, N]; offsets [experts + 1] say where they begin, and end."""
    expert = tl.program_id(0)
    end = tl.load(offsets_ptr + expert + 1)
    row = tl.load(offsets_ptr + expert) + tl.program_id(1) * BLOCK_M
    if row >= end:
        return
    rows, columns = (
        row + tl.arange(0, BLOCK_M)[:, None],
        tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :],
    )
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows * K + k[None, :], mask=(rows < end) & (k[None, :] < K), other=0.0)
        w = tl.load(
            w_ptr + (expert * K + k[:, None]) * N + columns, mask=(k[:, None] < K) & (columns < N), other=0.0
        )
        total = tl.dot(a, w, total, input_precision="ieee")
    tl.store(c_ptr + rows * N + columns, total.to(c_ptr.dtype.element_ty), mask=(rows < end) & (columns < N))


def main() -> None:
    import os

    import syncopate as sy

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    shared = gpu and int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count()
    dist.init_process_group("nccl" if gpu and not shared else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    own, tokens, k, n, block = 3, 50, 48, 40, 16
    experts, bound = own * size, tokens * size
    of = {"device": "cuda" if gpu else "cpu", "dtype": torch.bfloat16 if gpu else torch.float32}

    plan = sy.plans.push_groups(
        sy.plans.mesh_of(size),
        sy.Tensor("A", (bound, k), of["dtype"]),
        experts,
        sy.Tensor("C", (bound, n), of["dtype"]),
    )
    fused = sy.fuse(grouped_product, plan, {"a_ptr": "A", "c_ptr": "C", "offsets_ptr": "counts"})

    generator = torch.Generator().manual_seed(1)
    w = (torch.randn(experts, k, n, generator=generator) / 4).to(**of)
    for kind in ("random", "one", "random"):
        x = torch.randn(size, tokens, k, generator=generator).to(**of)[rank]
        chosen = torch.randint(0, experts if kind == "random" else 1, (size, tokens), generator=generator)[
            rank
        ]
        order = chosen.to(of["device"]).argsort(stable=True)
        expert = chosen.to(of["device"])[order]  # of each row; the host does not look
        counts = torch.zeros(experts, dtype=torch.int32, device=of["device"])
        counts.scatter_add_(0, expert, torch.ones_like(expert, dtype=torch.int32))
        a, c = x[order].contiguous(), torch.empty(tokens, n, **of)
        grid = (own, triton.cdiv(bound, block), triton.cdiv(n, block))
        fused[grid](a, w[rank * own : (rank + 1) * own], c, counts, n, k, block, block, block)
        right = torch.einsum("tk,tkn->tn", a.float(), w[expert].float())
        off = ((c.float() - right).norm() / right.norm()).item()
        assert off < (0.01 if gpu else 1e-5), f"{kind} experts: off by {off}"
    fused.check()  # of a GPU, all calls
    sy.close()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("a grouped product agrees with torch")


if __name__ == "__main__":
    main()
