"""sy.fuse(…, strategy="auto") of an autotuned kernel on host ranks, in Triton's interpreter; run by test_auto.py, which
sets the store's folder. Prints what each rank chose, as JSON.

    host_auto.py RANKS PLAN        all_gather or reduce_scatter
"""

import contextlib
import json
import os
import sys
import warnings
from pathlib import Path
from unittest import mock

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from autotuned_kernel import grid, product  # noqa: E402
from syncopate import ranks  # noqa: E402
from syncopate.call.prepared import Prepared  # noqa: E402
from syncopate.face.chosen import Choice  # noqa: E402
from syncopate.group import of_folder  # noqa: E402

M, N, K = 64, 32, 48


def numbers(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-4, 5, (rows, columns), generator=generator).float()


def gathered(place: ranks.Place, group) -> tuple:
    plan = sy.plans.all_gather(sy.plans.mesh_of(place.size), sy.Tensor("A", (M, K), "fp32"))
    fused = sy.fuse(product, plan, {"a_ptr": "A"}, group, strategy="auto")
    a, b = numbers(M, K, 1), numbers(K, N, 2)
    return fused, a.chunk(place.size)[place.rank].contiguous(), b, torch.full((M, N), -1.0), a @ b


def scattered(place: ranks.Place, group) -> tuple:
    plan = sy.plans.push_reduce(sy.plans.mesh_of(place.size), sy.Tensor("C", (M, N), "fp32"))
    fused = sy.fuse(product, plan, {"c_ptr": "C"}, group, strategy="auto")
    each = [(numbers(M, K, 10 + r), numbers(K, N, 20 + r)) for r in range(place.size)]
    right = sum(a @ b for a, b in each).chunk(place.size)[place.rank]
    return fused, *each[place.rank], torch.full((M // place.size, N), -1.0), right


@contextlib.contextmanager
def failing_once(on: bool):
    """The first kernel that is compiled is none that does, `on` this rank."""
    right, calls = Prepared.compile, []

    def compile(*given) -> None:
        calls.append(1)
        if on and len(calls) == 1:
            raise RuntimeError("too little shared memory")
        right(*given)

    with mock.patch.object(Prepared, "compile", compile):
        yield


MAKE = {"all_gather": gathered, "reduce_scatter": scattered}


def work(place: ranks.Place, name: str) -> dict:
    torch.set_num_threads(1)
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    fused, a, b, c, right = MAKE[name](place, group)

    def launch(kernel) -> None:
        c.fill_(-1)
        kernel[grid](a, b, c, M, N, K, BLOCK_K=16)
        if not torch.equal(c, right):
            raise RuntimeError(f"rank {place.rank}: the result of {kernel.chosen} is wrong")

    launch(fused)
    by_estimate = fused.chosen
    calls = [fused.call(0, grid, a, b, c, M, N, K, BLOCK_K=16)]
    ranking = fused.ranking(calls)
    c.fill_(-7)
    found = fused.tune(calls, budget=6)
    if not bool((c == -7).all()):
        raise RuntimeError(f"rank {place.rank}: a search has left its results behind")
    launch(fused)
    winner = fused.chosen
    fused.close()
    again = MAKE[name](place, group)[0]
    launch(again)  # from the store
    stored = again.chosen
    again.close()
    broken = MAKE[name](place, group)[0]
    with warnings.catch_warnings(record=True) as said, failing_once(place.rank == place.size - 1):
        warnings.simplefilter("always")
        launch(broken)
    fallen = broken.chosen
    broken.close()
    return {
        "by_estimate": str(by_estimate),
        "winner": str(winner),
        "stored": str(stored),
        "fallen": str(fallen),
        "usual": str([Choice(sy.Strategy(), (0,))]),
        "said": [str(one.message) for one in said],
        "names": [one["name"] for one in ranking if not one["pruned"]],
        "pruned": [one["pruned"] for one in ranking if one["pruned"]],
        "measured": sum(trial["rounds"] > 0 for trial in found["trials"]),
        "refused": [trial["refused"] for trial in found["trials"] if trial["refused"]],
        "us": found["us"],
        "default_us": found["default_us"],
    }


if __name__ == "__main__":
    size, name = int(sys.argv[1]), sys.argv[2]
    print(json.dumps(ranks.run(size, lambda place: work(place, name), timeout=150)))
