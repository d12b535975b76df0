"""Mixtures of experts over several nodes of host ranks of a torch process group: exact, whatever the routing; run by test_moe.py.

    python -m torch.distributed.run … host_moe_nodes.py NODES [CHECK …]

Exits 1 with the first thing that is wrong.
"""

import gc
import os
import sys
import time
import weakref
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "python")]
NODES = int(sys.argv[1])
PLACES = int(os.environ["WORLD_SIZE"]) // NODES
os.environ["SYNCOPATE_HOST_ID"] = f"host{int(os.environ['RANK']) // PLACES}"

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from host_moe import TILING, F, H, K, Layer, T, numbers, routings  # noqa: E402
from host_moe_own import filled  # noqa: E402
from host_moe_scaled import Layer as ScaledLayer  # noqa: E402
from host_moe_scaled import close  # noqa: E402
from host_script import expect  # noqa: E402
from syncopate.ops.mixture_scaled import ScaledMoe  # noqa: E402
from syncopate.ops.mixture_tensor import TensorMoe  # noqa: E402


def refused(call, *wanted):
    try:
        call()
    except (ValueError, RuntimeError) as error:
        expect(all(text in str(error) for text in wanted), f"expected {wanted}, it says: {error}")
        return
    raise AssertionError(f"no error, expected {wanted}")


def check_routings(rank, size):
    """All to one expert, none to a node's, tokens that there are not; ranks late by turns; by both dtypes of ids."""
    experts = 2 * size
    for call in range(2):
        layer = Layer(size, experts, 10 + call)
        x, weights, w1, w2 = layer.of(rank)
        for name, ids in routings(size, experts, call).items():
            time.sleep(0.01 * ((rank + call) % size))
            own = ids[rank].to(torch.int32 if call else torch.int64)
            right = layer.right(rank, ids)
            y = sy.ops.moe(x, own, weights, w1, w2, activation="relu")
            expect(torch.equal(y.double(), right), f"call {call}, routing {name!r} differs")
            by_op = torch.ops.syncopate.moe(x, own, weights, w1, w2, dist.group.WORLD.group_name, "relu")
            expect(torch.equal(by_op, y), f"torch's op, routing {name!r} differs")
            rows, handle = sy.ops.dispatch(x, own, experts)
            expect(torch.equal(handle.taken, own >= 0), f"routing {name!r}: taken")
            came = torch.bincount(ids[ids >= 0].flatten(), minlength=experts)
            mine = slice(2 * rank, 2 * rank + 2)
            expect(torch.equal(handle.counts.long(), came[mine]), f"routing {name!r}: rows of own experts")
            handle.check()
            back = sy.ops.combine(rows, weights, handle)
            right = (x[:, None] * (weights * (own >= 0))[..., None]).sum(1)
            expect(torch.equal(back, right), f"routing {name!r}: what comes back differs")


