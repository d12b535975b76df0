"""A causal language model of Hugging Face's transformers, by its own tensor parallelism, run several ways:

    eager, compiled, graphs                  without Syncopate; graphs: mode="reduce-overhead"
    compiled+syncopate, graphs+syncopate     the same with sy.inductor.enable(); nothing else changes

and prints each way's time of a forward pass, its error against eager's logits, and what was fused. Weights are random: a model
is a configuration here, so nothing is downloaded. It takes `pip install transformers accelerate`.

On GPUs:     torchrun --nproc-per-node 2 examples/transformers_tp.py --model llama --tokens 64,1024,4096
On the CPU:  TRITON_INTERPRET=1 torchrun --nproc-per-node 2 examples/transformers_tp.py --device cpu --tokens 16
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from transformers.distributed import DistributedConfig

WAYS = ("eager", "compiled", "compiled+syncopate", "graphs", "graphs+syncopate")

#: Hidden and inner size, heads and KV heads of a model of each family; 4 layers are kept.
FAMILIES = {
    "llama": ("LlamaConfig", 4096, 14336, 32, 8),
    "qwen2": ("Qwen2Config", 3584, 18944, 28, 4),
    "qwen3": ("Qwen3Config", 4096, 12288, 32, 8),
    "mistral": ("MistralConfig", 4096, 14336, 32, 8),
    "phi3": ("Phi3Config", 3072, 8192, 32, 32),
    "gemma": ("GemmaConfig", 3072, 24576, 16, 16),
    "gemma2": ("Gemma2Config", 3584, 14336, 16, 8),
    "olmo2": ("Olmo2Config", 4096, 11008, 32, 32),
    "glm4": ("Glm4Config", 4096, 13696, 32, 2),
    "granite": ("GraniteConfig", 4096, 12800, 32, 8),
    "starcoder2": ("Starcoder2Config", 4608, 18432, 36, 4),
    "cohere": ("CohereConfig", 4096, 14336, 32, 8),
}


def configured(family: str, small: bool) -> transformers.PretrainedConfig:
    name, hidden, inner, heads, kv_heads = FAMILIES[family]
    if small:
        hidden, inner, heads, kv_heads = 64, 96, 4, 2
    return getattr(transformers, name)(
        hidden_size=hidden,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        num_hidden_layers=2 if small else 4,
        vocab_size=128 if small else 32000,
        max_position_embeddings=128 if small else 8192,
        pad_token_id=0,
    )


def loaded(config: transformers.PretrainedConfig, dtype: torch.dtype, device: str) -> torch.nn.Module:
    """The model of `config`, of the same random weights on all ranks, each of which keeps its part. Only from_pretrained
    shards a model, so rank 0 writes the weights to a folder first."""
    folder = [tempfile.mkdtemp(prefix="transformers_tp_")] if dist.get_rank() == 0 else [""]
    dist.broadcast_object_list(folder)
    if dist.get_rank() == 0:
        torch.manual_seed(0)
        # There: torchrun's ranks have one thread each, which a billion numbers keep busy for a minute.
        with torch.device(device):
            transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder[0])
    dist.barrier()
    parallel = DistributedConfig(tp_plan="auto")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder[0], distributed_config=parallel, dtype=dtype
    ).eval()
    dist.barrier()
    if dist.get_rank() == 0:
        for file in Path(folder[0]).iterdir():
            file.unlink()
        Path(folder[0]).rmdir()
    return model


def timed(call: Callable[[], torch.Tensor], device: str, rounds: int) -> tuple[torch.Tensor, float]:
    """What `call` returns, and the median of its wall times in ms, all ranks beginning together."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    # Compiled, then captured, then replayed, until clocks and caches are warm.
    for _ in range(10 if device == "cuda" else 1):
        out = call().float().clone()
    times = []
    for _ in range(rounds):
        wait()
        dist.barrier()
        begin = time.perf_counter()
        call()
        wait()
        times.append((time.perf_counter() - begin) * 1e3)
    return out, statistics.median(times)


def run(model: torch.nn.Module, ids: torch.Tensor, way: str, rounds: int) -> tuple[torch.Tensor, float]:
    """The logits, and the time of a forward pass by `way`."""
    import syncopate as sy

    torch._dynamo.reset()
    if way.endswith("+syncopate"):
        sy.inductor.enable()
    try:
        forward: Any = model
        if way != "eager":
            forward = torch.compile(model, mode="reduce-overhead" if way.startswith("graphs") else None)
        with torch.no_grad():
            return timed(lambda: forward(input_ids=ids, use_cache=False).logits, ids.device.type, rounds)
    finally:
        sy.inductor.disable()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="llama", help=f"{', '.join(FAMILIES)}; several comma-separated")
    parser.add_argument("--tokens", default="64,1024,4096", help="of a forward pass, comma-separated")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    families, ways = options.model.split(","), options.ways.split(",")
    for given, known in ((families, FAMILIES), (ways, WAYS)):
        if wrong := [name for name in given if name not in known]:
            parser.error(f"{', '.join(wrong)}: expected some of {', '.join(known)}")

    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    import syncopate as sy

    small, first = options.device == "cpu", dist.get_rank() == 0
    wrong = []
    for family in families:
        dtype = torch.float32 if small else torch.bfloat16
        model = loaded(configured(family, small), dtype, options.device)
        for tokens in (int(n) for n in options.tokens.split(",")):
            torch.manual_seed(1)
            ids = torch.randint(1, model.config.vocab_size, (1, tokens), device=options.device)
            reference: torch.Tensor | None = None
            for way in ways:
                logits, ms = run(model, ids, way, options.rounds)
                reference = logits if reference is None else reference
                error = ((logits - reference).norm() / reference.norm()).item()
                if not error < (1e-4 if small else 3e-2):
                    wrong.append(f"{family} {tokens} {way}")
                if first:
                    print(
                        f"{family:10} {tokens:5} tokens  {way:20} {ms:8.2f} ms  error {error:.0e}", flush=True
                    )
        del model
    if first:
        print(sy.inductor.report())
        print("the logits are the same" if not wrong else f"the logits differ: {', '.join(wrong)}")
    dist.destroy_process_group()
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
