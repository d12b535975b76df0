"""What the library's Gluon kernels take of a Hopper multiprocessor, compiled here for sm_90 without a GPU; run by
test_gluon_resources.py.

    gluon_resources.py            prints the table
    gluon_resources.py --every=N  of every N-th kernel
    gluon_resources.py --write    replaces gluon_resources.csv beside this file
    gluon_resources.py --count=N  says how many of every N-th compile, and of the others why not
"""

import csv
import functools
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_suffix(".csv")
FIELDS = (
    "kernel",
    "registers",
    "spilled_bytes",
    "stack_bytes",
    "shared_bytes",
    "address_loops",
    "spills_in_loops",
    "lone_products",
    "adds_that_return",
)
sys.path[:0] = [str(ROOT / "python")]

import torch  # noqa: E402
import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402


class Sm90:
    """A driver without a device: it says what to compile for."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, _device: int = 0) -> int:
        return 0


def gemms():
    """(name, tiling, arguments besides the usual ones): what the operators and bench/gemm launch."""
    from syncopate.kernels.gluon_launch import GluonTiling

    fused = {"FUSED": True, "B_EARLY": True, "TELLS": True, "COUNTS_END": True}
    pushed = fused | {"PUSHED": True}
    yield "64x64x128/6 fused", GluonTiling(64, 64, 128, 6), fused
    yield "64x64x128/6 split 2 fused", GluonTiling(64, 64, 128, 6, 2), fused
    yield "64x64x128/6 fused, 80 rows by 32", GluonTiling(64, 64, 128, 6), fused | {"M": 80}
    yield "128x256x64/3 fused, 1027 rows by 16", GluonTiling(128, 256, 64, 3), fused | {"M": 1027}
    yield "64x128x128/4 fused", GluonTiling(64, 128, 128, 4), fused
    chained = fused | {"STARTS_NEXT": True, "w_transposed": True}
    yield "64x64x128/6 split 2 chained", GluonTiling(64, 64, 128, 6, 2), chained
    yield "128x128x64/4 gated chained", GluonTiling(128, 128, 64, 4), chained | {"gated": True}
    headed = chained | {"HEAD_START": True}
    yield "128x256x64/3 chained, head start", GluonTiling(128, 256, 64, 3), headed
    yield "16x32x128/16 fused", GluonTiling(16, 32, 128, 16), fused
    yield "16x64x128/10 split 3 fused", GluonTiling(16, 64, 128, 10, 3), fused | {"M": 16}
    yield "32x64x128/8 fused transposed", GluonTiling(32, 64, 128, 8), fused | {"w_transposed": True}
    yield "64x192x64/6 split 2 fused", GluonTiling(64, 192, 64, 6, 2), fused
    yield (
        "128x192x64/4 fused pushed transposed",
        GluonTiling(128, 192, 64, 4),
        pushed | {"w_transposed": True},
    )
    yield "128x96x64/6 fused transposed", GluonTiling(128, 96, 64, 6), fused | {"w_transposed": True}
    yield "64x96x64/8 split 2 fused pushed", GluonTiling(64, 96, 64, 8, 2), pushed
    yield "192x192x64/3", GluonTiling(192, 192, 64, 3), {}
    yield (
        "192x192x64/3 fused pushed to 8, sums 8",
        GluonTiling(192, 192, 64, 3),
        {"FUSED": True, "B_EARLY": True, "PUSHED": True, "COPIES": 8, "SUMS": 8},
    )
    whole = pushed | {"bias": True, "w_transposed": True}
    yield "128x256x64/3 whole bias fused pushed transposed", GluonTiling(128, 256, 64, 3), whole
    yield "64x256x64/4", GluonTiling(64, 256, 64, 4), {}
    yield "128x128x64/5 fused pushed", GluonTiling(128, 128, 64, 5), fused | {"PUSHED": True}
    yield (
        "128x128x64/5 fused pushed to 8",
        GluonTiling(128, 128, 64, 5),
        fused | {"PUSHED": True, "COPIES": 8},
    )
    yield "128x256x64/3", GluonTiling(128, 256, 64, 3), {}
    yield "128x256x64/3 after a kernel", GluonTiling(128, 256, 64, 3), {"B_EARLY": True, "AFTER_KERNEL": True}
    yield "128x256x64/3 fused", GluonTiling(128, 256, 64, 3), fused
    yield (
        "128x256x64/3 fused fetched gelu",
        GluonTiling(128, 256, 64, 3),
        fused
        | {
            "FETCHED": True,
            "activation": "gelu",
        },
    )
    yield "128x256x64/3 fused own", GluonTiling(128, 256, 64, 3), fused | {"OWN": True}
    yield "128x256x64/3 fused transposed", GluonTiling(128, 256, 64, 3), fused | {"w_transposed": True}
    sums = {"FUSED": True, "B_EARLY": True, "PUSHED": True}
    yield (
        "16x32x128/16 fused pushed to 8, sums 8",
        GluonTiling(16, 32, 128, 16),
        sums | {"COPIES": 8, "SUMS": 8},
    )
    yield "64x64x128/6 split 2 fused pushed, sums 2", GluonTiling(64, 64, 128, 6, 2), sums | {"SUMS": 2}
    yield "128x128x64/5 fused pushed, sums 4", GluonTiling(128, 128, 64, 5), sums | {"SUMS": 4}
    fp8 = fused | {"OWN": True, "w_transposed": True, "scales": "row"}
    yield "16x32x128/32 fp8 rows fused own", GluonTiling(16, 32, 128, 32), fp8 | {"M": 16}
    yield "64x64x128/12 split 2 fp8 rows fused own", GluonTiling(64, 64, 128, 12, 2), fp8
    yield "64x256x128/4 fp8 rows fused own", GluonTiling(64, 256, 128, 4), fp8
    yield "128x256x128/3 fp8 rows fused own", GluonTiling(128, 256, 128, 3), fp8
    yield "128x128x128/5 fp8 blocks fused own", GluonTiling(128, 128, 128, 5), fp8 | {"scales": "block"}
    yield "128x128x64/4 gated", GluonTiling(128, 128, 64, 4), {"gated": True, "activation": "silu"}
    gated = chained | {"gated": True, "activation": "silu"}
    yield "128x96x64/4 gated chained", GluonTiling(128, 96, 64, 4), gated
    yield "64x96x64/6 split 2 gated chained", GluonTiling(64, 96, 64, 6, 2), gated
    copied = fused | {"OWN": True, "copy": True}
    yield "128x256x64/3 fused own copied", GluonTiling(128, 256, 64, 3), copied
    yield "128x192x64/4 fused own copied", GluonTiling(128, 192, 64, 4), copied
    yield "192x192x64/3 fused own copied", GluonTiling(192, 192, 64, 3), copied
    yield "64x64x128/6 split 2 fused own copied", GluonTiling(64, 64, 128, 6, 2), copied
    yield "16x64x128/10 fused own copied", GluonTiling(16, 64, 128, 10), copied
    copied = fp8 | {"copy": True}
    yield "128x256x128/3 fp8 rows fused own copied", GluonTiling(128, 256, 128, 3), copied
    yield (
        "128x128x128/5 fp8 blocks fused own copied",
        GluonTiling(128, 128, 128, 5),
        copied | {"scales": "block"},
    )


def compile_gemm(tiling, options):
    from syncopate.device import jit
    from syncopate.kernels.gluon_launch import gluon_arguments, make_workspace
    from syncopate.kernels.gluon_matmul import gluon_matmul
    from syncopate.ops.scales import shapes_of

    m, n, k = options.pop("M", 1024), 4096, 2048  # K is split for so many tiles at most

    scales = options.pop("scales", "")
    dtype = torch.float8_e4m3fn if scales else torch.bfloat16

    def empty(*shape, dtype=dtype):
        return torch.empty(shape, dtype=dtype)

    gated = options.get("gated", False)
    w = empty(n, k) if options.get("w_transposed") else empty(k, n * (1 + gated))
    if options.get("bias"):
        options["bias"] = empty(m, n)
    if options.get("copy"):
        options["copy"] = empty(m, k)
    given = [empty(*shape, dtype=torch.float32) for shape in shapes_of(scales, m, n, k).values()]
    arguments = gluon_arguments(
        empty(m, k),
        w,
        empty(m, n, dtype=torch.bfloat16),
        (m, n, k),
        tiling,
        workspace=make_workspace(tiling, m, n, "cpu", gated),
        scales=tuple(given) or None,
        **options,
    )
    if arguments.get("OWN"):
        arguments["sy_own"] = arguments["a_desc"]
    if arguments.get("SUMS"):
        arguments["sy_sums"] = 1 << 40
    arguments["sy_schedule"] = arguments["sy_control"] = 1 << 40  # addresses
    return gluon_matmul.warmup(*jit.in_order(gluon_matmul, arguments), grid=(132,), **tiling.options())


def attentions():
    """(name, D, options): what the library launches."""
    yield "d128", 128, {}
    yield "d128 causal", 128, {"causal": True}
    yield "d128 causal fused", 128, {"causal": True, "FUSED": True}
    yield "d128 documents fused", 128, {"causal": True, "FUSED": True, "cu_seqlens": [0, 137, 1000]}
    yield "d128 causal placed fused", 128, {"causal": True, "FUSED": True, "placed": True}
    yield "d256 placed fused", 256, {"FUSED": True, "placed": True}
    yield "d128 pass fused", 128, {"FUSED": True, "one_pass": True}
    yield "d64 causal window", 64, {"causal": True, "window": 100}
    yield "d256 causal fused", 256, {"causal": True, "FUSED": True}
    yield "d256 pass fused", 256, {"FUSED": True, "one_pass": True}


def compile_attention(d, options):
    from syncopate.device import jit
    from syncopate.kernels.gluon_attention import gluon_attention
    from syncopate.kernels.gluon_attention_call import (
        Pass,
        Placed,
        document_tables,
        gluon_attention_arguments,
        pass_tables,
        tiling_of,
    )

    tiling, s = tiling_of(d), 1000
    cu_seqlens = options.pop("cu_seqlens", None)
    if cu_seqlens:
        options["documents"] = document_tables(cu_seqlens, tiling, causal=options["causal"])
    if options.pop("one_pass", False):
        row = torch.arange(s)
        options["documents"] = pass_tables(
            torch.stack([0 * row, row + 1]), row, tiling.block_m, tiling.block_n
        )
        carry, tops = torch.empty(1, 4, s, d), torch.empty(2, 1, 4, s)
        options["later"] = Pass(row.to(torch.int32), carry, tops, True, False)
    rows = s
    if options.pop("placed", False):
        rows = s // 2
        own = torch.empty(1, 2, rows, d, dtype=torch.bfloat16)
        options["placed"] = Placed(torch.zeros(-(-s // tiling.block_n), dtype=torch.int32), own, own)
    q, o = (torch.empty(1, 4, rows, d, dtype=torch.bfloat16) for _ in range(2))
    k, v = (torch.empty(1, 2, s, d, dtype=torch.bfloat16) for _ in range(2))
    arguments = gluon_attention_arguments(q, k, v, o, torch.empty(1, 4, s), tiling, **options)
    arguments["sy_schedule"] = arguments["sy_control"] = 1 << 40  # addresses
    return gluon_attention.warmup(*jit.in_order(gluon_attention, arguments), grid=(132,), **tiling.options())


def backwards():
    """(name, D, options) of the attention's backward."""
    yield "d128", 128, {}
    yield "d128 causal", 128, {"causal": True}
    yield "d128 tables", 128, {"tables": True}
    yield "d64 causal window", 64, {"causal": True, "window": 100}
    fused = {"tables": True, "FUSED": True}
    yield "d128 fused", 128, fused
    yield "d64 fused", 64, fused
    yield "d128 fused, dQ apart", 128, fused | {"ADD_DQ": False}
    yield "d256", 256, {}
    yield "d256 causal", 256, {"causal": True}
    yield "d256 fused", 256, fused
    yield "d256 fused, dQ apart", 256, fused | {"ADD_DQ": False}


