"""THC for the user's own work: kernels from CUDA C++ or one line for each element, a busy stream, the state of all GPUs."""

MODULES = {
    "cuda.Kernel": f"{__name__}.kernel:Kernel",
    "cuda.elementwise": f"{__name__}.pointwise:Elementwise",
    "cuda.kernel": f"{__name__}.kernel:Kernel",
    "cuda.sleep": f"{__name__}.kernel:sleep",
    "cuda.state": f"{__name__}.state:state",
}
