"""Loading weights: what a net takes of a file, and the line that says so."""

import logging

import h5py
import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import cli
from minicaffe.errors import ConfigWarning, FileError, ShapeError
from minicaffe.net import weights as weights_files
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2

NET = """layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip1" type: "InnerProduct" bottom: "x" top: "a" inner_product_param { num_output: 3 weight_filler { type: "gaussian" } } }
layer { name: "relu" type: "ReLU" bottom: "a" top: "a" }
layer { name: "ip2" type: "InnerProduct" bottom: "a" top: "b" inner_product_param { num_output: 3 weight_filler { type: "gaussian" } } }
"""
NEW = NET.replace('"ip2"', '"ip2_new"')
OTHER = NET.replace('"ip', '"fc')
SOLVER = 'net: "train.prototxt" lr_policy: "fixed" base_lr: 0.1 snapshot_after_train: false '


@pytest.fixture(params=["w.caffemodel", "w.caffemodel.h5"])
def weights(tmp_path, monkeypatch, request):
    """The weights of NET; NEW and OTHER are files beside them."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("net", NET), ("new", NEW), ("other", OTHER), ("bare", NET.splitlines()[0])):
        (tmp_path / f"{name}.prototxt").write_text(text)
    target = 'layer { name: "t" type: "DummyData" top: "t" dummy_data_param { shape { dim: 2 dim: 3 } } }\n'
    (tmp_path / "train.prototxt").write_text(
        NEW.replace('type: "Input"', 'type: "DummyData"').replace("input_param", "dummy_data_param") + target
        + 'layer { name: "loss" type: "EuclideanLoss" bottom: "b" bottom: "t" top: "loss" }')
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.save_hdf5(request.param) if request.param.endswith(".h5") else net.save(request.param)
    return request.param


def lines(log):
    return [(record.levelname, record.getMessage()) for record in log.records if ": took " in record.getMessage()]


@pytest.mark.parametrize("net, line", [
    ("net", ("INFO", "took 2 of 2 layers")),
    ("new", ("WARNING", "took 1 of 2 layers; new here: ip2_new (near ip2); not used: ip2")),
])
def test_a_line_says_what_was_taken(weights, net, line, caplog):
    caplog.set_level(logging.INFO, "minicaffe.net")
    caffe.Net(f"{net}.prototxt", caffe.TEST, weights=weights)
    assert lines(caplog) == [(line[0], f"{weights}: {line[1]}")]


def test_one_of_same_names_gets_weights(weights, tmp_path):
    """The first, and of HDF5 the last, as in Caffe, whose map of names keeps that."""
    (tmp_path / "twice.prototxt").write_text(NET + NET.splitlines()[3].replace('"a"', '"b"').replace('top: "b"', 'top: "c"'))
    net = caffe.Net("twice.prototxt", caffe.TEST)
    stored = caffe.Net("net.prototxt", caffe.TEST, weights=weights).params["ip2"][0].data
    first, second = (node.blobs[0].data for node in net.nodes if node.name == "ip2")
    target, other = (first, second) if weights.endswith(".caffemodel") else (second, first)
    before = other.copy()
    net.copy_from(weights)
    np.testing.assert_array_equal(target, stored)
    np.testing.assert_array_equal(other, before)


def test_gradients_of_file_read(weights):
    """Of a .caffemodel, as in Caffe; without them the net keeps its own."""
    net = caffe.Net("net.prototxt", caffe.TEST)
    for i, blob in enumerate(net.learnable_params):
        blob.diff[...] = np.arange(blob.count).reshape(blob.shape) + i
    stored = [blob.diff.copy() for blob in net.learnable_params]
    other = caffe.Net("net.prototxt", caffe.TEST)
    for blob in other.learnable_params:
        blob.diff[...] = -1
    other.copy_from(weights)
    assert all((blob.diff == -1).all() for blob in other.learnable_params)
    for name in ("diff.caffemodel", "diff.caffemodel.h5"):
        (net.save_hdf5 if name.endswith(".h5") else net.save)(name, write_diff=True)
        other.copy_from(name)
        if not name.endswith(".h5"):
            assert all(np.array_equal(blob.diff, diff) for blob, diff in zip(other.learnable_params, stored, strict=True))


def test_lists_of_five_are_whole(weights, caplog):
    for count, words in ((4, ""), (5, " and 1 more"), (6, " and 2 more"), (8, " and 4 more")):
        with open("new.prototxt", "w") as file:
            file.write(NEW + "".join(f'layer {{ name: "s{i}" type: "Scale" bottom: "x" top: "y{i}" }}\n' for i in range(count)))
        caplog.clear()
        caffe.Net("new.prototxt", caffe.TEST, weights=weights)
        taken = f"took 1 of {2 + count} layers; new here: ip2_new (near ip2), s0, s1, s2, s3{words}; not used: ip2"
        assert lines(caplog) == [("WARNING", f"{weights}: {taken}")]


def test_no_weights_taken_warns(weights, caplog):
    with pytest.warns(ConfigWarning, match=f"^{weights}: no layer of the net got weights: the file has ip1, ip2, the net has fc1, fc2; "):
        net = caffe.Net("other.prototxt", caffe.TEST, weights=weights)
    assert lines(caplog) == []      # the warning says it
    assert np.any(net.params["fc1"][0].data)
    caffe.Net("bare.prototxt", caffe.TEST, weights=weights)     # without parameters it needs none
    assert lines(caplog) == [("WARNING", f"{weights}: took 0 of 0 layers; not used: ip1, ip2")]
    caffe.Net("bare.prototxt", caffe.TEST).save("empty.caffemodel")
    with pytest.warns(ConfigWarning, match="got weights: the file holds no parameters, the net has ip1, ip2"):
        caffe.Net("net.prototxt", caffe.TEST, weights="empty.caffemodel")


@pytest.mark.parametrize("command", [
    ["test", "other.prototxt", "--weights", "WEIGHTS"],
    ["extract_features", "WEIGHTS", "other.prototxt", "b", "features", "1"],
    ["train", "solver.prototxt", "--weights", "WEIGHTS"],
    ["classify", "picture.npy", "--out", "out.npy", "--model", "other.prototxt", "--weights", "WEIGHTS"],
    ["detect", "picture.npy", "--out", "out.csv", "--model", "other.prototxt", "--weights", "WEIGHTS"],
])
def test_no_weights_taken_fails_command(weights, command, tmp_path, capsys):
    (tmp_path / "solver.prototxt").write_text(SOLVER)
    text = (tmp_path / "train.prototxt").read_text()
    (tmp_path / "train.prototxt").write_text(text.replace('"ip', '"fc'))
    (tmp_path / "other.prototxt").write_text(OTHER.replace("dim: 2 dim: 3", "dim: 1 dim: 3 dim: 8 dim: 8"))
    np.save("picture.npy", np.zeros((8, 8, 3), np.float32))
    assert cli.main([word.replace("WEIGHTS", weights) for word in command] + ["--quiet"]) == 2
    assert f"{weights}: no layer of the net got weights" in capsys.readouterr().err
    assert not list(tmp_path.glob("out.*")) and not (tmp_path / "features").exists()


def test_notices_of_several_weight_files(weights, tmp_path, caplog):
    caplog.set_level(logging.INFO, "minicaffe.net")
    caffe.Net("new.prototxt", caffe.TEST).save("new.caffemodel")
    (tmp_path / "solver.prototxt").write_text(SOLVER + f'test_iter: 1 test_interval: 1 weights: "{weights},new.caffemodel"')
    caffe.get_solver("solver.prototxt")
    assert lines(caplog) == [("WARNING", f"{weights}: took 1 of 2 layers; not used: ip2"), ("INFO", "new.caffemodel: took 2 of 2 layers")]


def test_other_blob_count_names_remedy(tmp_path):
    text = """layer {{ name: "in" type: "Input" top: "x" input_param {{ shape {{ dim: 2 dim: 3 }} }} }}
              layer {{ name: "a" type: "{0}" bottom: "x" top: "y" {1} }}"""
    for kind, fields, count, words in (
            ("BatchNorm", "", 5, r"5 parameter blobs, the net needs 3; NVCaffe's BatchNorm keeps scale and bias .* scale_bias: true }$"),
            ("InnerProduct", "inner_product_param { num_output: 3 }", 1, "bias_term: false leaves the bias out as the file does"),
            ("InnerProduct", "inner_product_param { num_output: 3 bias_term: false }", 2, "leave bias_term: false out"),
            ("Scale", "scale_param { bias_term: true }", 1, "bias_term: false leaves the bias out as the file does, or rename the layer"),
            ("Scale", "scale_param { bias_term: true }", 3, "3 parameter blobs, the net needs 2; rename the layer [^;]*$"),
            ("BatchNorm", "", 2, "2 parameter blobs, the net needs 3; rename the layer to train it from scratch$"),
            ("BatchNorm", "", 1, "1 parameter blobs, the net needs 3; rename the layer to train it from scratch$"),
            ("InnerProduct", "inner_product_param { num_output: 3 }", 5, "5 parameter blobs, the net needs 2; rename the layer [^;]*$"),
            ("InnerProduct", "inner_product_param { num_output: 3 }", 3, "3 parameter blobs, the net needs 2; rename the layer [^;]*$"),
            ("InnerProduct", "inner_product_param { num_output: 3 bias_term: false }", 3, "3 parameter blobs, the net needs 1; rename [^;]*$")):
        (tmp_path / "net.prototxt").write_text(text.format(kind, fields))
        layer = caffe_pb2.LayerParameter(name="a", type=kind, blobs=[{"shape": {"dim": [3]}, "data": [1, 2, 3]}] * count)
        (tmp_path / "w.caffemodel").write_bytes(caffe_pb2.NetParameter(layer=[layer]).SerializeToString())
        with pytest.raises(ShapeError, match=rf"layer 'a' \({kind}\): blobs: the file has .*{words}"):
            caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST, weights=str(tmp_path / "w.caffemodel"))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for i in range(5):
            file[f"data/a/{i}"] = np.zeros(3)
    (tmp_path / "net.prototxt").write_text(text.format("BatchNorm", ""))
    with pytest.raises(ShapeError, match="NVCaffe's BatchNorm"):
        caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST, weights=str(tmp_path / "w.h5"))


@pytest.mark.parametrize("content, words", [
    ("", "empty.prototxt: the net has no layers: there are none in the file"),
    ('layer { name: "a" type: "Silence" include { phase: TRAIN } }',
     "empty.prototxt: the net has no layers: none of its 1 is for phase TEST, its level and stages"),
])
def test_a_net_without_layers_says_so(tmp_path, monkeypatch, content, words, caplog):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.prototxt").write_text(content)
    assert caffe.Net("empty.prototxt", caffe.TEST).forward() == {}
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [words]


def without(taken, memories):
    """The layers of `memories` (name -> its parameters) of which not all parameters are those of layers in `taken`."""
    got = set().union(*(memories[name] for name in taken))
    return [name for name in memories if not memories[name] <= got]


def test_sharing_layer_loaded_if_all_are(tmp_path, monkeypatch, caplog):
    """One that shares its weights with a loaded layer, but not its bias, is new: its bias keeps the filler's values."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "minicaffe.net")
    random = np.random.default_rng(2)
    names = [f"ip{i}" for i in range(4)]
    partly = 0
    for _ in range(16):
        shared = {name: (random.choice(["w", "v", ""]), random.choice(["b", ""])) for name in names}
        text = NET.splitlines()[0] + "".join(
            f'layer {{ name: "{name}" type: "InnerProduct" bottom: "x" top: "{name}" inner_product_param {{ num_output: 3 }} '
            + "".join(f'param {{ name: "{param}" }} ' if param else "param { } " for param in params) + "}\n"
            for name, params in shared.items())
        memories = {name: {param or (name, i) for i, param in enumerate(params)} for name, params in shared.items()}
        first, second = (sorted(random.choice(names, random.integers(1, 3), replace=False)) for _ in range(2))
        (tmp_path / "net.prototxt").write_text(text)
        stored = caffe_pb2.NetParameter()
        for name in first:
            layer = stored.layer.add(name=name, type="InnerProduct")
            for shape in ([3, 3], [3]):
                layer.blobs.add(shape=caffe_pb2.BlobShape(dim=shape), data=[7] * int(np.prod(shape)))
        (tmp_path / "some.caffemodel").write_bytes(stored.SerializeToString())

        caplog.clear()
        net = caffe.Net("net.prototxt", caffe.TEST)
        loaded = weights_files.load(net, "some.caffemodel")
        assert loaded.missing() == without(first, memories) and loaded.missing(second) == without({*first, *second}, memories)
        assert loaded.missing() == [name for name in names if not all((blob.data == 7).all() for blob in net.params[name])]
        loaded.log_summary(second)
        rest = without({*first, *second}, memories)
        assert lines(caplog) == [("WARNING" if rest else "INFO", f"some.caffemodel: took {len(first)} of 4 layers"
                                  + (f"; new here: {', '.join(rest)}" if rest else ""))]
        partly += any(memories[name] & set().union(*(memories[one] for one in first)) for name in without(first, memories))
    assert partly > 5


