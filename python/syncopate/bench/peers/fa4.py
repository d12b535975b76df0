"""flash-attn-4 (pip install flash-attn-4[cu13]) on K and V that are gathered already."""

import torch

OPERATORS = ("attention",)
WHOLE = False


def make(case):
    if case.cuts:
        raise ValueError("it is called for one document")
    from flash_attn.cute import flash_attn_func

    k, v = (x.transpose(1, 2).contiguous() for x in case.whole[1:])
    parts = [
        (begin, end, part.transpose(1, 2).contiguous())
        for (begin, end), part in zip(
            case.runs, case.q.split([end - begin for begin, end in case.runs], 2), strict=True
        )
    ]

    def call(_):
        causal = case.shape.causal  # at the lower right, as it takes it
        outs = []
        for _begin, end, q in parts:
            seen = end if causal else case.length
            o = flash_attn_func(q, k[:, :seen], v[:, :seen], causal=causal)
            outs.append(o[0] if isinstance(o, tuple) else o)
        return torch.cat(outs, 1).transpose(1, 2)

    case.expect("fa4", call(0), case.runs)
    return call
