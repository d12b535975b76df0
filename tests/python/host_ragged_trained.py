"""What training through users' grouped kernels takes, on host ranks: two tensors of the same rows, outputs that stay with the experts,
kernels that follow and read rows that came, and rows that are kept; run by test_ragged.py.

    host_ragged_trained.py RANKS [CHECK …]
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":  # else its kernels are compiled
    os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "examples")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import triton  # noqa: E402
from grouped_training import Experts, product, weight_gradient  # noqa: E402
from host_ragged import OWN, K, N, arrived, late_rows, refused, routings  # noqa: E402
from host_script import expect, run_checks  # noqa: E402

BLOCK = 16
BOTH = {"x_ptr": "A", "dy_ptr": "D", "offsets_ptr": "counts"}


def plan_of(size, bound, back=False, **options):
    """Rows of A, and with them those of D, to their experts' ranks; `back`: rows of C from there."""
    a, d, c = (sy.Tensor(name, (bound, columns), "fp32") for name, columns in (("A", K), ("D", N), ("C", K)))
    return sy.plans.push_groups(sy.plans.mesh_of(size), a, OWN * size, c if back else None, more=d, **options)


def rows_of(counts, columns, seed):
    """Of all ranks, whole numbers, of which sums are exact."""
    shape = (max(1, int(counts.sum())), columns)
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def own_rows(everything, counts):
    rank = dist.get_rank()
    first, last = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
    return everything[first:last] if last > first else torch.empty(1, everything.shape[1])


def grid_of_weights():
    return (OWN, triton.cdiv(K, BLOCK), triton.cdiv(N, BLOCK))


def compare_weights(dw, x, dy, counts, bound, name):
    rank, size = dist.get_rank(), dist.get_world_size()
    for expert, rows in enumerate(arrived(counts, rank, bound, size)):
        expect(
            torch.equal(dw[expert], x[rows].T @ dy[rows]),
            f"{name}: dw of expert {expert} of rank {rank} differs",
        )


def check_two_tensors(_, size):
    """A kernel reads both tensors' rows, and what it makes of an expert's stays there, of one that has none, too."""
    bound = 40 * size
    fused = sy.fuse(weight_gradient, plan_of(size, bound), BOTH)
    for call, (name, counts) in enumerate(routings(size, 5, 30).items()):
        x, dy, dw = rows_of(counts, K, 1), rows_of(counts, N, 2), torch.full((OWN, K, N), float("nan"))
        with late_rows(0.2 if call % size == dist.get_rank() else 0):
            told = counts[dist.get_rank()].to(torch.int32)
            fused[grid_of_weights()](
                own_rows(x, counts), own_rows(dy, counts), dw, told, N, K, BLOCK, BLOCK, BLOCK
            )
        compare_weights(dw, x, dy, counts, bound, name)
    expect(len(fused.prepared) == 1, f"set up {len(fused.prepared)} times")


def check_over_the_bound(_, size):
    """The same rows of both are left out."""
    fused = sy.fuse(weight_gradient, plan_of(size, 24), BOTH, over="drop")
    counts = routings(size, 3, 20)["all to one expert"]
    x, dy, dw = rows_of(counts, K, 1), rows_of(counts, N, 2), torch.empty(OWN, K, N)
    told = counts[dist.get_rank()].to(torch.int32)
    fused[grid_of_weights()](own_rows(x, counts), own_rows(dy, counts), dw, told, N, K, BLOCK, BLOCK, BLOCK)
    compare_weights(dw, x, dy, counts, 24, "dropped")


def check_rows_that_a_later_kernel_reads(_, size):
    """One program brings both, makes the experts' gradients of both, and of one of them what goes back."""
    bound = 40 * size
    binds = [BOTH, {"a_ptr": "D", "c_ptr": "C", "offsets_ptr": "counts"}]
    fused = sy.fuse([weight_gradient, product], plan_of(size, bound, back=True), binds)
    w = torch.randint(-2, 3, (OWN * size, K, N), generator=torch.Generator().manual_seed(3)).float()
    mine = w[dist.get_rank() * OWN :][:OWN].contiguous()
    for name, counts in routings(size, 7, 30).items():
        x, dy = rows_of(counts, K, 1), rows_of(counts, N, 2)
        own_x, own_dy, dw = own_rows(x, counts), own_rows(dy, counts), torch.empty(OWN, K, N)
        dx, told = torch.full((len(own_x), K), float("nan")), counts[dist.get_rank()].to(torch.int32)
        of_rows = (OWN, triton.cdiv(bound, BLOCK), triton.cdiv(K, BLOCK))
        fused.run([
            fused.call(0, grid_of_weights(), own_x, own_dy, dw, told, N, K, BLOCK, BLOCK, BLOCK),
            fused.call(1, of_rows, own_dy, mine, dx, told, K, N, K * N, 1, N, BLOCK, BLOCK, BLOCK),
        ])  # fmt: skip
        compare_weights(dw, x, dy, counts, bound, name)
        wanted = torch.zeros(len(dy), K)
        for owner in range(size):
            for expert, rows in enumerate(arrived(counts, owner, bound, size), owner * OWN):
                wanted[rows] = dy[rows] @ w[expert].T
        count = int(told.sum())
        expect(torch.equal(dx[:count], own_rows(wanted, counts)[:count]), f"{name}: dx differs")


