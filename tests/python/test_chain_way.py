"""How a chain's way is chosen from measured times, and what is refused."""

import pytest

pytest.importorskip("syncopate")


def test_tiles_are_taken_only_where_they_win_most_rounds_and_by_the_median():
    from syncopate.chain_way import faster

    assert faster({"tiles": [9.0, 9.1, 9.2], "stream": [10.0, 10.0, 10.0]}) == "tiles"
    assert faster({"tiles": [10.1, 10.1, 10.1], "stream": [10.0, 10.0, 10.0]}) == "stream"
    assert faster({"tiles": [10.0, 10.0, 10.0], "stream": [10.0, 10.0, 10.0]}) == "stream"
    # A win of less than 1 % is none, nor one in a bare majority of rounds.
    assert faster({"tiles": [9.95] * 4, "stream": [10.0] * 4}) == "stream"
    assert faster({"tiles": [9.0, 9.0, 9.0, 11.0, 11.0], "stream": [10.0] * 5}) == "stream"
    # Two slow rounds of stream order do not make the other way faster.
    assert faster({"tiles": [10.2, 10.2, 10.2, 10.2], "stream": [10.1, 10.1, 30.0, 30.0]}) == "stream"


def test_a_way_that_is_none_or_of_a_plan_is_refused():
    stages = [object(), object()]
    from syncopate.chain import ChainKernel

    with pytest.raises(ValueError, match="way: 'fast'; there are tiles, single, stream"):
        ChainKernel(stages, way="fast")


def test_the_fastest_of_three_ways_is_taken():
    from syncopate.chain_way import faster

    assert faster({"tiles": [9.0] * 3, "single": [8.0] * 3, "stream": [10.0] * 3}) == "single"
    assert faster({"tiles": [9.0] * 3, "single": [11.0] * 3, "stream": [10.0] * 3}) == "tiles"


def test_why_stages_cannot_be_one_launch():
    from syncopate.chain_single import why_not

    options = [{"num_warps": 8}] * 2
    assert why_not([(4, 1, 1)] * 2, options, [False, True]) == ""
    assert "grids differ: (4, 1, 1), (2, 1, 1)" in why_not([(4, 1, 1), (2, 1, 1)], options, [False, True])
    assert "more than one axis" in why_not([(4, 2, 1)] * 2, options, [False, True])
    assert "options differ" in why_not([(4, 1, 1)] * 2, [{}, {"num_warps": 8}], [False, True])
    assert "overwrites" in why_not([(4, 1, 1)] * 2, options, [False, False])
