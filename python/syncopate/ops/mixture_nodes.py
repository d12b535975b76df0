"""A mixture of experts over several nodes: on each node that node's program, for the tokens of all.

    rails   x, ids and weights go to the ranks of the same place in the other nodes, by torch's all-to-all
    node    its ranks' program (mixture.py): ids of experts that are elsewhere are -1, which add nothing
    rails   each node's sum of a token goes back to where it is from, likewise; nodes are added in their order, in fp32

What goes between nodes has a size that the host knows, whatever the routing: each token once to each other node, also where several of
its experts are, or none. What a node sums is rounded to x's dtype before nodes are added. Gradients are those of torch's ops
(torch/moe.py), which call what is here.

On the host, where a call is waited for, all ranks tell each other of each one before anything is sent: what is wrong on one of them
alone, and where their calls differ, is an error on all. On a GPU they do so at the first call of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.compiler import config

from .. import _syncopate
from ..call import cache
from ..call.arguments import DTYPE_NAMES
from ..call.same_call import require_same_call
from ..group import Group
from .mixture_handle import Handle
from .mixture_own import name_of, own_products
from .mixture_scales import kind_of_scales

MOST = 16  # kinds of calls that are known


@dataclass(frozen=True)
class Rails:
    """Of a rank of a group over nodes: its node's ranks, and its rail, the ranks of its place in all nodes."""

    group: Group
    node: Group
    number: int  # of this rank's node
    place: int  # within it

    @property
    def nodes(self) -> int:
        return self.group.size // self.node.size

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
        sizes = [
            each if place == self.place else 0 for _ in range(self.nodes) for place in range(self.node.size)
        ]
        dist.all_to_all_single(_bytes(made), _bytes(own), sizes, sizes, group=self.group.process_group)
        return made


def _bytes(whole: torch.Tensor) -> torch.Tensor:
    return whole.view(-1).view(torch.uint8)


def rails_of(group: Group) -> Rails:
    """Raises ValueError for a group that is none of torch's."""
    if group.process_group is None:
        raise ValueError(
            "moe: over several nodes it takes a torch process group, by which tokens go between them"
        )
    if group.rendezvous.memory[1]:  # of the whole group: its node's part may have none yet
        raise _syncopate.UsageError("the group's memory has been released: restore it first")
    _tell_caches_of_graphs(group)
    places = group.size // group.nodes
    number, place = divmod(group.rank, places)
    return Rails(group, group.part("node", number * places, places), number, place)


def _tell_caches_of_graphs(group: Group) -> None:
    """Torch's caches know a graph's groups by name alone: one that was traced for ranks of one node is not to be found for several."""
    tag = f" syncopate {group.size}/{group.nodes};"  # 40/2 is not in 40/20
    if tag not in config.cache_key_tag:
        config.cache_key_tag += tag


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


def tell_all(rails: Rails, mine: Any, error: Exception | None) -> list[Any]:
    """What all ranks say. The first one's error is raised on all of them; on this rank, where it has one, its own."""
    said: list[Any] = [None] * rails.group.size
    told = (mine, error and (isinstance(error, ValueError), str(error)))
    dist.all_gather_object(said, told, group=rails.group.process_group)
    if error is not None:
        raise error
    for _, failed in said:
        if failed is not None:
            is_value, text = failed
            raise (ValueError if is_value else RuntimeError)(text)
    return [one for one, _ in said]


def _on_all(call: Callable[[], Any], instead: Callable[[], Any], rails: Rails) -> Any:
    """What a call of a node's program makes. Where it fails no other node is left waiting for what it would send: on the host all are told;
    on a GPU, where a call is not waited for, `instead` sends NaNs, and this rank raises."""
    made, error = None, None
    try:
        made = call()
    except Exception as failed:  # noqa: BLE001 - all hear of it
        error = failed
    if _waits(rails.group):
        tell_all(rails, None, error)
    elif error is not None:
        instead()
        raise error
    return made


def _nans(rails: Rails, *like: tuple[Sequence[int], torch.dtype, torch.device]) -> None:
    """Sent in the place of sums of these shapes."""
    for (tokens, *others), dtype, device in like:
        rails.summed(torch.full((rails.nodes * tokens, *others), torch.nan, dtype=dtype, device=device))


