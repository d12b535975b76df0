"""A block of LLaMA-8B and -70B on a tensor-parallel group: attention, SwiGLU, RMS norms. Start with torchrun, one
process a GPU:

    torchrun --nproc-per-node 2 bench/layer/layer.py [--models 8B,70B] [--ways …] [--json FILE] [--losses 50]

    eager      torch's styles: NCCL and cuBLAS          compiled   torch.compile of that
    styles     syncopate.torch.parallel, eager          async-tp   compiled, with torch's asynchronous tensor parallelism
                                                        ours       compiled, with sy.inductor

    forward, train    B = 1, S = M rows, sequence parallel; train is forward and backward
    decode            one token each of so many sequences with 1024 tokens behind them, tensor parallel (all-reduces)

Each way is a CUDA graph where it can be captured (marked *), else it runs eagerly. hidden: the host's time is hidden behind a
sleeping device, visible: it is not. All ways start from the same weights; before they are timed, each one's result is compared
with eager's. --losses trains each for so many steps and compares the losses.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "python")]

import syncopate as sy  # noqa: E402
from llama import LLAMA_8B, LLAMA_70B, SMALL, Block, Config, block_plan, joined  # noqa: E402
from syncopate.bench.measure import Candidate, measure  # noqa: E402
from torch.distributed.tensor import parallel as torch_styles  # noqa: E402

MODELS = {"8B": LLAMA_8B, "70B": LLAMA_70B, "small": SMALL}
WAYS = ("eager", "styles", "compiled", "async-tp", "ours")
COMPILED = ("compiled", "async-tp", "ours")
OURS = ("styles", "ours")
BEHIND = 1024  # tokens in the caches of a decode
TOLERANCE = 2e-2  # of the largest value: bf16, and other orders of additions


def compiled(block: torch.nn.Module, way: str) -> Callable[..., torch.Tensor]:
    """By options, not by torch's global configuration: Dynamo takes the same graph for blocks that are compiled alike."""
    if way == "async-tp":
        return torch.compile(block, options={"_micro_pipeline_tp": True})
    if way == "ours":
        return torch.compile(block, options=sy.inductor.options())
    return torch.compile(block) if way == "compiled" else block


def forget_graphs() -> None:
    """Of the cases before: Dynamo keeps a few for each function, and beyond runs it eagerly. Here that is an error."""
    torch._dynamo.reset()
    torch._dynamo.config.fail_on_recompile_limit_hit = True


def graphs_made() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def require_compiled(way: str, before: int, what: str) -> None:
    """Dynamo may run a function eagerly, wholly or where its graph breaks, and say nothing: then no compiled way is
    measured."""
    if way not in COMPILED:
        return
    if graphs_made() == before:
        raise SystemExit(f"{what} {way}: nothing was compiled, it would run eagerly")
    if breaks := torch._dynamo.utils.counters["graph_break"]:
        raise SystemExit(f"{what} {way}: the graph breaks: {'; '.join(breaks)}")


class Way:
    """A block that runs one way. `sequence`: sequence parallel; else it decodes."""

    def __init__(self, way: str, c: Config, mesh: DeviceMesh, dtype: torch.dtype, sequence: bool) -> None:
        self.mesh = mesh
        torch.manual_seed(0)
        with torch.device(mesh.device_type):
            self.block = Block(c).to(dtype=dtype)
        styles = sy.parallel if way == "styles" else torch_styles
        # All ranks have made the same weights: nothing is sent.
        torch_styles.parallelize_module(self.block, mesh, block_plan(styles, sequence), src_data_rank=None)
        self.run = compiled(self.block, way)

    def forward(self, *inputs: torch.Tensor) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            with torch.no_grad():
                return self.run(*inputs)

        return call

    def train(self, x: torch.Tensor, g: torch.Tensor) -> Callable[[], torch.Tensor]:
        def call() -> torch.Tensor:
            self.block.zero_grad(set_to_none=False)
            x.grad = None
            y = self.run(x)
            y.backward(g)
            return x.grad

        return call

    def losses(self, x: torch.Tensor, target: torch.Tensor, steps: int) -> list[float]:
        # Steps that bf16 can see, of about one unit in the last place of a weight. By ten times larger ones the block
        # goes its own way in 50 steps, whatever the difference.
        optimizer, made = torch.optim.Adam(self.block.parameters(), lr=1e-4), []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = (self.run(x).float() - target).square().mean()
            loss.backward()
            optimizer.step()
            total = loss.detach().clone()
            dist.all_reduce(total)
            made.append(total.item() / self.mesh.size())
        return made


