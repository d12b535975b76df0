"""What a fused kernel takes for a tensor that it reads: this rank's shard, and nothing else; run by test_host.py.

host_shards.py RANKS
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "python")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from example_calls import CALLS, Blocks, numbers  # noqa: E402
from host_script import expect, on_ranks  # noqa: E402
from stated_kernels import stated  # noqa: E402
from syncopate import ranks, trace  # noqa: E402
from syncopate.group import of_folder  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

N, K, F, ROWS = 16, 16, 16, 8
BLOCKS = Blocks(8, 16, 16, 2, 3)
fp32 = torch.float32


def refused(said: str, call, *args, **named) -> None:
    try:
        call(*args, **named)
    except ValueError as error:
        expect(said in str(error), f"expected '{said}', got '{error}'")
    else:
        raise RuntimeError(f"no ValueError: {said}")


def a_of(rank: int, got: list[int], held: list[int], parameter: str = "a_ptr", tensor: str = "A") -> str:
    return (
        f"{parameter} (bound to {tensor}, rank {rank}): expected this rank's shard of shape {held}, got {got}"
    )


def check_kernels(rank: int, size: int, group) -> None:
    """By pointers, by descriptors made in the kernel and on the host, of rows and of columns: the whole is refused also after
    the shard was taken, and so is what is turned; prepare(), a recorded call and strategy="auto" refuse as a call does."""
    for axis in (0, 1):
        m, k = (ROWS * size, K) if axis == 0 else (ROWS, K * size)
        plan = sy.plans.all_gather(sy.plans.mesh_of(size), sy.Tensor("A", (m, k), "fp32"), axis)
        whole, w = numbers((m, k), 1, fp32), numbers((k, N), 2, fp32)
        shard = whole.chunk(size, axis)[rank].contiguous()
        held = list(shard.shape)
        for example in CALLS.values():
            fused, out = example.fuse(plan, group=group), torch.full((m, N), float("nan"))
            said = a_of(rank, [m, k], held, example.parameter)
            if size == 1:  # where both have one shape, the whole is the shard
                example.launch(fused, whole, w, out, BLOCKS)
                expect(torch.equal(out, whole @ w), "one rank's whole differs")
                fused.close()
                continue
            refused(said, example.launch, fused, whole, w, out, BLOCKS)
            grid, arguments = example.arguments(whole, w, out, BLOCKS)
            refused(said, fused.prepare, grid, **arguments)
            refused(said, trace.record, fused, grid, **arguments)
            auto = example.fuse(plan, group=group, strategy="auto")
            refused(said, auto[grid], **arguments)
            example.launch(fused, shard, w, out, BLOCKS)
            expect(torch.equal(out, whole @ w), f"{example.parameter} along {axis} differs")
            refused(said, example.launch, fused, whole, w, out, BLOCKS)
            if held[0] != held[1]:
                said = a_of(rank, held[::-1], held, example.parameter)
                refused(said, example.launch, fused, torch.zeros(held[::-1]), w, out, BLOCKS)
            fused.close()


def check_descriptors(rank: int, size: int, group) -> None:
    """A descriptor is as large as it says, whatever its base is: of a part of a larger tensor, whose rows are apart, and of a
    tensor's first rows."""
    m, example = ROWS * size, CALLS["matmul_persistent_host_tma"]
    plan = sy.plans.all_gather(sy.plans.mesh_of(size), sy.Tensor("A", (m, K), "fp32"))
    whole, w = numbers((m, K), 1, fp32), numbers((K, N), 2, fp32)
    fused, out = example.fuse(plan, group=group), torch.full((m, N), float("nan"))
    wide = torch.cat([whole[ROWS * rank : ROWS * (rank + 1)], torch.full((ROWS, K), 9.0)], 1)
    grid, arguments = example.arguments(whole, w, out, BLOCKS)

    def launch(descriptor) -> None:
        fused[grid](**arguments | {"a_desc": descriptor})

    launch(TensorDescriptor(wide, [ROWS, K], [2 * K, 1], [BLOCKS.m, BLOCKS.k]))
    expect(torch.equal(out, whole @ w), "a descriptor of some columns differs")
    refused(
        a_of(rank, [ROWS, 2 * K], [ROWS, K], "a_desc"),
        launch,
        TensorDescriptor(wide, [ROWS, 2 * K], [2 * K, 1], [BLOCKS.m, BLOCKS.k]),
    )
    fused.close()


