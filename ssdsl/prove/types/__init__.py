"""Rules on types: what operators, kernels and communication make of local tensors."""
