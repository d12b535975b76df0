"""How a chain's way is chosen from measured times, and what is refused."""

import pytest

pytest.importorskip("syncopate")


def test_tiles_are_taken_only_where_they_win_most_rounds_and_by_the_median():
    from syncopate._syncopate import fastest_way

    assert fastest_way({"tiles": [9.0, 9.1, 9.2], "stream": [10.0, 10.0, 10.0]}) == "tiles"
    assert fastest_way({"tiles": [10.1, 10.1, 10.1], "stream": [10.0, 10.0, 10.0]}) == "stream"
    assert fastest_way({"tiles": [10.0, 10.0, 10.0], "stream": [10.0, 10.0, 10.0]}) == "stream"
    # A win of less than 1 % is none, nor one in a bare majority of rounds.
    assert fastest_way({"tiles": [9.95] * 4, "stream": [10.0] * 4}) == "stream"
    assert fastest_way({"tiles": [9.0, 9.0, 9.0, 11.0, 11.0], "stream": [10.0] * 5}) == "stream"
    # Two slow rounds of stream order do not make the other way faster.
    assert fastest_way({"tiles": [10.2, 10.2, 10.2, 10.2], "stream": [10.1, 10.1, 30.0, 30.0]}) == "stream"


def test_a_way_that_is_none_or_of_a_plan_is_refused():
    stages = [object(), object()]
    from syncopate.face.chain import ChainKernel

    with pytest.raises(ValueError, match="way: 'fast'; there are tiles, programmatic, stream"):
        ChainKernel(stages, way="fast")


def test_kernels_that_await_the_one_before_are_launched_beside_it(monkeypatch):
    pytest.importorskip("triton")
    from syncopate.device import jit
    from syncopate.face import chain_way
    from syncopate.kernels.stated_matmul import stated_matmul

    def plain():
        pass

    product = stated_matmul(True, False)
    made, launched = [], []

    class Variants:
        def __init__(self, options, full):
            made.append(full)

        def pack(self, full):
            return self, full

        def launch(self, grid, stream, arguments, early):
            launched.append((arguments, early))

    monkeypatch.setattr(chain_way, "compiler_of", lambda kernel, grid, options: dict(options))
    monkeypatch.setattr(chain_way, "unwrapped", lambda kernel: kernel)
    monkeypatch.setattr(jit, "Variants", Variants)
    monkeypatch.setattr(jit, "current_stream", lambda: 0)
    monkeypatch.setattr(type(product), "filled", lambda self, grid, items: {"sy_schedule": 0})
    for kernel in (product, plain):
        assert chain_way.awaits_kernel(kernel) is (kernel is product)
    given = [{"B_EARLY": True}, {"N": 4}, {"B_EARLY": True}]
    kernels = [product, plain, product]
    chain_way.StreamOrder(kernels, [(4,)] * 3, given, [{}] * 3, programmatic=True).launch(0, given)
    assert [early for _, early in launched] == [False, False, True], "nothing starts beside an earlier call"
    assert [arguments for arguments, _ in launched] == made
    first, between, last = made
    assert first == {"sy_schedule": 0, "AFTER_KERNEL": True, "B_EARLY": True}, "it lets the next one start"
    assert between == {"N": 4}
    assert last == {"sy_schedule": 0, "AFTER_KERNEL": True, "B_EARLY": True}
    launched.clear()
    chain_way.StreamOrder(kernels, [(4,)] * 3, given, [{}] * 3).launch(0, given)
    assert [early for _, early in launched] == [False] * 3
    assert all("AFTER_KERNEL" not in arguments for arguments, _ in launched)
