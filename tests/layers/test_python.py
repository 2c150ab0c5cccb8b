"""Python layers: the user's class in a net, and which modules a model file may name."""

import io
import sys
import textwrap
import types

import numpy as np
import pytest
from gradient import check_gradient, forward_again, forward_net, layer_net, run_backward, run_forward
from helpers import make_net

from minicaffe.blob import Dtype
from minicaffe.common import TRAIN, caffe
from minicaffe.errors import ConfigError
from minicaffe.layer import register_layer
from minicaffe.layers.python import Layer, allow_python_layers
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
    """Uses names of its own that the net's contract uses too."""

    def setup(self, bottom, top):
        super().setup(bottom, top)
        self.seen = (self.type, self.name, self.phase)
        self.param = self.name = self.type = self.key = self.dtype = self.parameters = "mine"


class Fails(Layer):
    def reshape(self, bottom, top):
        pass

    def forward(self, bottom, top):
        raise KeyError("the gate is closed")


def python(layer, param_str="3", module=__name__, more=""):
    return (f'layer {{ name: "p" type: "Python" bottom: "x" top: "y" {more} '
            f'python_param {{ module: "{module}" layer: "{layer}" param_str: "{param_str}" }} }}')


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


def test_registered_types():
    for name, layer_class in ("WeightedForTest", Weighted), ("OneArgumentType", OneArgument):
        register_layer(name, layer_class)
        net = forward_net(f'layer {{ name: "p" type: "{name}" bottom: "x" top: "y" python_param {{ param_str: "4" }} }}', [X])
        np.testing.assert_allclose(net.blob_by_name("y").data, 8 * X)
    with pytest.raises(ConfigError, match="registered already"):
        register_layer("WeightedForTest", Fails)


def test_contract_names_belong_to_user():
    net = layer_net(python("TakesNames"), [X])
    layer = net.layers[-1]
    assert layer.seen == ("Python", "p", TRAIN) and layer.param == layer.name == "mine"
    run_forward(net)
    run_backward(net, [0], [X])
    np.testing.assert_allclose(net.blob_by_name("x").diff, 6 * X)
    from minicaffe.net import weights
    file = io.BytesIO()
    weights.save(net, file)
    stored = caffe_pb2.NetParameter.FromString(file.getvalue()).layer[-1]
    assert (stored.name, stored.type, list(stored.blobs[0].data or stored.blobs[0].double_data)) == ("p", "Python", [2, 2, 2])


def test_existing_parameters_keep_values():
    workspace, text = Workspace(), 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }' + python("Weighted")
    first = make_net(text, dtype=Dtype.DOUBLE, workspace=workspace)
    first.layers[-1].blobs[0].data[...] = 7
    second = make_net(text, dtype=Dtype.DOUBLE, workspace=workspace)
    assert second.layers[-1].blobs[0] is first.layers[-1].blobs[0]
    assert first.layers[-1].blobs[0].data.tolist() == [7, 7, 7]


def test_exceptions_pass_unchanged():
    net = layer_net(python("Fails"), [X])
    with pytest.raises(KeyError) as caught:
        run_forward(net)
    assert caught.value.args == ("the gate is closed",)
    with pytest.raises(ValueError, match="could not convert string to float"):
        layer_net(python("Weighted", "three"), [X])
    with pytest.raises(ConfigError, match=r"layer 'p' \(Python\): class Fails does not define backward"):
        run_backward(net, [0])


def test_layer_changes_tops_by_values():
    class Counts(Layer):
        def reshape(self, bottom, top):
            top[0].reshape(int(bottom[0].data.sum()))

        def forward(self, bottom, top):
            top[0].data[...] = 1

    register_layer("CountsForTest", Counts)
    net = layer_net('layer { name: "c" type: "CountsForTest" bottom: "x" top: "y" }', [np.ones(3)])
    for count in (3, 6, 0):
        forward_again(net, x=np.full(3, count / 3))
        assert net.blob_by_name("y").shape == (count,)


# ---- which modules

