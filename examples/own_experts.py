"""A mixture of experts with products of your own: two functions that make a tile. Which rows go to an expert, and how many, only
the device knows, in each call.

    torchrun --nproc-per-node 2 examples/own_experts.py                        on GPUs
    TRITON_INTERPRET=1 torchrun --nproc-per-node 2 examples/own_experts.py     without one, interpreted
"""

import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def _product(
    a_ptr,
    w_ptr,
    row,
    rows,
    column,
    K,
    W,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    END,
):
    """Rows from `row` on of a [., K] times columns from `column` on of w [K, W]; `END`: past the last of these."""
    lane, columns = tl.arange(0, BLOCK_M)[:, None], column + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        a = tl.load(
            a_ptr + (row + lane).to(tl.int64) * K + k[None, :],
            mask=(lane < rows) & (k[None, :] < K),
            other=0.0,
        )
        w = tl.load(w_ptr + k[:, None] * W + columns, mask=(k[:, None] < K) & (columns < END), other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
    return total


@triton.jit
def squared_relu(
    a_ptr, w_ptr, expert, row, rows, n, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """relu(gate)² * up: the library has no such activation."""
    w = w_ptr + expert.to(tl.int64) * (2 * K * N)
    gate = _product(a_ptr, w, row, rows, n * BLOCK_N, K, 2 * N, BLOCK_M, BLOCK_N, BLOCK_K, N)
    up = _product(a_ptr, w, row, rows, N + n * BLOCK_N, K, 2 * N, BLOCK_M, BLOCK_N, BLOCK_K, 2 * N)
    gate = tl.maximum(gate, 0.0)
    return gate * gate * up


@triton.jit
def down(
    a_ptr, w_ptr, expert, row, rows, n, K: tl.constexpr, N: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    w = w_ptr + expert.to(tl.int64) * (K * N)
    return _product(a_ptr, w, row, rows, n * BLOCK_N, K, N, BLOCK_M, BLOCK_N, BLOCK_K, N)


def in_torch(x, ids, weights, w1, w2):
    """The same of one rank's tokens, with all experts' weights."""
    gate, up = torch.einsum("th,tkhf->tkf", x.float(), w1.float()[ids]).chunk(2, -1)
    made = (gate.relu().square() * up).to(x.dtype).float()
    return (
        torch.einsum("tkf,tkfh->tkh", made, w2.float()[ids]).to(x.dtype).float() * weights[..., None]
    ).sum(1)


def main() -> None:
    import os

    import syncopate as sy

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    shared = gpu and int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count()
    dist.init_process_group("nccl" if gpu and not shared else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    own, topk, hidden, inner = 3, 2, 48, 40
    tokens, of = 100 if gpu else 7, {"device": "cuda" if gpu else "cpu"}
    of["dtype"] = torch.bfloat16 if gpu else torch.float32
    generator = torch.Generator().manual_seed(1)

    def numbers(*shape):
        return (torch.randn(shape, generator=generator) / 4).to(**of)

    x, w1, w2 = (
        numbers(size, tokens, hidden),
        numbers(size * own, hidden, 2 * inner),
        numbers(size * own, inner, hidden),
    )
    mine = slice(rank * own, (rank + 1) * own)
    for kind in ("random", "one"):
        ids = torch.rand(size, tokens, size * own, generator=generator).topk(topk).indices
        ids = (ids if kind == "random" else torch.zeros_like(ids)).to(of["device"])
        weights = torch.rand(size, tokens, topk, generator=generator).to(of["device"])
        y = sy.ops.moe(x[rank], ids[rank], weights[rank], w1[mine], w2[mine], products=(squared_relu, down))
        right = in_torch(x[rank], ids[rank], weights[rank], w1, w2)
        off = ((y.float() - right).norm() / right.norm()).item()
        assert off < (0.01 if gpu else 1e-5), f"{kind} experts: off by {off}"
    sy.close()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("experts of its own agree with torch")


if __name__ == "__main__":
    main()