def check_operators(rank, size):
    """An object is the function of its shape: of each kind of experts, whatever the routing, with all that it is asked."""
    experts, shape = 2 * size, (T, 2 * size, K, H, F, torch.float32)
    group = sy.group.of_process_group(None, "host")
    op = sy.ops.Moe(*shape, group, activation="relu", tiling=TILING)
    ahead = sy.ops.Moe.bytes_ahead(*shape, size, nodes=NODES, device="host", tiling=TILING)
    expect(op.held_bytes() == ahead and group.memory()[0] >= ahead, f"{op.held_bytes()} bytes, {ahead} ahead")
    expect(
        op.tiling == TILING and not op.calls_differ and op.rows >= size * T * K,
        f"{op.tiling}, {op.rows} rows",
    )
    for call in range(2):
        layer = Layer(size, experts, 20 + call)
        for name, ids in routings(size, experts, call).items():
            y, handle, kept = op.run(layer.x[rank], ids[rank], *layer.of(rank)[1:])
            expect(torch.equal(y.double(), layer.right(rank, ids)), f"call {call}, routing {name!r} differs")
            expect(handle is None and kept == (), "an operator of the whole keeps nothing")
    op.check()
    x, weights, w1, w2 = layer.of(rank)
    wrong = ids[rank].clone()
    wrong[0, 0] = experts + 3 if rank == 0 else 0
    named = f"topk_ids: 1 of all ranks' ids name no expert; there are experts 0 to {experts - 1}"
    refused(lambda: op.run(x, wrong, weights, w1, w2), named)
    op.check()
    last = rank == size - 1
    refused(
        lambda: op.run(x[:-1] if last else x, ids[rank], weights, w1, w2), f"x: expected shape [{T}, {H}]"
    )
    refused(lambda: op.run(x, ids[rank], weights, w1[:1] if last else w1, w2), "w1: expected shape")
    expect(
        torch.equal(op.run(x, ids[rank], weights, w1, w2)[0].double(), layer.right(rank, ids)),
        "then y differs",
    )
    # As on a GPU, where calls are not waited for, check() tells of what one node's ranks have seen on all.
    if rank // PLACES == 0:
        op.over_nodes.of_node._seen[1] = 1
    refused(op.check, named)
    op.check()
    op.reset()
    op.close()
    op.close()
    expect(op.held_bytes() == ahead, "what it held, and will")
    refused(
        lambda: sy.ops.Moe(T, experts + 1, *shape[2:], group),
        f"E={experts + 1} experts are no multiple of {size}",
    )
    refused(lambda: sy.ops.Moe(*shape, group, strategy=sy.Strategy(unfused=True)), "unfused: over nodes")
    refused(
        lambda: sy.ops.Moe(*shape, group, part="dispatch"), "part='dispatch' over nodes: call sy.ops.dispatch"
    )
    refused(
        lambda: sy.ops.Moe(*shape, group, activation="relu" if last else "silu"),
        "calls differ",
        "activation=relu",
    )
    bounded = sy.ops.Moe(*shape, group, activation="relu", bound=7, over="drop")
    none = torch.zeros(size, T, K, dtype=torch.int64)
    y = bounded.run(x, none[rank], weights, w1, w2)[0]
    by_function = sy.ops.moe(x, none[rank], weights, w1, w2, activation="relu", bound=7, over="drop")
    expect(torch.equal(y, by_function), "over the bound another row is dropped")
    bounded.close()
    # Tensor parallel, of fp8, and of the caller's own products: what the function makes.
    inner = 2 * size
    own = numbers((3, H, 4), 5 + rank), numbers((3, 2, H), 6 + rank)
    ids = torch.randint(-1, 3, (T, K), generator=torch.Generator().manual_seed(rank))
    tensor = TensorMoe(T, 3, K, H, inner, torch.float32, group, activation="relu")
    expect(
        torch.equal(
            tensor.run(x, ids, weights, *own)[0],
            sy.ops.moe(x, ids, weights, *own, activation="relu", parallel="tensor"),
        ),
        "tensor parallel: y differs",
    )
    tensor.close()
    refused(
        lambda: TensorMoe(T, 3, K, H, inner + 1, torch.float32, group),
        f"F={inner + 1} columns",
        "no multiple",
    )
    layer = ScaledLayer(size, 2, "row", (T, K, 160, 128))
    given, scales = layer.of(rank)
    scaled = ScaledMoe(T, 2 * size, K, 160, 128, torch.float8_e4m3fn, group, scales="row")
    expect(torch.equal(scaled.run(*given, scales)[0], sy.ops.moe(*given, scales=scales)), "fp8: y differs")
    scaled.close()
    nothing = filled(0)
    products = sy.ops.Moe(*shape, group, products=(nothing, nothing))
    expect(not products.run(x, none[rank], weights, w1, w2)[0].any(), "products that are 0 make what is not")
    products.close()


