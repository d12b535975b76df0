"""Compiles fused kernels for sm_90 on a machine without a GPU: compile.py FOLDER, made by worker.py. A line of JSON each."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def compile_job(job: dict) -> dict:
    error = ""
    try:
        compile_source(job)
    except BaseException as failure:  # noqa: BLE001 - the test that asked shows it
        error = f"{type(failure).__name__}: {failure}"[-3000:]
    return {"case": job["case"], "check": "compile", "form": job["form"], "error": error}


def compile_source(job: dict) -> None:
    import triton
    from syncopate.device import jit
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    path = Path(job["path"])
    module = jit.load_module(path.read_text(), job["function"], "corpus", path.parent)
    kernel = getattr(module, job["function"])
    while not hasattr(kernel, "params"):
        kernel = kernel.fn
    signature, constants, attributes = {}, {}, {}

    def kind_of(value: object, path: tuple[int, ...], constant: bool) -> object:
        """The type of an argument in Triton's notation; constants and what is divisible are noted by `path`."""
        if constant or value is None or isinstance(value, (bool, str)) or value == 1:
            constants[path] = tuple(value) if isinstance(value, list) else value
            return "constexpr"
        if isinstance(value, list):
            return tuple(kind_of(item, (*path, i), False) for i, item in enumerate(value))
        if isinstance(value, dict) and "pointer" in value:
            attributes[path] = [["tt.divisibility", 16]]
            return f"*{value['pointer']}"
        if isinstance(value, dict) and "descriptor" in value:
            dtype, block = value["descriptor"]
            return f"tensordesc<{dtype}[{','.join(map(str, block))}]>"
        if isinstance(value, (float, dict)):
            return "fp32"
        if value % 16 == 0:
            attributes[path] = [["tt.divisibility", 16]]
        return "i32"

    given = {**job["arguments"], **{n: v for n, v in job["replace"].items() if not n.startswith("@")}}
    for index, parameter in enumerate(kernel.params):
        value = given.get(parameter.name)
        if parameter.name.startswith("sy_"):
            signature[parameter.name] = "*i32"
            attributes[(index,)] = [["tt.divisibility", 16]]
        else:
            signature[parameter.name] = kind_of(value, (index,), parameter.is_constexpr)
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=attributes),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": job["replace"].get("@num_warps", 4)},
    )
    assert compiled.asm["cubin"], "no code"


def main() -> None:
    sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "python")]
    import triton  # noqa: F401 - imported once, before the fork

    jobs = json.loads((Path(sys.argv[1]) / "jobs.json").read_text())
    with multiprocessing.get_context("fork").Pool(int(os.environ.get("JOBS", os.cpu_count() or 1))) as pool:
        for outcome in pool.imap_unordered(compile_job, jobs):
            print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    main()
