"""What the kernels of attention's backward look up: which blocks see which."""

from __future__ import annotations

import torch


def backward_tables(
    seen: torch.Tensor, sk: int, block_m: int, block_n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of rows of Q that see rows [seen[0], seen[1]) of sk rows of K, int [2, SQ]: bounds, int32 [blocks of K, 4], and seen as
    the kernel reads it, int32 [2, blocks of SQ * block_m]."""
    sq = seen.shape[1]
    blocks = -(-sq // block_m)
    padded = torch.zeros(2, blocks * block_m, dtype=torch.int32, device=seen.device)
    padded[:, :sq] = seen
    first = torch.arange(0, sk, block_n, device=seen.device)[:, None]
    end = torch.clamp(first + block_n, max=sk)
    some = ((seen[0] < end) & (seen[1] > first) & (seen[0] < seen[1])).int()
    all_of_it = ((seen[0] <= first) & (seen[1] >= end)).int()
    beyond = (0, blocks * block_m - sq)  # rows that nobody looks at
    some = torch.nn.functional.pad(some, beyond).view(-1, blocks, block_m).amax(2)
    all_of_it = torch.nn.functional.pad(all_of_it, beyond, value=1).view(-1, blocks, block_m).amin(2)
    bounds = [_extent(*row) for row in zip(some.tolist(), all_of_it.tolist(), strict=True)]
    return torch.tensor(bounds, dtype=torch.int32, device=seen.device), padded


def _extent(some: list[int], all_of_it: list[int]) -> tuple[int, int, int, int]:
    """low, whole, part and high, of the blocks of Q of which some row, or each, sees a block of K: whole to part is the longest
    run of the latter."""
    seeing = [m for m, sees in enumerate(some) if sees]
    if not seeing:
        return 0, 0, 0, 0
    low, high = seeing[0], seeing[-1] + 1
    best = (low, low)
    begin = low
    for m in range(low, high + 1):
        if m == high or not all_of_it[m]:
            best = max(best, (begin, m), key=lambda run: run[1] - run[0])
            begin = m + 1
    return low, *best, high


def seen_blocks(seen: torch.Tensor, block_m: int, block_n: int) -> torch.Tensor:
    """Of rows that see rows [seen[0], seen[1]) of K, int [2, SQ]: of each block of them the first block of K that some row sees,
    and past the last one, int32 [blocks, 2]."""
    made = []
    for begins, ends in zip(seen[0].split(block_m), seen[1].split(block_m), strict=True):
        some = ends > begins
        if not bool(some.any()):
            made.append([0, 0])
            continue
        made.append([int(begins[some].min()) // block_n, -(-int(ends[some].max()) // block_n)])
    return torch.tensor(made, dtype=torch.int32, device=seen.device)


def seen_extents(seen: torch.Tensor, block_m: int, block_n: int) -> torch.Tensor | None:
    """The same, with the blocks between that all rows see whole: first, first whole, past the last whole, past the last, int32
    [blocks, 4]. None where a block lies between that no row sees."""
    made = []
    for begins, ends in zip(seen[0].split(block_m), seen[1].split(block_m), strict=True):
        some = ends > begins
        if not bool(some.any()):
            made.append([0, 0, 0, 0])
            continue
        first, past = begins[some] // block_n, -(-ends[some] // block_n)
        low, high = int(first.min()), int(past.max())
        changes = torch.zeros(high - low + 1, dtype=torch.int64)
        changes.index_add_(0, (first - low).cpu(), torch.ones(len(first), dtype=torch.int64))
        changes.index_add_(0, (past - low).cpu(), -torch.ones(len(past), dtype=torch.int64))
        if not bool((changes.cumsum(0)[:-1] > 0).all()):
            return None
        whole, part = -(-int(begins.max()) // block_n), int(ends.min()) // block_n
        made.append([low, whole, part, high] if bool(some.all()) else [low, high, 0, high])
    return torch.tensor(made, dtype=torch.int32, device=seen.device)
