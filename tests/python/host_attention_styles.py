"""Attention kernels in six public styles, fused with a plan that gathers K and V, on host ranks; run by test_attention.py.

    host_attention_styles.py RANKS

A kernel whose ranges rise must give the bits that it gives alone; one in any order what fp64 gives. All wait in their loops.
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests"), str(ROOT / "tests" / "python")]

import syncopate as sy  # noqa: E402
import torch  # noqa: E402
from attention_styles import BM, STYLES, Style  # noqa: E402
from host_attention import expect, in_fp64, random, seen_by  # noqa: E402
from host_script import on_ranks  # noqa: E402
from syncopate import ranks  # noqa: E402
from syncopate.group import of_folder  # noqa: E402
from syncopate.host import interpreter  # noqa: E402

Z, H, S, D = 1, 2, 128, 16


def check_style(name: str, style: Style, place: ranks.Place, group) -> None:
    rows = sy.plans.shard_rows(S, place.size, block=BM)
    attended = [sy.plans.attended_rows(S, own, causal=style.causal, block=BM) for own in rows]
    mesh = sy.plans.mesh_of(place.size)
    plan = sy.plans.attention(mesh, (Z, H, style.kv_heads, S, D), "bf16", rows, attended, split=2)
    fused = sy.fuse(style.kernel, plan, style.bind, group, host_delay=2e-3, seed=place.rank)
    ((begin, end),) = rows[place.rank]
    for call in range(2):
        q = random((Z, H, S, D), call, 1)
        k, v = (random((Z, style.kv_heads, S, D), call, number) for number in (2, 3))

        def nothing(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.full(shape, float("nan"), dtype=dtype)

        alone = nothing(Z, H, S, D, dtype=q.dtype)
        grid, arguments = style.launch(q, k, v, alone, nothing(Z, H, S, dtype=torch.float32), S)
        style.kernel[grid](**arguments)
        own = [t[:, :, begin:end].contiguous() for t in (q, k, v)]
        out = nothing(Z, H, end - begin, D, dtype=q.dtype)
        lse = nothing(Z, H, end - begin, dtype=torch.float32)
        _, local = style.launch(*own, out, lse, S)
        strides = {key: value for key, value in arguments.items() if key.startswith("stride")}
        fused[grid](**(local | strides))
        fused.check()
        where = f"{name}, call {call}, rank {place.rank}"
        expect(fused.prepared[0].schedule.phased, f"{name}: it does not wait in its loops")
        wanted = alone[:, :, begin:end]
        if not style.any_order:
            expect(torch.equal(out, wanted), f"{where}: it differs from the kernel alone")
        seen = seen_by(torch.arange(begin, end), S, style.causal, 0, [])
        error = float((out.double() - in_fp64(own[0], k, v, D**-0.5, seen)[0]).abs().max())
        expect(error < 2e-2, f"{where}: it is {error} off")
    fused.close()


def check(place: ranks.Place) -> None:
    torch.set_num_threads(1)
    interpreter.repair_bf16()  # for the kernels alone
    group = of_folder(place.folder, place.rank, place.size, place.run_id, "host")
    for name, style in STYLES.items():
        check_style(name, style, place, group)


if __name__ == "__main__":
    on_ranks(check)
    print(f"{sys.argv[1]} ranks: {len(STYLES)} styles", flush=True)
