"""A fused kernel, called like the kernel it came from (DESIGN.md §8)."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from . import _syncopate, interpreter, jit
from .group import Group, of_process_group
from .items import flat, nested

DTYPE_NAMES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
}
DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}
LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


def is_descriptor(value: Any) -> bool:
    return hasattr(value, "base") and hasattr(value, "block_shape")


def describe(value: Any) -> tuple[list[int], list[int], str, list[int]]:
    """(shape, strides, dtype, block) of a tensor or descriptor argument, as the front end takes it."""
    base = value.base if is_descriptor(value) else value
    block = [int(n) for n in value.block_shape] if is_descriptor(value) else []
    if base.dtype not in DTYPE_NAMES:
        raise TypeError(f"tensors of dtype {base.dtype} are not supported")
    shape = value.shape if is_descriptor(value) else base.shape
    strides = value.strides if is_descriptor(value) else base.stride()
    return [int(n) for n in shape], [int(n) for n in strides], DTYPE_NAMES[base.dtype], block


def scalar(value: Any) -> Any:
    """A scalar argument as the front end takes it: dtypes by name, constexprs by value."""
    value = getattr(value, "value", value) if type(value).__name__ == "constexpr" else value
    if isinstance(value, torch.dtype):
        return DTYPE_NAMES[value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def function_of(kernel: Any) -> Any:
    """The Python function of a kernel, which may be wrapped (autotune, heuristics)."""
    function = inspect.unwrap(getattr(kernel, "fn", kernel))
    while hasattr(function, "fn"):
        function = function.fn
    return function


def bind_launch(
    kernel: Any, signature: inspect.Signature, args: tuple, kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """The arguments of a launch by name, defaults filled in. TypeError says which are missing, and who chooses them."""
    given = signature.bind_partial(*args, **kwargs)
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if name not in given.arguments and parameter.default is inspect.Parameter.empty
    ]
    if missing:
        chosen = chosen_by(kernel)
        needed = ", ".join(f"{name}{chosen.get(name, '')}" for name in missing)
        raise TypeError(f"{function_of(kernel).__name__} needs a value for {needed}")
    given.apply_defaults()
    return given


def chosen_by(kernel: Any) -> dict[str, str]:
    """Of the parameters that @triton.autotune and @triton.heuristics choose, how: a fused kernel is given the choice."""
    autotuned: dict[str, dict[Any, None]] = {}
    computed: list[str] = []
    layer = kernel
    while hasattr(layer, "fn"):
        for config in getattr(layer, "configs", ()):
            for name, value in config.kwargs.items():
                autotuned.setdefault(name, {})[value] = None
        values = getattr(layer, "values", None)
        computed += values if isinstance(values, Mapping) else ()
        layer = layer.fn
    chosen = {name: " (which @triton.heuristics computes: pass its result)" for name in computed}
    for name, values in autotuned.items():
        chosen[name] = f" (which @triton.autotune chooses: pass one of {', '.join(map(str, values))})"
    return chosen


@dataclass
class Prepared:
    """One fused kernel for one set of arguments: its op (memory, signals, transfers) and its compiled form."""

    op: _syncopate.FusedOp
    heap: _syncopate.SymmetricHeap
    kernel: Any  # the emitted kernel: a JITFunction, or interpreted
    schedule: dict[str, Any]
    source: str
    grid: tuple[int, int, int]
    tensors: dict[str, torch.Tensor]  # plan tensor name → this rank's whole buffer in the heap
    accumulates: tuple[str, ...] = ()  # parameters into which the kernel adds: they start as the user says
    outputs: dict[str, OutputPlaces] = field(default_factory=dict)  # of tensors that the kernel makes
    compiled: jit.Compiled | None = None
    packed: dict[tuple, Any] | None = None


class FusedKernel:
    """Launches like the kernel: `fused[grid](a, b, c, M, …)`.

    A parameter bound to a plan tensor that the kernel reads takes this rank's shard: a tensor (or descriptor) that holds
    what the plan says the rank holds initially. If it is that very place in the heap (see `shard`), nothing is copied.
    One bound to a tensor that the kernel makes (`produced` in the plan) takes the output: what the plan says the rank
    holds at the end (`final`), in a tensor of that shape or in its place in one of the whole shape. Into what the kernel
    adds (tl.atomic_add), the whole tensor is to be given: it also says from what the sums start.
    Strides among the scalar arguments are those of the whole tensor, row-major. All ranks make the same calls in the
    same order.
    """

    def __init__(
        self,
        kernel: Any,
        plan: _syncopate.Plan,
        bind: Mapping[str, str],
        group: Group | Any | None = None,
        deadline: float = 30.0,
        phases: bool = True,
        backend: str = "auto",
        engine_blocks: int = 8,
        sum_parts: int = 8,
        plain_kernel: bool = False,
        host_delay: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.kernel = kernel
        self.plan = plan
        self.bind = dict(bind)
        self.group = group
        self.deadline = deadline
        self.phases = phases
        self.backend = backend
        self.engine_blocks = engine_blocks
        self.sum_parts = sum_parts
        self.plain_kernel = plain_kernel
        self.host_delay = host_delay
        self.seed = seed
        function = self._function = function_of(kernel)
        self._file = inspect.getsourcefile(function) or "<unknown>"
        self._source = Path(self._file).read_text()
        self._signature = inspect.signature(function)
        self._prepared: dict[tuple, Prepared] = {}

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return lambda *args, **kwargs: self._run(grid, *args, **kwargs)

    def prepare(self, grid: Any, *args: Any, **kwargs: Any) -> Prepared:
        """Fuses, allocates and compiles for these arguments without running. Collective: all ranks call it alike."""
        return self._find(grid, *args, **kwargs)[0]

    def shard(self, prepared: Prepared, tensor: str) -> torch.Tensor:
        """Where this rank's part of `tensor` lies in the heap: write the input there and no copy is made."""
        return shard_view(self.plan, self._group(prepared.heap.device).rank, tensor, prepared.tensors[tensor])

    def result(self, prepared: Prepared, tensor: str) -> torch.Tensor:
        """Where what this rank holds of `tensor` at the end of a call lies in the heap, until its next call."""
        rank = self._group(prepared.heap.device).rank
        return box_view(final_box(self.plan, rank, tensor), prepared.tensors[tensor])

    def check(self) -> None:
        """Raises SyncopateError if a wait of an earlier call expired. Synchronises the device."""
        for prepared in self._prepared.values():
            prepared.op.check()

    def close(self) -> None:
        """Frees heap memory and streams. Collective."""
        for prepared in self._prepared.values():
            prepared.tensors.clear()
            prepared.op.destroy()
        self._prepared.clear()

    def _group(self, device: str) -> Group:
        if isinstance(self.group, Group):
            return self.group
        return of_process_group(self.group, device)

    def _run(self, grid: Any, *args: Any, **kwargs: Any) -> None:
        prepared, arguments, options = self._find(grid, *args, **kwargs)
        self._launch(prepared, arguments)

    def _find(self, grid: Any, *args: Any, **kwargs: Any):
        options = {name: kwargs[name] for name in LAUNCH_OPTIONS if name in kwargs}
        for name in set(options) - set(self._signature.parameters):  # a kernel may ask for num_stages itself
            del kwargs[name]
        bound = bind_launch(self.kernel, self._signature, args, kwargs)
        arguments = flat(bound.arguments)
        if callable(grid):
            grid = grid({name: scalar(value) for name, value in arguments.items() if not is_tensor(value)})
        grid = (tuple(int(n) for n in grid) + (1, 1, 1))[:3]
        tensors = {name: describe(value) for name, value in arguments.items() if is_tensor(value)}
        scalars = {name: scalar(value) for name, value in arguments.items() if not is_tensor(value)}
        key = (
            grid,
            tuple(scalars.items()),
            tuple(
                (name, *map(tuple, (s, t)), d, tuple(b), base_of(arguments[name]).device)
                for name, (s, t, d, b) in tensors.items()
            ),
            tuple(sorted(options.items())),
        )
        prepared = self._prepared.get(key)
        if prepared is None:
            prepared = self._prepared[key] = self._prepare(grid, arguments, scalars, tensors, options)
        return prepared, arguments, options

    def _prepare(self, grid, arguments, scalars, tensors, options) -> Prepared:
        device = "cuda" if any(base_of(arguments[name]).is_cuda for name in tensors) else "host"
        group = self._group(device)
        if group.size != self.plan.num_ranks:
            raise ValueError(f"the plan is for {self.plan.num_ranks} ranks, the group has {group.size}")
        whole = {name: (list(shape), dtype) for name, shape, dtype in self.plan.tensors}
        for parameter, tensor in self.bind.items():
            if parameter not in tensors:
                raise ValueError(f"bind: {parameter} is not a tensor parameter of {self._function.__name__}")
            if tensor not in whole:
                raise ValueError(f"bind: the plan has no tensor {tensor}")
            value = arguments[parameter]
            shape, dtype = whole[tensor]
            check = check_output if tensor in self.plan.produced else check_shard
            check(self.plan, group.rank, tensor, parameter, value, shape, dtype, device, group.ordinal)
            tensors[parameter] = (shape, [], dtype, tensors[parameter][3])
        num_sms = group.multiprocessors(132)
        artifact = _syncopate.fuse(
            self._source,
            self._file,
            self._function.__name__,
            self.plan,
            self.bind,
            scalars,
            tensors,
            list(grid),
            device,
            num_sms,
            self.phases,
            self.backend,
            self.sum_parts,
            self.plain_kernel,
        )
        for parameter in artifact.accumulates:
            base = base_of(arguments[parameter])
            if list(base.shape) != whole[self.bind[parameter]][0]:
                raise ValueError(
                    f"{parameter}: the kernel adds to it, so give it whole, {whole[self.bind[parameter]][0]}, with what the "
                    f"sums start from; got {list(base.shape)}"
                )
        schedule = json.loads(artifact.schedule_json)
        capacity = heap_bytes(schedule)
        heap = _syncopate.SymmetricHeap(device, group.ordinal, group.rendezvous, capacity)
        op = _syncopate.FusedOp(
            heap,
            artifact.schedule_json,
            deadline_ms=int(self.deadline * 1000),
            max_delay_us=int(self.host_delay * 1e6),
            seed=self.seed,
            num_programs=math.prod(grid),
            engine_blocks=self.engine_blocks,
        )
        buffers = {
            name: op.tensor(name).view(DTYPES[dtype]).view(shape) for name, (shape, dtype) in whole.items()
        }
        package = inspect.getmodule(self._function).__package__ if inspect.getmodule(self._function) else None
        module = jit.load_module(artifact.kernel_source, self._function.__name__, package)
        prepared = Prepared(
            op=op,
            heap=heap,
            kernel=getattr(module, self._function.__name__),
            schedule=schedule,
            source=artifact.kernel_source,
            grid=grid,
            tensors=buffers,
            accumulates=tuple(artifact.accumulates),
        )
        while hasattr(prepared.kernel, "fn") and not hasattr(prepared.kernel, "arg_names"):
            prepared.kernel = prepared.kernel.fn
        if device == "cuda":
            full = self._bind(prepared, arguments)
            prepared.compiled = jit.compile_kernel(prepared.kernel, full, grid, options)
            prepared.packed = {}
        return prepared

    def _bind(self, prepared: Prepared, arguments: dict[str, Any]) -> dict[str, Any]:
        """The emitted kernel's arguments: bound tensors replaced by their heap buffers, and the two tables."""
        full = dict(arguments)  # as items
        for parameter, tensor in self.bind.items():
            buffer = prepared.tensors[tensor]
            value = full[parameter]
            if tensor in tensors_by_row(prepared.schedule):
                buffer = flat_rows(prepared.op, buffer)
            if is_descriptor(value):
                buffer = type(value)(
                    buffer, list(buffer.shape), list(buffer.stride()), list(value.block_shape)
                )
            full[parameter] = buffer
        bound = {tensor: full[parameter] for parameter, tensor in self.bind.items()}
        return nested(full) | own_arguments(prepared.op, prepared.schedule, bound)

    def _set_inputs(self, prepared: Prepared, arguments: dict[str, Any]) -> None:
        produced = self.plan.produced
        for parameter, tensor in self.bind.items():
            base = base_of(arguments[parameter])
            if tensor not in produced:
                prepared.op.set_input(tensor, base.data_ptr(), [int(n) for n in base.stride()])
                continue
            if parameter in prepared.accumulates:
                whole = [(0, n) for n in base.shape]
                prepared.op.set_input(tensor, base.data_ptr(), [int(n) for n in base.stride()], whole)
            if tensor not in prepared.outputs:
                prepared.outputs[tensor] = OutputPlaces(self.plan, prepared.op.rank, tensor)
            prepared.outputs[tensor].give(prepared.op, base)

    def _launch(self, prepared: Prepared, arguments: dict[str, Any]) -> None:
        op = prepared.op
        self._set_inputs(prepared, arguments)
        if prepared.compiled is None:
            full = self._bind(prepared, arguments)
            run_on_host(op, prepared.kernel, prepared.grid, full)
            return
        key = tuple(base_of(v).data_ptr() if is_tensor(v) else v for v in arguments.values())
        packed = prepared.packed.get(key)
        if packed is None:
            packed = prepared.packed[key] = prepared.compiled.pack(self._bind(prepared, arguments))
        op.call(prepared.compiled.kernel, prepared.grid, jit.current_stream(), packed)


