"""A layer of experts of your own grouped kernels, trained: rows go to their experts' ranks and what is made of them comes back, in the
forward and in the backward pass. How many rows an expert has only the device knows; both passes are given the same counts.

    torchrun --nproc-per-node 2 examples/grouped_training.py                        on GPUs
    TRITON_INTERPRET=1 torchrun --nproc-per-node 2 examples/grouped_training.py     without one, interpreted
"""

import torch
import torch.distributed as dist
import triton
import triton.language as tl


@triton.jit
def product(
    a_ptr, w_ptr, c_ptr, offsets_ptr, N, K, STRIDE_E, STRIDE_K, STRIDE_N,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Of each expert its rows of a [., K] times its w [K, N], of these strides; offsets [experts + 1] say where its rows are."""
    expert = tl.program_id(0)
    end = tl.load(offsets_ptr + expert + 1)
    row = tl.load(offsets_ptr + expert) + tl.program_id(1) * BLOCK_M
    if row >= end:
        return
    rows = row + tl.arange(0, BLOCK_M)[:, None]
    columns = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for begin in range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        a = tl.load(a_ptr + rows * K + k[None, :], mask=(rows < end) & (k[None, :] < K), other=0.0)
        at = expert * STRIDE_E + k[:, None] * STRIDE_K + columns * STRIDE_N
        w = tl.load(w_ptr + at, mask=(k[:, None] < K) & (columns < N), other=0.0)
        total = tl.dot(a, w, total, input_precision="ieee")
    tl.store(c_ptr + rows * N + columns, total.to(c_ptr.dtype.element_ty), mask=(rows < end) & (columns < N))


@triton.jit
def weight_gradient(
    x_ptr, dy_ptr, dw_ptr, offsets_ptr, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Of each expert dw [K, N], its rows of x [., K] times those of dy [., N]. It stays where the expert is."""
    expert = tl.program_id(0)
    begin, end = tl.load(offsets_ptr + expert), tl.load(offsets_ptr + expert + 1)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)[:, None]
    n = tl.program_id(2) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros((BLOCK_K, BLOCK_N), dtype=tl.float32)
    for row in range(begin, end, BLOCK_M):
        rows = row + tl.arange(0, BLOCK_M)
        x = tl.load(x_ptr + rows[None, :] * K + k, mask=(rows[None, :] < end) & (k < K), other=0.0)
        dy = tl.load(dy_ptr + rows[:, None] * N + n, mask=(rows[:, None] < end) & (n < N), other=0.0)
        total = tl.dot(x, dy, total, input_precision="ieee")
    tl.store(dw_ptr + expert * K * N + k * N + n, total.to(dw_ptr.dtype.element_ty), mask=(k < K) & (n < N))


class Experts:
    """What the layers of one shape share: `experts` of all ranks, rows of k columns in and n out, at most `bound` that come to a
    rank. Made alike on all ranks; any number of its calls may wait for their backward passes."""

    def __init__(self, size, experts, bound, k, n, dtype, block=16):
        import syncopate as sy

        mesh, shapes = sy.plans.mesh_of(size), {"X": k, "Y": n, "DY": n, "DX": k}
        self.own, self.bound, self.k, self.n, self.block = experts // size, bound, k, n, block
        x, y, dy, dx = (sy.Tensor(name, (bound, columns), dtype) for name, columns in shapes.items())
        there = sy.plans.push_groups(mesh, x, experts, y, keep=True)
        back = sy.plans.push_groups(mesh, dy, experts, dx)
        self.forward = sy.fuse(product, there, {"a_ptr": "X", "c_ptr": "Y", "offsets_ptr": "counts"})
        self.backward = sy.fuse(
            [weight_gradient, product],
            back,
            [
                {"dy_ptr": "DY", "offsets_ptr": "counts"},
                {"a_ptr": "DY", "c_ptr": "DX", "offsets_ptr": "counts"},
            ],
        )

    def __call__(self, x, w, counts):
        """y [rows, n] of this rank's rows x [rows, k], which lie expert by expert, `counts` [experts] of each; w [own, k, n]."""
        return Layer.apply(x, w, counts, self, torch.is_grad_enabled())


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, counts, of, trains):
        y = x.new_empty(len(x), of.n)
        blocks = (of.block, of.block, of.block)
        grid = (of.own, triton.cdiv(of.bound, of.block), triton.cdiv(of.n, of.block))
        of.forward[grid](x, w, y, counts, of.n, of.k, *w.stride(), *blocks)
        if trains and any(ctx.needs_input_grad):  # these are said of weights within no_grad, too
            # The rows that came, in memory of their own: of.forward may be called again before this call's backward.
            ctx.save_for_backward(of.forward.kept["X"], w, counts)
        ctx.of = of
        return y

    @staticmethod
    def backward(ctx, dy):
        of, (came, w, counts) = ctx.of, ctx.saved_tensors
        dx, dw = dy.new_empty(len(dy), of.k), torch.empty_like(w, memory_format=torch.contiguous_format)
        blocks = (of.block, of.block, of.block)
        of_weights = (of.own, triton.cdiv(of.k, of.block), triton.cdiv(of.n, of.block))
        of_rows = (of.own, triton.cdiv(of.bound, of.block), triton.cdiv(of.k, of.block))
        e, k, n = w.stride()
        call, dy = of.backward.call, dy.contiguous()
        of.backward.run([
            call(0, of_weights, came, dy, dw, counts, of.n, of.k, *blocks),
            call(1, of_rows, dy, w, dx, counts, of.k, of.n, e, n, k, *blocks),  # w, turned
        ])  # fmt: skip
        return dx, dw, None, None, None


