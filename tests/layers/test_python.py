"""Python layers: the user's class in a net, and which modules a model file may name."""

import io
import sys
import textwrap
import types

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, output_of, run_backward, run_forward
from helpers import layer_text, make_net

from minicaffe.blob import Dtype
from minicaffe.common import TRAIN, caffe
from minicaffe.errors import ConfigError
from minicaffe.layer import register_layer
from minicaffe.layers.python import Layer, allow_python_layers
from minicaffe.net import weights
from minicaffe.proto import caffe_pb2
from minicaffe.workspace import Workspace

X = np.random.default_rng(19).standard_normal((2, 3))


class Weighted(Layer):
    """y = k w x, with k from param_str and a learned w for each column."""

    def setup(self, bottom, top):
        self.k = float(self.param_str)
        self.blobs.add_blob(bottom[0].shape[1])
        self.blobs[0].data[...] = 2

    def reshape(self, bottom, top):
        top[0].reshape(*bottom[0].data.shape)

    def forward(self, bottom, top):
        top[0].data[...] = self.k * self.blobs[0].data * bottom[0].data

    def backward(self, top, propagate_down, bottom):
        self.blobs[0].diff[...] += (self.k * top[0].diff * bottom[0].data).sum(0)
        if propagate_down[0]:
            bottom[0].diff[...] = self.k * top[0].diff * self.blobs[0].data


class TakesNames(Weighted):
    def setup(self, bottom, top):
        super().setup(bottom, top)
        self.seen = (self.type, self.name, self.phase)
        self.param = self.name = self.type = self.key = self.dtype = self.parameters = "mine"


class Fails(Layer):
    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        raise KeyError("the gate is closed")


def python(layer, param_str="3", module=__name__):
    return layer_text("Python", "p", "x", "y", f'python_param {{ module: "{module}" layer: "{layer}" param_str: "{param_str}" }}')


@pytest.fixture(autouse=True)
def policy():
    yield
    allow_python_layers(None)


def test_a_user_layer_computes_and_learns():
    net = forward_net(python("Weighted"), [X])
    layer = net.layers[-1]
    assert type(layer) is Weighted and layer.phase == TRAIN and layer.type == "Python"
    np.testing.assert_allclose(net.blob_by_name("y").data, 6 * X)
    assert len(layer.blobs) == 1 and net.params_lr == [1.0]
    check_gradient(python("Weighted"), [X])
    for name, layer_class in ("WeightedForTest", Weighted), ("OneArgumentType", OneArgument):
        register_layer(name, layer_class)
        np.testing.assert_allclose(output_of(layer_text(name, "p", "x", "y", 'python_param { param_str: "4" }'), [X]), 8 * X)
    with pytest.raises(ConfigError, match="registered already"):
        register_layer("WeightedForTest", Fails)
    workspace, text = Workspace(), layer_text("Input", "x", more="input_param { shape { dim: [2, 3] } }") + python("Weighted")
    first = make_net(text, dtype=Dtype.DOUBLE, workspace=workspace)
    first.layers[-1].blobs[0].data[...] = 7
    assert make_net(text, dtype=Dtype.DOUBLE, workspace=workspace).layers[-1].blobs[0] is first.layers[-1].blobs[0]
    assert first.layers[-1].blobs[0].data.tolist() == [7, 7, 7]


def test_names_and_shapes_of_user_layers():
    net = layer_net(python("TakesNames"), [X])
    layer = net.layers[-1]
    assert layer.seen == ("Python", "p", TRAIN) and layer.param == layer.name == "mine"
    run_forward(net)
    run_backward(net, [0], [X])
    np.testing.assert_allclose(net.blob_by_name("x").diff, 6 * X)
    file = io.BytesIO()
    weights.save(net, file)
    stored = caffe_pb2.NetParameter.FromString(file.getvalue()).layer[-1]
    assert (stored.name, stored.type, list(stored.blobs[0].data or stored.blobs[0].double_data)) == ("p", "Python", [2, 2, 2])
    class Counts(Layer):
        def reshape(self, bottom, top):
            top[0].reshape(int(bottom[0].data.sum()))

        def forward(self, bottom, top):
            top[0].data[...] = 1
    register_layer("CountsForTest", Counts)
    net = layer_net(layer_text("CountsForTest", "c", "x", "y"), [np.ones(3)])
    for count in (3, 6, 0):
        forward_again(net, x=np.full(3, count / 3))
        assert net.blob_by_name("y").shape == (count,)


