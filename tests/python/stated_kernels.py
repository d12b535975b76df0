"""A kernel in Gluon of which nothing is inferred, its statement, and the Triton kernel that stands in for it on host."""

import syncopate as sy
import triton
import triton.experimental.gluon.language as gl
import triton.language as tl
from syncopate.gluon import sy_await, sy_finish, sy_num_slots, sy_post, sy_tile
from triton.experimental import gluon


@gluon.jit
def scale_rows(
    x_ptr,
    y_ptr,
    M,
    N,
    factor,
    sy_schedule,
    sy_control,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BEYOND: gl.constexpr = 0,  # elements to the right that it reads beyond its statement
    WAITS: gl.constexpr = True,
    POSTS: gl.constexpr = True,
):
    """y [M, N] = factor * x, by one warp a program."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [1, 32], [1, 1], [1, 0])
    num_n = gl.cdiv(N, BLOCK_N)
    for slot in range(gl.program_id(0), sy_num_slots(sy_schedule), gl.num_programs(0)):
        if WAITS:
            tile = sy_await(sy_schedule, sy_control, slot)
        else:
            tile = sy_tile(sy_schedule, slot)
        rows = tile // num_n * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, layout))[:, None]
        columns = tile % num_n * BLOCK_N + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, layout))[None, :]
        inside = (rows < M) & (columns < N)
        x = gl.load(x_ptr + rows * N + columns, mask=inside)
        if BEYOND > 0:
            x += gl.load(x_ptr + rows * N + columns + BEYOND, mask=inside & (columns + BEYOND < N), other=0.0)
        gl.store(y_ptr + rows * N + columns, x * factor, mask=inside)
        if POSTS:
            sy_post(sy_schedule, sy_control, slot)
    sy_finish(sy_schedule, sy_control)


@triton.jit
def scale_rows_plain(x_ptr, y_ptr, M, N, factor, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    num_n = tl.cdiv(N, BLOCK_N)
    for tile in range(tl.program_id(0), tl.cdiv(M, BLOCK_M) * num_n, tl.num_programs(0)):
        rows = tile // num_n * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        columns = tile % num_n * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
        inside = (rows < M) & (columns < N)
        x = tl.load(x_ptr + rows * N + columns, mask=inside)
        tl.store(y_ptr + rows * N + columns, x * factor, mask=inside)


BOX = ["m*BLOCK_M : (m+1)*BLOCK_M", "n*BLOCK_N : (n+1)*BLOCK_N"]


def stated(**changed) -> sy.StatedKernel:
    """scale_rows with its statement, of which some keys are changed."""
    statement = {
        "tiles": {"m": "cdiv(M, BLOCK_M)", "n": "cdiv(N, BLOCK_N)"},
        "reads": {"x_ptr": BOX},
        "writes": {"y_ptr": BOX},
        "host": scale_rows_plain,
    }
    return sy.kernel(scale_rows, **statement | changed)
