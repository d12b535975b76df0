"""A process whose GPUs are a driver in the CPU's memory (build/fake_driver, on LD_LIBRARY_PATH): what Python does for calls on
GPUs runs, and kernels do not. Tensors are the CPU's, and say that they are on a GPU. Nothing is compiled: a kernel is its
signature. Run by test_fake_gpu.py.

    fake_gpu.py RANKS
"""

import ctypes
import gc
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests" / "python"), str(ROOT / "examples")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.utils.dlpack  # noqa: E402
from grouped_product import grouped_product  # noqa: E402
from host_script import on_ranks  # noqa: E402
from matmul_pointers import matmul_kernel  # noqa: E402
from syncopate import _syncopate, ranks  # noqa: E402
from syncopate import group as groups  # noqa: E402
from syncopate.call import cache, known, places, prepared  # noqa: E402
from syncopate.device import jit  # noqa: E402
from syncopate.face import fused as face  # noqa: E402
from syncopate.face import ragged  # noqa: E402
from syncopate.kernels import gluon_attention_backward_call  # noqa: E402
from syncopate.ops import (  # noqa: E402
    attention_backward,  # noqa: E402
    attention_kernel,
    attention_passes,
    attention_whole,
    operator,
)
from syncopate.ops.attention_rules import attention_tiling  # noqa: E402
from syncopate.torch import calls  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

NAME = b"dlpack_exchange_api"
CPU, GPU = 1, 2  # DLDeviceType
M, N, K = 512, 256, 512


class Described(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32), ("ordinal", ctypes.c_int32), ("axes", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


class Exchange(ctypes.Structure):
    """DLPackExchangeAPI; its last two are what Syncopate asks for."""

    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), *((f"other{n}", ctypes.c_void_p) for n in range(4)),
        ("describe", ctypes.c_void_p), ("stream", ctypes.c_void_p),
    ]  # fmt: skip


pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
capsule_of = ctypes.pythonapi.PyCapsule_New
capsule_of.restype, capsule_of.argtypes = (
    ctypes.py_object,
    [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p],
)
Describe = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Described))
AskStream = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
torchs = Exchange.from_address(pointer_of(torch.Tensor.__dlpack_c_exchange_api__, NAME))
describe_by_torch = Describe(torchs.describe)
ordinal = [0]  # this rank's GPU


@Describe
def describe(tensor, out):
    failed = describe_by_torch(tensor, out)
    out[0].device, out[0].ordinal = GPU, ordinal[0]
    return failed


@AskStream
def stream(_kind, _ordinal, out):
    out[0] = None
    return 0


exchange = Exchange(
    1, 3, describe=ctypes.cast(describe, ctypes.c_void_p), stream=ctypes.cast(stream, ctypes.c_void_p)
)


