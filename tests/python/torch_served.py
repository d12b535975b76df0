"""A rank of a process that never imports Syncopate's Python: torch's ops over a group "0" are made by bundles (sy_torch_serve). Its place
is in the environment, as torchrun says it. Run by test_bundle.py.

    torch_served.py LIBSYNCOPATE LIBSYNCOPATE_TORCH GATHER.sybundle SCATTER.sybundle [PACKAGE.pt2]

The bundles are of all_gather_matmul:N=24,K=32 and matmul_reduce_scatter:N=32,K=24 in fp32; the package is torch_package.py's.
"""

import ctypes
import os
import sys

import torch

RANK, RANKS = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
N, K, GROUP = 24, 32, "0"


class CommConfig(ctypes.Structure):
    """sy_comm_config."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("rank", ctypes.c_int32), ("num_ranks", ctypes.c_int32), ("device", ctypes.c_int),
        ("ordinal", ctypes.c_int32), ("timeout_ms", ctypes.c_int64), ("budget", ctypes.c_uint64), ("store", ctypes.c_void_p),
        ("joins", ctypes.c_int32),
    ]  # fmt: skip


def data(rank: int, *shape: int, seed: int) -> torch.Tensor:
    """What a rank has: whole numbers, of which sums are exact."""
    generator = torch.Generator().manual_seed(seed + 1000 * rank)
    return torch.randint(-3, 4, shape, generator=generator).float()


def right(rows: int, turn: int) -> torch.Tensor:
    """Of the layer below, from all ranks' data."""
    ws = [data(rank, K, N, seed=1) for rank in range(RANKS)]
    whole = torch.cat([data(rank, rows, K, seed=10 * rows + turn) for rank in range(RANKS)])
    parts = [torch.relu(whole @ w) @ data(rank, N, K, seed=2) for rank, w in enumerate(ws)]
    return sum(parts)[rows * RANK : rows * (RANK + 1)]


def layer(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    ops = torch.ops.syncopate
    return ops.matmul_reduce_scatter(torch.relu(ops.all_gather_matmul(x, w, GROUP)), v, GROUP)


def refused(call, said: str) -> None:
    try:
        call()
    except RuntimeError as error:
        assert said in str(error), f"expected {said!r}, got {error}"
    else:
        raise AssertionError(f"no error: {said}")


def main() -> None:
    library, ops, *bundles = sys.argv[1:5]
    loaded = ctypes.CDLL(ops, mode=ctypes.RTLD_GLOBAL)
    c = ctypes.CDLL(library)
    c.sy_last_error.restype = ctypes.c_char_p

    def done(code: int) -> None:
        assert code == 0, c.sy_last_error().decode()

    comm = ctypes.c_void_p()
    config = CommConfig(ctypes.sizeof(CommConfig), RANK, RANKS, timeout_ms=60_000)
    done(c.sy_comm_create(ctypes.byref(config), ctypes.byref(comm)))
    served = []
    for file in bundles:
        bundle = ctypes.c_void_p()
        done(c.sy_bundle_open(file.encode(), ctypes.byref(bundle)))
        done(c.sy_torch_serve(comm, GROUP.encode(), bundle))
        served.append(bundle)
    for bundle in served:
        c.sy_bundle_close(bundle)
    w, v = data(RANK, K, N, seed=1), data(RANK, N, K, seed=2)
    run = torch._inductor.aoti_load_package(sys.argv[5]) if sys.argv[5:] else layer
    with torch.no_grad():
        for rows in (8, 12, 5):
            for turn in range(3):
                x = data(RANK, rows, K, seed=10 * rows + turn)
                assert torch.equal(run(x, w, v), right(rows, turn)), f"{rows} rows, call {turn}"
        ops, x = torch.ops.syncopate, data(RANK, 8, K, seed=80)
        whole = torch.cat([data(rank, 8, K, seed=80) for rank in range(RANKS)])
        turned, spread = w.t().contiguous().t(), torch.zeros(8, 2 * K)[:, ::2].copy_(x)
        for given in ((x, turned), (spread, w), (x, w)):
            assert torch.equal(ops.all_gather_matmul(*given, GROUP), whole @ w), (
                "of tensors that lie otherwise"
            )
        refused(lambda: ops.all_gather_matmul(x, w[:, :8], GROUP), "its weights are [32, 24]")
        refused(lambda: ops.all_gather_matmul(x, w, GROUP, activation="relu"), "with relu")
        refused(lambda: ops.all_gather_matmul(x, w, GROUP, w[0]), "it adds no bias")
        refused(lambda: ops.all_gather_matmul(x.double(), w.double(), GROUP), "it is of fp32")
        refused(lambda: ops.all_gather_matmul(x, w.half(), GROUP), "it is of fp32")
        for shape in ((), (K,), (8, K + 1), (2, 4, K)):
            refused(
                lambda shape=shape: ops.all_gather_matmul(torch.zeros(shape), w, GROUP),
                "its x has 32 columns",
            )
        refused(lambda: ops.all_gather_matmul(x, w, "1"), "no bundle is served for group '1'")
        refused(lambda: ops.matmul_all_reduce(x, w, GROUP), "it is of all_gather_matmul")
        refused(lambda: ops.all_gather_matmul(data(RANK, 4096, K, seed=3), w, GROUP), "rows")
        done(c.sy_torch_serve(comm, GROUP.encode(), None))
        refused(lambda: ops.all_gather_matmul(x, w, GROUP), "no bundle is served for group '0'")
    c.sy_comm_destroy(comm)
    assert not [name for name in sys.modules if name.partition(".")[0] == "syncopate"]
    del loaded
    print(f"ok: rank {RANK}", flush=True)


if __name__ == "__main__":
    main()
