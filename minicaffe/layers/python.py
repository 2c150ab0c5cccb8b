"""Layers written in Python by the user: the class that they subclass, and the layer type ``Python`` that names them.

A class derives from `minicaffe.Layer` and defines ``setup(bottom, top)``, ``reshape(bottom, top)``, ``forward(bottom,
top)`` and ``backward(top, propagate_down, bottom)`` (Caffe python_layer.hpp). A model file names it by ``type: "Python"``
and ``python_param { module layer param_str }``, or by its own type after ``register_layer("MyType", MyClass)``. Such a type takes
parameters that no message of minicaffe has: ``my_param { size: 3 }`` is ``self.fields.my_param.size``.
Exceptions of user code pass through unchanged.

A model file that names a module makes Python run that module, so it does not run every module:

- A module that the program imported already is used in every case, but only the classes that it holds: in some modules the lookup
  of a name imports other modules.
- A program that builds nets itself has put together its ``sys.path``. A module that lies there, but neither in the
  standard library nor among the installed packages, is the program's own, and is imported. So a script beside its layers
  works as it does in Caffe.
  Not for a net that came with ``trusted=False``.
- Any other module is imported only after ``allow_python_layers()``. The command line sets ``allow_python_layers(False)``
  unless its option ``--allow-python-layers`` is given: then nothing is imported because a file says so.
"""

import functools
import importlib
import importlib.util
import inspect
import os
import site
import sys
import sysconfig
from collections.abc import Sequence

from minicaffe import layer as contract
from minicaffe.blob import Blob
from minicaffe.common import TRAIN, caffe
from minicaffe.errors import ConfigError, close_matches
from minicaffe.proto import caffe_pb2
from minicaffe.proto.text import layer_fields


class _OverridableAttribute:
    """An attribute of the compiled base, which the net reads there; a user's object may set its own: there is no `__set__`."""

    def __init__(self, attribute):
        self._attribute = attribute

    def __get__(self, layer, owner=None):    # Python's protocol of descriptors; owner: the class
        return self if layer is None else self._attribute.__get__(layer)


class LayerBlobs(Sequence[Blob]):
    """The parameters of a layer written in Python. An item cannot be assigned; write ``layer.blobs[0].data[...] = array``."""

    def __init__(self, layer):
        self._layer = layer

    def __getitem__(self, index):    # from the compiled base's list, which `blobs` of Layer hides
        return contract.Layer.blobs.__get__(self._layer)[index]

    def __len__(self):
        return len(contract.Layer.blobs.__get__(self._layer))

    def add_blob(self, *dims):
        """Append a parameter of this shape, filled with zeros; in `setup`.

        One that the model file holds, or another net of the workspace made, has its values already and keeps them,
        whatever `setup` writes.
        """
        self._layer._add_blob(dims)


class Layer(contract.Layer):
    """Base of layers written in Python.

    Attributes
    ----------
    param_str, param_str_ : str
        ``python_param.param_str``, set before `setup`; the second is the name of 2014.
    phase : int
        0 TRAIN, 1 TEST.
    blobs : LayerBlobs
        The parameters; `setup` makes them by ``self.blobs.add_blob(*dims)`` and fills them.
    fields : Fields
        All fields of the layer as its file gives them, also those that minicaffe's messages lack (`minicaffe.proto.fields.Fields`):
        ``self.fields.my_param.size``, ``self.fields.my_param.get("size", 1)``.
    """

    always_reshape = True  # user code may shape its tops by values, or by its own state
    takes_unknown_fields = True

    @property
    def blobs(self) -> LayerBlobs:
        return LayerBlobs(self)

    def __init_subclass__(cls, **keywords):
        """Wrap an ``__init__(self, param)``, as of BVLC Caffe, so that it accepts the net's other arguments, too."""
        super().__init_subclass__(**keywords)
        own_init = vars(cls).get("__init__")
        if inspect.isfunction(own_init) and _takes_only_param(own_init):
            @functools.wraps(own_init)
            def __init__(self, param, *args):
                if args:
                    self._construction = args
                own_init(self, param)

            cls.__init__ = __init__

    def __init__(self, param, *args):       # args: dtype, parameters, key of layer.pyx
        super().__init__(param, *args or self._construction)
        self._constructed = True
        self.param_str = self.param_str_ = param.python_param.param_str

    _construction, _constructed = (), False     # dtype, parameters, key for `__init__`; whether that ran (`set_up`)

    def _add_blob(self, dims):
        """Append a parameter of shape `dims` for `LayerBlobs.add_blob`; one with values keeps them, see `layer_setup`."""
        index = len(self.blobs)
        existed = self._has_param(index)
        blob = self.add_param(dims, caffe_pb2.FillerParameter(), f"blobs[{index}]")
        if existed:
            self._existing.append((blob, blob.cpu_data.copy()))

    @functools.cached_property
    def fields(self):    # computed at the first use; see the class
        return layer_fields(contract.Layer.param.__get__(self))

    def setup(self, bottom, top):
        """Read `param_str`, make parameters; a subclass defines it. Called once, before the first reshape."""

    def forward(self, bottom, top):
        """Compute ``top[i].data[...]``."""
        raise ConfigError(f"class {type(self).__name__} does not define forward(bottom, top)")

    def backward(self, top, propagate_down, bottom):
        """Compute ``bottom[i].diff[...]`` where ``propagate_down[i]``, and add to the diffs of the parameters."""
        raise ConfigError(f"class {type(self).__name__} does not define backward(top, propagate_down, bottom); define it, or "
                          "set propagate_down: false")

    # ---- the contract with the net

    def set_up(self, bottom, top):    # a net calls it once; see layer.pyx
        if not self._constructed:
            raise ConfigError(f"__init__ of class {type(self).__name__} does not call the one of minicaffe.Layer; write "
                              "super().__init__(param) there, or leave __init__ out and use setup", field="python_param.layer")
        super().set_up(bottom, top)

    def layer_setup(self, bottom, top):
        self._existing = []     # (blob, its values) of parameters that a file or another net gave values
        self.setup(bottom, top)
        for blob, values in self._existing:
            blob.data[...] = values

    def _has_param(self, index):
        """Return whether the model file or the workspace holds parameter `index` of this layer, with values."""
        param, parameters, key = (getattr(contract.Layer, name).__get__(self) for name in ("param", "parameters", "key"))
        return index < len(param.blobs) or (parameters is not None and parameters.has(f"{key}[{index}]"))

    def forward_cpu(self, bottom, top):
        self.forward(bottom, top)

    def backward_cpu(self, top, propagate_down, bottom):
        self.backward(top, propagate_down, bottom)


