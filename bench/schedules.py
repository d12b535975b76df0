"""The schedules of all bench shapes, made without a GPU: shows what a change does to them.

    python bench/schedules.py --dump DIR                   before the change
    python bench/schedules.py --compare DIR                after it; exit status 1 if anything differs

One line a case: operator, shape, ranks, and a digest each of the schedule, of the launch (the kernel's parameters,
arguments and tensors, and the plan) and of the emitted source. `--dump` also writes all three. `--compare` reads such a
folder, prints the first differences of each case, and then counts over all cases the paths that differ.

The package is the one on PYTHONPATH, else that of this checkout; the shapes are those of the benches beside it, F
divided by 8, as on H200. Operators are called as users do, with default choices; a stand-in group and tensors that hold
nothing take the place of GPUs, and the call ends when the compiler has answered (`capture`). `--variants` adds operators
with other backends, ways, cuts and rows (`VARIANTS`), of two shapes; what is refused is a case, too.

Two schedules count as equal when they are so after `canonical`: entries of objects that are null, false or empty are left
out, so that a new key with such a default is no difference, and of a kernel's file only the name is kept. `--ignore
KEY,...` leaves out those keys as well, wherever they are.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import difflib
import functools
import gzip
import hashlib
import itertools
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

sys.path.append(str(Path(__file__).resolve().parents[1] / "python"))  # PYTHONPATH comes first

import syncopate as sy  # noqa: E402
from syncopate import _syncopate  # noqa: E402
from syncopate.bench import shapes  # noqa: E402
from ways import strategy_of as strategy_of_way  # noqa: E402

LOCAL_RANKS = 8
MULTIPROCESSORS = 132
HOPPER = (9, 0)
PARTS = ("schedule", "launch", "source")
FIRST = 4  # differences that are printed of a case and part


@dataclass(frozen=True)
class Operator:
    """`call` takes operands and a group; `kind` is its class; `operands`: their shapes, of the product and the ranks."""

    call: str
    kind: str
    operands: Callable[[Any, int], list[tuple[int, int]]]


def sharded_rows(shape: Any, ranks: int) -> list[tuple[int, int]]:
    return [(-(-shape.m // ranks), shape.k), (shape.k, shape.n)]  # of rank 0


def all_rows(shape: Any, ranks: int) -> list[tuple[int, int]]:
    return [(shape.m, shape.k), (shape.k, shape.n)]


def two_products(shape: Any, ranks: int) -> list[tuple[int, int]]:
    """Up as the product before, and down again."""
    return [*sharded_rows(shape, ranks), (shape.n, shape.k)]


OPERATORS = {
    "ag_gemm": Operator("all_gather_matmul", "AllGatherMatmul", sharded_rows),
    "gemm_rs": Operator("matmul_reduce_scatter", "MatmulReduceScatter", all_rows),
    "gemm_ar": Operator("matmul_all_reduce", "MatmulAllReduce", all_rows),
    "a2a_gemm": Operator("all_to_all_matmul", "AllToAllMatmul", all_rows),
    "gemm_a2a": Operator("matmul_all_to_all", "MatmulAllToAll", all_rows),
    "feed_forward": Operator("feed_forward", "FeedForward", two_products),
}

WAYS = [
    "beside:16:4",
    "pulled:2",
    "inline",
    "inline:2",
    "mixed:1",
    "narrow:1",
    "fused:2",
]
UNEVEN = "m=1027"
#: By operator: options of its class; m: other rows; way: one of the benches' --ways; cut: one of ag_gemm's --chunkings.
VARIANTS = {
    "ag_gemm": [
        *(
            f"backend={name}"
            for name in ("tma_dedicated", "ldst_dedicated", "tma_inline", "ldst_inline", "nccl")
        ),
        *(f"cut={cut}" for cut in ("2x1", "1x2", "1x2p", "4x1:e8", "1x4:e8")),
        "pull=True",
        UNEVEN,
    ],
    "gemm_rs": [*(f"way={way}" for way in WAYS), "backend=nccl", "split=2", "split=4", UNEVEN],
    "gemm_ar": [*(f"way={way}" for way in WAYS), "backend=nccl", "split=2", "split=4", UNEVEN],
    "a2a_gemm": [
        *(
            f"backend={name}"
            for name in ("tma_dedicated", "ldst_dedicated", "tma_inline", "ldst_inline", "nccl")
        ),
        *(f"cut={cut}" for cut in ("2x1", "1x2", "1x4:e8")),
    ],
    "gemm_a2a": [
        *(
            f"backend={name}"
            for name in ("copy_engine", "tma_dedicated", "ldst_dedicated", "tma_inline", "nccl")
        ),
        "split=2",
    ],
    "feed_forward": ["rows=2", "split=2", "backend=tma_dedicated", "pull=True", UNEVEN],
}
VARIED = [("8B", 1024), ("70B", 4096)]  # the shapes of which there are variants


@dataclass(frozen=True)
class Case:
    operator: str
    shape: shapes.Shape
    ranks: int
    variant: str = ""

    @property
    def name(self) -> str:
        s = self.shape
        return f"{self.operator}_{s.model}_{s.m}x{s.n}x{s.k}_{self.ranks}" + (
            f"_{self.variant}" if self.variant else ""
        )

    def __str__(self) -> str:
        s = self.shape
        return f"{self.operator:12} {s.model:9} M={s.m:5} N={s.n:5} K={s.k:5} ranks={self.ranks} {self.variant}".rstrip()


# What the package is asked for, and all that has to follow when it changes: shapes, a group, a call, and an artifact.


class StandInGroup(sy.Group):
    """A group whose GPUs nobody has."""

    def __post_init__(self) -> None:
        pass  # it asks for no GPU

    def multiprocessors(self, on_host: int = 0) -> int:
        return MULTIPROCESSORS


class Captured(Exception):  # noqa: N818 - it is no error
    """What the compiler answered, thrown past those who would go on with it."""

    def __init__(self, artifact: Any) -> None:
        super().__init__()
        self.artifact = artifact


def shapes_of(operator: str) -> list[Any]:
    """F divided by 8, as on H200."""
    sharded = "K" if operator in ("gemm_rs", "gemm_ar", "gemm_a2a") else "N"
    tokens = (128, 512, 1024, 4096, 8192) if operator == "gemm_ar" else (1024, 4096, 8192)
    every = shapes.shapes_of(sharded, shapes.widths(""), tokens, LOCAL_RANKS, 1, 1)
    others = {name: shapes.MODELS[name] for name in ("LLaMA-7B", "Qwen2-72B")}
    return [*every, *shapes.shapes_of(sharded, others, (8192,), LOCAL_RANKS, 1, 1)]


def parse_chunking(text: str) -> sy.Strategy:
    """From ROWSxSLICES[p][:eBLOCKS], such as 2x1, 1x2p and 1x4:e8."""
    cut, _, engine = text.partition(":e")
    rows, slices = map(int, cut.rstrip("p").split("x"))
    chunking = sy.Chunking(rows, slices, cut.endswith("p"))
    by_engine = {"backend": "tma_dedicated", "engine_blocks": int(engine)} if engine else {}
    return sy.Strategy(chunking=chunking, **by_engine)


@functools.cache
def group_of(ranks: int) -> sy.Group:
    """Kept, as operators are cached by their group."""
    return StandInGroup(0, ranks, None, "cuda", 0)


@contextlib.contextmanager
def without_a_gpu() -> Iterator[None]:
    """What is asked of one."""
    answers = {
        "torch.cuda.get_device_capability": HOPPER,
        "torch.cuda.is_current_stream_capturing": False,
        "syncopate.device.jit.current_stream": 0,
        "syncopate.call.places.require_memory": None,
    }
    with contextlib.ExitStack() as patched:
        for name, answer in answers.items():
            patched.enter_context(mock.patch(name, return_value=answer))
        yield


def capture(call: Callable[[], Any]) -> Any:
    """The artifact that `call` would have gone on with."""

    def throwing(fuse: Callable) -> Callable:
        def wrapped(*args: Any, **kwargs: Any) -> None:
            raise Captured(fuse(*args, **kwargs))

        return wrapped

    entries = {
        name: throwing(getattr(_syncopate, name)) for name in dir(_syncopate) if name.startswith("fuse")
    }
    with mock.patch.multiple(_syncopate, **entries):
        try:
            call()
        except Captured as captured:
            return captured.artifact
    raise RuntimeError("the call ended without fusing anything")


def varied(case: Case, group: sy.Group) -> Callable[..., Any]:
    """The operator of a variant."""
    operator, s = OPERATORS[case.operator], case.shape
    extents = (s.m, s.k, s.n, s.k) if case.operator == "feed_forward" else (s.m, s.n, s.k)
    kind = getattr(sy.ops, operator.kind)
    return kind(*extents, torch.bfloat16, group, strategy=strategy_of(case, kind))


def strategy_of(case: Case, kind: Any) -> sy.Strategy | None:
    name, _, value = case.variant.partition("=")
    if name == "m":
        return None
    if name == "way":
        return strategy_of_way(value)
    if name == "cut":
        return parse_chunking(value)
    if case.operator == "ag_gemm" and value not in sy.plans.INLINE:  # how x is cut is chosen all the same
        s = case.shape
        problem = sy.strategy.Problem(kind.name, s.m, s.n, s.k, torch.bfloat16, case.ranks, MULTIPROCESSORS)
        return dataclasses.replace(
            sy.strategy.choose(problem), **{name: value if name == "backend" else ast.literal_eval(value)}
        )
    path = "chunking.rows" if name == "rows" else name
    return sy._syncopate.tune.varied(sy.Strategy(), [(path, value.lower())])


def parts_of(case: Case) -> dict[str, Any]:
    """Of the artifact of a case: schedule, launch and source."""
    operator, group = OPERATORS[case.operator], group_of(case.ranks)

    def call() -> None:
        operands = [
            torch.empty(shape, dtype=torch.bfloat16, device="cuda:0")
            for shape in operator.operands(case.shape, case.ranks)
        ]
        if case.variant:
            varied(case, group)(*operands)
        else:
            getattr(sy.ops, operator.call)(*operands, group=group)

    try:
        with FakeTensorMode(), without_a_gpu():
            artifact = capture(call)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this variant's answer
        if not case.variant:
            raise
        return {"schedule": {"refused": f"{type(error).__name__}: {error}"}, "launch": {}, "source": []}
    launch = json.loads(artifact.schedule_json)
    return {
        "schedule": launch.pop("schedule"),
        "launch": launch,
        "source": [stage.source for stage in artifact.stages],
    }


# Comparing, which knows nothing of the package.


def canonical(json_value: Any, ignored: Collection[str]) -> Any:
    if isinstance(json_value, list):
        return [canonical(item, ignored) for item in json_value]
    if not isinstance(json_value, dict):
        return json_value
    made = {}
    for key in sorted(json_value.keys() - set(ignored)):
        value = canonical(json_value[key], ignored)
        if key == "file":
            value = Path(value).name
        if value is not None and value is not False and value not in ("", [], {}):
            made[key] = value
    return made


def digest(part: Any) -> str:
    text = json.dumps(part, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(path, what differs there)"""
    if type(old) is not type(new):
        yield path, f"{brief(old)} -> {brief(new)}"
    elif isinstance(old, dict):
        for key in sorted(old.keys() | new.keys()):
            at = f"{path}.{key}" if path else key
            if key not in new:
                yield at, f"{brief(old[key])} -> nothing"
            elif key not in old:
                yield at, f"nothing -> {brief(new[key])}"
            else:
                yield from differences(old[key], new[key], at)
    elif isinstance(old, list):
        if len(old) != len(new):
            yield f"{path}.length", f"{len(old)} -> {len(new)}"
        for index, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from differences(before, after, f"{path}[{index}]")
    elif old != new:
        yield path, f"{brief(old)} -> {brief(new)}"