def check_bounds(rank, size):
    """What is over the bound on one node is told on all."""
    layer = Layer(size, 2 * size, 3)
    x, weights, w1, w2 = layer.of(rank)
    ids = torch.zeros(size, T, K, dtype=torch.int64)
    _, over = layer.taken(ids, 7)
    text = f"bound: as many as {over} rows more than 7 come to a rank: give bound={7 + over}"
    refused(lambda: sy.ops.moe(x, ids[rank], weights, w1, w2, activation="relu", bound=7), text)
    refused(lambda: sy.ops.dispatch(x, ids[rank], 2 * size, bound=7), text)
    y = sy.ops.moe(x, ids[rank], weights, w1, w2, activation="relu", bound=size * T * K)
    expect(torch.equal(y.double(), layer.right(rank, ids)), "with a bound that fits y differs")
    ids = routings(size, 2 * size, 5)["random"]
    ids[0, 0, 0] = 2 * size + 3
    named = f"topk_ids: 1 of all ranks' ids name no expert; there are experts 0 to {2 * size - 1}"
    refused(lambda: sy.ops.moe(x, ids[rank], weights, w1, w2, activation="relu"), named)


def check_refused(rank, size):
    x, weights, w1, w2 = Layer(size, 2 * size, 3).of(rank)
    ids = torch.zeros(T, K, dtype=torch.int64)
    refused(lambda: sy.ops.dispatch(x, ids, 2 * size + 1), f"E={2 * size + 1} experts are no multiple")
    refused(lambda: sy.ops.moe(x, ids, weights[:, :1], w1, w2), "topk_weights: expected")


def check_refused_together(rank, size):
    """What is wrong on one rank alone, or of another call than the others', is told on all of them before anything is sent."""
    x, weights, w1, w2 = Layer(size, 2 * size, 3).of(rank)
    ids = torch.zeros(T, K, dtype=torch.int64)
    first, on_last = rank == 0, rank // PLACES == NODES - 1

    def moe(x=x, ids=ids, weights=weights, w1=w1, w2=w2, **options):
        return sy.ops.moe(x, ids, weights, w1, w2, activation="relu", **options)

    refused(lambda: moe(w1=w1.double() if first else w1), "w1: expected", "got", "torch.float64")
    for wrong, text in ((ids.float(), "topk_ids: expected"), (ids[:1], f"topk_ids: expected [{T}, {K}]")):
        refused(lambda wrong=wrong: sy.ops.dispatch(x, wrong if first else ids, 2 * size), text)
    refused(lambda: sy.ops.dispatch(x, ids.to("meta") if first else ids, 2 * size), "on cpu, got", "on meta")
    none = (x[:0], ids[:0]) if first else (x, ids)
    refused(lambda: sy.ops.dispatch(*none, 2 * size), "at least one token on each rank")
    rows, handle = sy.ops.dispatch(x, ids, 2 * size)
    refused(lambda: sy.ops.combine(rows[:-1] if first else rows, weights, handle), "rows: expected")
    sy.ops.combine(rows, weights, handle)
    # Both kinds of calls are known, and still they are told apart.
    few = (x[:3], ids[:3], weights[:3])
    moe(), moe(*few)
    told = "the ranks' calls differ", f"T={T}", "T=3"
    refused(lambda: moe(*few) if on_last else moe(), *told)
    refused(lambda: moe(x[:0], ids[:0], weights[:0]) if on_last else moe(), "the ranks' calls differ", "T=0")
    refused(lambda: sy.ops.dispatch(x, ids, 2 * size) if on_last else moe(), "dispatch T", "moe T")
    asking = w1.clone().requires_grad_(on_last)
    refused(lambda: moe(w1=asking), "the ranks' calls differ", "part=kept", "part=whole")
    expect(
        torch.equal(moe().double(), Layer(size, 2 * size, 3).right(rank, ids.expand(size, T, K))),
        "then y differs",
    )


