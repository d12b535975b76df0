"""`syncopate run SPEC`: a fused kernel on all ranks of this machine, checked against the unfused one.

SPEC is a folder made by `syncopate fuse`, or an operator with its shape: all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .ranks import Place, RankError


@dataclass
class Result:
    """What one rank found."""

    rank: int
    calls: int
    microseconds: float  # median time of a call
    identical: bool | None = None  # to the unfused kernel, bit for bit; None: not checked
    error: float | None = None  # relative norm against the unfused kernel
    failure: str = ""


class UsageError(RuntimeError):
    exit_code = 2


def parse_operator(spec: str) -> tuple[str, dict[str, str]]:
    name, _, rest = spec.partition(":")
    pairs: dict[str, str] = {}
    for item in filter(None, rest.split(",")):
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageError(f"{spec}: expected KEY=VALUE, got '{item}'")
        pairs[key] = value
    return name, pairs


def run_operator(spec: str, options: argparse.Namespace) -> list[Result]:
    name, pairs = parse_operator(spec)
    if name != "all_gather_matmul":
        raise UsageError(f"{name}: no such operator or folder; operators: all_gather_matmul")
    known = {"M", "N", "K", "dtype", "split", "slices", "pull"}
    for key in pairs:
        if key not in known:
            raise UsageError(f"{spec}: unknown key '{key}'; known: {', '.join(sorted(known))}")
    try:
        m, n, k = (int(pairs[key]) for key in "MNK")
        split, slices, pull = (int(pairs.get(key, d)) for key, d in (("split", 0), ("slices", 1), ("pull", 0)))
    except KeyError as missing:
        raise UsageError(f"{spec}: {missing.args[0]} is missing") from None
    except ValueError as error:
        raise UsageError(f"{spec}: {error}") from None
    if min(m, n, k) < 1:
        raise UsageError(f"{spec}: M, N and K must be at least 1")
    from .fused import DTYPES

    dtype = DTYPES.get(pairs.get("dtype", "bf16"))
    if dtype is None:
        raise UsageError(f"{spec}: unknown dtype '{pairs['dtype']}'")

    def work(place: Place) -> Result:
        import torch

        from . import ops

        group = make_group(place, options)
        device = torch_device(place, options)
        tiling = ops.Tiling(32, 32, 32, 2, -1, "ieee", 2) if options.device == "host" else None
        chunking = ops.Chunking(max(split, 1), slices) if split or slices > 1 else None
        op = ops.AllGatherMatmul(
            m, n, k, dtype, group, tiling=tiling, chunking=chunking, pull=bool(pull), deadline=options.deadline,
            host_delay=options.delay_ms * 1e-3, seed=options.seed + place.rank,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(options.seed)
        w = torch.randn(k, n, generator=generator).to(dtype).to(device)
        first = sum(m // place.size + (r < m % place.size) for r in range(place.rank))

        def call(index: int) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
            whole = torch.randn(m, k, generator=torch.Generator().manual_seed(options.seed + 1 + index)).to(dtype)
            x = whole[first : first + op.shard_rows].to(device)
            out = torch.full((m, n), float("nan"), dtype=dtype, device=device)
            started = stopwatch(device)
            op(x, w, out)
            times.append(started())
            op.check()
            if not options.check:
                return [out], None
            expected = torch.full_like(out, float("nan"))
            op.unfused(whole.to(device), w, expected)
            return [out], [expected]

        times: list[float] = []
        result = judge(place.rank, options, call, times)
        op.close()
        return result

    return start(options, options.ranks, work)


def run_folder(folder: Path, options: argparse.Namespace) -> list[Result]:
    try:
        text = (folder / "schedule.json").read_text()
        emitted = (folder / "kernel.py").read_text()
        original = (folder / "original.py").read_text()
    except OSError as error:
        raise RankError(f"{error.filename}: {error.strerror}; expected a folder made by `syncopate fuse`") from None
    try:
        spec = json.loads(text)
        ranks = math.prod(size for _, size in spec["plan"]["mesh"])
        if spec["device"] != options.device:
            raise RankError(
                f"{folder / 'schedule.json'}: fused for device {spec['device']}, asked to run on {options.device}; "
                f"run `syncopate fuse --device {options.device}` again"
            )
    except (ValueError, KeyError, TypeError) as error:
        raise RankError(f"{folder / 'schedule.json'}: not a schedule ({error!r})") from None
    if options.ranks not in (0, ranks):
        raise RankError(f"{folder / 'schedule.json'}: the plan is for {ranks} ranks, asked for {options.ranks}")

    def work(place: Place) -> Result:
        from .folder import FolderRun

        run = FolderRun(spec, text, emitted, original, make_group(place, options), options)
        times: list[float] = []

        def call(index: int):
            return run.call(index, options.check, times)

        result = judge(place.rank, options, call, times)
        run.close()
        return result

    return start(options, ranks, work)


def judge(rank: int, options: argparse.Namespace, call: Callable[[int], tuple], times: list[float]) -> Result:
    """Runs the calls and compares their outputs. A call that fails ends the run with its error."""
    identical, error = (True, 0.0) if options.check else (None, None)
    for index in range(options.calls):
        outputs, expected = call(index)
        for output, wanted in zip(outputs, expected or [], strict=False):
            same = bool((output == wanted).all())
            identical = identical and same
            norm = wanted.double().norm().item()
            difference = (output.double() - wanted.double()).norm().item()
            error = max(error, difference / norm if norm else difference)
            if math.isnan(difference):
                error = math.nan
    return Result(rank, options.calls, sorted(times)[len(times) // 2], identical, error)


def stopwatch(device: Any) -> Callable[[], float]:
    """Microseconds since now, work on the device included."""
    import torch

    if str(device) == "cpu":
        begin = time.perf_counter()
        return lambda: (time.perf_counter() - begin) * 1e6
    start_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start_event.record()

    def stop() -> float:
        end_event.record()
        end_event.synchronize()
        return start_event.elapsed_time(end_event) * 1e3

    return stop


def make_group(place: Place, options: argparse.Namespace):
    from .group import of_folder

    torch_device(place, options)
    return of_folder(place.folder, place.rank, place.size, place.run_id, options.device, place.rank)


def torch_device(place: Place, options: argparse.Namespace):
    import torch

    if options.device == "host":
        torch.set_num_threads(1)
        return torch.device("cpu")
    torch.cuda.set_device(place.rank)
    return torch.device("cuda", place.rank)


def start(options: argparse.Namespace, ranks: int, work: Callable[[Place], Result]) -> list[Result]:
    from . import _syncopate
    from .ranks import run

    if options.device == "cuda":
        available = _syncopate.cuda_device_count()
        ranks = ranks or available
        if ranks > available:
            raise RankError(f"{ranks} ranks need {ranks} GPUs, this machine has {available}; use --device host", 3)
    ranks = ranks or 4
    import torch  # noqa: F401 - imported once, before the ranks are forked
    import triton  # noqa: F401

    return run(ranks, work, timeout=options.timeout)


def report(spec: str, options: argparse.Namespace, results: list[Result]) -> int:
    failed = [r for r in results if r.identical is False or (r.error is not None and not r.error < 5e-2)]
    if options.json:
        print(json.dumps({"spec": spec, "device": options.device, "ok": not failed, "ranks": [asdict(r) for r in results]}))
    else:
        for r in results:
            verdict = "" if r.identical is None else ", identical to the unfused kernel" if r.identical else ", DIFFERENT"
            error = "" if r.error is None else f", relative error {r.error:.1e}"
            print(f"rank {r.rank}: {r.calls} call{'s' * (r.calls > 1)}, {r.microseconds:,.0f} µs{verdict}{error}")
    if failed:
        print(f"error: rank {failed[0].rank}: the result differs from the unfused kernel's", file=sys.stderr)
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="syncopate run", description=__doc__.splitlines()[0])
    parser.add_argument("spec")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--trace", default="")
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=30.0)
    parser.add_argument("--delay-ms", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.device == "host":
        from .interpreter import enable

        enable()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        folder = Path(options.spec)
        results = run_folder(folder, options) if folder.is_dir() else run_operator(options.spec, options)
    except Exception as error:  # noqa: BLE001 - the command's outer face
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return int(code)
    return report(options.spec, options, results)


if __name__ == "__main__":
    sys.exit(main())
