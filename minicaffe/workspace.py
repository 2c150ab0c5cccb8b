"""Workspace: blobs by name, and the nets that share them (the idea of Caffe2's ``core/workspace.h``).

A net keeps its blobs in a workspace of its own, whose parent has the parameters; a look-up also finds what the parents have. So
the train and test nets of a solver share parameters. A net refers to its workspaces, and these refer to it weakly.
"""

import weakref

from minicaffe.errors import MissingNameError, WrongTypeError, close_matches, shown


class Workspace:
    """Hold blobs by name; see those of the parents.

    Parameters
    ----------
    parent : Workspace, optional
        Its names are found too, after the own ones.
    name : str
        For errors; a net's own workspace has the name of the net.
    """

    def __init__(self, parent=None, name=""):
        self.parent = parent
        self.name = name
        self._items = {}
        self._nets = weakref.WeakValueDictionary()      # by name; see `nets`

    def child(self, name):
        """Make a workspace that sees all names of this one; raise WrongTypeError for a name that is no str."""
        self._check_name(name)
        return type(self)(self, name)

    def set(self, name, blob):
        """Store `blob` under a name here, in place of an earlier one; a parent's blob of that name is hidden, not changed."""
        self._check_name(name)
        self._items[name] = blob

    def blob(self, name):
        """Return the blob `name`: an own one, else a parent's.

        Raises
        ------
        MissingNameError
            With close matches among all visible names.
        """
        self._check_name(name)
        found = self._find(name)
        if found is None:
            raise MissingNameError(f"{self}: no blob '{name}'{close_matches(name, self.names())}")
        return found

    def has(self, name):
        """Return whether this workspace or a parent has the name; false if it is no str."""
        return isinstance(name, str) and self._find(name) is not None

    def names(self):
        """List all visible names: own, then the parents'."""
        return list(dict.fromkeys([*self._items, *(self.parent.names() if self.parent else ())]))

    @property
    def nets(self):
        """Every net that was made here and is alive, by name, oldest first."""
        # Not `items()`, which fails where another thread makes a net at the same time.
        return {ref.key: net for ref in self._nets.valuerefs() if (net := ref()) is not None}

    def add_net(self, net):
        """Add a new net to `nets`; a name that is taken gets ``#1``, ``#2``, ... The net itself calls it."""
        name, repeats = getattr(net, "name", None), 0
        if not isinstance(name, str) or not hasattr(net, "nodes"):
            raise WrongTypeError(f"{self}: takes a net, got {shown(net)} ({type(net).__name__})")
        while name in self._nets:
            repeats += 1
            name = f"{net.name}#{repeats}"
        self._nets[name] = net

    def _find(self, name):      # `blob` without checks: None if the name is unknown
        found = self._items.get(name)  # one step, as another thread may remove it
        return self.parent._find(name) if found is None and self.parent is not None else found

    def _check_name(self, name):    # raises WrongTypeError unless it is a str
        if not isinstance(name, str):
            raise WrongTypeError(f"{self}: a name is a str, got {shown(name)}")

    def __str__(self):
        return f"workspace '{self.name}'" if self.name else "workspace"
