"""torch.ops.syncopate.moe on host ranks of a torch process group: gradients, and torch.compile; run by test_moe.py."""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_script import expect  # noqa: E402

T, K, H, F = 4, 2, 16, 24


def layer(x, ids, weights, w1, w2):
    """In torch, of one rank's tokens and all experts."""
    inner = torch.einsum("th,tkhf->tkf", x, w1[ids])
    made = torch.nn.functional.silu(inner[..., :F]) * inner[..., F:]
    return (torch.einsum("tkf,tkfh->tkh", made, w2[ids]) * weights[..., None]).sum(1)


def numbers(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / 2


def close(given, right, what):
    expect(
        torch.allclose(given, right, rtol=1e-4, atol=1e-5), f"{what} differs by {(given - right).abs().max()}"
    )


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    experts = 2 * size
    name = dist.group.WORLD.group_name
    x, grad = numbers(size, T, H, seed=1), numbers(size, T, H, seed=2)
    w1, w2 = numbers(experts, H, 2 * F, seed=3), numbers(experts, F, H, seed=4)
    ids = torch.stack(
        [torch.randperm(experts, generator=torch.Generator().manual_seed(5 + i))[:K] for i in range(size * T)]
    )
    ids, weights = ids.view(size, T, K), numbers(size, T, K, seed=6).softmax(-1)
    mine = slice(rank * 2, rank * 2 + 2)

    whole = [one.clone().requires_grad_() for one in (x, weights, w1, w2)]
    right = [layer(whole[0][r], ids[r], whole[1][r], *whole[2:]) for r in range(size)]
    torch.autograd.backward(right, list(grad))
    wanted = [whole[0].grad[rank], whole[1].grad[rank], whole[2].grad[mine], whole[3].grad[mine]]

    def call(x, weights, w1, w2):
        return torch.ops.syncopate.moe(x, ids[rank], weights, w1, w2, name)

    ways = {"eager": call, "compiled": torch.compile(call, backend="aot_eager", fullgraph=True)}
    ways["the function"] = lambda x, weights, w1, w2: sy.ops.moe(x, ids[rank], weights, w1, w2)
    for way, run in ways.items():
        own = [one.clone().requires_grad_() for one in (x[rank], weights[rank], w1[mine], w2[mine])]
        y = run(*own)
        close(y, right[rank].detach(), f"{way}: y")
        y.backward(grad[rank])
        for one, of, what in zip(own, wanted, ("x", "topk_weights", "w1", "w2"), strict=True):
            close(one.grad, of, f"{way}: the gradient of {what}")
        with torch.no_grad():
            expect(torch.equal(run(*own), y.detach()), f"{way}: y without gradients has other bits")

    def call_of(x, ids, weights, w1, w2):
        return torch.ops.syncopate.moe(x, ids, weights, w1, w2, name)

    dynamic = torch.compile(call_of, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (T, T - 2):
        own = [
            one.clone().requires_grad_()
            for one in (x[rank, :tokens], weights[rank, :tokens], w1[mine], w2[mine])
        ]
        y = dynamic(own[0], ids[rank, :tokens], *own[1:])
        close(y, right[rank].detach()[:tokens], f"{tokens} tokens, compiled for any number of them")
        y.sum().backward()
    from torch._subclasses.fake_tensor import FakeTensorMode

    operands = (x[rank], ids[rank], weights[rank], w1[mine], w2[mine])
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(one) for one in operands]
        fakes = torch.ops.syncopate.moe_kept(*given, name)
    made = torch.ops.syncopate.moe_kept(*operands, name)
    for fake, real in zip(fakes, made, strict=True):
        expect(
            (fake.shape, fake.dtype) == (real.shape, real.dtype),
            f"a fake is {fake}, not {real.shape} {real.dtype}",
        )
    counts = {name: count for (name, outcome), count in sy.report().calls.items() if outcome == "fused"}
    expect(counts == {"moe": 8, "moe_backward": 5}, f"the report counts {counts}")
    sy.close()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("gradients agree")


main()
