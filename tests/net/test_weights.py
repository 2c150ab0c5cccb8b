"""Loading weights: what a net takes of a file, and the line that says so."""

import logging

import h5py
import numpy as np
import pytest
from helpers import layer_text, make_net

import minicaffe as caffe
from minicaffe import cli
from minicaffe.errors import ConfigWarning, DataError, FileError, ShapeError
from minicaffe.net import weights as weights_files
from minicaffe.net.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.proto.binary import read_net
from minicaffe.proto.binary_writer import bytes_of
from minicaffe.proto.stored import StoredBlob, parse_blob

IP = 'inner_product_param { num_output: 3 weight_filler { type: "gaussian" } }'
NET = layer_text("Input", "in", "", "x", "input_param { shape { dim: 2 dim: 3 } }") + layer_text("InnerProduct", "ip1", "x", "a", IP) + layer_text(
    "ReLU", "relu", "a", "a") + layer_text("InnerProduct", "ip2", "a", "b", IP)
NEW = NET.replace('"ip2"', '"ip2_new"')
OTHER = NET.replace('"ip', '"fc')
SOLVER = 'net: "train.prototxt" lr_policy: "fixed" base_lr: 0.1 snapshot_after_train: false '


@pytest.fixture(params=["w.caffemodel", "w.caffemodel.h5"])
def weights(tmp_path, monkeypatch, request):
    """The weights of NET; NEW and OTHER are files beside them."""
    monkeypatch.chdir(tmp_path)
    train = NEW.replace('type: "Input"', 'type: "DummyData"').replace("input_param", "dummy_data_param") + layer_text(
        "DummyData", "t", more="dummy_data_param { shape { dim: 2 dim: 3 } }") + layer_text("EuclideanLoss", "loss", "b t")
    for name, text in (("net", NET), ("new", NEW), ("other", OTHER), ("bare", NET.splitlines()[0]), ("train", train)):
        (tmp_path / f"{name}.prototxt").write_text(text)
    net = caffe.Net("net.prototxt", caffe.TEST)
    net.save_hdf5(request.param) if request.param.endswith(".h5") else net.save(request.param)
    return request.param


def lines(log):
    return [(record.levelname, record.getMessage()) for record in log.records if ": took " in record.getMessage()]


def test_a_line_says_what_was_taken(weights, caplog):
    caplog.set_level(logging.INFO, "minicaffe.net")
    caffe.Net("net.prototxt", caffe.TEST, weights=weights)
    caffe.Net("new.prototxt", caffe.TEST, weights=weights)
    assert lines(caplog) == [("INFO", f"{weights}: took 2 of 2 layers"),
                             ("WARNING", f"{weights}: took 1 of 2 layers; new here: ip2_new (near ip2); not used: ip2")]
    assert "Ignoring source layer ip2" in caplog.messages
    for count, words in ((4, ""), (5, " and 1 more"), (6, " and 2 more"), (8, " and 4 more")):      # a list of five is whole
        with open("new.prototxt", "w") as file:
            file.write(NEW + "".join(layer_text("Scale", f"s{i}", "x", f"y{i}") for i in range(count)))
        caplog.clear()
        caffe.Net("new.prototxt", caffe.TEST, weights=weights)
        taken = f"took 1 of {2 + count} layers; new here: ip2_new (near ip2), s0, s1, s2, s3{words}; not used: ip2"
        assert lines(caplog) == [("WARNING", f"{weights}: {taken}")]