def test_definition_parameters_written_once(weights):
    """A net made from a file of weights has them in its definition, too; a test net's file has none of them twice."""
    made = Net(binary_net(weights)) if weights.endswith("caffemodel") else caffe.Net("net.prototxt", caffe.TEST)
    for blob in made.param_table.params:
        blob.data[...] = 7
    with open("again.caffemodel", "wb") as file:
        weights_files.save(made, file)
    stored = binary_net("again.caffemodel")
    assert {layer.name: len(layer.blobs) for layer in stored.layer} == {"in": 0, "ip1": 2, "relu": 0, "ip2": 2}
    assert all(set(blob.data) == {7} for layer in stored.layer for blob in layer.blobs)


def binary_net(path):
    with open(path, "rb") as file:
        return caffe_pb2.NetParameter.FromString(file.read())


def test_surplus_in_hdf5_file(weights, caplog):
    """Groups without datasets and other data are no layers that were not used; the log of the build names all that is ignored."""
    caffe.Net("net.prototxt", caffe.TEST).save_hdf5("more.h5")
    with h5py.File("more.h5", "a") as file:
        file["data/a_note"], file["data/rows"] = 5, np.zeros(3)
        file.create_group("data/empty")
        file["data/gone/0"] = np.zeros(3)
    with caplog.at_level(logging.INFO):
        caplog.clear()
        loaded = weights_files.load(caffe.Net("net.prototxt", caffe.TEST), "more.h5")
    assert (loaded.taken, loaded.unused) == (["ip1", "ip2"], ["gone"])
    ignored = [record.getMessage() for record in caplog.records if "Ignoring" in record.getMessage()]
    assert ignored == [f"Ignoring source layer {name}" for name in ("a_note", "empty", "gone", "rows")]


