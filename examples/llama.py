"""A small model of LLaMA's blocks on a tensor-parallel mesh, trained three ways with the same losses:

    torch      torch's parallel styles, eager: collectives and products one after the other
    styles     Syncopate's parallel styles, eager
    compiled   torch's styles, torch.compile with sy.inductor.enable()

    context    with --context N: torch's styles on the rest of the mesh, and the sequence over N ranks of it, whose attention
               is Syncopate's (sy.context_parallel); the others then have it whole on each of these

On GPUs:     torchrun --nproc-per-node 2 examples/llama.py
             torchrun --nproc-per-node 4 examples/llama.py --context 2 --how torch,context
On the CPU:  TRITON_INTERPRET=1 torchrun --nproc-per-node 2 examples/llama.py --device cpu --small
"""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor import parallel as torch_styles


@dataclass
class Config:
    dim: int = 1024
    heads: int = 16
    kv_heads: int = 8
    hidden: int = 2816
    layers: int = 2
    vocab: int = 4096

    @property
    def head(self) -> int:
        return self.dim // self.heads


LLAMA_8B = Config(4096, 32, 8, 14336, 1)
LLAMA_70B = Config(8192, 64, 8, 28672, 1)
SMALL = Config(32, 4, 2, 48, 1, 32)


def rotated(x: torch.Tensor, first: int = 0, places: torch.Tensor | None = None) -> torch.Tensor:
    """x [B, S, heads, D] with rotary positions first, first + 1, …, or these."""
    half = x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    if places is None:
        places = torch.arange(first, first + x.shape[1], device=x.device)
    angles = torch.outer(places, rates)[None, :, None]
    a, b = x.float().split(half, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).type_as(x)


class Attention(nn.Module):
    places: torch.Tensor | None = None  # of the rows, where they are not one run
    dtype: torch.dtype | None = None  # of the attention itself, where it is not that of the model

    def __init__(self, c: Config) -> None:
        super().__init__()
        self.head = c.head
        self.wq = nn.Linear(c.dim, c.heads * c.head, bias=False)
        self.wk = nn.Linear(c.dim, c.kv_heads * c.head, bias=False)
        self.wv = nn.Linear(c.dim, c.kv_heads * c.head, bias=False)
        self.wo = nn.Linear(c.heads * c.head, c.dim, bias=False)

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.Tensor:
        """`cache`: keys and values [B, heads of this rank, length, D] before x; then x is one token a sequence."""
        q, k, v = self.wq(x), self.wk(x), self.wv(x)
        q, k, v = (t.view(*t.shape[:2], -1, self.head) for t in (q, k, v))
        first = 0 if cache is None else cache[0].shape[2]
        q, k, v = (
            t.transpose(1, 2) for t in (rotated(q, first, self.places), rotated(k, first, self.places), v)
        )
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        narrow = [t if self.dtype is None else t.to(self.dtype) for t in (q, k, v)]
        y = nn.functional.scaled_dot_product_attention(*narrow, is_causal=cache is None, enable_gqa=True)
        return self.wo(y.type_as(x).transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.w1, self.w3 = nn.Linear(c.dim, c.hidden, bias=False), nn.Linear(c.dim, c.hidden, bias=False)
        self.w2 = nn.Linear(c.hidden, c.dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(c.dim, eps=1e-5), nn.RMSNorm(c.dim, eps=1e-5)
        self.attention, self.feed_forward = Attention(c), FeedForward(c)

    def forward(
        self, x: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), cache)
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.tokens = nn.Embedding(c.vocab, c.dim)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.dim, eps=1e-5)
        self.output = nn.Linear(c.dim, c.vocab, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))


def block_plan(styles: ModuleType, sequence: bool = True) -> dict[str, torch_styles.ParallelStyle]:
    """Of a block, by torch's styles or by syncopate's. `sequence`: between the products each rank has its part of the sequence;
    else all of it."""
    if not sequence:
        columns, rows = styles.ColwiseParallel(), styles.RowwiseParallel()
        names = {"attention": ("wq", "wk", "wv"), "feed_forward": ("w1", "w3")}
        plan = {f"{parent}.{name}": columns for parent, linears in names.items() for name in linears}
        return plan | {"attention.wo": rows, "feed_forward.w2": rows}
    columns = styles.ColwiseParallel(input_layouts=Shard(1))
    plan = {
        "attention_norm": torch_styles.SequenceParallel(),
        "ffn_norm": torch_styles.SequenceParallel(),
        "attention.wo": styles.RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward.w2": styles.RowwiseParallel(output_layouts=Shard(1)),
    }
    for parent, linears in (("attention", ("wq", "wk", "wv")), ("feed_forward", ("w1", "w3"))):
        if styles is torch_styles:  # gathered once, before the parent
            layouts = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
            if parent == "attention":
                layouts = {name: (*given, None) for name, given in layouts.items()}
            plan[parent] = styles.PrepareModuleInput(**layouts)
            plan |= {f"{parent}.{name}": styles.ColwiseParallel() for name in linears}
        else:
            plan[parent] = styles.SharedInput(*linears)
            plan |= {f"{parent}.{name}": columns for name in linears}
    return plan


