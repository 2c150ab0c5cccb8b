"""Exercises of chapter 3: replace each `...`, then run ``pytest test_chapter3.py`` here."""


def find(name, scopes):
    """Return what `name` means in the first of these dictionaries that has it, the innermost first; raise KeyError if none has."""
    ...


def new_parameters(wanted, there):
    """Return the names, in order, of the parameters that a new net has to make.

    Given are the shapes that the net needs and those that its workspace holds, both as {name: shape}. Raise ValueError if the
    net needs a parameter with another shape than the one that is there.
    """
    ...


def renew(workspace, layer):
    """Let the next net of a workspace make new parameters for the layer of this name, and share those of all others.

    The parameters of a layer "ip2" are the slots "ip2[0]", "ip2[1]" and so on; `Workspace.remove(name)` removes a slot.
    """
    ...
