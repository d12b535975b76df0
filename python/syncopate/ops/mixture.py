"""A mixture of experts, expert parallel, for one shape (mixture_function.py calls it).

How many rows an expert gets only the device knows: it counts, and makes the tables that the kernels follow (kernels/moe.py).
The host reads none of it, so that a call can be captured, and replayed with other routings.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch

from .. import _syncopate
from ..call.arguments import DTYPE_NAMES
from ..call.in_graphs import refuse_tracing, runs_whole
from ..call.prepared import Prepared, timing
from ..group import FailedTogether, Group
from ..kernels import gluon_moe_call
from ..strategy import PROGRAMS_ON_HOST, Strategy, Tiling
from ..strategy.failures import warn_of_default
from . import mixture_unfused
from .mixture_handle import Handle
from .mixture_kept import keep_rows
from .mixture_over_nodes import OverNodes, share_of_node
from .mixture_own import name_of, own_products
from .mixture_spec import asked_for, completed, require_bound, spec_of, strategy_of, tuned
from .mixture_stages import Stages
from .operator import is_capturing, members_of

ACTIVATIONS = ("silu", "relu", "")
OVER = ("error", "drop")


def require_options(activation: str, bound: int | None, over: str) -> None:
    """Raises ValueError, naming it, for what is none."""
    if activation not in ACTIVATIONS:
        raise ValueError(
            f"activation: expected one of {', '.join(map(repr, ACTIVATIONS))}, got {activation!r}"
        )
    if over not in OVER:
        raise ValueError(f"over: expected {' or '.join(map(repr, OVER))}, got {over!r}")
    require_bound(bound)


class Moe(Stages):
    """One shape of it. Collective: all ranks make and call it alike. `group`: a torch process group (default: the world), or a
    Group. `part`: "whole", or "kept" for a backward pass, or "dispatch" or "combine" alone. `bound`: rows that come to a rank at
    most; None: all that could, ranks * T * topk. `over`: what becomes of more: an "error" on all ranks, or their routes add nothing
    ("drop"); nothing is ever written beyond. Of a GPU `check` tells it, of all calls, and `Handle.check` of one.
    Over nodes its program is each node's (mixture_nodes.py), and `part` "whole". `tiling` and `programs`: of the products, or a `strategy`; else what tuning has found, or what is chosen. Where what it has found
    cannot be set up, or fails in its first call, on any rank, all take what is chosen, with a warning. `products`: as of sy.ops.moe."""

    name: ClassVar[str] = "moe"

    def __init__(
        self,
        tokens: int,
        experts: int,
        topk: int,
        hidden: int,
        inner: int,
        dtype: torch.dtype,
        group: Group | Any | None = None,
        *,
        activation: str = "silu",
        bound: int | None = None,
        over: str = "error",
        part: str = "whole",
        weighted: bool = True,
        out_dtype: torch.dtype | None = None,
        tiling: Tiling | None = None,
        programs: int | None = None,
        strategy: Strategy | None = None,
        products: tuple[Any, Any] | None = None,
        deadline: float = 30.0,
        host_delay: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.products = own_products(products, activation, part, self.scales)
        require_options(activation, bound, over)
        if tokens < 1:
            raise ValueError("x: expected at least one token on each rank")
        if dtype not in DTYPE_NAMES:
            raise ValueError(f"x: dtype {dtype} is none that is known")
        group = members_of(group)
        self.tokens, self.experts, self.topk, self.hidden = tokens, experts, topk, hidden
        self.dtype, self.group, self.part, self.over = dtype, group, part, over
        self.out_dtype = out_dtype or dtype
        self.activation, self.weighted = activation, weighted
        self.own_experts, self.inner = self._shares(experts, inner, group.size)
        self.inner_of_all = inner
        most = group.size * self.routes
        self.bound = most if bound is None else min(bound, most)
        self.device = torch.device("cuda", group.ordinal) if group.device == "cuda" else torch.device("cpu")
        self.spec = spec_of(
            tokens, experts, topk, hidden, inner, dtype, group.size, bound, part, self.parallel,
            self.scales, self.out_dtype, group.nodes,
        )  # fmt: skip
        self._what = f"moe {self.spec.partition(':')[2]},activation={activation},over={over}"
        if products:
            self._what += "".join(f",{name_of(one)}" for one in products)
        #: Over nodes what carries the operator out, which then has no program of its own.
        self.over_nodes: OverNodes | None = None
        if group.nodes > 1:
            self.prepared, self.artifact, self.heap = None, None, {}
            options = {"activation": activation, "bound": bound, "over": over, "weighted": weighted, "tiling": tiling,
                       "programs": programs, "strategy": strategy, "products": products, "deadline": deadline,
                       "host_delay": host_delay, "seed": seed, **self._options_of_kind()}  # fmt: skip
            self.over_nodes = OverNodes(self, inner, self._what, **options)
            of_node = self.over_nodes.of_node
            self.strategy, self.tiling, self.programs = of_node.strategy, of_node.tiling, of_node.programs
            self.rows = of_node.rows
            return
        self._names = self.stages[part]
        self._timing = timing(deadline, host_delay, seed)
        self._usual = asked_for(self.spec, group, strategy, tiling, programs, self._what)
        found = None
        if strategy is None and tiling is None and part == "whole" and products is None:
            # Other parts of a routing lie as their tiles say: what is found for the whole is not for them.
            with group.calling(self._what):
                found = tuned(self.spec, group)
        if found is not None and programs is not None:
            found = replace(found, programs=programs)
        with torch.inference_mode(False):  # calls in and out of it add to this
            self._seen = torch.zeros(4, dtype=torch.int32, device=self.device)
        self._ended: list[Prepared] = []  # graphs may replay them, which then end at once
        self._left: list[Prepared] = []  # by what was found and failed
        self.prepared: Prepared | None = None
        self._on_trial = found is not None and found.fused
        if not self._on_trial:
            self._take(self._usual if found is None else found)
            return
        self.strategy = found
        with group.calling(self._what):
            self._together("made", lambda: self._take(completed(self.spec, group, found)))

    def _options_of_kind(self) -> dict[str, Any]:
        """Those that operators of this class take beside Moe's."""
        return {}

    def _together(self, what: str, work: Callable[[], Any]) -> bool:
        """Work by what tuning found. Where it fails on any rank, all take what is chosen without it: False."""
        try:
            self.group.together(what, work)
            return True
        except FailedTogether as error:
            warn_of_default(self.spec, self.strategy.name, error, stacklevel=4)
        self._on_trial = False
        if self.prepared is not None:
            self._left.append(self.prepared)
        self._seen.zero_()
        self._take(self._usual)
        return False

    def _take(self, strategy: Strategy) -> None:
        """Sets it up so. Collective."""
        self.strategy, self.programs, self.prepared = strategy, strategy.programs, None
        (self.tiling,) = strategy.tilings
        if strategy.unfused:
            self.artifact, self.heap = mixture_unfused.require(self), {}
            return
        self.artifact = _syncopate.ops.artifact(self.spec, strategy, self.group.device)
        self._set_up()

    def _set_up(self) -> None:
        """Collective."""
        if self.group.size != self.artifact.plan.num_ranks:
            raise ValueError(
                f"moe: made for {self.artifact.plan.num_ranks} ranks, the group has {self.group.size}: make it anew"
            )
        self.prepared = None
        with self.group.calling(self._what):
            prepared = Prepared(
                self.artifact,
                self.group,
                [self._kernel(name) for name in self._names],
                what=self._what,
                **self._timing,
            )
            self.prepared, self.heap = prepared, prepared.tensors
            #: Rows for which there is memory: those of a bound, and what aligns each expert's.
            self.rows = self.heap["X"].shape[0] if "X" in self.heap else 0
            self._strides = {name: self._stride(name) for name in self.heap}

            def compiled() -> None:
                prepared.compile(
                    self._items(self._stand_ins()), [self._options(name) for name in self._names]
                )

            if not self._on_trial:
                compiled()
                return
            try:  # no rank goes on where one cannot compile it
                self.group.together("compiled", compiled)
            except FailedTogether:
                self.prepared, self.heap = None, {}
                prepared.close()
                raise

    def _drops(self) -> bool:
        """After a ValueError of its call: whether the ranks' calls differ, so that its next call sets it up anew."""
        prepared = self.prepared
        if not prepared.op.calls_differ:
            return False
        self.prepared, self.heap = None, {}
        if prepared.is_on_gpu:
            self._ended.append(prepared)
        return True

    def launch(self, given: Mapping[str, torch.Tensor]) -> None:
        """One call on tensors of the names that its kernels take, with what it makes among them (`scratch`)."""
        if self._on_trial and not is_capturing(self.device):

            def first() -> None:
                try:
                    self._launch(given)
                    self.prepared.op.check()
                except Exception:
                    if self.prepared is not None:  # else the ranks' calls differ
                        self.prepared.op.give_up()  # the others need not wait for what fails here
                    raise

            with self.group.calling(self._what):
                ran = self._together("run", first)
            self._on_trial = False
            if ran:
                return
        self._launch(given)

    def _launch(self, given: Mapping[str, torch.Tensor]) -> None:
        if self.prepared is None:
            self._set_up()
        prepared = self.prepared
        prepared.require_there()
        key = tuple((name, one.data_ptr(), one.dtype) for name, one in given.items())
        try:
            prepared.launch(key, lambda: self._items(given))
        except ValueError:
            if not self._drops() or not prepared.op.had_been_told:
                raise
            self._launch(given)  # what ended it was no news to this rank

    def judge(self, status: torch.Tensor) -> None:
        """Raises ValueError for what the counts of all ranks say is wrong, on all of them alike. Waits for the device."""
        over, bad, *calls = status.tolist()
        if any(calls[1:]) and bad <= 0:  # of so many calls that their number went round
            bad = 2**31 - 1
        said = []
        if bad:
            said.append(
                f"topk_ids: {bad} of all ranks' ids name no expert; there are experts 0 to {self.experts - 1}"
            )
        if over and self.over == "error":
            said.append(
                f"bound: as many as {over} rows more than {self.bound} come to a rank: give bound={self.bound + over}, "
                'or over="drop"'
            )
        if said:
            raise ValueError("; ".join(said))

    def _done(self, status: torch.Tensor) -> None:
        """On a GPU nothing is read: what the calls have said until then `check` tells."""
        if not self.prepared.is_on_gpu:
            self._seen.zero_()
            self.judge(status)

    def _told(self, name: str, until_next: bool) -> torch.Tensor:
        """What a call has left in the heap: `until_next`, as it lies there, for who has read it before the next one."""
        return self.heap[name] if until_next else self.heap[name].clone()

    def _handle(
        self, ids: torch.Tensor, made: Mapping[str, torch.Tensor], until_next: bool = False
    ) -> Handle:
        return Handle(
            self,
            ids,
            made["position_ptr"],
            self._told("counts", until_next),
            self._told("origin", until_next),
            made["own_ptr"],
            made["sent_ptr"],
            made["status_ptr"],
        )

    @runs_whole
    def run(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor,
        w1: torch.Tensor,
        w2: torch.Tensor,
    ) -> tuple[torch.Tensor, Handle | None, tuple[torch.Tensor, ...]]:
        """y [T, H]; of the part "kept" the handle, the rows that came [rows, H], what w1 made of them [rows, 2 F], and those that
        came back [T * topk, H]."""
        refuse_tracing(type(self).__name__)
        own, f = self.own_experts, self.inner
        check = functools.partial(self._check, {
            "x": (x, (self.tokens, self.hidden), (self.dtype,)), **self._routed(ids, weights),
            "w1": (w1, (own, self.hidden, 2 * f), (self.dtype,)), "w2": (w2, (own, f, self.hidden), (self.dtype,)),
        })  # fmt: skip
        if self.over_nodes is not None:
            return self.over_nodes.run(check, (x, ids, weights, w1, w2))
        check()
        if self.strategy.unfused:
            return mixture_unfused.run(self, x, ids, weights, w1, w2), None, ()
        made, out = self.scratch(), torch.empty_like(x)
        if self._up_by_gluon:
            w1 = gluon_moe_call.aligned(w1)
        given = {"given_ptr": x, "ids_ptr": ids, "weights_ptr": weights, "w1": w1, "w2": w2, "out_ptr": out}
        if self.part == "kept":
            given["h_ptr"] = x.new_empty(self.rows, 2 * f)
        self.launch(made | given)
        self._done(made["status_ptr"])
        if self.part != "kept":
            return out, None, ()
        kept = keep_rows(self, made["own_ptr"]), given["h_ptr"], self.heap["Y"].clone()
        return out, self._handle(ids, made, until_next=True), kept

    @runs_whole
    def dispatch(
        self,
        x: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor | None = None,
        *,
        until_next: bool = False,
    ) -> tuple[torch.Tensor, Handle]:
        """Of the part "dispatch": the rows that came [rows, H], and where they lie. `weights`: of each route, its row's factor.
        `until_next`: they, and the handle, are the heap's own, and the next call's."""
        refuse_tracing(type(self).__name__)
        self._check({"x": (x, (self.tokens, self.hidden), (self.dtype,)), **self._routed(ids, weights)})
        made = self.scratch()
        weights = made["status_ptr"] if weights is None else weights
        self.launch({**made, "given_ptr": x, "ids_ptr": ids, "weights_ptr": weights})
        self._done(made["status_ptr"])
        return self._told("X", until_next), self._handle(ids, made, until_next)

    @runs_whole
    def combine(
        self,
        rows: torch.Tensor,
        ids: torch.Tensor,
        weights: torch.Tensor | None,
        position: torch.Tensor,
        all_counts: torch.Tensor,
        origin: torch.Tensor,
    ) -> torch.Tensor:
        """Of the part "combine": y [T, H]."""
        refuse_tracing(type(self).__name__)
        self._check({"rows": (rows, (len(origin), self.hidden), (self.dtype,)), **self._routed(ids, weights)})
        made = self.scratch() | {"position_ptr": position}
        out = torch.empty(self.tokens, self.hidden, dtype=self.dtype, device=self.device)
        weights = made["status_ptr"] if weights is None else weights
        self.launch({**made, "ids_ptr": ids, "weights_ptr": weights, "counts_ptr": all_counts, "rows_ptr": rows,
                     "origin_ptr": origin, "out_ptr": out})  # fmt: skip
        return out

    def held_bytes(self) -> int:
        """Bytes of the heap on this rank."""
        if self.over_nodes is not None:
            return self.over_nodes.of_node.held_bytes()
        return 0 if self.artifact is None else self.artifact.heap_bytes

    @classmethod
    def bytes_ahead(
        cls,
        tokens: int,
        experts: int,
        topk: int,
        hidden: int,
        inner: int,
        dtype: torch.dtype,
        ranks: int,
        *,
        nodes: int = 1,
        bound: int | None = None,
        part: str = "whole",
        device: str = "cuda",
        tiling: Tiling | None = None,
        scales: str = "",
        out_dtype: torch.dtype | None = None,
    ) -> int:
        """Those that such an operator will take on each of `ranks` ranks, to a granule of the heap, known with neither a group nor a
        GPU, and whatever the routing: rows that come, what the first product makes of them, and rows that come back, for as many as `bound` says.
        With `tiling`, or the tiles that are chosen: those that tuning has found may take others. `nodes`: that the ranks are on."""
        if nodes > 1:
            experts, inner = share_of_node(cls.parallel, experts, inner, ranks, nodes)
            tokens, ranks = tokens * nodes, ranks // nodes
        spec = spec_of(
            tokens, experts, topk, hidden, inner, dtype, ranks, bound, part, cls.parallel, scales, out_dtype
        )
        strategy = strategy_of(spec, device, tiling, PROGRAMS_ON_HOST)
        return _syncopate.ops.artifact(spec, strategy, device).heap_bytes

    @property
    def calls_differ(self) -> bool:
        """Whether the ranks called different operators in a call of it: its next call sets it up anew."""
        if self.over_nodes is not None:
            return self.over_nodes.of_node.calls_differ
        return self.prepared is not None and self.prepared.op.calls_differ

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired, and ValueError, on all ranks, where in calls since the last
        check an id named no expert, or over is "error" and more rows than the bound came. Synchronises the device. Over nodes
        collective."""
        if self.over_nodes is not None:
            self.over_nodes.check()
            return
        if self.prepared is not None and not self.prepared.op.is_told:
            try:
                self.prepared.op.check()
            except _syncopate.SyncopateError:
                self._seen.zero_()  # what a failed call has seen, not all ranks have
                raise
        elif self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # calls of other streams have added to it
        seen = self._seen.clone()
        self._seen.zero_()
        self.judge(seen)

    def reset(self) -> None:
        """After a call that failed on all ranks since one was late: calls go on. Collective."""
        if self.over_nodes is not None:
            self.over_nodes.of_node.reset()
            return
        if self.prepared is not None:
            self.prepared.op.reset()
        self._seen.zero_()  # what the failed calls said is lost with them

    def close(self) -> None:
        """Frees the heap. Collective."""
        if self.over_nodes is not None:
            self.over_nodes.of_node.close()
            return
        prepared, self.prepared, self.heap = self.prepared, None, {}
        if prepared is not None and not prepared.op.calls_differ:  # such a one some ranks have dropped
            prepared.close()
        for one in self._left:
            one.close()
        self._left.clear()
        self._ended.clear()