def check_kept_rows(_, size):
    """What is kept of a call is there whatever is called next."""
    bound = 40 * size
    fused = sy.fuse(weight_gradient, plan_of(size, bound, keep=True), BOTH)
    refused("kept: there was no call", lambda: fused.kept)
    handles = []
    for seed, counts in enumerate(routings(size, 9, 30).values()):
        x, dy, told = (
            rows_of(counts, K, seed),
            rows_of(counts, N, seed + 20),
            counts[dist.get_rank()].to(torch.int32),
        )
        dw = torch.empty(OWN, K, N)
        fused[grid_of_weights()](
            own_rows(x, counts), own_rows(dy, counts), dw, told, N, K, BLOCK, BLOCK, BLOCK
        )
        handles.append((counts, x, dy, fused.kept))
    for counts, x, dy, kept in handles:
        rows = sum(arrived(counts, dist.get_rank(), bound, size), [])
        expect(kept["A"].shape == (bound, K) and kept["D"].shape == (bound, N), "their shapes")
        for name, everything in (("A", x), ("D", dy)):
            expect(
                torch.equal(kept[name][: len(rows)], everything[rows]), f"{name}: rows that were kept differ"
            )
    passing = sy.fuse(weight_gradient, plan_of(size, bound), BOTH)
    dw = torch.empty(OWN, K, N)
    passing[grid_of_weights()](own_rows(x, counts), own_rows(dy, counts), dw, told, N, K, BLOCK, BLOCK, BLOCK)
    refused("the plan keeps nothing of what comes: push_groups(…, keep=True)", lambda: passing.kept)


def check_refusals(_, size):
    """What is hardly meant, with the parameter's name."""
    bound, counts = 8 * size, torch.ones(OWN * size, dtype=torch.int32)
    x, dy, dw = torch.zeros(OWN * size, K), torch.zeros(OWN * size, N), torch.empty(OWN, K, N)
    sizes, plan = (N, K, BLOCK, BLOCK, BLOCK), plan_of(size, bound)

    def call(bind, x=x, dy=dy):
        sy.fuse(weight_gradient, plan, bind)[grid_of_weights()](x, dy, dw, counts, *sizes)

    refused(
        "no parameter is bound to D: its rows would be read by nobody",
        lambda: call({"x_ptr": "A", "offsets_ptr": "counts"}),
    )
    refused("dy_ptr: it has 1 rows, and x_ptr, which are the same ones", lambda: call(BOTH, dy=dy[:1]))
    refused("no parameter is bound to counts", lambda: call({"x_ptr": "A", "dy_ptr": "D"}))
    asks = x.clone().requires_grad_()
    text = refused("x_ptr requires a gradient", lambda: call(BOTH, x=asks))
    expect("torch.autograd.Function" in text, text)
    three = sy.plans.push_groups(sy.plans.mesh_of(size), sy.Tensor("A", (bound, K), "fp32"), OWN * size, more=sy.Tensor("D", (bound, N), "fp32"))  # fmt: skip
    expect(not three.check() and three.num_ranks == size, "the plan of two tensors")


def check_layers_alive_at_once(_, size):
    """Two layers share their programs, and each has two calls that wait for their backward passes; gradients add up."""
    rank, tokens = dist.get_rank(), 12
    of = Experts(size, OWN * size, 2 * tokens * size, K, K, torch.float32)
    generator = torch.Generator().manual_seed(11)
    whole = [torch.randint(-2, 3, (OWN * size, K, K), generator=generator).double() for _ in range(2)]
    mine = slice(rank * OWN, (rank + 1) * OWN)
    ws, rights = (
        [w[mine].float().requires_grad_() for w in whole],
        [w.clone().requires_grad_() for w in whole],
    )
    made, wanted = [], []
    for _ in range(2):
        x = torch.randint(-2, 3, (size, tokens, K), generator=generator).double()
        chosen = torch.randint(0, OWN * size, (2, size, tokens), generator=generator).sort(-1).values
        one, other = x[rank].float().requires_grad_(), x.flatten(0, 1).requires_grad_()
        right = other
        for w, of_all in zip(rights, chosen.flatten(1), strict=True):
            right = torch.einsum("tk,tkn->tn", right, w[of_all])
        y = one
        for w, own in zip(ws, chosen[:, rank], strict=True):
            y = of(y, w, torch.bincount(own, minlength=OWN * size).int())
        made.append((one, y))
        wanted.append((other, right))
    for (one, y), (other, right) in zip(reversed(made), reversed(wanted), strict=True):
        y.sum().backward()
        right.sum().backward()
        expect(torch.equal(one.grad.double(), other.grad.view(size, tokens, K)[rank]), "dx of a call differs")
    for i, (w, right) in enumerate(zip(ws, rights, strict=True)):
        expect(torch.equal(w.grad.double(), right.grad[mine]), f"dw of layer {i} differs")
    expect(len(of.forward.prepared) == 1 and len(of.backward.prepared) == 1, "set up more than once")


if __name__ == "__main__":
    run_checks(globals())
