"""`Module` collects the text of a PyTorch module: lines of ``__init__`` and ``forward``, names, and the state dict.

Each layer type has a function, its writer, that returns the expressions of the tops. The variables of ``forward`` have the names
of the blobs, the attributes those of the layers. A layer in place assigns its blob's variable again. Helpers are the classes and
functions of `helpers.py`. Those that are used are copied into the text.
"""

import ast
import functools
import keyword
import re
import unicodedata
from pathlib import Path

import numpy as np

import minicaffe
from minicaffe.addons.export.exporting import UNKNOWN_SIZES, registration, unique, unique_names
from minicaffe.addons.export.operators import LAYERS, Writer
from minicaffe.errors import ConfigError

WRITERS = dict(LAYERS)      # layer type -> function
OPERATORS = {}  # operator of `minicaffe.addons.export.operators` -> text, see `Module.op`, or function
operator = registration(OPERATORS)
# The attributes of torch.nn.Module that a layer must not replace (dir(nn.Module()), without those that begin with "_").
MODULE_ATTRIBUTES = frozenset("""
    T_destination add_module apply bfloat16 buffers call_super_init children compile cpu cuda double dump_patches eval extra_repr
    float forward get_buffer get_extra_state get_parameter get_submodule half ipu load_state_dict modules mtia named_buffers
    named_children named_modules named_parameters parameters register_backward_hook register_buffer register_forward_hook
    register_forward_pre_hook register_full_backward_hook register_full_backward_pre_hook register_load_state_dict_post_hook
    register_load_state_dict_pre_hook register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule share_memory state_dict to to_empty train training
    type xpu zero_grad""".split())
# Names in the text of `forward`, besides helpers.
FORWARD_NAMES = frozenset({"F", "nn", "self", "torch", "len", "max", "min", "range", "slice", "zip"})


def writer(*types):
    """Return a decorator that registers a function as the writer of layer types.

    The function has the arguments `source`, a `Module`, and `node`, a `minicaffe.net.node.Node`. It returns a list of an
    expression for each top, or one str that is a tuple of all tops. It replaces a writer that the type already has.
    """
    return registration(WRITERS)(*types)


