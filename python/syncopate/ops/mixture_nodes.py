"""A mixture of experts over several nodes: on each node that node's program, for the tokens of all.

    rails   x, ids and weights go to the ranks of the same place in the other nodes, by torch's all-to-all
    node    its ranks' program (mixture.py): ids of experts that are elsewhere are -1, which add nothing
    rails   each node's sum of a token goes back to where it is from, likewise; nodes are added in their order, in fp32

What goes between nodes has a size that the host knows, whatever the routing: each token once to each other node, also where several of
its experts are, or none. What a node sums is rounded to x's dtype before nodes are added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from ..call import cache
from ..call.same_call import require_same_call
from ..group import Group
from .differentiable import wanted
from .mixture_handle import Handle


@dataclass(frozen=True)
class Rails:
    """Of a rank of a group over nodes: torch's group, that of its node, and its rail, the ranks of its place in all nodes."""

    whole: Any
    node: Any
    nodes: int
    number: int  # of this rank's node
    place: int  # within it

    def gathered(self, x: torch.Tensor) -> torch.Tensor:
        """[nodes * T, …] of x [T, …]."""
        return self._exchanged(x.contiguous().expand(self.nodes, *x.shape).flatten(0, 1))

    def returned(self, parts: torch.Tensor) -> torch.Tensor:
        """[nodes, T, …]: of what each node has made, [nodes * T, …], this rank's."""
        return self._exchanged(parts).view(self.nodes, -1, *parts.shape[1:])

    def summed(self, parts: torch.Tensor) -> torch.Tensor:
        """[T, …]: the sum of these, in fp32."""
        first, *others = self.returned(parts)
        total = first.float()
        for one in others:
            total = total + one.float()
        return total.to(parts.dtype)

    def _exchanged(self, parts: torch.Tensor) -> torch.Tensor:
        """Of [nodes * T, …] each rank of the rail gets its T rows. As bytes, which every backend moves, whatever the dtype."""
        own = parts.contiguous()
        made = torch.empty_like(own)
        each = own.numel() * own.element_size() // self.nodes
        places = dist.get_world_size(self.whole) // self.nodes
        sizes = [each if place == self.place else 0 for _ in range(self.nodes) for place in range(places)]
        dist.all_to_all_single(_bytes(made), _bytes(own), sizes, sizes, group=self.whole)
        return made


def _bytes(whole: torch.Tensor) -> torch.Tensor:
    return whole.view(-1).view(torch.uint8)


class _Gathered(torch.autograd.Function):
    """Of x and weights together: whichever of them asks for a gradient, all ranks send those of both."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weights: torch.Tensor, rails: Rails
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.rails = rails
        return rails.gathered(x), rails.gathered(weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, weights = (ctx.rails.summed(grad) for grad in grads)
        return x, weights, None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: torch.Tensor, rails: Rails) -> torch.Tensor:
        ctx.rails = rails
        return rails.summed(parts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.rails.gathered(grad), None


#: By torch's group, which is another one once a group of ours has recovered.
_rails: WeakKeyDictionary[Any, Rails] = WeakKeyDictionary()


def rails_of(group: Group) -> Rails:
    """Made on first use; collective over each node then. Raises ValueError for a group that is none of torch's."""
    whole = group.process_group
    if whole is None:
        raise ValueError(
            "moe: over several nodes it takes a torch process group, by which tokens go between them"
        )
    known = _rails.get(whole)
    if known is None:
        ranks, places = dist.get_process_group_ranks(whole), group.size // group.nodes
        number, place = divmod(group.rank, places)
        # By gloo: it is what the node's ranks meet by, and moves nothing. NCCL's might ask all ranks of the world for it.
        node = dist.new_group(
            ranks[number * places : (number + 1) * places], backend="gloo", use_local_synchronization=True
        )
        known = _rails[whole] = Rails(whole, node, group.nodes, number, place)
    return known


def _own_experts(ids: torch.Tensor, experts: int, rails: Rails) -> torch.Tensor:
    """Of all experts' ids those of the node's, -1 for the others', and for what names no expert still such a one."""
    own = experts // rails.nodes
    here = ids - rails.number * own
    named = (ids >= 0) & (ids < experts)
    kept = torch.where((here >= 0) & (here < own), here, -1)
    return torch.where(named | (ids == -1), kept, own).to(ids.dtype)


def _waits(group: Group) -> bool:
    """Whether a call has been carried out, or has failed, once it returns."""
    return group.device != "cuda"


