"""A net and its module of PyTorch on the same inputs: the differences of their outputs, and the first layer that differs."""

import numpy as np

from minicaffe.errors import DataError, DependencyError
from minicaffe.net.comparison import TOLERANCE, difference
from minicaffe.net.exporting import DISCONTINUOUS_TYPES, run_on, warn_of_discontinuity


def load_torch():
    """Return the module torch; DependencyError without PyTorch."""
    try:
        import torch
    except (ImportError, OSError) as error:
        raise DependencyError(f"PyTorch is needed to compare ({error}); pip install torch, or leave the comparison out "
                              "(--no-check)") from error
    return torch


def compare(net, module, state, inputs, preprocessing=None):
    """Run a net and its module on the same inputs; return the Difference of each output.

    Parameters
    ----------
    net : minicaffe.net.net.Net
    module : minicaffe.pytorch.export.Module
    state : str or file
        The state dict, as `torch.load` takes it.
    inputs, preprocessing
        As of `minicaffe.onnx.compare`.

    Raises
    ------
    DataError
        If an output differs by more than 1e-4 of its greatest absolute value, or has another shape. Then the layers are compared
        one by one on equal bottoms. If they agree, outputs after a layer of `DISCONTINUOUS_TYPES` only cause a warning.
    DependencyError
        Without PyTorch.
    """
    torch = load_torch()
    inputs, given, expected = run_on(net, inputs, preprocessing)
    state = torch.load(state, weights_only=True)
    outputs = _run(torch, module, state, inputs)
    found = [difference(name, expected[name], value) for name, value in zip(module.outputs, outputs, strict=True)]
    if all(one.relative <= TOLERANCE for one in found):
        return found
    worst = max(found, key=lambda one: one.relative)
    for node, one in _layer_by_layer(torch, net, module, state, inputs, given):
        if not one.relative <= TOLERANCE:
            raise DataError(f"the module gives other numbers than the net: layer '{node.name}' ({node.type}) differs first, in "
                            f"'{one.blob}' by {one.absolute:.3g} ({one.relative:.2g} of the greatest), shape {list(one.shape)}",
                            file=net.file)
    first, affected = None, set()   # the first layer of such a type, and the blobs that depend on such layers
    for node in net.nodes:
        if node.type in DISCONTINUOUS_TYPES or affected & {blob.name for blob in node.bottoms}:
            first = first or node
            affected |= {blob.name for blob in node.tops}
    if any(not one.relative <= TOLERANCE and one.blob not in affected for one in found):
        raise DataError(f"output '{worst.blob}' of the module differs by {worst.absolute:.3g} ({worst.relative:.2g} of the "
                        "greatest), though each layer gives equal tops on equal bottoms: rounding errors add up; --no-check writes "
                        "the module without the comparison", file=net.file)
    warn_of_discontinuity(first)
    return found


def _run(torch, module, state, inputs, probe=None):
    """Return the outputs of a module."""
    space = {"__name__": "exported"}
    exec(compile(module.text(probed=probe is not None), "exported", "exec"), space)     # the text is our own
    model = space[module.name]()
    model.load_state_dict(state)
    model.eval()
    model._probe = probe    # no layer's attribute begins with _
    with torch.no_grad():
        returned = model(*(torch.from_numpy(value) for value in inputs.values()))
    return [value.numpy() for value in (returned if isinstance(returned, tuple) else (returned,))]


def _layer_by_layer(torch, net, module, state, inputs, given):
    """Return (node, Difference) for each top of each layer of the module; all layers get the net's values as bottoms."""
    net.feed(**given)
    expected, found = {}, []
    for i, node in enumerate(net.nodes):
        net.forward_from_to(i, i)
        expected.update(((node.name, blob.name), np.array(blob.data)) for blob in node.tops)
    nodes = {node.name: node for node in net.nodes}

    def probe(layer, blob, value):
        value_of_net = expected[layer, blob]
        found.append((nodes[layer], difference(blob, value_of_net, value.detach().numpy())))
        return torch.from_numpy(value_of_net)

    _run(torch, module, state, inputs, probe)
    return found
