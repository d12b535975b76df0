"""A rank of a process that imports neither Syncopate's Python nor Triton: a bundle of a user's grouped product, through the C API. On
host its tiles are made by a function below, by the offsets alone. Its place is in the environment, as torchrun says it; run by
test_bundle_grouped.py.

    grouped_served.py LIBSYNCOPATE FILE.sybundle BOUND OWN K N BM BN [drop]
"""

import ctypes
import os
import sys

import torch
from c_inside import Device, PrepareConfig, Tensor, TileKernel
from torch_served import CommConfig

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Box(ctypes.Structure):
    """sy_box."""

    _fields_ = [
        ("parameter", ctypes.c_char_p), ("writes", ctypes.c_int32), ("ndim", ctypes.c_int32), ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("begin", ctypes.POINTER(ctypes.c_int64)), ("end", ctypes.POINTER(ctypes.c_int64)),
    ]  # fmt: skip


def seen(box: Box, element: type) -> torch.Tensor:
    shape = [box.shape[axis] for axis in range(box.ndim)]
    count = max(1, torch.Size(shape).numel())
    memory = (element * count).from_address(box.data)
    of = torch.int32 if element is ctypes.c_int32 else torch.float32
    return torch.frombuffer(memory, dtype=of, count=torch.Size(shape).numel()).view(shape)


def random(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Whole numbers, of which sums are exact."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).float()


def counts_of(call: int, experts: int, rows: int) -> torch.Tensor:
    """[ranks, experts]: random ones, none, all to one expert."""
    if call % 3 == 1:
        return torch.zeros(RANKS, experts, dtype=torch.int32)
    if call % 3 == 2:
        made = torch.zeros(RANKS, experts, dtype=torch.int32)
        made[:, -1] = rows // RANKS
        return made
    generator = torch.Generator().manual_seed(call)
    most = max(1, rows // RANKS // experts)
    return torch.randint(0, most + 1, (RANKS, experts), generator=generator, dtype=torch.int32)


def main() -> None:
    library, file, *numbers = sys.argv[1:9]
    bound, own, k, n, bm, bn = map(int, numbers)
    c = ctypes.CDLL(library)
    c.sy_last_error.restype = ctypes.c_char_p
    failed: list[BaseException] = []

    def done(code: int) -> None:
        assert code == 0, c.sy_last_error().decode()

    def make(_context: int, tile: object) -> int:
        """host_ragged.by_offsets: of an expert, a block of rows and one of columns."""
        try:
            of = tile.contents
            boxes = ctypes.cast(of.at, ctypes.POINTER(Box))
            known = {boxes[i].parameter.decode(): boxes[i] for i in range(of.boxes)}
            a, w, out = (seen(known[name], ctypes.c_float) for name in ("a_ptr", "b_ptr", "c_ptr"))
            offsets = seen(known["offsets_ptr"], ctypes.c_int32).tolist()
            down = -(-bound // bm)
            expert, pid_m, pid_n = of.tile % own, of.tile // own % down, of.tile // own // down
            rows = slice(
                offsets[expert] + pid_m * bm, min(offsets[expert] + (pid_m + 1) * bm, offsets[expert + 1])
            )
            if rows.start < rows.stop:
                columns = slice(pid_n * bn, (pid_n + 1) * bn)
                out[rows, columns] = a[rows] @ w[expert][:, columns]
        except BaseException as error:  # noqa: BLE001 - a callback of C
            failed.append(error)
            return 1
        return 0

    comm, bundle, op = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    prepare = PrepareConfig(ctypes.sizeof(PrepareConfig), 0, tiles=TileKernel(make))
    config = CommConfig(ctypes.sizeof(CommConfig), RANK, RANKS, timeout_ms=60_000)
    done(c.sy_comm_create(ctypes.byref(config), ctypes.byref(comm)))
    done(c.sy_bundle_open(file.encode(), ctypes.byref(bundle)))
    done(c.sy_prepare(comm, bundle, ctypes.byref(prepare), ctypes.byref(op)))
    w = random((own * RANKS, k, n), 7)
    mine = w[own * RANK : own * (RANK + 1)].contiguous()
    drops = "drop" in sys.argv

    def run(counts: torch.Tensor, seed: int) -> torch.Tensor:
        a, out = random((RANKS, bound, k), seed), torch.full((bound, n), float("nan"))
        told = counts[RANK].clone()  # at a multiple of 16 bytes, as all of these
        given = [a[RANK].contiguous(), told, mine, out]  # A, counts, b_ptr, C
        shapes = [(ctypes.c_int64 * one.dim())(*one.shape) for one in given]
        tensors = [
            Tensor(
                one.data_ptr(),
                Device(1, 0),
                one.dim(),
                0 if one.dtype == torch.int32 else 2,
                32,
                1,
                ctypes.addressof(shape),
            )
            for one, shape in zip(given, shapes, strict=True)
        ]
        ran = c.sy_run(
            op, (ctypes.POINTER(Tensor) * len(given))(*map(ctypes.pointer, tensors)), len(given), None
        )
        assert not failed, failed
        done(ran)
        rows = int(told.sum())
        expert = torch.repeat_interleave(torch.arange(own * RANKS), told.long())
        wanted = torch.einsum("tk,tkn->tn", a[RANK][:rows], w[expert])
        taken = torch.ones(rows, dtype=torch.bool)
        if drops:
            begin = 0
            for e in range(own * RANKS):
                owner = e // own
                before = int(counts[:, owner * own : e].sum() + counts[:RANK, e].sum())
                left = min(max(0, bound - before), int(told[e]))
                taken[begin + left : begin + int(told[e])] = False
                begin += int(told[e])
        assert torch.equal(out[:rows], wanted * taken[:, None]), f"rank {RANK}, counts {counts.tolist()}"
        assert bool(out[rows:].isnan().all())
        return out

    for call in range(6):
        run(counts_of(call, own * RANKS, bound), 100 + call)
    over = torch.zeros(RANKS, own * RANKS, dtype=torch.int32)
    over[:, 0] = bound
    if drops:
        run(over, 200)
    else:
        try:
            run(over, 200)
        except AssertionError as error:
            text = str(error)
        wanted = f"bound: as many as {bound * (RANKS - 1)} rows more than {bound} come to a rank"
        assert RANKS == 1 or wanted in text, text
        run(counts_of(0, own * RANKS, bound), 201)  # goes on
    done(c.sy_op_destroy(op))
    c.sy_bundle_close(bundle)
    c.sy_comm_destroy(comm)
    assert "triton" not in sys.modules and "syncopate" not in sys.modules
    print(f"ok: rank {RANK}", flush=True)


if __name__ == "__main__":
    main()