def check_plans(rank: int, size: int, group) -> None:
    """Of other collectives, and of shards that are not alike on all ranks."""
    example, mesh = CALLS["matmul_pointers"], sy.plans.mesh_of(size)
    m, w = ROWS * size, numbers((K, N), 2, fp32)
    for kind, tensor, held in (
        ("all_to_all", sy.Tensor("A", (m, K * size), "fp32"), [ROWS, K * size]),
        ("ring", sy.Tensor("A", (m, K), "fp32"), [ROWS, K]),
        ("all_gather", sy.Tensor("A", (m + 1, K), "fp32"), [ROWS + (rank == 0), K]),
    ):
        fused = example.fuse(getattr(sy.plans, kind)(mesh, tensor), group=group)
        out, whole = torch.zeros(tensor.shape[0], N), torch.zeros(tensor.shape)
        said = a_of(rank, list(tensor.shape), held)
        refused(said, example.launch, fused, whole, w, out, BLOCKS)
        fused.close()
    # What others hold is not read here: any shape stands for it. The root's is the whole.
    fused = example.fuse(sy.plans.broadcast(mesh, sy.Tensor("A", (m, K), "fp32")), group=group)
    whole, out = numbers((m, K), 1, fp32), torch.full((m, N), float("nan"))
    if rank == 0:
        refused(a_of(rank, [ROWS, K], [m, K]), example.launch, fused, whole[:ROWS], w, out, BLOCKS)
    example.launch(fused, whole if rank == 0 else torch.zeros(rank, K), w, out, BLOCKS)
    expect(torch.equal(out, whole @ w), "what is broadcast differs")
    fused.close()


def check_stages(rank: int, size: int, group) -> None:
    """A program of two stages: its input, what one stage hands to the next, and its output, which may be whole."""
    example, mesh, m = CALLS["matmul_pointers"], sy.plans.mesh_of(size), ROWS * size
    plan = sy.plans.join(
        [
            sy.plans.all_gather(mesh, sy.Tensor("X", (m, K), "fp32")),
            sy.plans.push_reduce(mesh, sy.Tensor("C", (m, N), "fp32")),
        ],
        [sy.Tensor("H", (m, F), "fp32")],
    )
    bind = [{"a_ptr": "X", "c_ptr": "H"}, {"a_ptr": "H", "c_ptr": "C"}]
    fused = sy.fuse([example.kernel] * 2, plan, bind=bind, group=group)
    x, w1, w2 = numbers((m, K), 1, fp32), numbers((K, F), 2, fp32), numbers((F, N), 3, fp32)
    mine = slice(ROWS * rank, ROWS * (rank + 1))

    def run(x, h, out) -> None:
        up, down = example.arguments(x, w1, torch.empty(m, F), BLOCKS), example.arguments(h, w2, x, BLOCKS)
        sizes = {"M": m, "stride_cm": N}
        first = fused.call(0, up[0], **up[1] | {"c_ptr": h, "M": m, "stride_cm": F})
        fused.run([first, fused.call(1, up[0], **down[1] | sizes | {"c_ptr": out, "N": N})])

    h, out = torch.empty(m, F), torch.zeros(m, N)
    refused(a_of(rank, [m, K], [ROWS, K], tensor="X"), run, x, h, out)
    said = f"(bound to H, rank {rank}): expected the tensor's shape [{m}, {F}], got [{ROWS}, {F}]"
    refused(said, run, x[mine], h[mine], out)
    said = f"expected what this rank holds at the end, of shape [{ROWS}, {N}], got [{ROWS + 1}, {N}]"
    refused(said, run, x[mine], h, torch.zeros(ROWS + 1, N))
    run(x[mine], h, out)
    expect(torch.equal(out[mine], size * (x @ w1 @ w2)[mine]), "two stages differ")
    fused.close()


def check_stated(rank: int, size: int, group) -> None:
    m, n = ROWS * size, 16
    plan = sy.plans.all_gather(sy.plans.mesh_of(size), sy.Tensor("X", (m, n), "fp32"))
    fused = sy.fuse(stated(), plan, bind={"x_ptr": "X"}, group=group)
    x, y = numbers((m, n), 1, fp32), torch.zeros(m, n)
    said = a_of(rank, [m, n], [ROWS, n], "x_ptr", "X")
    refused(said, fused[(2,)], x, y, m, n, 2.0, BLOCK_M=8, BLOCK_N=16)
    fused[(2,)](x[ROWS * rank : ROWS * (rank + 1)], y, m, n, 2.0, BLOCK_M=8, BLOCK_N=16)
    expect(torch.equal(y, 2 * x), "a stated kernel's result differs")
    fused.close()


def check(place: ranks.Place) -> None:
    torch.set_num_threads(1)
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    check_kernels(place.rank, place.size, group)
    if place.size == 1:
        return
    for one in (check_descriptors, check_plans, check_stages, check_stated):
        one(place.rank, place.size, group)


if __name__ == "__main__":
    on_ranks(check)
    print("ok", flush=True)
