"""Attention over a sharded sequence: ours against what people run today. Start with torchrun, one process a GPU:

    torchrun --nproc-per-node 2 bench/attention/attention.py [--lengths 8192,16384] [--heads 16] [--kv-heads 16] [--json FILE]

B = 1, D = 128, bf16; the length is of the whole sequence. Rows, full and causal:

    sdpa         torch's SDPA on gathered K and V, this rank's rows       gather       NCCL's all-gather of K and V alone
    nccl+sdpa    the two, one after the other                             cp-…         torch's context_parallel, both rotations
    a2a+sdpa     Ulysses by NCCL's all-to-all and SDPA                    fa4          flash-attn-4, on gathered K and V, if installed
    kernel       our unmodified kernel on gathered K and V                ours, graph  fused; the same as a CUDA graph

exposed: ours (graph) less our kernel alone. Under a causal mask SDPA's rows are the last of the sequence (the longest rank's,
contiguous), ours are zigzag. The SDPA back end that torch picks is printed. Without a GPU the same rows run on host ranks, at 1/64
of the length with D = 16: this checks the bench, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench")]
ON_GPU = torch.cuda.is_available()
if not ON_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before the kernels are imported

import syncopate as sy  # noqa: E402
from harness import Candidate, capture, measure  # noqa: E402


def sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """Of the last rows of a sequence, q, against all of it. A causal square lies at the lower right."""
    if causal and q.shape[2] != k.shape[2]:
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(q.shape[2], k.shape[2])
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=q.shape[1] != k.shape[1])


class Shape:
    """One shape's tensors and candidates."""

    def __init__(self, length: int, heads: int, kv_heads: int, head_dim: int, causal: bool) -> None:
        self.size, self.rank = dist.get_world_size(), dist.get_rank()
        self.length, self.heads, self.kv_heads, self.causal = length, heads, kv_heads, causal
        self.device = torch.device("cuda", torch.cuda.current_device()) if ON_GPU else torch.device("cpu")
        self.rows = length // self.size
        self.q = self.random(heads, self.rows, head_dim)
        self.k, self.v = (self.random(kv_heads, self.rows, head_dim) for _ in range(2))
        self.all_k, self.all_v = (self.random(kv_heads, length, head_dim) for _ in range(2))
        self.parts = [
            torch.empty(self.size, *self.k.shape, dtype=self.k.dtype, device=self.device) for _ in range(2)
        ]
        self.head_dim = head_dim
        self.left_out: dict[str, str] = {}

    def random(self, heads: int, rows: int, d: int) -> torch.Tensor:
        return torch.randn(1, heads, rows, d, device=self.device).to(torch.bfloat16)

    def gather(self, _: int = 0) -> None:
        for part, own in zip(self.parts, (self.k, self.v), strict=True):
            dist.all_gather_into_tensor(part, own[None])

    def gathered(self) -> list[torch.Tensor]:
        """What the gathered parts are as [1, HKV, S, D]: a copy, which serial code needs, too."""
        return [
            p.permute(1, 2, 0, 3, 4).reshape(1, self.kv_heads, self.length, self.head_dim) for p in self.parts
        ]

    def nccl_then_sdpa(self, _: int) -> None:
        self.gather()
        sdpa(self.q, *self.gathered(), self.causal)

    def ulysses(self, _: int) -> None:
        n = self.size

        def exchanged(x: torch.Tensor, inwards: bool) -> torch.Tensor:
            b, h, s, d = x.shape
            blocks = (
                x.view(b, n, h // n, s, d).transpose(0, 1)
                if inwards
                else x.view(b, h, n, s // n, d).permute(2, 0, 1, 3, 4)
            )
            blocks = blocks.contiguous()
            out = torch.empty_like(blocks)
            dist.all_to_all_single(out, blocks)
            return (
                out.permute(1, 2, 0, 3, 4).reshape(b, h // n, n * s, d)
                if inwards
                else out.transpose(0, 1).reshape(b, n * h, s // n, d)
            )

        q, k, v = (exchanged(x, True) for x in (self.q, self.k, self.v))
        exchanged(sdpa(q, k, v, self.causal), False)

    def context_parallel(self, rotation: str) -> Callable[[int], None]:
        from torch.distributed.tensor.experimental import context_parallel
        from torch.distributed.tensor.experimental._attention import set_rotate_method

        mesh = dist.device_mesh.init_device_mesh("cuda", (self.size,))
        if not self.causal:
            raise ValueError("with load balancing on it takes causal attention only")
        shared = self.heads // self.kv_heads
        q = self.random(self.heads, self.length, self.head_dim)
        k, v = (
            self.random(self.kv_heads, self.length, self.head_dim).repeat_interleave(shared, 1)
            for _ in range(2)
        )
        buffers = [q, k, v]
        set_rotate_method(rotation)

        def call(_: int) -> None:
            F.scaled_dot_product_attention(*buffers, is_causal=True)

        context = context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2])
        context.__enter__()  # it shards the buffers in place; SDPA inside is the ring
        call(0)
        self.contexts = [*getattr(self, "contexts", []), context]
        return call

    def close(self) -> None:
        for context in getattr(self, "contexts", []):
            context.__exit__(None, None, None)

    def optional(self, name: str, make: Callable[[], Callable[[int], object]]) -> list[Candidate]:
        try:
            call = make()
            call(0)
        except Exception as error:  # noqa: BLE001 - whatever a peer lacks here is the reason
            self.left_out[name] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            return []
        return [Candidate(name, call)]

    def candidates(self) -> list[Candidate]:
        op = sy.ops.Attention(
            1, self.heads, self.kv_heads, self.length, self.head_dim, causal=self.causal, device="cuda" if ON_GPU else "host"
        )  # fmt: skip
        own = [
            self.random(heads, op.num_rows, self.head_dim)
            for heads in (self.heads, self.kv_heads, self.kv_heads)
        ]
        out = op.empty_outputs()
        self.op = op

        def ours(_: int) -> None:
            op(*own, out)

        ours(0)
        op.check()
        graph = capture(lambda: ours(0))

        def kernel(_: int) -> None:
            op.run_local()

        def flash() -> Callable[[int], object]:
            from flash_attn.cute import flash_attn_func

            q, k, v = (x.transpose(1, 2).contiguous() for x in (self.q, self.all_k, self.all_v))
            return lambda _: flash_attn_func(q, k, v, causal=self.causal)

        made = [
            Candidate("sdpa", lambda _: sdpa(self.q, self.all_k, self.all_v, self.causal)),
            Candidate("gather", self.gather),
            Candidate("nccl+sdpa", self.nccl_then_sdpa),
            *self.optional("a2a+sdpa", lambda: self.ulysses),
            *self.optional("fa4", flash),
            *self.optional("kernel", lambda: kernel),
            Candidate("ours", ours),
            Candidate("graph", lambda _: graph.replay()),
        ]
        for rotation in ("allgather", "alltoall"):
            made += self.optional(f"cp-{rotation}", lambda rotation=rotation: self.context_parallel(rotation))
        return made


def backend_of(shape: Shape) -> str:
    """The one that SDPA takes by itself."""
    if not ON_GPU:
        return "math on the host"
    choice = torch._fused_sdp_choice(
        shape.q, shape.all_k, shape.all_v, enable_gqa=shape.heads != shape.kv_heads
    )
    return torch.nn.attention.SDPBackend(choice).name


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", default="2048,4096,8192,16384,32768")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=0, help="default: as many as --heads")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", default="")
    options = parser.parse_args()
    if ON_GPU:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    else:
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
    table = []
    for length in map(int, options.lengths.split(",")):
        for causal in (False, True):
            shape = Shape(
                length if ON_GPU else length // 64,
                options.heads,
                options.kv_heads or options.heads,
                128 if ON_GPU else 16,
                causal,
            )
            rows = measure(shape.candidates(), options.rounds if ON_GPU else 1)
            times = {name: row["hidden_us"] for name, row in rows.items()}
            entry = {
                "S": shape.length,
                "H": shape.heads,
                "HKV": shape.kv_heads,
                "causal": causal,
                "kind": shape.op.kind,
                "ranks": shape.size,
                "sdpa_backend": backend_of(shape),
                "us": times,
                "vs_nccl": times["nccl+sdpa"] / times["graph"],
                "left_out": shape.left_out,
            }
            if "kernel" in times:
                entry["exposed"] = 1 - times["kernel"] / times["graph"]
            table.append(entry)
            shape.op.close()
            shape.close()
            if dist.get_rank() == 0:
                print(json.dumps(entry), flush=True)
                if options.json:
                    Path(options.json).write_text(
                        json.dumps({"bench": "attention", "table": table}, indent=1)
                    )
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