@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module with a layer Affine, in a folder that is not on sys.path yet."""
    name = f"layers_of_{tmp_path.name}".replace("-", "_").replace("[", "").replace("]", "")
    (tmp_path / f"{name}.py").write_text(textwrap.dedent("""
        from minicaffe.layers.python import Layer

        class Affine(Layer):
            def reshape(self, bottom, top):
                top[0].reshape(*bottom[0].shape)

            def forward(self, bottom, top):
                top[0].data[...] = -bottom[0].data

        class Other:
            pass
        """))
    yield name
    sys.modules.pop(name, None)


def test_module_on_path_imported(module, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"layer 'p' \(Python\): python_param.module: no module .* PYTHONPATH"):
        layer_net(python("Affine", module=module), [X])
    with monkeypatch.context() as within:       # the working directory, if it is on the path
        within.chdir(tmp_path)
        within.setattr(sys, "path", ["", *sys.path])
        layer_net(python("Affine", module=module), [X])
    del sys.modules[module]
    monkeypatch.syspath_prepend(tmp_path)
    net = forward_net(python("Affine", module=module), [X])
    np.testing.assert_array_equal(net.blob_by_name("y").data, -X)


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
    ("", "X", "python_param.module"),
    ("../evil", "X", "python_param.module"),
    ("os", "system", "python_param.layer"),
    (__name__, "Weigthed", r"python_param.layer: .*did you mean .*'Weighted'"),
    (__name__, "", "python_param.layer"),
    (f"{__name__}.more", "X", "python_param.module"),
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


def test_errors_inside_module(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "needs_something_else.py").write_text("import there_is_no_such_module\n")
    with pytest.raises(ModuleNotFoundError, match="there_is_no_such_module"):
        layer_net(python("X", module="needs_something_else"), [X])
    (tmp_path / "divides_by_zero.py").write_text("1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        layer_net(python("X", module="divides_by_zero"), [X])


def test_several_solvers_refused(monkeypatch):
    monkeypatch.setattr(caffe, "solver_count", 2)
    with pytest.raises(ConfigError, match="several solvers in one process"):
        layer_net(python("Weighted"), [X])
    monkeypatch.setattr(caffe, "multiprocess", True)
    layer_net(python("Weighted"), [X])


def test_lookup_does_not_run_module(monkeypatch):
    """What a module makes or imports when it is asked for a name is no layer of a net."""
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


def test_an_untrusted_net_imports_nothing_new(tmp_path, monkeypatch):
    (tmp_path / "own_layers.py").write_text("raise RuntimeError('ran')")
    monkeypatch.syspath_prepend(str(tmp_path))
    text = 'layer { name: "p" type: "Python" python_param { module: "own_layers" layer: "L" } }'
    with pytest.raises(ConfigError, match="asks to run module 'own_layers'"):
        make_net(text, trusted=False)
    with pytest.raises(RuntimeError, match="ran"):
        make_net(text)


class OldName(Weighted):
    def setup(self, bottom, top):
        assert self.param_str_ == self.param_str == "3"
        super().setup(bottom, top)


class OneArgument(Weighted):
    """As BVLC Caffe calls it: with the parameter alone."""

    def __init__(self, param):
        super().__init__(param)
        self.seen = param.python_param.param_str, self.param_str


class OneArgumentTwice(OneArgument):
    def __init__(self, p, /):
        OneArgument.__init__(self, p)
        self.more = True


class Default(OneArgument):
    def __init__(self, param, scale=1):
        super().__init__(param)
        assert scale == 1


class ManyArguments(OneArgument):
    def __init__(self, param, *args):
        super().__init__(param, *args)


class NoSuper(Weighted):
    def __init__(self, param):
        self.mine = 1


class Keeps(Weighted):
    def __init__(self, *args, **keywords):
        super().__init__(*args, **keywords)


@pytest.mark.parametrize("layer", ["OneArgument", "OneArgumentTwice", "Default", "ManyArguments", "Keeps", "OldName"])
def test_the_constructor_takes_what_it_names(layer):
    net = forward_net(python(layer), [X])
    assert net.layers[-1].name == "p" and getattr(net.layers[-1], "seen", ("3", "3")) == ("3", "3")
    np.testing.assert_allclose(net.blob_by_name("y").data, 6 * X)
    assert net.layers[-1].dtype == net.dtype
    check_gradient(python(layer), [X])


def test_constructor_without_base_constructor():
    with pytest.raises(ConfigError, match=r"layer 'p' .*__init__ of class NoSuper does not call .*write super\(\).__init__\(param\)"):
        layer_net(python("NoSuper"), [X])
