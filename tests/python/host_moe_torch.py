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
from syncopate.strategy import Strategy  # noqa: E402

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


def check(parallel, ids, operands, right, grad, wanted):
    name = dist.group.WORLD.group_name

    def call(x, weights, w1, w2):
        return torch.ops.syncopate.moe(x, ids, weights, w1, w2, name, parallel=parallel)

    def call_of(x, ids, weights, w1, w2):
        return torch.ops.syncopate.moe(x, ids, weights, w1, w2, name, parallel=parallel)

    ways = {"eager": call, "compiled": torch.compile(call, backend="aot_eager", fullgraph=True)}
    ways["the function"] = lambda x, weights, w1, w2: sy.ops.moe(x, ids, weights, w1, w2, parallel=parallel)
    ways["the function compiled"] = torch.compile(ways["the function"], backend="aot_eager", fullgraph=True)
    for way, run in ways.items():
        own = [one.clone().requires_grad_() for one in operands]
        y = run(*own)
        close(y, right, f"{parallel}, {way}: y")
        y.backward(grad)
        for one, of, what in zip(own, wanted, ("x", "topk_weights", "w1", "w2"), strict=True):
            close(one.grad, of, f"{parallel}, {way}: the gradient of {what}")
        with torch.no_grad():
            expect(
                torch.equal(run(*own), y.detach()), f"{parallel}, {way}: y without gradients has other bits"
            )
    dynamic = torch.compile(call_of, backend="aot_eager", fullgraph=True, dynamic=True)
    for tokens in (T, T - 2):
        x, weights = (one[:tokens].clone().requires_grad_() for one in operands[:2])
        w1, w2 = (one.clone().requires_grad_() for one in operands[2:])
        y = dynamic(x, ids[:tokens], weights, w1, w2)
        close(y, right[:tokens], f"{parallel}, {tokens} tokens, compiled for any number of them")
        y.sum().backward()
    from torch._subclasses.fake_tensor import FakeTensorMode

    given = (operands[0], ids, *operands[1:])
    with FakeTensorMode() as mode:
        fakes = torch.ops.syncopate.moe_kept(*map(mode.from_tensor, given), name, parallel=parallel)
    made = torch.ops.syncopate.moe_kept(*given, name, parallel=parallel)
    for fake, real in zip(fakes, made, strict=True):
        expect(
            (fake.shape, fake.dtype) == (real.shape, real.dtype),
            f"a fake is {fake}, not {real.shape} {real.dtype}",
        )


def check_layout_and_order(parallel, ids, operands):
    """Operands that are not contiguous are taken with gradients and without; second derivatives are refused."""
    name = dist.group.WORLD.group_name
    spread = [one.mT.contiguous().mT for one in operands]
    ids = ids.mT.contiguous().mT
    right = sy.ops.moe(operands[0], ids.contiguous(), *operands[1:], parallel=parallel)
    for call in (
        lambda x, *rest: sy.ops.moe(x, ids, *rest, parallel=parallel),
        lambda x, *rest: torch.ops.syncopate.moe(x, ids, *rest, name, parallel=parallel),
    ):
        expect(torch.equal(call(*spread), right), f"{parallel}: of what is not contiguous y differs")
        own = [one.clone().requires_grad_() for one in spread]
        y = call(*own)
        expect(
            torch.equal(y.detach(), right), f"{parallel}: with gradients y of what is not contiguous differs"
        )
        # Of a sum, the gradient that comes has no derivatives itself.
        for loss in (y.square().sum(), y.sum()):
            (gradient,) = torch.autograd.grad(loss, own[0], create_graph=True)
            try:
                gradient.square().sum().backward(retain_graph=True)
            except RuntimeError as error:
                expect("syncopate.moe has no second derivatives" in str(error), str(error))
            else:
                expect(False, f"{parallel}: the second derivative is silently none")