def of_all_experts(call: Callable[[], Any], experts: int, nodes: int) -> Any:
    """What it makes. A node's errors speak of the experts that it has: these, of all."""
    try:
        return call()
    except ValueError as error:
        of_node, of_all = (f"there are experts 0 to {count - 1}" for count in (experts // nodes, experts))
        if of_node not in str(error):
            raise
        raise type(error)(str(error).replace(of_node, of_all)) from error


Expected = tuple[str, torch.Tensor, Sequence[int], Sequence[torch.dtype]]


def _require(device: torch.device, operands: Sequence[Expected]) -> None:
    """Raises ValueError for one that is not of that shape, or of one of those dtypes, there."""
    for name, one, shape, dtypes in operands:
        if tuple(one.shape) != tuple(shape) or one.dtype not in dtypes or one.device != device:
            expected = f"{list(shape)} of {' or '.join(map(str, dict.fromkeys(dtypes)))} on {device}"
            raise ValueError(
                f"{name}: expected {expected}, got {list(one.shape)} of {one.dtype} on {one.device}"
            )


_IDS = (torch.int32, torch.int64)


def agree(rails: Rails, name: str, look: Callable[[], str]) -> None:
    """Before anything is sent. `look`: what the call is, alike on all ranks; it raises for what is wrong here. On a GPU the ranks ask each
    other at the first call of a kind alone."""
    text, error = "", None
    try:
        text = look()
    except Exception as wrong:  # noqa: BLE001 - all hear of it
        error = wrong
    group = rails.group
    if _waits(group):
        said = tell_all(rails, f"{name} {text}", error)
        if len(set(said)) > 1:
            calls = "; ".join(
                f"rank{'s' * (said.count(one) > 1)} {', '.join(str(rank) for rank, other in enumerate(said) if other == one)}: {one}"
                for one in dict.fromkeys(said)
            )
            raise ValueError(f"syncopate.{name}: the ranks' calls differ: {calls}")
        return
    if error is not None:
        raise error

    def made() -> cache.Entry:
        require_same_call(name, group, (), text)
        return cache.Entry(group, reason="over nodes")

    cache.find("ops.moe_nodes", group.device == "cuda", (f"{name} over nodes", text, id(group)), made, MOST)


def _report(rails: Rails, name: str, x: torch.Tensor, topk: int, y_item: int, others: int) -> None:
    """What goes between nodes. `others`: bytes of a token beside x that go with it."""
    from ..torch import report

    (tokens, hidden), group = x.shape, rails.group
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


def _options_told(options: dict[str, Any]) -> str:
    told = dict(options)
    if "products" in told:
        told["products"] = "+".join(map(name_of, told["products"]))
    if "strategy" in told:
        told["strategy"] = told["strategy"].to_json()
    return ",".join(f"{name}={value}" for name, value in told.items())


def moe(
    of_node: Callable[..., tuple[Any, ...]],
    extents_of: Callable[..., tuple[int, ...]],
    routed: Sequence[torch.Tensor],
    group: Group,
    parallel: str,
    scales: Sequence[torch.Tensor] | None = None,
    out_dtype: torch.dtype | None = None,
    part: str = "whole",
    **options: Any,
) -> tuple[Any, ...]:
    """y of x, ids, weights, w1 and w2 over the nodes of `group`; whatever else `of_node` makes of all ranks' x, of their ids of the node's
    experts, their weights, w1, w2, the node's Group, and scales; and these ids and weights. `options`: as of sy.ops.moe."""
    x, ids, weights, w1, w2 = routed
    rails = rails_of(group)
    is_fp8 = x.dtype == torch.float8_e4m3fn
    y_dtype = out_dtype or (torch.bfloat16 if is_fp8 else x.dtype)

    def look() -> str:
        tokens, experts, topk, hidden, inner = extents_of(x, ids, w1, w2, group.size, parallel)
        own, columns = w1.shape[0], w2.shape[1]
        _require(x.device, (
            ("topk_ids", ids, (tokens, topk), _IDS), ("topk_weights", weights, (tokens, topk), (torch.float32, y_dtype)),
            ("w1", w1, (own, hidden, 2 * columns), (x.dtype,)), ("w2", w2, (own, columns, hidden), (x.dtype,)),
        ))  # fmt: skip
        kind = ""
        own_products(options.get("products"), options["activation"], part, scales)
        if is_fp8:
            kind = f",scales={kind_of_scales(scales, tokens, own, hidden, columns)}"
            names = ("scale_x", "scale_w1", "scale_w2")
            _require(
                x.device,
                [(n, one, one.shape, (torch.float32,)) for n, one in zip(names, scales, strict=True)],
            )
        extents = f"T={tokens},E={experts},topk={topk},H={hidden},F={inner},parallel={parallel},part={part}"
        dtypes = f"{x.dtype},ids={ids.dtype},weights={weights.dtype}{kind},out={y_dtype}"
        return f"{extents},{dtypes},{_options_told(options)}"

    agree(rails, "moe", look)
    tokens, experts, topk, hidden, _ = extents_of(x, ids, w1, w2, group.size, parallel)
    others = topk * (ids.element_size() + weights.element_size())
    all_ids = rails.gathered(ids)
    if parallel == "expert":
        all_ids = _own_experts(all_ids, experts, rails)
    all_scales = scales
    if scales is not None:
        others += scales[0][0].numel() * scales[0].element_size()
        all_scales = [rails.gathered(scales[0]), *scales[1:]]
    _report(rails, "moe", x, topk, y_dtype.itemsize, others)
    all_x, all_weights = rails.gathered(x), rails.gathered(weights)

    def call() -> tuple[Any, ...]:
        return of_node(all_x, all_ids, all_weights, w1, w2, rails.node, all_scales)

    def named() -> tuple[Any, ...]:
        return of_all_experts(call, experts, rails.nodes) if parallel == "expert" else call()

    y, *kept = _on_all(named, lambda: _nans(rails, ((tokens, hidden), y_dtype, x.device)), rails)
    return rails.summed(y), *kept, all_ids, all_weights


def no_tokens(group: Group, name: str, topk: int) -> None:
    """Where T is 0 here, it is on all ranks."""
    if _waits(group):
        agree(rails_of(group), name, lambda: f"T=0,topk={topk}")


def backward(
    of_node: Callable[[torch.Tensor, Group], tuple[torch.Tensor, ...]],
    grad: torch.Tensor,
    weights: torch.Tensor,
    group: Group,
) -> tuple[torch.Tensor, ...]:
    """Gradients of x, weights, w1 and w2 of a call whose y has the gradient `grad`: `of_node` makes, of all ranks' gradients, a node's."""
    rails = rails_of(group)
    if _waits(group):
        agree(
            rails,
            "moe_backward",
            lambda: f"{list(grad.shape)} {grad.dtype} {list(weights.shape)} {weights.dtype}",
        )
    all_grad = rails.gathered(grad)
    sums = ((grad.shape, grad.dtype, grad.device), (weights.shape, weights.dtype, weights.device))
    dx, dweights, dw1, dw2 = _on_all(
        lambda: of_node(all_grad, rails.node), lambda: _nans(rails, *sums), rails
    )
    return rails.summed(dx), rails.summed(dweights), dw1, dw2


@dataclass
class HandleOverNodes(Handle):
    """As a Handle; `ids` to `sent` are of this node's ranks, each with the tokens of all nodes."""

    inner: Handle
    rails: Rails
    went: torch.Tensor  # [T, topk], on any node

    @property
    def taken(self) -> torch.Tensor:
        return self.went

    def check(self) -> None:
        of_all_experts(super().check, self.operator.experts * self.rails.nodes, self.rails.nodes)


def dispatch(
    of_node: Callable[..., tuple[torch.Tensor, Handle]],
    x: torch.Tensor,
    ids: torch.Tensor,
    experts: int,
    group: Group,
    **options: Any,
) -> tuple[torch.Tensor, Handle]:
    """sy.ops.dispatch, `of_node` itself, over the nodes of `group`."""
    rails = rails_of(group)

    def look() -> str:
        (tokens, hidden), topk = x.shape, ids.shape[1]
        if experts % group.size != 0 or experts < 1:
            raise ValueError(f"moe: E={experts} experts are no multiple of {group.size} ranks")
        if tokens < 1:
            raise ValueError("x: expected at least one token on each rank")
        _require(x.device, (("x", x, x.shape, tuple(DTYPE_NAMES)), ("topk_ids", ids, (tokens, topk), _IDS)))
        told = f"{x.dtype},ids={ids.dtype},{_options_told(options)}"
        return f"T={tokens},E={experts},topk={topk},H={hidden},{told}"

    agree(rails, "dispatch", look)
    _report(rails, "dispatch", x, ids.shape[1], 0, ids.shape[1] * ids.element_size())
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

    rows, inner = _on_all(lambda: of_all_experts(call, experts, rails.nodes), instead, rails)
    went, status = tell(inner.taken, inner.status[:2])
    return rows, HandleOverNodes(**vars(inner) | {"status": status}, inner=inner, rails=rails, went=went)


def combine(
    of_node: Callable[..., torch.Tensor],
    rows: torch.Tensor,
    weights: torch.Tensor | None,
    handle: HandleOverNodes,
) -> torch.Tensor:
    """sy.ops.combine, `of_node` itself, of what went over nodes."""
    rails = handle.rails
    (tokens, topk), hidden, device = handle.went.shape, handle.operator.hidden, handle.went.device

    def look() -> str:
        expected: list[Expected] = [("rows", rows, (len(handle.origin), hidden), tuple(DTYPE_NAMES))]
        if weights is not None:
            expected.append(("topk_weights", weights, (tokens, topk), (torch.float32, rows.dtype)))
        _require(device, expected)
        return f"T={tokens},topk={topk},H={hidden},{rows.dtype},weights={None if weights is None else weights.dtype}"

    agree(rails, "combine", look)
    all_weights = None if weights is None else rails.gathered(weights)
    made = _on_all(
        lambda: of_node(rows, all_weights, handle.inner),
        lambda: _nans(rails, ((tokens, hidden), rows.dtype, device)),
        rails,
    )
    return rails.summed(made)
