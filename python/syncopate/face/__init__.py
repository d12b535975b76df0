"""What a user of the library names: kernels fused with a plan, chains, rows of a sequence.

fuse             sy.fuse: which of the kinds below a call asks for
fused            a kernel, or several in a row, fused with a plan
chosen           the same where strategy="auto" chooses how it is carried out; autotuned: of a kernel with @triton.autotune
chain            kernels of one GPU that overlap tile by tile
statement_check  whether a stated kernel touches what its statement says
rows             sy.shard_rows and sy.unshard_rows
placements       a DeviceMesh and DTensor's placements, of which plans.from_placements makes a plan
"""