def check_streamed(ids, operands, grad):
    """Products of the backward pass that load by descriptors are taken where TMA is there, and make what the others do."""
    from syncopate.ops import mixture_kept

    descriptor, made, grads = mixture_kept.TensorDescriptor, [], {}
    has_tma = sy.ops.Moe._has_tma

    class Counted:
        @staticmethod
        def from_tensor(*given):
            made.append(given)
            return descriptor.from_tensor(*given)

    mixture_kept.TensorDescriptor = Counted
    for streamed in (False, True):
        sy.ops.Moe._has_tma = lambda self, streamed=streamed: streamed
        own = [one.to(torch.bfloat16).requires_grad_() for one in operands]
        sy.ops.moe(own[0], ids, *own[1:]).backward(grad.to(torch.bfloat16))
        grads[streamed] = [one.grad.float() for one in own]
        expect(bool(made) == streamed, f"descriptors, where TMA is there {streamed}: {len(made)}")
        sy.close()
    mixture_kept.TensorDescriptor = descriptor
    sy.ops.Moe._has_tma = has_tma
    for one, other, what in zip(*grads.values(), ("x", "topk_weights", "w1", "w2"), strict=True):
        off = (one - other).norm() / one.norm()
        expect(off < 0.01, f"by descriptors the gradient of {what} is off by {off}")


def check_cold(rank, size):
    """Compiled, the first call in a group, the world or another one, needs none before."""
    ids, weights = torch.arange(T * K).view(T, K) % (2 * size), numbers(T, K, seed=9)
    x, w1, w2 = numbers(T, H, seed=rank), numbers(2, H, 2 * F, seed=5), numbers(2, F, H, seed=6)
    for group in (None, dist.new_group(list(range(size)))):

        def call(x, group=group):
            return sy.ops.moe(x, ids, weights, w1, w2, group)

        for grad in (False, True):
            made = torch.compile(call, backend="aot_eager", fullgraph=True)(x.clone().requires_grad_(grad))
            expect(
                torch.equal(made.detach(), call(x)), f"the first call, compiled, gradients {grad}: other bits"
            )
        torch._dynamo.reset()
    sy.close()


def check_scaled(rank, size):
    """Of fp8 the op, and the function, eager and compiled; a gradient that nobody makes is refused where it is asked for."""
    from syncopate.ops.mixture_scaled import own_scales, own_weights, shapes_of

    name, fp8, hidden, inner = dist.group.WORLD.group_name, torch.float8_e4m3fn, 48, 64 * size
    w1, w2 = (numbers(2 * size, n, k, seed=11 + n).to(fp8) for n, k in ((2 * inner, hidden), (hidden, inner)))
    of_x, of_w1, of_w2 = (
        numbers(*one, seed=3).abs() for one in shapes_of("row", T, 2 * size, hidden, inner).values()
    )
    x, weights = numbers(T, hidden, seed=rank).to(fp8), numbers(T, K, seed=20 + rank).softmax(-1)
    ids = torch.arange(T * K).view(T, K) % (2 * size)
    for parallel in ("expert", "tensor"):
        place = parallel, rank, size
        own = own_weights(*place, w1.transpose(1, 2), w2.transpose(1, 2))
        scales = of_x, *own_scales(*place, of_w1, of_w2)

        def function(x, weights, w1, w2, scales, parallel=parallel):
            return sy.ops.moe(
                x, ids, weights, w1, w2, scales=scales, out_dtype=torch.float16, parallel=parallel
            )

        def op(x, weights, w1, w2, scales, parallel=parallel):
            options = {"parallel": parallel, "out_dtype": torch.float16}
            return torch.ops.syncopate.moe_scaled(x, ids, weights, w1, w2, list(scales), name, **options)

        right = function(x, weights, *own, scales)
        expect(right.dtype == torch.float16 and right.abs().max() > 0, f"{parallel}, fp8: {right}")
        for way, run in (("function", function), ("op", op)):
            expect(
                torch.equal(run(x, weights, *own, scales), right), f"{parallel}, fp8: {way} has other bits"
            )
            made = torch.compile(run, backend="aot_eager", fullgraph=True)
            expect(
                torch.equal(made(x, weights, *own, scales), right),
                f"{parallel}, fp8, {way} compiled: other bits",
            )
            for called in (run, made):
                asking = (*scales[:1], scales[1].clone().requires_grad_(), *scales[2:])
                for given, what in (
                    ((x, weights.clone().requires_grad_(), *own, scales), "topk_weights"),
                    ((x, weights, *own, asking), "scale_w1"),
                ):
                    try:
                        called(*given)
                        expect(False, f"{parallel}, fp8, {way}: not refused: a gradient of {what}")
                    except RuntimeError as error:
                        expect(f"{what} requires a gradient" in str(error), str(error))
            spread = x.mT.contiguous().mT
            apart = [one.repeat_interleave(2, -1)[..., ::2] for one in scales]
            for called in (run, made):
                for given, what in (((spread, scales), "an x"), ((x, apart), "scales")):
                    expect(
                        torch.equal(called(given[0], weights, *own, given[1]), right),
                        f"{parallel}, fp8, {way}: of {what} not contiguous y differs",
                    )
    sy.close()