def parallelize(model: Llama, mesh: DeviceMesh, styles: ModuleType) -> Llama:
    torch_styles.parallelize_module(
        model,
        mesh,
        {
            "tokens": torch_styles.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
            "norm": torch_styles.SequenceParallel(),
            "output": styles.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    for block in model.blocks:
        torch_styles.parallelize_module(block, mesh, block_plan(styles))
    return model


def train(
    how: str,
    config: Config,
    mesh: DeviceMesh,
    steps: int,
    batch: tuple[int, int],
    context: DeviceMesh | None = None,
) -> list[float]:
    """The losses of so many steps on random tokens, the same ones for every `how`."""
    import syncopate as sy

    torch.manual_seed(0)
    device, dtype = mesh.device_type, torch.bfloat16 if mesh.device_type == "cuda" else torch.float32
    model = Llama(config).to(device, dtype)
    parallelize(model, mesh, sy.parallel if how == "styles" else torch_styles)
    if how == "compiled":
        sy.inductor.enable()
    run = torch.compile(model) if how == "compiled" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.randint(config.vocab, (batch[0], batch[1] + 1), device=device)
    given, targets, share = tokens[:, :-1], tokens[:, 1:], 1.0
    over = nullcontext()
    if how == "context":
        group, share = context.get_group(), 1 / context.size()
        places = torch.arange(batch[1], device=device)
        given, targets, places = (
            sy.shard_rows(t, group, dim=-1, sharding="zigzag") for t in (given, targets, places)
        )
    for block in model.blocks:
        block.attention.dtype = torch.bfloat16 if context is not None else None  # ours takes no fp32
        block.attention.places = places if how == "context" else None
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        if how == "context":
            over = sy.context_parallel(group, sharding="zigzag")
        with over:
            logits = run(given)
            loss = share * nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
            loss.backward()
        loss = loss.detach()
        if how == "context":  # of the other ranks' rows
            for parameter in model.parameters():
                grad = parameter.grad
                dist.all_reduce(grad.to_local() if isinstance(grad, DTensor) else grad, group=group)
            dist.all_reduce(loss, group=group)
        optimizer.step()
        losses.append(loss.item())
    if how == "compiled":
        sy.inductor.disable()
    return losses


def joined(device: str, context: int = 1) -> DeviceMesh:
    """The mesh of all ranks of torchrun, on a GPU each. Where there are fewer GPUs, ranks share them in turns, over gloo: NCCL
    takes no two ranks on one."""
    backend = "gloo"
    if device == "cuda":
        gpus = torch.cuda.device_count()
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % gpus)
        if int(os.environ["LOCAL_WORLD_SIZE"]) <= gpus:
            backend = "nccl"
        else:
            from syncopate.torch.gloo import gather_through_host

            gather_through_host()
    dist.init_process_group(backend)
    # Not init_device_mesh: with gloo it makes a group of NCCL's.
    if context == 1:
        return DeviceMesh.from_group(dist.group.WORLD, device)
    return DeviceMesh(
        device, torch.arange(dist.get_world_size()).view(context, -1), mesh_dim_names=("context", "tensor")
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    here = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device", default=here, choices=("cuda", "cpu"), help="default: a GPU, if there is one"
    )
    parser.add_argument("--small", action="store_true", help="a model of a few rows; on the CPU it always is")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--context", type=int, default=1, help="ranks that share a sequence")
    parser.add_argument("--how", default="torch,styles,compiled")
    options = parser.parse_args()
    mesh, context = joined(options.device, options.context), None
    if options.context > 1:
        mesh, context = mesh["tensor"], mesh["context"]
    import syncopate as sy

    config, batch = (SMALL, (2, 8)) if options.small or options.device == "cpu" else (Config(), (2, 512))
    losses = {}
    for how in options.how.split(","):
        losses[how] = train(how, config, mesh, options.steps, batch, context)
        if dist.get_rank() == 0:
            print(
                f"{how:9}",
                " ".join(f"{loss:.4f}" for loss in losses[how][:: max(1, options.steps // 5)]),
                flush=True,
            )
    first = next(iter(losses.values()))
    noise = 1e-3 if options.device == "cpu" and context is None else 3e-2
    same = all(
        abs(a - b) <= noise * abs(a) for one in losses.values() for a, b in zip(first, one, strict=True)
    )
    if dist.get_rank() == 0:
        print(sy.inductor.report())
        print("the losses are the same" if same else "the losses differ")
    sy.close()
    dist.destroy_process_group()
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
