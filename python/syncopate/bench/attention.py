"""syncopate bench attention: attention over a sharded sequence, against what people run today.

One process a GPU, all GPUs of this machine (one is enough: then nothing moves), or under torchrun its ranks; without a GPU two
host ranks over gloo at 1/64 of the rows and D = 16, which checks the bench and whose times mean nothing. bf16, B = 1.

    sdpa, gather    parts: torch's SDPA of this rank's rows on gathered K and V; NCCL's all-gather of K and V
    kernel          part: our fused kernel alone, on K and V that are there
    nccl_sdpa       the first two, one after the other
    nccl_ours       our kernel for Hopper after NCCL's all-gather: ours unfused
    nccl_cudnn      causal: the same by cuDNN, keys below the diagonal and on it apart, joined by log-sum-exp
    cp_allgather, cp_alltoall    torch's context_parallel, by either rotation
    ulysses_sdpa    NCCL's all-to-all of Q, K and V, SDPA, and of O
    fa4             part: flash-attn-4 on gathered K and V, where it is installed
    ours, ours_eager    as a CUDA graph, and not; --vary kind=ring,ulysses: other kinds, too
    ours_gluon      by the kernel for Hopper, as a CUDA graph

Under a causal mask every peer's ranks have alike much work: rows are sharded head to tail, as ours, or by heads. The SDPA back
end that torch takes is printed. `documents`: causal, four of different lengths; of peers nccl_sdpa and ulysses_sdpa
know them. exposed: the part of `ours` in which `kernel` does not run.

    syncopate bench attention --rows 1024,8192 --heads 16,32 --kv-heads 0,4 --masks full,causal,documents --csv lines.csv \\
        --markdown tables.md --plot speed.svg
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .attention_table import OF_ATTENTION
from .launch import Parser, add_options, count, launch, parse_options

MASKS = ("full", "causal", "documents")
CUTS = (0.0, 0.07, 0.31, 0.62)  # where documents begin, of the sequence
HOST_SCALE = 64
TOLERANCE = 2e-2  # of a relative error, in the 2-norm


@dataclass(frozen=True)
class AttentionShape:
    """`rows` of the sequence on each rank, `heads` of Q and `kv_heads` of K and V."""

    rows: int
    heads: int
    kv_heads: int
    head_dim: int
    causal: bool
    documents: bool = False

    def cuts(self, ranks: int) -> list[int]:
        """Where each document begins, and the end of the last; empty: there is one."""
        length = self.rows * ranks
        return [*(int(cut * length) for cut in CUTS), length] if self.documents else []


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Parser(
        prog="syncopate bench attention",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", default="1024,4096,8192,16384,32768", help="of the sequence, on each rank")
    parser.add_argument("--heads", default="16,32")
    parser.add_argument("--kv-heads", default="0", help="comma-separated; 0: as many as --heads")
    parser.add_argument("--head-dim", type=count, help="default: 128; on host 16")
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--vary", default="", metavar="kind=K1,K2", help="also ours by other kinds")
    add_options(parser, "rows")
    options = parse_options(parser, arguments)
    for name in ("rows", "heads", "kv_heads"):
        values = getattr(options, name).split(",")
        if not all(value.isdecimal() and (int(value) > 0 or name == "kv_heads") for value in values):
            parser.error(f"--{name.replace('_', '-')} {getattr(options, name)}: expected whole numbers")
        setattr(options, name, [int(value) for value in values])
    for mask in options.masks.split(","):
        if mask not in MASKS:
            parser.error(f"--masks {options.masks}: expected some of {', '.join(MASKS)}")
    if options.vary and not options.vary.startswith("kind="):
        parser.error(f"--vary {options.vary}: expected kind=K1,K2")
    return options


def shapes_of(options: argparse.Namespace, on_gpu: bool) -> Iterator[AttentionShape]:
    head_dim = options.head_dim or (128 if on_gpu else 16)
    for mask, heads, kv_heads, rows in itertools.product(
        options.masks.split(","), options.heads, options.kv_heads, options.rows
    ):
        if heads % (kv_heads or heads):
            continue
        rows = rows if on_gpu else max(32, rows // HOST_SCALE)
        yield AttentionShape(rows, heads, kv_heads or heads, head_dim, mask != "full", mask == "documents")


class AttentionCase:
    """A shape with its tensors. `q`, `k`, `v`: this rank's rows of the sequence; `head_to_tail`: as two runs of rows, the
    rank-th from either end, else one run."""

    operator = "attention"

    def __init__(self, shape: AttentionShape) -> None:
        import torch
        import torch.distributed as dist

        self.shape = shape
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.on_gpu = torch.cuda.is_available()
        self.device = (
            torch.device("cuda", torch.cuda.current_device()) if self.on_gpu else torch.device("cpu")
        )
        self.length = shape.rows * self.size
        self.cuts = shape.cuts(self.size)
        self.head_to_tail = shape.causal and self.size > 1
        generator = torch.Generator(self.device).manual_seed(1234)  # the same on all ranks

        def whole(heads: int) -> Any:
            extent = (1, heads, self.length, shape.head_dim)
            return torch.randn(extent, device=self.device, dtype=torch.bfloat16, generator=generator)

        self.whole = [whole(heads) for heads in (shape.heads, shape.kv_heads, shape.kv_heads)]
        self.q, self.k, self.v = (self.shard(x) for x in self.whole)
        self.left_out: dict[str, str] = {}
        self._operators: list[Any] = []
        self._after: list[Callable[[], object]] = []

    @property
    def runs(self) -> list[tuple[int, int]]:
        """This rank's rows of the sequence, as the peers that gather K and V have them."""
        if not self.head_to_tail:
            return [(self.rank * self.shape.rows, (self.rank + 1) * self.shape.rows)]
        part = self.shape.rows // 2
        tail = 2 * self.size - 1 - self.rank
        return [(self.rank * part, (self.rank + 1) * part), (tail * part, (tail + 1) * part)]

    def shard(self, x: Any, runs: list[tuple[int, int]] | None = None) -> Any:
        import torch

        return torch.cat([x[:, :, begin:end] for begin, end in runs or self.runs], 2)

    @property
    def row_runs(self) -> list[tuple[int, int]]:
        """As Ulysses has them: one behind another."""
        return [(self.rank * self.shape.rows, (self.rank + 1) * self.shape.rows)]

    def in_order(self, parts: Any) -> Any:
        """Gathered shards [ranks, 1, heads, rows, D] as the whole sequence [1, heads, S, D]: a copy, which serial code
        needs."""
        n, b, h, rows, d = parts.shape
        if not self.head_to_tail:
            return parts.permute(1, 2, 0, 3, 4).reshape(b, h, n * rows, d)
        import torch

        halves = parts.view(n, b, h, 2, rows // 2, d)
        ordered = torch.cat([halves[:, :, :, 0], halves[:, :, :, 1].flip(0)])
        return ordered.permute(1, 2, 0, 3, 4).reshape(b, h, n * rows, d)

    def after(self, leave: Callable[[], object]) -> None:
        """Called when the shape is done."""
        self._after.append(leave)

    def operator_of(self, kind: str = "auto", gluon: bool = False) -> Any:
        """Ours, by the plain kernel or by the one for Hopper."""
        from ..ops import Attention

        s, tiling = self.shape, None
        if gluon:
            import torch

            if not self.on_gpu or torch.cuda.get_device_capability()[0] != 9:
                raise NotImplementedError("for Hopper GPUs")
            from ..kernels.gluon_attention_call import tiling_of
            from ..ops.attention_rules import padded_head

            tiling = tiling_of(padded_head(s.head_dim, "cuda"))
        made = Attention(
            1, s.heads, s.kv_heads, self.length, s.head_dim, causal=s.causal, kind=kind, cu_seqlens=self.cuts or None,
            sharding="documents" if self.cuts else "zigzag" if s.causal else "contiguous",
            device="cuda" if self.on_gpu else "host", tiling=tiling,
        )  # fmt: skip
        self._operators.append(made)
        return made

    def expect(self, name: str, o: Any, runs: list[tuple[int, int]]) -> None:
        """Raises on all ranks alike unless `o` is attention of these rows."""
        import torch
        import torch.distributed as dist

        from .sdpa import attend_within

        q, k, v = self.whole
        right = torch.cat([attend_within(self, q[:, :, b:e], k, v, b) for b, e in runs], 2).float()
        error = (o.float() - right).norm() / right.norm()
        worst = torch.tensor([float("inf") if error.isnan() else error.item()], device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        if worst.item() > TOLERANCE:
            raise RuntimeError(f"{name} is wrong: relative error {worst.item():.3g}")

    def check(self) -> None:
        for operator in self._operators:
            operator.check()

    def close(self) -> None:
        for leave in reversed(self._after):
            leave()
        for operator in self._operators:
            operator.close()


def optional(case: AttentionCase, name: str, make: Callable[[], Callable[[int], Any]]) -> list[Any]:
    """The row of what `make` gives; none, and the reason in the report, where the machine or the shape refuses it."""
    from .measure import Candidate

    try:
        call = make()
        call(0)
        return [Candidate(name, call, visible=False)]
    except Exception as error:  # noqa: BLE001 - whatever a peer lacks here is the reason
        text = str(error).strip().splitlines()
        case.left_out[name] = text[0][:200] if text else type(error).__name__
        return []


def ours(case: AttentionCase, kind: str, gluon: bool = False) -> Callable[[int], Any]:
    """A call of ours, once it is found right."""
    op = case.operator_of(kind, gluon)
    own = [op.shard(x) for x in case.whole]
    out = op.empty_outputs()

    def call(_: int) -> Any:
        return op(*own, out)[0]

    o = call(0)
    op.check()
    case.expect("ours", o, op.rows)
    return call


def rows_of(case: AttentionCase, peers: list[Any], options: argparse.Namespace) -> list[Any]:
    from .measure import Candidate, capture

    def graphed(kind: str, gluon: bool = False) -> Callable[[int], Any]:
        call = ours(case, kind, gluon)
        graph = capture(lambda: call(0))
        return lambda _: graph.replay()

    eager = ours(case, "auto")
    graph = capture(lambda: eager(0))
    rows = [Candidate("ours", lambda _: graph.replay(), visible=False), Candidate("ours_eager", eager)]
    op = case._operators[0]

    def kernel() -> Callable[[int], Any]:
        if not case.on_gpu:
            raise NotImplementedError("there is no compiled kernel on the host")
        return lambda _: op.run_local()

    rows += optional(case, "kernel", kernel)
    rows += optional(case, "ours_gluon", lambda: graphed("auto", gluon=True))
    for peer in peers:
        if "attention" in peer.operators:
            rows += optional(case, peer.name, lambda peer=peer: peer.make(case))
    for kind in filter(None, options.vary.removeprefix("kind=").split(",")):
        rows += optional(case, f"kind={kind}", lambda kind=kind: graphed(kind))
    return rows


def run_shape(shape: AttentionShape, peers: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    from .rows import measured
    from .sdpa import backend_of

    case = AttentionCase(shape)
    try:
        entry = measured(case, rows_of(case, peers, options), peers, options.rounds)
        times = entry["rows"]
        entry["sdpa"] = backend_of(case)
        entry["kind"], entry["sharding"] = case._operators[0].kind, case._operators[0].sharding
        if "kernel" in times:
            entry["exposed"] = 1 - times["kernel"]["hidden_us"] / times["ours"]["hidden_us"]
    finally:
        case.close()
    if case.left_out:
        entry["left_out"] = case.left_out
    return entry


def run_all(options: argparse.Namespace) -> dict[str, Any]:
    """On each rank: every shape. Returns the report."""
    import torch
    import torch.distributed as dist

    from .peers import peers
    from .session import Progress, summary

    def said(entry: dict[str, Any]) -> str:
        exposed = f", exposed {entry['exposed']:.1%}" if "exposed" in entry else ""
        return f"{entry['kind']}, SDPA by {entry['sdpa']}: {summary(entry)}{exposed}"

    progress, found = Progress(options), peers(options.peer)
    for shape in shapes_of(options, torch.cuda.is_available()):
        mask = "documents" if shape.documents else "causal" if shape.causal else "full"
        where = f"attention {mask:9} rows={shape.rows:5} H={shape.heads:2} HKV={shape.kv_heads:2} D={shape.head_dim} |"
        entry: dict[str, Any] = {
            "operator": "attention", "mask": mask, "rows_a_rank": shape.rows, "H": shape.heads,
            "HKV": shape.kv_heads, "D": shape.head_dim,
        }  # fmt: skip
        progress.shape(where, entry, functools.partial(run_shape, shape, found, options), said)
    dist.destroy_process_group()
    return progress.report


def main(arguments: list[str]) -> int:
    return launch(parse(arguments), lambda _: None, run_all, OF_ATTENTION)
