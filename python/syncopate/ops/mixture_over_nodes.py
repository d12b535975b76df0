"""The operator of a mixture over several nodes: its node's own operator, for the tokens of all nodes and the node's share of the experts,
between torch's collectives (mixture_nodes.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .. import _syncopate
from ..group import FailedTogether
from . import mixture_nodes

if TYPE_CHECKING:
    from .mixture import Moe


def share_of_node(parallel: str, experts: int, inner: int, ranks: int, nodes: int) -> tuple[int, int]:
    """Experts and F of a node's program. Raises ValueError where not all ranks have as much."""
    if parallel == "tensor":
        if inner % ranks or inner < 1:
            raise ValueError(
                f"moe: F={inner} columns of tensor parallel experts are no multiple of {ranks} ranks"
            )
        return experts, inner // nodes
    if experts % ranks or experts < 1:
        raise ValueError(f"moe: E={experts} experts are no multiple of {ranks} ranks")
    return experts // nodes, inner


class OverNodes:
    """Of `operator`, whose extents and options are set, what stands for its program: `options` are those of its node's operator."""

    def __init__(self, operator: Moe, inner: int, what: str, **options: Any) -> None:
        of = operator
        if of.part != "whole":
            raise ValueError(
                f"moe: part={of.part!r} over nodes: call sy.ops.{'moe' if of.part == 'kept' else of.part}"
            )
        self.operator, self.what = operator, what
        self.rails = rails = mixture_nodes.rails_of(of.group)
        experts, inner = share_of_node(of.parallel, of.experts, inner, of.group.size, rails.nodes)
        extents = (of.tokens * rails.nodes, experts, of.topk, of.hidden, inner, of.dtype, rails.node)
        self.of_node: Moe | None = None

        def make() -> None:
            self.of_node = type(of)(*extents, **options)

        with of.group.calling(what):
            self._on_all("set up", make)

    def _on_all(self, what: str, work: Callable[[], None]) -> None:
        """Where it fails on a rank all hear of it. Collective."""
        try:
            self.operator.group.together(what, work)
        except FailedTogether as failed:
            if failed.__cause__ is not None:
                raise failed.__cause__ from None
            raise _syncopate.MachineError(f"moe: {failed}") from None

    def run(
        self,
        check: Callable[[], None],
        routed: Sequence[torch.Tensor],
        scales: Sequence[torch.Tensor] | None = None,
    ) -> tuple[torch.Tensor, None, tuple[torch.Tensor, ...]]:
        """`check`: raises for what is wrong with the operands, which all hear of."""
        of = self.operator

        def extents_of(*_: Any) -> tuple[int, ...]:
            check()
            return of.tokens, of.experts, of.topk, of.hidden, of.inner_of_all

        def of_node(*given: Any) -> tuple[torch.Tensor]:
            *all_routed, _, of_all = given
            return (self.of_node.run(*all_routed, *(() if of_all is None else (of_all,)))[0],)

        options: dict[str, Any] = {"activation": of.activation, "bound": of.bound, "over": of.over}
        if of.products is not None:
            options["products"] = of.products
        out_dtype = of.out_dtype if scales is not None else None
        y, *_ = mixture_nodes.moe(
            of_node, extents_of, routed, of.group, of.parallel, scales, out_dtype, **options
        )
        return y, None, ()

    def check(self) -> None:
        """Of all nodes' calls. Collective."""
        of, error = self.operator, None
        nodes = self.rails.nodes if of.parallel == "expert" else 1
        try:
            mixture_nodes.of_all_experts(self.of_node.check, of.experts, nodes)
        except Exception as failed:  # noqa: BLE001 - all hear of it
            error = failed
        mixture_nodes.tell_all(self.rails, None, error)
