"""Fields that no message knows: read, shown as attributes, carried by a LayerParameter, written back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.errors import ConfigError, MissingFieldError
from minicaffe.proto import caffe_pb2
from minicaffe.proto.fields import Fields, Word, lines_of, unknown_of
from minicaffe.proto.text import layer_fields, parse_fields, parse_text, write_text
from minicaffe.proto.upgrade import upgrade_net, upgrade_solver

TEXT = """height: 33 zoom: -8 name: "x" 'y' flag: true off: False mode: LINEAR
scale: 1e-3 third: .5f big: 0x10 octal: 017 far: -inf none: nan
inner { a: 1 a: 2 deeper < b: [] c: [3, 4.5, "s"] > } inner: { a: 5 }, empty {}; tail: -2.5"""


def keep(text, kind=caffe_pb2.NetParameter):
    return parse_text(text, kind, "net.prototxt", keep_layer_fields=True)[0]


def test_values():
    f = parse_fields(TEXT)
    assert (f.height, f.zoom, f.name, f.flag, f.off, f.mode) == (33, -8, "xy", True, False, "LINEAR")
    assert (f.scale, f.third, f.big, f.octal, f.far, f.tail) == (1e-3, 0.5, 16, 15, -math.inf, -2.5) and math.isnan(f.none)
    assert [type(f.get(name)) for name in ("height", "scale", "flag", "name", "mode")] == [int, float, bool, str, Word]
    assert f.inner[0].a == [1, 2] and f.inner[1].a == 5 and f.inner[1].all("a") == [5]
    assert f.inner[0].deeper.c == [3, 4.5, "s"] and "b" not in f.inner[0].deeper and len(f.empty) == 0
    assert f.get("wide") is None and f.get("wide", 7) == 7 and f.all("wide") == []
    assert list(f)[:3] == ["height", "zoom", "name"] and "zoom" in f and hasattr(f, "zoom") and not hasattr(f, "wide")
    assert repr(f.inner[1]) == "a: 5" and repr(f.empty) == "no fields"
    assert parse_fields("get: 3 lambda: 0.1 all: 4").get("all") == 4
    first = parse_fields(TEXT.replace("none: nan", ""))
    assert parse_fields("\n".join(lines_of(first))) == first
    made = Fields.of({"a": 1, "b": [1, 2.5], "c": {"d": "x", "e": [{"f": True}, {}]}})
    assert made == parse_fields("a: 1 b: [1, 2.5] c { d: 'x' e { f: true } e { } }") and "none" not in made
    with pytest.raises(MissingFieldError, match="^c.e.g: is not given"):
        made.c.e[0].g  # noqa: B018
    with pytest.raises(ConfigError, match="^c.d: must be a number"):
        Fields.of({"c": {"d": object()}})
    with pytest.raises(MissingFieldError, match=r"^inner.heigth: is not given; did you mean 'height'\?; add it, or use get\('heigth', default\)"):
        parse_fields("inner { height: 3 }").inner.heigth  # noqa: B018
    with pytest.raises(AttributeError):
        parse_fields("").height  # noqa: B018
    for text in "a", "a 3", "a: ", "a: }", "a { b: 1", "a: [1 2]", "a: [1,", "}", "a: 0x", "a: '", "a: --1", "a: - b":
        with pytest.raises(ConfigError):
            parse_fields(text)


scalars = st.one_of(st.booleans(), st.integers(-2**63, 2**63 - 1), st.floats(allow_nan=False), st.text(),
                    st.from_regex(r"[A-Z]{2,4}", fullmatch=True).filter(lambda w: w not in ("INF",) and w.lower() != "nan").map(Word))


@st.composite
def messages(draw, depth=2):
    made = Fields()
    for name in draw(st.lists(st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), max_size=4, unique=True)):
        for _ in range(draw(st.integers(1, 3))):
            made.extend(name, [draw(messages(depth=depth - 1)) if depth and draw(st.booleans()) else draw(scalars)])
    return made


@given(messages())
def test_any_fields_are_read_back(made):
    text = "\n".join(lines_of(made))
    assert parse_fields(text) == made
    layer = keep(f'layer {{ name: "l" my_param {{ {text} }} }}').layer[0]
    if len(made):
        assert layer_fields(layer).my_param == made


LAYER = """name: "n"
layer {
  name: "l"
  type: "Mine"
  bottom: "a"
  loss_weight: 0.1
  my_param { size: 3 }
  pooling_param { pool: LARGEST kernel_size: 2 deep_pooling: true }
  param { lr_mult: 1 }
  param { lr_mult: 0.3 color: RED }
  convolution_param { engine: CAFFE weight_filler { type: "xavier" strength { a: 1 } } }
  alone: 4
}
"""


def test_fields_of_a_layer():
    layer = keep(LAYER).layer[0]
    f = layer_fields(layer)
    assert (f.name, f.type, f.bottom, f.loss_weight, f.my_param.size, f.alone) == ("l", "Mine", ["a"], [0.1], 3, 4)
    assert (f.pooling_param.pool, f.pooling_param.kernel_size, f.pooling_param.deep_pooling) == ("LARGEST", 2, True)
    assert [p.get("color") for p in f.param] == [None, "RED"] and f.param[1].lr_mult == 0.3
    assert f.convolution_param.engine == "CAFFE" and f.convolution_param.weight_filler.strength.a == 1
    assert "fork_fields" not in f and "blobs" not in f
    with pytest.raises(MissingFieldError, match="pooling_param.kernel_sizes"):
        f.pooling_param.kernel_sizes  # noqa: B018
    net = keep(LAYER)
    text = write_text(net)
    assert "fork_fields" not in text and text.count("pooling_param {") == 1 and text.count("param {") == 5
    assert layer_fields(keep(text).layer[0]) == layer_fields(net.layer[0])
    assert text == write_text(keep(text))  # from now on in the order of the messages
    assert "  pooling_param {\n    kernel_size: 2\n    pool: LARGEST\n    deep_pooling: true\n  }\n" in text
    _, positions = parse_text(LAYER, caffe_pb2.NetParameter, keep_layer_fields=True)
    assert [positions.line(f"layer[0].{path}") for path in ("my_param", "pooling_param.deep_pooling", "param[1].color", "alone")] == \
        [7, 8, 10, 12]
    assert positions.place_of("layer[0].param[1].color") == (10, 24) and positions.place_of("layer[0].none") == (None, None)


def test_nets_in_solvers_and_lone_layers():
    solver = keep(f"net_param {{ {LAYER} }} test_net_param {{ }} test_net_param {{ {LAYER} }}", caffe_pb2.SolverParameter)
    upgraded = upgrade_solver(solver)
    again = keep(write_text(upgraded), caffe_pb2.SolverParameter)
    assert len(again.test_net_param) == 2 and not again.test_net_param[0].layer
    layer = solver.net_param.layer[0]
    lone = keep(write_text(layer), caffe_pb2.LayerParameter)
    for other in (again.net_param.layer[0], again.test_net_param[1].layer[0], lone):
        assert layer_fields(other) == layer_fields(layer)
    assert write_text(caffe_pb2.NetParameter(name="x")) == 'name: "x"\n'
    net = keep('input: "a" input_dim: [1, 1, 1, 1] ' + LAYER.replace('name: "n"', ""))
    assert caffe_pb2.NetParameter.FromString(net.SerializeToString()) == net
    new, _ = upgrade_net(net)
    assert [layer.type for layer in new.layer] == ["Input", "Mine"] and new.layer[1].fork_fields == net.layer[0].fork_fields


@pytest.mark.parametrize("field", ["net_param", "train_net_param", "test_net_param"])
def test_fields_of_solver_nets(field):
    """Also where no other net of it has such fields, and in the second of several test nets."""
    before = "test_net_param { }" if field == "test_net_param" else ""
    solver = keep(f"{before} {field} {{ {LAYER} }}", caffe_pb2.SolverParameter)
    assert "fork_fields" not in write_text(solver)
    again = keep(write_text(solver), caffe_pb2.SolverParameter)
    first, second = (getattr(one, field) for one in (solver, again))
    first, second = (first[1], second[1]) if before else (first, second)
    assert layer_fields(second.layer[0]) == layer_fields(first.layer[0]) and layer_fields(second.layer[0]).my_param.size == 3


def test_paths_of_unknown_fields():
    """Also a number where a message should be, which a program may write into fork_fields."""
    text = "pooling_param: 5 pooling_param { own: 1 own: 2 pool: BEST } name: 'x' param { } param { color: RED } mine { deep { a: 1 } }"
    found = [(of.name, path, name, str(value)) for of, path, name, value in unknown_of(caffe_pb2.LayerParameter.DESCRIPTOR, parse_fields(text))]
    assert found == [
        ("LayerParameter", "pooling_param", "pooling_param", "5"), ("PoolingParameter", "pooling_param.own", "own", "1"),
        ("PoolingParameter", "pooling_param.own", "own", "2"), ("PoolingParameter", "pooling_param.pool", "pool", "BEST"),
        ("LayerParameter", "name", "name", "x"), ("ParamSpec", "param[1].color", "color", "RED"), ("LayerParameter", "mine", "mine", "deep { a: 1 }")]
