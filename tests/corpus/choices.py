"""What is chosen when the file is imported, or by how a GPU rounds: definitions in branches of an `if`, floats that decide
a branch or an address."""

import triton
import triton.language as tl

from .cases import Case, case, numbers, unset

B = 16


if not hasattr(tl, "load"):

    @triton.jit
    def copied(x_ptr, y_ptr, B: tl.constexpr):
        o = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y_ptr + o, tl.load(x_ptr + o))

else:

    @triton.jit
    def copied(x_ptr, y_ptr, B: tl.constexpr):
        o = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y_ptr + o, tl.load(x_ptr + tl.num_programs(0) * B - 1 - o))


@case
def a_kernel_in_the_branch_that_was_taken(seed):
    x = numbers((4 * B,), seed)
    args = {"x_ptr": x, "y_ptr": unset((4 * B,)), "B": B}
    return Case(
        copied, (4,), args, {"y_ptr": x.flip(0)}, axes=(4,), gather={"x_ptr": 0}, scatter={"y_ptr": 0}
    )


class Rows:
    @staticmethod
    @triton.jit
    def shifted(x_ptr, y_ptr, B: tl.constexpr):
        o = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y_ptr + o, tl.load(x_ptr + o))


class ShiftedRows:
    @staticmethod
    @triton.jit
    def shifted(x_ptr, y_ptr, B: tl.constexpr):
        o = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y_ptr + o, tl.load(x_ptr + o + B))


@case
def a_method_of_the_second_class_of_its_name(seed):
    x = numbers((4 * B,), seed)
    args = {"x_ptr": x, "y_ptr": unset((3 * B,)), "B": B}
    return Case(ShiftedRows.shifted, (3,), args, {"y_ptr": x[B:]}, axes=(3,), gather={"x_ptr": 0})


@triton.jit
def halves(x_ptr, y_ptr, share, n, B: tl.constexpr):
    """share * n is 29 in fp32, and less in double."""
    o = tl.program_id(0) * B + tl.arange(0, B)
    if share * n >= 29:
        tl.store(y_ptr + o, tl.load(x_ptr + o))
    else:
        tl.store(y_ptr + o, tl.load(x_ptr + tl.num_programs(0) * B + o))


@case
def a_branch_that_rounding_decides(seed):
    x = numbers((8 * B,), seed)
    args = {"x_ptr": x, "y_ptr": unset((4 * B,)), "share": 0.29, "n": 100, "B": B}
    return Case(
        halves, (4,), args, {"y_ptr": x[: 4 * B]}, inexact="which branch is taken depends on how fp32 rounds",
        gather={"x_ptr": 0},
    )  # fmt: skip


@triton.jit
def cut(x_ptr, y_ptr, share, n, B: tl.constexpr):
    o = tl.program_id(0) * B + tl.arange(0, B)
    begin = (share * n).to(tl.int32)
    tl.store(y_ptr + o, tl.load(x_ptr + begin + o))


def cut_case(seed, share, n, begin, **expected):
    x = numbers((4 * B,), seed)
    args = {"x_ptr": x, "y_ptr": unset((2 * B,)), "share": share, "n": n, "B": B}
    return Case(cut, (2,), args, {"y_ptr": x[begin : begin + 2 * B]}, **expected)


@case
def an_address_that_rounding_decides(seed):
    return cut_case(seed, 0.29, 100, 29, refused="which depends on how the GPU rounds")


@case
def an_address_that_no_rounding_changes(seed):
    return cut_case(seed, 0.295, 100, 29, gather={"x_ptr": 0})


@triton.jit
def loop_variable(x_ptr, y_ptr, n, B: tl.constexpr):
    for i in range(n):
        tl.store(y_ptr + i, tl.load(x_ptr + i))
    tl.store(y_ptr + i + 1, tl.load(x_ptr + i + 1))  # noqa: B007


@case
def a_loops_variable_after_the_loop(seed):
    x = numbers((9,), seed)
    args = {"x_ptr": x, "y_ptr": unset((9,)), "n": 8, "B": B}
    return Case(loop_variable, (1,), args, {"y_ptr": x}, refused="which Triton does not keep after the loop")
