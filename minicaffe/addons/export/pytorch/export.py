"""A net as a module of PyTorch: `to_module` makes its text and state dict, `export` also compares it with the net and writes both.

Neither needs PyTorch; the comparison does. The text does not import minicaffe.
"""

import contextlib
import keyword
import re
from pathlib import Path
from typing import NamedTuple

from minicaffe.addons.export import exporting
from minicaffe.addons.export.exporting import random_inputs
from minicaffe.addons.export.operators import preprocess
from minicaffe.addons.export.pytorch import layers  # noqa: F401 - it registers writers and operators
from minicaffe.addons.export.pytorch.source import WRITERS, Source, class_name, helper_texts, helpers_used_by, line_of, plain
from minicaffe.addons.export.pytorch.state import write_state
from minicaffe.errors import ConfigError, DependencyError, shown
from minicaffe.proto.atomic import replacing

TARGET = exporting.Target(WRITERS, "a module of PyTorch", "minicaffe.addons.export.pytorch.writer")
check_types = TARGET.check_types


class Module(NamedTuple):
    """A net as a module of PyTorch.

    Attributes
    ----------
    name : str
        Of the class.
    source : Source
    inputs : list of str
        The arguments of ``forward``, one for each input of the net.
    outputs : list of str
        Names of the net's blobs that ``forward`` returns.
    head : str
        The docstring of the text.
    description : str
        The docstring of the class.
    """

    name: str
    source: Source
    inputs: list
    outputs: list
    head: str
    description: str

    @property
    def state(self):
        """Name in the state dict -> array."""
        return self.source.state

    def text(self, probed=False):
        """Return the text of the file. With `probed` each top is passed to ``self._probe``, whose result replaces it."""
        parts = [f"class {self.name}(nn.Module):\n", f'    """{self.description}"""\n\n',
                "    def __init__(self):\n", line_of("super().__init__()")]
        parts += [line_of(*line) for line in self.source.init_lines]
        parts += ["\n", line_of(f"def forward({', '.join(['self', *self.inputs])}):", indent=4)]
        for text, comment, index, variables in self.source.forward_lines:
            parts.append(line_of(text, comment))
            if probed:
                parts += [line_of(f"{variable} = self._probe({index}, {blob!r}, {variable})")
                         for blob, variable in variables.items()]
        given = [self.source.values[name] for name in self.outputs]
        parts.append(line_of(f"return {given[0]}" if len(given) == 1 else f"return ({', '.join(given)})"))
        text = "".join(f"\n\n{helper_texts()[name][0]}\n" for name in helpers_used_by("".join(parts))) + "\n\n" + "".join(parts)
        imports = "import torch\n" if re.search(r"\btorch\.", text) else ""
        imports += "import torch.nn.functional as F\n" if re.search(r"\bF\.", text) else ""
        return f'"""{self.head}"""\n\n{imports}from torch import nn\n{text}'


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
    outputs = TARGET.check_net(net)
    source = Source(net.nodes, [blob.name for blob in outputs])
    inputs = [source.add_input(blob) for blob in net.input_blobs]
    if preprocessing is not None:
        source.add_line(f"{inputs[0]} = {preprocess(source, net, preprocessing)}")
    exporting.export_layers(net, source.values, source.add)
    name = class_name(net.name)
    returned = [source.values[blob.name] for blob in outputs]
    given = ", ".join(f"{name}: {' x '.join(map(str, blob.shape))}" for name, blob in zip(inputs, net.input_blobs))
    description = f"forward({given}) returns {', '.join(returned)}. Sizes are those of the prototxt."
    return Module(name, source, inputs, [blob.name for blob in outputs], _head(net, name, file_name), description)


def _head(net, name, file_name):
    from minicaffe import __version__
    origin = f" from {plain(Path(net.file).name)}" if net.file else ""
    return f"""A net of Caffe as a module of PyTorch, written by minicaffe {__version__}{origin}.

    import torch
    from {file_name} import {name}
    model = {name}()
    model.load_state_dict(torch.load("{file_name}.pt"))
    model.eval()
"""


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
    module : minicaffe.addons.export.pytorch.export.Module
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