class OnGpu(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # as torch's own
    __dlpack_c_exchange_api__ = capsule_of(ctypes.addressof(exchange), NAME, None)


class GpuTensor(OnGpu):
    is_cuda = property(lambda _: True)

    def new_empty(self, *shape: Any, **options: Any) -> torch.Tensor:
        return super().new_empty(*shape, **options).as_subclass(GpuTensor)


def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.zeros(*shape, dtype=dtype).as_subclass(GpuTensor)


class Cuda:
    """torch.cuda of a Hopper."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def get_device_capability(self, *_: Any) -> tuple[int, int]:
        return 9, 0

    def get_device_name(self, *_: Any) -> str:
        return face.device_name()


class Torch:
    """torch, whose GPU is the CPU."""

    cuda = Cuda()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def device(self, *_: Any) -> torch.device:
        return torch.device("cpu")

    def empty(self, *shape: Any, **options: Any) -> torch.Tensor:
        return torch.empty(*shape, **options).as_subclass(GpuTensor)


def compiler_of(kernel: Any, _grid: Any, _options: Any) -> Callable[[dict[str, Any]], jit.Compiled]:
    parameters = {one.name: one for one in getattr(kernel, "params", [])}

    def kind_of(name: str, value: Any) -> str:
        constant = name in parameters and parameters[name].is_constexpr
        if constant or value is None or isinstance(value, (bool, str)):
            return "constexpr"
        if hasattr(value, "block_shape"):
            return "tensordesc<bf16[1,1]>"
        if isinstance(value, torch.Tensor):
            return "*bf16"
        if isinstance(value, float):
            return "fp32"
        return "i32" if -(2**31) <= int(value) < 2**31 else "i64"

    def compiled(arguments: dict[str, Any]) -> jit.Compiled:
        names = list(parameters or arguments)
        kinds = {name: kind_of(name, arguments[name]) if name in arguments else "constexpr" for name in names}
        descriptors = [
            {"swizzle": 3, "elem_size": one.base.element_size(), "elem_type": 9, "block_size": list(one.block_shape)}
            for one in arguments.values()
            if hasattr(one, "block_shape")
        ]  # fmt: skip
        kernel_of_none = _syncopate.CudaKernel(b"\0" * 8, "kernel", 0, 4, ordinal=ordinal[0])
        return jit.Compiled(kernel_of_none, kinds, descriptors)

    return compiled


def from_dlpack(capsule: Any) -> torch.Tensor:
    """Of memory of the stand-in's."""
    capsule = capsule if type(capsule).__name__ == "PyCapsule" else capsule.__dlpack__()
    described = Described.from_address(pointer_of(capsule, b"dltensor"))
    described.device, described.ordinal = CPU, 0
    return take_dlpack(capsule).as_subclass(GpuTensor)


take_dlpack, torch.utils.dlpack.from_dlpack = torch.utils.dlpack.from_dlpack, from_dlpack
_syncopate.set_tensor_types(OnGpu, GpuTensor)
places.DEVICE_TYPES["cuda"] = "cpu"
places.check_place = ragged.check_place = lambda *_: None
for module in (
    operator,
    sys.modules[sy.ops.Attention.__module__],
    attention_kernel,
    attention_whole,
    attention_passes,
    attention_backward,
):
    module.torch = Torch()
attention_backward.AttentionBackward._launch = lambda *_, **__: None  # what no program is
gluon_attention_backward_call.make_dq = lambda *_, **__: None
groups.Group.multiprocessors = lambda self, on_host=132: 132
groups.require_device = lambda name: None
face.device_name = lambda: "NVIDIA H100 80GB HBM3"
torch.cuda.get_device_name = lambda _=None: face.device_name()
prepared.compiler_of = compiler_of
jit.current_stream = lambda: 0
torch.cuda.is_current_stream_capturing = lambda: False


def with_custom_ops() -> None:
    """torch's ops on tensors of the CPU reach the stand-in, by the kernels that a GPU's would."""
    torch.cuda.current_device = lambda: ordinal[0]
    torch.cuda.set_device = lambda _: None
    torch.cuda.get_device_capability = lambda _=None: (9, 0)
    calls.DEVICES["cpu"] = "cuda"
    calls._chosen = lambda name, *_: (usual_strategy(name), False)
    operator.Operator.chosen = choose_usual


def choose_usual(op: Any, _group: Any) -> tuple[sy.Strategy, bool]:
    return operator.complete(op.problem, usual_strategy(op.name)), False


def usual_strategy(name: str) -> sy.Strategy:
    """Of few rows: one kernel, where an operator can be one."""
    return sy.Strategy(kernel="gluon", kernel_sums="reduce" in name)


def check_operator(group: sy.Group, kind: str, strategy: sy.Strategy) -> None:
    """Calls of one form, of tensors elsewhere, and as graphs."""
    op = getattr(sy.ops, kind)(M, N, K, torch.bfloat16, group, strategy=strategy)
    operands = [zeros(*shape) for shape in op._shapes.values()]
    for turn in range(4):
        x, *weights = [one.clone().as_subclass(GpuTensor) if turn % 2 else one for one in operands]
        op(x, *weights)
    native = op._executable.native
    assert native.calls == 4, native.calls
    native.use_graphs(2)
    y = op(*operands)
    for _ in range(3):
        op(*operands, y)
    assert native.graph_launches > 0
    op.close()


def check_a_kernel_of_the_users(group: sy.Group) -> None:
    """The second form is of an output that begins elsewhere."""
    plan = sy.plans.all_gather(sy.Mesh(gpu=group.size), sy.Tensor("A", (128, 64), "fp32"))
    fused = sy.fuse(matmul_kernel, plan, bind={"a_ptr": "A"}, group=group)
    a, b = (zeros(rows, 64, dtype=torch.float32) for rows in (128 // group.size, 64))
    last = torch.zeros(128 * 64 + 1)[1:].view(128, 64).as_subclass(GpuTensor)
    for c in (zeros(128, 64, dtype=torch.float32), zeros(128, 64, dtype=torch.float32), last):
        sizes = {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 64, "GROUP_M": 1}
        fused[(4,)](a, b, c, 128, 64, 64, 64, 1, 64, 1, 64, 1, **sizes)
    calls = sum(one.native.calls for one in fused._executables.values())
    assert calls == 3, calls
    fused.close()


def check_a_grouped_kernel_of_the_users(group: sy.Group) -> None:
    """Six kernels a call, packed once for the tensors of a call; how many rows a rank gives is not compiled for."""
    experts, rows = 2 * group.size, 64
    made = sy.Tensor("C", (rows, 64), "bf16")
    plan = sy.plans.push_groups(sy.Mesh(gpu=group.size), sy.Tensor("A", (rows, 64), "bf16"), experts, made)
    fused = sy.fuse(grouped_product, plan, {"a_ptr": "A", "c_ptr": "C", "offsets_ptr": "counts"}, group=group)
    counts, w = zeros(experts, dtype=torch.int32), zeros(2, 64, 64)
    for given in (40, 40, 64):
        fused[(2, 4, 4)](zeros(given, 64), w, zeros(rows, 64), counts, 64, 64, 16, 16, 16)
    (prepared,) = fused.prepared
    assert len(prepared.launches()) == 6, prepared.launches()
    fused.check()
    told = fused._made[prepared].scratch["seen"]
    told[0] = told[2] = 5
    try:
        fused.check()
        raise RuntimeError("rows over the bound are not told")
    except ValueError as error:
        assert "5 rows more than 64 come to a rank" in str(error), error
    fused.check()
    fused.close()


def check_grouped_kernels_that_follow(group: sy.Group) -> None:
    """The table of one that follows is complete as it is uploaded, and again after a reset, which puts it back."""
    plan = sy.plans.push_groups(sy.Mesh(gpu=group.size), sy.Tensor("A", (64, 64), "bf16"), 2 * group.size)
    bind = [{"a_ptr": "A", "offsets_ptr": "counts"}, {"offsets_ptr": "counts"}]
    fused = sy.fuse([grouped_product, grouped_product], plan, bind, group=group)
    x, w, counts = zeros(64, 64), zeros(2, 64, 64), zeros(2 * group.size, dtype=torch.int32)
    sizes = (counts, 64, 64, 16, 16, 16)
    made, then = zeros(64, 64), zeros(64, 64)
    fused.run([fused.call(0, (2, 4, 4), x, w, made, *sizes), fused.call(1, (2, 4, 4), made, w, then, *sizes)])
    (prepared,) = fused.prepared
    table = prepared.op.table_tensor_of(4)
    before = table.clone()
    assert int(before[_syncopate.layout.NUM_SLOTS]) == 2 * 4 * 4, before
    fused.check()
    table.zero_()
    dist.barrier()
    fused.reset()
    assert torch.equal(before, prepared.op.table_tensor_of(4))
    fused.close()


def check_functions(group: sy.Group) -> None:
    """Python is entered for the first call of a kind, and C++ makes those that follow."""
    learnt, learn = [], known.learn
    known.learn = lambda *given: learnt.append(learn(*given))
    before = operator.Operator.chosen
    operator.Operator.chosen = choose_usual
    for name in ("all_gather_matmul", "matmul_reduce_scatter", "matmul_all_reduce"):
        rows = M // group.size if name == "all_gather_matmul" else M
        for _ in range(4):
            x, w = zeros(rows, K), zeros(K, N)
            y = getattr(sy.ops, name)(x, w, group)
            again = getattr(sy.ops, name)(x, w, group, y)
            assert again is y and type(y) is GpuTensor
        (entry,) = [one for one in cache.entries.values() if one.operator.name == name]
        assert entry.operator._executable.native.calls == 8
        assert len(learnt) == 1, learnt
        learnt.clear()
    known.learn, operator.Operator.chosen = learn, before
    cache.close(group)


class Allocations(TorchDispatchMode):
    """What this thread's calls of torch allocate, weakly, with what allocates it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {one.untyped_storage()._cdata for one in tensors_in((args, kwargs))}
        for one in tensors_in(out):
            if one.untyped_storage()._cdata not in given and one.numel():
                self.made.append((str(func), one.untyped_storage()._weak_ref()))
        return out

    @property
    def left(self) -> list[str]:
        gc.collect()
        return [func for func, weak in self.made if not torch.UntypedStorage._expired(weak)]


def tensors_in(tree: Any) -> list[torch.Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, torch.Tensor)]


def check_what_set_ups_leave(_group: sy.Group) -> None:
    """Nothing of torch's memory in the thread of a call, which is that of a graph where Inductor keeps graphs."""
    ops, name = torch.ops.syncopate, dist.group.WORLD.group_name
    before = cache._in_graph_trees, calls._chosen, dict(calls.DEVICES)
    cache._in_graph_trees = lambda: True
    with_custom_ops()
    bias, x, w = zeros(64), zeros(16, 64), zeros(64, 64)
    made: list[Callable[[], Any]] = [
        lambda: ops.matmul_reduce_scatter(x, w, name),
        lambda: ops.matmul_reduce_scatter(x, w, name, bias),
        lambda: ops.matmul_all_reduce(x, w, name),
        lambda: ops.all_gather_matmul(x, w, name, bias, activation="gelu"),
        lambda: ops.all_gather_matmuls(x, [w, w], name, return_gathered=True),
        lambda: ops.matmul_all_to_all(x, w, name),
        lambda: ops.all_to_all_matmuls(x, [w, w], name, return_exchanged=True),
        lambda: sy.ops.matmul_reduce_scatter(zeros(32, 64), w),
    ]
    for number, call in enumerate(made):
        for _ in range(2):
            with torch.no_grad(), Allocations() as seen:
                y = call()
            assert len(seen.made) >= 1, number
            del y
            assert not seen.left, f"call {number} leaves what is made by {seen.left}"
    cache._in_graph_trees, calls._chosen = before[:2]
    calls.DEVICES.update(before[2])
    cache.close()


def check_attention(group: sy.Group, plain: bool, **options: Any) -> None:
    """Calls of one form, of tensors elsewhere; one of rows that lie apart has another where the kernel reads them in place."""
    b, h, hkv, rows, d = 1, 4, 2, 256, 64
    tiling = attention_tiling(d, "cuda") if plain else None
    op = sy.ops.Attention(
        b, h, hkv, rows * group.size, d, torch.bfloat16, group, tiling=tiling, even=True, **options
    )
    assert op.is_gluon != plain, op.why_plain
    for turn in range(5):
        q, k, v = (zeros(b, heads, rows, d) for heads in (h, hkv, hkv))
        if turn == 4:
            q, k, v = (
                zeros(b, rows, one.shape[1], d).transpose(1, 2).as_subclass(GpuTensor) for one in (q, k, v)
            )
        o, lse = op(q, k, v)
        assert (o.shape, lse.shape) == (q.shape, q.shape[:3])
    assert op._executable.native.calls == 5, op._executable.native.calls
    op.close()


def check_attention_op(_group: sy.Group) -> None:
    """torch's op: Python is entered for the first call of a kind."""
    before = dict(calls.DEVICES)
    with_custom_ops()
    name, rows = dist.group.WORLD.group_name, 256
    for options in ({}, {"causal": True}, {"causal": True, "scale": 0.5}, {"cu_seqlens": [0, 128, 512]}):
        entries = set(cache.entries)
        for _ in range(4):
            q, k, v = (zeros(1, heads, rows, 64) for heads in (4, 2, 2))
            with torch.no_grad():
                torch.ops.syncopate.attention(q, k, v, name, **options)
        (new,) = set(cache.entries) - entries
        assert cache.entries[new].operator._executable.native.calls == 4, options
    by_cpp = {op: count for op, _, count in _syncopate.recipe_counts()}
    assert by_cpp.get("attention") == 12, by_cpp
    calls.DEVICES.update(before)
    cache.close()


def check_backward(group: sy.Group, plain: bool, **options: Any) -> None:
    """The backward of attention by either kernel, of tensors elsewhere."""
    b, h, hkv, rows, d = 1, 4, 2, 256, 64
    with mock.patch.object(attention_backward, "HOPPER", 0 if plain else attention_backward.HOPPER):
        op = sy.ops.AttentionBackward(
            b, h, hkv, rows * group.size, d, torch.bfloat16, group, even=True, **options
        )
    assert op.is_gluon != plain, op.why_plain
    for _ in range(3):
        q, o, grad = (zeros(b, h, rows, d) for _ in range(3))
        k, v = (zeros(b, hkv, rows, d) for _ in range(2))
        made = op(grad, None, q, k, v, o, zeros(b, h, rows, dtype=torch.float32))
        assert [one.shape for one in made] == [one.shape for one in (q, k, v)]
    op.close()


def check_backward_alone(_: sy.Group) -> None:
    """One rank calls Hopper's kernel, and no program; what is deterministic or is not in order is one."""
    from syncopate.kernels import gluon_attention_backward_call as of_kernel

    seen: list[dict[str, Any]] = []

    def attend_backward(grad: Any, q: Any, k: Any, v: Any, *_: Any, **options: Any) -> Any:
        seen.append(options)
        return q.clone(), k.clone(), v.clone()

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(of_kernel, "attend_backward", attend_backward),
    ):
        group = groups.of_folder(folder, 0, 1, "alone", "cuda", ordinal[0])
        for alone, options in (
            (True, {"causal": True, "sharding": "zigzag"}),
            (True, {"window": 70}),
            (True, {"causal": True, "cu_seqlens": [0, 137, 256]}),
            (True, {"kept": True}),
            (True, {"kind": "ulysses"}),
            (False, {"deterministic": True}),
        ):
            seen.clear()
            op = sy.ops.AttentionBackward(1, 4, 2, 256, 96, torch.bfloat16, group, **options)
            q, o, grad = (zeros(1, 4, 256, 96) for _ in range(3))
            k, v = (zeros(1, 2, 256, 96) for _ in range(2))
            made = op(grad, None, q, k, v, o, zeros(1, 4, 256, dtype=torch.float32))
            assert [one.shape for one in made] == [one.shape for one in (q, k, v)]
            assert (op.is_alone, len(seen), op.prepared is None) == (alone, alone, alone), options
            assert (op.heap_bytes == 0) == alone, options
            if alone:
                tables = seen[0].pop("tables", None)
                assert (tables is not None) == ("cu_seqlens" in options)
                wanted = (
                    {name: options.get(name, 0) for name in ("causal", "window")} if tables is None else {}
                )
                assert seen[0] == wanted | {"grad_lse": None, "scale": 96**-0.5}, seen
            op.close()


def cases() -> list[tuple[str, Callable[[sy.Group], None]]]:
    found: list[tuple[str, Callable[[sy.Group], None]]] = [
        ("a kernel of the user's", check_a_kernel_of_the_users),
        ("a grouped kernel of the user's", check_a_grouped_kernel_of_the_users),
        ("grouped kernels that follow", check_grouped_kernels_that_follow),
        ("functions", check_functions),
        ("set-ups", check_what_set_ups_leave),
        ("torch's attention", check_attention_op),
        ("a backward of one rank", check_backward_alone),
    ]
    usual = [
        sy.Strategy(kernel="plain"),
        sy.Strategy(kernel="gluon"),
        sy.Strategy(kernel="plain", backend="copy_engine"),
    ]
    sums = [sy.Strategy(kernel="gluon", kernel_sums=True)]
    for kind in (
        "AllGatherMatmul",
        "AllToAllMatmul",
        "MatmulReduceScatter",
        "MatmulAllReduce",
        "MatmulAllToAll",
    ):
        for strategy in usual + (sums if "Reduce" in kind else []):
            name = f"{kind} {strategy.kernel} {strategy.backend}"
            found.append((name, lambda group, k=kind, s=strategy: check_operator(group, k, s)))
    for plain in (False, True):
        for options in (
            {"causal": True, "kind": "all_gather"},
            {"causal": True, "kind": "ring", "sharding": "zigzag", "deterministic": True},
            {"kind": "ulysses"},
            {"kind": "ulysses", "causal": True, "deterministic": True},
        ):
            ahead = {key: value for key, value in options.items() if key != "deterministic"}
            name = f"Attention plain={plain} {ahead}"
            found.append((name, lambda group, p=plain, o=ahead: check_attention(group, p, **o)))
            name = f"AttentionBackward plain={plain} {options}"
            found.append((name, lambda group, p=plain, o=options: check_backward(group, p, **o)))
    return found


def check(place: ranks.Place) -> None:
    ordinal[0] = place.rank
    store = dist.FileStore(f"{place.folder}/store", place.size)
    dist.init_process_group("gloo", store=store, rank=place.rank, world_size=place.size)
    group = groups.of_folder(place.folder, place.rank, place.size, place.run_id, "cuda", place.rank)
    for name, case in cases():
        try:
            case(group)
        except Exception as error:
            traceback.print_exc()
            raise RuntimeError(f"{name}: {error}") from error


if __name__ == "__main__":
    assert "fake_driver" in os.environ.get("LD_LIBRARY_PATH", "")
    on_ranks(check)
    print(f"ok: {len(cases())} cases", flush=True)
