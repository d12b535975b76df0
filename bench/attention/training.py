"""Attention in training over ranks: forward, backward and both, against what people run today, in turns within each shape.

    torchrun --nproc-per-node 2 bench/attention/training.py --rows 4096,8192 --heads 16,32 --kv-heads 0,4 --csv lines.csv

    ours            torch.ops.syncopate.attention and its backward by the compiler (--kinds auto,ring,ulysses: by these)
    deterministic   the same with torch.use_deterministic_algorithms
    unfused         NCCL's all-gather of K and V, our kernels, NCCL's reduce-scatter of the gradients in fp32
    nccl_cudnn      the same by torch's SDPA with cuDNN; causal by its flash kernel where cuDNN knows no such mask
    cp_allgather, cp_alltoall    torch's context_parallel with cuDNN, by either rotation; of heads that share K and V it is given copies
    fa4             NCCL's collectives around flash-attn-4, if it is installed (flash_attn.cute)
    local           part: the kernels alone, on the rows of one rank

bf16, B = 1. Under a causal mask rows are zigzag, so that ranks have alike much work. GPUs are kept waiting until
the host has enqueued a call, so that its own time does not count. `exposed`: the part of `ours` beyond `local`, for the forward, the backward, and both
together. Without a GPU two ranks over gloo check the bench at few rows:

    TRITON_INTERPRET=1 torchrun --nproc-per-node 2 bench/attention/training.py --rows 32 --heads 2 --head-dim 16 --rounds 1
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import importlib.util
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

FIELDS = (
    "mask",
    "rows",
    "heads",
    "kv_heads",
    "head_dim",
    "peer",
    "forward_us",
    "both_us",
    "backward_us",
    "error",
)

CYCLES = 20_000_000  # for which GPUs wait: about 10 ms


def joined() -> torch.device:
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
        return device
    dist.init_process_group("gloo")
    return torch.device("cpu")


class Case:
    """One shape: this rank's rows of q, k, v and of the gradient of o, and the right gradients."""

    def __init__(
        self, device: torch.device, rows: int, heads: int, kv_heads: int, d: int, causal: bool
    ) -> None:
        self.device, self.causal, self.size, self.rank = (
            device,
            causal,
            dist.get_world_size(),
            dist.get_rank(),
        )
        self.rows, self.heads, self.kv_heads, self.d = rows, heads, kv_heads, d
        self.sharding = "zigzag" if causal and self.size > 1 else "contiguous"
        generator = torch.Generator(device).manual_seed(11)
        self.whole = [
            torch.randn(1, n, rows * self.size, d, device=device, dtype=torch.bfloat16, generator=generator)
            for n in (heads, kv_heads, kv_heads, heads)
        ]
        self.own = [self.shard(one) for one in self.whole]
        self.right: list[torch.Tensor] | None = None
        held = [torch.arange(a, b) for own in self.all_runs for a, b in own]
        self.order = torch.argsort(torch.cat(held)).to(device)  # of the rows of all ranks, one behind another

    def shard(self, x: torch.Tensor) -> torch.Tensor:
        import syncopate as sy

        return sy.shard_rows(x, dim=2, sharding=self.sharding).contiguous()

    @property
    def all_runs(self) -> list[list[tuple[int, int]]]:
        from syncopate.face.rows import rows_of_ranks

        return rows_of_ranks(self.rows * self.size, self.size, self.sharding)

    @property
    def runs(self) -> list[tuple[int, int]]:
        return self.all_runs[self.rank]

    def operands(self) -> list[torch.Tensor]:
        return [one.detach().clone().requires_grad_() for one in self.own[:3]]

    def error(self, grads: list[torch.Tensor]) -> float:
        """The largest relative error of the gradients, in the 2-norm, against torch's on the whole sequence."""
        if self.right is None:
            given = [one.detach().clone().requires_grad_() for one in self.whole[:3]]
            o = scaled_dot_product_attention(*given, is_causal=self.causal, enable_gqa=True)
            self.right = [self.shard(one) for one in torch.autograd.grad(o, given, self.whole[3])]
        errors = [
            float((a.float() - b.float()).norm() / b.float().norm())
            for a, b in zip(grads, self.right, strict=True)
        ]
        worst = torch.tensor(max(errors), device=self.device)
        dist.all_reduce(worst, op=dist.ReduceOp.MAX)
        return float(worst)


