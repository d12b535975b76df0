"""`syncopate tune SPEC`: the fastest strategy of a problem on this machine, found by measuring and kept in the store."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from .. import _syncopate
from .standard_output import answering, interruptible

REST = {
    "host": 60.0,
    "cuda": 1800.0,
}  # seconds after the budget: of the step that has begun; a GPU's compiler may take long


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Starts the ranks and searches; rank 0's result."""
    from ..bench.case import CASES
    from ..ops.operator import members_of, problem_of
    from ..ranks import LateError, Place, RankError
    from ..ranks import run as run_ranks
    from .spec import Spec, UsageError, kinds, rank_count, require_memory, require_operator

    _syncopate.tune.variations(
        options.vary
    )  # raises, before any rank starts, for what is no value of a strategy
    ranks = rank_count(options)
    tuned = [name for name in CASES if name != "mlp_chain"] + ["attention", "moe"]
    if options.spec.partition(":")[0] not in kinds():
        require_operator(options.spec, tuned, "tune tunes")
    spec = Spec(options.spec, ranks)
    if spec.kind.name == "mlp_chain":
        raise UsageError(f"{options.spec}: a chain is not tuned; its first call measures its ways")
    if spec.kind.name not in tuned:
        raise UsageError(f"{options.spec}: {spec.kind.name} is not tuned; tune tunes {', '.join(tuned)}")
    if spec.strategy is not None:
        raise UsageError(
            f"{options.spec}: it asks for a strategy, which tuning is to find; --vary KEY=V1,V2 says what to try"
        )
    extents = spec.extents
    in_full = spec.kind.name in CASES  # of a table's shapes
    if not in_full:
        _syncopate.ops.problem_key(spec.text, ranks, 0)  # raises for what says something of a call
    if spec.is_mixture:
        from .run_moe import bytes_of_a_rank

        require_tunable(spec, options)
        require_memory(options, ranks, bytes_of_a_rank(spec, options.device, ranks))
    elif not in_full:
        from .run_attention import bytes_of_a_rank as bytes_of_attention

        require_memory(options, ranks, bytes_of_attention(spec))
    else:
        require_memory(options, ranks, 2 * spec.bytes_of_a_rank())
    if options.device == "host":
        import torch  # noqa: F401 - imported once, before the ranks are forked
        import triton  # noqa: F401

    def work(place: Place) -> dict[str, Any]:
        from ..bench.session import start
        from ..measure.search import search, search_spec

        start(place.rank, place.size, f"file://{place.folder}/process-group")
        group = members_of(None, options.device)
        terminal = sys.stderr.isatty()

        def say(line: str) -> None:
            sys.stderr.write(f"\r\033[K{line}" if terminal else f"{line}\n")
            sys.stderr.flush()

        shown = place.rank == 0 and not options.json
        how = {name: getattr(options, name) for name in ("budget", "again", "vary", "machine")}
        how["say"] = say if shown else None
        if not in_full:
            found = search_spec(spec, group, **how)
        else:
            problem = problem_of(spec.kind.name, dtype=spec.dtype, group=group, **extents, **spec.of_fp8)
            found = search(problem, group, **how)
        if shown and terminal:
            sys.stderr.write("\n")
        return found

    limit = options.budget + REST[options.device]
    try:
        return run_ranks(ranks, work, timeout=limit)[0]
    except LateError:
        hint = "; on host its kernels are interpreted: take a smaller one" if options.device == "host" else ""
        raise RankError(
            f"{options.spec}: the search did not end within {limit:g} s; what was measured is kept{hint}"
        ) from None


def require_tunable(spec: Any, options: argparse.Namespace) -> None:
    """Of a mixture of experts: raises UsageError."""
    from .spec import UsageError

    if spec.words.get("part", "whole") != "whole":
        raise UsageError(f"{spec.text}: its parts follow from the whole: leave out part=")
    if options.vary:  # raises for a field that no mixture has
        _syncopate.tune.contenders(
            spec.text, list(options.vary), options.machine, cuda=options.device == "cuda"
        )


def report(options: argparse.Namespace, found: dict[str, Any]) -> None:
    if options.json:
        print(json.dumps({"spec": options.spec, "device": options.device, **found}))
        return
    resumed = f", {found['resumed']} of them by an earlier search" if found["resumed"] else ""
    measured = sum(trial["rounds"] > 0 for trial in found["trials"])
    print(f"{options.spec}: {found['winner']}, {found['us']:,.1f} µs")
    for name in ("default", "unfused"):
        us = found[f"{name}_us"]
        print(
            f"  {us / found['us']:.2f} times as fast as {name} ({us:,.1f} µs)"
            if us
            else f"  {name} does not run here"
        )
    print(
        f"  {measured} strategies measured{resumed}"
        + ("" if found["in_time"] else "; the budget was over before all were")
        + (f"; {found['instead']}" if found["instead"] else "")
    )
    for trial in found["trials"]:
        if trial["refused"]:
            print(f"  without {trial['name']}: {trial['refused']}")


@interruptible
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="syncopate tune", description=__doc__.splitlines()[0])
    parser.add_argument("spec")
    parser.add_argument("--device", choices=("host", "cuda"), default="host")
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--budget", type=float, default=60.0)
    parser.add_argument("--machine", default="")
    parser.add_argument("--vary", action="append", default=[])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.device == "host":
        from ..host.interpreter import enable

        enable()
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the case then is the host's, too
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        found = run(options)
        with answering():
            report(options, found)
    except Exception as error:  # noqa: BLE001 - the command's outer face
        code = getattr(error, "exit_code", 1 if isinstance(error, ValueError) else None)
        if code is None:
            raise
        print(f"error: {error}", file=sys.stderr)
        return int(code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
