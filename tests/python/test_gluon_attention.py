"""The host's part of the library's Gluon attention: tables of documents against masks made row by row, tilings, refusals."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
from syncopate.kernels.gluon_attention_call import (  # noqa: E402
    TILINGS,
    document_tables,
    gluon_attention_arguments,
    tiling_of,
)


def mask_of(cu_q, cu_k, causal, window):
    """[SQ, SK], by the definition: own document, and rows count from its end."""
    mask = torch.zeros(cu_q[-1], cu_k[-1], dtype=torch.bool)
    for q0, q1, k0, k1 in zip(cu_q, cu_q[1:], cu_k, cu_k[1:], strict=False):
        at = torch.arange(q0, q1)[:, None] - q1 + k1
        column = torch.arange(k0, k1)[None]
        seen = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool)
        if causal:
            seen &= column <= at
        if window:
            seen &= (at - column).abs() < window
        mask[q0:q1, k0:k1] = seen
    return mask


CUTS = [
    ((0, 137, 2178), None),
    ((0, 1, 2, 130, 131, 1024), None),
    ((0, 64, 64, 640), None),  # an empty one
    ((0, 100, 300), (0, 500, 1000)),
    ((0, 300, 400), (0, 100, 900)),  # more rows of q than of k: some see nothing
]


@pytest.mark.parametrize(("cu_q", "cu_k"), CUTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [0, 1, 90])
def test_document_tables_say_what_rows_and_tiles_see(cu_q, cu_k, causal, window):
    tiling = tiling_of(128)
    bounds, seen, order = document_tables(cu_q, tiling, causal=causal, window=window, cu_seqlens_k=cu_k)
    mask = mask_of(cu_q, cu_k or cu_q, causal, window)
    column = torch.arange(mask.shape[1])[None]
    assert torch.equal((column >= seen[0][:, None]) & (column < seen[1][:, None]), mask)
    m, n = tiling.block_m, tiling.block_n
    lengths = [bounds[tile][3] - bounds[tile][0] for tile in order.tolist()]
    assert sorted(order.tolist()) == list(range(len(bounds))) and lengths == sorted(lengths, reverse=True)
    for tile, (low, whole, part, high) in enumerate(bounds.tolist()):
        rows = mask[tile * m : (tile + 1) * m]
        some = rows.any(0).nonzero()[:, 0]
        assert low % n == 0 and (some.numel() == 0 or (low <= some[0] and some[-1] < high))
        for block in range(-(-whole // n), min(part, high) // n):
            assert rows[:, block * n : (block + 1) * n].all(), (tile, block)


def test_a_tiling_leaves_a_multiprocessor_enough_shared_memory():
    for d, tiling in TILINGS.items():
        assert tiling.shared_bytes(d) <= 227 * 1024
        assert tiling.grid(2, 3, 1000, 132) == (min(tiling.tiles(2, 3, 1000), 132),)


def test_what_the_kernel_cannot_do_is_refused_by_name():
    q, k = torch.empty(1, 4, 64, 128, dtype=torch.bfloat16), torch.empty(1, 3, 64, 128, dtype=torch.bfloat16)
    lse = torch.empty(1, 4, 64)
    with pytest.raises(ValueError, match="a divisor of 4"):
        gluon_attention_arguments(q, k, k, q, lse, tiling_of(128))
    with pytest.raises(ValueError, match="scale: expected a number above 0, got -1"):
        gluon_attention_arguments(q, q, q, q, lse, tiling_of(128), scale=-1.0)
    with pytest.raises(ValueError, match="bf16 or fp16"):
        gluon_attention_arguments(*[q.float()] * 4, lse, tiling_of(128))
    with pytest.raises(ValueError, match="D: expected one of 64, 128, 256, got 96"):
        tiling_of(96)
    with pytest.raises(ValueError, match="rising numbers from 0"):
        document_tables([0, 5, 3], tiling_of(128))