def _on_all(call: Callable[[], Any], instead: Callable[[], Any], group: Group, rails: Rails) -> Any:
    """What a call of a node's program makes. Where it fails no other node is left waiting for what it would send: on the host all are told;
    on a GPU, where a call is not waited for, `instead` sends NaNs, and this rank raises."""
    made, error = None, None
    try:
        made = call()
    except Exception as failed:  # noqa: BLE001 - all hear of it
        error = failed
    if not _waits(group):
        if error is not None:
            instead()
            raise error
        return made
    said: list[Any] = [None] * group.size
    dist.all_gather_object(said, error and (isinstance(error, ValueError), str(error)), group=rails.whole)
    first = next((one for one in said if one), None)
    if first is None:
        return made
    if error is not None:
        raise error
    is_value, text = first
    raise (ValueError if is_value else RuntimeError)(text)


def _named(call: Callable[[], Any], experts: int, nodes: int) -> Any:
    """What it makes. A node's errors speak of the experts that it has: these, of all."""
    try:
        return call()
    except ValueError as error:
        of_node, of_all = (f"there are experts 0 to {count - 1}" for count in (experts // nodes, experts))
        if of_node not in str(error):
            raise
        raise type(error)(str(error).replace(of_node, of_all)) from error


def _require(routed: Sequence[torch.Tensor]) -> None:
    """Before anything is sent: what is wrong on this rank alone."""
    x, ids, weights, w1, w2 = routed
    own, inner, hidden = w1.shape[0], w2.shape[1], x.shape[1]
    routes = (x.shape[0], ids.shape[1])
    for name, one, shape, dtypes in (
        ("topk_ids", ids, routes, (torch.int32, torch.int64)),
        ("topk_weights", weights, routes, (torch.float32, x.dtype)),
        ("w1", w1, (own, hidden, 2 * inner), (x.dtype,)),
        ("w2", w2, (own, inner, hidden), (x.dtype,)),
    ):
        if tuple(one.shape) != shape or one.dtype not in dtypes or one.device != x.device:
            expected = f"{list(shape)} of {' or '.join(map(str, dtypes))} on {x.device}"
            raise ValueError(
                f"{name}: expected {expected}, got {list(one.shape)} of {one.dtype} on {one.device}"
            )


def _together(
    group: Group, what: tuple[Any, ...], x: torch.Tensor, topk: int, y_item: int, others: int = 0
) -> Rails:
    """Before the first call of its kind all ranks are asked for it, and the report says what goes between nodes. `others`: bytes of a token
    beside x that go with it."""
    rails = rails_of(group)
    tokens, hidden = x.shape

    def made() -> cache.Entry:
        from ..torch import report

        name, *extents = what
        require_same_call(name, group, (tokens, hidden, topk), f"{x.dtype} {extents}, over nodes")
        far = (rails.nodes - 1) * tokens
        there = far * (hidden * x.element_size() + others)
        back = far * hidden * y_item
        needed = 1 - (1 - 1 / rails.nodes) ** topk
        report.crosses(
            f"{name} T={tokens},topk={topk},H={hidden},ranks={group.size},nodes={rails.nodes}",
            f"rank {group.rank} sends {there / 2**20:.3g} MiB of tokens and {back / 2**20:.3g} MiB of sums a call, and receives as much, with "
            f"{rails.nodes - 1} ranks of other nodes, by torch.distributed before and behind the node's program; of tokens that are "
            f"routed evenly {needed:.0%} have an expert on a node",
        )
        return cache.Entry(group, reason="over nodes")

    key = (*what, tokens, hidden, topk, x.dtype, id(group), id(rails))
    cache.find("ops.moe_nodes", group.device == "cuda", key, made)
    return rails


def moe(
    of_node: Callable[..., torch.Tensor],
    routed: Sequence[torch.Tensor],
    extents: Sequence[int],
    group: Group,
    parallel: str,
    scales: Sequence[torch.Tensor] | None,
    out_dtype: torch.dtype | None,
    **options: Any,
) -> torch.Tensor:
    """sy.ops.moe, `of_node` itself, of x, ids, weights, w1 and w2, which have been looked at, and whose `extents` are (T, E, topk, H, F),
    over the nodes of `group`. `options`: its others."""
    x, ids, weights, w1, w2 = routed
    tokens, experts, topk, hidden, inner = extents
    _require(routed)
    y_dtype = out_dtype or (x.dtype if scales is None else torch.bfloat16)
    others = topk * (ids.element_size() + weights.element_size())
    scale_x = None if scales is None else scales[0]
    if scale_x is not None and scale_x.shape[:1] != (tokens,):
        raise ValueError(f"scales: expected one of x for each of {tokens} rows, got {list(scale_x.shape)}")
    if scale_x is not None:
        others += scale_x[0].numel() * scale_x.element_size()
    asking = wanted({"x": x, "topk_weights": weights, "w1": w1, "w2": w2})
    said = [f"{name}={value}" for name, value in options.items() if name in ("activation", "bound", "over")]
    what = (
        "moe",
        experts,
        inner,
        parallel,
        str(ids.dtype),
        str(weights.dtype),
        scales is not None,
        *said,
        *asking,
    )
    rails = _together(group, what, x, topk, y_dtype.itemsize, others)
    all_ids = rails.gathered(ids)
    if parallel == "expert":
        all_ids = _own_experts(all_ids, experts, rails)
    if scale_x is not None:
        options |= {"scales": [rails.gathered(scale_x), *scales[1:]], "out_dtype": out_dtype}
    if scales is None:
        all_x, all_weights = _Gathered.apply(x, weights, rails)
    else:
        all_x, all_weights = rails.gathered(x), rails.gathered(weights)

    def call() -> torch.Tensor:
        return of_node(all_x, all_ids, all_weights, w1, w2, rails.node, parallel=parallel, **options)

    def named() -> torch.Tensor:
        return _named(call, experts, rails.nodes) if parallel == "expert" else call()

    def instead() -> None:
        rails.summed(torch.full((rails.nodes * tokens, hidden), torch.nan, dtype=y_dtype, device=x.device))

    return _Summed.apply(_on_all(named, instead, group, rails), rails)


@dataclass
class HandleOverNodes(Handle):
    """As a Handle; `ids` to `sent` are of this node's ranks, each with the tokens of all nodes."""

    inner: Handle
    group: Group
    rails: Rails
    went: torch.Tensor  # [T, topk], on any node

    @property
    def taken(self) -> torch.Tensor:
        return self.went

    def check(self) -> None:
        _named(super().check, self.operator.experts * self.rails.nodes, self.rails.nodes)


def dispatch(
    of_node: Callable[..., tuple[torch.Tensor, Handle]],
    x: torch.Tensor,
    ids: torch.Tensor,
    experts: int,
    group: Group,
    **options: Any,
) -> tuple[torch.Tensor, Handle]:
    """sy.ops.dispatch, `of_node` itself, over the nodes of `group`."""
    if experts % group.size != 0:
        raise ValueError(f"moe: E={experts} experts are no multiple of {group.size} ranks")
    if ids.shape[0] != x.shape[0]:
        raise ValueError(f"topk_ids: expected [{x.shape[0]}, topk], got {list(ids.shape)}")
    rails = _together(
        group, ("dispatch", experts, str(ids.dtype)), x, ids.shape[1], 0, ids.shape[1] * ids.element_size()
    )
    own_ids = _own_experts(rails.gathered(ids), experts, rails)
    all_x = rails.gathered(x)

    def call() -> tuple[torch.Tensor, Handle]:
        return of_node(all_x, own_ids, experts // rails.nodes, rails.node, **options)

    def tell(taken: torch.Tensor, status: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return rails.returned(taken).any(0), rails.gathered(status[None]).amax(0)

    def instead() -> None:  # all that could be wrong
        tell(
            torch.zeros_like(own_ids, dtype=torch.bool), own_ids.new_full((2,), 2**31 - 1, dtype=torch.int32)
        )

    rows, inner = _on_all(lambda: _named(call, experts, rails.nodes), instead, group, rails)
    went, status = tell(inner.taken, inner.status[:2])
    return rows, HandleOverNodes(
        **vars(inner) | {"status": status}, inner=inner, group=group, rails=rails, went=went
    )


def combine(
    of_node: Callable[..., torch.Tensor],
    rows: torch.Tensor,
    weights: torch.Tensor | None,
    handle: HandleOverNodes,
) -> torch.Tensor:
    """sy.ops.combine, `of_node` itself, of what went over nodes."""
    rails = handle.rails
    if weights is not None and weights.shape != handle.went.shape:
        raise ValueError(f"topk_weights: expected {list(handle.went.shape)}, got {list(weights.shape)}")
    all_weights = None if weights is None else rails.gathered(weights)
    tokens, hidden = handle.went.shape[0], rows.shape[1]

    def instead() -> None:
        rails.summed(
            torch.full((rails.nodes * tokens, hidden), torch.nan, dtype=rows.dtype, device=rows.device)
        )

    return rails.summed(
        _on_all(lambda: of_node(rows, all_weights, handle.inner), instead, handle.group, rails)
    )