for _name in ("param", "name", "type", "phase", "dtype", "loss_weights", "generator", "parameters", "key"):
    setattr(Layer, _name, _OverridableAttribute(getattr(contract.Layer, _name)))


def _takes_only_param(init):
    """Return whether an ``__init__`` takes one argument, not the four that a net gives: param, dtype, parameters, key."""
    try:
        inspect.signature(init).bind(None, None)
        inspect.signature(init).bind(None, None, None, None, None)
    except TypeError as error:
        return "too many" in str(error)
    return False


class PythonLayer(contract.Layer):
    """The type ``Python``; creating one gives an instance of the class that ``python_param`` names.

    Raises ConfigError if the module may not be imported or is not found, the class is missing or no `minicaffe.Layer`, or several
    solvers train in one process, which would run user code at the same time.
    """

    def __new__(cls, param, *args):    # args: dtype, parameters, key of layer.pyx
        if param.phase == TRAIN and caffe.solver_count > 1 and not caffe.multiprocess:
            raise ConfigError("Python layers cannot train with several solvers in one process; use one process for each",
                              field="type")
        return find_class(param.python_param)(param, *args)


def find_class(python_param):
    """Return the class, a subclass of Layer, that a PythonParameter names; ConfigError if there is none."""
    name = python_param.layer
    module = find_module(python_param.module, name)
    # The present contents of the module: getattr makes some modules import others.
    known = {n: value for n, value in _contents(module).items() if issubclass(type(value), type) and issubclass(value, Layer)}
    found = known.get(name)
    if found is None:
        known = [n for n, value in known.items() if value is not Layer]
        near = close_matches(name, known) or f"; it has {', '.join(known) or 'none'}"
        raise ConfigError(f"'{name}' is not a class of module '{python_param.module}' derived from minicaffe.Layer{near}",
                          field="python_param.layer")
    return found


def _contents(module):
    """Return the names and values in a module as a dict, without calling its own functions (`__getattr__`)."""
    try:
        return object.__getattribute__(module, "__dict__")
    except AttributeError:  # a program may put any object, or None, in the place of a module
        return {}


def find_module(name, class_name):
    """Return module `name`, imported if that is allowed (see the top of this file); `class_name` is for advice in an error."""
    if name in sys.modules:
        return sys.modules[name]
    field = "python_param.module"
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"must be the name of a Python module, got '{name}'", field=field)
    top = name.partition(".")[0]
    if top in sys.modules:
        spec = _contents(sys.modules[top]).get("__spec__")  # None for __main__
    else:
        importlib.invalidate_caches()  # the file may be younger than the last listing of its folder
        spec = importlib.util.find_spec(top)
    if spec is None:
        kind = class_name.removesuffix("Layer")
        advice = f"; minicaffe has a layer type '{kind}'" if kind in contract.layer_types() else ""
        raise ConfigError(f"no module '{name}' on Python's path; add its folder to PYTHONPATH{advice}", field=field)
    if not (caffe.trusted and _is_own(spec) if caffe.allow_python_layers is None else caffe.allow_python_layers):
        raise ConfigError(f"the model file asks to run module '{name}' ({spec.origin}); if you trust it, import it before, "
                          "call minicaffe.allow_python_layers(), or give --allow-python-layers", field=field)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module was found, one that it imports was not
        raise ConfigError(f"no module '{error.name}' on Python's path", field=field) from None


def _is_own(spec):
    """Return whether the module of a ModuleSpec is in the program's part of ``sys.path``: no standard library, no site-packages."""
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or ())
    installed = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    installed |= {*site.getsitepackages(), site.getusersitepackages()}
    inside = tuple(os.path.join(os.path.realpath(place), "") for place in installed)
    return bool(places) and not any(os.path.realpath(place).startswith(inside) for place in places)


def allow_python_layers(allow=True):
    """Let model files name any Python module (True), none that is not imported yet (False), or the program's own (None)."""
    caffe.allow_python_layers = allow