def check_one_rank_alone(rank, size):
    """What fails in one node's program is told to all; where calls are not waited for, as on a GPU, no other node is left waiting, and
    gets NaNs. So of gradients."""
    from syncopate.ops import mixture_backward, mixture_function, mixture_nodes

    x, weights, w1, w2 = Layer(size, 2 * size, 3).of(rank)
    ids = routings(size, 2 * size, 1)["random"][rank]
    works, waits = mixture_function.cache.run, mixture_nodes._waits
    own = [one.clone().requires_grad_() for one in (x, weights, w1, w2)]
    last = rank // PLACES == NODES - 1

    def fails(*_given):
        raise RuntimeError("this node fails")

    def backward():
        y = sy.ops.moe(own[0], ids, *own[1:])
        mixture_backward.BACKWARDS["expert"] = fails if last else gradients
        y.sum().backward()

    gradients = mixture_backward.BACKWARDS["expert"]
    try:
        refused(backward, "this node fails")
        mixture_function.cache.run = fails if last else works
        refused(lambda: sy.ops.moe(x, ids, weights, w1, w2), "this node fails")
        mixture_nodes._waits = lambda _: False
        if last:
            refused(lambda: sy.ops.moe(x, ids, weights, w1, w2), "this node fails")
            refused(lambda: sy.ops.dispatch(x, ids, 2 * size), "this node fails")
        else:
            expect(sy.ops.moe(x, ids, weights, w1, w2).isnan().all(), "sums without a node's are numbers")
            refused(sy.ops.dispatch(x, ids, 2 * size)[1].check, "name no expert")
        mixture_function.cache.run = works
        if last:
            refused(backward, "this node fails")
        else:
            backward()
            expect(
                own[0].grad.isnan().all() and own[1].grad.isnan().all(),
                "gradients without a node's are numbers",
            )
        # Kinds of calls are forgotten like operators.
        rails = mixture_nodes.rails_of(sy.group.of_process_group(None, "host"))
        for tokens in range(mixture_nodes.MOST + 3):
            mixture_nodes.agree(rails, "moe", lambda tokens=tokens: f"T={tokens}")
        kinds = [key for key in sy.cache.entries if key[1] == "moe over nodes"]
        expect(len(kinds) == mixture_nodes.MOST, f"{len(kinds)} kinds of calls are kept")
    finally:
        mixture_function.cache.run, mixture_nodes._waits = works, waits
        mixture_backward.BACKWARDS["expert"] = gradients
    y = sy.ops.moe(x, ids, weights, w1, w2, activation="relu")
    layer = Layer(size, 2 * size, 3)
    expect(
        torch.equal(y.double(), layer.right(rank, routings(size, 2 * size, 1)["random"])), "then y differs"
    )


def check_tensor_parallel(rank, size):
    experts, inner = 3, 2 * size
    x = numbers((size, T, H), 4)
    w1, w2 = numbers((experts, H, 2, inner), 5), numbers((experts, inner, H), 6)
    ids = torch.randint(-1, experts, (size, T, K), generator=torch.Generator().manual_seed(7))
    own = slice(2 * rank, 2 * rank + 2)
    given = w1[:, :, :, own].reshape(experts, H, 4).contiguous(), w2[:, own].contiguous()
    y = sy.ops.moe(x[rank], ids[rank], torch.ones(T, K), *given, activation="relu", parallel="tensor")
    made = torch.einsum("th,tkhcf->tkcf", x[rank], w1[ids[rank].clamp(min=0)])
    made = torch.einsum("tkf,tkfh->tkh", made[:, :, 0].relu() * made[:, :, 1], w2[ids[rank].clamp(min=0)])
    expect(torch.equal(y, (made * (ids[rank] >= 0)[..., None]).sum(1)), "tensor parallel: y differs")
    named = f"{size} of all ranks' ids name no expert; there are experts 0 to {experts - 1}"
    wrong = torch.zeros(T, K, dtype=torch.int64)
    wrong[0, 0] = 2 * experts + 1
    refused(lambda: sy.ops.moe(x[rank], wrong, torch.ones(T, K), *given, parallel="tensor"), named)


