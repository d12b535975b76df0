"""The plain kernel of attention in passes, fused with a plan of K and V and compiled for sm_90 without a GPU; run by
test_attention.py.

    attention_pass_compiled.py HEAD_DIM          prints {"phased", "constant", "wgmma", "spilled"} as JSON

"constant": what differs from pass to pass, and Triton may take for a constant all the same.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python")]

import triton  # noqa: E402
from syncopate import _syncopate, plans  # noqa: E402
from syncopate.device import jit  # noqa: E402
from syncopate.kernels import attention_pass as library  # noqa: E402
from syncopate.ops.attention_rules import attention_tiling  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

RANKS, H, HKV, ROWS, WIDTH = 2, 8, 2, 1024, 1024


def main(d: int) -> None:
    tiling = attention_tiling(d, "cuda")
    m, n = tiling.block_m, tiling.block_n
    places = plans.shard_rows(WIDTH, RANKS)
    plan = plans.attention(plans.mesh_of(RANKS), (1, H, HKV, WIDTH, d), "bf16", places, only_kv=True)
    scalars = {"scale": 0.1, "B": 1, "H": H, "HKV": HKV, "SQ": ROWS, "SK": WIDTH, "FIRST": 1, "LAST": 0}
    constants = {"D": d, "BM": m, "BN": n}
    blocks = {"q_desc": m, "k_desc": n, "v_desc": n, "o_desc": m}
    tensors = {
        name: ([1, H, ROWS, d] if name[0] in "qo" else [1, HKV, WIDTH, d], [], "bf16", [1, 1, rows, d])
        for name, rows in blocks.items()
    }
    for name, shape, dtype in (
        ("l_ptr", [1, H, ROWS], "fp32"),
        ("carry_ptr", [1, H, ROWS, d], "fp32"),
        ("tops_ptr", [2, 1, H, ROWS], "fp32"),
        ("seen_ptr", [2, ROWS], "int32"),
        ("position_ptr", [WIDTH], "int32"),
    ):
        tensors[name] = (shape, [], dtype, [])
    text = Path(library.__file__).read_text()
    bind = {"k_desc": "K", "v_desc": "V"}
    stage = (
        text, library.__file__, "attention_pass", bind, scalars | constants, tensors, (ROWS // m * H, 1, 1),
    )  # fmt: skip
    artifact = _syncopate.fuse([stage], plan, "cuda", 132, values=[{}])
    with tempfile.TemporaryDirectory() as folder:
        module = jit.load_module(
            artifact.kernel_source, "attention_pass", "syncopate.kernels", folder=Path(folder)
        )
        print(
            json.dumps(
                {"phased": artifact.schedule.phased, "constant": constant(module.attention_pass)}
                | compiled(module.attention_pass, constants, blocks, tiling)
            )
        )


def constant(kernel) -> list[str]:
    return [p.name for p in kernel.params if p.name in ("FIRST", "LAST") and not p.do_not_specialize]


def compiled(kernel, constants, blocks, tiling) -> dict[str, int]:
    def kind(parameter: str) -> str:
        if parameter in constants:
            return "constexpr"
        if parameter in blocks:
            return f"tensordesc<bf16[1,1,{blocks[parameter]},{constants['D']}]>"
        if parameter in ("l_ptr", "carry_ptr", "tops_ptr"):
            return "*fp32"
        if parameter == "scale":
            return "fp32"
        return "*i32" if parameter.endswith("_ptr") or parameter.startswith("sy_") else "i32"

    signature = {parameter: kind(parameter) for parameter in kernel.arg_names}
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*")
    }
    made = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": tiling.num_warps, "num_stages": tiling.num_stages},
    )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    spilled = sum(int(word.removeprefix("LOCAL:")) for word in printed.split() if word.startswith("LOCAL:"))
    return {"wgmma": made.asm["ptx"].count("wgmma.mma_async"), "spilled": spilled}


if __name__ == "__main__":
    main(int(sys.argv[1]))
