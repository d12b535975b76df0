"""Every chain of bench/sync at a small size, in Triton's interpreter: as one program it gives the bits of its kernels one after
another, and what PyTorch gives. Run by test_chain.py. Exits 1 with the first thing that is wrong.
"""

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "bench" / "sync")]

import kernels  # noqa: E402
import library  # noqa: E402
import syncopate as sy  # noqa: E402
import torch  # noqa: E402
import work  # noqa: E402
from syncopate.kernels.gluon_launch import GluonTiling  # noqa: E402

SQUARE = GluonTiling(64, 64, 64, 4)
SMALL = work.Tiling(32, 32, 16, 4, 2)
F32 = torch.float32
WORK = {
    "mlp": lambda: work.mlp(80, 48, 96, "cpu", F32),
    "swiglu": lambda: work.swiglu(72, 32, 64, "cpu", F32),
    "attention": lambda: work.attention_block(96, 48, 2, 16, 16, "cpu", F32),
    "norm": lambda: work.norm_product(70, 48, 64, "cpu", F32),
    "resnet": lambda: work.convolutions(2, 7, 16, 2, "cpu", F32),
    "vgg": lambda: work.convolutions(1, 10, 32, 4, "cpu", F32),
}


def check(name: str, programs: int) -> None:
    one = WORK[name]()
    stages = one.stages(work.Tiling(**vars(SMALL) | {"programs": programs}))
    for stage in stages:
        stage.kernel[stage.grid](**stage.arguments)
    plain = {array: one.arrays[array].clone() for array in one.made}
    one.library()
    one.rest.get("finish", lambda: None)()
    torch.testing.assert_close(one.out, one.expected, rtol=1e-3, atol=1e-3)
    for array in one.made:
        one.arrays[array].fill_(float("nan"))
    fused = sy.fuse([s.kernel for s in stages], bind=[s.bind for s in stages], deadline=10)
    fused.run([fused.call(i, s.grid, **s.arguments) for i, s in enumerate(stages)])
    fused.check()
    for array in one.made:
        if not torch.equal(one.arrays[array], plain[array]):
            raise SystemExit(f"{name}: {array} has not the bits of the plain kernels")
    schedule = fused.prepared[0].schedule
    print(f"{name}: ok, {len(stages)} stages, {len(schedule.chunks(0))} chunks")
    if not schedule.chunks(0) or not fused.prepared[0].artifact.repeatable:
        raise SystemExit(f"{name}: no stage awaits tiles, or the chain would overwrite its input")
    fused.close()


def check_library(one, tilings) -> None:
    """Chains with the library's products, whose plain kernels stand in for them here."""
    one.library()
    stages = one.stages(tilings)
    for array in one.made:
        one.arrays[array].fill_(float("nan"))
    fused = sy.fuse([s.kernel for s in stages], bind=[s.bind for s in stages], deadline=10)
    fused.run([fused.call(i, s.grid, **s.arguments) for i, s in enumerate(stages)])
    fused.check()
    torch.testing.assert_close(one.out, one.expected, rtol=1e-3, atol=1e-3)
    schedule = fused.prepared[0].schedule
    if schedule.overlaps[1:] != [True] * (len(stages) - 1) or not schedule.chunks(0):
        raise SystemExit("library: the stages do not overlap")
    print(f"library: ok, {len(schedule.chunks(0))} chunks")
    fused.close()


def refuse_early_input() -> None:
    """Operand B of the second product is what the first one writes: it cannot leave before the wait."""
    one = library.feed_forward(64, 64, 64, False, "cpu", F32)
    h = one.arrays["H"]
    second = library.Product(one.rest["x"], h, one.arrays["Y"], ("X", "Y"))
    stages = [one.products[0].stage(SQUARE), second.stage(SQUARE)]
    stages[1].bind["b_desc"] = "H"
    fused = sy.fuse([s.kernel for s in stages], bind=[s.bind for s in stages], deadline=10)
    try:
        fused.run([fused.call(i, s.grid, **s.arguments) for i, s in enumerate(stages)])
    except ValueError as error:
        if "b_desc of stage 1 is read before the stage waits, and stage 0 may write H (c_desc)" in str(error):
            fused.close()
            return
    raise SystemExit("an operand B that an earlier stage writes may be read before the wait")


def check_stream_k() -> None:
    """With one program nobody waits for another one, and the interpreter runs one after another."""
    one = work.mlp(64, 48, 96, "cpu", F32)
    stage = one.stages(SMALL)[0]
    given = {k: v for k, v in stage.arguments.items() if not k.startswith("num_")}
    partial, flags = torch.zeros(1, 32, 32), torch.zeros(1, dtype=torch.int32)
    kernels.stream_k[(1,)](**given, partial_ptr=partial, flag_ptr=flags)
    h = one.arrays["H"].clone()
    kernels.product[stage.grid](**given)
    torch.testing.assert_close(h, one.arrays["H"])


if __name__ == "__main__":
    for each in WORK:
        check(each, 0)
        check(each, 5)
    tile, wide = SQUARE, GluonTiling(128, 64, 64, 4, 2)
    check_library(library.feed_forward(200, 128, 192, False, "cpu", F32), (tile, wide))
    check_library(library.normed(70, 64, 128, "cpu", F32), (tile,))
    refuse_early_input()
    check_stream_k()
    print("sync work: ok")
