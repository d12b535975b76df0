"""The footprints that `syncopate kernel show` infers for the examples are those that the kernels touch.

Each case runs in a process of its own in Triton's interpreter, with loads and stores recorded by address, and compares
every program's elements with the union of the boxes of its tiles: none missing, and none too many.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("SYNCOPATE_BIN", ROOT / "build" / "bin" / "syncopate"))

# name → (file, M, N, K, block_m, block_n, block_k, group_m, num_sms)
CASES = {
    "pointers ragged": ("matmul_pointers.py", 200, 144, 96, 64, 64, 32, 2, None),
    "pointers smaller than a block": ("matmul_pointers.py", 40, 24, 20, 64, 32, 32, 8, None),
    "device descriptors ragged": ("matmul_persistent_device_tma.py", 200, 144, 80, 64, 64, 32, 2, 5),
    "host descriptors ragged": ("matmul_persistent_host_tma.py", 200, 144, 80, 64, 64, 32, 2, 5),
    "host descriptors more programs than tiles": (
        "matmul_persistent_host_tma.py",
        72,
        48,
        64,
        32,
        32,
        32,
        4,
        40,
    ),
}


def record(module, a, b, **options):
    """Runs the example; returns (c, program → tensor name → the two sets of linear element indices)."""
    import numpy as np
    from triton.runtime import interpreter

    accesses = []
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def note(self, pointers, mask, kind):
        grid, (x, y, z) = self.grid_dim, self.grid_idx
        program = x + grid[0] * (y + grid[1] * z)
        shown = np.broadcast_to(mask.data, pointers.data.shape)
        accesses.append((program, kind, pointers.data[shown].astype(np.int64)))

    def recorded_load(self, pointers, mask, *rest, **options):
        note(self, pointers, mask, "reads")
        return load(self, pointers, mask, *rest, **options)

    def recorded_store(self, pointers, value, mask, *rest, **options):
        note(self, pointers, mask, "writes")
        return store(self, pointers, value, mask, *rest, **options)

    builder.create_masked_load, builder.create_masked_store = recorded_load, recorded_store
    try:
        c = module.matmul(a, b, **options)
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store
    touched = defaultdict(set)
    for program, kind, addresses in accesses:
        for name, tensor in (("a", a), ("b", b), ("c", c)):
            elements = (addresses - tensor.data_ptr()) // tensor.element_size()
            elements = elements[(elements >= 0) & (elements < tensor.numel())]
            touched[program, kind, name].update(elements.tolist())
    return c, {key: elements for key, elements in touched.items() if elements}


def inferred(path, c, a, b, m, n, k, blocks, num_sms):
    block_m, block_n, block_k, group_m = blocks
    args = f"M={m},N={n},K={k},BLOCK_M={block_m},BLOCK_N={block_n},BLOCK_K={block_k},GROUP_M={group_m}"
    hosted = "host" in path.name
    suffix = "_desc" if hosted else "_ptr"
    tiles = {"a": (block_m, block_k), "b": (block_n, block_k), "c": (block_m, block_n)}
    command = [str(BINARY), "kernel", "show", str(path), "--json", "--boxes"]
    for name, tensor in (("a", a), ("b", b), ("c", c)):
        shape = "x".join(map(str, tensor.shape))
        block = "@{}x{}".format(*tiles[name]) if hosted else ""
        command += ["--tensor", f"{name}{suffix}={shape}:fp32{block}"]
    if num_sms is None:
        for name, axes, tensor in (("a", "mk", a), ("b", "kn", b), ("c", "mn", c)):
            for axis, stride in zip(axes, tensor.stride(), strict=True):
                args += f",stride_{name}{axis}={stride}"
    else:
        args += f",NUM_SMS={num_sms}"
    shown = json.loads(
        subprocess.run([*command, "--args", args], check=True, capture_output=True, text=True).stdout
    )
    touched = defaultdict(set)
    shapes = {"a": a.shape, "b": b.shape, "c": c.shape}
    for tile in shown["tiles"]:
        for kind, boxes_of in (("reads", "read_boxes"), ("writes", "write_boxes")):
            for param, boxes in tile[boxes_of].items():
                name = param[0]
                for (row, row_end), (column, column_end) in boxes:
                    for r in range(row, row_end):
                        start = r * shapes[name][1]
                        touched[tile["program"], kind, name].update(range(start + column, start + column_end))
                # The bounding box is what the contract prints.
                box = tile[kind][param]
                for axis in range(2):
                    assert box[axis] == [min(x[axis][0] for x in boxes), max(x[axis][1] for x in boxes)]
    return shown, dict(touched)


def check(case):
    import torch

    file, m, n, k, *blocks, num_sms = CASES[case]
    path = ROOT / "examples" / file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    a = torch.randint(-3, 4, (m, k)).float()
    b = torch.randint(-3, 4, (n, k) if num_sms else (k, n)).float()
    options = dict(zip(("block_m", "block_n", "block_k", "group_m"), blocks, strict=True))
    if num_sms:
        options["num_sms"] = num_sms
    c, actual = record(module, a, b, **options)
    torch.testing.assert_close(c, a @ (b.T if num_sms else b), rtol=0, atol=0)
    shown, expected = inferred(path, c, a, b, m, n, k, blocks, num_sms)
    assert [axis["name"] for axis in shown["axes"]] == ["M", "N"]
    assert actual.keys() == expected.keys()
    for key, elements in actual.items():
        assert elements <= expected[key], f"{key}: touched but not inferred"
        assert elements == expected[key], f"{key}: inferred but not touched"


@pytest.mark.skipif(not BINARY.exists(), reason=f"{BINARY} is not built")
@pytest.mark.parametrize("case", CASES)
def test_inferred_footprints_are_what_the_interpreter_touches(case):
    from conftest import warm_python

    run = subprocess.run(
        [warm_python(), __file__, case],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize("example", sorted({case[0] for case in CASES.values()}))
def test_an_example_runs_alone(example):
    from conftest import warm_python

    run = subprocess.run(
        [warm_python(), ROOT / "examples" / example],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "ok" in run.stdout


if __name__ == "__main__":
    check(sys.argv[1])
