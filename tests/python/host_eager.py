"""Chains in Triton's interpreter with every program as early as its waits let it run (eager_order.py): those of host_chain.py,
and random ones of kernels that are written here. Run by test_chain.py. Exits 1 with the first thing that is wrong.

    host_eager.py FOLDER COUNT [SEED]     random chains, whose kernels are written into FOLDER
"""

import importlib.util
import os
import random
import sys
from dataclasses import dataclass, field
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests")]

import host_chain  # noqa: E402
import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from eager_order import eagerly  # noqa: E402
from syncopate.host import language as language_host  # noqa: E402

SIZE, BLOCK = 32, 16  # of each tensor, [SIZE, SIZE], and of its tiles
TILES = (SIZE // BLOCK) ** 2

HEAD = """import triton
import triton.language as tl


@triton.jit
def kernel({parameters}, S: tl.constexpr, B: tl.constexpr):
"""
PLACE = """row = tile // (S // B) * B
column = tile % (S // B) * B
rows = row + tl.arange(0, B)
columns = column + tl.arange(0, B)
"""
#: How a stage reads a tensor, into {to}; {p} is its parameter.
READS = {
    "own": "{to} = tl.load({p} + rows[:, None] * S + columns[None, :])\n",
    "transposed": "{to} = tl.load({p} + columns[None, :] * S + rows[:, None])\n",
    "mirrored": "{to} = tl.load({p} + (S - 1 - rows)[:, None] * S + columns[None, :])\n",
    "row": """{to} = tl.zeros((B, B), dtype=tl.float32)
for k in range(0, S, B):
    {to} += tl.load({p} + rows[:, None] * S + k + tl.arange(0, B)[None, :])
""",
    "column sum": """{to} = tl.zeros((B,), dtype=tl.float32)
for k in range(0, S):
    {to} += tl.load({p} + k * S + columns)
{to} = {to}[None, :]
""",
    "scalar": "{to} = tl.load({p} + {at})\n",
    "guarded": """{to} = 0.0
if tile % 2 == 0:
    {to} += tl.load({p} + {at})
""",
}


@dataclass
class Stage:
    """A kernel: `reads` of (tensor, how); `writes` a tensor, which may be one of those."""

    reads: list[tuple[str, str]]
    writes: str
    early: bool  # scalars are loaded before the tile is known
    persistent: bool
    numbers: random.Random = field(repr=False)

    @property
    def bind(self) -> dict[str, str]:
        return {f"p{i}": tensor for i, (tensor, _) in enumerate(self.reads)} | {"out": self.writes}

    def source(self) -> str:
        before, inside, sum_ = "", PLACE, "0.0"
        for i, (_, how) in enumerate(self.reads):
            text = READS[how].format(to=f"x{i}", p=f"p{i}", at=self.numbers.randrange(SIZE * SIZE))
            if how == "scalar" and self.early:
                before += text
            else:
                inside += text
            sum_ += f" + x{i}"
        inside += f"tl.store(out + rows[:, None] * S + columns[None, :], tl.zeros((B, B), dtype=tl.float32) + ({sum_}) % 97)\n"
        if self.persistent:
            loop = f"for tile in range(tl.program_id(0), {TILES}, tl.num_programs(0)):\n"
            body = before + loop + indented(inside)
        else:
            body = before + "tile = tl.program_id(0)\n" + inside
        return HEAD.format(parameters=", ".join(self.bind)) + indented(body)


def indented(text: str) -> str:
    return "".join(f"    {line}\n" for line in text.splitlines())


def random_chain(numbers: random.Random) -> list[Stage]:
    there, stages = ["X"], []
    for number in range(numbers.randint(2, 4)):
        reads = [(numbers.choice(there), numbers.choice(list(READS))) for _ in range(numbers.randint(1, 2))]
        # Most read what the stage before has made.
        if number and numbers.random() < 0.8:
            reads[0] = (stages[-1].writes, reads[0][1])
        in_place = [tensor for tensor, how in reads if how == "own"]
        writes = numbers.choice(in_place) if in_place and numbers.random() < 0.3 else f"T{number}"
        # Another tile of what it overwrites would be read before or after, as it happens.
        reads = [(tensor, "own" if tensor == writes else how) for tensor, how in reads]
        if len({tensor for tensor, _ in reads}) < len(reads):
            reads = reads[:1]
        stages.append(Stage(reads, writes, numbers.random() < 0.5, numbers.random() < 0.3, numbers))
        if writes not in there:
            there.append(writes)
    return stages


def kernel_of(path: Path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.kernel


def fresh(stages: list[Stage]) -> dict[str, torch.Tensor]:
    made = {stage.writes: torch.full((SIZE, SIZE), float("nan")) for stage in stages}
    return made | {"X": torch.arange(SIZE * SIZE, dtype=torch.float32).view(SIZE, SIZE) % 31}


def run_random(stages: list[Stage], kernels: list, seed: int) -> str:
    """What the chain came to: "" or why it was refused. Raises RuntimeError where its results are not those of stream order."""
    grids = [(3,) if stage.persistent else (TILES,) for stage in stages]
    plain = fresh(stages)
    for stage, kernel, grid in zip(stages, kernels, grids, strict=True):
        kernel[grid](**{p: plain[t] for p, t in stage.bind.items()}, S=SIZE, B=BLOCK)
    fused = sy.fuse(kernels, bind=[stage.bind for stage in stages], deadline=20)
    for order in (None, seed):
        tensors = fresh(stages)
        calls = [
            fused.call(i, grid, **{p: tensors[t] for p, t in stage.bind.items()}, S=SIZE, B=BLOCK)
            for i, (stage, grid) in enumerate(zip(stages, grids, strict=True))
        ]
        try:
            with eagerly(order):
                fused.run(calls)
        except ValueError as error:
            return str(error)
        for name, tensor in tensors.items():
            if not torch.equal(tensor, plain[name]):
                raise RuntimeError(f"{name} is not what it is in stream order")
    fused.close()
    return ""


def random_chains(folder: Path, count: int, first: int) -> None:
    refused = []
    for seed in range(first, first + count):
        stages = random_chain(random.Random(seed))
        paths = [folder / f"chain_{seed}_{i}.py" for i in range(len(stages))]
        for path, stage in zip(paths, stages, strict=True):
            path.write_text(stage.source())
        try:
            why = run_random(stages, [kernel_of(path) for path in paths], seed)
        except Exception as error:
            raise SystemExit(f"random chain {seed} ({stages}): {type(error).__name__}: {error}") from error
        if why:
            refused.append(f"{seed}: {why}")
    # Loads before a persistent kernel's loop are refused; nothing else of these should be.
    for why in refused:
        if "before" not in why:
            raise SystemExit(f"random chain {why}")
    if len(refused) > count // 2:
        raise SystemExit(f"{len(refused)} of {count} random chains are refused")
    print(f"random chains: {count - len(refused)} run, {len(refused)} refused")


def waits_that_are_left_out() -> None:
    """What stream order hides is seen: without waits the results are wrong."""
    wait_all = language_host._wait_all
    language_host._wait_all = lambda *_: None
    try:
        with eagerly():
            host_chain.two_products("matmul_pointers", 48, 32, 64, 32, 1)
    except RuntimeError as error:
        if "the result differs" in str(error):
            return
        raise
    finally:
        language_host._wait_all = wait_all
    raise SystemExit("chains without waits give the right results: this order shows nothing")


if __name__ == "__main__":
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    waits_that_are_left_out()
    sys.argv[1] = str(folder / "emitted.py")
    for seed, product in enumerate(host_chain.CALLS):
        with eagerly(seed or None):
            host_chain.two_products(product, 40, 24, 40, 56, 1)
    with eagerly():
        host_chain.three_stages()
        host_chain.one_program()
    random_chains(folder, count, int(sys.argv[3]) if len(sys.argv) > 3 else 0)
    print("eager: ok")
