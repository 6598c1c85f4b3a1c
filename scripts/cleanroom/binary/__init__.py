"""What is in the binaries: device code in fat binaries, kernels in cubins, files in wheels."""