def brief(json_value: Any) -> str:
    text = json.dumps(json_value)
    return text if len(text) <= 70 else text[:67] + "..."


def source_differences(old: list[str], new: list[str]) -> Iterator[tuple[str, str]]:
    if len(old) != len(new):
        yield "source.length", f"{len(old)} -> {len(new)}"
    for stage, (before, after) in enumerate(zip(old, new, strict=False)):
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
        for line in itertools.islice(lines, 2, None):
            if not line.startswith("@@"):
                yield f"source[{stage}]", line


@dataclass
class Outcome:
    """Of one case: its line, and how it differs from the reference."""

    line: str
    details: list[str]  # for people
    parts: set[str]  # that differ
    paths: set[str]  # at which they do, without numbers; of the source, lines


def compare(case: Case, made: dict[str, Any], options: argparse.Namespace, outcome: Outcome) -> None:
    """Adds to `outcome` how what was `made` differs from the reference."""
    folder, ignored = options.compare, options.ignore
    file = folder / f"{case.name}.json.gz"
    if not file.exists():
        outcome.parts.add("missing")
        outcome.details.append(f"    not in {folder}")
        return
    reference = json.loads(gzip.decompress(file.read_bytes()))
    for part in options.parts:
        old, new = canonical(reference[part], ignored), made[part]
        if old == new:
            continue
        found = list(source_differences(old, new) if part == "source" else differences(old, new, part))
        outcome.parts.add(part)
        outcome.details += [f"    {path}: {what}" for path, what in found[:FIRST]]
        if len(found) > FIRST:
            outcome.details.append(f"    {part}: {len(found)} differences in all")
        for path, what in found:
            outcome.paths.add(f"source {what}" if part == "source" else re.sub(r"\[\d+\]", "[]", path))


