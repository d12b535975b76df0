"""Searching on real GPUs, one process each; on one GPU ranks share it, and times say nothing:

    torchrun --nproc-per-node 2 tests/gpu/check_tune.py [SECTION …]

`searched` tunes one product with an all-reduce for SYNCOPATE_TUNE_BUDGET (12) seconds into a store of its own, and
looks at what the search kept; `read` makes the operator anew, which has to take the winner. `fused` tunes a kernel with
@triton.autotune behind a gather.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

BUDGET = float(os.environ.get("SYNCOPATE_TUNE_BUDGET") or 12.0)
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]
# Rank 0's is the one that is read and written.
os.environ["SYNCOPATE_CACHE_DIR"] = tempfile.mkdtemp(prefix="syncopate-tune-")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from sections import expect, rank, run, size  # noqa: E402
from syncopate import _syncopate, ops  # noqa: E402
from syncopate.bench import case  # noqa: E402
from syncopate.measure import search as tune_search  # noqa: E402
from syncopate.ops.operator import members_of, problem_of  # noqa: E402
from syncopate.strategy import complete, from_json  # noqa: E402
from syncopate.strategy.choose import estimate, here  # noqa: E402

M, N, K = 512, 2048, 1024
winners: dict[str, object] = {}


class Shared(case.MatmulAllReduce):
    """Ranks that share a GPU use gloo, whose collectives no CUDA graph takes."""

    def graphs(self, call):
        return call if dist.get_backend() == "gloo" else super().graphs(call)


def searched() -> None:
    case.CASES[Shared.operator] = Shared
    group = members_of(None, "cuda")
    problem = problem_of(Shared.operator, m=M, n=N, k=K, dtype=torch.bfloat16, group=group)
    say = print if rank() == 0 else None
    found = tune_search.search(problem, group, budget=BUDGET, say=say)
    measured = [trial for trial in found["trials"] if trial["rounds"] > 0]
    expect(len(measured) > 2, f"only {len(measured)} strategies were measured: {found['trials']}")
    expect(found["us"] <= 1.05 * min(found["default_us"], found["unfused_us"] or 1e9), f"{found}")
    winners["us"] = found["us"]
    if rank() == 0:
        print(
            f"{found['winner']}: {found['us']:.0f} us, default {found['default_us']:.0f}, {len(measured)} measured"
        )
        for trial in found["trials"]:
            if trial["refused"]:
                print(f"without {trial['name']}: {trial['refused']}")
    everyone = [None] * size()
    dist.all_gather_object(everyone, found["strategy"])
    expect(len(set(map(str, everyone))) == 1, f"ranks disagree: {everyone}")
    winners["strategy"] = from_json(found["strategy"])


def read() -> None:
    """Operators made anew take the winner, and of rows that are near where it is the better one there by the estimate; not where
    SYNCOPATE_TUNE is off."""
    if not winners:  # this section alone: the store is new, and empty
        searched()
    kept = winners.get("strategy")
    group = members_of(None, "cuda")
    for rows in (M, 2 * M):
        made = ops.MatmulAllReduce(rows, N, K, dtype=torch.bfloat16)
        wanted = [complete(made.problem, kept)] if kept is not None else [made.strategy]
        if rows != M:
            wanted.append(
                complete(made.problem, _syncopate.tune.choose(made.problem, **here(made.problem))[0])
            )
        expect(made.strategy in wanted, f"{rows} rows: chose {made.strategy}, the winner is {wanted[0]}")
        x, w = torch.ones(rows, K, device="cuda").bfloat16(), torch.ones(K, N, device="cuda").bfloat16()
        y = made(x, w)
        torch.cuda.synchronize()
        expect(bool((y == K * size()).all()), f"{rows} rows: the winner's result is wrong")
        made.close()
    problem = problem_of(Shared.operator, m=M, n=N, k=K, dtype=torch.bfloat16, group=group)
    if rank() == 0:
        expect(estimate(problem)[2], "what was measured is not read")
    os.environ["SYNCOPATE_TUNE"] = "off"
    expect(not estimate(problem)[2], "what was measured is read where SYNCOPATE_TUNE is off")
    del os.environ["SYNCOPATE_TUNE"]


def fused() -> None:
    import syncopate as sy
    from autotuned_kernel import grid, product

    m, n, k = 512, 256, 256
    plan = sy.plans.all_gather(sy.plans.mesh_of(size()), sy.Tensor("A", (m, k), "fp32"))
    kernel = sy.fuse(product, plan, {"a_ptr": "A"}, strategy="auto")
    whole = torch.arange(m * k, device="cuda").remainder(7).float().view(m, k) - 3
    b = torch.arange(k * n, device="cuda").remainder(5).float().view(k, n) - 2
    a, c = whole.chunk(size())[rank()].contiguous(), torch.empty(m, n, device="cuda")
    right = whole.double() @ b.double()

    def launch() -> None:
        c.fill_(float("nan"))
        kernel[grid](a, b, c, m, n, k, BLOCK_K=32)
        torch.cuda.synchronize()
        expect(torch.equal(c.double(), right), f"the result of {kernel.chosen} is wrong")

    launch()
    calls = [kernel.call(0, grid, a, b, c, m, n, k, BLOCK_K=32)]
    found = kernel.tune(calls, budget=BUDGET / 2)
    launch()
    measured = sum(trial["rounds"] > 0 for trial in found["trials"])
    expect(measured > 2, f"only {measured} strategies were measured: {found['trials']}")
    if rank() == 0:
        print(
            f"{found['winner']}: {found['us']:.0f} us, default {found['default_us']:.0f}, {measured} measured"
        )
        for trial in found["trials"]:
            if trial["refused"]:
                print(f"without {trial['name']}: {trial['refused']}")
    kernel.close()


def links() -> None:
    """What --measure-machine measures between GPUs. On a shared one its figures mean nothing."""
    from syncopate.measure import links as measure_links

    if dist.get_backend() == "gloo":
        measure_links.ROUNDS, measure_links.SIZES = 2, (256, 1024)
    ranks = measure_links.Ranks(members_of(None, "cuda"))
    found = measure_links.between_ranks(ranks, lambda _: None, dist.get_backend() == "gloo")
    blocks = [point[0] for point in found["tables"].get("engine_gbps", {"points": []})["points"]]
    expect(bool(blocks) and blocks == sorted(blocks), f"{found}")
    if rank() == 0:
        print(found)


def whole_calls() -> None:
    """Of each figure a call is timed whose estimate depends on it. The vendor's collectives take a GPU a rank."""
    import json

    from syncopate._syncopate import tune
    from syncopate.measure import calls as measure_calls
    from syncopate.measure import links as measure_links
    from syncopate.strategy.choose import runs_gluon

    ranks = measure_links.Ranks(members_of(None, "cuda"))
    timed = measure_calls.calls_timed(ranks, lambda _: None, runs_gluon("cuda"), 100)
    expect(len(timed) == len(measure_calls.CALLS), f"only {[call[0] for call in timed]} were timed")
    for figure, problem, strategy, us in timed:
        if rank() == 0:
            print(f"{figure:18} {us:7.1f} us, estimated {tune.estimate(problem, strategy)['us']:7.1f}")
        expect(us > 0 and json.loads(strategy), f"{figure} of {problem}")
    if dist.get_backend() == "gloo":
        return
    for name, table in measure_calls.library_tables(ranks, lambda _: None).items():
        sent, took = zip(*table["points"], strict=True)
        expect(sorted(sent) == list(sent) and took[-1] > took[0] > 0, f"{name}: {table}")
        if rank() == 0:
            print(name, [[round(mib, 3), round(us, 1)] for mib, us in table["points"]])


if __name__ == "__main__":
    sys.exit(
        run({"searched": searched, "read": read, "fused": fused, "links": links, "whole calls": whole_calls})
    )
