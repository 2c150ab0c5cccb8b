"""Run the cases of one file in this process, and print their outcomes: ``python sim_runner.py LIBRARY KERNELS USER CASES [NAME]``.

The simulated driver is loaded, then every function of the file, each on a new context. One line of JSON goes to the file
descriptor 3 for each. A process of its own, since settings, faults and lost contexts are of the process.
"""

import ctypes
import importlib.util
import json
import os
import sys
import traceback

import numpy as np

library, kernels, user_kernels = sys.argv[1:4]
sim = ctypes.CDLL(library, ctypes.RTLD_GLOBAL)  # before the bindings look for a driver

from cuda.bindings import driver  # noqa: E402

PLAIN = "race=0,uninitialized=0,leak=0,deferred=0"


class DriverError(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code.name}: {text}")
        self.code, self.text = code.name, text


def check(result):
    code, *values = result
    if code != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(code, driver.cuGetErrorString(code)[1].decode())
    return values[0] if len(values) == 1 else tuple(values)


class Driver:
    """Calls by name, without ``cu``, that raise: ``cu.MemAlloc(16)``."""

    def __getattr__(self, name):
        function = getattr(driver, "cu" + name)
        return lambda *arguments: check(function(*arguments))


cu = Driver()


class Raises:
    def __init__(self, code, words):
        self.code, self.words = code, words

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        assert kind is not None, f"no error; CUDA_ERROR_{self.code} was expected"
        if not issubclass(kind, DriverError):
            return False
        self.error = error
        assert error.code == "CUDA_ERROR_" + self.code, f"{error} instead of CUDA_ERROR_{self.code}"
        for word in self.words:
            assert word in error.text, f"{word!r} is not in {error.text!r}"
        return True


def raises(code, *words):
    """The block ends with this error, and its text has these words."""
    return Raises(code, words)


def configure(text):
    code = sim.mcsim_configure(text.encode())
    if code:
        raise DriverError(driver.CUresult(code), driver.cuGetErrorString(driver.CUresult(code))[1].decode())


def new_context(device=0):
    cu.DevicePrimaryCtxReset(device)
    context = cu.DevicePrimaryCtxRetain(device)
    cu.CtxSetCurrent(context)
    return context


def image():
    return ctypes.addressof(ctypes.c_char.in_dll(ctypes.CDLL(kernels), "image"))


class HostKernel(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("sizes", ctypes.c_void_p), ("numbers", ctypes.c_int * 4),
                ("pointers", ctypes.c_void_p)]


def last_name():
    """The name of the image's last kernel."""
    address, count = (ctypes.c_uint64 * 3).from_address(image())[1:]
    return (HostKernel * count).from_address(address)[count - 1].name.decode()


def user_image(other=False):
    get = ctypes.CDLL(user_kernels.replace(".so", "_other.so") if other else user_kernels).mcsim_image
    get.restype = ctypes.c_void_p
    return get()


def function(name, module=None):
    return cu.ModuleGetFunction(module or cu.ModuleLoadData(image()), name.encode())


def user_function(name, other=False):
    """As minicaffe does it: the image is a copy that is gone after loading."""
    return function(name, cu.ModuleLoadData(ctypes.string_at(user_image(other), 24)))


def struct(*fields):
    """A kernel's parameters as one struct: pairs of value and ctypes type."""
    kind = type("Parameters", (ctypes.Structure,), {"_fields_": [(f"f{i}", t) for i, (_, t) in enumerate(fields)]})
    return kind(*[int(v) if t is not F else v for v, t in fields])


P, F, D, S, U, L = ctypes.c_uint64, ctypes.c_float, ctypes.c_double, ctypes.c_int, ctypes.c_uint, ctypes.c_int64


def launch(f, *arguments, grid=1, block=1, stream=0, shared=0):
    """Arguments are ctypes objects; the list of their addresses is what the driver takes."""
    grid, block = [tuple(d) + (1,) * (3 - len(d)) if isinstance(d, tuple) else (d, 1, 1) for d in (grid, block)]
    places = (ctypes.c_void_p * max(1, len(arguments)))(*[ctypes.addressof(a) for a in arguments])
    cu.LaunchKernel(f, *grid, *block, shared, stream, ctypes.addressof(places), 0)


def scale(f, a, x, y, n, block=64, stream=0):
    launch(f, struct((a, F), (x, P), (y, P), (n, L)), grid=2, block=block, stream=stream)


def upload(values):
    values = np.ascontiguousarray(values)
    p = cu.MemAlloc(values.nbytes)
    cu.MemcpyHtoD(p, values.ctypes.data, values.nbytes)
    return p


def download(p, count, dtype="float32"):
    values = np.empty(count, dtype)
    cu.MemcpyDtoH(values.ctypes.data, p, values.nbytes)
    return values


def main():
    spec = importlib.util.spec_from_file_location("cases", sys.argv[4])
    cases = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(cases)
    wanted = sys.argv[5:]
    names = [n for n, f in vars(cases).items() if callable(f) and getattr(f, "__module__", "") == "cases" and n[0] != "_"]
    setup = getattr(cases, "_setup", lambda: (cu.Init(0), configure(PLAIN), new_context()))
    for name in wanted or names:
        error = None
        try:
            setup()
            getattr(cases, name)()
        except BaseException:
            error = traceback.format_exc()
        os.write(3, (json.dumps([name, error]) + "\n").encode())


if __name__ == "__main__":
    sys.modules["sim_runner"] = sys.modules["__main__"]
    main()
