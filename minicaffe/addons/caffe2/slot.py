"""Slot: a named place for one object of any type, and the type (Caffe2 ``core/blob.h``, whose Blob this is).

Different from Caffe2: None means empty, `Slot.get` takes objects of derived types too (`Slot.is_type` is exact), and an
object that is not the slot's own stays alive while the slot shows it.
"""

import sys

import numpy as np

from minicaffe.addons.caffe2 import serialization
from minicaffe.addons.caffe2.tensor import Tensor
from minicaffe.blob import Blob
from minicaffe.errors import ConfigError, ShapeError, WrongTypeError, check_type
from minicaffe.memory.states import SyncedHead


class Slot:
    """A named place for one object of any type; None means empty.

    Parameters
    ----------
    name : str
        For error messages; `swap` leaves it where it is.

    Attributes
    ----------
    is_external : bool
        Whether the object has an owner outside, see `share_external`.
    """

    __slots__ = ("__weakref__", "_value", "is_external", "name")

    def __init__(self, name=""):
        self.name = name
        self.reset()

    @property
    def type(self):
        """type or None: of the object held; None while empty."""
        return None if self._value is None else type(self._value)

    @property
    def kind(self):
        """str: the type's name and whether the object is external, for people."""
        return ("empty" if self.type is None else self.type.__name__) + (", external" if self.is_external else "")

    def is_type(self, kind):
        """Return whether the object held is a `kind`, and not of a type derived from it: True is not an int here."""
        check_type(kind, type, "kind", "a type such as int or Blob")
        return self.type is kind

    def get(self, kind=object):
        """Give the object held.

        Raises
        ------
        WrongTypeError
            If the slot is empty or the object is not an instance of `kind`.
        """
        check_type(kind, type, "kind", "a type such as int or Blob")
        if self._value is None or not isinstance(self._value, kind):
            held, advice = (("is empty", "set it first") if self._value is None else
                            (f"holds {self.type.__name__}", "ask for that type, or reset the slot"))
            raise WrongTypeError(f"{held}, asked for {kind.__name__}; {advice}", field=self.name or None)
        return self._value

    def get_mutable(self, kind):
        """Give the object held; if it is not an instance of `kind`, replace it by ``kind()`` first."""
        return self.get_mutable_new(kind)[0]

    def get_mutable_new(self, kind):
        """As `get_mutable`, and whether the object is new (Caffe2's ``GetMutable(&is_new_object)``).

        Returns
        -------
        tuple of (object, bool)

        Raises
        ------
        WrongTypeError
            If `kind` is not a type, or takes arguments; the slot keeps what it holds.
        """
        check_type(kind, type, "kind", "a type such as int or Blob")
        if self._value is not None and isinstance(self._value, kind):
            return self._value, False
        try:
            value = kind()
        except TypeError as cause:
            raise WrongTypeError(f"cannot make a {kind.__name__} without arguments ({cause}); reset the slot to one that you made",
                                 field=self.name or None) from cause
        self.reset(value)
        return value, True

    def reset(self, value=None):
        """Drop the object held and hold `value`, as the slot's own."""
        self._value, self.is_external = value, False

    def share_external(self, value):
        """Show an object that has an owner outside (Caffe2's ShareExternal).

        `Workspace.save` leaves it out unless asked by name, `Workspace.load` puts a new object in its place instead of writing into
        it, and `Workspace.blob_sizes` does not count it.
        """
        if value is None:
            raise ConfigError("cannot share None; reset() empties a slot", field=self.name or None)
        self._value, self.is_external = value, True

    def swap(self, other):
        """Exchange what two slots hold; the names stay."""
        check_type(other, Slot, "other", "a Slot")
        self._value, self.is_external, other._value, other.is_external = (
            other._value, other.is_external, self._value, self.is_external)

    def serialize(self):
        """Return the object as bytes, with the slot's name, for `deserialize`; what can be stored see `minicaffe.serialization`.

        Raises
        ------
        WrongTypeError, DataError
            Naming slot, type, and how to register it.
        """
        return serialization.serialize(self._value, self.name)

    def deserialize(self, data):
        """Hold the object of serialized bytes, as the slot's own; a blob or tensor that the slot holds stays and gets it.

        Raises
        ------
        DataError, ShapeError, WrongTypeError
            If the bytes are damaged, or do not fit the blob; the slot keeps what it holds.
        """
        self.prepare_fill(serialization.deserialize(data)[1])()

    def prepare_fill(self, value):
        """Return a function that puts an object that was read into the slot, and which cannot fail; raises as `deserialize`."""
        if type(value) is Tensor and self.is_type(Tensor) and not self.is_external:
            tensor = self._value
            return lambda: tensor.swap(value)
        blob = self._value if self.is_type(Blob) and not self.is_external else None
        if blob is None or not (blob.num_axes or blob.count):
            return lambda: self.reset(value)
        if type(value) is not Blob:
            raise WrongTypeError(f"holds a Blob, which nets may use, the bytes hold {type(value).__name__}; remove the slot first",
                                 field=self.name)
        if (blob.shape, blob.count, blob.dtype) != (value.shape, value.count, value.dtype):
            raise ShapeError(f"holds a blob of shape {list(blob.shape)} and {blob.dtype.name}, which nets may use, the bytes hold "
                             f"one of {list(value.shape)} and {value.dtype.name}; remove the slot first", field=self.name)
        has_diff = any(each.diff_memory.head != SyncedHead.UNINITIALIZED for each in (blob, value))
        views = [(blob.data, value.cpu_data)] + ([(blob.diff, value.cpu_diff)] if has_diff else [])

        def fill():
            for mine, read in views:
                mine[...] = read
        return fill

    def __reduce__(self):
        raise WrongTypeError("a slot cannot be copied or pickled; other.deserialize(slot.serialize()) copies what it holds",
                             field=self.name or None)

    def __repr__(self):
        return f"<Slot {self.name!r}: {self.kind}>"


def memory_of(value):
    """Return the bytes that an object holds, by the identity of each piece of memory: what two objects share is found as one.

    Of blobs and tensors these are the sides that were allocated, of lists those of their items, of others `nbytes` or what
    ``sys.getsizeof`` says.
    """
    found, left = {}, [value]  # a list of its own, not calls: lists may be nested deeply
    while left:
        value = left.pop()
        while isinstance(value, np.ndarray) and isinstance(value.base, np.ndarray):
            value = value.base
        if isinstance(value, (Blob, Tensor)):
            for memory in (value.data_memory, value.diff_memory) if isinstance(value, Blob) else (value.memory,):
                if memory is not None:
                    found[id(memory)] = memory.size * (memory.own_cpu_data + memory.own_gpu_data)
        elif value is not None and id(value) not in found:
            nbytes = getattr(value, "nbytes", None)
            found[id(value)] = nbytes if isinstance(nbytes, int) else sys.getsizeof(value)
            left += value if isinstance(value, (list, tuple)) else ()
    return found