class Module(Writer):
    """A net as a module of PyTorch, to which the writer of each layer adds.

    Parameters
    ----------
    net : minicaffe.net.net.Net
        In phase TEST.
    file_name : str
        Of its files, without ``.py`` and ``.pt``.

    Attributes
    ----------
    name : str
        Of the class.
    inputs : list of str
        The arguments of ``forward``, one for each input of the net.
    outputs : list of str
        Names of the net's blobs that ``forward`` returns.
    state : dict
        Name in the state dict -> array. Names of a shared parameter have the same array.
    """

    functions, form, register = WRITERS, "a module of PyTorch", "minicaffe.addons.export.pytorch.writer"

    def __init__(self, net, file_name):
        super().__init__(net)
        nodes = net.nodes
        # No name in the text equals that of the class.
        self.name, self.file_name = identifiers([net.name or "Net"], {*helper_texts(), *FORWARD_NAMES}, "Net")[0], file_name
        self.blobs = {blob.name: blob for node in nodes for blob in node.tops}
        self.attributes = identifiers([node.name for node in nodes], MODULE_ATTRIBUTES, "layer")
        self.taken = dict.fromkeys([*MODULE_ATTRIBUTES, *self.attributes], 1)
        self.variables = dict(zip(self.blobs, identifiers(self.blobs, FORWARD_NAMES | helper_texts().keys(), "blob")))
        self.init_lines = []        # of __init__: (text, comment)
        self.forward_lines = []     # of forward: (text, comment, index of the layer or None, variables by blob)
        self.state, self.owners = {}, {}    # owners: memory -> path and array of the first parameter in it
        self.sizes_known = True
        self.last_read = {blob.name: index for index, node in enumerate(nodes) for blob in node.bottoms}
        self.last_read |= dict.fromkeys(self.outputs, len(nodes))
        self.index, self.attribute = -1, None
        self.inputs = [self._assign(blob.name) for blob in net.input_blobs]

    # ---- for writers

    def shape(self, index=0):
        """Return the shape of a bottom."""
        return self.node.bottoms[index].shape

    def top_shape(self, index=0):
        """Return the shape of a top."""
        return self.node.tops[index].shape

    def op(self, kind, /, *inputs, **attributes):
        """Return the expression of an operator; inputs are expressions, or numbers and arrays.

        Its text in `OPERATORS` begins with "nn." if it is a module.
        """
        text = OPERATORS[kind]
        if callable(text):
            return text(self, *inputs, **attributes)
        inputs = [self.buffer(value) if isinstance(value, np.ndarray) else value_text(value) for value in inputs]
        made = text.format(*inputs, all=", ".join(inputs), first="" if len(self.node.tops) > 1 else "[0]",
                           **{name: value_text(value) for name, value in attributes.items()})
        return f"{self.module(made)}({inputs[0]})" if text.startswith("nn.") else made

    def module(self, text, **parameters):
        """Add a module to ``__init__``; return the expression of the module, which ``forward`` calls.

        Parameters
        ----------
        text : str
            The expression that creates it: "nn.Conv2d(3, 8, 1)".
        **parameters : int, tuple, ndarray or None
            Name in the module -> the value in the state dict. An int is the index of a blob of the layer. A tuple has this index
            and another shape. An array is not a blob of the layer. None is left out.
        """
        comment = "" if self.attribute == self.node.name else f"layer '{plain(self.node.name)}'"
        self.init_lines.append((f"self.{self.attribute} = {text}", comment))
        shared = []
        for name, value in parameters.items():
            path = f"{self.attribute}.{name}"
            if value is None:
                continue
            if isinstance(value, np.ndarray):
                self.state[path] = np.ascontiguousarray(value).reshape(value.shape)     # it makes a scalar 1-D
                continue
            owner = self._parameter(path, *(value if isinstance(value, tuple) else (value,)))
            if owner != path:
                shared.append((f"self.{path} = self.{owner}", "shared parameter"))
        self.init_lines += shared
        return f"self.{self.attribute}"

    def parameter(self, index, name=""):
        """Add a parameter of the module itself, with the layer's name, or this and `name`; return its expression."""
        path = self.attribute_name(f"{self.node.name}_{name}") if name else self.attribute
        owner = self._parameter(path, index)
        value = f"nn.Parameter(torch.zeros({numbers(self.state[path].shape)}))" if owner == path else f"self.{owner}"
        self.init_lines.append((f"self.{path} = {value}", "" if owner == path else "shared parameter"))
        return f"self.{path}"

    def buffer(self, array, name=None):
        """Add an array that is not learned, by default with the layer's name; return its expression."""
        name = self.attribute if name is None else self.attribute_name(name)
        self.state[name] = np.array(array, np.float32)
        self.init_lines.append((f'self.register_buffer("{name}", torch.zeros({numbers(self.state[name].shape)}))', ""))
        return f"self.{name}"

    def attribute_name(self, name):
        """Return a free attribute that resembles a name."""
        return unique(identifier(name, "layer"), self.taken)

    def add_line(self, text):
        """Add a line of ``forward`` that computes no top, such as a comment above the layer's line."""
        self.forward_lines.append((text, "", None, {}))

    # ---- for `to_module`

    def add(self, index, node):
        """Add a layer by its type's writer."""
        self.node, self.index, self.attribute = node, index, self.attributes[index]
        self.sizes_known &= node.type not in UNKNOWN_SIZES
        self._check_in_place(node)
        found = WRITERS[node.type](self, node)
        bottoms = [blob.name for blob in node.bottoms]
        comments = ["" if blob.name in bottoms or not self.sizes_known else " x ".join(map(str, blob.shape)) or "a number"
                    for blob in node.tops]
        if isinstance(found, str):
            names = [self._assign(blob.name) for blob in node.tops]
            comment = "; ".join(comment for comment in comments if comment)
            tops = {blob.name: name for blob, name in zip(node.tops, names)}
            self.forward_lines.append((f"{', '.join(names)} = {found}", comment, index, tops))
            return
        for blob, text, comment in zip(node.tops, found, comments, strict=True):
            if text in self.values.values():    # the value of another blob
                self.values[blob.name] = text
                continue
            name = self._assign(blob.name)
            self.forward_lines.append((f"{name} = {text}", comment, index, {blob.name: name}))

    @property
    def description(self):
        """str: the docstring of the class."""
        given = ", ".join(f"{name}: {' x '.join(map(str, blob.shape))}" for name, blob in zip(self.inputs, self.net.input_blobs))
        returned = ", ".join(self.values[name] for name in self.outputs)
        return f"forward({given}) returns {returned}. Sizes are those of the prototxt."

    def text(self, probed=False):
        """Return the text of the file. With `probed` each top is passed to ``self._probe``, whose result replaces it."""
        parts = [f"class {self.name}(nn.Module):\n", f'    """{self.description}"""\n\n',
                 "    def __init__(self):\n", line_of("super().__init__()")]
        parts += [line_of(*line) for line in self.init_lines]
        parts += ["\n", line_of(f"def forward({', '.join(['self', *self.inputs])}):", indent=4)]
        for text, comment, index, variables in self.forward_lines:
            parts.append(line_of(text, comment))
            if probed:
                parts += [line_of(f"{variable} = self._probe({index}, {blob!r}, {variable})")
                          for blob, variable in variables.items()]
        given = [self.values[name] for name in self.outputs]
        parts.append(line_of(f"return {given[0]}" if len(given) == 1 else f"return ({', '.join(given)})"))
        text = "".join(f"\n\n{helper_texts()[name][0]}\n" for name in helpers_used_by("".join(parts))) + "\n\n" + "".join(parts)
        imports = "import torch\n" if re.search(r"\btorch\.", text) else ""
        imports += "import torch.nn.functional as F\n" if re.search(r"\bF\.", text) else ""
        origin = f" from {plain(Path(self.net.file).name)}" if self.net.file else ""
        return f'''"""A net of Caffe as a module of PyTorch, written by minicaffe {minicaffe.__version__}{origin}.

    import torch
    from {self.file_name} import {self.name}
    model = {self.name}()
    model.load_state_dict(torch.load("{self.file_name}.pt"))
    model.eval()
"""

{imports}from torch import nn
{text}'''

    def _assign(self, blob):
        """Return the variable of a blob, which gets a value."""
        self.values[blob] = self.variables[blob]
        return self.variables[blob]

    def _check_in_place(self, node):
        """Raise ConfigError where a layer in place writes into the memory of another blob that a later layer reads."""
        for blob in (blob for blob in node.tops if blob in node.bottoms):
            for other in (self.blobs[name] for name in self.values if name != blob.name):
                if other.data_memory is blob.data_memory and self.last_read.get(other.name, -1) > self.index:
                    raise ConfigError(f"writes in place into blob '{blob.name}', whose memory Caffe shares with '{other.name}', "
                                      "which is read later; variables of Python do not share it: give the layer a top of another "
                                      "name", field="top[0]")

    def _parameter(self, path, index, shape=None):
        """Put blob `index` of the layer into the state dict as `path`; return the path of the first parameter in its memory."""
        blob = self.node.layer.blobs[index]
        key, array = id(blob.data_memory), np.asarray(blob.data, np.float32).reshape(shape or blob.shape)
        owner, first = self.owners.setdefault(key, (path, array))
        if first.shape != array.shape:
            raise ConfigError(f"shares the parameter {owner} as {list(array.shape)}, where that is {list(first.shape)}; PyTorch "
                              "shares parameters of one shape", field=f"blobs[{index}]")
        self.state[path] = first
        return owner


