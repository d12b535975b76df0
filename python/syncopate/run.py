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
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from .ranks import Place, RankError
from .standard_output import answering, interruptible
from .stopwatch import stopwatch

TRACE_SUFFIXES = (".json", ".png")  # what --trace takes; trace.write draws where the name ends in .png


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


class Spec:
    """An operator with its extents, as SPEC names it."""

    def __init__(self, text: str) -> None:
        from .bench.mlp_chain import MlpChain
        from .kernels.matmul import ACTIVATIONS
        from .ops import OPERATORS
        from .ops.scales import SCALES

        self.text = text
        name, _, rest = text.partition(":")
        kinds = OPERATORS | {MlpChain.name: MlpChain}
        if name not in kinds:
            raise UsageError(f"{name}: no such operator or folder; operators: {', '.join(kinds)}")
        self.kind = kinds[name]
        self.pairs: dict[str, str] = {}
        for item in filter(None, rest.split(",")):
            key, equals, value = item.partition("=")
            if not equals:
                raise UsageError(f"{text}: expected KEY=VALUE, got '{item}'")
            if key in self.pairs:
                raise UsageError(f"{text}: {key} is given twice")
            self.pairs[key] = value
        known = {*self.kind.extents, "dtype", *self.kind.keys, *self.kind.flags}
        known |= {"out"} if "scales" in self.kind.flags else set()
        for key in self.pairs:
            if key not in known:
                raise UsageError(f"{text}: unknown key '{key}'; known: {', '.join(sorted(known))}")
        self.extents = {name.lower(): self.number(name) for name in self.kind.extents}
        self.pairs.setdefault("dtype", "bf16")
        self.dtype = self._dtype("dtype", "bf16, fp16, fp32 or fp8e4m3")
        self.out = self._dtype("out", "bf16 or fp16")
        self.chosen = self._chosen()
        self.flags = {name: self.pairs[name] for name in self.kind.flags if name in self.pairs}
        self._check_word("activation", ACTIVATIONS)
        self._check_word("scales", SCALES)

    @property
    def of_fp8(self) -> dict[str, Any]:
        """What a problem of fp8 has besides."""
        return {"out": self.out, "scales": self.flags.get("scales", "")}

    def number(self, key: str) -> int:
        usual = getattr(self.kind, "defaults", {}).get(key)
        if key not in self.pairs and usual is None:
            raise UsageError(f"{self.text}: {key} is missing")
        digits = self.pairs.get(key, str(usual))
        if not (digits.isascii() and digits.isdigit()):
            raise UsageError(f"{self.text}: {key} must be a whole number, got '{digits}'")
        return int(digits)

    def _dtype(self, key: str, expected: str) -> Any:
        from .arguments import DTYPES

        if key not in self.pairs:
            return None
        if self.pairs[key] not in DTYPES:
            raise UsageError(f"{self.text}: unknown {key} '{self.pairs[key]}'; expected {expected}")
        return DTYPES[self.pairs[key]]

    def _chosen(self) -> dict[str, Any]:
        """What is asked for of the strategy, by Strategy.of's names; 0 asks for nothing."""
        from .plans import BACKENDS

        chosen: dict[str, Any] = {}
        for key, field in self.kind.keys.items():
            if key == "backend" and key in self.pairs:
                backend = self.pairs[key]
                if backend not in BACKENDS or backend == "nccl":
                    expected = ", ".join(b for b in BACKENDS if b != "nccl")
                    raise UsageError(f"{self.text}: unknown backend '{backend}'; expected one of {expected}")
                chosen[field] = backend
            elif key in self.pairs and (value := self.number(key)):
                chosen[field] = bool(value) if key in ("pull", "apart") else value
        return chosen

    def _check_word(self, name: str, words: Sequence[str]) -> None:
        if self.flags.get(name, "") not in words:
            known = ", ".join(filter(None, words))
            raise UsageError(f"{self.text}: unknown {name} '{self.flags[name]}'; known: {known}")

    def bytes_of_a_rank(self, ranks: int) -> int:
        """About: the plan's tensors and their staging, the operands, the outputs of both kernels, and what is checked, some
        of it as fp32, too."""
        m, n, k, f = (self.extents.get(name, 0) for name in ("m", "n", "k", "f"))
        weights = f * (k + n) if f else k * n
        return self.dtype.itemsize * (2 * m * k + 2 * weights + 5 * m * n + 3 * m * f) + 8 * m * (k + n)


def strategy_of(spec: Spec, device: str, problem: Any, traced: bool) -> Any:
    """As asked for; on the host small tiles, so that there are several; else the fastest known, but one whose kernel tells of
    its tiles where they are to be traced."""
    from .strategy import SMALL, Strategy, recorded

    if device == "host":
        return replace(Strategy.of(spec.chosen), tilings=(SMALL,))
    if spec.chosen:
        return Strategy.of(spec.chosen)
    return recorded(problem) if traced else None