@pytest.mark.parametrize("names", [["", "b"], [".", "b"], ["a/b", "c"], ["a\0b", "c"]])
def test_names_that_no_hdf5_file_has(names, tmp_path):
    """Nothing is written, as the names are looked at first."""
    net = Net(caffe_pb2.NetParameter(layer=[{"name": name, "type": "DummyData", "top": [f"t{i}"], "dummy_data_param": {"shape": [{"dim": [1]}]}}
                                            for i, name in enumerate(names)]))
    with open(tmp_path / "w.h5", "wb") as file, pytest.raises(FileError) as caught:
        weights_files.save_hdf5(net, file)
    assert ("cannot be saved as HDF5: layer names must be neither empty nor '.', and without '/' and NUL; save a .caffemodel instead "
            "(snapshot_format: BINARYPROTO)") in str(caught.value)
    assert caught.value.layer == names[0] and (tmp_path / "w.h5").stat().st_size == 0


def test_unknown_layers_and_shapes(weights, caplog):
    """Of a file whose parameter is a number: its shape is none."""
    with caplog.at_level(logging.INFO, "minicaffe.net.build"):
        caplog.clear()
        caffe.Net("new.prototxt", caffe.TEST, weights=weights)
    ignored = [record.getMessage() for record in caplog.records if "Ignoring" in record.getMessage()]
    assert ignored[-1:] == ["Ignoring source layer ip2"]
    if weights.endswith("h5"):
        with h5py.File(weights, "a") as file:
            del file["data/ip1/1"]
            file["data/ip1/1"] = 5.0
    else:
        stored = binary_net(weights)
        blob = stored.layer[[layer.name for layer in stored.layer].index("ip1")].blobs[1]
        blob.ClearField("data")
        blob.shape.ClearField("dim")
        blob.data.append(5)
        with open(weights, "wb") as file:
            file.write(stored.SerializeToString())
    with pytest.raises(ShapeError) as caught:
        caffe.Net("net.prototxt", caffe.TEST, weights=weights)
    assert str(caught.value) == (f"{weights}: layer 'ip1' (InnerProduct): blobs[1]: is a scalar, the net needs 3; rename the layer to train it from "
                                 "scratch")


