"""A process forks while its threads call an op by C++: the child, which has none of them, waits for no lock of theirs. Its group is
of torch's fake backend: collectives of several threads on one group of gloo's end the process in torch 2.13, forks or none, since
that one's workers write a string without a lock (ProcessGroupGloo::runLoop).

host_forks.py FORKS THREADS
"""

import os
import signal
import sys
import threading
import time

import syncopate  # noqa: F401 (the ops)
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

ENDS = 60  # seconds; a child does nothing but end


def ended(child: int) -> bool:
    end = time.monotonic() + ENDS
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def main() -> None:
    forks, count = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    group, over, calls = dist.group.WORLD.group_name, threading.Event(), [0] * count
    x, w = torch.ones(1, 8), torch.ones(8, 8)

    def call(place: int) -> None:
        with torch.no_grad():
            while not over.is_set():
                torch.ops.syncopate.feed_forward(x, w, w, group)
                calls[place] += 1

    torch.ops.syncopate.feed_forward(x, w, w, group)  # from now on by C++
    threads = [threading.Thread(target=call, args=(place,)) for place in range(count)]
    for thread in threads:
        thread.start()
    hung = 0
    for _ in range(forks):
        child = os.fork()
        if child == 0:
            os._exit(0)
        if not ended(child):
            hung += 1
            break
    over.set()
    for thread in threads:
        thread.join()
    syncopate.close()
    dist.destroy_process_group()
    assert not hung, "a child hangs"
    assert min(calls) > 0
    print(f"ok: {forks} forks")


if __name__ == "__main__":
    main()