# ---- text

def number(value):
    """Return the shortest text of a float32; it is read as the same number."""
    value = np.float32(value)
    if np.isnan(value):
        return "torch.nan"
    return repr(float(str(value))) if np.isfinite(value) else "torch.inf" if value > 0 else "-torch.inf"


def value_text(value):
    """Return the text of an attribute or input: a str is an expression, a list is several arguments."""
    if isinstance(value, list):
        return arguments(*value)
    return number(value) if isinstance(value, float) else numbers(value) if isinstance(value, tuple) else str(value)


def arguments(*given, **options):
    """Return the text of arguments; an option that is None is left out."""
    return ", ".join([*map(str, given), *(f"{name}={value}" for name, value in options.items() if value is not None)])


def numbers(values):
    """Return the text of a tuple of integers."""
    return f"({', '.join(map(str, values))}{',' * (len(values) == 1)})"


def plain(text):
    """Return a name with ? for characters that a comment or docstring cannot contain."""
    return "".join(c if c.isprintable() and c not in '\\"' else "?" for c in str(text))


def line_of(text, comment="", indent=8):
    """Return a line with its comment."""
    return " " * indent + text + f"  # {comment}" * bool(comment) + "\n"


@functools.cache
def helper_texts():
    """Return the text of each helper by name, and the names of the helpers that it uses."""
    text = Path(__file__).with_name("helpers.py").read_text(encoding="utf-8")
    defined = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {name: (ast.get_source_segment(text, node),
                   {other.id for other in ast.walk(node) if isinstance(other, ast.Name) and other.id in defined} - {name})
            for name, node in defined.items()}


def helpers_used_by(text):
    """Return the names of the helpers that a text calls, and of all that these use, in the order of helpers.py."""
    found, new = set(), set(re.findall(r"(?<![\w.])\w+(?=\()", text)) & helper_texts().keys()
    while new:
        found |= new
        new = set().union(*(helper_texts()[name][1] for name in new)) - found
    return [name for name in helper_texts() if name in found]


# ---- names: "conv1/3x3_s2" becomes conv1_3x3_s2, "1x1" layer_1x1, "class" class_, and a second "a_b" beside "a/b" a_b_2

def identifier(name, prefix):
    """Return a valid identifier that resembles a name; `prefix` is put before one that does not begin with a letter."""
    # Python normalizes identifiers in this form, so attributes and names in a state dict are equal.
    text = "".join(c if f"a{c}".isidentifier() else "_" for c in unicodedata.normalize("NFKC", name))
    if not text[:1].isalpha() or not text.isidentifier():
        text = f"{prefix}_{text}"
    return f"{text}_" if keyword.iskeyword(text) else text


def identifiers(names, reserved, prefix):
    """Return identifiers for names, that differ from each other and from those of `reserved`; `prefix` as in `identifier`."""
    wanted = [identifier(name, prefix) for name in names]
    return unique_names([f"{text}_" if text in reserved else text for text in wanted])