def routed(x, chosen, experts):
    """x's rows, expert by expert; how many each has; and where each row was."""
    order = chosen.argsort(stable=True)
    counts = torch.zeros(experts, dtype=torch.int32, device=x.device)
    counts.scatter_add_(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    return x[order], counts, order


def in_torch(x, ws, routes):
    """The same of all ranks' rows, by torch: each layer's rows by the experts chosen for them."""
    for w, chosen in zip(ws, routes, strict=True):
        x = torch.einsum("tk,tkn->tn", x, w[chosen])
    return x


def main() -> None:
    import os

    import syncopate as sy

    gpu = torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    shared = gpu and int(os.environ["LOCAL_WORLD_SIZE"]) > torch.cuda.device_count()
    dist.init_process_group("nccl" if gpu and not shared else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    own, tokens, k, layers = 3, 20, 32, 2
    experts = own * size
    of = {"device": "cuda" if gpu else "cpu", "dtype": torch.float32}
    layer = Experts(size, experts, tokens * size, k, k, of["dtype"])  # of all layers, whose weights differ

    generator = torch.Generator().manual_seed(1)
    mine = slice(rank * own, (rank + 1) * own)
    whole = [
        torch.randn(experts, k, k, generator=generator, dtype=torch.float64) / k**0.5 for _ in range(layers)
    ]
    ws = [w[mine].to(**of).requires_grad_() for w in whole]
    rights = [w.clone().requires_grad_() for w in whole]
    for kind in ("random", "one", "random"):
        x = torch.randn(size, tokens, k, generator=generator, dtype=torch.float64)
        dy = torch.randn(size, tokens, k, generator=generator, dtype=torch.float64)
        routes = torch.randint(
            0, experts if kind == "random" else 1, (layers, size, tokens), generator=generator
        )
        given = x[rank].to(**of).requires_grad_()
        made = given
        for w, chosen in zip(ws, routes[:, rank].to(of["device"]), strict=True):
            rows, counts, order = routed(made, chosen, experts)
            made = torch.empty_like(rows).index_copy(0, order, layer(rows, w, counts))
        right = x.flatten(0, 1).requires_grad_()
        in_torch(right, rights, routes.flatten(1)).backward(dy.flatten(0, 1))
        made.backward(dy[rank].to(**of))
        wanted = {"dx": (given, right.grad.view_as(x)[rank])}
        wanted |= {
            f"dw of layer {i}": (w, r.grad[mine]) for i, (w, r) in enumerate(zip(ws, rights, strict=True))
        }
        for name, (one, grad) in wanted.items():
            off = ((one.grad.cpu().double() - grad).norm() / grad.norm().clamp_min(1e-30)).item()
            assert off < 1e-5, f"{kind} experts: {name} of rank {rank} is off by {off}"
        for one in (*ws, *rights):
            one.grad = None
        with torch.no_grad():  # keeps no rows
            layer(given.detach(), ws[0], counts)
    layer.forward.check()  # of a GPU, all calls
    layer.backward.check()
    sy.close()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("gradients of experts agree with torch's in fp64")


if __name__ == "__main__":
    main()
