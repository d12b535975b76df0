"""Going on after a rank was killed, on all GPUs. Not under torch.distributed.run, which would end the other ones:

python tests/gpu/check_recover.py [killed] [renewed] [reset] [stopped]

A rank for each GPU (at least two, or $RANKS), as processes of their own. killed: the first, then the last rank is killed in the
middle of its calls; the others go on without it, within 5 s of the deadlines. renewed: a late rank; all go on, and a CUDA graph
that was captured before replays to the right result at the same addresses. reset: the same by reset() of the operator. stopped:
as renewed, the process of the late rank being stopped meanwhile."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

CALLS, COMES = 2.0, 2.0  # seconds: deadlines of a call, and of ranks to come
ROWS, N, K = 512, 512, 512  # of each rank


def child(section: str, rank: int, size: int, folder: str, victim: int) -> None:
    import syncopate as sy
    import torch
    from syncopate import ops
    from syncopate.group import of_folder

    ordinal = rank % torch.cuda.device_count()
    torch.cuda.set_device(ordinal)
    group = of_folder(folder, rank, size, "run", "cuda", ordinal)
    group.deadline = 60.0
    x = torch.randn(ROWS, K, device="cuda", dtype=torch.bfloat16)
    w = torch.randn(K, N, device="cuda", dtype=torch.bfloat16)

    def operator():
        return ops.AllGatherMatmul(ROWS * group.size, N, K, torch.bfloat16, group, deadline=CALLS)

    def gathered(ranks: list[int]) -> torch.Tensor:
        """What the operator of `ranks` is to give, by files: no library that knows the dead rank."""
        torch.save(x.cpu(), f"{folder}/x{rank}.new")
        os.rename(f"{folder}/x{rank}.new", f"{folder}/x{rank}")
        while not all(os.path.exists(f"{folder}/x{other}") for other in ranks):
            time.sleep(0.01)
        return torch.cat([torch.load(f"{folder}/x{other}") for other in ranks]).cuda() @ w

    def right(made: torch.Tensor, wanted: torch.Tensor) -> None:
        torch.cuda.synchronize()
        torch.testing.assert_close(made, wanted, rtol=2e-2, atol=2e-1)

    torch.manual_seed(0)
    w.copy_(torch.randn(K, N).to(torch.bfloat16))
    everyone = list(range(size))
    wanted = gathered(everyone)
    op = operator()
    right(op(x, w), wanted)
    op.check()

    if section == "killed":
        group.barrier("there")
        if rank == victim:
            for _ in range(20):
                op(x, w)
            os.kill(os.getpid(), signal.SIGKILL)
        begun = time.monotonic()
        try:
            for _ in range(10_000):
                op(x, w)
                op.check()
            raise AssertionError("calls without a rank")
        except sy.MachineError as error:
            print(f"rank {rank}: {error} (after {time.monotonic() - begun:.1f} s)", flush=True)
        begun = time.monotonic()
        sy.recover(group, deadline=COMES)
        took = time.monotonic() - begun
        left = [other for other in everyone if other != victim]
        assert (group.rank, group.size) == (left.index(rank), len(left)), group
        try:
            op(x, w)
            raise AssertionError("a call of a group that is gone")
        except ValueError as error:
            said = f"was made in a group of {size} ranks, which has gone on with {size - 1}"
            assert said in str(error), error
        fewer = operator()
        right(fewer(x, w), gathered(left))
        fewer.check()
        total = time.monotonic() - begun
        print(f"rank {rank}: recover took {took:.2f} s, right again after {total:.2f} s", flush=True)
        assert took < COMES + 5, took
        return

    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        right(op(x, w), wanted)
        with torch.cuda.graph(graph, stream=stream):
            captured = op(x, w)
    for _ in range(3):
        graph.replay()
    right(captured, wanted)
    op.check()
    for fault in range(2):
        group.barrier(f"there {fault}")
        if rank == size - 1 and section == "stopped":
            subprocess.Popen(["sh", "-c", f"sleep {2 * CALLS}; kill -CONT {os.getpid()}"])
            os.kill(os.getpid(), signal.SIGSTOP)
        elif rank == size - 1:
            time.sleep(2 * CALLS)
        failed = False
        try:
            graph.replay() if fault else op(x, w)
            op.check()
        except sy.MachineError as error:
            failed = True
            print(f"rank {rank}: {error}", flush=True)
        if rank != size - 1 and not failed:
            raise AssertionError("a call that a rank did not make in time")
        begun = time.monotonic()
        if section == "reset":
            op.reset()
        else:
            sy.recover(group, deadline=60.0)
        print(f"rank {rank}: {section} took {time.monotonic() - begun:.2f} s", flush=True)
        captured.zero_()
        torch.cuda.synchronize()
        for _ in range(3):
            graph.replay()
        right(captured, wanted)
        right(op(x, w), wanted)
        op.check()


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--child":
        section, rank, size, folder, victim = sys.argv[2:]
        child(section, int(rank), int(size), folder, int(victim))
        return
    from syncopate import ranks as machine

    size = int(os.environ.get("RANKS", 0)) or max(2, machine.gpu_count())
    wrong = False
    for section in sys.argv[1:] or ["killed", "renewed", "reset", "stopped"]:
        for victim in (0, size - 1) if section == "killed" else (-1,):
            with tempfile.TemporaryDirectory() as folder:
                ranks = [
                    subprocess.Popen(
                        [
                            sys.executable,
                            __file__,
                            "--child",
                            section,
                            *map(str, (rank, size, folder, victim)),
                        ]
                    )
                    for rank in range(size)
                ]
                codes = [rank.wait(timeout=180) for rank in ranks]
            wanted = [-signal.SIGKILL if rank == victim else 0 for rank in range(size)]
            print(f"{section} {victim}: {'right' if codes == wanted else f'WRONG {codes}'}", flush=True)
            wrong |= codes != wanted
    sys.exit(wrong)


main()
