"""A net and its module of PyTorch on the same inputs: the differences of their outputs, and the first layer that differs."""

from minicaffe.addons.export import exporting
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
        If an output differs by more than 1e-4 of its greatest absolute value, or has another shape, and so does a layer: all are
        compared on equal bottoms. If they agree, a warning says that rounding errors are the reason.
    DependencyError
        Without PyTorch.
    """
    torch = load_torch()
    state = torch.load(state, weights_only=True)

    def run(inputs, tops=None):
        space, found = {"__name__": "exported"}, {}
        exec(compile(module.text(probed=tops is not None), "exported", "exec"), space)     # the text is our own
        model = space[module.name]()
        model.load_state_dict(state)
        model.eval()

        def probe(index, blob, value):
            found[index, blob] = value.numpy()
            return torch.from_numpy(tops[index, blob])

        model._probe = probe    # no layer's attribute begins with _
        with torch.no_grad():
            returned = model(*(torch.from_numpy(value) for value in inputs.values()))
        returned = returned if isinstance(returned, tuple) else (returned,)
        return found or {name: value.numpy() for name, value in zip(module.outputs, returned, strict=True)}

    return exporting.compare(net, inputs, preprocessing, "module", run)
