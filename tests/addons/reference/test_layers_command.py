"""minicaffe layers: the list, one type with its fields; and that what it says agrees with sources and messages."""

import re
from pathlib import Path

import layers_table
import pytest
from google.protobuf import text_format
from rich.console import Console

import minicaffe as caffe
from minicaffe import cli
from minicaffe import layer as registry
from minicaffe.addons.reference.layer_reference import describe
from minicaffe.errors import ConfigError
from minicaffe.layer import layer_types
from minicaffe.proto import caffe_pb2
from minicaffe.proto.comments import comments
from minicaffe.proto.text import parse_fields

ROOT = Path(__file__).resolve().parents[3]
OWN = sorted(name for name, cls in layer_types().items() if cls.__module__.startswith("minicaffe.layers."))


@pytest.fixture
def shown(capsys):
    """Return a function that runs the command with words and returns what it prints."""
    def run(*words):
        assert cli.main(["layers", *words]) == 0
        return capsys.readouterr().out
    return run


def test_list(shown):
    lines = shown().splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == sorted(layer_types(), key=str.lower)
    assert lines[-1].startswith(f"{len(layer_types())} types")
    of = {line.split()[0]: line for line in lines[1:-1]}
    assert re.match(r"Pooling +1 +1 to 2 +BVLC +[tT]he maximum, mean or a random element", of["Pooling"])
    assert re.match(r"PriorBox +1 to 2 +1 +SSD ", of["PriorBox"])
    assert re.match(r"Eltwise +at least 2 +1 +BVLC ", of["Eltwise"])
    assert re.match(r"DepthwiseConvolution +at least 1 +at least 1 +fork yonghenglh6 ", of["DepthwiseConvolution"])
    assert re.match(r"LSTM +2 to 3 +1 +BVLC ", of["LSTM"])      # two properties of the class that depend on fields


def test_one_type(shown):
    out = shown("Pooling")
    assert out.startswith("Pooling (BVLC): 1 bottom, 1 to 2 tops\n") and " It does not work in place: no top may be a bottom.\n" in out
    for line in (r"^ . top\[1\]: Blob, optional, of the same shape", r"^ pool +enum +MAX +What is taken of each window\. MAX: a second top",
                 r"^Fields of pooling_param \(PoolingParameter\)\. Pooling, over the last two of four axes\.$", r"^ stride +uint32 +1 +Distance between windows"):
        assert re.search(line, out, re.M), line
    assert "one of CEIL (the last window may reach" in out
    assert "](" not in out and "<br>" not in out and "|" not in out
    assert re.search(r"^ . use_blob_size: that of bottom\[1\]\n . shrink_factor: ", shown("Interp"), re.M)     # a list in a docstring


def test_messages_of_fields(shown, monkeypatch):
    out = shown("InnerProduct")
    assert out.index("\nFields of inner_product_param (InnerProductParameter)") < out.index("\nFillerParameter: Initial values")
    assert out.count("FillerParameter: ") == 1
    assert re.search(r'^ type +string +"constant" +constant: value everywhere; uniform: between', out, re.M)
    out = shown("Deconvolution")       # whose field has the name of another type
    assert "Fields of convolution_param (ConvolutionParameter)." in out
    assert re.search(r"^ num_output +uint32 ", out, re.M) and "FillerParameter: " in out
    assert "It has no fields of its own." in shown("BNLL")
    assert re.search(r"^ min +float +required ", shown("Clip"), re.M)
    monkeypatch.setattr("minicaffe.addons.reference.layers.bars.table_console", lambda: Console(width=70, highlight=False))
    assert max(map(len, shown("MultiBoxLoss").splitlines())) <= 70


@pytest.mark.slow(1)
def test_all_is_shown(shown):
    """Of each type the summary and all fields of its messages, those of nested messages too."""
    for name in layer_types():
        out, entry = shown(name), describe(name)
        assert f"{name} ({entry.origin}): " in out
        fields = re.findall(r"^ (\w+) +", out.partition("meaning")[2], re.M)
        assert [field.name for message in entry.messages for field in message.fields if field.name not in fields] == [], name


