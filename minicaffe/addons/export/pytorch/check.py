"""A net and its module of PyTorch on the same inputs: the differences of their outputs, and the first layer that differs."""

import numpy as np

from minicaffe.addons.export import exporting
from minicaffe.addons.export.comparison import difference
from minicaffe.errors import DependencyError


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
    module : minicaffe.addons.export.pytorch.export.Module
    state : str or file
        The state dict, as `torch.load` takes it.
    inputs, preprocessing
        As of `minicaffe.addons.export.onnx.compare`.

    Raises
    ------
    DataError
        If an output differs by more than 1e-4 of its greatest absolute value, or has another shape. Then the layers are compared
        one by one on equal bottoms. If they agree, outputs after a layer of `DISCONTINUOUS_TYPES` only cause a warning.
    DependencyError
        Without PyTorch.
    """
    torch = load_torch()
    state = torch.load(state, weights_only=True)
    return exporting.compare(net, inputs, preprocessing, "module", lambda inputs: _run(torch, module, state, inputs),
                             lambda inputs, given: _layer_by_layer(torch, net, module, state, inputs, given))


def _run(torch, module, state, inputs, probe=None):
    """Return the outputs of a module by name."""
    space = {"__name__": "exported"}
    exec(compile(module.text(probed=probe is not None), "exported", "exec"), space)     # the text is our own
    model = space[module.name]()
    model.load_state_dict(state)
    model.eval()
    model._probe = probe    # no layer's attribute begins with _
    with torch.no_grad():
        returned = model(*(torch.from_numpy(value) for value in inputs.values()))
    returned = returned if isinstance(returned, tuple) else (returned,)
    return {name: value.numpy() for name, value in zip(module.outputs, returned, strict=True)}


def _layer_by_layer(torch, net, module, state, inputs, given):
    """Return (node, Difference) for each top of each layer of the module; all layers get the net's values as bottoms."""
    net.feed(**given)
    expected, found = {}, []
    for i, node in enumerate(net.nodes):
        net.forward_from_to(i, i)
        expected.update(((i, blob.name), np.array(blob.data)) for blob in node.tops)

    def probe(index, blob, value):
        value_of_net = expected[index, blob]
        found.append((net.nodes[index], difference(blob, value_of_net, value.detach().numpy())))
        return torch.from_numpy(value_of_net)

    _run(torch, module, state, inputs, probe)
    return found