def test_errors_and_solvers(monkeypatch):
    net = layer_net(python("Fails"), [X])
    with pytest.raises(KeyError) as caught:
        run_forward(net)
    assert caught.value.args == ("the gate is closed",)
    with pytest.raises(ValueError, match="could not convert string to float"):
        layer_net(python("Weighted", "three"), [X])
    with pytest.raises(ConfigError, match=r"layer 'p' \(Python\): class Fails does not define backward"):
        run_backward(net, [0])
    monkeypatch.setattr(caffe, "solver_count", 2)
    with pytest.raises(ConfigError, match="several solvers in one process"):
        layer_net(python("Weighted"), [X])
    monkeypatch.setattr(caffe, "multiprocess", True)
    layer_net(python("Weighted"), [X])
    made = type("NoSuper", (Weighted,), {"__init__": lambda self, param: None})
    monkeypatch.setattr(sys.modules[__name__], "NoSuper", made, raising=False)
    with pytest.raises(ConfigError, match=r"layer 'p' .*__init__ of class NoSuper does not call .*write super\(\).__init__\(param\)"):
        layer_net(python("NoSuper"), [X])


@pytest.fixture
def module(tmp_path):
    """The name of a module with a layer Affine, in a folder that is not on sys.path yet."""
    name = f"layers_of_{tmp_path.name}".replace("-", "_").replace("[", "").replace("]", "")
    (tmp_path / f"{name}.py").write_text(textwrap.dedent("""
        from minicaffe.layers.python import Layer

        class Affine(Layer):
            def reshape(self, bottom, top):
                top[0].reshape(*bottom[0].shape)

            def forward(self, bottom, top):
                top[0].data[...] = -bottom[0].data
        """))
    yield name
    sys.modules.pop(name, None)


def test_module_on_path_imported(module, tmp_path, monkeypatch):
    text = python("Affine", module=module)
    with pytest.raises(ConfigError, match=r"layer 'p' \(Python\): python_param.module: no module .* PYTHONPATH"):
        layer_net(text, [X])
    with monkeypatch.context() as within:       # the working directory, if it is on the path
        within.chdir(tmp_path)
        within.setattr(sys, "path", ["", *sys.path])
        layer_net(text, [X])
    del sys.modules[module]
    monkeypatch.syspath_prepend(tmp_path)
    np.testing.assert_array_equal(forward_net(text, [X]).blob_by_name("y").data, -X)


