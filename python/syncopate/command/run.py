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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TextIO

from ..measure.stopwatch import stopwatch
from ..ranks import Place, RankError
from .run_calls import Result, judge, make_group, record_last, start, torch_device
from .spec import Spec, UsageError, kinds, rank_count, require_memory
from .standard_output import answering, interruptible

TRACE_SUFFIXES = (".json", ".png")  # what --trace takes; trace.write draws where the name ends in .png


def strategy_of(spec: Spec, group: Any, problem: Any, traced: bool) -> Any:
    """As asked for; on the host small tiles, so that there are several; else the fastest known, but one whose kernel tells of
    its tiles where they are to be traced."""
    from ..strategy import SMALL, Strategy, recorded

    if group.device == "host":
        return replace(spec.strategy or Strategy(), tilings=(SMALL,))
    if spec.strategy is not None:
        return spec.strategy
    return recorded(problem, group) if traced else None


def run_operator(text: str, options: argparse.Namespace) -> list[Result]:
    """x is M x K on every rank, or M / ranks x K where it is gathered; the weights are every rank's own."""
    ranks = rank_count(options)
    spec = Spec(text, ranks)
    kind, extents = spec.kind, spec.extents
    if kind.name == "attention":
        from .run_attention import run_attention

        return run_attention(spec, options)
    if kind.name == "mlp_chain":
        from .run_chain import run_chain

        return run_chain(spec, options)
    if spec.is_mixture:
        from .run_moe import run_moe

        return run_moe(spec, options)
    if options.trace and kind.stages > 1:
        raise UsageError(f"{text}: --trace records programs of one stage")
    from ..ops.operator import problem_of
    from .higher_precision import Loosened

    require_memory(options, ranks, spec.bytes_of_a_rank())

    def work(place: Place) -> Result:
        import torch

        group = make_group(place, options)
        group.take_nodes(spec.nodes)
        device = torch_device(place, options)
        here = problem_of(kind.name, dtype=spec.dtype, group=group, **extents, **spec.of_fp8)
        made = {"out_dtype": spec.out, "scales": spec.scales} if here.is_fp8 else {}
        op = kind(
            **extents,
            dtype=spec.dtype,
            group=group,
            strategy=strategy_of(spec, group, here, bool(options.trace)),
            deadline=options.deadline,
            host_delay=options.delay_ms * 1e-3,
            seed=options.seed + place.rank,
            w_transposed=here.is_fp8,
            **spec.words,
            **made,
        )

        def data(name: str, shape: tuple[int, ...], *seed: int) -> torch.Tensor:
            """As large as it is wide, so that products of products stay small."""
            number = options.seed + sum(n * 7919**i for i, n in enumerate(seed))
            made = torch.randn(*shape, generator=torch.Generator().manual_seed(number))
            width = 1 if here.is_fp8 else max(1, shape[0])  # fp8 has few small numbers; a shard may be empty
            return (made * width**-0.5).to(op.dtype_of(name)).to(device)

        def x_of(rank: int, index: int) -> torch.Tensor:
            return data("x", op.shapes(rank)["x"], 1 + index, rank)

        def weights_of(rank: int) -> tuple[torch.Tensor, ...]:
            shapes = list(op.shapes(rank).items())[1:]
            return tuple(data(*named, number, 0, 1 + rank) for number, named in enumerate(shapes))

        weights = weights_of(place.rank)
        times: list[float] = []

        rounded_by_node = None
        if spec.nodes > 1 and op.adds_over_ranks:
            rounded_by_node = Loosened("each node's sum is rounded before nodes are added", None)

        def call(index: int) -> tuple:
            x = x_of(place.rank, index)
            out = torch.full_like(op.empty(op.out_rows, op.n), float("nan"))
            started = stopwatch(device)
            op.run(x, weights, out)
            times.append(started())
            op.check()
            if not options.check:
                return [out], None
            return [out], [op.reference(lambda rank: x_of(rank, index), weights_of)], lambda: rounded_by_node

        result = judge(place.rank, options, call, times)
        if options.trace:
            result.trace = record_last(group, lambda: op.record(x_of(place.rank, 0), *weights))
        op.close()
        return result

    return start(options, ranks, work)


def run_folder(folder: Path, options: argparse.Namespace) -> list[Result]:
    from .. import _syncopate

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


def entry(result: Result) -> dict[str, Any]:
    """A rank's result as --json prints it; the trace has a file of its own. JSON has no NaN or infinity: null."""

    def known(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: known(value) for key, value in asdict(replace(result, trace=None)).items() if key != "trace"}


def report(spec: str, options: argparse.Namespace, results: list[Result], where: TextIO) -> int:
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
            verdict = f", {r.within}" if r.within else ""
            if r.identical is not None:
                verdict = ", identical to the unfused kernel" if r.identical else ", DIFFERENT"
            error = "" if r.error is None else f", relative error {r.error:.1e}"
            print(
                f"rank {r.rank}: {r.calls} call{'s' * (r.calls > 1)}, {r.microseconds:,.0f} µs{verdict}{error}",
                file=where,
            )
    if failed:
        print(f"error: rank {failed[0].rank}: the result differs from the unfused kernel's", file=sys.stderr)
    return 1 if failed else 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="syncopate run", description=__doc__.splitlines()[0])
    parser.add_argument("spec")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--trace", default="")
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--deadline", type=float, default=None)
    parser.add_argument("--delay-ms", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    options.setup_deadline = options.deadline  # where it is given, ranks meet within it, too
    options.deadline = 30.0 if options.deadline is None else options.deadline
    return options


@interruptible
def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    if options.device == "host":
        from ..host.interpreter import enable

        enable()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that `ranks.run` tidies up
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        folder = Path(options.spec)
        to_output = options.trace == "-"
        if to_output and options.json:
            raise UsageError(
                "--trace - and --json both write to standard output: leave one out, or give --trace a file"
            )
        if options.trace and not to_output and Path(options.trace).suffix.lower() not in TRACE_SUFFIXES:
            raise UsageError(
                f"--trace {options.trace}: a trace is written to FILE{' or FILE'.join(TRACE_SUFFIXES)}, or - as JSON"
            )
        if options.trace and not Path(options.trace).absolute().parent.is_dir():
            raise RankError(f"--trace {options.trace}: no such folder")
        if options.trace.lower().endswith(".png"):
            from ..trace.picture import require_matplotlib

            require_matplotlib()
        if not folder.is_dir() and ":" not in options.spec and options.spec not in kinds():
            raise UsageError(
                f"{options.spec}: there is no such folder, nor an operator of this name; there are {', '.join(kinds())}"
            )
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
        from .. import trace

        try:
            if to_output:
                from ..trace.perfetto import to_perfetto

                with answering():
                    print(to_perfetto([r.trace for r in results]))
            else:
                trace.write([r.trace for r in results], options.trace)
        except OSError as error:
            print(f"error: {options.trace}: {error.strerror}", file=sys.stderr)
            return 1
    with answering():
        return report(options.spec, options, results, sys.stderr if options.trace == "-" else sys.stdout)


if __name__ == "__main__":
    sys.exit(main())