def test_types_of_programs_and_unknown_ones(monkeypatch, shown, capsys):
    class Cube(caffe.Layer):
        """y = x^3

        Parameters
        ----------
        bottom : Blob
            Of any shape.
        """

        exact_num_bottom_blobs = exact_num_top_blobs = 1

    monkeypatch.setattr(registry, "_types", registry.layer_types())
    caffe.register_layer("Cube", Cube)
    entry = describe("Cube")
    assert (entry.origin, entry.summary, entry.bottoms, entry.tops) == (__name__, "y = x^3", "1", "1")
    assert entry.blobs == {"bottom": "Blob. Of any shape"} and entry.params == {} and entry.messages == []
    out = shown("Cube")
    assert out.startswith(f"Cube ({__name__}): 1 bottom, 1 top\n\ny = x^3\n") and "Of any shape" in out
    assert re.search(rf"^Cube +1 +1 +{__name__} +y = x\^3", shown(), re.M)
    with pytest.raises(ConfigError, match="did you mean 'Cube'"):
        describe("Cubes")
    for word, hint in (("convolutoin", "did you mean 'Convolution'"), ("MultiStageMeanfield", "the fork .* has it")):
        assert cli.main(["layers", word]) == 2
        error = capsys.readouterr().err
        assert f"unknown layer type '{word}'" in error and re.search(hint, error)
    caffe.register_layer("Silent", type("Silent", (caffe.Layer,), {}))
    assert "No docstring." in shown("Silent")


@pytest.mark.parametrize("name", OWN)
def test_descriptions(name):
    entry = describe(name)
    assert 8 < len(entry.summary) < 200 and "\n" not in entry.summary and "``" not in entry.summary and "_layer.cpp" not in entry.summary
    assert entry.text and all("----" not in paragraph for paragraph in entry.text)
    for message in entry.messages:
        cls = getattr(caffe_pb2, message.name, None)     # None for the message of a fork
        for each in message.fields:
            assert each.comment, each.name
            if each.default in ("", "required"):
                continue
            if cls is None:
                assert parse_fields(f"{each.name}: {each.default}").get(each.name) == {
                    field.name: field.default for field in layer_types()[name].fields_of_message}[each.name]
            else:
                made = text_format.Parse(f"{each.name}: {each.default}", cls())
                assert made.HasField(each.name) and getattr(made, each.name) == getattr(cls(), each.name), each.name


@pytest.mark.parametrize("name", [name for name in OWN if name not in ("Python", "PriorBoxClustered")])
def test_fields_and_sources(name):
    """Each message that the classes of a type read is among its fields, and its own field is read."""
    cls = layer_types()[name]
    chain = [base for base in cls.__mro__ if base.__module__.startswith("minicaffe.layers.") and base is not caffe.Layer]
    read = {word for base in chain for word in re.findall(r"\bparam\.(\w+_param)\b(?!\.\w+ *=)", layers_table.body_of(base))}
    read &= set(caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name)
    named = set(describe(name).params)
    # Bases of several types read what only some of them have; SPP writes the field of its Poolings.
    some = {"softmax_param", "loss_param", "transform_param", "data_param", "image_data_param", "bias_param", "scale_param", "pooling_param"}
    assert read - some <= named
    sources = "".join(layers_table.source_of(base.__module__).read_text() for base in chain)
    sources += (ROOT / "minicaffe/layers/data/base_data.py").read_text() + (ROOT / "minicaffe/ops/softmax/operation.pyx").read_text() * name.startswith("Softmax")
    assert [param for param in named if param not in sources] == []


def test_names_in_comments():
    names = list(comments())
    assert len(names) > 500 and len(set(names)) == len(names)
    for name in names:
        part = caffe_pb2.DESCRIPTOR
        first, *rest = name.split(".")
        found = part.message_types_by_name.get(first) or part.enum_types_by_name[first]
        for word in rest:
            inner = {**getattr(found, "fields_by_name", {}), **getattr(found, "nested_types_by_name", {}),
                     **getattr(found, "enum_types_by_name", {}), **getattr(found, "values_by_name", {})}
            found = inner[word]
