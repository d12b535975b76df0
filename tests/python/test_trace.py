"""What a recorded call is written as: strict trace events, one clock, and a picture."""

import json
import math
import struct
import sys
import textwrap
import threading
import time
from collections import defaultdict

import pytest
from conftest import HUNG

pytest.importorskip("triton")

from syncopate._syncopate import layout  # noqa: E402
from syncopate.trace import clock as trace_clock  # noqa: E402
from syncopate.trace.model import on_clock  # noqa: E402
from syncopate.trace.perfetto import to_perfetto  # noqa: E402
from syncopate.trace.picture import PLAIN, colour_of, draw, spans_of, tile_colours  # noqa: E402
from syncopate.trace.record import (  # noqa: E402
    Arrival,
    Made,
    Send,
    TileRun,
    Trace,
    assemble,
    without_signals,
    write,
)

KEYS = {  # by phase: the keys of an event, and no others
    "M": {"ph", "name", "pid", "tid", "args"},
    "X": {"ph", "name", "pid", "tid", "cat", "ts", "dur", "args"},
    "i": {"ph", "name", "pid", "tid", "cat", "s", "ts", "args"},
    "b": {"ph", "name", "pid", "tid", "cat", "id2", "ts"},
    "e": {"ph", "name", "pid", "tid", "cat", "id2", "ts"},
}
CATEGORIES = {
    "X": {"call", "tile", "range", "wait"},
    "i": {"chunk", "made", "summed"},
    "b": {"sent"},
    "e": {"sent"},
}


def validate(trace: dict, ranks: int) -> dict[str, list[dict]]:
    """Raises unless the object is what the trace event format asks for, to the key; the events by category."""
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    assert trace["displayTimeUnit"] == "ns"
    assert (
        set(trace["otherData"]) == {"clock", "clock_error_us"}
        and len(trace["otherData"]["clock_error_us"]) == ranks
    )
    named, spans, flights, by_category = set(), defaultdict(list), defaultdict(list), defaultdict(list)
    for event in trace["traceEvents"]:
        phase = event["ph"]
        assert set(event) == KEYS[phase], event
        assert isinstance(event["name"], str) and event["name"]
        assert type(event["pid"]) is int and 0 <= event["pid"] < ranks
        assert type(event["tid"]) is int and event["tid"] >= ranks, "lower ones are main threads of processes"
        if phase == "M":
            key = "sort_index" if event["name"] == "process_sort_index" else "name"
            assert event["name"] in ("process_name", "process_sort_index", "thread_name")
            assert set(event["args"]) == {key}
            named.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["cat"] in CATEGORIES[phase], event
        assert isinstance(event["ts"], float) and math.isfinite(event["ts"]) and event["ts"] >= 0
        assert ("thread_name", event["pid"], event["tid"]) in named, "a thread is named before it is used"
        by_category[event["cat"]].append(event)
        if phase == "X":
            assert isinstance(event["dur"], float) and math.isfinite(event["dur"]) and event["dur"] > 0
            spans[event["pid"], event["tid"]].append(event)
        if phase == "i":
            assert event["s"] == "t"
        if phase in "be":
            assert set(event["id2"]) == {"local"}, "an id of its process"
            flights[event["pid"], event["id2"]["local"]].append(event)
    assert {pid for kind, pid, _ in named if kind == "process_name"} == set(range(ranks))
    for events in flights.values():
        begin, end = events
        assert (begin["ph"], end["ph"], begin["name"]) == ("b", "e", end["name"]) and begin["ts"] <= end["ts"]
    for events in spans.values():  # within a thread, spans nest or follow each other
        open_until: list[float] = []
        for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
            while open_until and open_until[-1] <= event["ts"] + 2e-3:
                open_until.pop()
            assert not open_until or event["ts"] + event["dur"] <= open_until[-1] + 2e-3, "spans overlap"
            open_until.append(event["ts"] + event["dur"])
    return by_category


