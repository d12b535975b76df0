"""What all operators have in common. An operator says what its products, its plan and its tensors are, and little else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch

from .. import _syncopate
from .._syncopate import layout
from ..call import cache
from ..call.executable import ALIGNED_ROWS, APART, Executable, Operand
from ..call.forward_mode import in_forward_mode
from ..call.in_graphs import runs_whole
from ..call.laid_out import are_apart
from ..call.places import OutputPlaces, check_operand, check_rows, require_apart, written
from ..call.prepared import Prepared, timing
from ..call.stage_call import Call, Stage
from ..face.fused import FusedKernel
from ..group import FailedTogether, Group, device_name, of_process_group
from ..strategy import (
    PROGRAMS_ON_HOST,
    Problem,
    Strategy,
    Tiling,
    choose_found,
    complete,
    require,
    search_hook,
)
from ..strategy.failures import warn_of_default
from ..trace.record import Trace, recorder_of, without_signals
from .differentiable import refuse_gradients
from .product_kernel import Product, require_activation
from .shards import count, rows_of
from .stand_ins import StandIns
from .unfused import PAIRS, Unfused, symmetric

#: Of a call of the operator on `rank`: its x, or its weights.
Data = Callable[[int], torch.Tensor]
Weights = Callable[[int], tuple[torch.Tensor, ...]]


class Operator:
    """One or more products fused with a plan, for one shape. Collective: all ranks construct and call it alike.

    `strategy`: how it is done; what it leaves open is filled in, and without one the fastest known is taken (`strategy`
    says which). `asked`: the user has asked for it, so messages name it. `found`: it is what tuning found. Where such a one
    cannot be set up, or fails in its first call, on any rank, all take the default strategy instead, with a warning.
    `deadline`: seconds that any wait may last. `host_delay`,
    `seed`: as of sy.fuse.
    """

    name: ClassVar[str]  # in SPEC (`syncopate run`), and of its problems
    stages: ClassVar[int] = 1  # kernels, one after the other
    adds_over_ranks: ClassVar[bool] = False  # y is a sum of what ranks make
    # What some operators can do besides.
    bias: int = 0  # axes of what is added to the product
    axis: int = 0  # of x, along which it is gathered
    keep: bool = False  # what is gathered stays in the heap
    copied: bool = False  # and is left in a tensor of the caller's

    def __init__(
        self,
        problem: Problem,
        group: Group,
        strategy: Strategy | None,
        *,
        w_transposed: bool = False,
        activation: str = "",
        found: bool = False,
        asked: bool = True,
        deadline: float = 30.0,
        host_delay: float = 0.0,
        seed: int = 0,
    ) -> None:
        require(problem)
        require_activation(activation)
        if strategy is not None and not isinstance(strategy, Strategy):
            raise TypeError(f"strategy: expected a sy.Strategy, got {strategy!r}")
        if problem.is_fp8 and not w_transposed:
            raise ValueError("w: products of fp8 take the transpose of a contiguous [N, K]")
        self.problem, self.group, self.dtype = problem, group, problem.dtype
        self.m, self.n, self.k = problem.m, problem.n, problem.k
        self.w_transposed, self.activation = w_transposed, activation
        cuda = group.device == "cuda"
        self.device = torch.device("cuda", group.ordinal) if cuda else torch.device("cpu")
        self._asked = strategy.name if strategy is not None and asked and not found else ""
        self._timing = timing(deadline, host_delay, seed)
        self._left: list[
            FusedKernel
        ] = []  # by strategies that failed in their first call: x and y may lie there
        with group.calling(self._what):
            if strategy is None:
                taken, found = self.chosen(group)
            else:
                taken = complete(problem, strategy, group)
            self._on_trial = found and taken.fused
            if self._on_trial:
                self._together("made", lambda: self._set_up(taken))
            else:
                self._set_up(taken)

    def _set_up(self, strategy: Strategy) -> None:
        group = self.group
        self.strategy = strategy
        made = self.outline()
        self.plan, self.bindings = made.plan, made.bindings
        self.input, self.output = made.input, made.output  # the plan's tensors that are x and y, if any
        #: The scales of x by name, where they come with it: the plan's tensor.
        self.input_scales = {"scale_x": made.scales} if made.scales else {}
        self._instead = None if strategy.fused else self._set_up_instead()
        self.products = self._make_products()
        self.fused = FusedKernel(
            [Stage(p.kernel, bind) for p, bind in zip(self.products, self.bindings, strict=True)],
            self.plan,
            group,
            self.strategy,
            in_step=self._on_trial,
            in_heap=True,
            what=self._what,
            **self._timing,
        )
        self.prepared: Prepared | None = None
        self._executable: Executable | None = None
        self._places = OutputPlaces(self.plan, group.rank, self.output) if self.output else None
        self._inputs = {"x": self.input, **self.input_scales} if self.input else {}
        self._shapes = self.shapes(group.rank)
        self._place_of = {name: place for place, name in enumerate(list(self._shapes)[1:])}  # of weights

    @property
    def _what(self) -> str:
        """The call, with what tells variants of the operator apart."""
        extents = [*self.problem.products[0], *(shape[1] for shape in self.problem.products[1:])]
        options = ("w_transposed", "activation", "bias", "axis", "keep", "copied")
        given = {name: getattr(self, name) for name in options if getattr(self, name)}
        given |= {"strategy": self._asked} if self._asked else {}
        return f"{self.name} {extents} {self.dtype}{f' {given}' if given else ''}"

    def _make_products(self) -> list[Product]:
        """The kernels that make them, one after the other."""
        activations = (self.activation, *[""] * len(self.problem.products))  # of the first product
        return [
            Product(
                *shape,
                self._roomy(tiling),
                self.strategy.programs,
                self.w_transposed,
                act,
                gluon=self.strategy.kernel == "gluon",
                scales=self.problem.scales,
                whole_bias=self._adds_all,
            )
            for shape, tiling, act in zip(
                self.problem.products, self.strategy.tilings, activations, strict=False
            )
        ]

    def chosen(self, group: Group) -> tuple[Strategy, bool]:
        """The fastest known that this operator can carry out, and whether tuning found it. With SYNCOPATE_TUNE=auto on rank 0 it is
        found out first. Collective."""
        if search_hook.mode_of(group) == "auto" and search_hook.search is not None:
            search_hook.search(self.problem, group)
        pair = not self._unfused_objection(group)
        kept = self.keep  # tiles that fetch x keep nothing
        return choose_found(self.problem, unfused=pair, kept=kept, group=group)

    @property
    def _adds_all(self) -> bool:
        """Whether each element of the product has a bias."""
        return self.bias == 2

    def _roomy(self, tiling: Tiling) -> Tiling:
        """Of one shape, and with room in shared memory for a tile of a bias, which the plain kernel loads through it: three
        stages are as fast as four."""
        if not self._adds_all or self.strategy.kernel != "plain":
            return tiling
        deep = self.group.device == "cuda" and tiling.stages > 3
        return replace(tiling, num_wide=-1, stages=tiling.stages - deep)

    def _together(self, what: str, work: Callable[[], Any]) -> bool:
        """Work by a strategy that tuning found. Where it fails on any rank, all set up the default one: False."""
        try:
            self.group.together(what, work)
            return True
        except FailedTogether as error:
            warn_of_default(self.problem.key, self.strategy.name, error, stacklevel=4)
        self._on_trial = False
        if getattr(self, "fused", None) is not None and self.fused.prepared:
            self._left.append(self.fused)
        self._set_up(complete(self.problem, Strategy(kernel="plain"), self.group))
        return False

    def _unfused_objection(self, group: Group) -> str:
        """Why torch's libraries cannot run the operator; "" if they can."""
        if group.process_group is None:
            return "it takes a torch.distributed process group"
        if self.name not in PAIRS:
            return f"there is no pair of a collective and a product for {self.name}"
        if self.axis or self.keep or self.copied:
            return "it gathers rows, and keeps nothing"
        if self.problem.scales == "block":
            return "its product takes no scales of blocks"
        if self.problem.is_fp8 and self._adds_all:
            return "its product of fp8 takes a bias a column only"
        return ""

    def _set_up_instead(self) -> Any:
        """What runs instead of a fused kernel."""
        if self.strategy.apart:
            raise ValueError(f"apart: {self.name} is one operator")
        return self._unfused_pair()

    def _unfused_pair(self) -> Unfused:
        if objection := self._unfused_objection(self.group):
            raise ValueError(f"unfused: {objection}")
        size = self.group.size
        rows = [count(rows_of(self.m, size, rank)) for rank in range(size)]
        reduced = None
        if self.name == "matmul_all_reduce":
            reduced = symmetric(
                (self.m, self.n), self.problem.out_dtype, self.device, self.group.process_group
            )
        return Unfused(self.group.process_group, rows, self.group.rank, reduced)

    # What an operator says of itself.

    def outline(self) -> Any:
        """The plan that the strategy asks for, and what of it each kernel reads and makes (C++: ops/program.hpp). Raises
        ValueError for what this operator, or this strategy of it, cannot do."""
        return _syncopate.ops.outline(self.problem, self.strategy, self.axis, self.keeps)

    @property
    def keeps(self) -> bool:
        """Whether what is gathered stays in the heap."""
        return self.keep

    def shapes(self, rank: int) -> dict[str, tuple[int, ...]]:
        """Of x and then of the weights, on `rank`."""
        return {"x": (self.m, self.k), "w": self.products[0].w_shape}

    @property
    def shard_rows(self) -> int:
        """Rows of this rank's shard of M."""
        return count(rows_of(self.m, self.group.size, self.group.rank))

    @property
    def out_rows(self) -> int:
        """Rows of y on this rank."""
        return self.m

    def calls(
        self,
        heap: Mapping[str, torch.Tensor],
        x: torch.Tensor,
        weights: Sequence[torch.Tensor],
        y: torch.Tensor,
    ) -> list[Call]:
        """What each kernel is called with; `heap`: the plan's tensors."""
        raise NotImplementedError

    def reference(self, x: Data, weights: Weights) -> torch.Tensor:
        """What the unfused kernels and a collective make of all ranks' data: y of this rank."""
        raise NotImplementedError

    # What follows from it.

    @property
    def tiling(self) -> Any:
        """Of the first product."""
        return self.strategy.tilings[0]

    @property
    def grid(self) -> tuple[int]:
        """How many programs the first product's kernel is launched with."""
        return self.products[0].grid

    @property
    def kernel(self) -> Any:
        """Of the first product: Triton's, or a StatedKernel."""
        return self.products[0].kernel

    def prepare(self, *weights: torch.Tensor) -> Prepared | None:
        """Fuses and compiles on first use, for these weights or stand-ins; None where no fused kernel runs. Collective."""
        if self._instead is not None:
            self._instead.prepare(weights)
            return None
        if self.prepared is None:
            if self._on_trial:
                self._together("prepared", lambda: self._prepare(weights))
            if self.prepared is None:
                self._prepare(weights)
        return self.prepared

    def _prepare(self, weights: Sequence[torch.Tensor]) -> None:
        self.prepared = self.fused.prepare_calls(self.calls_of_stand_ins(weights))
        self._executable = Executable(self.prepared, self._operands(), self._arguments)

    def calls_of_stand_ins(self, weights: Sequence[torch.Tensor] = ()) -> list[Call]:
        """What each kernel is compiled for: calls of the plan's tensors, of x and y and of the weights that are not given, by
        tensors that nobody reads or writes."""
        _, *given = (self.operand(name) for name in self._shapes)
        given[: len(weights)] = weights
        x = None if self.input else self.operand("x")
        y = None if self.output else self.empty(self.m, self.n)
        return self.calls(StandIns(self.plan, self.device), x, given, y)

    def _operands(self) -> list[Operand]:
        """x, the weights and y, as every call gives them."""
        made = []
        for name, shape in self._shapes.items():
            moved = [(self._inputs[name], None, [])] if name in self._inputs else []
            made.append(Operand(name, self.dtype_of(name), shape, self._layout_of(name), inputs=moved))
        shape = (self.out_rows, self.n)
        brought = self._places.parts(shape) if self._places else []
        return [*made, Operand("out", self.dtype_of("out"), shape, self._layout_of("out"), outputs=brought)]

    def _layout_of(self, name: str) -> int:
        """What _check_operand asks for."""
        return ALIGNED_ROWS if name in ("w", "w1", "w2") else APART

    def shard(self) -> torch.Tensor:
        """This rank's place for x in the heap: what is written there is not copied."""
        if self._instead is not None:
            return self._instead.shard(self)
        return self.fused.shard(self.prepare(), self.input)

    def result(self) -> torch.Tensor:
        """y's own place in the heap. It holds y until the next call, if y is given as `out`."""
        if self._instead is not None:
            return self._instead.result(self)
        view = self.fused.result(self.prepare(), self.output)
        return view if self.out_rows else self.empty(0, self.n)

    @runs_whole
    def run(
        self, x: torch.Tensor, weights: tuple[torch.Tensor, ...], out: torch.Tensor | None
    ) -> torch.Tensor:
        """One call. `out`, where given, is the output. Makes no gradients, and raises RuntimeError where they are asked for."""
        if isinstance(out, torch.Tensor):
            written(out)
        if self._executable is not None and not self._on_trial:
            tensors = (x, *weights, self.empty(self.out_rows, self.n) if out is None else out)
            if not _ask_for_gradients(tensors) and self._call(tensors):
                return tensors[-1]
        self.check_operands((x, *weights), out)
        given = (x, *weights) if out is None else (x, *weights, out)
        refuse_gradients(type(self).__name__, f"sy.ops.{self.name}", (*self._shapes, "out"), given)
        if out is None:
            out = self.empty(self.out_rows, self.n)
        if self._instead is not None:
            return self._instead.run(self, x, weights, out)
        if self._on_trial and not is_capturing(self.device):
            self.prepare(*weights)

            def first() -> None:
                try:
                    self._run(x, weights, out)
                    self.check()
                except Exception:
                    self.prepared.op.give_up()  # the others need not wait for what fails here
                    raise

            if self._on_trial and self._together("run", first):
                self._on_trial = False
                return out
        return self._run(x, weights, out)

    def _run(self, x: torch.Tensor, weights: tuple[torch.Tensor, ...], out: torch.Tensor) -> torch.Tensor:
        self.prepare(*weights)
        if not self._call((x, *weights, out)):
            raise RuntimeError(f"{self.name}: its kernels do not take these tensors")  # which were checked
        return out

    def _call(self, tensors: Sequence[torch.Tensor]) -> bool:
        """One call of the executable, of x, the weights and y; False where it does not take these."""
        prepared = self.prepared
        try:
            return self._executable.run(tensors)
        except ValueError:
            if self.drops() and prepared.op.had_been_told:
                self.prepare(*tensors[1:-1])
                return self._call(tensors)
            raise

    def drops(self) -> bool:
        """After a ValueError of its call: whether the ranks' calls differ, so that its next call prepares it anew."""
        if self.prepared is None or not self.fused.drops(self.prepared):
            return False
        self.prepared = self._executable = None
        cache.unlearn(self)
        return True

    def drops_what_it_was_told(self) -> bool:
        """After a ValueError of a call that C++ made alone: the same, where what ended the call is no news to this rank."""
        told = self.prepared is not None and self.prepared.op.had_been_told
        return self.drops() and told

    @property
    def runs_libraries(self) -> bool:
        """Whether a call of it is one of the vendors' pair."""
        return isinstance(self._instead, Unfused)

    def run_libraries(
        self, x: torch.Tensor, weights: tuple[torch.Tensor, ...], out: torch.Tensor | None
    ) -> torch.Tensor:
        """As run, of operands that are known to fit."""
        if out is None:
            out = self.empty(self.out_rows, self.n)
        else:
            self._check_operand("out", out, (self.out_rows, self.n))
        return self._instead.run(self, x, weights, out)

    def record(self, x: torch.Tensor, *weights: torch.Tensor, out: torch.Tensor | None = None) -> Trace:
        """One more call, recorded (syncopate.trace). The first one on a GPU compiles: take the second."""
        if self._instead is not None:
            raise ValueError(self._instead.opaque)
        out = self.empty(self.out_rows, self.n) if out is None else out
        prepared = self._place(x, weights, out)
        options = self.calls(prepared.tensors, x, weights, out)[0].options
        recorder = recorder_of(prepared, options)
        return recorder.call(prepared.arguments(0, self._arguments((x, *weights, out))[0]))

    def run_local(self, x: torch.Tensor, *weights: torch.Tensor, out: torch.Tensor | None = None) -> None:
        """The fused kernel alone, on a GPU after a call: what the added lines cost (for benchmarks). It counts in a copy of
        the control block; what it sends inline it does send."""
        if self._instead is not None:
            raise ValueError(self._instead.opaque)
        prepared = self.prepare(*weights)
        y = self.empty(self.m, self.n) if out is None else out

        def full() -> dict[str, Any]:
            arguments = prepared.arguments(0, self._arguments((x, *weights, y))[0])
            if arguments.get("sy_sums") is not None:
                arguments["sy_sums"] = y.data_ptr()  # the last call's result may be gone
            return arguments | self.alone(prepared)

        given = (x, *weights) if out is None else (x, *weights, out)
        prepared.launch_alone((*map(_place_of, given), prepared.op.own_place()), full)

    def alone(self, prepared: Prepared) -> dict[str, Any]:
        """For run_local: a control block, and a table by which nobody waits and nothing is posted."""
        control = prepared.op.control_tensor.clone()
        control[layout.MIRROR : layout.MIRROR + 2] = 0  # what it does is no call
        moved = control.data_ptr() - prepared.op.control_tensor.data_ptr()
        return {
            "sy_control": control,
            "sy_schedule": without_signals(prepared.op.table_tensor, moved),
        }

    def held_bytes(self) -> int:
        """Bytes of memory that peers map: the heap, or of an unfused sum its place."""
        if self._instead is not None:
            return self._instead.held_bytes()
        return self.prepare().artifact.heap_bytes

    def reset(self) -> None:
        """After a call that failed on all ranks since one was late: calls go on. Collective."""
        if self._instead is not None:
            self._instead.reset()
        self.fused.reset()

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        if self._instead is not None:
            self._instead.check()
        self.fused.check()

    @property
    def calls_differ(self) -> bool:
        """Whether the ranks called different operators in a call of it: its next call sets it up anew."""
        return self.fused.calls_differ or getattr(self._instead, "calls_differ", False)

    def close(self) -> None:
        """Frees the heap. Collective."""
        self.prepared = self._executable = None
        if self._instead is not None:
            self._instead.close()
        for fused in (*self._left, self.fused):
            fused.close()
        self._left.clear()

    def empty(self, *shape: int) -> torch.Tensor:
        """Of the dtype of y."""
        return torch.empty(*shape, dtype=self.problem.out_dtype, device=self.device)

    def operand(self, name: str) -> torch.Tensor:
        """Of the shape and dtype of x, or of a weight by its name in `shapes`; empty."""
        return torch.empty(*self._shapes[name], dtype=self.dtype_of(name), device=self.device)

    def dtype_of(self, name: str) -> torch.dtype:
        """Of x, of y ("out"), or of a weight by its name in `shapes`."""
        if name.startswith("scale"):
            return torch.float32
        return self.problem.out_dtype if name in ("out", "bias") else self.dtype

    def check_operands(self, operands: Sequence[torch.Tensor], out: torch.Tensor | None) -> None:
        """Raises for one whose shape, dtype or device does not fit, naming it."""
        for (name, shape), tensor in zip(self._shapes.items(), operands, strict=True):
            self._check_operand(name, tensor, shape)
        if out is not None:
            self._check_operand("out", out, (self.out_rows, self.n))

    def _check_operand(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        check_operand(name, tensor, shape, self.dtype_of(name), self.group.device)
        if tensor.stride(-1) != 1 and tensor.numel():
            raise ValueError(f"{name}: the last axis must be contiguous, its stride is {tensor.stride(-1)}")
        if name in ("out", "copy"):
            require_apart(name, tensor)
        elif not are_apart(tensor):
            raise ValueError(
                f"{name}: its rows overlap, they are {tensor.stride(0)} apart: make it contiguous"
            )
        if self._instead is None and name in ("w", "w1", "w2"):
            check_rows(name, tensor)

    def _place(self, x: torch.Tensor, weights: Sequence[torch.Tensor], out: torch.Tensor) -> Prepared:
        """Tells the op where x and y are."""
        prepared = self.prepared or self.prepare(*weights)
        prepared.require_there()
        self._executable.native.place((x, *weights, out))
        return prepared

    def _arguments(self, operands: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
        x, *weights, out = operands
        return [call.arguments for call in self.calls(self.prepared.tensors, x, weights, out)]


def _place_of(tensor: torch.Tensor) -> tuple[int, tuple[int, ...]]:
    """All of it that packed arguments hold: a descriptor holds the distance of rows, too."""
    return tensor.data_ptr(), tensor.stride()


def _ask_for_gradients(tensors: Sequence[Any]) -> bool:
    if in_forward_mode():
        return True
    return torch.is_grad_enabled() and any(getattr(one, "requires_grad", False) for one in tensors)


def is_capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def members_of(group: Group | Any | None, device: Any = None) -> Group:
    """`device`: "cuda" or "host"; None: that of the group. Raises ValueError where a Group is of another one."""
    if not isinstance(group, Group):
        return of_process_group(group, device)
    if device_name(device) not in ("", group.device):
        raise ValueError(f"device: the group's is {group.device}, not {device}")
    return group


def problem_of(
    name: str,
    m: int,
    n: int,
    k: int,
    dtype: torch.dtype,
    group: Group,
    f: int = 0,
    out: torch.dtype | None = None,
    scales: str = "",
) -> Problem:
    num_sms = group.multiprocessors(PROGRAMS_ON_HOST)
    return Problem(name, m, n, k, dtype, group.size, num_sms, group.device, f, out, scales, group.nodes)


def cached(
    kind: type[Operator], extents: tuple[int, ...], dtype: torch.dtype, group: Group, **options: Any
) -> cache.Entry:
    """That of the operator of that kind and shape for the current stream, made on first use. Collective then."""
    call = (kind, extents, dtype, id(group), *options.items())
    options = {"deadline": cache.deadline, **options}
    made = cache.find(
        f"ops.{kind.name}",
        group.device == "cuda",
        call,
        lambda: cache.Entry(group, kind(*extents, dtype, group, **options)),
    )
    return made
