"""What a machine file says of several nodes, measured by ranks on them: each rank sends to the one of its place in the next node
and receives from the one before, all at once, by as many communicators of one multiprocessor as the channel between nodes has;
and NCCL's all-gather, as the unfused pair does.

    torchrun --nnodes 2 --nproc-per-node 8 … --no-python syncopate tune --measure-machine -o machine.json

Rank 0 of each node puts it into its machine file, which a measurement of that machine alone has made before.
"""

from __future__ import annotations

import os
from typing import Any

from .. import _syncopate

SMALL, LARGE = 1 << 12, 64 << 20  # bytes


def is_over_nodes() -> bool:
    """Whether torchrun has started this process as one of several nodes' ranks."""
    size, local = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    hosts = os.environ.get("SYNCOPATE_HOST_ID") or os.environ.get("NCCL_HOSTID")
    return "RANK" in os.environ and size > 1 and (size > local or bool(hosts))


def figures(small_us: float, large_us: float) -> tuple[float, float]:
    """GB/s each way, and µs of a send and its receive without their bytes."""
    gbps = (LARGE - SMALL) / max(large_us - small_us, 1e-3) / 1e3
    return gbps, max(0.1, small_us - SMALL / gbps / 1e3)


def gather_us(ranks: Any, size: int) -> float:
    """µs of NCCL's all-gather of so many bytes of each rank, of the slowest one."""
    import torch
    import torch.distributed as dist

    sent = torch.zeros(size, dtype=torch.uint8, device="cuda")
    received = torch.empty(size * ranks.group.size, dtype=torch.uint8, device="cuda")
    return ranks.time(lambda: dist.all_gather_into_tensor(received, sent))


def links() -> list[Any]:
    """Groups of all ranks with communicators as the channel's links have them. Collective."""
    import torch.distributed as dist

    made = []
    for _ in range(_syncopate.tune.CHANNEL_BLOCKS):
        options = dist.ProcessGroupNCCL.Options()
        options.config.min_ctas = options.config.max_ctas = 1
        made.append(dist.new_group(pg_options=options))
    return made


def round_us(ranks: Any, groups: list[Any], size: int) -> float:
    """µs of a round of so many bytes, of the slowest rank: each of `groups` carries a part, all at once."""
    import torch
    import torch.distributed as dist

    group = ranks.group
    places = group.size // group.nodes
    sent = torch.zeros(size, dtype=torch.uint8, device="cuda")
    received = torch.empty_like(sent)
    to, by = (group.rank + places) % group.size, (group.rank - places) % group.size

    def call() -> None:
        begun = []
        for link, out, into in zip(groups, sent.chunk(len(groups)), received.chunk(len(groups)), strict=True):
            ops = [dist.P2POp(dist.isend, out, to, link), dist.P2POp(dist.irecv, into, by, link)]
            begun += dist.batch_isend_irecv(ops)
        for work in begun:
            work.wait()

    return ranks.time(call)


def main(path: str) -> int:
    """Collective over all ranks of all nodes. Exit status 1: they are on one node."""
    import sys

    import torch
    import torch.distributed as dist

    from ..ops.operator import members_of
    from .links import Ranks

    status = 0
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    try:
        ranks = Ranks(members_of(None, "cuda"))
        group = ranks.group
        if group.nodes < 2:
            print(
                "error: --measure-machine by torchrun is for ranks of several nodes, and all are on one",
                file=sys.stderr,
            )
            return 1
        nothing = ranks.time(lambda: None)
        apart = links()
        # What is small goes by one of them.
        small = max(0.1, round_us(ranks, apart[:1], SMALL) - nothing)
        large = max(0.1, round_us(ranks, apart, LARGE) - nothing)
        gathered = [max(0.1, gather_us(ranks, size) - nothing) for size in (SMALL, LARGE)]
        places = group.size // group.nodes
        if group.rank % places == 0:
            gbps, us = figures(small, large)
            # A rank's card brings what those of its place in the other nodes send.
            collective = figures(*gathered)[0] * (group.nodes - 1)
            properties = torch.cuda.get_device_properties(torch.cuda.current_device())
            source = f"{group.nodes} nodes of {places}: all send to the next one, {SMALL} and {LARGE} bytes, by NCCL"
            device = (properties.name, places, properties.multi_processor_count)
            try:
                made = _syncopate.tune.measured_network(*device, gbps, us, collective, source, path)
                print(made, file=sys.stderr if group.rank or path == "-" else sys.stdout)
            except (OSError, ValueError, _syncopate.SyncopateError) as error:
                # A file that cannot be read, or written. Said here: the others are in the barrier.
                print(f"error: {error}", file=sys.stderr)
                status = 1
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return status
