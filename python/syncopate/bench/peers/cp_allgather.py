"""torch's context_parallel, K and V gathered at once ("allgather")."""

import torch
import torch.distributed as dist
import torch.nn.functional as F

OPERATORS = ("attention",)


def make(case):
    return within_context(case, "allgather")


def within_context(case, rotation):
    """SDPA inside of it, which is the ring. It takes as many heads of K and V as of Q, and balances causal rows head to
    tail."""
    from torch.distributed.tensor.experimental import context_parallel
    from torch.distributed.tensor.experimental._attention import set_rotate_method

    if not case.on_gpu:
        raise NotImplementedError("torch has no ring on the host")
    if not case.shape.causal:
        raise ValueError("it balances rows, and takes causal attention only")
    if case.cuts:
        raise ValueError("it is called for one document")
    shared = case.shape.heads // case.shape.kv_heads
    q, k, v = case.whole
    buffers = [q.clone(), *(x.repeat_interleave(shared, 1) for x in (k, v))]
    set_rotate_method(rotation)
    mesh = dist.device_mesh.init_device_mesh("cuda", (case.size,))
    # It shards the buffers in place, until it is left, and puts another SDPA in the place of torch's: only this row calls that.
    usual = F.scaled_dot_product_attention
    context = context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2])
    context.__enter__()
    ring, F.scaled_dot_product_attention = F.scaled_dot_product_attention, usual

    def leave():
        F.scaled_dot_product_attention = ring
        context.__exit__(None, None, None)

    case.after(leave)

    def call(_):
        set_rotate_method(rotation)
        return ring(*buffers, is_causal=True)

    case.expect(f"cp_{rotation}", torch.as_tensor(call(0)), case.runs)
    return call
