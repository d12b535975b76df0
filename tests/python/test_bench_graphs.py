"""What bench.measure captures and times, with a GPU's calls stood in for."""

import contextlib
import gc
import weakref

import pytest

pytest.importorskip("triton")
import torch  # noqa: E402
from syncopate.bench import measure  # noqa: E402


def test_a_captured_graph_keeps_what_its_call_reads(monkeypatch):
    """Nobody else need: the allocator hands memory on that nobody holds, whatever a graph reads there."""

    class Stream:
        def wait_stream(self, other):
            pass

    class Graph:
        def replay(self):
            pass

    class Table:
        pass

    def nothing(*_, **options):
        return contextlib.nullcontext()

    stands_in = {"is_available": lambda: True, "Stream": Stream, "current_stream": Stream, "CUDAGraph": Graph}
    for name, one in {**stands_in, "stream": nothing, "graph": nothing, "synchronize": nothing}.items():
        monkeypatch.setattr(torch.cuda, name, one)
    table, ran = Table(), []
    held = weakref.ref(table)
    replay = measure.capture(lambda table=table: ran.append(type(table))).replay
    del table
    gc.collect()
    assert len(ran) == 2 and held() is not None
    del replay
    gc.collect()
    assert held() is None


def test_a_candidate_that_fails_is_named():
    def fails(_):
        raise ValueError("an illegal address")

    with pytest.raises(ValueError, match="an illegal address") as caught:
        measure._warm_up(measure.Candidate("products", fails), 1)
    assert caught.value.__notes__ == ["in products"]
