"""Caffe2's workspace: named slots for objects of any type, nets, plans, and files (Caffe2 ``core/workspace.h``).

A workspace owns slots by name. A look-up also finds the slots of its parents, so the train and test nets of a solver share
parameters that the parent owns. A missing name raises with close matches; Caffe2 returned a null pointer. Creating a slot never
returns a parent's slot of the same name, as Caffe2's CreateBlob did. To share it, look it up or use `Workspace.forward`.

A workspace owns the nets of `Workspace.create_net` and lists those that others made in it, such as a solver's. A net refers
to the slots that it uses but not to what owns it, so its memory is freed with the last reference to net or workspace. Unlike in
Caffe2, a net's blobs are kept in a workspace of its own, a child; its parameters are slots of the workspace.
"""

import logging

from minicaffe import workspace
from minicaffe.addons.caffe2 import serialization
from minicaffe.addons.caffe2.plan import Plan
from minicaffe.addons.caffe2.slot import Slot, memory_of
from minicaffe.errors import ConfigError, MissingNameError, WrongTypeError, check_type, close_matches, located, names_of
from minicaffe.proto.atomic import delayed_interrupts
from minicaffe.proto.upgrade import load_net
from minicaffe.pycaffe.net import Net

log = logging.getLogger("minicaffe.workspace")