def test_one_of_same_names_gets_weights(weights, tmp_path):
    """The first, and of HDF5 the last, as in Caffe, whose map of names keeps that."""
    (tmp_path / "twice.prototxt").write_text(NET + layer_text("InnerProduct", "ip2", "b", "c", IP))
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
    net, other = (caffe.Net("net.prototxt", caffe.TEST) for _ in range(2))
    for i, (blob, target) in enumerate(zip(net.learnable_params, other.learnable_params)):
        blob.diff[...] = np.arange(blob.count).reshape(blob.shape) + i
        target.diff[...] = -1
    other.copy_from(weights)
    assert all((blob.diff == -1).all() for blob in other.learnable_params)
    net.save_hdf5("diff.caffemodel.h5", write_diff=True)
    other.copy_from("diff.caffemodel.h5")
    net.save("diff.caffemodel", write_diff=True)
    other.copy_from("diff.caffemodel")
    assert all(np.array_equal(blob.diff, diff.diff) for blob, diff in zip(other.learnable_params, net.learnable_params, strict=True))


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
    def net_of(kind, fields):
        return make_net(layer_text("Input", "x", more="input_param { shape { dim: 2 dim: 3 } }") + layer_text(kind, "a", "x", more=fields))

    scratch, inner = "; rename the layer to train it from scratch$", "inner_product_param { num_output: 3 "
    for kind, fields, count, words in (
            ("BatchNorm", "", 5, r"5 parameter blobs, the net needs 3; NVCaffe's BatchNorm keeps scale and bias .* scale_bias: true }$"),
            ("InnerProduct", inner + "}", 1, "bias_term: false leaves the bias out as the file does"),
            ("InnerProduct", inner + "bias_term: false }", 2, "leave bias_term: false out"),
            ("Scale", "scale_param { bias_term: true }", 1, "bias_term: false leaves the bias out as the file does, or rename the layer"),
            ("Scale", "scale_param { bias_term: true }", 3, "3 parameter blobs, the net needs 2" + scratch),
            ("BatchNorm", "", 2, "2 parameter blobs, the net needs 3" + scratch), ("BatchNorm", "", 1, "1 parameter blobs, the net needs 3" + scratch),
            ("InnerProduct", inner + "}", 5, "5 parameter blobs, the net needs 2" + scratch),
            ("InnerProduct", inner + "}", 3, "3 parameter blobs, the net needs 2" + scratch),
            ("InnerProduct", inner + "bias_term: false }", 3, "3 parameter blobs, the net needs 1" + scratch)):
        layer = caffe_pb2.LayerParameter(name="a", type=kind, blobs=[{"shape": {"dim": [3]}, "data": [1, 2, 3]}] * count)
        (tmp_path / "w.caffemodel").write_bytes(caffe_pb2.NetParameter(layer=[layer]).SerializeToString())
        with pytest.raises(ShapeError, match=rf"layer 'a' \({kind}\): blobs: the file has .*{words}"):
            net_of(kind, fields).copy_from(str(tmp_path / "w.caffemodel"))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for i in range(5):
            file[f"data/a/{i}"] = np.zeros(3)
    with pytest.raises(ShapeError, match="NVCaffe's BatchNorm"):
        net_of("BatchNorm", "").copy_from(str(tmp_path / "w.h5"))


def test_a_net_without_layers_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    for content, words in ("", "there are none in the file"), (layer_text("Silence", "a", "", "", "include { phase: TRAIN }"),
                                                               "none of its 1 is for phase TEST, its level and stages"):
        (tmp_path / "empty.prototxt").write_text(content)
        caplog.clear()
        assert caffe.Net("empty.prototxt", caffe.TEST).forward() == {}
        assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [f"empty.prototxt: the net has no layers: {words}"]


@pytest.mark.parametrize("params, first, second, rest, new", [
    (["w b", "w b", "v b", ". ."], [0], [2], [2, 3], [3]), (["w b", "w .", "w b", ". b"], [0], [1], [1, 3], [3]), (["w .", "w .", ". .", ". ."], [1], [0], [0, 2, 3], [2, 3]),
    (["w b", "v b", "w .", "v ."], [0, 1], [2], [2, 3], [3]), (["w b", "w b", "w b", "w b"], [3], [3], [], [])])
def test_sharing_layer_loaded_if_all_are(tmp_path, monkeypatch, caplog, params, first, second, rest, new):
    """One that shares its weights (w, v) with a loaded layer, but not its bias, is new: its bias keeps the filler's values."""
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO, "minicaffe.net")
    (tmp_path / "net.prototxt").write_text(NET.splitlines()[0] + "".join(layer_text("InnerProduct", f"ip{i}", "x", more=IP + "".join(
        "param { } " if name == "." else f'param {{ name: "{name}" }} ' for name in names.split())) for i, names in enumerate(params)))
    stored = caffe_pb2.NetParameter(layer=[{"name": f"ip{i}", "type": "InnerProduct", "blobs": [{"shape": {"dim": shape}, "data": [7] * count}
                                            for shape, count in (([3, 3], 9), ([3], 3))]} for i in first])
    (tmp_path / "some.caffemodel").write_bytes(stored.SerializeToString())
    net = caffe.Net("net.prototxt", caffe.TEST)
    caplog.clear()
    loaded = weights_files.load(net, "some.caffemodel")
    assert loaded.missing() == [f"ip{i}" for i in rest] == [name for name in net.params if not all((blob.data == 7).all() for blob in net.params[name])]
    loaded.log_summary([f"ip{i}" for i in second])
    assert loaded.missing([f"ip{i}" for i in second]) == [f"ip{i}" for i in new]
    assert lines(caplog) == [("WARNING" if new else "INFO", f"some.caffemodel: took {len(first)} of 4 layers"
                              + f"; new here: {', '.join(f'ip{i}' for i in new)}" * bool(new))]