def run_operator(text: str, options: argparse.Namespace) -> list[Result]:
    """x is M x K on every rank, or M / ranks x K where it is gathered; the weights are every rank's own."""
    spec = Spec(text)
    kind, extents = spec.kind, spec.extents
    if kind.name == "attention":
        from .run_attention import run_attention

        return run_attention(spec, options)
    if kind.name == "mlp_chain":
        from .run_chain import run_chain

        return run_chain(spec, options)
    if options.trace and len(kind.bindings) > 1:
        raise UsageError(f"{text}: --trace records programs of one stage")
    ranks = rank_count(options)
    from .ops.operator import problem_of
    from .strategy import Problem, require

    problem = Problem(
        kind.name, dtype=spec.dtype, ranks=ranks, device=options.device, **extents, **spec.of_fp8
    )
    try:
        require(problem)
    except ValueError as error:
        raise UsageError(f"{text}: {error}") from None
    require_memory(options, ranks, spec.bytes_of_a_rank(ranks))

    def work(place: Place) -> Result:
        import torch

        group = make_group(place, options)
        device = torch_device(place, options)
        here = problem_of(kind.name, dtype=spec.dtype, group=group, **extents, **spec.of_fp8)
        made = {} if spec.out is None else {"out_dtype": spec.out}
        op = kind(
            **extents,
            dtype=spec.dtype,
            group=group,
            strategy=strategy_of(spec, options.device, here, bool(options.trace)),
            deadline=options.deadline,
            host_delay=options.delay_ms * 1e-3,
            seed=options.seed + place.rank,
            w_transposed=problem.is_fp8,
            **spec.flags,
            **made,
        )

        def data(name: str, shape: tuple[int, ...], *seed: int) -> torch.Tensor:
            """As large as it is wide, so that products of products stay small."""
            number = options.seed + sum(n * 7919**i for i, n in enumerate(seed))
            made = torch.randn(*shape, generator=torch.Generator().manual_seed(number))
            width = (
                1 if problem.is_fp8 else max(1, shape[0])
            )  # fp8 has few small numbers; a shard may be empty
            return (made * width**-0.5).to(op.dtype_of(name)).to(device)

        def x_of(rank: int, index: int) -> torch.Tensor:
            return data("x", op.shapes(rank)["x"], 1 + index, rank)

        def weights_of(rank: int) -> tuple[torch.Tensor, ...]:
            shapes = list(op.shapes(rank).items())[1:]
            return tuple(data(*named, number, 0, 1 + rank) for number, named in enumerate(shapes))

        weights = weights_of(place.rank)
        times: list[float] = []

        def call(index: int) -> tuple[list[torch.Tensor], list[torch.Tensor] | None]:
            x = x_of(place.rank, index)
            out = torch.full_like(op.empty(op.out_rows, op.n), float("nan"))
            started = stopwatch(device)
            op.run(x, weights, out)
            times.append(started())
            op.check()
            if not options.check:
                return [out], None
            return [out], [op.reference(lambda rank: x_of(rank, index), weights_of)]

        result = judge(place.rank, options, call, times)
        if options.trace:
            result.trace = record_last(group, lambda: op.record(x_of(place.rank, 0), *weights))
        op.close()
        return result

    return start(options, ranks, work)


def run_folder(folder: Path, options: argparse.Namespace) -> list[Result]:
    from . import _syncopate

    try:
        artifact = _syncopate.artifact_from_folder(str(folder))
    except _syncopate.SyncopateError as error:
        raise RankError(str(error), error.exit_code) from None
    file = folder / "schedule.json"
    if artifact.device != options.device:
        raise RankError(
            f"{file}: fused for device {artifact.device}, asked to run on {options.device}; "
            f"run `syncopate fuse --device {options.device}` again"
        )
    if options.trace and len(artifact.stages) > 1:
        raise UsageError(f"{folder}: --trace records programs of one stage")
    ranks = artifact.plan.num_ranks
    if options.ranks not in (0, ranks):
        raise RankError(f"{file}: the plan is for {ranks} ranks, asked for {options.ranks}")
    from .folder import FolderRun, bytes_of

    require_memory(options, ranks, bytes_of(artifact))

    def work(place: Place) -> Result:
        run = FolderRun(artifact, make_group(place, options), options)
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
            same, off = compared(output, wanted)
            identical = identical and same
            error = math.nan if math.isnan(off) or math.isnan(error) else max(error, off)
    return Result(rank, options.calls, sorted(times)[len(times) // 2], identical, error)


def compared(output: Any, wanted: Any) -> tuple[bool, float]:
    """Whether two tensors are equal bit for bit, a NaN being equal to a NaN, and the norm of their difference relative to that
    of `wanted`, places where they are equal left out."""
    got, due = output.double(), wanted.double()
    equal = (got == due) | (got.isnan() & due.isnan()) if output.is_floating_point() else output == wanted
    if bool(equal.all()):
        return True, 0.0
    norm = due.where(due.isfinite(), 0.0).norm().item()
    difference = (got - due).where(~equal, 0.0).norm().item()
    return False, difference / norm if norm else difference


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


@interruptible
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
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that `ranks.run` tidies up
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        folder = Path(options.spec)
        if options.trace and Path(options.trace).suffix.lower() not in TRACE_SUFFIXES:
            raise UsageError(
                f"--trace {options.trace}: a trace is written to FILE{' or FILE'.join(TRACE_SUFFIXES)}"
            )
        if options.trace and not Path(options.trace).absolute().parent.is_dir():
            raise RankError(f"--trace {options.trace}: no such folder")
        if options.trace.lower().endswith(".png"):
            from .trace_picture import require_matplotlib

            require_matplotlib()
        results = run_folder(folder, options) if folder.is_dir() else run_operator(options.spec, options)
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
    with answering():
        return report(options.spec, options, results)


if __name__ == "__main__":
    sys.exit(main())
