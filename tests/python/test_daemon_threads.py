"""Daemon threads that are in calls of the library when Python ends: it ends them there, and nobody is aborted."""

import os
import subprocess
import sys

import pytest
from conftest import HUNG, ROOT

pytest.importorskip("syncopate._syncopate", reason="the extension module is not built")

# What is torn down takes longer than each thread's wait: they come back to a Python that is ending.
SCRIPT = """
import os, sys, tempfile, threading, time
from syncopate import _syncopate as s

class Slow:
    def __del__(self, sleep=time.sleep, write=os.write):
        sleep(1.2), write(1, b"torn down")

sys.modules["kept to the end"] = type(sys)("kept")
sys.modules["kept to the end"].slow = Slow()
in_it = []

def naps(of, seconds):
    def called(*arguments):
        in_it.append(of)
        time.sleep(seconds)
        raise RuntimeError("not yet")
    return called

def no_store(*_):
    raise RuntimeError("not yet")

def heap(put, get):
    s.SymmetricHeap("host", 0, s.CallbackRendezvous(0, 2, put, get), 1 << 16, 0.6)

def calls():
    store = s.CallbackRendezvous(0, 2, lambda *_: None, no_store, naps("put_first", 0.3))
    folder = tempfile.mkdtemp()
    return {
        "get": lambda: heap(lambda *_: None, naps("get", 0.02)),
        "a long get": lambda: heap(lambda *_: None, naps("a long get", 0.5)),
        "put": lambda: heap(naps("put", 0.5), no_store),
        "put_first": lambda: s.recover(store, deadline=0.05),
        "a folder": lambda: (in_it.append("a folder"), s.FileRendezvous(folder, 0, 2, "run", 0.5)),
        "a wait without callbacks": lambda: (in_it.append("a wait without callbacks"),
            s.SymmetricHeap("host", 0, s.CallbackRendezvous(0, 2, lambda *_: None, no_store), 1 << 16, 0.4)),
    }

all_of_them = calls()
for call in all_of_them.values():
    threading.Thread(target=call, daemon=True).start()
while set(in_it) != set(all_of_them):
    time.sleep(0.001)
"""


def test_those_in_calls_when_python_ends_stay_there():
    process = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", SCRIPT],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        timeout=HUNG,
    )
    assert (process.returncode, process.stdout) == (0, "torn down"), process.stderr
