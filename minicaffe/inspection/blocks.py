"""Blocks of layers by their names: of ``inception_3a/1x1`` and ``inception_3a/relu_1x1`` it is ``inception_3a``."""


def owners(layers):
    """Return for each layer the name by which it belongs to a block.

    It is the layer's own name, or of a layer in place and of a Split that of the layer whose blob it takes: such layers have
    names as ``bn_conv1`` and ``relu1``, which do not begin as those of their block.

    Parameters
    ----------
    layers : iterable of (name, type, bottoms, tops)
        Names, in the order of the net.

    Returns
    -------
    list of str
    """
    makers, found = {}, []
    for name, kind, bottoms, tops in layers:
        joins = bottoms and (list(bottoms) == list(tops) or kind == "Split")
        owner = makers.get(bottoms[0], name) if joins else name
        makers.update(dict.fromkeys(tops, owner))
        found.append(owner)
    return found


def separator(names):
    """Return what separates the parts of names: ``/`` if a name has one, otherwise ``_``."""
    return "/" if any("/" in name for name in names) else "_"


def shared_name(names):
    """Return the beginning that names of a block have in common, without separators at its end; empty if there is none."""
    first, last = min(names), max(names)
    count = next((i for i, (a, b) in enumerate(zip(first, last)) if a != b), min(len(first), len(last)))
    return first[:count].rstrip("/_-.")