def check_seen_past(ids, operands):
    """What is no op ends a compiled graph, and makes the same bits: the parts, a call with a strategy, an operator's own."""
    x, weights, w1, w2 = operands
    experts = len(w1) * dist.get_world_size()
    operator = sy.ops.Moe(len(x), experts, K, H, F, x.dtype, None)
    strategy = Strategy()

    def parts(x):
        rows, handle = sy.ops.dispatch(x * 1, ids, experts)
        return sy.ops.combine(rows * 2, weights, handle) + 0

    def with_strategy(x):
        return sy.ops.moe(x * 1, ids, weights, w1, w2, strategy=strategy) + 0

    def by_operator(x):
        return operator.run(x * 1, ids, weights, w1, w2)[0] + 0

    for run, ends in (
        (parts, "sy.ops.dispatch"),
        (with_strategy, "sy.ops.moe with a strategy"),
        (by_operator, "Moe"),
    ):
        right = run(x)
        expect(
            torch.equal(torch.compile(run, backend="aot_eager")(x), right),
            f"{run.__name__} compiled: other bits",
        )
        torch._dynamo.reset()
        try:
            torch.compile(run, backend="aot_eager", fullgraph=True)(x)
            expect(False, f"{run.__name__}: not refused: a whole graph")
        except torch._dynamo.exc.Unsupported as error:
            expect(f"{ends}: no op that a graph can hold" in str(error), str(error))
    for bound in (0, True):  # also where the call is recorded, and compiled
        asking = x.clone().requires_grad_()

        def recorded(x, bound=bound):
            return sy.ops.moe(x, ids, weights, w1, w2, bound=bound)

        for run in (recorded, torch.compile(recorded, backend="aot_eager")):
            try:
                run(asking)
                expect(False, f"not refused: bound={bound}")
            except (ValueError, torch._dynamo.exc.TorchDynamoException) as error:
                expect("bound: expected a number of rows" in str(error), str(error))
    operator.close()
    sy.close()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    experts = 2 * size
    check_cold(rank, size)
    x, grad = numbers(size, T, H, seed=1), numbers(size, T, H, seed=2)
    w1, w2 = numbers(experts, H, 2 * F, seed=3), numbers(experts, F, H, seed=4)
    ids = torch.stack(
        [torch.randperm(experts, generator=torch.Generator().manual_seed(5 + i))[:K] for i in range(size * T)]
    )
    ids, weights = ids.view(size, T, K), numbers(size, T, K, seed=6).softmax(-1)
    whole = [one.clone().requires_grad_() for one in (x, weights, w1, w2)]
    right = [layer(whole[0][r], ids[r], whole[1][r], *whole[2:]) for r in range(size)]
    torch.autograd.backward(right, list(grad))
    every = [one.detach() for one in (x, weights, w1, w2)]
    mine = slice(rank * 2, rank * 2 + 2)
    share = torch.arange(rank * F // size, (rank + 1) * F // size)
    for parallel, of_w1, of_w2 in (
        ("expert", lambda w: w[mine], lambda w: w[mine]),
        (
            "tensor",
            lambda w: w[..., torch.cat([share, F + share])].contiguous(),
            lambda w: w[:, share].contiguous(),
        ),
    ):

        def own(values, of_w1=of_w1, of_w2=of_w2):
            """This rank's of x, the weights of the routes, w1 and w2."""
            return [values[0][rank], values[1][rank], of_w1(values[2]), of_w2(values[3])]

        check(
            parallel,
            ids[rank],
            own(every),
            right[rank].detach(),
            grad[rank],
            own([one.grad for one in whole]),
        )
    counts = {name: count for (name, outcome), count in sy.report().calls.items() if outcome == "fused"}
    expect(counts == {"moe": 24, "moe_backward": 12}, f"the report counts {counts}")
    sy.close()
    check_layout_and_order("expert", ids[rank], [x[rank], weights[rank], w1[mine], w2[mine]])
    check_seen_past(ids[rank], [x[rank], weights[rank], w1[mine], w2[mine]])
    check_streamed(ids[rank], [x[rank], weights[rank], w1[mine], w2[mine]], grad[rank])
    of_w1 = w1[..., torch.cat([share, F + share])]
    check_scaled(rank, size)
    check_layout_and_order("tensor", ids[rank], [x[rank], weights[rank], of_w1, w2[:, share]])
    sy.close()
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("gradients agree")


main()
