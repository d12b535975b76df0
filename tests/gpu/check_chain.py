"""Chains of plain Triton kernels on a real GPU (sy.fuse without a plan):

check_chain.py [default] [graphs] [gluon0] [gluon1] [gluon2] [gluon3] [many]

default    each chain of bench/sync at one size as sy.fuse runs it by itself, and both ways by name: the bits of the plain
           kernels, and what PyTorch gives; prints which way was chosen
graphs     two chains captured together and replayed, other input each time
gluonN     the library's Gluon products as stages, by the N-th tiles: rows of 1 to 1500, splits of K, gated pairs, operand B before the wait, after a
           plain kernel (norm) and between; tile by tile and launched programmatically, the bits of the kernels in stream order,
           replayed, with other kernels beside
many       MANY calls of a chain with a head start, as replays, other kernels beside: each has the bits of the first
"""

import functools
import sys
import warnings
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench" / "sync"))

import syncopate as sy  # noqa: E402
import work  # noqa: E402
from library import feed_forward, normed  # noqa: E402
from syncopate.kernels.gluon_launch import GluonTiling  # noqa: E402

TILING = work.Tiling(128, 128, 64, 8, 4)
WORK = {
    "mlp": lambda: work.mlp(768, 2048, 1024),
    "swiglu": lambda: work.swiglu(520, 1024, 768),
    "attention": lambda: work.attention_block(512, 1024, 4),
    "norm": lambda: work.norm_product(300, 2048, 1024),
    "convolutions": lambda: work.convolutions(4, 28, 128, 3),
}


def chain_of(stages, way):
    fused = sy.fuse([s.kernel for s in stages], bind=[s.bind for s in stages], way=way, deadline=5)
    return fused, [fused.call(i, s.grid, **s.arguments) for i, s in enumerate(stages)]


def default() -> None:
    for name, make in WORK.items():
        one = make()
        stages = one.stages(TILING)
        for stage in stages:
            stage.kernel[stage.grid](**stage.arguments)
        plain = {array: one.arrays[array].clone() for array in one.made}
        one.library()
        one.rest.get("finish", lambda: None)()
        torch.testing.assert_close(
            one.out, one.expected, rtol=2e-2, atol=2e-2 * float(one.expected.abs().max())
        )
        for way in ("tiles", "stream", None):
            fused, calls = chain_of(stages, way)
            for _ in range(20):
                for array in one.made:
                    one.arrays[array].fill_(float("nan"))
                with warnings.catch_warnings(record=True):
                    warnings.simplefilter("always")
                    fused.run(calls)
                for array in one.made:
                    assert torch.equal(one.arrays[array], plain[array]), f"{name}, {way}: {array}"
            fused.check()
            if way is None:
                print(f"{name}: {fused.ways[0]} {fused.messages}")
            fused.close()


def graphs() -> None:
    made = []
    for make in (WORK["mlp"], WORK["attention"]):
        one = make()
        made.append((one, *chain_of(one.stages(TILING), "tiles")))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _, fused, calls in made:
            fused.run(calls)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(5):
            for _, fused, calls in made:
                fused.run(calls)
    for turn in range(20):
        for one, _, calls in made:
            first = next(v for v in calls[0].arguments.values() if hasattr(v, "base"))
            first.base.copy_(torch.randn_like(first.base) * (1 + turn % 3))
            for array in one.made:
                one.arrays[array].fill_(float("nan"))
        graph.replay()
        for one, fused, calls in made:
            left = one.out.clone()
            fused.run(calls)
            one.library()
            assert torch.equal(one.out, left), "a replay has not the bits of an eager call"
            limit = 2e-2 * float(one.expected.abs().max())
            torch.testing.assert_close(left, one.expected, rtol=2e-2, atol=limit)
    for _, fused, _ in made:
        fused.check()
        fused.close()