def two_ranks(error: int | None = 0) -> list[Trace]:
    """Rank 0 makes a chunk with two tiles and sends it to rank 1, one of whose tiles waits for it."""
    made = Made(0, "C", [(0, 16), (0, 8)], [0, 1], 300)
    sends = [Send((0, 0), 1, "C", [(0, 16), (0, 8)], [0], 300)]
    maker = Trace(
        0, "cuda", 100, 400, [TileRun(0, 5, 0, 7, 100, 110, 200), TileRun(1, 4, 0, 7, 200, 205, 300)], [], [made],
        sends, error,
    )  # fmt: skip
    arrival = Arrival(2, 0, "C", [(0, 16), (0, 8)], 900, (0, 0))
    tiles = [TileRun(0, 0, 1, 9, 150, 950, 1200, [2]), TileRun(1, 1, 1, 9, 1200, 1210, 1300)]
    return [maker, Trace(1, "cuda", 150, 1400, tiles, [arrival], [], [], error)]


def test_a_tile_that_reads_at_another_rank_says_so(run, tmp_path):
    spec = "all_gather_matmul:M=96,N=32,K=32,dtype=fp32,backend=tma_inline"
    outcome = run(
        sys.executable, "-m", "syncopate.command.run", spec, "--ranks=3", f"--trace={tmp_path / 't.png'}"
    )
    assert outcome.code == 0, outcome.out + outcome.err
    events = validate(json.loads((tmp_path / "t.json").read_text()), ranks=3)
    read_at = [(e["pid"], e["args"].get("read_at_rank")) for e in events["tile"]]
    assert sorted(read_at, key=str) == sorted(
        [(r, None if r == q else q) for r in range(3) for q in range(3)], key=str
    )
    tiles = [TileRun(0, 0, 0, 7, 0, 1, 2), TileRun(1, 1, 0, 7, 2, 3, 4, read_at=2)]
    colours = tile_colours(Trace(0, "host", 0, 5, tiles, []))
    assert colours == {0: PLAIN, 1: colour_of(2)}


def test_ranges_of_keys_are_shown_as_they_arrive(run, tmp_path):
    spec = "attention:B=1,H=2,HKV=1,S=96,D=16,causal=1,sharding=contiguous"
    command = [sys.executable, "-m", "syncopate.command.run", spec, "--ranks=3", "--check"]
    outcome = run(*command, f"--trace={tmp_path / 't.png'}", "--delay-ms=20")
    assert outcome.code == 0, outcome.out + outcome.err
    events = validate(json.loads((tmp_path / "t.json").read_text()), ranks=3)
    came = {r: [e["name"] for e in events["chunk"] if e["pid"] == r] for r in range(3)}
    assert [sorted(name[0] for name in came[r]) for r in range(3)] == [[], ["K", "V"], ["K", "K", "V", "V"]]
    after = {(e["pid"], name[-6:]) for e in events["range"] for name in e["args"]["after"]}
    assert after == {(1, "rank 0"), (2, "rank 0"), (2, "rank 1")}
    assert len(events["tile"]) == 3 * 2 * 2


def test_a_tile_is_drawn_range_by_range_where_they_waited():
    key = [(0, 8), (0, 8)]
    chunks = [Arrival(signal, signal, "K", key, 100 * signal) for signal in (1, 2)]
    phases = [(10, 20, []), (60, 200, [2]), (260, 270, [1])]
    tile = TileRun(0, 0, 0, 7, 0, 10, 400, [], phases, None, [(4, 6), (2, 4), (0, 2)])
    trace = Trace(0, "host", 0, 500, [tile], chunks)
    assert spans_of(trace, tile, PLAIN) == [
        (tile, 20, 60, PLAIN), (tile, 200, 260, colour_of(2)), (tile, 270, 400, colour_of(1)),
    ]  # fmt: skip
    shown = [e for e in json.loads(to_perfetto([trace]))["traceEvents"] if e.get("cat") == "range"]
    assert [e["name"] for e in shown] == ["iterations 4:6", "iterations 2:4", "iterations 0:2"]
    assert shown[1]["args"]["after"] == ["K[0:8, 0:8] from rank 2"]


