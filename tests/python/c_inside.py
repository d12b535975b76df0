"""A tile kernel that calls the C API in the middle of its call: what all ranks do together is refused by name, and the call ends right.
Run by test_bundle.py.

    c_inside.py LIBSYNCOPATE USER.sybundle         of one rank: examples/matmul_pointers.py, 64 x 48 x 32
"""

import ctypes
import os
import sys

import torch
from torch_served import CommConfig

M, N, K = 64, 48, 32
USAGE = 2


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("ordinal", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    """sy_tensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device", Device), ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64),
    ]  # fmt: skip


class Tile(ctypes.Structure):
    """sy_tile."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("stage", ctypes.c_int32), ("boxes", ctypes.c_int32), ("tile", ctypes.c_int64), ("at", ctypes.c_void_p)
    ]  # fmt: skip


TileKernel = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Tile))


class PrepareConfig(ctypes.Structure):
    """sy_prepare_config."""

    _fields_ = [
        ("size", ctypes.c_size_t), ("rows", ctypes.c_int64), ("deadline_ms", ctypes.c_int64), ("stream", ctypes.c_void_p),
        ("tiles", TileKernel), ("tiles_context", ctypes.c_void_p),
    ]  # fmt: skip


def main() -> None:
    c = ctypes.CDLL(sys.argv[1])
    c.sy_last_error.restype = ctypes.c_char_p
    comm, bundle, op = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    said: dict[str, tuple[int, str]] = {}

    def try_all() -> None:
        another = ctypes.c_void_p()
        calls = {
            "sy_prepare": lambda: c.sy_prepare(comm, bundle, ctypes.byref(prepare), ctypes.byref(another)),
            "sy_status": lambda: c.sy_status(op),
            "sy_run": lambda: c.sy_run(op, given, 3, None),
            "sy_release": lambda: c.sy_release(comm),
            "sy_restore": lambda: c.sy_restore(comm),
            "sy_recover": lambda: c.sy_recover(comm, None, None),
            "sy_op_reset": lambda: c.sy_op_reset(op),
            "sy_op_destroy": lambda: c.sy_op_destroy(op),
            "sy_torch_serve": lambda: c.sy_torch_serve(comm, b"0", bundle),
        }
        for name, call in calls.items():
            said[name] = call(), c.sy_last_error().decode()

    def make(_context: int, _tile: Tile) -> int:
        if not said:
            try_all()
            torch.matmul(a, b, out=out)  # by one tile, for all
        return 0

    prepare = PrepareConfig(ctypes.sizeof(PrepareConfig), 0, tiles=TileKernel(make))
    config = CommConfig(ctypes.sizeof(CommConfig), 0, 1)
    a, b, out = torch.randn(M, K), torch.randn(K, N), torch.zeros(M, N)
    shapes = [(ctypes.c_int64 * 2)(*one.shape) for one in (a, b, out)]
    tensors = [
        Tensor(one.data_ptr(), Device(1, 0), 2, 2, 32, 1, ctypes.addressof(shape))
        for one, shape in zip((a, b, out), shapes, strict=True)
    ]
    given = (ctypes.POINTER(Tensor) * 3)(*map(ctypes.pointer, tensors))

    def done(code: int) -> None:
        assert code == 0, c.sy_last_error().decode()

    done(c.sy_comm_create(ctypes.byref(config), ctypes.byref(comm)))
    done(c.sy_bundle_open(sys.argv[2].encode(), ctypes.byref(bundle)))
    done(c.sy_prepare(comm, bundle, ctypes.byref(prepare), ctypes.byref(op)))
    done(c.sy_run(op, given, 3, None))
    for name, (code, text) in said.items():
        wanted = f"{name}: called by a tile kernel, in the middle of a call"
        assert code == USAGE and wanted in text, f"{name}: {code}, {text}"
    assert len(said) == 9 and torch.equal(out, a @ b)
    done(c.sy_op_destroy(op))
    c.sy_bundle_close(bundle)
    c.sy_comm_destroy(comm)
    print("ok", flush=True)


if __name__ == "__main__":
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1"}
    main()
