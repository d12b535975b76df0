"""The commands that run kernels, and so need Python: `syncopate run` and `syncopate tune`, and `make demo`."""
