"""Compile kernels at run time with NVRTC, and cache the cubins on disk, together with the fastest plans of a library.

The key of a cubin is the hash of all that it depends on: the headers that it may include, the kernel, the architecture,
the options and NVRTC's version. Files are written atomically; a file that does not match its own checksum is made again.
`minicaffe cache` shows and clears the folder.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.resources
import logging
import os
import re
import time
from pathlib import Path

from minicaffe.errors import ConfigError, DependencyError, DeviceError, Error
from minicaffe.proto.atomic import replacing

MAGIC = b"minicaffe cubin 1\n"
LIMIT = 256 << 20  # bytes of the folder, at most; the least recently used files are removed first
OPTIONS = ("--std=c++17", "-default-device")

log = logging.getLogger(__name__)
_notice_logged = False
_added_headers = {}     # path -> text of the headers given to `add_kernels`


def short_name(spelling):
    """Return the name of a kernel without namespaces: ``Each<Fill<float>>``."""
    return re.sub(r"\bmc::(cuda::)?", "", kernel_type(spelling))


def kernel_type(spelling):
    """Return the C++ type of a kernel from the text of ``mc::spelling<K>()``, ``... [with K = TYPE]``; any other name as it is."""
    inside = re.search(r"\[with K = (.*?)(?:; .*)?\]$|\[K = (.*)\]$", spelling)
    return (inside[1] or inside[2]) if inside else spelling


def package_folder():
    """Return the folder that holds the headers of minicaffe."""
    return Path(os.fspath(importlib.resources.files("minicaffe.kernels").joinpath("config.hpp"))).parent.parent


def add_kernels(path):
    """Add a header outside of minicaffe, such as that of a layer type of your own, to what NVRTC compiles.

    On the CPU and on the simulated device the compiled layer contains its functors already.

    Parameters
    ----------
    path : str or path
        A C++ header. It may include headers of minicaffe's `kernels` and `ops`, and no others. Raises ConfigError if it cannot
        be read.
    """
    try:
        _added_headers[os.path.abspath(path)] = Path(path).read_text()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read the header '{path}': {getattr(error, 'strerror', None) or error}") from None


def program_text(kernel=""):
    """Return a source for NVRTC: includes of all kernel headers, and the text of added headers that define a functor of `kernel`.

    Other added headers are left out, so that they do not change the key of a built-in kernel's cubin.
    """
    includes = "".join(f'#include "{name}"\n' for name in kernel_headers())
    words = set(re.findall(r"\w+", kernel))
    added = "".join(text + "\n" for text in _added_headers.values() if words & set(re.findall(r"\b(?:struct|class)\s+(\w+)", text)))
    return includes + added + "using namespace mc;\n"  # GCC writes the names of types relative to mc


def kernel_image(spelling, size, architecture):
    """Return the cubin (bytes) of a built-in kernel for an `architecture` such as ``sm_90``, and the kernel's symbol (str) in it.

    `spelling` is from ``mc::spelling<K>()``; `size` is the bytes of its parameters, ``sizeof(K)``.
    """
    kernel = kernel_type(spelling)
    return image(program_text(kernel), f"mc::run<{kernel}, {size}>", architecture, what=short_name(spelling))


def image(source, expression, architecture, what="", options=()):
    """Return the cubin (bytes) of a kernel, from the disk cache or compiled, and its symbol, the name after C++ name mangling.

    `expression` is the kernel in the CUDA C++ `source`: its name, or a C++ expression such as ``mc::run<K, 24>``; `what` is its
    name in the log, `options` are further ones of NVRTC. Raises DependencyError if NVRTC is missing; DeviceError, with the log and
    the numbered source, if the source does not compile.
    """
    global _notice_logged
    options = (f"--gpu-architecture={architecture}", *OPTIONS, *options)
    path = cache_folder() / f"{_key(source, expression, options)}.cubin"
    found = _read(path)
    if found:
        return found
    if not _notice_logged:
        log.warning("compiling kernels for %s; they are kept in %s", architecture, path.parent)
        _notice_logged = True
    start = time.perf_counter()
    cubin, name = compile_cubin(source, expression, options)
    log.info("compiled %s in %.0f ms", what or expression, 1e3 * (time.perf_counter() - start))
    _write(path, cubin, name)
    return cubin, name


@functools.cache
def nvrtc():
    """Return the module ``cuda.bindings.nvrtc``. Raises DependencyError unless its library is found."""
    from cuda.bindings import nvrtc as module
    from cuda.pathfinder import load_nvidia_dynamic_lib

    try:
        module.nvrtcVersion()
        found = load_nvidia_dynamic_lib("nvrtc").abs_path
    except RuntimeError as error:
        raise DependencyError(f"NVRTC, which compiles the kernels, is missing ({' '.join(str(error).split())[:120]}); "
                              'pip install "minicaffe[cuda]"') from None
    # The wheel for CUDA 13.0, a dependency of PyTorch, does not search its own folder for the second library that it needs.
    for second in Path(found).parent.glob("libnvrtc-builtins.so*") if found else ():
        with contextlib.suppress(OSError):  # if it is needed, NVRTC reports an error
            ctypes.CDLL(str(second))
    return module


def compile_cubin(source, expression, options):
    """Compile without the cache; return the cubin and the kernel's symbol. See `image`."""
    # Headers are passed as text: a search by path would first find those of a checkout in the current folder.
    names = [name.encode() for name in kernel_headers()]
    texts = [text.encode() for text in _kernel_texts()]
    program = _call("nvrtcCreateProgram", source.encode(), b"kernel.cu", len(names), texts, names)
    try:
        _call("nvrtcAddNameExpression", program, expression.encode())
        code = nvrtc().nvrtcCompileProgram(program, len(options), [o.encode() for o in options])[0]
        if code != nvrtc().nvrtcResult.NVRTC_SUCCESS:
            log_text = _result(program, "ProgramLog").decode("utf-8", "replace").rstrip("\0 \n")
            raise DeviceError(f"{expression} does not compile:\n{log_text}\n{numbered(source)}", code=code.name)
        name = _call("nvrtcGetLoweredName", program, expression.encode())
        return _result(program, "CUBIN"), name.decode() if isinstance(name, bytes) else name
    finally:
        nvrtc().nvrtcDestroyProgram(program)


