"""Grouped products of many kinds (ragged_kernels.py), fused with the way of rows to their experts' ranks; run by test_ragged.py.

host_ragged_kinds.py RANKS [CHECK …]
"""

import os
import sys
import warnings

if __name__ == "__main__":  # else its kernels are compiled
    os.environ["TRITON_INTERPRET"] = "1"

import host_ragged as host  # noqa: E402  (it says where the package is)
import ragged_described as described  # noqa: E402
import ragged_kernels as kernels  # noqa: E402
import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import triton  # noqa: E402
from host_ragged import BK, BM, BN, OWN, K, N  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

PROGRAMS = 3
SWEEP = os.environ.get("SYNCOPATE_SWEEP")
# By name: what parameters beside a_ptr are bound to.
TOLD = {
    "all_tiles": {"offsets_ptr": "counts"},
    "counted_tiles": {"offsets_ptr": "counts.offsets"},
    "walked_tiles": {"offsets_ptr": "counts"},
    "walked_sizes": {"sizes_ptr": "counts.sizes"},
    "by_ends": {"ends_ptr": "counts.ends"},
    "swizzled_tiles": {"offsets_ptr": "counts"},
    "bisected": {"offsets_ptr": "counts"},
    "while_tiles": {"offsets_ptr": "counts"},
    "stepped_tiles": {"offsets_ptr": "counts"},
    "block_pointers": {"offsets_ptr": "counts"},
    "blocks_in_turn": {
        "sorted_ptr": "counts.rows[BM]", "experts_ptr": "counts.experts[BM]", "padded_ptr": "counts.padded[BM]",
    },
    "by_blocks": {
        "sorted_ptr": "counts.rows[BM]", "experts_ptr": "counts.experts[BM]", "padded_ptr": f"counts.padded[{BM}]",
    },
    "described_on_device": {"offsets_ptr": "counts"},
    "described_whole": {"offsets_ptr": "counts"},
    "described_by_host": {"offsets_ptr": "counts"},
}  # fmt: skip
#: Their tiles wait for all rows, which is said.
TOGETHER = {"stepped_tiles"}


def kernel_of(name):
    return getattr(kernels if hasattr(kernels, name) else described, name)


def bind_of(name, back):
    rows = "a_desc" if name == "described_by_host" else "a_ptr"
    return {rows: "A", **TOLD[name], **({"c_ptr": "C"} if back else {})}


def grid_of(name, bound, programs=PROGRAMS):
    blocks, columns = triton.cdiv(bound, BM), triton.cdiv(N, BN)
    return {
        "by_ends": (blocks, columns, OWN),
        "block_pointers": (blocks, columns, OWN),
        "by_blocks": ((blocks + OWN) * columns,),
        "described_on_device": (OWN, blocks, columns),
        "described_by_host": (OWN, blocks, columns),
    }.get(name, (programs,))


def arguments_of(name, a, b, c, counts, bound, programs=PROGRAMS):
    """By the kernel's parameters."""
    every = {
        "a_ptr": a, "b_ptr": b, "c_ptr": c, "N": N, "K": K, "E": OWN, "BM": BM, "BN": BN, "BK": BK, "M": bound,
        "BLOCKS": triton.cdiv(bound, BM), "PROGRAMS": programs, "GROUP": 2, "BE": triton.next_power_of_2(OWN),
        "rows_given": bound, **dict.fromkeys(TOLD[name], counts),
    }  # fmt: skip
    names = kernel_of(name).arg_names
    if "a_desc" in names:
        every["a_desc"] = TensorDescriptor(a, list(a.shape), list(a.stride()), [BM, BK])
        flat = b.reshape(-1, N)
        every["b_desc"] = TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [BK, BN])
    return {parameter: every[parameter] for parameter in names}


