"""How long ranks wait for each other where they meet, and who says so."""

import contextlib
import signal
import time

import pytest
from conftest import BINARY

pytest.importorskip("triton")
pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")

import syncopate as sy
from syncopate import _syncopate, group
from syncopate.call import cache
from syncopate.command.run import parse


def alone(get=None, **options) -> sy.Group:
    """Rank 0 of two, of which the other never comes."""

    def nothing(_name: str, wait_ms: int) -> bytes:
        time.sleep(wait_ms / 1000)
        raise TimeoutError("nothing there")

    rendezvous = _syncopate.CallbackRendezvous(0, 2, lambda *_: None, get or nothing)
    return sy.Group(0, 2, rendezvous, "host", **options)


@pytest.fixture(autouse=True)
def _as_before():
    before = cache.deadline, group.setup_deadline
    yield
    cache.deadline, group.setup_deadline = before


def late(made: sy.Group, call) -> str:
    with pytest.raises(_syncopate.MachineError) as raised:
        call(made)
    return str(raised.value)


@pytest.mark.parametrize(
    "call",
    [lambda of: of.barrier("here"), lambda of: of.together("here", lambda: None)],
    ids=["barrier", "together"],
)
def test_a_group_waits_as_long_as_it_says_itself(call):
    assert "did not come to 'here' within 120 ms" in late(alone(deadline=0.12), call)
    sy.set_deadline(30, setup=0.15)
    assert "within 150 ms" in late(alone(), call)
    assert "within 120 ms" in late(alone(deadline=0.12), call)


def test_setting_up_memory_waits_as_long_as_the_group_does():
    made = alone()
    made.rendezvous.timeout = 0.12
    assert "within 120 ms" in late(made, lambda of: _syncopate.SymmetricHeap("host", 0, of.rendezvous, 4096))


def test_of_a_store_that_fails_the_message_has_a_line():
    def broken(_name: str, _wait_ms: int) -> bytes:
        raise TimeoutError("nothing there\nframe #0: in the store")

    with pytest.raises(_syncopate.MachineError) as raised:
        alone(broken, deadline=1).barrier("here")
    assert "TimeoutError: nothing there)" in str(raised.value), raised.value
    assert "Traceback" not in str(raised.value) and "frame" not in str(raised.value)


def test_a_deadline_of_calls_leaves_that_of_set_up_as_it_is():
    sy.set_deadline(2.5)
    assert (cache.deadline, group.setup_deadline) == (2.5, 600.0)
    sy.set_deadline(0, setup=0)
    assert alone().meeting_seconds > 1e6
    assert alone(deadline=0).meeting_seconds > 1e6


@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), "3", None, True])
def test_what_is_no_number_of_seconds_is_refused_and_changes_nothing(wrong):
    before = cache.deadline, group.setup_deadline
    with pytest.raises(ValueError, match="expected seconds"):
        sy.set_deadline(wrong)
    if wrong is not None:
        with pytest.raises(ValueError, match="expected seconds"):
            sy.set_deadline(3, setup=wrong)
    assert (cache.deadline, group.setup_deadline) == before


def test_a_keyboard_interrupt_ends_a_meeting():
    asked = []

    def interrupted(_name: str, wait_ms: int) -> bytes:
        asked.append(1)
        if len(asked) == 1:
            signal.raise_signal(signal.SIGINT)
        time.sleep(wait_ms / 1000)
        raise TimeoutError("nothing there")

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # shells ignore it for what runs beside them
    try:
        with pytest.raises((KeyboardInterrupt, _syncopate.MachineError)) as raised:
            alone(interrupted, deadline=20).barrier("here")
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(0.01)  # where it is raised, if it was not yet
    finally:
        signal.signal(signal.SIGINT, before)
    assert "KeyboardInterrupt" in repr(raised.value)
    assert len(asked) < 20


@pytest.mark.skipif(not BINARY.exists(), reason="the command is not built")
def test_the_deadline_of_a_run_holds_while_it_sets_up(run):
    started = run(BINARY, "run", "--help")
    assert "also at set-up" in started.out
    given = parse(["all_gather_matmul:M=32,N=16,K=16", "--deadline=0.2"])
    assert (given.deadline, given.setup_deadline) == (0.2, 0.2)
    given = parse(["all_gather_matmul:M=32,N=16,K=16"])
    assert (given.deadline, given.setup_deadline) == (30.0, None)


@pytest.mark.parametrize(("deadline", "text"), [(0.12, "within 120 ms"), (None, "within 150 ms")])
def test_a_group_of_a_folder_meets_within_its_deadline(deadline, text, tmp_path):
    sy.set_deadline(30, setup=0.15)
    with pytest.raises(_syncopate.MachineError, match=text):
        group.of_folder(tmp_path, 0, 2, "run", "host", deadline=deadline)