def check_scaled_and_own(rank, size):
    """Experts of fp8, whose scales of x go with it, and products of the caller's; nobody speaks of gradients they lack."""
    for kind, parallel in (("row", "expert"), ("block", "expert"), ("row", "tensor")):
        inner = 128 * size  # of tensor parallel experts each rank has whole blocks
        layer = ScaledLayer(size, 2, kind, (T, K, 160, inner))
        given, scales = layer.of(rank) if parallel == "expert" else layer.columns_of(rank)
        y = sy.ops.moe(*given, scales=scales, parallel=parallel)
        close(y, layer.right(rank), f"fp8, {kind}, {parallel}", 0.02)
        by_op = torch.ops.syncopate.moe_scaled(
            *given, list(scales), dist.group.WORLD.group_name, parallel=parallel
        )
        expect(torch.equal(by_op, y), f"fp8, {kind}, {parallel}: torch's op differs")
    # Weights of routes in y's dtype, as one node's program takes them.
    layer = ScaledLayer(size, 2, "row", (T, K, 160, 128))
    (x, ids, weights, w1, w2), scales = layer.of(rank)
    y = sy.ops.moe(x, ids, weights.bfloat16(), w1, w2, scales=scales)
    close(y, sy.ops.moe(x, ids, weights.bfloat16().float(), w1, w2, scales=scales), "fp8, bf16 weights", 1e-6)
    wrong = weights.to(torch.float8_e4m3fn)
    refused(lambda: sy.ops.moe(x, ids, wrong, w1, w2, scales=scales), "topk_weights: expected", "bfloat16")
    one_half = torch.float16 if rank == 0 else torch.bfloat16
    refused(
        lambda: sy.ops.moe(x, ids, weights, w1, w2, scales=scales, out_dtype=one_half), "calls differ", "out="
    )
    x, weights, w1, w2 = Layer(size, 2 * size, 7).of(rank)
    ids = routings(size, 2 * size, 1)["random"][rank]
    nothing = filled(0)
    y = sy.ops.moe(x, ids, weights, w1, w2, products=(nothing, nothing))
    expect(not y.any(), "products that are 0 make what is not")
    own = w1.clone().requires_grad_()
    refused(lambda: sy.ops.moe(x, ids, weights, own, w2, products=(nothing, nothing)), "a gradient")