def compare(fused, name, counts, bound, what, back):
    rank, size = dist.get_rank(), dist.get_world_size()
    everything = torch.randint(
        -2, 3, (max(1, int(counts.sum())), K), generator=torch.Generator().manual_seed(1)
    ).float()
    b = torch.randint(-2, 3, (OWN * size, K, N), generator=torch.Generator().manual_seed(2)).float()
    first, last = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
    a = everything[first:last] if last > first else torch.zeros(1, K)
    c = torch.full((len(a) + 1 if back else bound, N), float("nan"))
    own = b[rank * OWN : (rank + 1) * OWN].contiguous()
    arguments = arguments_of(name, a, own, c, counts[rank].to(torch.int32), bound)
    fused[grid_of(name, bound)](**arguments)
    right = torch.zeros(everything.shape[0], N)
    came = host.arrived(counts, rank, bound, size)
    if back:
        for owner in range(size):
            for expert, rows in enumerate(host.arrived(counts, owner, bound, size), owner * OWN):
                right[rows] = everything[rows] @ b[expert]
        right = right[first:last]
    else:
        right = torch.cat([everything[rows] @ own[expert] for expert, rows in enumerate(came)])
    what = f"{name}, {what}, back {back}, rank {rank}"
    expect(torch.equal(c[: len(right)], right), f"{what}: differs")
    expect(bool(c[len(right) :].isnan().all()), f"{what}: stored behind its rows")


def check_kinds(_, size):
    """Each takes counts that change, waits where it may, and is exact."""
    bound = 40 * size
    for name in TOLD:
        for back in (False, True) if SWEEP or name in ("walked_tiles", "by_blocks") else (True,):
            fused = sy.fuse(kernel_of(name), host.plan_of(size, bound, back), bind_of(name, back))
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                for call, (what, counts) in enumerate(host.routings(size, 5, 30).items()):
                    with host.late_rows(0.1 if call % size == dist.get_rank() else 0):
                        compare(fused, name, counts, bound, what, back)
            told = [
                str(one.message) for one in said if "waits for the rows of all experts" in str(one.message)
            ]
            expect(len(told) == (name in TOGETHER), f"{name}: {told}")
            expect(len(fused.prepared) == 1, f"{name}: set up {len(fused.prepared)} times")
            fused.close()


def check_blocks_that_reach_on(_, size):
    """Rows of the experts behind, which a block that a descriptor reads holds, too, have come."""
    rank, bound, wide = dist.get_rank(), 40 * size, 32
    fused = sy.fuse(
        described.sums_of_blocks, host.plan_of(size, bound), {"a_desc": "A", "offsets_ptr": "counts"}
    )
    generator = torch.Generator().manual_seed(3)
    few = torch.randint(0, 3, (size, OWN * size), generator=generator)
    for call, counts in enumerate([*host.routings(size, 5, 30).values(), few, few.flip(1)]):
        everything = torch.randint(-2, 3, (max(1, int(counts.sum())), K), generator=generator).float()
        first, last = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
        a = everything[first:last] if last > first else torch.zeros(1, K)
        c, told = torch.full((bound, K), float("nan")), counts[rank].to(torch.int32)
        desc = TensorDescriptor(a, list(a.shape), list(a.stride()), [BM, wide])
        with host.late_rows(0.1 if call % size == rank else 0), warnings.catch_warnings():
            warnings.simplefilter("error")  # as it would where tiles wait for all
            fused[(PROGRAMS,)](desc, c, told, OWN, K, BM, wide)
        came = host.arrived(counts, rank, bound, size)
        x, right, begin = everything[sum(came, [])], torch.full((bound, K), float("nan")), 0
        for rows in came:
            for row in range(begin, begin + len(rows), BM):
                right[row : min(row + BM, begin + len(rows))] = x[row : row + BM].sum(0)
            begin += len(rows)
        expect(torch.equal(c[:begin], right[:begin]), f"call {call}, rank {rank}: {counts.tolist()}")
    fused.close()


F, BF = 12, 16
LAYER = [
    {"a_ptr": "A", "offsets_ptr": "counts"},
    {"ends_ptr": "counts.ends"},
    {"c_ptr": "C", "ends_ptr": "counts.ends"},
]


def kernels_of_layer(back):
    """Three kernels of a layer, and what they are bound to."""
    bind = [*LAYER[:2], LAYER[2] if back else {"ends_ptr": "counts.ends"}]
    return list(zip([kernels.halves, kernels.gated, kernels.lowered], bind, strict=True))


def calls_of_layer(a, up, down, h, c, counts, bound):
    """Of each its grid and its arguments."""
    return [
        ((PROGRAMS,), a, up, h, counts, OWN, F, K, BM, BN, BK),
        ((2,), h, counts, OWN, F, BF, BM),
        ((OWN, triton.cdiv(bound, BM), triton.cdiv(N, BN)), h, down, c, counts, N, F, BM, BN, BF),
    ]


def layer_of(plan, back, **options):
    three, bind = zip(*kernels_of_layer(back), strict=True)
    return sy.fuse(three, plan, bind, **options)