def _call(name, *arguments):
    """Call a function of NVRTC; return its result, None if it has none. Raises DeviceError unless its code is success."""
    code, *results = getattr(nvrtc(), name)(*arguments)
    if code != nvrtc().nvrtcResult.NVRTC_SUCCESS:
        raise DeviceError(f"{name}: {code.name}", code=code.name)
    return results[0] if results else None


def _result(program, kind):
    """Return the bytes of a compiled program's "CUBIN" or "ProgramLog"; NVRTC writes into the object `made`."""
    made = b" " * _call(f"nvrtcGet{kind}Size", program)
    _call(f"nvrtcGet{kind}", program, made)
    return made


def numbered(source):
    """Return a source with the number of each line before it, for errors."""
    return "".join(f"{number:4} {line}\n" for number, line in enumerate(source.splitlines(), 1))


# ---- the cache


def cache_folder():
    """Return the folder of the cubins: MINICAFFE_CACHE, or minicaffe below XDG_CACHE_HOME or ``~/.cache``."""
    if folder := os.environ.get("MINICAFFE_CACHE"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minicaffe" / "kernels"


def read_cached_plan(place):
    """Return the cached choice (str) for `place`, a line with all that the choice depends on; None if there is none."""
    found = _read(_choice_path(place))
    return found[0].decode() if found and found[1] == place else None


def write_cached_plan(place, choice):
    """Keep a measured choice, a str, for `read_cached_plan`; of cuDNN's convolutions it is number and name of a plan."""
    _write(_choice_path(place), choice.encode(), place)


def _choice_path(place):
    """Return the path of the cache file of a measured choice."""
    return cache_folder() / f"{hashlib.sha256(place.encode()).hexdigest()[:40]}.plan"


def cached():
    """Return path, bytes and time of last use of each file in the cache, the most recently used first."""
    found = []
    for path in (path for ending in ("cubin", "so", "plan") for path in cache_folder().glob(f"*.{ending}")):
        try:
            status = path.stat()
        except OSError:
            continue  # another process has just cleared it
        found.append((path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: -entry[2])


def cache_entry_name(path):
    """Return the content of a cache file as text: a kernel's name, the key of a choice, or a file name (a kernel on the host)."""
    found = _read(path) if path.suffix != ".so" else None
    return found[1] if found else path.name


def clear(keep=0):
    """Remove files from the cache, the least recently used first, until at most `keep` bytes are left; return how many."""
    total = removed = 0
    for path, size, _ in cached():
        total += size
        if total > keep:
            path.unlink(missing_ok=True)
            removed += 1
    return removed


def _key(source, expression, options):
    """Return the hash of all that a cubin depends on, as its file name."""
    digest = hashlib.sha256()
    for part in (source, expression, *options, str(_nvrtc_version()), *_kernel_texts()):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:40]


def _nvrtc_version():
    """Return NVRTC's version as a tuple; tests replace it."""
    return nvrtc().nvrtcVersion()[1:]


def kernel_headers():
    """Return the headers for NVRTC as {include name: path}: kernels/*.hpp, and kernel*.hpp of loops/ and of each operation."""
    root = package_folder()
    return {f"minicaffe/{path.relative_to(root).as_posix()}": path
            for path in sorted([*root.glob("kernels/*.hpp"), *root.glob("**/kernel*.hpp")])}


@functools.cache
def _kernel_texts():
    """Return the texts of `kernel_headers`, in their order; read once."""
    return [path.read_text() for path in kernel_headers().values()]


def _read(path):
    """Return (cubin, kernel name), or (choice, key) as bytes and str, of a file of `_write`; None if it is missing or damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    head, body = content[: len(MAGIC) + 32], content[len(MAGIC) + 32 :]
    if not head.startswith(MAGIC) or hashlib.sha256(body).digest() != head[len(MAGIC) :]:
        log.warning("%s is damaged; it is made again", path)
        return None
    name, _, cubin = body.partition(b"\n")
    with contextlib.suppress(OSError):  # another user's cache may be read-only; its times are then those of writing
        os.utime(path)
    return cubin, name.decode()


def _write(path, content, name):
    """Write a file of the cache, with a checksum, so that `_read` returns `content` (bytes) and `name`."""
    body = name.encode() + b"\n" + content
    write_file(path, MAGIC + hashlib.sha256(body).digest() + body)


def write_file(path, content):
    """Write a cache file atomically, and clear the cache down to its limit; log a warning if it cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(content)
        clear(keep=LIMIT)
    except (OSError, Error) as error:
        log.warning("cannot keep what is compiled and measured (%s); every run does it again; MINICAFFE_CACHE names another folder",
                    error)
