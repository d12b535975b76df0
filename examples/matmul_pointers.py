"""C = A @ B, one tile per program, with pointer arithmetic.

The `@sy.` comments state what Syncopate infers by itself here; they are checked against it, and show the directives.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr = "ieee",
):
    pid = tl.program_id(axis=0)  # @sy.tile_id
    num_pid_m = tl.cdiv(M, BLOCK_M)  # @sy.axis_count M block=BLOCK_M
    num_pid_n = tl.cdiv(N, BLOCK_N)  # @sy.axis_count N block=BLOCK_N

    # Groups of GROUP_M rows of tiles, column by column inside a group: neighbours in time share operands in L2.
    # @sy.dispatch begin
    num_pid_in_group = GROUP_M * num_pid_n
    group_id = pid // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + (pid % num_pid_in_group) % group_size_m
    pid_n = (pid % num_pid_in_group) // group_size_m
    # @sy.pid_map M=pid_m N=pid_n
    # @sy.dispatch end

    # Rows and columns beyond the end wrap around, so that the loop needs a mask along K only.
    offs_am = (pid_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    offs_bn = (pid_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    offs_k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + (offs_am[:, None] * stride_am + offs_k[None, :] * stride_ak)
    b_ptrs = b_ptr + (offs_k[:, None] * stride_bk + offs_bn[None, :] * stride_bn)

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        a = tl.load(a_ptrs, mask=offs_k[None, :] < K - k * BLOCK_K, other=0.0)
        b = tl.load(b_ptrs, mask=offs_k[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk

    offs_cm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_cn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    c_ptrs = c_ptr + stride_cm * offs_cm[:, None] + stride_cn * offs_cn[None, :]
    c_mask = (offs_cm[:, None] < M) & (offs_cn[None, :] < N)
    tl.store(c_ptrs, acc.to(c_ptr.dtype.element_ty), mask=c_mask)
    # @sy.producer_epilogue


def matmul(a, b, block_m=128, block_n=128, block_k=64, group_m=8):
    """`a` is M×K, `b` is K×N; any strides."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    grid = (triton.cdiv(M, block_m) * triton.cdiv(N, block_n),)
    matmul_kernel[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        *a.stride(),
        *b.stride(),
        *c.stride(),
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP_M=group_m,
    )
    return c


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"  # on the CPU with TRITON_INTERPRET=1
    for dtype in [torch.float32, torch.float16] + [torch.bfloat16] * on_gpu:
        a = torch.randint(-3, 4, (200, 96), device=device).to(dtype)
        b = torch.randint(-3, 4, (96, 144), device=device).to(dtype)
        c = matmul(a, b, block_m=64, block_n=64, block_k=32, group_m=2)
        torch.testing.assert_close(c, (a.float() @ b.float()).to(dtype), rtol=0, atol=0)
        print(f"{dtype}: ok")
