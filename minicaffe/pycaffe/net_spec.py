"""NetSpec: write nets as Python expressions (pycaffe ``caffe.net_spec``). ``from minicaffe import layers as L, params as P``.

``n = NetSpec(); n.ip = L.InnerProduct(n.data, num_output=10); n.to_proto()`` gives the NetParameter. A layer is a
`Function`; its outputs are its `Top`s. Different from pycaffe: the error for an unknown field names what to write instead
(still an AttributeError). A chain of anonymous layers may have any length, tuples are lists, and an empty list sets nothing.
NumPy's numbers and arrays are accepted as values, and for integer fields also ``64 / 2``, a float without a fraction.
"""

import sys
from collections import Counter
from collections.abc import Sequence

import numpy as np

from minicaffe.errors import ConfigError, MissingFieldError, MissingNameError, close_matches, int_of, located
from minicaffe.layer import layer_types
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import Fields, lines_of

LAYER_FIELDS = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
# Type: name of the LayerParameter field that holds its own message.
_own_message = {field.message_type.name.removesuffix("Parameter"): name
                for name, field in LAYER_FIELDS.items() if name.endswith("_param")}


def param_name_dict():
    """Return a dict, as pycaffe's, from stems of messages to those of their fields: ``InnerProduct`` to ``inner_product``."""
    return {kind: name.removesuffix("_param") for kind, name in _own_message.items()}


def to_proto(*tops):
    """Return the NetParameter of all layers that `tops` need, dependencies first, with automatic names."""
    return _net(tops, {})


def _net(tops, names):
    """Return the NetParameter of `tops`; `names` maps Tops and Functions to their names, and gets the automatic ones."""
    layers, counts = {}, Counter()      # LayerParameter by Function; automatic names by layer type
    for top in tops:
        function = top.fn if isinstance(top, Top) else top
        path = [(function, iter(function.inputs))]  # instead of recursion: chains may be longer than Python's stack
        while path:
            function, inputs = path[-1]
            missing = next((top.fn for top in inputs if top.fn not in layers), None)
            if missing is not None:
                path.append((missing, iter(missing.inputs)))
                continue
            path.pop()
            if function not in layers:
                layers[function] = function._layer(layers, names, counts)
    return caffe_pb2.NetParameter(layer=layers.values())


def assign_proto(proto, name, val):
    """Set the field `name` of a message: dicts go into messages, a lone value of a repeated field becomes its only item.

    Raises MissingFieldError, an AttributeError, if the message has no such field, and ConfigError if the value does not fit it.
    """
    field = proto.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        near = close_matches(name, proto.DESCRIPTOR.fields_by_name)
        raise MissingFieldError(f"{proto.DESCRIPTOR.name} has no field '{name}'{near}", field=name)
    val = _without_numpy(val)
    try:
        if hasattr(getattr(proto, name), "extend"):
            for item in val if isinstance(val, list) else [val]:
                if isinstance(item, dict):
                    _assign_all(getattr(proto, name).add(), item)
                else:
                    getattr(proto, name).append(_integer(item, field))
        elif isinstance(val, dict):
            getattr(proto, name).SetInParent()
            _assign_all(getattr(proto, name), val)
        elif field.message_type is not None and isinstance(val, field.message_type._concrete_class):
            getattr(proto, name).CopyFrom(val)
        else:
            setattr(proto, name, _integer(val, field))
    except ConfigError as error:
        error.field = f"{name}.{error.field}" if error.field else name
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"{val!r} does not fit: {error}", field=name) from None


def _without_numpy(value):
    """Return a value of a field without NumPy's types, which protobuf refuses, and sequences as lists."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, dict):
        return {name: _without_numpy(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return [_without_numpy(item) for item in value]
    return value


def _integer(value, field):
    """Return a float without a fraction as an integer, if `field` takes integers: Python 3's ``64 / 2`` in scripts of Python 2."""
    takes_integers = field.cpp_type not in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE, field.CPPTYPE_BOOL, field.CPPTYPE_STRING,
                                            field.CPPTYPE_MESSAGE)
    return int(value) if takes_integers and isinstance(value, float) and value.is_integer() else value


