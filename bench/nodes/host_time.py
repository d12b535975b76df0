"""Host time of a call over nodes, against a bare group of the same sends and receives. Start with torchrun; on one machine each
rank stands for a node, by an NCCL_HOSTID that is set here where none is:

    torchrun --nproc-per-node 2 bench/nodes/host_time.py [--json FILE]

Both enqueue while the device sleeps; us a call, median of the rounds, of the slowest rank. The bare group is ncclGroupStart, a
ncclSend or ncclRecv for each chunk that the call's schedule has on this rank, and ncclGroupEnd, on communicators of one
multiprocessor: `whole` as one send a chunk on one of them, `cut` as the channel cuts large chunks, on as many as it has. The rest
of the call is its kernel's launch and the copies into flags. `×` is ours over `whole`; the bar is 1.2, and 3 us more.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("NCCL_HOSTID", f"node{os.environ.get('RANK', '0')}")
sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # PYTHONPATH comes first

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from syncopate import _syncopate  # noqa: E402
from syncopate.bench.session import host_us, start  # noqa: E402
from syncopate.call.arguments import DTYPES  # noqa: E402

CALLS, ROUNDS = 20, 9
SLEEP_CYCLES = 60_000_000  # longer than so many calls take
CUT = 256 << 10  # bytes of a chunk that the channel cuts
BYTE = 0  # ncclInt8


class Config(ctypes.Structure):
    """ncclConfig_t as of 2.17, as the channel gives it. It ends where its last member does: newer ones read as much as its size says,
    and would take padding for what they have there."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        ("cga", ctypes.c_int),
        ("min_ctas", ctypes.c_int),
        ("max_ctas", ctypes.c_int),
        ("net_name", ctypes.c_void_p),
    )


class Bare:
    """Communicators of NCCL's library that torch has loaded."""

    def __init__(self) -> None:
        loaded = [
            line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "libnccl" in line
        ]
        self.library = ctypes.CDLL(loaded[0])
        self.comms = [self._made() for _ in range(_syncopate.tune.CHANNEL_BLOCKS)]

    def _made(self) -> ctypes.c_void_p:
        class UniqueId(ctypes.Structure):
            _fields_ = (("bytes", ctypes.c_char * 128),)

        own = UniqueId()
        self._check(self.library.ncclGetUniqueId(ctypes.byref(own)))
        given: list[Any] = [ctypes.string_at(ctypes.byref(own), 128)]
        dist.broadcast_object_list(given, 0)
        ctypes.memmove(ctypes.byref(own), given[0], 128)
        comm, undefined = ctypes.c_void_p(), -(2**31)
        config = Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21700, 1, undefined, 1, 1, None)
        self._check(
            self.library.ncclCommInitRankConfig(
                ctypes.byref(comm), dist.get_world_size(), own, dist.get_rank(), ctypes.byref(config)
            )
        )
        return comm

    def _check(self, code: int) -> None:
        if code:
            self.library.ncclGetErrorString.restype = ctypes.c_char_p
            raise RuntimeError(f"NCCL: {self.library.ncclGetErrorString(code).decode()}")

    def group(self, transfers: list[tuple[bool, int, int]], cut: bool) -> Callable[[], None]:
        """A call of (is sent, peer, bytes) each. The memory is one buffer: what arrives is not read."""
        room = torch.empty(max(size for *_, size in transfers), dtype=torch.uint8, device="cuda")
        stream = torch.cuda.Stream()
        calls = []
        for sent, peer, size in transfers:
            parts = len(self.comms) if cut and size >= CUT else 1
            function = self.library.ncclSend if sent else self.library.ncclRecv
            for part in range(parts):
                begin, end = size * part // parts, size * (part + 1) // parts
                given = (
                    ctypes.c_void_p(room.data_ptr() + begin),
                    ctypes.c_size_t(end - begin),
                    ctypes.c_int(BYTE),
                    ctypes.c_int(peer),
                )
                calls.append((function, (*given, self.comms[part], ctypes.c_void_p(stream.cuda_stream))))
        begin_group, end_group = self.library.ncclGroupStart, self.library.ncclGroupEnd

        def call(_kept: Any = (room, stream)) -> None:
            begin_group()
            for function, given in calls:
                function(*given)
            self._check(end_group())

        return call


def slowest_us(call: Callable[[], Any]) -> float:
    slowest = torch.tensor(host_us(call, ROUNDS, CALLS, SLEEP_CYCLES), device="cuda")
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return round(slowest.item(), 1)


def row(bare: Bare, name: str, extents: tuple[int, int, int]) -> dict[str, Any]:
    strategy = sy.Strategy(unfused=False)
    op = sy.ops.OPERATORS[name](*extents, torch.bfloat16, strategy=strategy)
    m, n, k = extents
    by_rank = dist.get_world_size()
    rows = m // by_rank if name == "all_gather_matmul" else m
    x, w = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((rows, k), (k, n)))
    op(x, w)
    schedule = op.prepared.schedule
    sizes = {tensor: DTYPES[dtype].itemsize for tensor, _, dtype in schedule.tensors}
    transfers = []
    for transfer in schedule.transfers(dist.get_rank()):
        if transfer.backend == "channel":
            sent = transfer.src_rank == dist.get_rank()
            elements = math.prod(end - begin for begin, end in transfer.src[1])
            transfers.append(
                (sent, transfer.dst_rank if sent else transfer.src_rank, elements * sizes[transfer.src[0]])
            )
    whole, cut = (bare.group(transfers, how) for how in (False, True))
    for call in (whole, cut):
        call()
    torch.cuda.synchronize()
    entry = {"operator": name, "M": m, "N": n, "K": k, "chunks": len(transfers), "ours_us": slowest_us(lambda: op(x, w)),
             "whole_us": slowest_us(whole), "cut_us": slowest_us(cut)}  # fmt: skip
    op.close()
    return entry


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", help="also write the rows there")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("host_time.py: host ranks run the kernel themselves; it needs GPUs")
    if "RANK" not in os.environ:
        raise SystemExit("host_time.py: torchrun starts it, on each rank")
    start(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "")
    bare, rows = Bare(), []
    for name in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"):
        for m in (1024, 4096, 8192):
            rows.append(entry := row(bare, name, (m, 3584, 4096)))
            if dist.get_rank() == 0:
                print(f"{name:22} M {m:5}  {entry['chunks']:3} chunks  ours {entry['ours_us']:6}  whole {entry['whole_us']:6}  "
                      f"cut {entry['cut_us']:6}  × {entry['ours_us'] / entry['whole_us']:.2f}", flush=True)  # fmt: skip
    if args.json and dist.get_rank() == 0:
        Path(args.json).write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "rows": rows}, indent=1) + "\n"
        )
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
