"""A net as a module of PyTorch: `to_module` makes its text and state dict, `export` also compares it with the net and writes both.

Neither needs PyTorch; the comparison does. The text does not import minicaffe.
"""

import contextlib
import keyword
from pathlib import Path

from minicaffe.addons.export import exporting
from minicaffe.addons.export.exporting import random_inputs
from minicaffe.addons.export.pytorch import layers  # noqa: F401 - it registers writers and operators
from minicaffe.addons.export.pytorch.source import Module
from minicaffe.addons.export.pytorch.state import write_state
from minicaffe.errors import ConfigError, DependencyError, shown
from minicaffe.proto.atomic import replacing

check_types = Module.check_types


def to_module(net, file_name="net", preprocessing=None):
    """Return a net as a module of PyTorch.

    Parameters
    ----------
    net : minicaffe.net.net.Net
        In phase TEST.
    file_name : str
        Of the two files, without ``.py`` and ``.pt``, for the lines in the docstring that show how they are read.
    preprocessing : minicaffe.addons.export.exporting.Preprocessing, optional
        Of the first input.

    Returns
    -------
    Module

    Raises
    ------
    ConfigError
        For a layer that PyTorch cannot express; all such layers are named. For a net in phase TRAIN.
    """
    module = Module(net, file_name)
    if preprocessing is not None:
        module.add_line(f"{module.inputs[0]} = {module.preprocess(preprocessing)}")
    module.add_layers()
    return module


def check_file_name(path):
    """Return the module name of a path without ``.py``; ConfigError if Python cannot import that name."""
    name = Path(path).name
    if not name.isidentifier() or keyword.iskeyword(name) or name == "torch":
        raise ConfigError(f"a module {shown(name)} cannot be imported; choose a name of letters, digits and _ that begins with no "
                          "digit and is not 'torch'", field="out")
    return name


def export(net, path, *, preprocessing=None, check=True, inputs=None):
    """Write a net as a module of PyTorch, and compare the two.

    Parameters
    ----------
    net : minicaffe.net.net.Net
        In phase TEST. With `check` it runs once.
    path : str or Path
        ``path.py`` gets the text, ``path.pt`` the state dict. They are written when the comparison has passed.
    preprocessing, check, inputs
        As of `minicaffe.addons.export.onnx.export`, which returns and raises the same; `check` needs PyTorch.
    """
    module, found = to_module(net, check_file_name(path), preprocessing), []
    with contextlib.ExitStack() as files:
        text, state = (files.enter_context(replacing(f"{path}{end}")) for end in (".py", ".pt"))
        text.write(module.text().encode())
        write_state(state, module.state)
        state.flush()
        if check:
            found = compare(net, module, state.name, inputs if inputs is not None else random_inputs(net), preprocessing)
    return found


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
    module : minicaffe.addons.export.pytorch.source.Module
    state : str or file
        The state dict, as `torch.load` takes it.
    inputs, preprocessing
        As of `minicaffe.addons.export.onnx.compare`.

    Raises
    ------
    DataError
        If an output differs, by the rule of `minicaffe.addons.export.onnx.compare`.
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
