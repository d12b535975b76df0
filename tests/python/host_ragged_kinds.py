"""Grouped products of many kinds (ragged_kernels.py), fused with the way of rows to their experts' ranks; run by test_ragged.py.

host_ragged_kinds.py RANKS [CHECK …]
"""

import os
import sys
import time
import warnings

if __name__ == "__main__":  # else its kernels are compiled
    os.environ["TRITON_INTERPRET"] = "1"

import host_ragged as host  # noqa: E402  (it says where the package is)
import ragged_kernels as kernels  # noqa: E402
import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import triton  # noqa: E402
from host_ragged import BK, BM, BN, OWN, K, N  # noqa: E402
from host_script import expect, run_checks  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

PROGRAMS = 3
# By name: what parameters beside a_ptr are bound to.
TOLD = {
    "all_tiles": {"offsets_ptr": "counts"},
    "counted_tiles": {"offsets_ptr": "counts.offsets"},
    "walked_tiles": {"offsets_ptr": "counts"},
    "walked_sizes": {"sizes_ptr": "counts.sizes"},
    "by_ends": {"ends_ptr": "counts.ends"},
    "swizzled_tiles": {"offsets_ptr": "counts"},
    "bisected": {"offsets_ptr": "counts"},
    "by_blocks": {
        "sorted_ptr": "counts.rows[BM]", "experts_ptr": "counts.experts[BM]", "padded_ptr": f"counts.padded[{BM}]",
    },
    "described_on_device": {"offsets_ptr": "counts"},
    "described_whole": {"offsets_ptr": "counts"},
    "described_by_host": {"offsets_ptr": "counts"},
}  # fmt: skip
#: Their tiles wait for all rows, which is said.
TOGETHER = {"described_whole", "described_by_host"}


def bind_of(name, back):
    rows = "a_desc" if name == "described_by_host" else "a_ptr"
    return {rows: "A", **TOLD[name], **({"c_ptr": "C"} if back else {})}


def grid_of(name, bound, programs=PROGRAMS):
    blocks, columns = triton.cdiv(bound, BM), triton.cdiv(N, BN)
    return {
        "by_ends": (blocks, columns, OWN),
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
    names = getattr(kernels, name).arg_names
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
        for back in (False, True):
            fused = sy.fuse(getattr(kernels, name), host.plan_of(size, bound, back), bind_of(name, back))
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                for call, (what, counts) in enumerate(host.routings(size, 5, 30).items()):
                    if call % size == dist.get_rank():
                        time.sleep(0.05)
                    compare(fused, name, counts, bound, what, back)
            told = [
                str(one.message) for one in said if "waits for the rows of all experts" in str(one.message)
            ]
            expect(len(told) == (name in TOGETHER), f"{name}: {told}")
            expect(len(fused.prepared) == 1, f"{name}: set up {len(fused.prepared)} times")
            fused.close()


if __name__ == "__main__":
    run_checks(globals())
    print(f"{sys.argv[1]} ranks: ragged")