#: Tiles of the two products: all widths, one and two consumers, K split in each.
TILINGS = [
    (GluonTiling(64, 64, 128, 6), GluonTiling(64, 128, 64, 8)),
    (GluonTiling(64, 64, 128, 6, 2), GluonTiling(64, 64, 128, 6, 3)),
    (GluonTiling(128, 128, 64, 4), GluonTiling(128, 256, 64, 3)),
    (GluonTiling(64, 128, 64, 8, 2), GluonTiling(128, 128, 64, 5)),
]


def gluon(number: int) -> None:
    beside = torch.cuda.Stream()
    noise = torch.randn(2048, 2048, device="cuda")
    tilings = TILINGS[number]
    for gated in (False, True):
        for m in (1, 60, 200, 1500):
            one = feed_forward(m, 2048, 1024, gated)
            compare_with_stream(f"{m} rows, gated {gated}, {tilings}", one, tilings, beside, noise)
    one = normed(300, 2048, 1024)
    compare_with_stream("norm", one, tilings[1:], beside, noise)


def compare_with_stream(name: str, one, tilings, beside, noise) -> None:
    one.library()
    for early in (True, False):
        stages = one.stages(tilings, early=early)
        chains = {way: chain_of(stages, way) for way in ("stream", "tiles", "programmatic")}
        chains["stream"][0].run(chains["stream"][1])
        plain = {array: one.arrays[array].clone() for array in one.made}
        torch.testing.assert_close(
            one.out,
            one.expected,
            rtol=2e-2,
            atol=2e-2 * float(one.expected.abs().max()),
            msg=lambda m: f"{name}: {m}",
        )
        for way in ("tiles", "programmatic"):
            compare_bits(f"{name}, {way}, early {early}", one, *chains[way], plain, beside, noise)
        for fused, _ in chains.values():
            fused.check()
            fused.close()


def compare_bits(name: str, one, fused, calls, plain, beside, noise) -> None:
    """Of eager calls and of replays of three in a row, with other kernels beside."""
    fused.run(calls)
    torch.cuda.synchronize()
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=side):
        for _ in range(3):
            fused.run(calls)
    for turn in range(12):
        for array in one.made:
            one.arrays[array].fill_(float("nan"))
        with torch.cuda.stream(beside):
            if turn % 3 == 0:
                torch.mm(noise, noise)
        graph.replay() if turn % 2 else fused.run(calls)
        for array in one.made:
            assert torch.equal(one.arrays[array], plain[array]), f"{name}, turn {turn}: {array}"


MANY = 1_000_000
CALLS = 100  # of a graph


def many() -> None:
    one = feed_forward(1600, 2048, 512, False)  # 200 and 800 tiles
    fused, calls = chain_of(one.stages((TILINGS[0][0],) * 2), "tiles")
    fused.run(calls)
    torch.cuda.synchronize()
    heads = fused.prepared[0].schedule.head_starts
    assert any(head != (0, 0) for head in heads), f"no stage has a head start: {heads}"
    first = {array: one.arrays[array].clone() for array in one.made}
    differ = torch.zeros((), device="cuda", dtype=torch.int64)
    graph, side, beside = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    noise = torch.randn(2048, 2048, device="cuda")
    with torch.cuda.graph(graph, stream=side):
        for array in one.made:
            one.arrays[array].fill_(float("nan"))
        for _ in range(CALLS):
            fused.run(calls)
        for array in one.made:
            differ += (one.arrays[array] != first[array]).sum()
    for turn in range(MANY // CALLS):
        if turn % 7 == 0:
            with torch.cuda.stream(beside):
                torch.mm(noise, noise)
        graph.replay()
    torch.cuda.synchronize()
    fused.check()
    fused.close()
    assert differ.item() == 0, f"{differ.item()} elements differ"


if __name__ == "__main__":
    sections = {"default": default, "graphs": graphs}
    sections |= {f"gluon{n}": functools.partial(gluon, n) for n in range(len(TILINGS))}
    sections["many"] = many
    for section in sys.argv[1:] or sections:
        sections[section]()
        print(f"{section}: ok", flush=True)