@pytest.mark.parametrize("sends", ["copied", "stored"])
def test_a_recorded_run_is_strictly_valid_and_shows_what_was_made_sent_and_summed(sends, run, tmp_path):
    """What is summed is sent by copies, or stored at the peers by the sum, which then tells nobody of its own rank."""
    copied = sends == "copied"
    spec = "matmul_all_reduce:M=48,N=16,K=16,dtype=fp32,split=2" + (",backend=host" if copied else "")
    outcome = run(
        sys.executable, "-m", "syncopate.command.run", spec, "--ranks=3", f"--trace={tmp_path / 't.png'}"
    )
    assert outcome.code == 0, outcome.out + outcome.err
    events = validate(json.loads((tmp_path / "t.json").read_text()), ranks=3)
    assert len(events["call"]) == 3
    assert len(events["made"]) == 3 * 3 * 2, "each rank makes both chunks of every rank's rows"
    assert len(events["summed"]) == (3 * 2 if copied else 0)
    # both halves of two shards come to each rank to be summed, and both sums of two others
    assert len(events["chunk"]) == 3 * 8 and len(events["sent"]) == 2 * 3 * 8
    summed = {(e["pid"], e["name"].removesuffix(" summed")): e["ts"] for e in events["summed"]}
    for event in events["sent"]:
        chunk = event["name"].split(" to ")[0]
        if event["ph"] == "b" and (event["pid"], chunk) in summed:
            assert event["ts"] >= summed[event["pid"], chunk], "a sum leaves when it is there"
    png = (tmp_path / "t.png").read_bytes()
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.json", "t.png"], "and nothing else is left"


def test_times_on_one_clock_are_shown_from_the_first_begin_with_their_error():
    shown = json.loads(to_perfetto(two_ranks(error=1500)))
    events = validate(shown, ranks=2)
    assert shown["otherData"]["clock_error_us"] == [1.5, 1.5] and "MONOTONIC" in shown["otherData"]["clock"]
    assert [e["ts"] for e in events["call"]] == [0.0, 0.05]
    assert [(e["name"], e["ts"]) for e in events["sent"]] == [
        ("C[0:16, 0:8] to rank 1", 0.2),
        ("C[0:16, 0:8] to rank 1", 0.8),
    ]
    names = {e["args"].get("name") for e in shown["traceEvents"] if e["ph"] == "M"}
    assert "rank 1 (cuda, ±1.5 µs)" in names


def test_times_on_clocks_of_their_own_are_shown_from_each_begin_and_nothing_is_drawn_between_ranks():
    shown = json.loads(to_perfetto(two_ranks(error=None)))
    events = validate(shown, ranks=2)
    assert [e["ts"] for e in events["call"]] == [0.0, 0.0]
    assert "sent" not in events and shown["otherData"]["clock_error_us"] == [None, None]


def test_a_chunk_is_made_when_its_last_tile_has_ended_if_nobody_saw_it_sooner():
    table = [2, 0, 0, 1] + [0] * 12 + [7, 32, 32] + [0] * 5 + [3, 32, 32] + [0] * 5
    times = [0] * 16 + [100, 110] + [0] * 6 + [150, 160] + [0] * 6 + [210]
    made = [Made(-1, "C", [(0, 1)], [0, 1], 0), Made(4, "C", [(1, 2)], [0], 140)]
    sends = [Send((0, 0), 1, "C", [(1, 2)], [4], 0), Send((0, 1), 1, "D", [(0, 1)], [], 0)]
    trace = assemble(0, "host", table, times, [], [], 90, 220, made, sends)
    assert [(chunk.region, chunk.time) for chunk in trace.made] == [([(1, 2)], 140), ([(0, 1)], 210)]
    assert [send.ready for send in trace.sends] == [140, 90]


