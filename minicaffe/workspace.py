"""Workspace: named, typed slots and nets (Caffe2 ``core/workspace.h`` and ``core/blob.h``).

A slot holds any one object and knows its type. A workspace owns slots by name and sees those of its parents, so the
train and test nets of a solver, each in a child workspace, share parameters that the parent owns. A missing name raises
with close matches; Caffe2 gave a null pointer. Creating a slot never reaches for a parent's slot of the same name, as
Caffe2's CreateBlob did; sharing is said by looking up or by `Workspace.forward`.
"""

from minicaffe.errors import ConfigError, MissingNameError, WrongTypeError, close_matches


class Slot:
    """A named place for one object of any type; None means empty.

    Parameters
    ----------
    name : str
        For error messages.
    """

    __slots__ = ("_value", "name")

    def __init__(self, name=""):
        self.name = name
        self._value = None

    @property
    def type(self):
        """type or None: of the object held; None while empty."""
        return None if self._value is None else type(self._value)

    def get(self, kind=object):
        """Give the object held.

        Raises
        ------
        WrongTypeError
            If the slot is empty or the object is no instance of `kind`.
        """
        if self._value is None or not isinstance(self._value, kind):
            held = "is empty" if self._value is None else f"holds {self.type.__name__}"
            raise WrongTypeError(f"{held}, asked for {kind.__name__}; get_mutable replaces it", field=self.name or None)
        return self._value

    def get_mutable(self, kind):
        """Give the object held; if it is no instance of `kind`, replace it by ``kind()`` first."""
        if self._value is None or not isinstance(self._value, kind):
            self._value = kind()
        return self._value

    def reset(self, value=None):
        """Drop the object held and hold `value`."""
        self._value = value

    def __repr__(self):
        return f"<Slot {self.name!r}: {self.type.__name__ if self.type else 'empty'}>"


class Workspace:
    """Own named slots and nets; see those of the parents.

    Parameters
    ----------
    parent : Workspace, optional
    name : str

    Attributes
    ----------
    nets : dict of str to net
        Owned by this workspace.
    """

    def __init__(self, parent=None, name=""):
        self.parent = parent
        self.name = name
        self.nets = {}
        self._slots = {}
        self._forwarded = {}  # own name -> name in the parent

    def child(self, name):
        """Make a workspace that sees all names of this one."""
        return Workspace(self, name)

    def slot(self, name):
        """Give the `Slot` that `name` means: an own one, else a forwarded one, else a parent's.

        Raises
        ------
        MissingNameError
            With close matches among all visible names.
        """
        found = self._find(name)
        if found is None:
            stale = f" (forwarded to '{self._forwarded[name]}', gone there)" if name in self._forwarded else ""
            raise MissingNameError(f"{self}: no blob '{name}'{stale}{close_matches(name, self.names())}")
        return found

    def blob(self, name, kind=object):
        """Give the object in the slot `name`; errors as `slot` and `Slot.get`."""
        return self.slot(name).get(kind)

    def create_slot(self, name):
        """Give the own slot `name`, made if missing; for a forwarded name, the slot it means."""
        if name in self._forwarded:
            return self.slot(name)
        return self._slots.setdefault(name, Slot(name))

    def set(self, name, value):
        """Put `value` into the slot that `create_slot` gives, and return the slot."""
        slot = self.create_slot(name)
        slot.reset(value)
        return slot

    def has(self, name):
        """Tell whether `slot` would find `name`."""
        return self._find(name) is not None

    def local_names(self):
        """List the names of own slots, oldest first."""
        return list(self._slots)

    def names(self):
        """List all visible names: own, forwarded, then the parents'."""
        known = [*self._slots, *self._forwarded, *(self.parent.names() if self.parent else ())]
        return [name for name in dict.fromkeys(known) if self.has(name)]

    def remove(self, name):
        """Remove an own slot, or end a forwarding; objects held elsewhere live on.

        Raises
        ------
        MissingNameError
            If `name` is not known, or belongs to a parent.
        """
        if name in self._forwarded:
            del self._forwarded[name]
        elif name in self._slots:
            del self._slots[name]
        elif self.has(name):
            raise MissingNameError(f"{self}: blob '{name}' belongs to a parent; remove it there")
        else:
            self.slot(name)  # raises

    def forward(self, own_name, parent_name):
        """Let `own_name` mean `parent_name` of the parent; calling again points it elsewhere.

        Raises
        ------
        ConfigError
            If there is no parent, or an own slot has the name.
        MissingNameError
            If the parent does not see `parent_name`.
        """
        if self.parent is None:
            raise ConfigError(f"{self}: cannot forward '{own_name}', there is no parent")
        if own_name in self._slots:
            raise ConfigError(f"{self}: cannot forward '{own_name}', an own slot has that name; remove it first")
        self.parent.slot(parent_name)
        self._forwarded[own_name] = parent_name

    def net(self, name):
        """Give the own net `name`.

        Raises
        ------
        MissingNameError
            With close matches.
        """
        if name not in self.nets:
            raise MissingNameError(f"{self}: no net '{name}'{close_matches(name, self.nets)}")
        return self.nets[name]

    def _find(self, name):
        if name in self._slots:
            return self._slots[name]
        if self.parent is None:
            return None
        return self.parent._find(self._forwarded.get(name, name))

    def __str__(self):
        return f"workspace '{self.name}'" if self.name else "workspace"