def run_case(case: Case, options: argparse.Namespace) -> Outcome:
    made = {part: canonical(value, options.ignore) for part, value in parts_of(case).items()}
    line = f"{case} " + " ".join(f"{part}={digest(made[part])}" for part in PARTS)
    outcome = Outcome(line, [], set(), set())
    if options.compare:
        compare(case, made, options, outcome)
    if options.dump:
        text = json.dumps(made, sort_keys=True, separators=(",", ":"))
        packed = gzip.compress(text.encode(), compresslevel=5, mtime=0)
        (options.dump / f"{case.name}.json.gz").write_bytes(packed)
    return outcome


def summary(outcomes: list[Outcome]) -> list[str]:
    """Of a comparison."""
    cases_at = collections.Counter(path for outcome in outcomes for path in outcome.paths)
    lines = [f"{count:4} cases differ at {path}" for path, count in sorted(cases_at.items())]
    differing = collections.Counter(part for outcome in outcomes for part in outcome.parts)
    counts = ", ".join(f"{part} {differing[part]}" for part in (*PARTS, "missing"))
    return [*lines, f"cases that differ, of {len(outcomes)}: {counts}"]


def names(text: str) -> list[str]:
    """As an option gives them: with commas between."""
    return [name for name in text.split(",") if name]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dump", type=Path, help="write all cases to this folder")
    parser.add_argument("--compare", type=Path, help="compare with what --dump wrote to this folder")
    parser.add_argument("--ignore", type=names, default=[], help="keys that are left out, comma-separated")
    parser.add_argument(
        "--parts", type=names, default=PARTS, help=f"compare only these of {', '.join(PARTS)}"
    )
    parser.add_argument(
        "--operators", type=names, default=list(OPERATORS), help=f"only these of {', '.join(OPERATORS)}"
    )
    parser.add_argument(
        "--shapes", type=names, default=[""], help="only models whose name contains one of these"
    )
    parser.add_argument("--tokens", type=names, default=[], help="only these M, comma-separated")
    parser.add_argument("--ranks", type=names, default=["2", "4", "8"], help="comma-separated")
    parser.add_argument(
        "--variants", action="store_true", help="also operators with other than default choices"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    return parser.parse_args()


def chosen(options: argparse.Namespace) -> list[Case]:
    for given, known in ((options.operators, list(OPERATORS)), (options.parts, PARTS)):
        if unknown := set(given) - set(known):
            raise SystemExit(
                f"schedules.py: {', '.join(sorted(unknown))}: expected one of {', '.join(known)}"
            )
    cases = []
    for operator, ranks in itertools.product(options.operators, map(int, options.ranks)):
        for shape in shapes_of(operator):
            if not any(name in shape.model for name in options.shapes):
                continue
            if options.tokens and str(shape.m) not in options.tokens:
                continue
            cases.append(Case(operator, shape, ranks))
            if options.variants and (shape.model, shape.m) in VARIED:
                for variant in VARIANTS[operator]:
                    name, _, value = variant.partition("=")
                    of = dataclasses.replace(shape, m=int(value)) if name == "m" else shape
                    cases.append(Case(operator, of, ranks, variant))
    if not cases:
        raise SystemExit("schedules.py: no case has these shapes, tokens and ranks")
    return cases


def main() -> int:
    options = parse()
    cases = chosen(options)
    begin = time.monotonic()
    if options.dump:
        options.dump.mkdir(parents=True, exist_ok=True)
    run = functools.partial(run_case, options=options)
    outcomes = []
    with contextlib.ExitStack() as stack:
        made = map(run, cases)
        if options.jobs > 1:
            fork = multiprocessing.get_context("fork")
            made = stack.enter_context(fork.Pool(options.jobs)).imap(run, cases)
        for outcome in made:
            outcomes.append(outcome)
            print("\n".join([outcome.line, *outcome.details]), flush=True)
    if options.dump:
        (options.dump / "index.txt").write_text("".join(f"{outcome.line}\n" for outcome in outcomes))
    if options.compare:
        print("\n".join(summary(outcomes)))
    print(f"{len(cases)} cases in {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 1 if any(outcome.parts for outcome in outcomes) else 0


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        code = main()
    sys.exit(code)