def call_layer(fused, *given):
    fused.run([fused.call(index, *one) for index, one in enumerate(calls_of_layer(*given))])


def through_layer(rows, up, down):
    h = rows @ up
    return (h[:, :F] * h[:, F:].clamp(min=0)) @ down


def check_layer(_, size):
    """Three kernels of one layer over one dispatch: the first waits, the others follow, what the last makes goes back."""
    rank, bound = dist.get_rank(), 40 * size
    generator = torch.Generator().manual_seed(7)
    ups, downs = (
        torch.randint(-2, 3, shape, generator=generator).float()
        for shape in ((OWN * size, K, 2 * F), (OWN * size, F, N))
    )
    own = slice(rank * OWN, (rank + 1) * OWN)
    for back in (True, False):
        fused = layer_of(host.plan_of(size, bound, back), back)
        for call, (what, counts) in enumerate(host.routings(size, 5, 30).items()):
            rows = torch.randint(-2, 3, (max(1, int(counts.sum())), K), generator=generator).float()
            first, last = int(counts[:rank].sum()), int(counts[: rank + 1].sum())
            a = rows[first:last] if last > first else torch.zeros(1, K)
            h, c = (torch.full((bound, width), float("nan")) for width in (2 * F, N))
            told = counts[rank].to(torch.int32)
            if call == 3:
                dist.barrier()
                fused.reset()
            with host.late_rows(0.1 if call % size == rank else 0):
                call_layer(fused, a, ups[own].contiguous(), downs[own].contiguous(), h, c, told, bound)
            right = torch.zeros(len(rows), N)
            for owner in range(size):
                for expert, came in enumerate(host.arrived(counts, owner, bound, size), owner * OWN):
                    right[came] = through_layer(rows[came], ups[expert], downs[expert])
            came = sum(host.arrived(counts, rank, bound, size), [])
            right = right[first:last] if back else right[came]
            expect(torch.equal(c[: len(right)], right), f"{what}, back {back}: rank {rank} differs")
            expect(
                bool(c[len(right) :].isnan().all()), f"{what}, back {back}: rank {rank}: more than its rows"
            )
        expect(len(fused.prepared) == 1, f"set up {len(fused.prepared)} times")
        fused.close()


def check_refused(_, size):
    """What a layer cannot be is told by file, line and parameter."""
    plan, bound = host.plan_of(size, 64, True), 64
    a, h, c = torch.zeros(4, K), torch.zeros(bound, 2 * F), torch.zeros(bound, N)
    up, down = torch.zeros(OWN, K, 2 * F), torch.zeros(OWN, F, N)
    told = torch.zeros(OWN * size, dtype=torch.int32)

    def call(fused, a=a, c=c, told=told):
        call_layer(fused, a, up, down, h, c, told, bound)

    try:
        layer_of(plan, True)[(1,)](a, up, h, told, OWN, F, K, BM, BN, BK)
        raise RuntimeError("not refused: a call of one kernel of three")
    except TypeError as error:
        expect("give a Call for each, got 1" in str(error), str(error))
    second = [{**LAYER[0]}, {"h_ptr": "A"}, LAYER[2]]
    three = [kernels.halves, kernels.gated, kernels.lowered]
    host.refused("h_ptr", lambda: call(sy.fuse(three, plan, second)))
    host.refused("no parameter is bound to C", lambda: call(layer_of(plan, False)))
    ends = [{**LAYER[0], "offsets_ptr": "counts.places"}, *LAYER[1:]]
    host.refused("there is no places of counts", lambda: call(sy.fuse(three, plan, ends)))
    ends = [{**LAYER[0], "offsets_ptr": "counts.rows"}, *LAYER[1:]]
    host.refused("say of how many rows", lambda: call(sy.fuse(three, plan, ends)))
    for name in ("a", "up"):
        wrong = {"a": a, "up": up}[name].clone().requires_grad_()
        given = {"a": a, "up": up} | {name: wrong}
        fused = layer_of(plan, True)
        host.refused(
            f"{'a_ptr' if name == 'a' else 'b_ptr'} requires a gradient, and a fused kernel has none",
            lambda given=given, fused=fused: call_layer(
                fused, given["a"], given["up"], down, h, c, told, bound
            ),
        )
        with torch.no_grad():
            call_layer(fused, given["a"], given["up"], down, h, c, told, bound)
        fused.close()


if __name__ == "__main__":
    run_checks(globals())
    print(f"{sys.argv[1]} ranks: ragged")
