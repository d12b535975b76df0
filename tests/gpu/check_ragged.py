"""A user's own grouped kernel over rows that only the device counts, on GPUs: torchrun --nproc-per-node 2
tests/gpu/check_ragged.py [SECTION …]. See SECTIONS at the end."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
sys.path.insert(0, str(ROOT / "tests" / "python"))

import host_ragged as host  # noqa: E402
import host_ragged_kinds as kinds  # noqa: E402
import syncopate as sy  # noqa: E402
from sections import expect, rank, run, size, straggle  # noqa: E402

DEVICE = "cuda"
CALLS = 40
PROGRAMS = 7  # of persistent kernels: fewer than there are tiles


class Fused:
    """One kernel, with what it makes going back or staying."""

    def __init__(
        self, kernel: Any, back: bool, bound: int, over: str = "error", kind: str | None = None
    ) -> None:
        """`kind`: of host_ragged_kinds.py."""
        self.back, self.bound, self.kind = back, bound, kind
        bind = kinds.bind_of(kind, back) if kind else host.BIND | ({"c_ptr": "C"} if back else {})
        self.fused = sy.fuse(kernel, host.plan_of(size(), bound, back), bind, over=over)
        weights = torch.randint(
            -2, 3, (host.OWN * size(), host.K, host.N), generator=torch.Generator().manual_seed(2)
        )
        self.weights = weights.float().to(DEVICE)
        self.own = self.weights[rank() * host.OWN : (rank() + 1) * host.OWN].contiguous()
        self.a = torch.zeros(bound, host.K, device=DEVICE)
        self.told = torch.zeros(host.OWN * size(), dtype=torch.int32, device=DEVICE)

    def rows(self, counts: torch.Tensor) -> torch.Tensor:
        """Of all ranks."""
        shape, generator = (
            (max(1, int(counts.sum())), host.K),
            torch.Generator().manual_seed(int(counts.sum())),
        )
        return torch.randint(-2, 3, shape, generator=generator).float().to(DEVICE)

    def give(self, counts: torch.Tensor) -> None:
        first, last = int(counts[: rank()].sum()), int(counts[: rank() + 1].sum())
        self.a[: last - first].copy_(self.rows(counts)[first:last])
        self.told.copy_(counts[rank()].int())

    def call(self) -> torch.Tensor:
        c = torch.full((self.bound, host.N), float("nan"), device=DEVICE)
        if self.kind:
            given = kinds.arguments_of(self.kind, self.a, self.own, c, self.told, self.bound, PROGRAMS)
            self.fused[kinds.grid_of(self.kind, self.bound, PROGRAMS)](**given)
            return c
        grid, sizes = host.launch_of(self.fused, self.bound)
        self.fused[grid](self.a, self.own, c, self.told, *sizes)
        return c

    def judge(self, counts: torch.Tensor, c: torch.Tensor, what: str) -> None:
        everything = self.rows(counts)
        if not self.back:
            came = host.arrived(counts, rank(), self.bound, size())
            right = torch.cat([everything[rows] @ self.own[expert] for expert, rows in enumerate(came)])
        else:
            right = torch.zeros(len(everything), host.N, device=DEVICE)
            for owner in range(size()):
                of_owner = host.arrived(counts, owner, self.bound, size())
                for expert, rows in enumerate(of_owner, owner * host.OWN):
                    right[rows] = everything[rows] @ self.weights[expert]
            right = right[int(counts[: rank()].sum()) : int(counts[: rank() + 1].sum())]
        expect(torch.equal(c[: len(right)], right), f"{what}: differs")
        expect(bool(c[len(right) :].isnan().all()), f"{what}: more than its rows")


def call_queued(of: Fused, seed: int, calls: int, what: str) -> None:
    """Calls one behind another, with counts that change and stragglers."""
    made, rng, routings = [], random.Random(rank()), host.routings(size(), seed, 30)
    for call in range(calls):
        name = list(routings)[call % len(routings)]
        of.give(routings[name])
        straggle(rng, 0.1)
        made.append((name, of.call()))
    of.fused.check()
    for name, c in made:
        of.judge(routings[name], c, f"{what}, back {of.back}, {name}")
    expect(len(of.fused.prepared) == 1, "set up once")
    of.fused.close()


def queued() -> None:
    for kernel in (host.by_offsets, host.searched):
        for back in (False, True):
            call_queued(Fused(kernel, back, 40 * size()), 11, CALLS, kernel.__name__)


def of_kinds() -> None:
    """Persistent kernels, sizes, ends, tables by block, descriptors."""
    for name in kinds.TOLD:
        for back in (False, True):
            of = Fused(kinds.kernel_of(name), back, 40 * size(), kind=name)
            call_queued(of, 13, CALLS // 2, name)
        print(f"{name}: right", flush=True)


def layer() -> None:
    """Three kernels over one dispatch; what the last makes goes back."""
    bound, own = 40 * size(), slice(rank() * host.OWN, (rank() + 1) * host.OWN)
    generator, rng = torch.Generator().manual_seed(7), random.Random(rank())

    def integers(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=generator).float().to(DEVICE)

    ups = integers(host.OWN * size(), host.K, 2 * kinds.F)
    downs = integers(host.OWN * size(), kinds.F, host.N)
    fused, made = kinds.layer_of(host.plan_of(size(), bound, True), True), []
    routings = list(host.routings(size(), 17, 30).values())
    for call in range(CALLS):
        if call == CALLS // 2:
            fused.check()
            torch.distributed.barrier()
            fused.reset()  # puts back the tables as they were uploaded
        counts = routings[call % len(routings)]
        rows = integers(max(1, int(counts.sum())), host.K)
        first, last = int(counts[: rank()].sum()), int(counts[: rank() + 1].sum())
        a = torch.zeros(bound, host.K, device=DEVICE)
        a[: last - first] = rows[first:last]
        h, c = (torch.full((bound, width), float("nan"), device=DEVICE) for width in (2 * kinds.F, host.N))
        straggle(rng, 0.1)
        told = counts[rank()].int().to(DEVICE)
        kinds.call_layer(fused, a, ups[own].contiguous(), downs[own].contiguous(), h, c, told, bound)
        made.append((counts, rows, first, last, c, a, h, told))
    fused.check()
    for counts, rows, first, last, c, *_ in made:
        right = torch.zeros(len(rows), host.N, device=DEVICE)
        for owner in range(size()):
            for expert, came in enumerate(host.arrived(counts, owner, bound, size()), owner * host.OWN):
                right[came] = kinds.through_layer(rows[came], ups[expert], downs[expert])
        expect(torch.equal(c[: last - first], right[first:last]), "the layer differs")
        expect(bool(c[last - first :].isnan().all()), "the layer: more than its rows")
    fused.close()


def graph() -> None:
    """One captured graph, replayed with other counts."""
    for kind in (None, "walked_tiles", "swizzled_tiles"):
        replay(Fused(kinds.kernel_of(kind) if kind else host.by_offsets, True, 40 * size(), kind=kind))


def replay(of: Fused) -> None:
    of.give(host.routings(size(), 1, 30)["random"])
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        of.call()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        c = of.call()
    for seed in range(20):
        for name, counts in host.routings(size(), seed, 30).items():
            of.give(counts)
            captured.replay()
            of.judge(counts, c, f"replayed with {name}")
    of.fused.check()
    of.fused.close()


def over() -> None:
    """More rows than the bound: the last ones are left out, or `check` tells all ranks."""
    counts = host.routings(size(), 3, 20)["all to one expert"]
    for back in (False, True):
        drops = Fused(host.by_offsets, back, 24, "drop")
        drops.give(counts)
        drops.judge(counts, drops.call(), f"dropped, back {back}")
        drops.fused.check()
        tells = Fused(host.by_offsets, back, 24)
        tells.give(counts)
        try:
            tells.call()
            tells.fused.check()
            expect(size() == 1, "over the bound is not told")
        except ValueError as error:
            expect(f"as many as {20 * size() - 24} rows more than 24" in str(error), str(error))
        tells.give(counts // 20)
        tells.judge(counts // 20, tells.call(), "after it")
        tells.fused.check()
        for one in (drops, tells):
            one.fused.close()


SECTIONS = {"queued": queued, "kinds": of_kinds, "layer": layer, "graph": graph, "over": over}

if __name__ == "__main__":
    sys.exit(run(SECTIONS))