def test_a_trace_moves_to_another_clock_as_a_whole():
    before = two_ranks()[1]
    after = on_clock(before, 1000, 25)
    assert (after.begin, after.end, after.clock_error) == (before.begin + 1000, before.end + 1000, 25)
    assert [t.start for t in after.tiles] == [t.start + 1000 for t in before.tiles]
    assert [c.time for c in after.chunks] == [1900] and before.chunks[0].time == 900


def test_a_clock_is_found_by_its_quickest_answer_within_the_error_that_is_given():
    import ctypes

    rounds, ahead = 16, 123_456_789
    words = (ctypes.c_int64 * (rounds + 1))()

    def other_side():  # a clock that is behind the host's by `ahead`
        for turn in range(1, rounds + 1):
            while words[0] < turn:
                time.sleep(0)
            time.sleep(2e-3 if turn % 2 else 0)
            words[turn] = time.monotonic_ns() - ahead

    thread = threading.Thread(target=other_side)
    thread.start()
    answered = trace_clock.exchange(words, rounds, 10**9 * HUNG)
    thread.join()
    offset, error = trace_clock.estimate(answered)
    assert len(answered) == rounds
    assert abs(offset - ahead) <= error
    assert error == min((t1 - t0 + 1) // 2 for t0, _, t1 in answered)


def test_a_clock_that_does_not_answer_is_given_up():
    import ctypes

    assert trace_clock.estimate(trace_clock.exchange((ctypes.c_int64 * 9)(), 8, 50_000_000)) is None


def test_the_picture_is_drawn_for_many_programs_and_its_colours_say_whose_chunk():
    maker, taker = two_ranks()
    assert tile_colours(maker) == {0: colour_of(1), 1: colour_of(1)}, "both make what rank 1 gets"
    assert set(tile_colours(taker).values()) == {colour_of(0)}, "one waits for rank 0, the next follows it"


def test_a_picture_has_a_band_for_every_rank(tmp_path):
    maker, taker = two_ranks()
    sizes = []
    for traces in ([maker], [maker, taker]):
        draw(traces, tmp_path / "picture.png")
        data = (tmp_path / "picture.png").read_bytes()
        sizes.append(struct.unpack(">II", data[16:24]))
    assert sizes[0][0] == sizes[1][0] and sizes[1][1] > sizes[0][1]


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_run(run, tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ImportError('none here')\n")
    code = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from syncopate.command import run
        sys.exit(run.main(["all_gather_matmul:M=64,N=16,K=16,dtype=fp32", "--ranks=2", "--trace=" + sys.argv[1] + "/t.png"]))
    """
    outcome = run(sys.executable, "-c", textwrap.dedent(code), tmp_path)
    assert outcome.code == 3
    assert outcome.err.startswith("error: a picture needs matplotlib") and outcome.out == ""
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("t.")] == []


def test_no_file_is_left_half_written(tmp_path):
    with pytest.raises(OSError):
        write(two_ranks(), tmp_path / "no" / "trace.json")
    assert list(tmp_path.iterdir()) == []


def test_a_table_without_signals_finds_what_is_summed_from_another_control_block():
    """A place is named by its distance from the control block: it stays where it is."""
    torch = pytest.importorskip("torch")
    record, distances = 32, [-(1 << 40), 48, 1 << 33]
    words = [0] * 64
    words[layout.SUM], words[layout.OTHER] = record, 1
    words[record + layout.SUM_WAITS : record + layout.SUM_WAITS + 2] = [50, 56]
    words[record + layout.SUM_SUMMANDS] = len(distances)
    table = torch.tensor(words, dtype=torch.int32)
    places = slice(record + layout.SUM_PLACES, record + layout.SUM_PLACES + 2 * len(distances))
    table[places].view(torch.int64).copy_(torch.tensor(distances))
    moved = (1 << 36) + 256
    made = without_signals(table, moved)
    assert made[places].view(torch.int64).tolist() == [distance - moved for distance in distances]
    assert made[record + layout.SUM_WAITS].item() == made[record + layout.SUM_WAITS + 1].item() == 50
    assert made[layout.OTHER].item() == 0
    assert table[layout.OTHER].item() == 1, "a copy"
