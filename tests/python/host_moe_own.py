"""Products of the user's own on host ranks: those of one name that make other things are told apart; run by test_moe.py.

host_moe_own.py RANKS
"""

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"

import triton
import triton.language as tl
from host_moe import Layer, expect, of_folder, on_ranks, routings, sy
from syncopate import ops


def filled(value):
    """A product of one's own, whose name says nothing of what it makes."""
    if value:

        @triton.jit
        def made(
            a_ptr, w_ptr, expert, row, rows, n, K, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K
        ):
            return tl.full((BLOCK_M, BLOCK_N), 1.0, tl.float32)
    else:

        @triton.jit
        def made(
            a_ptr, w_ptr, expert, row, rows, n, K, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K
        ):
            return tl.zeros((BLOCK_M, BLOCK_N), tl.float32)

    return made


def check_products_differ(rank, size, group):
    """All ranks are told where one's product has the name of the others', and another text."""
    layer = Layer(size, 2 * size, 7)
    x, weights, w1, w2 = layer.of(rank)
    ids = routings(size, 2 * size, 1)["random"][rank]
    same, other = filled(0), filled(rank == 0)
    y = ops.moe(x, ids, weights, w1, w2, group, products=(same, same))
    expect(not y.any(), "products that are 0 make what is not")
    try:
        ops.moe(x, ids, weights, w1, w2, group, products=(same, other))
        raise RuntimeError("ranks that differ in a product were not told")
    except (ValueError, sy.SyncopateError) as error:
        expect("made@" in str(error), str(error))
    sy.close(group)


def work(place):
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    check_products_differ(place.rank, place.size, group)


if __name__ == "__main__":
    on_ranks(work)
    print(f"{sys.argv[1]} ranks: told")