def test_import_forbidden(module, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    allow_python_layers(False)
    with pytest.raises(ConfigError, match=r"python_param.module: .*--allow-python-layers"):
        layer_net(python("Affine", module=module), [X])
    assert module not in sys.modules
    layer_net(python("Weighted"), [X])  # this module is imported
    allow_python_layers()
    layer_net(python("Affine", module=module), [X])


@pytest.mark.parametrize("module, layer, field", [
    ("", "X", "python_param.module"), ("../evil", "X", "python_param.module"), ("os", "system", "python_param.layer"),
    (__name__, "Weigthed", r"python_param.layer: .*did you mean .*'Weighted'"),
    (__name__, "", "python_param.layer"), (f"{__name__}.more", "X", "python_param.module"),
    ("antigravity", "fly", "python_param.module: the model file asks to run module 'antigravity'"),
    ("numpy", "f2py", "python_param.layer: .*'f2py' is not a class of module 'numpy' derived from minicaffe.Layer; it has none"),
    ("rpn.layers", "SoftmaxLayer", "python_param.module: no module 'rpn.layers' on Python's path; add its folder to PYTHONPATH; "
                                   "minicaffe has a layer type 'Softmax'$"),
    ("rpn.layers", "OtherLayer", "python_param.module: no module 'rpn.layers' on Python's path; add its folder to PYTHONPATH$"),
    ("script.more", "X", "python_param.module: no module 'script.more' on Python's path"),
    ("in_the_way", "X", "python_param.layer: 'X' is not a class of module 'in_the_way'"),
    ("in_the_way.more", "X", "python_param.module: no module 'in_the_way.more' on Python's path"),
])
def test_wrong_modules_and_classes(monkeypatch, module, layer, field):
    assert "antigravity" not in sys.modules and caffe.allow_python_layers is None
    monkeypatch.setitem(sys.modules, "in_the_way", None)  # what Python keeps for an import that shall fail
    monkeypatch.setitem(sys.modules, "script", types.ModuleType("script"))  # without a spec, as __main__ is
    with pytest.raises(ConfigError, match=rf"test.prototxt.*layer 'p' \(Python\): {field}"):
        layer_net(python(layer, module=module), [X])
    assert "antigravity" not in sys.modules


def test_modules_that_fail_or_make_names(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, code, error, words in (("needs_something_else", "import there_is_no_such_module", ModuleNotFoundError, "there_is_no_such_module"),
                                     ("divides_by_zero", "1 / 0", ZeroDivisionError, "division by zero")):
        (tmp_path / f"{name}.py").write_text(code)
        text = layer_text("Python", "p", more=f'python_param {{ module: "{name}" layer: "L" }}')
        with pytest.raises(ConfigError, match=f"asks to run module '{name}'"):
            make_net(text, trusted=False)
        with pytest.raises(error, match=words):
            make_net(text)
    # What a module makes or imports when it is asked for a name is no layer of a net.
    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            asked.append(name)
            return super().__getattribute__(name)
    asked = []
    module = Lazy("lazy_layers")
    module.Weighted = Weighted
    monkeypatch.setitem(sys.modules, "lazy_layers", module)
    asked.clear()
    layer_net(python("Weighted", module="lazy_layers"), [X])
    for name in ("lazy_layers", "lazy_layers.more"):
        with pytest.raises(ConfigError, match=r"python_param"):
            layer_net(python("submodule", module=name), [X])
    assert not asked


class OldName(Weighted):
    def setup(self, bottom, top):
        assert self.param_str_ == self.param_str == "3"
        super().setup(bottom, top)


class OneArgument(Weighted):
    """As BVLC Caffe calls it: with the parameter alone."""

    def __init__(self, param):
        super().__init__(param)
        self.seen = param.python_param.param_str, self.param_str


@pytest.mark.parametrize("made", [OneArgument, OldName, *(type("Made", (OneArgument,), {"__init__": init}) for init in (
    lambda self, p, /: OneArgument.__init__(self, p),
    lambda self, param, scale=1: OneArgument.__init__(self, *[param] * scale),      # the default stays
    lambda self, param, *args: OneArgument.__init__(self, param, *args))),
    type("Made", (Weighted,), {"__init__": lambda self, *args, **keywords: Weighted.__init__(self, *args, **keywords)})])
def test_the_constructor_takes_what_it_names(monkeypatch, made):
    monkeypatch.setattr(sys.modules[__name__], "Made", made, raising=False)
    net = forward_net(python("Made"), [X])
    assert net.layers[-1].name == "p" and getattr(net.layers[-1], "seen", ("3", "3")) == ("3", "3")
    np.testing.assert_allclose(net.blob_by_name("y").data, 6 * X)
    assert net.layers[-1].dtype == net.dtype
    check_gradient(python("Made"), [X])