class Workspace(workspace.Workspace):
    """Own named slots and nets; see the slots of the parents.

    Parameters
    ----------
    parent : Workspace, optional
    name : str
    """

    def __init__(self, parent=None, name=""):
        super().__init__(parent, name)
        self._forwarded = {}  # own name -> name in the parent
        self._owned = {}  # nets of create_net; None in what such a net refers to

    def slot(self, name):
        """Give the `Slot` that `name` means: an own one, else a forwarded one, else a parent's.

        Raises
        ------
        MissingNameError
            With close matches among all visible names.
        """
        self._check_name(name)
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
        self._check_name(name)
        if name in self._forwarded:
            return self.slot(name)
        return self._items.setdefault(name, Slot(name))

    def set(self, name, value):
        """Put `value` into the slot that `create_slot` gives, and return the slot."""
        slot = self.create_slot(name)
        slot.reset(value)
        return slot

    def local_names(self):
        """List the own names, oldest first."""
        return list(self._items)

    def names(self):
        """List all visible names: own, forwarded, then the parents'."""
        known = [*self._items, *self._forwarded, *(self.parent.names() if self.parent else ())]
        return [name for name in dict.fromkeys(known) if self.has(name)]

    def remove(self, name):
        """Remove an own slot, or end a forwarding; objects held elsewhere live on.

        Raises
        ------
        MissingNameError
            If `name` is not known, or belongs to a parent.
        """
        self._check_name(name)
        if self._forwarded.pop(name, None) is None and self._items.pop(name, None) is None:
            self.slot(name)  # raises if the name is unknown
            raise MissingNameError(f"{self}: blob '{name}' belongs to a parent; remove it there")

    def forward(self, own_name, parent_name):
        """Let `own_name` mean `parent_name` of the parent; calling again points it elsewhere.

        Raises
        ------
        ConfigError
            If there is no parent, or an own slot has the name.
        MissingNameError
            If the parent does not see `parent_name`.
        """
        self._check_name(own_name)
        if self.parent is None:
            raise ConfigError(f"{self}: cannot forward '{own_name}', there is no parent")
        if own_name in self._items:
            raise ConfigError(f"{self}: cannot forward '{own_name}', an own slot has that name; remove it first")
        self.parent.slot(parent_name)
        self._forwarded[own_name] = parent_name

    def rename(self, old, new):
        """Give the own slot `old` another name, and return it (Caffe2's RenameBlob).

        Raises
        ------
        MissingNameError
            If `old` is not an own slot: a parent's is renamed there, a forwarding is removed and made again.
        ConfigError
            If `new` is known already, here or in a parent, whose slot it would hide.
        """
        self._check_name(old)
        if old not in self._items:
            if old in self._forwarded:
                raise MissingNameError(f"{self}: '{old}' is forwarded to '{self._forwarded[old]}'; remove it, forward the new name")
            self.slot(old)  # raises if the name is unknown
            raise MissingNameError(f"{self}: blob '{old}' belongs to a parent; rename it there")
        self._check_name(new)
        if new in self._forwarded or self.has(new):
            raise ConfigError(f"{self}: cannot rename blob '{old}', there is a '{new}' already; remove or rename that one first")
        slot = self._items[new] = self._items[old]  # other threads find it under both names for a moment, and never under none
        slot.name = new
        del self._items[old]
        return slot

    # ---- sizes

    def blob_sizes(self):
        """Return the bytes of each own slot's object, largest first; 0 for an external one, which has another owner.

        Memory that several slots share counts at each.
        """
        return {name: sum(memory.values()) for name, _, memory in self._memories()}

    def print_blob_sizes(self, file=None):
        """Print name, bytes and type of each own slot, largest first, to `file` or stdout (Caffe2's PrintBlobSizes).

        In the total shared memory counts once.
        """
        rows = self._memories()
        width = max([5, *(len(name) for name, _, _ in rows)])
        total = {piece: nbytes for _, _, memory in rows for piece, nbytes in memory.items()}
        print(f"{'name':{width}}  {'bytes':>12}  type", file=file)
        for name, kind, memory in rows:
            print(f"{name:{width}}  {sum(memory.values()):12}  {kind}", file=file)
        print(f"{'total':{width}}  {sum(total.values()):12}", file=file)

    def _memories(self):
        """List name, `Slot.kind` and `memory_of` the object of each own slot, largest first."""
        rows = [(name, slot.kind, {} if slot.is_external else memory_of(slot._value)) for name, slot in self._items.copy().items()]
        return sorted(rows, key=lambda row: -sum(row[2].values()))

    # ---- to bytes and files

    def serialize(self, name):
        """Return the slot `name` as bytes, as `Slot.serialize`."""
        return serialization.serialize(self.slot(name)._value, name)

    def deserialize(self, data, name=None):
        """Put the object of serialized bytes into the own slot `name`, by default of the name that it had, and return the slot.

        Raises
        ------
        DataError, ShapeError, WrongTypeError, ConfigError
            As `Slot.deserialize`, and for a forwarded name; nothing is changed then.
        """
        stored, value = serialization.deserialize(data)
        name = stored if name is None else name
        self._fill({name: value})
        return self._items[name]

    def save(self, path, names=None):
        """Write what slots hold to a file, which is replaced when the new one is whole; see `minicaffe.serialization`.

        Parameters
        ----------
        path : str or path-like
        names : sequence of str, optional
            By default all own slots but those that show an external object.

        Returns
        -------
        list of str
            The names that were written.

        Raises
        ------
        MissingNameError, WrongTypeError, DataError, FileError
            Naming slot, type and file; what was at `path` stays.
        """
        if names is None:
            names = [name for name, slot in self._items.copy().items() if not slot.is_external]
            if left := len(self._items) - len(names):
                log.info("%d slots of %s show objects of others and are left out of %s; name them to save them", left, self, path)
        names = self._listed(names)
        serialization.write_file(path, {name: self.slot(name)._value for name in names})
        return names

    def load(self, path, names=None):
        """Fill own slots from a file of `save`: all that are in it, or those of `names`; return their names.

        A blob that a slot holds stays and gets the values, so that nets which use it see them; anything else is replaced. A slot of
        a parent is hidden, not written.

        Raises
        ------
        FileError, DataError, ShapeError, WrongTypeError, MissingNameError, ConfigError
            Naming file and slot; the workspace is as it was.
        """
        values = serialization.read_file(path, None if names is None else self._listed(names))
        with located(file=str(path)):
            self._fill(values)
        return list(values)

    def _fill(self, values):
        """Put read objects into own slots: all, or none if one does not fit."""
        fills = []
        for name, value in values.items():
            if name in self._forwarded:
                raise ConfigError(f"{self}: '{name}' is forwarded to '{self._forwarded[name]}' of the parent; fill that one, or "
                                  "remove the forwarding first", field=name)
            self._check_name(name)
            slot = self._items[name] if name in self._items else Slot(name)
            fills.append((name, slot, slot.prepare_fill(value)))
        with delayed_interrupts():
            for name, slot, fill in fills:
                self._items[name] = slot
                fill()

    # ---- nets

    def net(self, name):
        """Give the net `name` of this workspace.

        Raises
        ------
        MissingNameError
            With close matches.
        """
        self._check_name(name)
        net = self._nets.get(name)
        if net is None:
            raise MissingNameError(f"{self}: no net '{name}'{close_matches(name, self.nets)}")
        return net

    def create_net(self, net, phase, *, name=None, overwrite=False, level=None, stages=(), **options):
        """Make a net that this workspace owns, until `delete_net` or the workspace's own end.

        Parameters
        ----------
        net : NetParameter, path, or str
            The text of a prototxt, which has braces, or a path to one; of any age. A NetParameter is not changed.
        phase : int
            TRAIN or TEST.
        name : str, optional
            In place of the net's own name.
        overwrite : bool
            Replace a net of that name; it stays if the new one cannot be made. Parameters are slots and stay as they are.
        level, stages
            As of `minicaffe.Net`; a NetParameter's own level counts if none is given. `options` are those of `minicaffe.Net`, too:
            weights, trusted, skip_unknown_fields, dtype.

        Returns
        -------
        minicaffe.Net

        Raises
        ------
        ConfigError
            If there is a net of that name and `overwrite` is not set, or neither the net nor `name` gives one.
        FileError, ShapeError, DataError
            As `minicaffe.Net`.
        """
        self._check_owner()
        net, content = ("<prototxt>", net.encode(errors="surrogatepass")) if isinstance(net, str) and "{" in net else (net, None)
        definition = load_net(net, phase, level, stages, options.get("skip_unknown_fields", False), content)
        if name is not None:
            self._check_name(name)
            definition.param.name = name
        name = definition.param.name
        if not name:
            raise ConfigError(f"{self}: a net that a workspace owns needs a name; give the prototxt one, or name=",
                              field="name", file=definition.file)
        if name in self._nets and not overwrite:
            raise ConfigError(f"{self}: there is a net '{name}' already; give another name=, delete_net it, set "
                              "overwrite=True, or make the net in a Workspace() of its own, if it is to share nothing")
        old, old_slots = self._nets.pop(name, None), set(self._items)
        try:
            made = Net(definition, phase, workspace=self._without_nets(), **options)
        except BaseException:
            self._nets.pop(name, None)  # one whose weights could not be loaded
            if old is not None:
                self._nets[name] = old
            for slot in set(self._items) - old_slots:
                self._items.pop(slot, None)
            raise
        self._owned[name] = made
        return made

    def delete_net(self, name):
        """Release the net `name`; its parameters stay here as slots, and a caller that holds or runs it keeps it alive."""
        self._check_owner()
        self.net(name)  # raises
        self._nets.pop(name, None)
        self._owned.pop(name, None)

    def run_net(self, name, backward=False):
        """Run the net `name` forward, then backward if asked; return its loss, 0 without one."""
        net = self.net(name)
        return net.forward_backward() if backward else net.forward_from_to(0, len(net.layers) - 1)

    def run_plan(self, plan):
        """Run a `minicaffe.addons.caffe2.plan.Plan` of nets of this workspace.

        Raises
        ------
        MissingNameError
            Before anything runs, if a net is missing; later, if one was deleted in between. All errors of minicaffe's name plan,
            step and net; other exceptions have that as a note.
        """
        check_type(plan, Plan, "plan", "a Plan, which Plan(steps) makes").run(self)

    def _check_owner(self):
        if self._owned is None:
            raise ConfigError(f"{self} is what a net refers to and owns no nets; use the one that the net was made in")

    def _without_nets(self):
        """A workspace with the same slots and nets that owns no nets; an owned net refers to it, so that no cycle arises."""
        same = Workspace(self.parent, self.name)
        same._items = self._items
        same._forwarded, same._nets, same._owned = self._forwarded, self._nets, None
        return same

    def _listed(self, names):
        return list(dict.fromkeys([names] if isinstance(names, str) else names_of(names, "names")))

    def _find(self, name):
        slot = self._items.get(name)  # one step, as another thread may remove it
        if slot is not None or self.parent is None:
            return slot
        return self.parent._find(self._forwarded.get(name, name))

    def __reduce__(self):
        raise WrongTypeError(f"{self} cannot be copied or pickled; other.load(path) after save(path) copies what its slots hold")
