"""Print the folder of cuda.h that the build uses: of the wheel nvidia-cuda-runtime, CUDA_HOME, or /usr/local/cuda; else nothing."""

import importlib.util
import os
from pathlib import Path


def candidates():
    """Yield folders that may hold cuda.h, the first choice first."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        yield from sorted(Path(root).glob("*/include"), reverse=True)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name]) / "include"
    yield Path("/usr/local/cuda/include")


if importlib.util.find_spec("cuda") and importlib.util.find_spec("cuda.bindings"):
    print(next((folder for folder in candidates() if (folder / "cuda.h").is_file()), ""))