def check_gradients(rank, size):
    """Of all four operands, against torch's of all ranks' tokens and experts."""
    experts = 2 * size
    generator = torch.Generator().manual_seed(8)
    x, w1, w2 = (torch.randn(*shape, generator=generator, dtype=torch.float64) / 4 for shape in (
        (size, T, H), (experts, H, 2 * F), (experts, F, H),
    ))  # fmt: skip
    weights = torch.rand(size, T, K, generator=generator, dtype=torch.float64)
    grad = torch.randn(size, T, H, generator=generator, dtype=torch.float64)
    ids = routings(size, experts, 9)["random"]
    whole = [one.clone().requires_grad_() for one in (x, weights, w1, w2)]
    inner = torch.einsum("sth,stkhf->stkf", whole[0], whole[2][ids])
    made = torch.nn.functional.silu(inner[..., :F]) * inner[..., F:]
    y = (torch.einsum("stkf,stkfh->stkh", made, whole[3][ids]) * whole[1][..., None]).sum(2)
    y.backward(grad)
    mine = slice(2 * rank, 2 * rank + 2)
    parts = (rank, rank, mine, mine)
    own = [one[part].detach().float().requires_grad_() for one, part in zip(whole, parts, strict=True)]
    got = sy.ops.moe(own[0], ids[rank], *own[1:])
    got.backward(grad[rank].float())
    names = ("x", "topk_weights", "w1", "w2")
    for name, one, of, part in zip(("y", *names), (got, *(one.grad for one in own)), (y, *(one.grad for one in whole)),
                                   (rank, *parts), strict=True):  # fmt: skip
        error = float((one.detach().double() - of[part].detach()).abs().max())
        expect(error < 1e-5, f"{'y' if name == 'y' else 'the gradient of ' + name} is {error} off")
    # Checkpointed, what was sent is sent again once, and a recomputation that ends early is no error.
    from syncopate.ops import mixture_nodes
    from torch.utils.checkpoint import checkpoint

    nans, mixture_nodes._nans = mixture_nodes._nans, lambda *_: expect(False, "NaNs are sent")
    for reentrant in (False, True):
        again = [one.detach().clone().requires_grad_() for one in own]

        def layer(x, *rest):
            return sy.ops.moe(x.tanh(), ids[rank], *rest)

        checkpoint(layer, *again, use_reentrant=reentrant).backward(grad[rank].float())
        plain = [one.detach().clone().requires_grad_() for one in own]
        layer(*plain).backward(grad[rank].float())
        for name, one, right in zip(names, again, plain, strict=True):
            expect(
                torch.equal(one.grad, right.grad),
                f"checkpointed {reentrant=}, the gradient of {name} differs",
            )
    mixture_nodes._nans = nans


def right_in(group, rank, **options):
    """That a mixture in a group is right, whichever ranks it has."""
    size = dist.get_world_size(group)
    layer, ids = Layer(size, 2 * size, 21), routings(size, 2 * size, 21)["random"]
    x, weights, w1, w2 = layer.of(rank)
    y = sy.ops.moe(x, ids[rank], weights, w1, w2, group, activation="relu", **options)
    expect(torch.equal(y.double(), layer.right(rank, ids)), f"in a group of {size} y differs")


@contextmanager
def group_of(ranks, **options):
    group = dist.new_group(ranks, **options)
    yield group
    if group is not dist.GroupMember.NON_GROUP_MEMBER:
        sy.close(group)
        dist.destroy_process_group(group)


