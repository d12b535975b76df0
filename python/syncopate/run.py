"""`syncopate run SPEC`: a fused kernel on all ranks of this machine, checked against the unfused one.

SPEC is a folder made by `syncopate fuse`, or an operator with its shape: all_gather_matmul:M=8192,N=3584,K=8192,dtype=bf16
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .ranks import Place, RankError
from .stopwatch import stopwatch


@dataclass
class Result:
    """What one rank found."""

    rank: int
    calls: int
    microseconds: float  # median time of a call
    identical: bool | None = None  # to the unfused kernel, bit for bit; None: not checked
    error: float | None = None  # relative norm against the unfused kernel
    failure: str = ""
    trace: Any = None  # syncopate.trace.Trace of one more call, with --trace


class UsageError(RuntimeError):
    exit_code = 2


def require_memory(options: argparse.Namespace, ranks: int, bytes_per_rank: int) -> None:
    """Refuses what this machine's memory cannot hold, before the kernel starts ending processes for want of it."""
    if options.device != "host":
        return  # a GPU says itself when its memory does not suffice
    from . import _syncopate

    free = _syncopate.free_memory("host")
    if ranks * bytes_per_rank > free:
        raise RankError(
            f"too little memory on this machine: {ranks} ranks need about {ranks * bytes_per_rank / 2**30:,.1f} GiB, "
            f"{free / 2**30:,.1f} GiB are free; take fewer ranks or smaller tensors",
            3,
        )


