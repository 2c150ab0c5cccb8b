"""pycaffe's vectors: `BlobVec`, `IntVec` and the others that Boost.Python makes of C++ vectors (``caffe._caffe``).

A vector has items of one type. What a net hands out is fixed: to assign another item there would not change what the net computes,
so it is refused with what to write instead. A vector that a program makes itself is changed as in pycaffe. Different from Boost's:
vectors with equal items are equal, also to lists.
"""

from collections import OrderedDict
from collections.abc import MutableSequence
from numbers import Integral, Real

import numpy as np

from minicaffe.blob import Blob
from minicaffe.errors import MissingNameError, WrongTypeError, close_matches, shown


class Vector(MutableSequence):
    """A sequence of items of one type.

    A list of items is kept, not copied: the vector shows what is added to it later. With `fixed`, which says what to write
    instead of an assignment, the vector cannot be changed.
    """

    item_type, item_name = object, "an object"

    def __init__(self, items=(), fixed=None):
        self._items = items if isinstance(items, list) else list(items)
        self._fixed = fixed
        for item in self._items:
            self._check(item)

    def _check(self, item):
        if not isinstance(item, self.item_type):
            raise WrongTypeError(f"an item of {type(self).__name__} must be {self.item_name}, got {type(item).__name__}")
        return item

    def _mutable_items(self):
        if self._fixed:
            raise WrongTypeError(f"Invalid assignment: the items of this {type(self).__name__} are the net's own; {self._fixed}")
        return self._items

    def __len__(self):
        return len(self._items)

    def __getitem__(self, index):
        return type(self)(self._items[index], self._fixed) if isinstance(index, slice) else self._items[index]

    def __setitem__(self, index, value):
        items = self._mutable_items()
        items[index] = [self._check(item) for item in value] if isinstance(index, slice) else self._check(value)

    def __delitem__(self, index):
        del self._mutable_items()[index]

    def insert(self, index, value):
        """Put an item before the one at `index`."""
        items = self._mutable_items()
        items.insert(index, self._check(value))

    def __copy__(self):
        return self[:]

    def __eq__(self, other):
        return self._items == list(other) if isinstance(other, (Vector, list, tuple)) else NotImplemented

    __hash__ = None

    def __add__(self, other):
        return [*self._items, *other]

    def __radd__(self, other):
        return [*other, *self._items]

    def __repr__(self):
        return repr(self._items)


class BlobVec(Vector):
    """Blobs, such as ``net.params["fc"]``: weight, bias. `add`, for `add_blob`, makes a parameter of the shape that it is given."""

    item_type, item_name = Blob, "a Blob"

    def __init__(self, items=(), fixed=None, add=None):
        super().__init__(items, fixed)
        self._add = add

    def add_blob(self, *dims):
        """Append a parameter of this shape, filled with zeros; in `setup` of a layer written in Python.

        One that the model file holds, or another net of the workspace made, has its values already and keeps them,
        whatever `setup` writes.

        Raises
        ------
        WrongTypeError
            If these are no parameters of a layer written in Python, which alone may make some.
        """
        if self._add is not None:
            self._add(*dims)
        else:
            self._mutable_items().append(Blob(dims))


class RawBlobVec(BlobVec):
    """Blobs: the bottoms or tops of a layer."""


class LayerVec(Vector):
    """The layers of a net, in order."""

    item_name = "a layer"


class NetVec(Vector):
    """Nets, such as ``solver.test_nets``."""

    item_name = "a net"


class IntVec(Vector):
    """Integers."""

    item_type, item_name = Integral, "an integer"


class DtypeVec(Vector):
    """Real numbers."""

    item_type, item_name = Real, "a real number"


class StringVec(Vector):
    """Names."""

    item_type, item_name = str, "a string"


class BoolVec(Vector):
    """Truth values."""

    item_type, item_name = (bool, np.bool_), "a bool"


class NamedDict(OrderedDict):
    """What a net has by name. The error about a name that it lacks says `what` it lacks, and near names.

    With `remedy`, which says what to write instead, with ``{}`` for the name in quotes, an assignment is refused: it would not
    change what the net computes.
    """

    def __init__(self, items, what, remedy=None):
        self._what, self._remedy = what, None
        super().__init__(items)
        self._remedy = remedy

    def __missing__(self, name):
        raise MissingNameError(f"the net has no {self._what} {shown(name)}{close_matches(name, self)}")

    def __setitem__(self, name, value):
        if self._remedy is not None:
            raise WrongTypeError(f"Invalid assignment: what is called {name!r} is the net's own; write "
                                 + self._remedy.format(repr(name)))
        super().__setitem__(name, value)

    # A copy is the program's own and may be changed.
    def copy(self):
        """Return an OrderedDict of the same items."""
        return OrderedDict(self)

    def __or__(self, other):
        return OrderedDict(self) | other

    def __ror__(self, other):
        return other | OrderedDict(self)

    def __reduce__(self):
        return OrderedDict, (list(self.items()),)
