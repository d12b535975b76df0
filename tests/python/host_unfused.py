"""Operators as torch's libraries do them (Strategy(unfused=True)), on ranks that meet through gloo."""

import sys

import syncopate as sy
import torch
import torch.distributed as dist
from syncopate import ops, ranks


def check(place) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{place.folder}/meet", rank=place.rank, world_size=place.size
    )
    rank, size = place.rank, place.size
    unfused = sy.Strategy(unfused=True)

    def data(*shape: int, seed: int) -> torch.Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    for m in (8 * size, 8 * size + 1):
        n, k = 32, 64
        rows = [m // size + (r < m % size) for r in range(size)]
        begin = sum(rows[:rank])
        x, w = [data(m, k, seed=r) for r in range(size)], [data(k, n, seed=100 + r) for r in range(size)]
        total = sum(a @ b for a, b in zip(x, w, strict=True))
        bias = data(n, seed=200)
        gather = ops.AllGatherMatmul(m, n, k, torch.float32, strategy=unfused, device="host", bias=True)
        expect(gather(x[0][begin : begin + rows[rank]], w[rank], None, bias), x[0] @ w[rank] + bias)
        reduce = ops.MatmulAllReduce(
            m, n, k, torch.float32, strategy=unfused, device="host", w_transposed=True
        )
        expect(reduce(x[rank], w[rank].t().contiguous()), total)
        scatter = ops.MatmulReduceScatter(m, n, k, torch.float32, strategy=unfused, device="host")
        expect(scatter(x[rank], w[rank], scatter.result()), total[begin : begin + rows[rank]])
        for op in (gather, reduce, scatter):
            op.prepare()
            op.check()
            op.close()
    m, block = 4 * size, slice(4 * rank, 4 * rank + 4)
    x = [data(m, k, seed=r) for r in range(size)]
    send = ops.MatmulAllToAll(m, n, k, torch.float32, strategy=unfused, device="host")
    expect(send(x[rank], w[rank]), torch.cat([(x[r] @ w[r])[block] for r in range(size)]))
    receive = ops.AllToAllMatmul(m, n, k, torch.float32, strategy=unfused, device="host")
    expect(receive(x[rank], w[rank]), torch.cat([x[r][block] for r in range(size)]) @ w[rank])
    dist.destroy_process_group()


def expect(y: torch.Tensor, reference: torch.Tensor) -> None:
    torch.testing.assert_close(y, reference, rtol=1e-4, atol=1e-3)


if __name__ == "__main__":
    ranks.run(int(sys.argv[1]), check, timeout=300)