def test_hdf5_sizes_compared_before_reading(tmp_path, monkeypatch):
    """A small file may say that it has gigabytes: by compression, and by many links to one dataset."""
    (tmp_path / "net.prototxt").write_text(NET)
    net, path = caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST), tmp_path / "w.h5"
    name = next(iter(net.params))
    monkeypatch.setattr("minicaffe.proto.hdf5.read_array", None)
    for count, wrong in ((40, "parameter blobs, the net needs"), (1, "the net needs")):
        with h5py.File(path, "w") as file:
            group = file.create_group(f"data/{name}")
            data = group.create_dataset("0", shape=(1 << 28,), dtype="f4", chunks=(1 << 20,), compression="gzip")
            for i in range(1, count):
                group[str(i)] = data
        assert path.stat().st_size < 100_000
        with pytest.raises(ShapeError, match=wrong):
            net.load_hdf5(str(path))


def test_missing_scale_behind_nvcaffe_batch_norm(tmp_path):
    (tmp_path / "net.prototxt").write_text("""layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 2 dim: 2 } } }
        layer { name: "bn" type: "BatchNorm" bottom: "x" top: "bn" }
        layer { name: "bn_1" type: "Scale" bottom: "bn" top: "bn" scale_param { bias_term: true } }""")
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for i, size in enumerate((3, 3, 1, 3, 3)):
            file[f"data/bn/{i}"] = np.zeros(size, np.float32)
        file["data/bn_1/0"] = np.ones(3, np.float32)
    with pytest.raises(ShapeError, match=r"layer 'bn_1' \(Scale\): blobs\[1\]: is missing in the file"):
        caffe.Net(str(tmp_path / "net.prototxt"), caffe.TEST).load_hdf5(str(tmp_path / "w.h5"))


def test_layers_with_shared_parameters_not_new(weights, caplog):
    shared = NET.replace("inner_product_param", 'param { name: "w" } param { name: "b" } inner_product_param')
    more = shared + shared.splitlines()[3].replace('"ip2"', '"ip3"').replace('"b" inner', '"c" inner').replace('top: "b"', 'top: "c"')
    with open("shared.prototxt", "w") as file:
        file.write(more.replace('"ip1"', '"other"'))
    caplog.set_level(logging.INFO, "minicaffe.net")
    net = caffe.Net("shared.prototxt", caffe.TEST)
    caplog.clear()
    net.copy_from(weights)
    assert lines(caplog) == [("WARNING", f"{weights}: took 1 of 3 layers; not used: ip1")]
    np.testing.assert_array_equal(net.params["other"][0].data, caffe.Net("net.prototxt", caffe.TEST, weights=weights).params["ip2"][0].data)
