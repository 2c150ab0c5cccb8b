"""Fields, values and layer types of Caffe's forks: the table, what errors say, and what may be left out of a text."""

import contextlib
import csv
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minicaffe.addons.forks import table as forks
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2, unknown
from minicaffe.proto.fields import Fields
from minicaffe.proto.text import _class_of, parse_text, read_text
from minicaffe.proto.text_parser import Reader

ROOT = Path(__file__).resolve().parents[3]


def parse(text, kind=caffe_pb2.NetParameter, **options):
    return parse_text(text, kind, "net.prototxt", **options)[0]


def test_check_of_the_table(tmp_path):
    def check(root):    # which imports gen_proto.py from its own folder
        return subprocess.run([sys.executable, root / "tools/gen_forks.py", "--check"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONSAFEPATH": ""})

    run = check(ROOT)
    assert run.returncode == 0, run.stderr
    for name in ("tools/gen_forks.py", "tools/gen_proto.py", "minicaffe/proto/caffe.descriptor", "minicaffe/addons/forks/forks.tsv",
                 *(f"proto/fork_{kind}.tsv" for kind in ("fields", "enums", "layers"))):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    assert check(tmp_path).returncode == 0
    layers = tmp_path / "proto" / "fork_layers.tsv"
    for old, new, message in (("infer", "data", "run tools/gen_forks.py"), ("data", "daata", "use must be one of")):
        layers.write_text(layers.read_text().replace(f"\t{old}\t", f"\t{new}\t", 1))
        assert message in check(tmp_path).stderr


def test_table_and_its_marks():
    for kind, of, name in (key for key in forks._table() if key[0] != "layer"):
        if kind == "field":
            assert name not in caffe_pb2.DESCRIPTOR.message_types_by_name[of].fields_by_name
        else:
            message, _, enum = of.rpartition(".")
            holder = caffe_pb2.DESCRIPTOR.message_types_by_name[message] if message else caffe_pb2.DESCRIPTOR
            assert name not in holder.enum_types_by_name[enum].values_by_name
    assert caffe_pb2.LayerParameter.FORK_FIELDS_FIELD_NUMBER == 1000
    with open(ROOT / "proto/fork_fields.tsv") as file:
        marked = [row for row in csv.DictReader(file, delimiter="\t") if row["skip"]]
    assert 60 < len(marked) < 120
    assert all(row["default"] for row in marked if row["skip"] == "default")
    assert not any(row["message"] in ("LossParameter", "TransformationParameter", "SolverParameter") for row in marked)


@pytest.mark.parametrize("text, kind, message", [
    ('layer { name: "c" type: "Convolution"\n convolution_param { submanifold_sparse: true } }', caffe_pb2.NetParameter,
     r"net.prototxt:2:\d+: layer 'c' \(Convolution\): convolution_param.submanifold_sparse: unknown field in ConvolutionParameter; "
     r"the fork synopsys has it; results depend on it, so it cannot be skipped"),
    ("layer {\n pooling_param { torch_pooling: false } }", caffe_pb2.NetParameter,
     r"net.prototxt:2:\d+: .*unknown field in PoolingParameter; the forks nvcaffe-0.16 and nvcaffe-0.17 have it; it changes no result, "
     "and skip_unknown_fields leaves it out"),
    ("layer { relu_param { minimum: 4 } }", caffe_pb2.NetParameter, "results depend on it unless it is 0, its default: see docs/forks.md$"),
    ("layer { relu_param { maximum: 0 } }", caffe_pb2.NetParameter, "at 0, its default, it changes nothing, and skip_unknown_fields leaves"),
    ("layer { batch_norm_param { scale_bias: true } }", caffe_pb2.NetParameter, "results depend on it unless it is false, its default"),
    ("layer { dropout_param { sqrt_scale: true } }", caffe_pb2.NetParameter, "changes training only"),
    ("\n\nlarc: true", caffe_pb2.SolverParameter, "net.prototxt:3:1: larc: unknown field in SolverParameter; the forks nvcaffe"),
    ("mem_param { }", caffe_pb2.NetParameter, "unknown field in NetParameter; the forks tsn and tsn-interp have it; it changes no result"),
    ("layer { convolution_param { num_outputs: 3 } }", caffe_pb2.NetParameter, "did you mean 'num_output'"),
    ("layer { pooling_param { pool: DEF_ALL2 } }", caffe_pb2.NetParameter,
     "pooling_param.pool: must be one of MAX, AVE, STOCHASTIC, got DEF_ALL2; the fork caffe-windows has DEF_ALL2; "
     "results depend on it, so it cannot be skipped: see docs/forks.md"),
    ("layer { convolution_param { engine: MKLDNN } }", caffe_pb2.NetParameter, "the fork intel has MKLDNN; it changes no result"),
    ("layers { name: 'a' type: LOCAL }", caffe_pb2.NetParameter, "must be a name of LayerType, got LOCAL; the fork caffe-windows has LOCAL"),
    ("layer { fork_fields: 'a: 1' }", caffe_pb2.NetParameter, "unknown field in LayerParameter")])
def test_errors_name_place_forks_and_remedy(text, kind, message):
    with pytest.raises(ConfigError, match=message):
        parse(text, kind)


SKIPPED = """name: "n" default_forward_type: FLOAT16 mem_param { optimize_train: true exclude_blob: ["a", "b"] }
layer { name: "c" engine: "MKLDNN" forward_type: FLOAT16, quantization_param < bw_layer_in: 8 trim: [1, 2] >
  convolution_param { engine: MKLDNN num_output: 3 conv_algos_override: "1,1" ' 2' }
  relu_param { maximum: 0 } dropout_param { scale_train: true } }"""


def test_fields_skipped_on_request(caplog):
    with caplog.at_level(logging.WARNING):
        net = parse(SKIPPED, skip_unknown_fields=True)
    assert net == parse('name: "n" layer { name: "c" convolution_param { num_output: 3 } relu_param { } dropout_param { } }')
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 9 and all(text.endswith("; skipped") for text in warned)
    assert warned[0].startswith("net.prototxt:1:11: default_forward_type: unknown field in NetParameter")
    assert warned[5].startswith("net.prototxt:3:31: layer[0].convolution_param.engine: must be one of DEFAULT, CAFFE, CUDNN")
    assert parse("richness: 1000 layer { }") == parse("layer { }")      # memory of cuDNN
    net = parse("layer { convolution_param { cudnn_worspace_allow_on_groups: true num_output: 3 } }")
    assert net == parse("layer { convolution_param { num_output: 3 } }")
    assert "cudnn_worspace_allow_on_groups: unknown field in ConvolutionParameter; the fork MyCaffe has it; it changes no result; skipped" in caplog.text


def test_fields_that_stay_errors():
    for text in ("layer { relu_param { maximum: 4 } }", "layer { relu_param { maximum: true } }",
                 "layer { convolution_param { submanifold_sparse: false } }", "layer { pooling_param { pool: DEF_ALL2 } }",
                 "layer { dropout_param { sqrt_scale: true } }",  # it is not known here whether the net will train
                 "layer { no_fork_has_this { a: 1 } }", "default_forward_type FLOAT", "mem_param { a: }", "mem_param { a: [1 2] }",
                 "mem_param { a: 1", "mem_param" + " { a " * 101 + "}" * 101):
        with pytest.raises(ConfigError):
            print(parse(text, skip_unknown_fields=True), "from", text)


def test_other_files_with_fields(tmp_path):
    serialized = caffe_pb2.NetParameter(name="n").SerializeToString() + b"\xa2\x7d\x03abc"  # number 2004, a string that no message knows
    assert caffe_pb2.NetParameter.FromString(serialized).name == "n"
    (tmp_path / "net.prototxt").write_text('layer { my_param { a: 1 } }')
    net, positions = read_text(tmp_path / "net.prototxt", caffe_pb2.NetParameter, keep_layer_fields=True)
    assert net.layer[0].fork_fields == "my_param {\n  a: 1\n}"
    with pytest.raises(ConfigError, match="unknown field in LayerParameter"):
        read_text(tmp_path / "net.prototxt", caffe_pb2.NetParameter)


def test_layer_types():
    for name, message in (
            ("MultiStageMeanfield", "; the fork crfasrnn has it; write it in Python and call minicaffe.register_layer\\('MultiStageMeanfield', Class\\)"),
            ("DetectNetTransformation", "it is for training and scoring"), ("LabelSpecificAdd", "it does nothing at inference"),
            ("ImageGtData", "it is a source of data: for inference put a layer of type Input"), ("SeluDropout", "have a field selu_dropout_param"),
            ("Convolutoin", r"^; did you mean 'Convolution'\? If it is a type of its own, write it in Python and call .*'Convolutoin', Class"),
            ("NotAnyForksType", r"^: the core lacks it, and so do the installed add-ons \(forks, ssd.*\); write it in Python and call [^;]*$")):
        assert re.search(message, unknown.about_layer(name, ["Convolution", "ReLU"])), name


def test_advice_and_rules():
    for field in ("relu_param { maximum: 0 }", "relu_param { maximum: 4 }", "batch_norm_param { scale_bias: true }",
                  "batch_norm_param { scale_bias: false }", "pooling_param { torch_pooling: true }", "pooling_param { pool: DEF_ALL2 }",
                  "convolution_param { engine: MKLDNN }", "relu_param { maximum: [0, 4] }", "relu_param { maximum: [] }"):
        with pytest.raises(ConfigError) as error:
            parse(f"layer {{ {field} }}")
        may_skip = "skip_unknown_fields" in str(error.value)
        with contextlib.nullcontext() if may_skip else pytest.raises(ConfigError, match=re.escape(str(error.value))):
            parse(f"layer {{ {field} }}", skip_unknown_fields=True)
    for options in ({}, {"keep_layer_fields": True, "skip_unknown_fields": True}):
        with pytest.raises(ConfigError, match="unknown field in NetStateRule; did you mean 'phase'"):
            parse("layer { exclude { phse: TEST } }", **options)
        with pytest.raises(ConfigError, match="must be one of TRAIN, TEST, got RUN"):
            parse("layer { include { phase: RUN } }", **options)


def test_defaults_and_named_forks(monkeypatch):
    known = forks.Row("default", "1", ("f",))
    assert forks.may_skip(known, 1) and forks.may_skip(known, 1.0) and forks.may_skip(forks.Row("default", "true", ()), True)
    assert not forks.may_skip(known, True) and not forks.may_skip(known, 2) and not forks.may_skip(known, Fields())
    assert not forks.may_skip(forks.Row("default", "tflite", ()), 3)
    assert forks.may_skip(forks.Row("test", "", ()), 1, training=False) and not forks.may_skip(forks.Row("test", "", ()), 1)
    monkeypatch.setattr(forks, "MAX_FORKS_SHOWN", 3)
    wanted = ["the fork a has it", "the forks a and b have it", "the forks a, b and c have it", "the forks a, b, c and 1 more have it",
              "the forks a, b, c and 2 more have it"]
    assert [forks._forks_have(tuple("abcde"[:count]), "it") for count in range(1, 6)] == wanted


def test_nets_of_caffeonspark(caplog):
    text = """layer { name: "data" type: "MemoryData" top: "data" top: "label" source_class: "com.yahoo.ml.caffe.LMDB"
  memory_data_param { source: "file:/mnist" batch_size: 64 channels: 1 height: 28 width: 28 share_in_parallel: false
                      image_encoded: true dataframe_column_select: "data" dataframe_column_select: "label" } }"""
    caplog.set_level(logging.WARNING)
    layer = parse(text, skip_unknown_fields=True).layer[0]
    assert layer.memory_data_param == caffe_pb2.MemoryDataParameter(batch_size=64, channels=1, height=28, width=28)
    for name in ("source_class", "source", "share_in_parallel", "image_encoded", "dataframe_column_select"):
        message = caffe_pb2.LayerParameter if name == "source_class" else caffe_pb2.MemoryDataParameter
        found = unknown.find_unknown(message.DESCRIPTOR, name, None)
        assert f"{name}: unknown field in" in caplog.text and "the fork CaffeOnSpark has it" in found.text
    assert "the fork CaffeOnSpark has it" in unknown.about_layer("CoSData", [])


def test_message_of_outer_fields():
    kinds = caffe_pb2.NetParameter, caffe_pb2.SolverParameter
    for text, kind in (("type: layer lr_policy: input", kinds[1]), ("net_param { layer {} layer {} layer {} }", kinds[1]),
                       ("test_net_param < name: 'a' state {} >", kinds[1]), ("name: 'base_lr' # base_lr: 1", kinds[0])):
        for classes in (kinds, kinds[::-1]):
            assert _class_of(Reader(text, "f"), classes) is kind, text
    inner = "base_lr: name display { name: e } test_iter < name: h > max_iter: [name, layer]"
    assert _class_of(Reader(inner, "f"), kinds) is kinds[1]
    assert _class_of(Reader("name: 'a' net_param {}", "f"), kinds) is kinds[0] and _class_of(Reader("name: 'a' net_param {}", "f"), kinds[::-1]) is kinds[1]
    with pytest.raises(ConfigError, match="^f: is neither a solver nor a net: it has no field of one; give a prototxt$"):
        _class_of(Reader("a: name", "f"), kinds[::-1])
