"""A call of a fused program: from what its kernels are called with to a program in memory that is ready to be launched.

arguments, tuples   a launch's arguments by name, tensors described
stage_call          a stage of a program, and its call as the front end takes it
stated              sy.kernel: a kernel whose author says what it touches
places              where in a tensor lies what a rank holds of it
prepared            a fused program in memory
executable, known   its calls as one call of C++; which functions C++ calls alone
cache               operators that are kept between calls
"""