def _assign_all(proto, values):
    """Set the fields of a nested message that a NetSpec has as a dict."""
    for name, value in values.items():
        assign_proto(proto, name, value)


class Top:
    """Output number `n` of the layer `fn`."""

    def __init__(self, fn, n):
        self.fn = fn
        self.n = n

    def to_proto(self):
        """Return the NetParameter of all layers that this Top needs, with automatic names."""
        return to_proto(self)

    def update(self, params):
        """Set more fields of the layer (SSD)."""
        self.fn.update(params)

    def __repr__(self):
        return f"<Top {self.n} of {self.fn.type_name}>"


class Function:
    """A layer to be: a type, the Tops it reads, and its fields. Raises TypeError if an input is not a Top.

    Attributes
    ----------
    type_name, inputs, params
        As given; ``ntop`` and ``in_place`` are taken out of the params.
    tops : tuple of Top
    ntop : int
    in_place : bool
    """

    def __init__(self, type_name, inputs, params):
        for index, value in enumerate(inputs):
            if not isinstance(value, Top):
                raise TypeError(f"{type_name} input {index} is not a Top (type is {type(value)})")
        self.type_name = type_name
        self.inputs = inputs
        self.params = dict(params)
        self.ntop = int_of(self.params.pop("ntop", 1), "ntop", layer_type=type_name)
        self.in_place = self.params.pop("in_place", False)
        self.tops = tuple(Top(self, n) for n in range(self.ntop))

    def update(self, params):
        """Set more fields, or others: a dict as the keywords of ``L.Type()`` (SSD)."""
        self.params.update(params)

    def _name(self, key, names, counts):
        """Return the name of `key`, this Function or one of its Tops; a new name is the type and a number, as in pycaffe."""
        if key not in names:
            counts[self.type_name] += 1
            names[key] = f"{self.type_name}{counts[self.type_name]}"
        return names[key]

    def _layer(self, layers, names, counts):
        """Return the LayerParameter; those of its inputs are in `layers`. Fields go to the type's own message, or to the layer."""
        layer = caffe_pb2.LayerParameter(type=self.type_name)
        layer.bottom.extend(layers[top.fn].top[top.n] for top in self.inputs)
        layer.top.extend(layer.bottom if self.in_place else [self._name(top, names, counts) for top in self.tops])
        layer.name = names[self] if self in names else self._name(self.tops[0] if self.tops else self, names, counts)
        own, layer_class = _own_message.get(self.type_name), layer_types().get(self.type_name)
        reads_any = layer_class is None or layer_class.takes_unknown_fields     # a type of the program, or an unregistered one
        extra = Fields()  # fields that the messages lack, for a type that is not minicaffe's
        with located(layer=layer.name, layer_type=self.type_name):
            for name, value in self.params.items():
                if own and name in LAYER_FIELDS[own].message_type.fields_by_name:
                    assign_proto(getattr(layer, own), name, value)
                elif name in LAYER_FIELDS:
                    assign_proto(layer, name, value)
                elif name.endswith("_param") and isinstance(value, dict) and reads_any:
                    extra.extend(name, Fields.of({name: _without_numpy(value)}).all(name))
                else:
                    raise self._unknown(name, own)
        if len(extra):
            layer.fork_fields = "\n".join(lines_of(extra))
        return layer

    def _unknown(self, name, own):
        """Return the error for a field that neither the layer's own message nor LayerParameter has."""
        if self.type_name not in layer_types() and (near := close_matches(self.type_name, layer_types())):
            return MissingFieldError(f"there is no layer type {self.type_name}{near}", field=name)
        known = [*LAYER_FIELDS, *(LAYER_FIELDS[own].message_type.fields_by_name if own else ())]
        near = close_matches(name, known)
        homes = [f for f, field in LAYER_FIELDS.items() if f.endswith("_param") and name in field.message_type.fields_by_name]
        if not near and not own and 0 < len(homes) <= 4:
            near = "; write it in its message: " + " or ".join(f"{home}=dict({name}=...)" for home in homes)
        return MissingFieldError(f"no such field of {self.type_name}{near}", field=name)

    def __repr__(self):
        return f"<{self.type_name} layer>"


