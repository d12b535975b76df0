"""PyTorch's face: custom ops, the slot of torch's own fused ops, a pass of Inductor, and parallel styles.

    custom_ops   torch.ops.syncopate.*: schemas, fake implementations; gradients.py: their backward
    recipes      how C++ (python/torch_ops) carries out the calls that look like one that Python has made
    autocast     operands of the custom ops under torch.autocast
    calls        which operator carries out a call: memory of its own for each shape and stream; what is not taken
    unfused      the same functions as a collective and a product one after the other
    gloo         gathers of CUDA tensors where ranks share a GPU
    buckets      for how many rows a strategy is chosen; the deterministic mode
    symm_mem     sy.symm_mem.override(): torch.ops.symm_mem.fused_* go to the custom ops
    inductor     sy.inductor.enable(): graphs.py finds collectives next to products, rewrite_*.py put
                 custom ops there
    context_parallel  torch's attention of sharded sequences; function_names: by whatever name modules have for it
    parallel     styles for parallelize_module that run fused without a compiler
    report       what was fused, what was not, and why

docs/pytorch.md says what to expect of each.
"""
