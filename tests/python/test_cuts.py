"""How sy.ops cuts shards for the shapes of a GPU: the slices that it makes are of whole tiles of K, grow, and are K together."""

import itertools

import pytest

cuts = pytest.importorskip("syncopate.strategy.cuts")


@pytest.mark.parametrize("k", [64, 128, 1024, 4096, 4160, 8192])
@pytest.mark.parametrize("sending", [1.0, 12.0, 25.0, 90.0, 1000.0])
@pytest.mark.parametrize("multiplying", [25.0, 100.0])
def test_slices_are_whole_tiles_and_all_of_k(k, sending, multiplying):
    sizes = cuts.growing_slices(k, 64, sending, multiplying)
    assert sum(sizes) == k
    assert all(size > 0 and size % 64 == 0 for size in sizes)
    if k >= 4096 and multiplying >= sending:
        assert all(first <= later + 64 for first, later in itertools.pairwise(sizes))


def test_the_less_there_is_to_send_the_shorter_the_first_slice():
    first = [cuts.growing_slices(8192, 64, sending, 100.0)[0] for sending in (25.0, 50.0, 100.0)]
    assert first == sorted(first) and first[0] < first[-1]
    assert cuts.growing_slices(8192, 64, 0.5, 100.0) == (8192,), "a phase would cost more"


def test_a_product_of_one_wave_goes_by_the_chunk_engine_in_slices():
    torch = pytest.importorskip("torch")
    for size in (2, 4, 8):
        chosen = cuts.choose_cut(1024, 3584, 8192, size, torch.bfloat16, 132)
        assert cuts.gemm_tiles(1024, 3584, chosen.tilings[0]) <= 132 - chosen.engine_blocks
        assert chosen.backend == "tma_dedicated" and chosen.engine_blocks > 0
        slices = chosen.chunking.slices
        assert sum(slices) == 8192 and len(slices) > 1
