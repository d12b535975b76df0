"""C = A @ Bᵀ, persistent: one program per SM runs many tiles. The descriptors are made in the kernel."""

import torch
import triton
import triton.language as tl
from syncopate.language import sy_acquire, sy_finish, sy_post  # the schedule's tiles, waits and posts


@triton.jit
def matmul_kernel(
    a_ptr,
    b_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_SMS: tl.constexpr, sy_schedule, sy_control,
    PRECISION: tl.constexpr = "ieee",
):
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_tiles = num_pid_m * num_pid_n
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_pid_in_group = GROUP_M * num_pid_n

    a_desc = tl.make_tensor_descriptor(a_ptr, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    c_desc = tl.make_tensor_descriptor(c_ptr, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, BLOCK_N])

    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS):  # @sy.tile_id persistent
        sy_slot = tile_id  # which is done after the last store
        tile_id = sy_acquire(sy_schedule, sy_control, tile_id)  # the tile of this slot, once its chunks have arrived
        group_id = tile_id // num_pid_in_group
        first_pid_m = group_id * GROUP_M
        group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
        pid_m = first_pid_m + (tile_id % num_pid_in_group) % group_size_m
        pid_n = (tile_id % num_pid_in_group) // group_size_m
        offs_m = pid_m * BLOCK_M
        offs_n = pid_n * BLOCK_N

        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for k in range(k_tiles):
            a = a_desc.load([offs_m, k * BLOCK_K])
            b = b_desc.load([offs_n, k * BLOCK_K])
            acc = tl.dot(a, b.T, acc, input_precision=PRECISION)
        c_desc.store([offs_m, offs_n], acc.to(c_ptr.dtype.element_ty))
        sy_post(sy_schedule, sy_control, sy_slot)  # this tile is stored: the last one of a chunk lets it leave
    sy_finish(sy_schedule, sy_control)  # the last program to end tells the ranks that may now send again


def matmul(a, b, block_m=128, block_n=128, block_k=64, group_m=8, num_sms=None):
    """`a` is M×K, `b` is N×K, both contiguous, with rows of a multiple of 16 bytes (as TMA asks)."""
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    if num_sms is None:
        num_sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    if a.is_cuda:  # where the descriptors that the kernel makes are kept
        triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device=a.device))
    grid = (min(num_sms, triton.cdiv(M, block_m) * triton.cdiv(N, block_n)),)
    matmul_kernel[grid](
        a,
        b,
        c,
        M,
        N,
        K,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP_M=group_m,
        NUM_SMS=num_sms,
    )
    return c


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"  # on the CPU with TRITON_INTERPRET=1
    for dtype in [torch.float32, torch.float16] + [torch.bfloat16] * on_gpu:
        a = torch.randint(-3, 4, (200, 96), device=device).to(dtype)
        b = torch.randint(-3, 4, (144, 96), device=device).to(dtype)
        c = matmul(a, b, block_m=64, block_n=64, block_k=32, group_m=2, num_sms=5)
        torch.testing.assert_close(c, (a.float() @ b.float().T).to(dtype), rtol=0, atol=0)
        print(f"{dtype}: ok")
