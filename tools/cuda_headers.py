"""Print the folder of cuda.h that the build uses: of the wheel nvidia-cuda-runtime, CUDA_HOME, or /usr/local/cuda.

On Linux a build without cuda-bindings and cuda.h would have no devices, not even the simulated one, so this fails and says what to
install; elsewhere it prints nothing. A cuda.h older than cuda-bindings lacks types that these declare.
"""

import importlib.util
import os
import re
import sys
from importlib import metadata
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


def version_of(header):
    """The CUDA version of a cuda.h, as (major, minor); (0, 0) if it does not say."""
    said = re.search(r"^#define CUDA_VERSION (\d+)", header.read_text(errors="replace"), re.MULTILINE)
    number = int(said[1]) if said else 0
    return number // 1000, number % 1000 // 10


def main():
    if not importlib.util.find_spec("cuda") or not importlib.util.find_spec("cuda.bindings"):
        if sys.platform == "linux":
            sys.exit("cuda-bindings is not installed in this Python, and a build without isolation needs it: pip install "
                     "cuda-bindings nvidia-cuda-runtime")
        return
    bindings = metadata.version("cuda-bindings")
    wanted = tuple(map(int, bindings.split(".")[:2]))
    found = {folder: version_of(folder / "cuda.h") for folder in candidates() if (folder / "cuda.h").is_file()}
    new = [folder for folder, version in found.items() if version >= wanted]
    if found and not new:
        folder, (major, minor) = next(iter(found.items()))
        sys.exit(f"{folder}/cuda.h is of CUDA {major}.{minor}, and cuda-bindings {bindings} needs {wanted[0]}.{wanted[1]} or "
                 f"later: pip install 'nvidia-cuda-runtime>={wanted[0]}.{wanted[1]}'")
    if not new and sys.platform == "linux":
        sys.exit("no cuda.h is installed: pip install nvidia-cuda-runtime, or name the folder of a CUDA toolkit in CUDA_HOME")
    print(new[0] if new else "")


if __name__ == "__main__":
    main()
