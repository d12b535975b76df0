"""C = A @ Bᵀ, persistent, with descriptors made on the host.

The loop over tiles and the one over K are flattened into one, so that the next tile's loads start under this tile's
epilogue; the epilogue counts its tiles by itself for that (`tile_id_c`).
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor
from syncopate.language import sy_acquire, sy_finish, sy_reads_own, sy_tile  # the schedule's tiles, waits and posts


@triton.jit
def _compute_pid(tile_id, num_pid_in_group, num_pid_m, GROUP_M: tl.constexpr):
    group_id = tile_id // num_pid_in_group
    first_pid_m = group_id * GROUP_M
    group_size_m = min(num_pid_m - first_pid_m, GROUP_M)
    pid_m = first_pid_m + (tile_id % group_size_m)
    pid_n = (tile_id % num_pid_in_group) // group_size_m
    return pid_m, pid_n


@triton.jit
def matmul_kernel(
    a_desc,
    b_desc,
    c_desc,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    NUM_SMS: tl.constexpr, sy_schedule, sy_control, sy_own,
    PRECISION: tl.constexpr = "ieee",
):
    start_pid = tl.program_id(axis=0)
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    k_tiles = tl.cdiv(K, BLOCK_K)
    num_tiles = num_pid_m * num_pid_n
    num_pid_in_group = GROUP_M * num_pid_n

    tile_id_c = start_pid - NUM_SMS
    for tile_id in tl.range(start_pid, num_tiles, NUM_SMS, flatten=True):
        sy_slot = tile_id  # which knows where its tile reads
        tile_id = sy_acquire(sy_schedule, sy_control, tile_id)  # the tile of this slot, once its chunks have arrived
        sy_from = a_desc
        if sy_reads_own(sy_schedule, sy_slot):  # of what this rank was given, where that is
            sy_from = sy_own
        pid_m, pid_n = _compute_pid(tile_id, num_pid_in_group, num_pid_m, GROUP_M)
        offs_am = pid_m * BLOCK_M
        offs_bn = pid_n * BLOCK_N

        acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for ki in range(k_tiles):
            offs_k = ki * BLOCK_K
            a = sy_from.load([offs_am, offs_k])
            b = b_desc.load([offs_bn, offs_k])
            acc = tl.dot(a, b.T, acc, input_precision=PRECISION)

        tile_id_c += NUM_SMS
        pid_m, pid_n = _compute_pid(sy_tile(sy_schedule, tile_id_c), num_pid_in_group, num_pid_m, GROUP_M)
        offs_cm = pid_m * BLOCK_M
        offs_cn = pid_n * BLOCK_N
        c_desc.store([offs_cm, offs_cn], acc.to(c_desc.dtype))
    sy_finish(sy_schedule, sy_control)  # the last program to end tells the ranks that may now send again


def matmul(a, b, block_m=128, block_n=128, block_k=64, group_m=8, num_sms=None):
    """`a` is M×K, `b` is N×K, both contiguous, with rows of a multiple of 16 bytes (as TMA asks)."""
    (M, K), N = a.shape, b.shape[0]
    c = torch.empty((M, N), device=a.device, dtype=a.dtype)
    if num_sms is None:
        num_sms = torch.cuda.get_device_properties(a.device).multi_processor_count
    grid = (min(num_sms, triton.cdiv(M, block_m) * triton.cdiv(N, block_n)),)
    matmul_kernel[grid](
        TensorDescriptor.from_tensor(a, [block_m, block_k]),
        TensorDescriptor.from_tensor(b, [block_n, block_k]),
        TensorDescriptor.from_tensor(c, [block_m, block_n]),
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
