"""Two products after each other on one GPU, act(x @ w1) @ w2, by several ways in one run, as CUDA graphs in turn:

    python bench/sync/chains.py [--models gpt3,llama] [--rows 512,768,…] [--json FILE]

    cublas     torch.mm, the activation, torch.mm
    stream     the plain Triton kernels of kernels.py in stream order
    pdl        the same, launched programmatically, with griddepcontrol.wait
    ours       the same as one program (sy.fuse without a plan): tiles wait for the tiles that they read

µs, median over rounds of the mean over replays; before it measures it compares every way with the first. The shapes are
those of CuSync's tables (CGO 2024): fp16, 8-way tensor parallel. GPT-3: M × 6144 × 12288, then M × 12288 × 6144.
LLaMA-65B without its gate: M × 2816 × 8192, then M × 8192 × 2816.
"""

import argparse
import json
import statistics
import sys
from pathlib import Path

import syncopate as sy
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

sys.path.insert(0, str(Path(__file__).resolve().parent))
import kernels  # noqa: E402

MODELS = {"gpt3": (12288, 6144), "llama": (8192, 2816)}  # hidden, feed-forward of one of eight GPUs
ROWS = [1, 16, 64, 128, 256, *range(512, 3073, 256)]


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


def tiling(m: int) -> tuple[int, int, int, int, int]:
    """BLOCK_M, BLOCK_N, BLOCK_K, warps, stages."""
    return (128, 256, 64, 8, 3) if m > 256 else (128, 128, 64, 8, 4) if m > 64 else (64, 128, 128, 4, 4)


class Chain:
    """The arrays of one shape, and the ways to run it."""

    def __init__(self, m: int, hidden: int, inner: int, programs: int, device: str = "cuda"):
        def made(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device=device, dtype=torch.float16) / shape[-1] ** 0.25

        self.m, self.programs = m, programs
        self.x, self.w1, self.w2 = made(m, hidden), made(inner, hidden), made(hidden, inner)
        self.h = torch.empty(m, inner, device=device, dtype=torch.float16)
        self.y = torch.empty(m, hidden, device=device, dtype=torch.float16)
        self.fused = sy.fuse(
            [kernels.product] * 2, bind=[{"a_desc": "X", "c_desc": "H"}, {"a_desc": "H", "c_desc": "Y"}]
        )

    def stages(self) -> list[tuple[tuple[int], dict]]:
        block_m, block_n, block_k, warps, depth = tiling(self.m)
        made = []
        for a, w, c, act in ((self.x, self.w1, self.h, "relu"), (self.h, self.w2, self.y, "")):
            (m, n), k = c.shape, w.shape[1]
            programs = min(self.programs, cdiv(m, block_m) * cdiv(n, block_n))
            arguments = {
                "a_desc": TensorDescriptor.from_tensor(a, [block_m, block_k]),
                "b_desc": TensorDescriptor.from_tensor(w, [block_n, block_k]),
                "c_desc": TensorDescriptor.from_tensor(c, [block_m, block_n]),
                "M": m, "N": n, "K": k, "BLOCK_M": block_m, "BLOCK_N": block_n, "BLOCK_K": block_k,
                "PROGRAMS": programs, "ACTIVATION": act, "num_warps": warps, "num_stages": depth,
            }  # fmt: skip
            made.append(((programs,), arguments))
        return made

    def cublas(self) -> None:
        torch.mm(self.x, self.w1.t(), out=self.h)
        self.h.relu_()
        torch.mm(self.h, self.w2.t(), out=self.y)

    def stream(self) -> None:
        for grid, arguments in self.stages():
            kernels.product[grid](**arguments)

    def pdl(self) -> None:
        for grid, arguments in self.stages():
            kernels.product[grid](**arguments, PDL=1, launch_pdl=True)

    def ours(self) -> None:
        self.fused.run([self.fused.call(i, grid, **a) for i, (grid, a) in enumerate(self.stages())])


def captured(run) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        run()
    return graph


def measure(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int, replays: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in graphs}
    for _ in range(rounds):
        for name, graph in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            graph.replay()
            begin.record()
            for _ in range(replays):
                graph.replay()
            end.record()
            end.synchronize()
            times[name].append(1000 * begin.elapsed_time(end) / replays)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--rows", default=",".join(map(str, ROWS)))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--replays", type=int, default=5)
    parser.add_argument("--json")
    given = parser.parse_args()
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    table = []
    for model in given.models.split(","):
        for m in map(int, given.rows.split(",")):
            chain = Chain(m, *MODELS[model], programs)
            graphs, reference = {}, None
            for name in ("cublas", "stream", "pdl", "ours"):
                chain.h.fill_(float("nan"))
                chain.y.fill_(float("nan"))
                graphs[name] = captured(getattr(chain, name))
                chain.h.fill_(float("nan"))
                graphs[name].replay()
                torch.cuda.synchronize()
                if reference is None:
                    reference = chain.y.clone()
                torch.testing.assert_close(
                    chain.y, reference, rtol=2e-2, atol=2e-2 * float(reference.abs().max())
                )
                if name == "stream":
                    plain = chain.y.clone()
                elif name == "ours" and not torch.equal(chain.y, plain):
                    raise SystemExit(f"{model}, M={m}: not the bits of the plain kernels")
            times = measure(graphs, given.rounds, given.replays)
            table.append({"model": model, "M": m, **{name: round(us, 1) for name, us in times.items()}})
            gain = 100 * (times["stream"] / times["ours"] - 1)
            print(
                f"{model:6} {m:5}",
                *(f"{n} {us:8.1f}" for n, us in times.items()),
                f"{gain:+.1f} %",
                flush=True,
            )
            chain.fused.check()
            chain.fused.close()
    if given.json:
        Path(given.json).write_text(json.dumps(table))


if __name__ == "__main__":
    main()
