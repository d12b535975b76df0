"""A small model whose attention is torch's function, and its losses where the sequence is sharded over ranks: of host_training.py and
of tests/gpu/check_attention_backward.py."""

from __future__ import annotations

import syncopate as sy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

D, HEADS, KV_HEADS, VOCAB = 16, 2, 1, 17


class Model(nn.Module):
    """One block of attention, by torch's function."""

    def __init__(self, d: int = D) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, 32), nn.Embedding(1 << 13, 32)
        self.d = d
        self.q, self.kv = nn.Linear(32, HEADS * d), nn.Linear(32, 2 * KV_HEADS * d)
        self.o, self.out = nn.Linear(HEADS * d, 32), nn.Linear(32, VOCAB)
        self.checkpointed = False

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        q = self.q(x).view(*x.shape[:2], HEADS, self.d).transpose(1, 2)
        k, v = self.kv(x).view(*x.shape[:2], 2 * KV_HEADS, self.d).transpose(1, 2).chunk(2, 1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).flatten(2))

    def forward(self, tokens: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(places)
        attended = checkpoint(self.attend, x, use_reentrant=False) if self.checkpointed else self.attend(x)
        return self.out(x + attended)


def step(model, tokens, places, targets, ranks=1) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The mean loss over all ranks' rows, and its gradients."""
    model.zero_grad()
    with torch.autocast(tokens.device.type, dtype=torch.bfloat16):
        logits = model(tokens, places)
    loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()) / ranks
    loss.backward()
    grads = [one.grad for one in model.parameters()]
    total = loss.detach().clone()
    if ranks > 1:
        for one in (total, *grads):
            dist.all_reduce(one)
    return total, [one.clone() for one in grads]


def batch(seed: int, length: int, device: str = "cpu") -> tuple[torch.Tensor, ...]:
    drawn = torch.randint(VOCAB, (1, length + 1), generator=torch.Generator().manual_seed(seed)).to(device)
    return drawn[:, :-1], torch.arange(length, device=device)[None], drawn[:, 1:]


def sharded(given, sharding: str):
    return [sy.shard_rows(one, dim=1, sharding=sharding) for one in given]


def losses(
    steps: int,
    rows: int,
    size: int,
    device: str,
    checkpointed: bool = False,
    compiled: bool = False,
    d: int = 64,
) -> tuple[list[float], list[float]]:
    """Of torch on the whole sequence, and of `rows` rows on each of `size` ranks, zigzag."""
    torch.manual_seed(0)
    whole, own = Model(d).to(device), Model(d).to(device)
    own.load_state_dict(whole.state_dict())
    own.checkpointed = checkpointed
    called = torch.compile(own) if compiled else own
    updates = [torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (whole, own)]
    found: tuple[list[float], list[float]] = [], []
    for turn in range(steps):
        given = batch(turn % 3, rows * size, device)
        found[0].append(float(step(whole, *given)[0]))
        with sy.context_parallel(sharding="zigzag"):
            found[1].append(float(step(called, *sharded(given, "zigzag"), size)[0]))
        for one in updates:
            one.step()
    return found