def own_arguments(op: Any, spec: dict[str, Any], bound: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that fuse has added to the kernel of a schedule (syncopate.schedule/1), as they are now: where
    tiles read what the rank was given changes with set_input. None to a kernel that it has left as it
    is. `bound`: what the kernel is given for the plan's tensors."""
    if spec["schedule"].get("plain"):
        return {}
    own = {"sy_schedule": op.table_tensor, "sy_control": op.control_tensor}
    if (place := op.own_place()) is not None:
        _, pitch, distance = place
        given = bound[spec["schedule"]["loads"]["tensor"]]
        own["sy_own"] = descriptor_of_own(op, given, pitch) if is_descriptor(given) else distance
    return own


def descriptor_of_own(op: Any, given: Any, pitch: int) -> Any:
    """As the descriptor `given` of a tensor in the heap, of what this rank was given of it."""
    rows, columns = given.shape
    size = given.base.dtype.itemsize
    whole = op.own_rows((rows - 1) * pitch + columns * size).view(given.base.dtype)
    strides = [pitch // size, 1]
    base = whole.as_strided((rows, columns), strides)
    return type(given)(base, [rows, columns], strides, list(given.block_shape))


def run_on_host(op: Any, kernel: Any, grid: tuple[int, ...], arguments: dict[str, Any]) -> None:
    """One call of an emitted kernel in the interpreter."""
    op.begin_call()
    try:
        interpreter.launch(kernel, grid, arguments)
    except BaseException:
        op.end_call(ran=False)
        raise
    op.end_call()


def tensors_by_row(spec: dict[str, Any]) -> set[str]:
    """The tensors that the kernel of a schedule (syncopate.schedule/1) stores or loads in all ranks' heaps by rows, through
    descriptors that span them."""
    forms = (spec["schedule"].get(key) for key in ("stores", "loads"))
    return {form["tensor"] for form in forms if form and form["by"] == "row" and not form.get("own")}


def flat_rows(op: Any, own: torch.Tensor) -> torch.Tensor:
    """All ranks' heaps as rows like those of `own`: what a kernel is given that addresses them all."""
    flat, row = op.flat_heaps().view(own.dtype), math.prod(own.shape[1:])
    rows = flat.numel() // row
    return flat[: rows * row].view(rows, *own.shape[1:])


def heap_bytes(spec: dict[str, Any]) -> int:
    """What a rank's heap must hold for the op of a schedule (syncopate.schedule/1), with room to spare. Where the kernel
    addresses rows in all ranks' heaps, a multiple of such a row."""
    tensors = spec["schedule"]["tensors"]
    row = 1
    for name in tensors_by_row(spec):
        own = tensors[name]
        row = math.lcm(row, max(1, math.prod(own["shape"][1:]) * DTYPES[own["dtype"]].itemsize))
    room = sum(math.prod(t["shape"]) * DTYPES[t["dtype"]].itemsize + 4096 + row for t in tensors.values())
    multiple = math.lcm(2 << 20, row)
    return -(-((4 << 20) + room) // multiple) * multiple


def fuse(kernel: Any, plan: _syncopate.Plan, bind: Mapping[str, str], **options: Any) -> FusedKernel:
    """Makes a distributed kernel from a Triton kernel for one GPU and a plan.

    `bind`: parameter name → plan tensor; of a parameter that is a tuple, an item: `a_ptrs[0]`. `group`: a torch process
    group (default: the world). `deadline`: seconds that any wait may last before the call fails with the rank, op and chunk
    that did not come. `backend`: for transfers whose plan leaves it open ("auto": the best legal one); `engine_blocks`:
    multiprocessors of the chunk engine. `sum_parts`: into how many parts a sum is cut at most, each summed beside the kernel
    once its own tiles are made. `plain_kernel`: the kernel is left as it is, and the chunk engine moves what it makes when it
    has ended; for the smallest products, where lines in the kernel cost more than they hide.
    """
    return FusedKernel(kernel, plan, bind, **options)


def shard_box(plan: _syncopate.Plan, rank: int, tensor: str) -> list[tuple[int, int]] | None:
    """The box of `tensor` that `rank` holds initially; None when it holds none. Several boxes: their bounding box."""
    boxes = [region for name, region in plan.initial(rank) if name == tensor]
    if not boxes:
        return None
    return [(min(b[d][0] for b in boxes), max(b[d][1] for b in boxes)) for d in range(len(boxes[0]))]


def shard_view(plan: _syncopate.Plan, rank: int, tensor: str, buffer: torch.Tensor) -> torch.Tensor:
    return box_view(shard_box(plan, rank, tensor), buffer)


def box_view(box: list[tuple[int, int]] | None, buffer: torch.Tensor) -> torch.Tensor:
    if box is None:
        return buffer[tuple(slice(0, 0) for _ in buffer.shape)]
    return buffer[tuple(slice(begin, end) for begin, end in box)]


def final_boxes(plan: _syncopate.Plan, rank: int, tensor: str) -> list[list[tuple[int, int]]]:
    """What `rank` holds of `tensor` at the end."""
    return [box for name, box, _ in plan.final(rank) if name == tensor]


def final_box(plan: _syncopate.Plan, rank: int, tensor: str) -> list[tuple[int, int]] | None:
    """The box around all of that; None when there is nothing."""
    boxes = final_boxes(plan, rank, tensor)
    if not boxes:
        return None
    return [(min(b[d][0] for b in boxes), max(b[d][1] for b in boxes)) for d in range(len(boxes[0]))]


class OutputPlaces:
    """Where in a tensor of the user's the boxes lie that `rank` holds of `tensor` at the end: the user's is of the whole
    tensor's shape, or of the box around them all. Worked out once, as every call asks."""

    def __init__(self, plan: _syncopate.Plan, rank: int, tensor: str) -> None:
        self.tensor = tensor
        self.boxes = [
            box for box in final_boxes(plan, rank, tensor) if all(begin < end for begin, end in box)
        ]
        self.whole = tuple(next(shape for name, shape, _ in plan.tensors if name == tensor))
        self.first = [begin for begin, _ in final_box(plan, rank, tensor) or []]

    def give(self, op: _syncopate.FusedOp, value: torch.Tensor) -> None:
        """Has `op` bring them into `value`."""
        address, strides, size = value.data_ptr(), value.stride(), value.element_size()
        first = [0] * len(strides) if value.shape == self.whole else self.first
        for box in self.boxes:
            skipped = sum((b - f) * s for (b, _), f, s in zip(box, first, strides, strict=True))
            op.set_output(self.tensor, address + skipped * size, strides, box)


def check_output(plan, rank, tensor, parameter, value, shape, dtype, device, ordinal) -> None:
    """As check_shard, for a tensor that the kernel makes: the shape is that of what this rank holds at the end."""
    box = final_box(plan, rank, tensor)
    expected = [end - begin for begin, end in box] if box else [0] * len(shape)
    _check_place(f"{parameter} (bound to {tensor}, rank {rank})", value, shape, dtype, device, ordinal,
                 expected, "what this rank holds at the end, of shape")  # fmt: skip


def check_shard(plan, rank, tensor, parameter, value, shape, dtype, device, ordinal) -> None:
    """Raises ValueError, naming parameter and tensor, when an argument is not this rank's shard of a plan tensor."""
    box = shard_box(plan, rank, tensor)
    expected = [end - begin for begin, end in box] if box else [0] * len(shape)
    _check_place(f"{parameter} (bound to {tensor}, rank {rank})", value, shape, dtype, device, ordinal,
                 expected, "this rank's shard of shape")  # fmt: skip


def _check_place(where, value, shape, dtype, device, ordinal, expected, what) -> None:
    base = base_of(value)
    if list(base.shape) not in (expected, list(shape)) and math.prod(expected) > 0:
        raise ValueError(f"{where}: expected {what} {expected}, got {list(base.shape)}")
    if DTYPE_NAMES[base.dtype] != dtype:
        raise ValueError(f"{where}: expected dtype {dtype}, got {DTYPE_NAMES[base.dtype]}")
    if device == "cuda" and (not base.is_cuda or base.device.index != ordinal):
        raise ValueError(f"{where}: expected a tensor on cuda:{ordinal}, got one on {base.device}")
    if device == "host" and base.device.type != "cpu":
        raise ValueError(f"{where}: expected a tensor on the host, got one on {base.device}")
    if base.numel() and base.stride(-1) != 1:
        raise ValueError(f"{where}: the last axis must be contiguous, its stride is {base.stride(-1)}")


DEVICE_TYPES = {"cuda": "cuda", "host": "cpu"}  # torch's names of the devices


def check_operand(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: str
) -> None:
    """Raises ValueError, naming the operand, unless it has this shape and dtype and lies on `device`."""
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {list(shape)}, got {list(tensor.shape)}")
    if tensor.dtype != dtype:
        raise ValueError(f"{name}: expected dtype {dtype}, got {tensor.dtype}")
    if tensor.device.type != DEVICE_TYPES[device]:
        raise ValueError(f"{name}: expected a tensor on {device}, got one on {tensor.device}")


def base_of(value: Any) -> torch.Tensor:
    return value.base if is_descriptor(value) else value


def is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) or is_descriptor(value)
