"""What runs on a GPU: Triton's compiler, kernels in CUDA C++, and the PTX behind syncopate.language and syncopate.gluon."""