def test_definition_parameters_written_once(weights):
    """A net made from a file of weights has them in its definition, too; a test net's file has none of them twice."""
    made = Net(binary_net(weights)) if weights.endswith("caffemodel") else caffe.Net("net.prototxt", caffe.TEST)
    for blob in made.param_table.params:
        blob.data[...] = 7
    made.save("again.caffemodel")
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
        file["data/a_note"], file["data/rows"], file["data/gone/0"] = 5, np.zeros(3), np.zeros(3)
        file.create_group("data/empty")
    with caplog.at_level(logging.INFO):
        caplog.clear()
        loaded = weights_files.load(caffe.Net("net.prototxt", caffe.TEST), "more.h5")
    assert (loaded.taken, loaded.unused) == (["ip1", "ip2"], ["gone"])
    assert [line for line in caplog.messages if "Ignoring" in line] == [f"Ignoring source layer {name}" for name in ("a_note", "empty", "gone", "rows")]


@pytest.mark.parametrize("names", [["", "b"], [".", "b"], ["a/b", "c"], ["a\0b", "c"]])
def test_names_that_no_hdf5_file_has(names, tmp_path):
    """Nothing is written, as the names are looked at first."""
    net = Net(caffe_pb2.NetParameter(layer=[{"name": name, "type": "DummyData", "top": [f"t{i}"], "dummy_data_param": {"shape": [{"dim": [1]}]}}
                                            for i, name in enumerate(names)]))
    with pytest.raises(FileError) as caught:
        net.save_hdf5(tmp_path / "w.h5")
    assert ("cannot be saved as HDF5: layer names must be neither empty nor '.', and without '/' and NUL; save a .caffemodel instead "
            "(snapshot_format: BINARYPROTO)") in str(caught.value)
    assert caught.value.layer == names[0] and not list(tmp_path.iterdir())


def test_shape_of_a_number(weights):
    """Of a file whose parameter is a number: its shape is none."""
    if weights.endswith("h5"):
        with h5py.File(weights, "a") as file:
            del file["data/ip1/1"]
            file["data/ip1/1"] = 5.0
    else:
        stored = binary_net(weights)
        stored.layer[[layer.name for layer in stored.layer].index("ip1")].blobs[1].CopyFrom(caffe_pb2.BlobProto(data=[5], shape={}))
        with open(weights, "wb") as file:
            file.write(stored.SerializeToString())
    with pytest.raises(ShapeError) as caught:
        caffe.Net("net.prototxt", caffe.TEST, weights=weights)
    assert str(caught.value) == (f"{weights}: layer 'ip1' (InnerProduct): blobs[1]: is a scalar, the net needs 3; rename the layer to train it from "
                                 "scratch")


def test_hdf5_sizes_compared_before_reading(tmp_path, monkeypatch):
    """A small file may say that it has gigabytes: by compression, and by many links to one dataset."""
    net, path = make_net(NET), tmp_path / "w.h5"
    monkeypatch.setattr("minicaffe.proto.hdf5.read_array", None)
    for count, wrong in ((40, "parameter blobs, the net needs"), (1, "the net needs")):
        with h5py.File(path, "w") as file:
            data = file.create_dataset("data/ip1/0", shape=(1 << 28,), dtype="f4", chunks=(1 << 20,), compression="gzip")
            for i in range(1, count):
                file[f"data/ip1/{i}"] = data
        assert path.stat().st_size < 100_000
        with pytest.raises(ShapeError, match=wrong):
            net.load_hdf5(str(path))


