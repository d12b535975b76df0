"""Which way a reduction over ranks takes on a GPU: those that were the quickest where they were measured (docs/performance.md)."""

import pytest

torch = pytest.importorskip("torch")
reduce_ways = pytest.importorskip("syncopate.strategy.reduce_ways")
strategy = pytest.importorskip("syncopate.strategy")
from syncopate.strategy import Problem, Strategy  # noqa: E402

MODELS = {"8B": (4096, 14336), "70B": (8192, 28672), "GPT-3": (12288, 49152), "405B": (16384, 53248)}


def all_reduce(model: str, m: int, size: int) -> "reduce_ways.Way":
    hidden, f = MODELS[model]
    return reduce_ways.choose_all_reduce_way(m, hidden, f // 8, torch.bfloat16, size, 132)


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("model", MODELS)
def test_few_rows_are_summed_after_the_product(model, size):
    way = all_reduce(model, 128, size)
    assert way.kind == "after"
    assert 1 <= way.engine_blocks <= (128 if size == 2 else 32)


@pytest.mark.parametrize(
    ("model", "m", "size", "way"),
    [
        ("8B", 1024, 4, "after:32"),
        ("70B", 512, 4, "after:32"),
        ("70B", 1024, 4, "pulled:2"),
        ("GPT-3", 1024, 4, "pulled:3"),
        ("405B", 1024, 4, "pulled:4"),
        ("8B", 4096, 4, "inline"),
        ("8B", 8192, 4, "inline:4"),
        ("70B", 4096, 4, "beside:16:8"),
        ("GPT-3", 8192, 4, "beside:8:8"),
        ("8B", 4096, 8, "beside:16:4"),
        ("70B", 8192, 8, "beside:16:8"),
        ("70B", 1024, 2, "fused"),
        ("GPT-3", 1024, 2, "pulled:3"),
        ("405B", 1024, 2, "pulled:4"),
        ("70B", 4096, 2, "fused"),
    ],
)
def test_an_all_reduce_goes_the_way_that_was_the_quickest(model, m, size, way):
    assert str(all_reduce(model, m, size)) == way


def test_a_part_that_sums_pull_is_one_round_of_tiles():
    assert reduce_ways.parts_of_rounds(1024, 12288, 132) == 3
    assert reduce_ways.parts_of_rounds(1024, 4096, 132) == 1, "all of it is one round"
    assert reduce_ways.parts_of_rounds(1024, 12288 + 256, 132) == 1, "no equal parts of whole tiles"
    assert reduce_ways.parts_of_rounds(1024, 16384, 127) == 1, "five parts do not fit"


def test_parts_are_whole_tiles_and_other_types_stay_fused():
    way = reduce_ways.choose_all_reduce_way(4096, 8192 + 256, 3584, torch.bfloat16, 8, 132)
    assert way.kind == "fused", "no number of parts fits"
    assert reduce_ways.choose_all_reduce_way(4096, 8192, 3584, torch.float32, 8, 132).kind == "fused"
    assert reduce_ways.choose_all_reduce_way(4096, 8192, 3584, torch.bfloat16, 1, 132).kind == "fused"


@pytest.mark.parametrize(
    ("m", "n", "size", "kind"),
    [(1024, 4096, 2, "inline"), (1024, 4096, 4, "narrow:2"), (512, 4096, 4, "inline"), (128, 4096, 4, "inline"),
     (1024, 8192, 4, "mixed:1"), (1024, 12288, 4, "mixed:1"), (1024, 16384, 4, "fused"),
     (1024, 4096, 8, "narrow:6"), (1024, 8192, 8, "mixed:3"), (1024, 12288, 8, "mixed:2"), (1024, 16384, 8, "mixed:1"),
     (4096, 4096, 8, "beside:16:4"), (1024, 8192, 2, "fused"), (8192, 4096, 8, "fused"), (4096, 8192, 8, "fused"),
     (4096, 4096, 4, "fused")],
)  # fmt: skip
def test_a_reduce_scatter_goes_the_way_that_was_the_quickest(m, n, size, kind):
    assert str(reduce_ways.choose_reduce_scatter_way(m, n, 3584, torch.bfloat16, size, 132)) == kind


@pytest.mark.parametrize(
    ("m", "k", "size", "way"),
    [(4096, 1792, 2, "fused:2"), (8192, 1792, 2, "fused:4"), (4096, 1792, 4, "fused"), (8192, 1792, 4, "fused:2"),
     (8192, 1376, 4, "fused:2"), (8192, 1792, 8, "pulled_last:1"), (8192, 1376, 8, "pulled_last:1"),
     (8192, 1792, 1, "fused")],
)  # fmt: skip
def test_what_the_links_bound_goes_in_parts_or_is_read_at_the_end(m, k, size, way):
    chosen = reduce_ways.choose_reduce_scatter_way(m, 4096, k, torch.bfloat16, size, 132)
    assert str(chosen) == way
    if size > 1:
        assert chosen.strategy.sum_parts == 1, "the sum that waits for the links is not cut once more"


def test_a_product_of_odd_columns_is_not_cut():
    chosen = reduce_ways.choose_reduce_scatter_way(8192, 4096 + 256, 1792, torch.bfloat16, 2, 132)
    assert chosen == reduce_ways.Way("fused", sum_parts=1)


def test_nothing_is_stored_at_an_owner_where_a_tile_has_two():
    ragged = reduce_ways.choose_reduce_scatter_way(1024 + 4, 8192, 3584, torch.bfloat16, 4, 132)
    assert ragged.kind == "fused"
    assert reduce_ways.choose_reduce_scatter_way(1024, 8192, 3584, torch.float32, 4, 132).kind == "fused"


def test_what_the_last_round_makes_for_others_is_stored_there():
    assert [reduce_ways.made_last(tiles, 132, 4) for tiles in (128, 256, 384, 512)] == [3, 1, 1, 0]


def test_a_sum_that_awaits_the_links_is_not_cut():
    for m, n, k, parts in ((4096, 4096, 1792, 1), (8192, 8192, 3584, 8)):
        way = reduce_ways.choose_reduce_scatter_way(m, n, k, torch.bfloat16, 4, 132)
        assert way.strategy == Strategy(sum_parts=parts)


def test_a_way_has_a_name():
    for name in (
        "after:32",
        "beside:16:8",
        "inline",
        "inline:4",
        "mixed:2",
        "narrow:2",
        "fused",
        "fused:2",
        "pulled:3",
        "pulled_last:1",
        "pulled_last:2",
    ):
        assert str(reduce_ways.Way.named(name)) == name
    assert reduce_ways.Way.named("beside") == reduce_ways.Way("beside", 8, 1)


@pytest.mark.parametrize("name", ["", "before", "after:0", "after:1:2", "inline:1:1", "beside:a"])
def test_a_name_of_no_way_is_refused(name):
    with pytest.raises(ValueError, match="expected"):
        reduce_ways.Way.named(name)


def complete(problem: Problem, **asked) -> dict:
    """Of what is asked for on a GPU, how the contributions go in the end."""
    made = strategy.complete(problem, Strategy(**asked))
    return {
        name: getattr(made, name) for name in ("plain_kernel", "pull", "backend", "engine_blocks", "split")
    }


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"pull": True}, (False, True, "ldst_dedicated", 8, 1)),
        ({"pull": True, "backend": "tma_dedicated"}, (False, True, "tma_dedicated", 8, 1)),
        ({"plain_kernel": True}, (True, False, "ldst_dedicated", 32, 1)),
        ({"plain_kernel": True, "engine_blocks": 8}, (True, False, "ldst_dedicated", 8, 1)),
        ({"split": 2}, (False, False, "tma_inline", 8, 2)),
        ({"stored": 2}, (False, False, "auto", 8, 1)),
        ({"pulled": 1}, (False, False, "auto", 8, 1)),
    ],
)  # fmt: skip
def test_what_is_asked_for_is_done_and_the_rest_filled_in(asked, given):
    problem = Problem("matmul_all_reduce", 512, 8192, 3584, torch.bfloat16, 4, 132)
    assert tuple(complete(problem, **asked).values()) == given