def captured(call: Callable[[], torch.Tensor]) -> tuple[Callable[[], object], bool]:
    """A replay of it, and whether there is one. The caller keeps `call`: a graph does not keep the weights that it
    reads, and the next capture gives freed memory back to the driver."""
    if dist.get_backend() != "nccl":  # on the CPU, or ranks that share a GPU: gloo sends from the host
        return call, False
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(side):
            for _ in range(3):
                call()
            # thread_local: NCCL's watchdog thread may query its events meanwhile.
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                call()
    except RuntimeError as error:
        if dist.get_rank() == 0:
            print(f"not captured: {str(error).splitlines()[0]}", file=sys.stderr)
        torch.cuda.synchronize()
        return call, False
    torch.cuda.current_stream().wait_stream(side)
    return graph.replay, True


def cases(c: Config, options: argparse.Namespace, mesh: DeviceMesh, dtype: torch.dtype) -> Iterator[tuple]:
    """(name, rows, sequence parallel, how a way is called)."""
    device, size = mesh.device_type, mesh.size()

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=device, dtype=dtype)

    for rows in map(int, filter(None, options.rows.split(","))):
        x, g = random(1, rows // size, c.dim).requires_grad_(), random(1, rows // size, c.dim) / rows
        yield "forward", rows, True, lambda way, x=x: way.forward(x.detach())
        yield "train", rows, True, lambda way, x=x, g=g: way.train(x, g)
    for tokens in map(int, filter(None, options.tokens.split(","))):
        torch.manual_seed(tokens)  # the same x on all ranks
        x = random(tokens, 1, c.dim)
        heads = c.kv_heads // size
        cache = random(tokens, heads, options.behind, c.head), random(tokens, heads, options.behind, c.head)
        yield "decode", tokens, False, lambda way, x=x, cache=cache: way.forward(x, cache)


def measured(model: str, options: argparse.Namespace, mesh: DeviceMesh, dtype: torch.dtype) -> list[dict]:
    c, made = MODELS[model], []
    for name, rows, sequence, call_of in cases(c, options, mesh, dtype):
        forget_graphs()
        candidates, exact = [], None
        for way in options.ways.split(","):
            built, before = Way(way, c, mesh, dtype, sequence), graphs_made()
            call = call_of(built)
            y = call().detach().clone()
            require_compiled(way, before, f"{model} {name} {rows}")
            exact = y if exact is None else exact
            error = ((y - exact).abs().max() / exact.abs().max()).item()
            if error > TOLERANCE:
                raise SystemExit(
                    f"{model} {name} {rows} {way}: differs from {options.ways.split(',')[0]} by {error:.1e}"
                )
            replay, graph = captured(call)
            candidates.append(Candidate(way + "*" * graph, lambda i, replay=replay, call=call: replay()))
        before = graphs_made()
        times = measure(candidates, options.rounds)
        if graphs_made() != before:
            raise SystemExit(
                f"{model} {name} {rows}: {graphs_made() - before} graphs were compiled while it was timed"
            )
        made.append({"model": model, "case": name, "rows": rows, "ranks": mesh.size(), "us": times})
        if dist.get_rank() == 0:
            row = "  ".join(f"{way} {t['hidden_us']:.0f}" for way, t in times.items())
            print(f"{model:5} {name:8} {rows:6}  {row}", flush=True)
    return made


def compared_losses(
    options: argparse.Namespace, mesh: DeviceMesh, dtype: torch.dtype
) -> dict[str, list[float]]:
    c = MODELS[options.models.split(",")[0]]
    rows = int(options.rows.split(",")[0]) // mesh.size()
    torch.manual_seed(dist.get_rank() + 1)
    x = torch.randn(1, rows, c.dim, device=mesh.device_type, dtype=dtype)
    target = torch.randn(1, rows, c.dim, device=mesh.device_type)
    made = {}
    for way in options.ways.split(","):
        forget_graphs()
        before = graphs_made()
        made[way] = Way(way, c, mesh, dtype, True).losses(x, target, options.losses)
        require_compiled(way, before, "losses")
    first = next(iter(made.values()))
    for way, losses in made.items():
        apart = max(abs(a - b) / abs(a) for a, b in zip(first, losses, strict=True))
        if dist.get_rank() == 0:
            print(f"losses {way:9} {losses[0]:.4f} … {losses[-1]:.4f}  at most {apart:.1e} apart", flush=True)
        if apart > TOLERANCE and way in OURS:
            raise SystemExit(f"{way}: losses differ by {apart:.1e}")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="8B,70B")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--rows", default="4096,8192")
    parser.add_argument("--tokens", default="16,64,256")
    parser.add_argument("--behind", type=int, default=BEHIND)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--losses", type=int, default=0, metavar="STEPS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = joined(device)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    made = {"torch": torch.__version__, "blocks": []}
    for model in options.models.split(","):
        made["blocks"] += measured(model, options, mesh, dtype)
    if options.losses:
        made["losses"] = compared_losses(options, mesh, dtype)
    if dist.get_rank() == 0:
        print(sy.inductor.report())
        if options.json:
            options.json.write_text(json.dumps(made, indent=1) + "\n")
    sy.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    from syncopate.command.standard_output import answering

    with answering():
        main()