def number_of(spec: str, pairs: dict[str, str], key: str, default: int | None = None) -> int:
    if key not in pairs and default is None:
        raise UsageError(f"{spec}: {key} is missing")
    text = pairs.get(key, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"{spec}: {key} must be a whole number, got '{text}'")
    return int(text)


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
    from . import run_produced

    if name in run_produced.OPERATORS:
        return run_produced.run_produced(name, spec, pairs, options)
    if name == "feed_forward":
        from .run_stages import run_feed_forward

        if options.trace:
            raise UsageError(f"{spec}: --trace records programs of one stage")
        return run_feed_forward(spec, pairs, options)
    if name != "all_gather_matmul":
        known = ", ".join(["all_gather_matmul", *run_produced.OPERATORS, "feed_forward"])
        raise UsageError(f"{name}: no such operator or folder; operators: {known}")
    known = {"M", "N", "K", "dtype", "split", "slices", "pull", "backend"}
    for key in pairs:
        if key not in known:
            raise UsageError(f"{spec}: unknown key '{key}'; known: {', '.join(sorted(known))}")
    m, n, k = (number_of(spec, pairs, key) for key in "MNK")
    split, slices, pull = (
        number_of(spec, pairs, key, d) for key, d in (("split", 0), ("slices", 1), ("pull", 0))
    )
    backend = run_produced.backend_of(spec, pairs)
    from .fused import DTYPES

    dtype = DTYPES.get(pairs.get("dtype", "bf16"))
    if dtype is None:
        raise UsageError(f"{spec}: unknown dtype '{pairs['dtype']}'; expected bf16, fp16 or fp32")
    ranks = rank_count(options)
    from . import ops

    try:
        ops.require_supported(m, n, k, dtype)
    except ValueError as error:
        raise UsageError(f"{spec}: {error}") from None
    # x in the heap and as made (in fp32, then converted), w, and the outputs of both kernels
    require_memory(options, ranks, dtype.itemsize * (2 * m * k + n * k + 2 * m * n) + 4 * m * k)

    def work(place: Place) -> Result:
        import torch

        from . import trace

        group = make_group(place, options)
        device = torch_device(place, options)
        tiling = ops.Tiling(32, 32, 32, 2, -1, "ieee", 2) if options.device == "host" else None
        chunking = ops.Chunking(max(split, 1), slices) if split or slices > 1 or backend else None
        op = ops.AllGatherMatmul(
            m, n, k, dtype, group, tiling=tiling, chunking=chunking, pull=bool(pull), deadline=options.deadline,
            host_delay=options.delay_ms * 1e-3, seed=options.seed + place.rank, **backend,
        )  # fmt: skip
        generator = torch.Generator().manual_seed(options.seed)
        w = torch.randn(k, n, generator=generator).to(dtype).to(device)
        first = sum(m // place.size + (r < m % place.size) for r in range(place.rank))

        def call(index: int) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
            whole = torch.randn(m, k, generator=torch.Generator().manual_seed(options.seed + 1 + index)).to(
                dtype
            )
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
        if options.trace:
            x = torch.randn(op.shard_rows, k, generator=generator).to(dtype).to(device)
            arguments = op.arguments(x, w, torch.empty(m, n, dtype=dtype, device=device))
            result.trace = record_last(
                group, lambda: trace.record(op.fused, op.grid, **arguments, **op.options)
            )
        op.close()
        return result

    return start(options, ranks, work)


def read_text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as error:
        raise RankError(f"{file}: {error.strerror}; expected a folder made by `syncopate fuse`") from None
    except UnicodeDecodeError as error:
        raise RankError(f"{file}: not text ({error}); expected a folder made by `syncopate fuse`") from None


def check_spec(spec: Any) -> None:
    """Raises ValueError naming the first thing that is not as `syncopate fuse` writes it. The plan and the schedule are
    checked by those who read them."""
    from .fused import DTYPES

    def numbers(value: Any, least: int) -> bool:
        return isinstance(value, list) and all(isinstance(n, int) and least <= n < 2**40 for n in value)

    def expect(condition: bool, what: str) -> None:
        if not condition:
            raise ValueError(what)

    expect(
        isinstance(spec, dict) and spec.get("schema") == "syncopate.schedule/1",
        "schema is not syncopate.schedule/1",
    )
    expect(spec.get("device") in ("host", "cuda"), "device must be host or cuda")
    for key in ("plan", "schedule"):
        expect(isinstance(spec.get(key), dict), f"{key} must be an object")
    whole = spec["plan"].get("tensors")
    expect(isinstance(whole, dict), "plan.tensors must be an object")
    stages = spec.get("stages", [spec])
    expect(isinstance(stages, list) and len(stages) > 0, "stages must be a list")
    for stage in stages:
        expect(isinstance(stage, dict), "stages must be objects")
        expect(
            isinstance(stage.get("kernel"), str) and stage["kernel"].isidentifier(), "kernel must be a name"
        )
        for key in ("arguments", "tensors", "bindings"):
            expect(isinstance(stage.get(key), dict), f"{key} must be an object")
        expect(numbers(stage.get("grid"), 1) and len(stage["grid"]) == 3, "grid must be three numbers")
        for name, tensor in stage["tensors"].items():
            expect(
                isinstance(tensor, dict) and numbers(tensor.get("shape"), 0),
                f"tensors.{name}.shape must be numbers",
            )
            expect(tensor.get("dtype") in DTYPES, f"tensors.{name}.dtype is unknown")
            block = tensor.get("block", [])
            expect(
                numbers(block, 1) and len(block) in (0, len(tensor["shape"])),
                f"tensors.{name}.block must be numbers",
            )
        for parameter, tensor in stage["bindings"].items():
            expect(parameter in stage["tensors"], f"bindings.{parameter} is no tensor")
            expect(
                isinstance(tensor, str) and tensor in whole,
                f"bindings.{parameter} names no tensor of the plan",
            )
            same = {key: stage["tensors"][parameter][key] for key in ("shape", "dtype")} == whole[tensor]
            expect(same, f"tensors.{parameter} is not what the plan says of {tensor}")


def run_folder(folder: Path, options: argparse.Namespace) -> list[Result]:
    text = read_text(folder / "schedule.json")
    file = folder / "schedule.json"
    from . import _syncopate
    from .fused import DTYPES

    try:
        spec = json.loads(text)
        check_spec(spec)
        plan = _syncopate.plan_from_json(json.dumps(spec["plan"]), f"{file}: plan")
    except (ValueError, RecursionError) as error:
        raise RankError(f"{file}: not what `syncopate fuse` writes: {error}") from None
    if spec["device"] != options.device:
        raise RankError(
            f"{file}: fused for device {spec['device']}, asked to run on {options.device}; "
            f"run `syncopate fuse --device {options.device}` again"
        )
    from .folder import file_of, stages_of

    stages = stages_of(spec)
    texts = [
        tuple(read_text(folder / file_of(stem, stage, spec)) for stem in ("kernel", "original"))
        for stage in range(len(stages))
    ]
    if options.trace and len(stages) > 1:
        raise UsageError(f"{folder}: --trace records programs of one stage")
    ranks = plan.num_ranks
    if options.ranks not in (0, ranks):
        raise RankError(f"{file}: the plan is for {ranks} ranks, asked for {options.ranks}")

    def size_of(tensors: dict[str, Any]) -> int:
        return sum(math.prod(t["shape"]) * DTYPES[t["dtype"]].itemsize for t in tensors.values())

    # every tensor twice: the plan's in the heap and as made, the others for both kernels
    local = sum(size_of(stage["tensors"]) for stage in stages)
    require_memory(options, ranks, 2 * local + 2 * size_of(spec["plan"]["tensors"]))

    def work(place: Place) -> Result:
        from .folder import FolderRun

        run = FolderRun(spec, text, texts, make_group(place, options), options)
        times: list[float] = []

        def call(index: int):
            return run.call(index, options.check, times)

        result = judge(place.rank, options, call, times)
        if options.trace:
            result.trace = record_last(run.group, run.record)
        run.close()
        return result

    return start(options, ranks, work)


def record_last(group: Any, record: Callable[[], Any]) -> Any:
    """The trace of a recorded call in which all ranks begin together; on a GPU of the second one, the first compiles."""
    for index in range(2 if group.device == "cuda" else 1):
        group.barrier(f"trace-{index}")
        recorded = record()
    return recorded


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


def rank_count(options: argparse.Namespace) -> int:
    """How many ranks are asked for; by default one for each GPU, or four on host."""
    if options.device != "cuda":
        return options.ranks or 4
    from .ranks import gpu_count

    available = gpu_count()
    if options.ranks > available:
        raise RankError(
            f"{options.ranks} ranks need {options.ranks} GPUs, this machine has {available}; use --device host",
            3,
        )
    return options.ranks or available


def start(options: argparse.Namespace, ranks: int, work: Callable[[Place], Result]) -> list[Result]:
    from .ranks import run

    options.ranks = ranks
    rank_count(options)
    import torch  # noqa: F401 - imported once, before the ranks are forked
    import triton  # noqa: F401

    return run(ranks, work, timeout=options.timeout)


def entry(result: Result) -> dict[str, Any]:
    """A rank's result as --json prints it; the trace has a file of its own."""
    return {key: value for key, value in asdict(replace(result, trace=None)).items() if key != "trace"}


def report(spec: str, options: argparse.Namespace, results: list[Result]) -> int:
    failed = [r for r in results if r.identical is False or (r.error is not None and not r.error < 5e-2)]
    if options.json:
        print(
            json.dumps(
                {
                    "spec": spec,
                    "device": options.device,
                    "ok": not failed,
                    "ranks": [entry(r) for r in results],
                }
            )
        )
    else:
        for r in results:
            verdict = (
                ""
                if r.identical is None
                else ", identical to the unfused kernel"
                if r.identical
                else ", DIFFERENT"
            )
            error = "" if r.error is None else f", relative error {r.error:.1e}"
            print(
                f"rank {r.rank}: {r.calls} call{'s' * (r.calls > 1)}, {r.microseconds:,.0f} µs{verdict}{error}"
            )
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that `ranks.run` tidies up
    try:
        folder = Path(options.spec)
        if options.trace and not Path(options.trace).absolute().parent.is_dir():
            raise RankError(f"--trace {options.trace}: no such folder")
        if options.trace.lower().endswith(".png"):
            from .trace_picture import require_matplotlib

            require_matplotlib()
        results = run_folder(folder, options) if folder.is_dir() else run_operator(options.spec, options)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except OSError as error:
        print(f"error: {error.filename or options.spec}: {error.strerror}", file=sys.stderr)
        return 1
    except Exception as error:  # noqa: BLE001 - the command's outer face
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return int(code)
    if options.trace:
        from . import trace

        try:
            trace.write([r.trace for r in results], options.trace)
        except OSError as error:
            print(f"error: {options.trace}: {error.strerror}", file=sys.stderr)
            return 1
    return report(options.spec, options, results)


if __name__ == "__main__":
    sys.exit(main())