def compile_backward(d, options):
    from syncopate.device import jit
    from syncopate.kernels.gluon_attention_backward import gluon_attention_backward
    from syncopate.kernels.gluon_attention_backward_call import OPTIONS, backward_arguments, backward_tables

    s = 1024
    if options.pop("tables", False):
        row = torch.arange(s)
        options["tables"] = backward_tables(torch.stack([0 * row, row + 1]), s, d)
    q = torch.empty(1, 4, s, d, dtype=torch.bfloat16)
    k, v = (torch.empty(1, 2, s, d, dtype=torch.bfloat16) for _ in range(2))
    rows, sums = torch.empty(4, s), torch.empty(4, s, d)
    arguments = backward_arguments(q, q, k, v, rows, rows, sums, k, v, **options)
    arguments["sy_schedule"] = arguments["sy_control"] = 1 << 40  # addresses
    return gluon_attention_backward.warmup(
        *jit.in_order(gluon_attention_backward, arguments), grid=(16,), **OPTIONS
    )


def compile_experts(name):
    """Products of fp8 experts with scales of blocks."""
    from syncopate.device import jit
    from syncopate.kernels import gluon_moe_call, gluon_moe_scaled

    experts, rows, h, f = 4, 512, 2048, 768

    def empty(*shape, dtype=torch.float8_e4m3fn):
        return torch.empty(shape, dtype=dtype)

    x, a = empty(rows, h), empty(rows, f)
    words = empty(64, dtype=torch.int32)
    arguments = {
        "a_scale_ptr": empty(rows, f // 128, dtype=torch.float32),
        "H": h,
        "F": f,
        "ACTIVATION": "silu",
    }
    arguments |= {"sy_schedule": words, "sy_control": words, "STAGES": gluon_moe_call.stages_of(name, 4)}
    if name == "moe_up":
        arguments |= gluon_moe_call.up_operands(x, empty(experts, 2 * f, h), a)
        arguments |= {"x_scale_ptr": empty(rows, h // 128, dtype=torch.float32), "COLUMNS": f // 128}
        arguments["w_scale_ptr"] = empty(experts, 2 * f // 128, h // 128, dtype=torch.float32)
    else:
        arguments |= gluon_moe_call.down_operands(a, empty(experts, h, f)) | {"COLUMNS": h // 128}
        arguments |= {"rank": 0, "stride": 1 << 40, "ROUTES": rows, "origin_ptr": words}
        arguments["w_scale_ptr"] = empty(experts, h // 128, f // 128, dtype=torch.float32)
        arguments["y_ptr"] = empty(rows, h, dtype=torch.bfloat16)
    kernel = getattr(gluon_moe_scaled, f"gluon_{name}_scaled")
    return kernel.warmup(*jit.in_order(kernel, arguments), grid=(132,), **gluon_moe_call.OPTIONS)


def compile_up():
    """The first product of 16-bit experts."""
    from syncopate.device import jit
    from syncopate.kernels import gluon_moe_call
    from syncopate.kernels.gluon_moe import gluon_moe_up

    h, f = 2048, 768
    x, w, a = (torch.empty(*shape, dtype=torch.bfloat16) for shape in ((512, h), (4, h, 2 * f), (512, f)))
    words = torch.empty(64, dtype=torch.int32)
    arguments = gluon_moe_call.wide_up_operands(x, w, a) | {"sy_schedule": words, "sy_control": words}
    arguments |= {"H": h, "F": f, "COLUMNS": f // 128, "ACTIVATION": "silu", "STAGES": 4}
    return gluon_moe_up.warmup(*jit.in_order(gluon_moe_up, arguments), grid=(132,), **gluon_moe_call.OPTIONS)


def compile_made_dq(d):
    from syncopate.device import jit
    from syncopate.kernels import gluon_attention_backward_call as of_backward

    s, (m, n, stages) = 1024, of_backward.DQ_TILES[d]
    q, k = (torch.empty(1, heads, s, d, dtype=torch.bfloat16) for heads in (4, 2))
    rows, table = torch.empty(1, 4, s), torch.empty(2, s, dtype=torch.int32)
    given = {name: of_backward._descriptor(q, m) for name in ("q_desc", "do_desc")}
    given |= {name: of_backward._descriptor(k, n) for name in ("k_desc", "v_desc")}
    given |= {"lse_ptr": rows, "delta_ptr": rows, "dq_ptr": q, "bounds_ptr": table, "seen_ptr": table}
    given |= {
        "padded": s,
        "scale": 0.1,
        "H": 4,
        "HKV": 2,
        "SQ": s,
        "D": d,
        "BM": m,
        "BN": n,
        "STAGES": stages,
    }
    kernel = of_backward.gluon_attention_backward_q
    return kernel.warmup(*jit.in_order(kernel, given), grid=(32,), **of_backward.OPTIONS)


#: What lse_ptr and the like of a plain kernel point at.
ROWS_OF_NUMBERS = {
    "lse_ptr": "fp32",
    "delta_ptr": "fp32",
    "sum_ptr": "fp32",
    "blocks_ptr": "i32",
    "seen_ptr": "i32",
}


def compile_dq(d):
    """The plain kernel beside the backward's, with its tile there."""
    from syncopate import _syncopate
    from syncopate.kernels.attention_backward import attention_backward_q
    from triton.compiler import ASTSource

    _, _, tile, why = _syncopate.ops.attention_backward_kernel(d, "bf16", 1.0, True, True)
    assert not why, why
    m, n = tile["block_m"], tile["block_n"]
    constants = {"FIRST": True, "LAST": True, "D": d, "BM": m, "BN": n}
    types = {name: "i32" for name in attention_backward_q.arg_names}
    types |= {
        f"{name}_desc": f"tensordesc<bf16[1, 1, {rows}, {d}]>"
        for name, rows in {"q": m, "do": m, "k": n, "v": n}.items()
    }
    types |= {name: f"*{of}" for name, of in ROWS_OF_NUMBERS.items()} | {"dq_ptr": "*bf16", "scale": "fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    attrs = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(types) if name.endswith("_ptr")}
    source = ASTSource(attention_backward_q, types, constants, attrs)
    options = {"num_warps": tile["warps"], "num_stages": tile["stages"]}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def resources(binary) -> dict[str, int]:
    """`address_loops`: where the assembler does not see that an address is the same in a whole warp, it asks for it in a loop,
    which a loader has no time for: a product by tiles of 128x128 then takes a fifth longer. What decides is not in our
    hands but for the order of the partitions, so it has to be looked at. `spills_in_loops`: what the innermost loops around
    the tensor cores' instructions keep in memory, for want of registers. `lone_products`: instructions of one product that it
    awaits one by one, as it does in the whole kernel where it finds no other way to keep sums in their registers: a quarter slower.
    `adds_that_return`: additions to memory of which the assembler takes the old value to be asked for, and waits for it: a third."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.asm["cubin"])
        file.flush()
        command = [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", "--dump-sass", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"\b(REG|STACK|LOCAL):(\d+)", printed))
    return {
        "registers": int(found["REG"]),
        "spilled_bytes": int(found["LOCAL"]),
        "stack_bytes": int(found["STACK"]),
        "shared_bytes": int(binary.metadata.shared),
        "address_loops": len(re.findall(r"\bBRA\.U\.ANY\b", printed)),
        "spills_in_loops": spills_in_loops(printed),
        "lone_products": lone_products(printed),
        "adds_that_return": len(re.findall(r"\bATOMG\.E\.ADD\.F32", printed)),
    }


def lone_products(sass: str) -> int:
    found, sums = 0, None
    for text in re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", sass):
        if product := re.search(r"\bHGMMA\.\S+ (R\d+)", text):
            found += product.group(1) == sums
            sums = product.group(1) if "gsb0" in text else None
        elif re.search(r"\b(BRA|SYNCS|BAR)\b", text):
            sums = None
    return found


def spills_in_loops(sass: str) -> int:
    code = [(int(at, 16), text) for at, text in re.findall(r"/\*([0-9a-f]{4,5})\*/\s+(.*?);", sass)]
    back = ((at, re.search(r"\bBRA\b.*0x([0-9a-f]+)", text)) for at, text in code)
    loops = [(int(to.group(1), 16), at) for at, to in back if to and int(to.group(1), 16) < at]
    inner = set()
    for at in (at for at, text in code if "HGMMA" in text):
        around = [loop for loop in loops if loop[0] <= at <= loop[1]]
        inner |= {min(around, key=lambda loop: loop[1] - loop[0])} if around else set()
    kept = [at for at, text in code if re.search(r"\b(STL|LDL)\b", text)]
    return sum(any(begin <= at <= end for begin, end in inner) for at in kept)


def kernels():
    """(name, what compiles it)."""
    for name, tiling, options in gemms():
        yield f"gluon_matmul {name}", functools.partial(compile_gemm, tiling, dict(options))
    for name, d, options in attentions():
        yield f"gluon_attention {name}", functools.partial(compile_attention, d, dict(options))
    for name, d, options in backwards():
        yield f"gluon_attention_backward {name}", functools.partial(compile_backward, d, dict(options))
    yield "gluon_moe_up", compile_up
    for name in ("moe_up", "moe_down"):
        yield f"gluon_{name}_scaled", functools.partial(compile_experts, name)
    yield "attention_backward_q d256", functools.partial(compile_dq, 256)
    for d in (64, 128):
        yield f"gluon_attention_backward_q d{d}", functools.partial(compile_made_dq, d)


def table(every: int) -> str:
    text = io.StringIO()
    rows = csv.DictWriter(text, FIELDS, lineterminator="\n")
    rows.writeheader()
    for name, compile_it in list(kernels())[::every]:
        rows.writerow({"kernel": name} | resources(compile_it()))
    return text.getvalue()


def count(every: int) -> str:
    tried, why = 0, []
    for name, compile_it in list(kernels())[::every]:
        tried += 1
        try:
            compile_it()
        except Exception as error:  # noqa: BLE001 - whatever this Triton says of it
            why.append(f"{name}: {type(error).__name__}: {str(error).strip().splitlines()[-1:]}")
    return "\n".join([*why, f"{tried - len(why)} of {tried} compile", ""])


if __name__ == "__main__":
    driver.set_active(Sm90())
    asked = dict(word.lstrip("-").split("=") for word in sys.argv[1:] if "=" in word)
    made = count(int(asked["count"])) if "count" in asked else table(int(asked.get("every", 1)))
    if "--write" in sys.argv[1:]:
        TABLE.write_text(made)
    print(made, end="")