class NetSpec:
    """A net that is being written: assign Tops to attributes or items, then call `to_proto`."""

    def __init__(self):
        super().__setattr__("tops", {})     # this class's own takes Tops only

    def __setattr__(self, name, value):
        if not isinstance(value, (Top, Function)):      # a Function is a layer without tops
            raise TypeError(f"NetSpec takes Tops of layers, '{name}' is {type(value)}; several tops are n.a, n.b = ...")
        self.tops[name] = value

    def __getattr__(self, name):
        if name.startswith("__"):  # looked up by copy and pickle
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name):
        if name not in self.tops:
            raise MissingNameError(f"this NetSpec has no '{name}'{close_matches(name, self.tops)}")
        return self.tops[name]

    __setitem__ = __setattr__

    def __delitem__(self, name):
        del self.tops[name]

    __delattr__ = __delitem__

    def __contains__(self, name):
        return name in self.tops

    def __dir__(self):
        return [*super().__dir__(), *self.tops]

    def keys(self):
        """Return the names in order of assignment."""
        return list(self.tops)

    def vals(self):
        """Return the Tops in order of assignment."""
        return list(self.tops.values())

    def update(self, name, params=None):
        """Set more fields of the layer of a Top, or take over a dict of names and Tops; MissingNameError for an unknown name.

        Parameters
        ----------
        name : str
            Of a Top, as in SSD: ``n.update("conv5_1", {"dilation": 2})``. Or a dict of names and Tops, without `params`.
        params : dict, optional
            Fields, as the keywords of ``L.Type()``.
        """
        if params is None:
            for key, top in name.items():
                self[key] = top
        else:
            self[name].update(params)

    def to_proto(self):
        """Return the NetParameter of all layers needed, dependencies first, in order of assignment.

        A layer takes the name of its first Top; the name of an in-place layer's Top names only the layer.
        """
        return _net(self.tops.values(), {top: name for name, top in self.tops.items()})


class Layers:
    """L: ``L.Type(*bottoms, ntop=1, in_place=False, **fields)`` gives a Top, a tuple of them, or with ``ntop=0`` a Function.

    Any type name is accepted. As ``minicaffe.layers`` this object has the name of the package of the layer types, so
    a name in small letters that is one of its modules gives that module.
    """

    __name__ = "minicaffe.layers"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        module = sys.modules.get(f"minicaffe.layers.{name}")
        if module is not None:
            return module

        def layer_fn(*bottoms, **fields):
            """Return the Top or Tops of a new layer of this type; the Function itself if it has none."""
            function = Function(name, bottoms, fields)
            return function if function.ntop == 0 else function.tops[0] if function.ntop == 1 else function.tops

        layer_fn.__name__ = layer_fn.__qualname__ = name
        return layer_fn

    def __dir__(self):
        return list(layer_types())


class Parameters:
    """P: ``P.Pooling.MAX`` is the value of that name in PoolingParameter."""

    def __getattr__(self, name):
        message = None if name.startswith("__") else getattr(caffe_pb2, f"{name}Parameter", None)
        if message is None:
            raise AttributeError(f"there is no {name}Parameter{close_matches(name, dir(self))}")
        return message

    def __dir__(self):
        return [name.removesuffix("Parameter") for name in vars(caffe_pb2) if name.endswith("Parameter")]


layers = Layers()
params = Parameters()
