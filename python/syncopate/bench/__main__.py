"""syncopate bench [OPERATOR …]: operators over shapes and rows, against what people run today and the bound.

One process a GPU, all GPUs of this machine, or under torchrun its ranks. Without a GPU the same rows run on host ranks over
gloo, at 1/32 of each extent: this checks a bench, and its times mean nothing. Times are medians over rounds of the maximum
over ranks; candidates of a shape take turns, inputs rotate past the L2 cache, and the host's time is hidden.

    syncopate bench all_gather_matmul --shapes 70B,4096x11008 --tokens 16,512,4096 --plot speed.svg
    syncopate bench matmul_all_reduce --vary split=1,2,4,8,16            one column a strategy
    syncopate bench --vary backend=copy_engine,tma_dedicated,tma_inline --few
    syncopate bench mlp_chain --shapes GPT-3 --tokens 256                 two products on one GPU
    syncopate bench attention --help, moe --help, grouped --help      each by itself: shapes and options of their own
"""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from typing import Any

from ..command.standard_output import interruptible
from .launch import Parser, add_options, count, launch, parse_options
from .table import OF_OPERATORS

#: What has a bench of its own.
OTHERS = ("attention", "moe", "grouped")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        prog="syncopate bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "operators", nargs="*", metavar="OPERATOR", help="default: all that have no bench of their own"
    )
    parser.add_argument("--shapes", default="", help="models, or HIDDENxF, comma-separated: 70B,4096x14336")
    parser.add_argument("--tokens", default="", help="M, tokens of all ranks, comma-separated: 16,64,…,8192")
    parser.add_argument("--local-ranks", type=count, default=8, help="F is divided by this (default 8)")
    parser.add_argument("--vary", action="append", default=[], metavar="KEY=V1,V2",
                        help="also ours with these values of its strategy; several: all combinations")  # fmt: skip
    parser.add_argument(
        "--dtype", default="", help="of x and w: bf16 or fp8e4m3 (default: bf16; on host fp32)"
    )
    parser.add_argument("--scales", default="", help="of fp8: row or block")
    parser.add_argument("--few", action="store_true", help="only ours, whole peers and the product")
    parser.add_argument("--back-to-back", action="store_true",
                        help="graphs of eight calls in a row on rotating inputs; the time of one")  # fmt: skip
    parser.add_argument("--eager", action="store_true",
                        help="64 calls in a row from the host, ours by torch.ops.syncopate; the time of one")  # fmt: skip
    parser.add_argument("--scale", type=count, help="divide all extents (default: 1; on host 32)")
    add_options(parser, "M")
    return parse_options(parser, arguments)


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """On each rank: every operator and shape. Returns the report."""
    import torch
    import torch.distributed as dist

    from .case import CASES
    from .peers import peers
    from .rows import run_shape
    from .session import Progress, summary
    from .shapes import TOKENS, shapes_of, widths

    def one_product(operator: str) -> bool:
        return CASES[operator].sharded != "F"

    progress = Progress(options)
    options.scale = options.scale or (1 if torch.cuda.is_available() else 32)
    models, found = widths(options.shapes), peers(options.peer)
    tokens = [int(m) for m in options.tokens.split(",") if m] or TOKENS
    if options.dtype:
        progress.report["dtype"] = f"{options.dtype} {options.scales}".strip()
    for operator in options.operators or [
        name
        for name in CASES
        if (not options.dtype or one_product(name)) and (not options.eager or name != "mlp_chain")
    ]:
        for shape in shapes_of(
            CASES[operator].sharded,
            models,
            tokens,
            options.local_ranks,
            options.scale,
            dist.get_world_size(),
            16 if options.dtype else 8,  # rows of 16 bytes
        ):
            inner = f" F={shape.f}" if shape.f else ""
            where = f"{operator:21} {shape.model:9} M={shape.m:5} N={shape.n:5} K={shape.k:5}{inner} |"
            entry = {"operator": operator, "model": shape.model, "M": shape.m, "K": shape.k, "N": shape.n}
            entry |= {"F": shape.f} if shape.f else {}
            run = functools.partial(run_shape, operator, shape, found, options)
            progress.shape(where, entry, run, summary)
    dist.destroy_process_group()
    return progress.report


def check(options: argparse.Namespace) -> None:
    """Raises ValueError for what is wrong on the command line, before any rank starts."""
    from .. import _syncopate
    from ..ops.scales import SCALES
    from .case import CASES
    from .fp8 import of_fp8
    from .peers import peers
    from .shapes import widths

    if options.dtype == "bf16":
        options.dtype = ""
    for operator in options.operators:
        if operator in OTHERS:
            raise ValueError(
                f"{operator}: it is measured by itself, with options of its own: syncopate bench {operator} --help"
            )
        if operator not in CASES:
            raise ValueError(f"{operator}: no such operator; there are {', '.join([*CASES, *OTHERS])}")
        if options.dtype:
            of_fp8(CASES[operator], "")
    if options.dtype not in ("", "fp8e4m3"):
        raise ValueError(f"--dtype {options.dtype}: expected bf16 or fp8e4m3")
    if options.scales not in SCALES or (options.scales and not options.dtype):
        raise ValueError(f"--scales {options.scales}: expected row or block, of --dtype fp8e4m3")
    if options.eager and (options.few or options.back_to_back or options.vary or options.dtype):
        raise ValueError(
            "--eager: its rows are ours and whole peers, in bf16; it goes with no --few, --back-to-back, --vary or --dtype"
        )
    if options.eager and "mlp_chain" in options.operators:
        raise ValueError("--eager: mlp_chain is no op of torch.ops.syncopate")
    _syncopate.tune.variations(options.vary)
    if not all(m.isdecimal() and int(m) > 0 for m in options.tokens.split(",") if m):
        raise ValueError(f"--tokens {options.tokens}: expected whole numbers, comma-separated")
    widths(options.shapes)
    peers(options.peer)


@interruptible
def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given and given[0] in OTHERS:
        return importlib.import_module(f".{given[0]}", __package__).main(given[1:])
    options = parse(given)
    if options.operators == ["mlp_chain"]:
        options.ranks = options.ranks or 1  # it is one GPU's
    return launch(options, check, run_all, OF_OPERATORS)


if __name__ == "__main__":
    sys.exit(main())
