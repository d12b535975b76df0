#!/usr/bin/env -S python3 -I -S
"""Python for tests, started warm: as `python`, but what it runs is forked from a server that has imported torch.

    warm_python.py [-u] -c CODE | -m MODULE | FILE  [ARGUMENT …]     as python takes them; SYNCOPATE_WARM names the socket;
                                                                     the command has MODULE after CODE
    python warm_python.py --serve SOCKET                             the server

Importing torch takes 1.7 s of a CPU, and the tests start hundreds of processes. Of those that interpret kernels the server
has a second self, with triton and torch.compile imported, too. The forked process has the caller's
arguments, environment, folder and files 0 to 2, and a group of its own. The caller ends when it and all that it has
started have ended, with its exit code; if something is left a minute later, with 99. If the caller is killed, so are they.
"""

import os
import socket
import sys

LEFT_BEHIND = 99


def interprets(words: list[str]) -> bool:
    """Whether what is asked for interprets its kernels, as it is told or by itself. What says how torch.compile is to be
    imported comes too late there."""
    told = os.environ.get("TRITON_INTERPRET", "")
    if told == "0" or any(name.startswith("TORCHDYNAMO_") for name in os.environ):
        return False
    names = [os.path.basename(word) for word in words[:2]]
    by_itself = any(name.startswith("host_") and name.endswith(".py") for name in names)
    module = words[{"-m": 1, "-c": 2}.get(words[0], 0) :][:1]
    commands = module in (["syncopate.command.run"], ["syncopate.command.demo"])
    return told == "1" or by_itself or (commands and not os.path.exists("/dev/nvidia0"))


def ask(address: str) -> int:
    """The caller's side: the exit code."""
    import json
    import struct

    request = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address + "-interpreting" * interprets(sys.argv[1:]))
        socket.send_fds(connection, [struct.pack("=Q", len(request))], [0, 1, 2])
        connection.sendall(request)
        answer = connection.recv(4)
    code = struct.unpack("=i", answer)[0] if len(answer) == 4 else LEFT_BEHIND
    if code < 0:  # it was killed by a signal, and so is this process
        os.kill(os.getpid(), -code)
    return code


def serve(address: str) -> list[str]:
    """Answers callers; returns in each process that is to run something: its arguments."""
    import atexit
    import ctypes
    import gc
    import select
    import signal

    # What makes it warm. Nothing that imports triton: how it defines kernels depends on a process's own settings.
    import sympy  # noqa: F401 - what torch.compile takes longest to import
    import torch  # noqa: F401
    import torch.distributed.run
    import torch.distributed.tensor.parallel  # noqa: F401

    pr_set_pdeathsig, second_self = 1, 0

    def reap(*_: object) -> None:
        """So that what they took of the CPU is counted."""
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            pass

    def end(*_: object) -> None:
        if second_self:
            os.kill(second_self, signal.SIGTERM)
            os.waitpid(second_self, 0)
        reap()
        os._exit(0)

    signal.signal(signal.SIGCHLD, reap)
    signal.signal(signal.SIGTERM, end)
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
    plain, interpreting = (socket.socket(socket.AF_UNIX) for _ in range(2))
    interpreting.bind(address + "-interpreting")
    plain.bind(address + ".new")
    for listener in (plain, interpreting):
        listener.listen(64)
    os.rename(address + ".new", address)
    listeners, counts_leaks = [plain, interpreting], False
    while True:
        for listener in select.select(listeners, [], [])[0]:
            if listener is interpreting and len(listeners) == 2:
                second_self = os.fork()
                listeners = [plain] if second_self else [interpreting]
                if second_self:
                    interpreting.close()
                    continue
                plain.close()
                ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM, 0, 0, 0)
                import_what_interprets()
                counts_leaks = libtriton_counts_leaks()
            connection, _ = listener.accept()
            gc.freeze()  # or each process would copy, to look for garbage at its end, all that has been imported
            if os.fork() == 0:
                for one in listeners:
                    one.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                if counts_leaks:
                    atexit.register(gc.unfreeze)
                return keep(connection)
            connection.close()


def import_what_interprets() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    import torch._dynamo  # noqa: F401
    import torch._functorch.aot_autograd
    import torch._inductor.debug
    import torch._inductor.pattern_matcher  # noqa: F401
    import triton.experimental.gluon.nvidia.hopper  # noqa: F401 - which Triton asks for at the first launch


def libtriton_counts_leaks() -> bool:
    """Since 3.9 it is made with nanobind, which says at the end of a process what of its own is still there: what is frozen is."""
    from triton._C.libtriton import ir

    return type(ir.builder).__module__ == "nanobind"


def keep(connection: socket.socket) -> list[str]:
    """Forks what was asked for and stays until all of it has ended; returns in the forked process."""
    import contextlib
    import ctypes
    import json
    import select
    import signal
    import struct
    import time

    head, files, _, _ = socket.recv_fds(connection, 8, 3)
    length, request = struct.unpack("=Q", head)[0], b""
    while len(request) < length:
        request += connection.recv(length - len(request))
    words, environment, folder = json.loads(request)
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(
        pr_set_child_subreaper, 1, 0, 0, 0
    )  # orphans of what runs become children of this one
    child = os.fork()
    if child == 0:
        connection.close()
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        return words
    for file in files:
        os.close(file)

    def kill() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)

    watched = select.poll()
    watched.register(os.pidfd_open(child), select.POLLIN)
    watched.register(connection, select.POLLIN | select.POLLHUP)
    while all(event[0] == connection.fileno() for event in watched.poll()):
        kill()  # the caller has gone
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end = time.monotonic() + 60
    try:
        while True:  # what is killed with its parent takes a moment to go
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                if time.monotonic() > end:
                    code = LEFT_BEHIND
                    kill()
                    break
                time.sleep(0.01)
    except ChildProcessError:
        pass
    with contextlib.suppress(OSError):  # the caller may have gone
        connection.send(struct.pack("=i", code))
    os._exit(0)


def run(words: list[str]) -> None:
    """As python would."""
    import random
    import runpy
    import types
    import warnings

    random.seed()
    if words[0] == "-u":
        del words[0]
        sys.stdout.reconfigure(write_through=True)
    sys.path[:] = [*os.environ.get("PYTHONPATH", "").split(os.pathsep), *sys.path[1:]]
    sys.executable = os.path.abspath(__file__)  # what it starts is warm, too
    if words[0] == "-c":
        sys.argv, code = ["-c", *words[2:]], words[1]
        sys.path.insert(0, "")
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(code, "<string>", "exec"), module.__dict__)
    elif words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        warnings.filterwarnings("ignore", ".*found in sys.modules")  # it is warm
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        run(serve(sys.argv[2]))
    else:
        sys.exit(ask(os.environ["SYNCOPATE_WARM"]))