def attend_rows(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention of this rank's rows to whole k and v, by torch."""
    parts, done = [], 0
    for begin, end in case.runs:
        own, done = q[:, :, done : done + end - begin], done + end - begin
        keys, values = (k[:, :, :end], v[:, :, :end]) if case.causal else (k, v)
        from_first = case.causal and begin == 0  # a square, of which torch needs no mask
        mask = causal_lower_right(end - begin, end) if case.causal and not from_first else None
        if mask is not None and not q.is_cuda:
            mask = torch.arange(end)[None, :] <= torch.arange(begin, end)[:, None]
        how = {"attn_mask": mask, "is_causal": from_first, "enable_gqa": q.shape[1] != k.shape[1]}
        parts.append(scaled_dot_product_attention(own, keys, values, **how))
    return torch.cat(parts, 2)


def in_order(case: Case, gathered: torch.Tensor) -> torch.Tensor:
    """[ranks * rows, …] of all ranks' shards, as the whole sequence."""
    return gathered.index_select(0, case.order)


def gathered(case: Case, x: torch.Tensor) -> torch.Tensor:
    """Differentiable: its backward is a reduce-scatter."""
    moved = functional.all_gather_tensor_autograd(x.movedim(2, 0).contiguous(), 0, dist.group.WORLD)
    return in_order(case, moved).movedim(0, 2)


def ours(case: Case, kind: str) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    name = dist.group.WORLD.group_name
    how = {"causal": case.causal, "kind": kind, "sharding": case.sharding}
    return lambda given: torch.ops.syncopate.attention(*given, name, **how)[0]


def by_torch(case: Case) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    return lambda given: attend_rows(case, given[0], gathered(case, given[1]), gathered(case, given[2]))


class Unfused(torch.autograd.Function):
    """Our kernels between a library's collectives."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, case: Case, pair: Any
    ) -> torch.Tensor:
        forward, _ = pair
        with torch.no_grad():
            whole = [gathered(case, one).contiguous() for one in (k, v)]
        o, lse = forward(q, *whole)
        ctx.save_for_backward(q, *whole, o, lse)
        ctx.case, ctx.pair = case, pair
        return o

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        q, k, v, o, lse = ctx.saved_tensors
        case, (_, backward) = ctx.case, ctx.pair
        dq, *sums = backward.unfused(grad.contiguous(), None, q, k, v, o, lse)
        made = []
        for total in sums:
            rows = torch.cat(
                [total.movedim(2, 0)[a:b] for own in backward.all_rows for a, b in own]
            ).contiguous()
            mine = rows.new_empty(case.rows, *rows.shape[1:])
            dist.reduce_scatter_tensor(mine, rows)
            made.append(mine.movedim(0, 2).to(grad.dtype))
        return dq, *made, None, None


def kernels_of(case: Case) -> tuple[Callable[..., Any], Any]:
    """Our kernels alone: o and lse of q of this rank's rows and whole k and v, and what has their backward."""
    from syncopate.kernels.gluon_attention_call import attend
    from syncopate.ops import AttentionBackward

    if case.device.type != "cuda" or torch.cuda.get_device_capability()[0] != 9:
        raise NotImplementedError("for Hopper GPUs")
    how = {
        "causal": case.causal,
        "sharding": case.sharding,
        "kind": "all_gather",
        "even": True,
        "device": "cuda",
    }
    backward = AttentionBackward(1, case.heads, case.kv_heads, case.rows * case.size, case.d, **how)

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made, done = [], 0
        for begin, end in case.runs:
            own, done = q[:, :, done : done + end - begin].contiguous(), done + end - begin
            made.append(attend(own, k, v, causal=case.causal, offset=begin if case.causal else None))
        return torch.cat([o for o, _ in made], 2), torch.cat([lse for _, lse in made], 2)

    return forward, backward


def by_flash(case: Case) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """flash-attn-4, which takes [B, rows, heads, D], and counts a causal mask from the last rows."""
    from flash_attn.cute import flash_attn_func

    def call(given: list[torch.Tensor]) -> torch.Tensor:
        q, k, v = given[0], gathered(case, given[1]), gathered(case, given[2])
        parts, done = [], 0
        for begin, end in case.runs:
            own, done = q[:, :, done : done + end - begin], done + end - begin
            keys, values = (k[:, :, :end], v[:, :, :end]) if case.causal else (k, v)
            of_run = [one.transpose(1, 2).contiguous() for one in (own, keys, values)]
            made = flash_attn_func(*of_run, causal=case.causal)
            parts.append((made[0] if isinstance(made, tuple) else made).transpose(1, 2))
        return torch.cat(parts, 2)

    return call


def unfused(case: Case) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    pair = kernels_of(case)
    return lambda given: Unfused.apply(*given, case, pair)


class ContextParallel:
    """torch's context_parallel. All is done within `inside`, the backward, too, as torch replaces its operators only there; to enter
    it is no part of a call."""

    def __init__(self, case: Case, rotation: str) -> None:
        self.case, self.rotation = case, rotation
        self.mesh = DeviceMesh.from_group(dist.group.WORLD, case.device.type)

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        from torch.distributed.tensor.experimental import _attention, context_parallel
        from torch.nn.attention import SDPBackend, sdpa_kernel

        case, options = self.case, _attention._cp_options
        balanced, options.enable_load_balance = options.enable_load_balance, case.causal
        _attention.set_rotate_method(self.rotation)
        length = torch.zeros(1, 1, case.rows * case.size, 1, device=case.device)
        try:
            with (
                sdpa_kernel(SDPBackend.CUDNN_ATTENTION),
                context_parallel(self.mesh, buffers=[length], buffer_seq_dims=[2]),
            ):
                yield
        finally:
            options.enable_load_balance = balanced

    def __call__(self, given: list[torch.Tensor]) -> torch.Tensor:
        q, k, v = given
        shared_by = self.case.heads // self.case.kv_heads
        if shared_by > 1:
            k, v = (one.repeat_interleave(shared_by, 1) for one in (k, v))
        o = scaled_dot_product_attention_now()(q, k, v, is_causal=self.case.causal)
        return o.to_local() if hasattr(o, "to_local") else o


def scaled_dot_product_attention_now() -> Any:
    """As torch's context_parallel has replaced it."""
    return torch.nn.functional.scaled_dot_product_attention


def local(case: Case) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    """The kernels alone: K and V of the whole sequence are there, and their gradients stay."""
    (forward, by), whole = kernels_of(case), case.whole[1:3]

    class Alone(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            o, lse = forward(q, *whole)
            ctx.save_for_backward(q, o, lse)
            return o

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
            q, o, lse = ctx.saved_tensors
            by.unfused(grad.contiguous(), None, q, *whole, o, lse)
            return q, case.own[1], case.own[2]

    return lambda given: Alone.apply(*given)


def inside_of(call: Any) -> Any:
    """Where a peer's calls are made."""
    return getattr(call, "inside", contextlib.nullcontext)()


def timed(case: Case, calls: list[tuple[Callable[[], Any], Any]], rounds: int) -> list[float]:
    """µs of each, the median over rounds in which all take turns. With each call what makes where it is made."""
    took: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for index, (call, inside) in enumerate(calls):
            with inside():
                dist.barrier()
                if case.device.type == "cuda":
                    torch.cuda.synchronize()
                    torch.cuda._sleep(CYCLES)
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    call()
                    end.record()
                    torch.cuda.synchronize()
                    took[index].append(begin.elapsed_time(end) * 1e3)
                else:
                    start = time.perf_counter()
                    call()
                    took[index].append((time.perf_counter() - start) * 1e6)
    medians = torch.tensor([statistics.median(one) for one in took], device=case.device)
    dist.all_reduce(medians, op=dist.ReduceOp.MAX)
    return medians.tolist()


def peers_of(case: Case, kinds: list[str]) -> dict[str, Callable[[], Any]]:
    """What makes each."""
    made: dict[str, Callable[[], Any]] = {
        "ours" if kind == "auto" else f"ours {kind}": lambda kind=kind: ours(case, kind) for kind in kinds
    }
    made |= {"deterministic": lambda: ours(case, "auto")}
    made |= {
        "unfused": lambda: unfused(case),
        "nccl_cudnn": lambda: by_torch(case),
        "local": lambda: local(case),
    }
    for rotation in ("allgather", "alltoall"):
        made[f"cp_{rotation}"] = lambda rotation=rotation: ContextParallel(case, rotation)
    if importlib.util.find_spec("flash_attn") and importlib.util.find_spec("flash_attn.cute"):
        made["fa4"] = lambda: by_flash(case)
    return made


def run(case: Case, kinds: list[str], only: list[str], rounds: int) -> list[dict[str, Any]]:
    rows, calls = [], []

    for name, make in peers_of(case, kinds).items():
        if only and name.split()[0] not in only:
            continue
        torch.use_deterministic_algorithms(name == "deterministic")
        try:
            call, given = make(), case.operands()

            def both(call: Any = call, given: Any = given) -> list[torch.Tensor]:
                return list(torch.autograd.grad(call(given), given, case.own[3]))

            def forward(call: Any = call, given: Any = given) -> Any:
                return call(given)

            with inside_of(call):
                made = both()
            error = case.error(made) if name != "local" else 0.0  # whose gradients of k and v are no sums
        except Exception as problem:  # noqa: BLE001 - whatever a peer lacks here is the reason
            said = str(problem).strip().splitlines() or [type(problem).__name__]
            print(f"    {name}: left out: {said[0][:160]}", flush=True) if case.rank == 0 else None
            continue
        rows.append({"peer": name, "error": f"{error:.1e}"})

        def switched(work: Any, on: bool = name == "deterministic") -> Callable[[], Any]:
            def run_it() -> Any:
                torch.use_deterministic_algorithms(on)
                return work()

            return run_it

        calls += [(switched(way), lambda call=call: inside_of(call)) for way in (forward, both)]
    torch.use_deterministic_algorithms(False)
    took = timed(case, calls, rounds)
    for row, forward_us, both_us in zip(rows, took[::2], took[1::2], strict=True):
        row |= {"forward_us": round(forward_us, 1), "both_us": round(both_us, 1)}
        row["backward_us"] = round(both_us - forward_us, 1)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="1024,4096,8192,16384", help="of the sequence, on each rank")
    parser.add_argument("--heads", default="16,32")
    parser.add_argument("--kv-heads", default="0", help="0: as many as --heads")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--masks", default="full,causal")
    parser.add_argument("--kinds", default="auto")
    parser.add_argument("--peers", default="", help="only these of the list above; else all")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--csv")
    options = parser.parse_args()
    device = joined()
    import syncopate as sy

    lines: list[dict[str, Any]] = []
    shapes = [[int(n) for n in getattr(options, name).split(",")] for name in ("heads", "kv_heads", "rows")]
    for mask, heads, kv_heads, rows in itertools.product(options.masks.split(","), *shapes):
        case = Case(device, rows, heads, kv_heads or heads, options.head_dim, mask == "causal")
        said = {
            "mask": mask,
            "rows": rows,
            "heads": heads,
            "kv_heads": kv_heads or heads,
            "head_dim": options.head_dim,
        }
        if dist.get_rank() == 0:
            print(" ".join(f"{name}={value}" for name, value in said.items()), flush=True)
        only = options.peers.split(",") if options.peers else []
        found = run(case, options.kinds.split(","), only, options.rounds)
        took = {row["peer"]: row["both_us"] for row in found}
        for row in found:
            lines.append(said | row)
            if dist.get_rank() == 0:
                ratio = f"{row['both_us'] / took['ours']:.2f} of ours" if "ours" in took else ""
                print(
                    f"    {row['peer']:14} forward {row['forward_us']:9.1f} backward {row['backward_us']:9.1f} "
                    f"both {row['both_us']:9.1f} µs {ratio}, error {row['error']}",
                    flush=True,
                )
        if dist.get_rank() == 0 and {"ours", "local"} <= took.keys():
            of = {row["peer"]: row for row in found}
            exposed = [
                f"{what} {1 - of['local'][f'{what}_us'] / of['ours'][f'{what}_us']:.1%}"
                for what in ("forward", "backward", "both")
            ]
            print("    exposed: " + ", ".join(exposed), flush=True)
        sy.close()
    if dist.get_rank() == 0:
        print(sy.report(), flush=True)
        if options.csv:
            with open(options.csv, "w", newline="") as file:
                writer = csv.DictWriter(file, FIELDS)
                writer.writeheader()
                writer.writerows(lines)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