def check_groups(rank, size):
    """A rank of each node; all ranks in another order."""
    with group_of([node * PLACES for node in range(NODES)]) as leaders:
        if rank % PLACES == 0:
            right_in(leaders, rank // PLACES)
    turned = [node * PLACES + place for node in range(NODES) for place in reversed(range(PLACES))]
    with group_of(turned, sort_ranks=False) as group:
        right_in(group, dist.get_rank(group))


def check_lifetime(rank, size):
    """What reaches a group reaches its nodes' programs, and nothing keeps them."""
    operators = sy.cache.held()[0]
    gone = lived(rank, size, operators)
    sy.cache.drop_gone()
    gc.collect()
    expect(gone() is None and sy.cache.held()[0] == operators, f"left: {gone()}, {sy.cache.held()}")


def lived(rank, size, operators):
    process_group = dist.new_group(list(range(size)))
    group = sy.group.of_process_group(process_group, "host")
    right_in(process_group, rank)
    used, _ = group.memory()
    expect(used > 0 and sy.cache.held()[0] == operators + 1, f"{used} bytes, {sy.cache.held()} operators")
    expect(
        group.release() == used and group.memory() == (used, used), f"released: {group.memory()} of {used}"
    )
    refused(lambda: right_in(process_group, rank), "has been released")
    expect(group.restore() == used and group.memory() == (used, 0), f"restored: {group.memory()}")
    right_in(process_group, rank)
    group.set_budget(used)
    refused(lambda: right_in(process_group, rank, bound=2 * size * T * K), "does not fit the group's budget")
    # A program of the whole group counts what its node's programs take, and these count its.
    whole = sy.ops.AllGatherMatmul(
        4 * size, 16, 32, torch.float32, group, strategy=sy.Strategy(unfused=False)
    )
    both = used + (2 << 20)  # a heap's granule
    operands = torch.ones(4, 32), torch.ones(32, 16)
    group.set_budget(both - 1)
    refused(lambda: whole(*operands), f"fit the group's budget: {used} of {both - 1} bytes are in use")
    group.set_budget(both)
    whole(*operands)
    expect(group.memory() == (both, 0), f"with both, memory is {group.memory()}")
    refused(lambda: right_in(process_group, rank, bound=2 * size * T * K), f"budget: {both} of {both} bytes")
    whole.close()
    group.set_budget(0)
    node = group.parts["node"]
    works = node.rendezvous
    if rank // PLACES == NODES - 1:  # one node alone cannot
        node.rendezvous = mock.Mock()
        node.rendezvous.release.side_effect = sy.MachineError("it stays")
    refused(group.release, "it stays")
    node.rendezvous = works
    expect(group.memory() == (used, 0), f"where a node cannot release, memory is {group.memory()}")
    expect(sy.recover(process_group) is group and group.parts["node"] is node, "the group does not go on")
    right_in(process_group, rank)
    expect(sy.cache.held()[0] == operators + 1, f"after a recovery {sy.cache.held()} operators")
    other = dist.new_group(list(range(size)))
    expect(
        sy.recover(process_group, to=other) is group and not group.parts,
        "the group does not go on as another",
    )
    right_in(other, rank)
    sy.close(other)
    expect(sy.cache.held()[0] == operators and group.memory() == (0, 0), f"closed: {sy.cache.held()}")
    right_in(other, rank)
    dist.destroy_process_group(process_group)
    dist.destroy_process_group(other)
    return weakref.ref(group)


def check_graphs(rank, size):
    """Compiled, with gradients once a call has said where ranks are; before, an error says so. Under autocast as well."""
    experts = 2 * size
    layer, ids = Layer(size, experts, 5), routings(size, experts, 5)["random"]
    operands = layer.of(rank)
    with group_of(list(range(size))) as group:

        def call(x, *rest):
            return sy.ops.moe(x * 1, ids[rank], *rest, group, activation="relu")

        compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
        asking = [one.clone().requires_grad_() for one in operands]
        refused(lambda: compiled(*asking), "compiled for ranks of 1 node, and they are on", "torch.compile")
        expect(torch.equal(compiled(*operands).double(), layer.right(rank, ids)), "compiled, y differs")
        torch._dynamo.reset()
        grads = []
        for way in (call, torch.compile(call, backend="aot_eager", fullgraph=True)):
            own = [one.clone().requires_grad_() for one in operands]
            y = way(*own)
            expect(torch.equal(y.double(), layer.right(rank, ids)), "with gradients y differs")
            y.square().sum().backward()
            grads.append([one.grad for one in own])
        for one, other in zip(*grads, strict=True):
            expect(torch.equal(one, other), "compiled, gradients differ")
        with torch.autocast("cpu", torch.bfloat16):
            y = call(*operands)
        expect(y.dtype == torch.bfloat16, f"under autocast y is {y.dtype}")
        right = layer.right(rank, ids)
        expect((y.double() - right).abs().max() <= right.abs().max() / 64, "under autocast y differs")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.new_group([node * PLACES for node in range(NODES)])  # ranks are in unequal numbers of groups
    checks = {name: check for name, check in globals().items() if name.startswith("check_")}
    for name in sys.argv[2:] or checks:
        checks[name](rank, size)
    rows = [row for row in str(sy.report()).splitlines() if f"moe T={T},topk={K},H={H},ranks={size}," in row]
    expect(len(rows) == 1 and f"rank {rank} sends" in rows[0], f"the report says: {sy.report()}")
    dist.barrier()
    if rank == 0:
        print(f"{NODES} nodes of {PLACES}: mixtures are exact")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
