"""The host's part of the library's Gluon attention: tables of documents against masks made row by row, tilings, refusals."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")
from syncopate.kernels.gluon_attention_call import (  # noqa: E402
    TILINGS,
    Pass,
    document_tables,
    gluon_attention_arguments,
    pass_tables,
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


@pytest.mark.parametrize("hidden", [(), (3,), (0, 200, 201), (639,)])
@pytest.mark.parametrize("window", [0, 90])
def test_pass_tables_say_which_blocks_of_a_pass_a_tile_sees(hidden, window):
    tiling = tiling_of(128)
    m, n = tiling.block_m, tiling.block_n
    positions = torch.cat([torch.arange(0, 300), torch.arange(1000, 1340)])
    positions[list(hidden)] = -1
    row = torch.cat([torch.arange(200, 400), torch.arange(900, 1200)])
    seen = torch.stack([torch.clamp(row - window + 1, min=0) if window else 0 * row, row + 1])
    bounds, kept, order = pass_tables(seen, positions, m, n)
    assert torch.equal(kept, seen.to(torch.int32))
    assert sorted(order.tolist()) == list(range(len(bounds)))
    mask = (positions >= seen[0][:, None]) & (positions < seen[1][:, None])
    for tile, (low, whole, part, high) in enumerate(bounds.tolist()):
        rows = mask[tile * m : (tile + 1) * m]
        some = rows.any(0).nonzero()[:, 0]
        assert low % n == 0 and (some.numel() == 0 or (low <= some[0] and some[-1] < high))
        for block in range(-(-whole // n), min(part, high) // n):
            assert rows[:, block * n : (block + 1) * n].all(), (tile, block)


def rows_seen(rows, length):
    """Two runs of rows of Q, and of each the first row of K that it sees and past the last one."""
    own = torch.cat([torch.arange(0, 150), torch.arange(700, 883)])
    begin, end = {
        "zigzag": (0 * own, own + 1),
        "window": ((own - 89).clamp(min=0), own + 1),
        "documents": (own // 137 * 137, (own // 137 * 137 + 137).clamp(max=length)),
        "nothing": (0 * own, torch.where(own < 100, 0, own)),
    }[rows]
    return own, begin, end


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("rows", ["zigzag", "window", "documents", "nothing"])
def test_backward_tables_say_which_blocks_of_q_see_a_block_of_k(rows, d):
    from syncopate.kernels import gluon_attention_backward_call as of_backward

    block_m, block_n = of_backward.BLOCK_M[d], of_backward.BLOCK_N[d]
    length = 1000
    own, begin, end = rows_seen(rows, length)
    bounds, seen = of_backward.backward_tables(torch.stack([begin, end]), length, d)
    column = torch.arange(length)
    mask = (column >= begin[:, None]) & (column < end[:, None])
    assert seen.shape[1] % block_m == 0 and torch.equal(seen[:, : len(own)], torch.stack([begin, end]).int())
    assert bounds.shape == (-(-length // block_n), 4)
    for n, (low, whole, part, high) in enumerate(bounds.tolist()):
        of_block = mask[:, n * block_n : (n + 1) * block_n]
        some = of_block.any(1).nonzero()[:, 0] // block_m
        assert (low, high) == ((int(some[0]), int(some[-1]) + 1) if len(some) else (0, 0))
        assert low <= whole <= part <= max(high, low)
        assert of_block[whole * block_m : part * block_m].all()


@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.parametrize("rows", ["zigzag", "window", "documents", "nothing"])
def test_tables_of_dq_say_which_blocks_of_k_a_block_of_q_sees(rows, d):
    from syncopate.kernels.attention_backward_tables import seen_extents
    from syncopate.kernels.gluon_attention_backward_call import DQ_TILES

    block_m, block_n, _ = DQ_TILES[d]
    length = 1000
    own, begin, end = rows_seen(rows, length)
    bounds = seen_extents(torch.stack([begin, end]), block_m, block_n)
    if rows in ("window", "documents"):  # rows 128 to 149 and 700 on are of one block of Q
        assert bounds is None
        begin, end = begin[:128], end[:128]
        bounds = seen_extents(torch.stack([begin, end]), block_m, block_n)
    column = torch.arange(length)
    mask = (column >= begin[:, None]) & (column < end[:, None])
    assert bounds.shape == (-(-len(begin) // block_m), 4)
    for m, (low, whole, part, high) in enumerate(bounds.tolist()):
        of_block = mask[m * block_m : (m + 1) * block_m]
        some = of_block.any(0).nonzero()[:, 0] // block_n
        assert (low, high) == ((int(some[0]), int(some[-1]) + 1) if len(some) else (0, 0))
        assert of_block[:, whole * block_n : part * block_n].all()


def test_other_documents_and_passes_are_launches_of_the_same_compiled_kernel():
    """What Triton compiles for follows from constants, types and block shapes; other tables have the same of all of them."""
    q, lse = torch.empty(1, 4, 640, 128, dtype=torch.bfloat16), torch.empty(1, 4, 640)
    tiling = tiling_of(128)

    def compiled_for(**options):
        arguments = gluon_attention_arguments(q, q, q, q, lse, tiling, **options)
        free = ("B", "H", "HKV", "SQ", "SK", "OFFSET", "WINDOW", "FIRST", "LAST")  # not specialised
        made = {}
        for name, value in arguments.items():
            if hasattr(value, "block_shape"):
                made[name] = ("descriptor", tuple(value.block_shape), value.base.dtype)
            elif isinstance(value, torch.Tensor):
                made[name] = (value.dtype, value.data_ptr() % 16)
            else:
                made[name] = type(value) if name in free else value
        return made

    first, *others = (
        compiled_for(causal=True, documents=document_tables(cuts, tiling, causal=True))
        for cuts in ([0, 137, 640], [0, 640], [0, 1, 2, 130, 640])
    )
    assert all(other == first for other in others)
    row = torch.arange(640)
    tables = pass_tables(torch.stack([0 * row, row + 1]), row, tiling.block_m, tiling.block_n)
    carry, tops = torch.empty(1, 4, 640, 128), torch.empty(2, 1, 4, 640)
    passes = [
        compiled_for(documents=tables, later=Pass(row.to(torch.int32), carry, tops, index == 0, index == 2))
        for index in range(3)
    ]
    assert passes[0] == passes[1] == passes[2] != first


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


def slots_of(ranks, shape, *, causal=False, window=0, kind="all_gather", documents=()):
    """Of the kernel fused with a plan, by rank, its tiles: the tile and its phases (begin, end, number of waits)."""
    import json

    from syncopate import _syncopate, plans
    from syncopate.call.stated import without_filled
    from syncopate.kernels.stated_attention import stated_attention

    b, h, hkv, s, d = shape
    tiling = tiling_of(d)
    sharding = "documents" if documents else "zigzag" if causal else "contiguous"
    rows = plans.shard_rows(s, ranks, sharding, tiling.block_m, documents)
    attended = [
        plans.attended_rows(s, own, causal=causal, window=window, block=tiling.block_n, documents=documents)
        for own in rows
    ]
    ulysses = ranks if kind == "ulysses" else 1
    circulation = "ring" if kind == "ring" else "all_gather"
    plan = plans.attention(
        plans.mesh_of(ranks), shape, "bf16", rows, attended, circulation=circulation, ulysses=ulysses
    )
    q, o = (torch.empty(b, h, s, d, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.empty(b, hkv, s, d, dtype=torch.bfloat16) for _ in range(2))
    lse = torch.empty(b, h, s)
    tables = document_tables(documents, tiling, causal=causal, window=window) if documents else None
    given = gluon_attention_arguments(q, k, v, o, lse, tiling, causal=causal, window=window, documents=tables)
    source, file, name, _, *rest = stated_attention(causal, window > 0, bool(documents)).stage(
        without_filled(given), (132, 1, 1)
    )
    known = {"bounds_ptr": tables[0].reshape(-1).tolist()} if documents else {}
    bind = {"q_desc": "Q", "k_desc": "K", "v_desc": "V", "o_desc": "O", "l_ptr": "L"}
    artifact = _syncopate.fuse([(source, file, name, bind, *rest)], plan, "cuda", 132, values=[known])
    found = []
    for rank in json.loads(artifact.schedule_json)["schedule"]["ranks"]:
        tiles = []
        for tile, waits, *words in rank["slots"]:
            words, phases = words[2 * waits :], []
            while words:
                loop, begin, end, count = words[:4]
                assert loop == 0
                phases.append((begin, end, count))
                words = words[4 + 2 * count :]
            tiles.append((tile, phases))
        found.append(tiles)
    return found


@pytest.mark.parametrize(
    ("ranks", "shape", "options"),
    [
        (2, (1, 4, 2, 2000, 128), {"causal": True}),
        (4, (2, 2, 1, 1999, 64), {}),
        (2, (1, 2, 2, 3000, 64), {"causal": True, "window": 300}),
        (3, (1, 2, 1, 3000, 128), {"window": 700}),
        (2, (1, 4, 2, 1024, 256), {"causal": True, "kind": "ring"}),
        (2, (1, 4, 2, 1024, 128), {"causal": True, "kind": "ulysses"}),
        (2, (1, 4, 2, 3000, 128), {"causal": True, "documents": (0, 137, 900, 3000)}),
        (3, (1, 2, 1, 2500, 64), {"documents": (0, 1000, 2500)}),
        (2, (1, 2, 1, 2500, 256), {"causal": True, "documents": (0, 1000, 2500), "window": 300}),
    ],
)
def test_a_fused_tile_runs_each_block_that_it_sees_once_in_ranges_of_any_order(ranks, shape, options):
    b, h, _, s, d = shape
    causal, window = options.get("causal", False), options.get("window", 0)
    m, n = tiling_of(d).block_m, tiling_of(d).block_n
    cuts = options.get("documents", (0, s))
    mask = mask_of(cuts, cuts, causal, window)
    tiles = -(-s // m)
    by_rank = slots_of(ranks, shape, **options)
    assert sorted(tile for slots in by_rank for tile, _ in slots) == list(range(b * h * tiles))
    waits = 0
    for slots in by_rank:
        for tile, phases in slots:
            first = tile % tiles * m
            columns = mask[first : first + m].any(0).nonzero()[:, 0]
            blocks = int(columns[-1]) // n - int(columns[0]) // n + 1
            run = sorted(i for begin, end, _ in phases for i in range(begin, end))
            assert run == list(range(blocks)), (tile, phases)
            waits += sum(count for _, _, count in phases)
    assert waits > 0 or options.get("kind") == "ulysses"
