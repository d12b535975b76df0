"""What runs where there is no GPU: Triton's interpreter, what it lacks, and the names of syncopate.language for it."""