def test_missing_scale_behind_nvcaffe_batch_norm(tmp_path):
    net = make_net(layer_text("Input", "x", more="input_param { shape { dim: 1 dim: 3 dim: 2 dim: 2 } }") + layer_text("BatchNorm", "bn", "x")
                   + layer_text("Scale", "bn_1", "bn", "bn", "scale_param { bias_term: true }"))
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for i, size in enumerate((3, 3, 1, 3, 3)):
            file[f"data/bn/{i}"] = np.zeros(size, np.float32)
        file["data/bn_1/0"] = np.ones(3, np.float32)
    with pytest.raises(ShapeError, match=r"layer 'bn_1' \(Scale\): blobs\[1\]: is missing in the file"):
        net.load_hdf5(str(tmp_path / "w.h5"))


def test_layers_with_shared_parameters_not_new(weights, caplog):
    shared = 'param { name: "w" } param { name: "b" } '
    with open("shared.prototxt", "w") as file:
        file.write(NET.replace("inner_product_param", shared + "inner_product_param").replace('"ip1"', '"other"')
                   + layer_text("InnerProduct", "ip3", "a", "c", shared + IP))
    caplog.set_level(logging.INFO, "minicaffe.net")
    net = caffe.Net("shared.prototxt", caffe.TEST)
    caplog.clear()
    net.copy_from(weights)
    assert lines(caplog) == [("WARNING", f"{weights}: took 1 of 3 layers; not used: ip1")]
    np.testing.assert_array_equal(net.params["other"][0].data, caffe.Net("net.prototxt", caffe.TEST, weights=weights).params["ip2"][0].data)


HALF = layer_text("Input", "x", more="input_param { shape { dim: 2 dim: 40 } }") + layer_text(
    "InnerProduct", "ip", "x", more='inner_product_param { num_output: 30 weight_filler { type: "gaussian" std: 1 } }')
EDGES = np.array([0, -0.0, 1, 1 / 3, 65504, 65519, -65504, 6e-8, 1e-8, 2049, np.inf, -np.inf, np.nan], np.float32)


def test_half_weights_are_float16(tmp_path):
    """What `Net.save` writes with ``half=True`` is read as float16 of the originals; diffs are not rounded."""
    net, other = make_net(HALF), make_net(HALF)
    weight, bias = net.layer_dict["ip"].blobs
    weight.data[0, :len(EDGES)] = EDGES
    bias.data[...] = np.random.default_rng(0).normal(size=30)
    weight.diff[...] = 0.1
    wanted = [blob.data.astype(np.float16).astype(np.float32) for blob in (weight, bias)]
    net.save(tmp_path / "half.caffemodel", half=True)
    net.save(tmp_path / "whole.caffemodel")
    other.copy_from(tmp_path / "half.caffemodel")
    for blob, values in zip(other.layer_dict["ip"].blobs, wanted):
        np.testing.assert_array_equal(blob.data, values)
    assert (other.layer_dict["ip"].blobs[0].data != weight.data).mean() > 0.5     # they were rounded
    half, whole = ((tmp_path / f"{name}.caffemodel").stat().st_size for name in ("half", "whole"))
    assert 2 * 1230 - 20 < whole - half < 2 * 1230 + 20
    net.save(tmp_path / "diff.caffemodel", True, half=True)
    blob = read_net(tmp_path / "diff.caffemodel")[1][1].blobs[0]
    np.testing.assert_array_equal(blob.diff, np.full(1200, 0.1, np.float32))
    np.testing.assert_array_equal(blob.data, wanted[0].ravel())
    bias.data[7] = -70000
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(DataError, match=r"half.caffemodel: layer 'ip' \(InnerProduct\): blobs\[1\]: holds -70000, half precision ends at 65504; "
                                        "save it in single precision"):
        net.save(tmp_path / "half.caffemodel", half=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_half_bytes_are_nvcaffes():
    """Field 10 is the type, 2 of them FLOAT16; 12 the numbers (NVCaffe's proto/caffe.proto)."""
    values = np.array([[1, -2]], np.float16)
    content = bytes_of(StoredBlob((1, 2), values, values))
    assert content == bytes([0x3A, 4, 0x0A, 2, 1, 2, 0x50, 2, 0x62, 4]) + values.tobytes() + bytes([0x58, 2, 0x6A, 4]) + values.tobytes()
    assert parse_blob(content).data.tolist() == [1, -2] and parse_blob(content).diff.tolist() == [1, -2]