def test_an_all_reduce_of_many_rounds_goes_part_by_part():
    problem = Problem("matmul_all_reduce", 8192, 8192, 3584, torch.bfloat16, 2, 132)
    assert complete(problem)["split"] == 4 and complete(problem)["backend"] == "auto"


def test_what_is_chosen_is_the_way_and_complete():
    problem = Problem("matmul_all_reduce", 512, 8192, 3584, torch.bfloat16, 4, 132)
    chosen = strategy.choose(problem)
    assert (chosen.plain_kernel, chosen.backend, chosen.engine_blocks) == (True, "ldst_dedicated", 32)
    assert chosen.programs == 132 and len(chosen.tilings) == 1
    beside = strategy.choose(Problem("matmul_all_reduce", 4096, 8192, 3584, torch.bfloat16, 4, 132))
    assert beside.pull and beside.programs == 132 - beside.engine_blocks


def test_on_the_host_nothing_is_chosen_but_tiles():
    problem = Problem("matmul_all_reduce", 512, 8192, 3584, torch.bfloat16, 4, 4, "host")
    chosen = strategy.choose(problem)
    assert chosen == Strategy(tilings=chosen.tilings, programs=4, engine_blocks=8, split=1)


@pytest.mark.parametrize(
    ("options", "why"),
    [({"stored": 4}, "^stored: .* 0 to 3"), ({"stored": -1}, "^stored: .* 0 to 3"),
     ({"stored": 1, "pull": True}, "^stored: .*pull"), ({"stored": 1, "plain_kernel": True}, "^stored: .*plain_kernel"),
     ({"pulled": 4}, "^pulled: .* 0 to 3"), ({"pulled": 2, "pull": True}, "^pulled: "),
     ({"pulled": 1, "stored": 1}, "^stored, pulled: ")],
)  # fmt: skip
def test_contributions_that_cannot_go_so_are_refused(options, why):
    from syncopate import Group, ops

    with pytest.raises(ValueError, match=why):
        ops.MatmulReduceScatter(
            512, 64, 64, torch.bfloat16, Group(0, 4, None, "host"), strategy=Strategy(**options)
        )


def test_every_way_asks_for_a_backend_or_leaves_contributions_to_be_copied():
    for way in (reduce_ways.Way("after", 16), reduce_ways.Way("beside", 12, 4), reduce_ways.Way("inline")):
        assert way.strategy.backend in ("ldst_dedicated", "tma_inline")
    assert reduce_ways.Way("fused").strategy == Strategy()


@pytest.mark.parametrize("name", ["stored", "pulled"])
def test_contributions_that_are_to_go_otherwise_do_though_one_round_of_tiles_would_be_stored(name):
    for operator in ("matmul_reduce_scatter", "matmul_all_reduce"):
        problem = Problem(operator, 1024, 4096, 1792, torch.bfloat16, 4, 132)
        assert complete(problem)["backend"] == "tma_inline"
        assert complete(problem, **{name: 1})["backend"] == "auto"
