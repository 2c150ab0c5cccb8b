"""Distinguishing solvers from nets, the solver for a net alone, options for every field, batch sizes."""

import logging
import os

import click
import pytest
from click.testing import CliRunner
from tiny import NET, SOLVER

import minicaffe as caffe
from minicaffe.cli import solver_options, training_file
from minicaffe.cli.options import suggest_data_command
from minicaffe.cli.train import train
from minicaffe.common import caffe as settings
from minicaffe.data.db import open_db
from minicaffe.errors import ConfigError, FileError
from minicaffe.proto import caffe_pb2, upgrade


@pytest.mark.parametrize("text, expected", [
    (NET, True), (SOLVER, False),
    ('net_param { layer { name: "a" } layer { name: "b" } }', False),
    ('# base_lr: 1 max_iter: 2\nname: "base_lr: 0.1 net: { solver_mode: CPU"\nlayer { type: "x" }', True),
    ('input: "data" input_dim: [1, 2, 3, 4] layers { type: RELU }', True)])
def test_nets_and_solvers(tmp_path, text, expected):
    path = tmp_path / "file.prototxt"
    path.write_text(text)
    definition = upgrade.load(path)
    assert isinstance(definition.param, caffe_pb2.NetParameter if expected else caffe_pb2.SolverParameter)
    assert definition.file == str(path) and definition == (definition.param, definition.positions)


@pytest.mark.parametrize("text, error, message", [
    ('layer { name: "broken" ', ConfigError, "layer 'broken': the file ends inside LayerParameter"),
    ('layer { name: "broken" }}', ConfigError, "expected a field of NetParameter"), (None, FileError, "no such file"),
    ("base_lr: 0.1 }}} max_iter: ", ConfigError, "expected a field of SolverParameter"),
    ("dear reader: this is no prototxt", ConfigError, "file.txt:1: is neither a net nor a solver")])
def test_broken_files(tmp_path, text, error, message):
    if text is not None:
        (tmp_path / "file.txt").write_text(text)
    with pytest.raises(error, match=message):
        upgrade.load(tmp_path / "file.txt")


def default_solver(path, *max_iter, **options):
    return training_file.default_solver(upgrade.read_net_file(path)[0], path, *max_iter, **options)


def test_default_solver(folder):
    param = default_solver("net.prototxt")
    assert (param.net, param.snapshot_prefix, param.type, param.lr_policy) == ("net.prototxt", "net", "SGD", "inv")
    assert (list(param.test_iter), param.max_iter) == ([training_file.DEFAULT_TEST_ITER], training_file.MAX_ITER)
    assert param.test_interval == training_file.TEST_INTERVAL
    (folder / "plain.prototxt").write_text(NET.replace(" include { phase: TEST }", ""))
    param = default_solver("plain.prototxt")
    assert not param.test_iter and not param.test_interval
    for max_iter in 0, 1, 7, 97, 200, 700, 1300, 2000, 3001:
        assert default_solver("net.prototxt", max_iter).max_iter % default_solver("net.prototxt", max_iter).test_interval == 0
    for max_iter in 20, 31, 200, 211, 1500, 3001, 100_000:
        for tests in 20, 50:
            done = max_iter // default_solver("net.prototxt", max_iter, tests=tests).test_interval
            assert min(tests, max_iter) <= done <= max(2 * tests, max_iter // training_file.TEST_INTERVAL)
    shown = {0: 1, 1: 1, 10: 1, 60: 3, training_file.MAX_ITER: 75, 10_000: training_file.DISPLAY}
    assert {max_iter: default_solver("net.prototxt", max_iter).display for max_iter in shown} == shown


def test_tests_of_default_solver(folder):
    """Each has as many batches as hold the records of the database, which need not be of the first layer; there are enough of them."""
    with open_db("db", "LMDB", "w") as db:
        for i in range(11):
            db.put(b"%03d" % i, b"x")
    net = caffe_pb2.NetParameter()
    net.layer.add(type="InnerProduct")
    net.layer.add(type="Data", data_param={"source": "db", "backend": "LMDB", "batch_size": 4}).include.add(phase=caffe_pb2.TEST)
    found = [training_file.default_solver(net, "net.prototxt", 1501, size, tests=2) for size in (None, 2)]
    assert [list(param.test_iter) for param in found] == [[3], [6]]
    assert found[0].test_interval == 500    # 1501 is no multiple of 3 or 2, and with one test there would be too few


def test_batch_sizes(folder):
    net = caffe_pb2.NetParameter()
    net.layer.add(type="Data").data_param.batch_size = 1
    net.layer.add(type="HDF5Data").hdf5_data_param.batch_size = 1
    net.layer.add(type="ImageData").image_data_param.source = "list"
    net.layer.add(type="Convolution").convolution_param.num_output = 3
    training_file.set_batch_size(net, 7)
    assert net.layer[0].data_param.batch_size == net.layer[1].hdf5_data_param.batch_size == 7
    assert net.layer[2].image_data_param.batch_size == 7
    with pytest.raises(ConfigError, match="no layer of the net has a batch_size"):
        training_file.set_batch_size(caffe_pb2.NetParameter(), 7)
    (folder / "sized.prototxt").write_text("""
        layer { name: "in" type: "MemoryData" top: "x" top: "y" memory_data_param { batch_size: 2 channels: 5 height: 1 width: 1 } }
        layer { name: "loss" type: "SoftmaxWithLoss" bottom: "x" bottom: "y" top: "loss" }
        layer { name: "right" type: "Accuracy" bottom: "x" bottom: "y" top: "right" include { phase: TEST } }""")
    solver = training_file.build_solver(default_solver("sized.prototxt"), batch_sizes={caffe_pb2.TRAIN: 6, caffe_pb2.TEST: 3})
    assert [net.blob_by_name("x").shape for net in (solver.net, *solver.test_nets)] == [(6, 5, 1, 1), (3, 5, 1, 1)]
    assert type(solver).__name__ == "SGDSolver"


TWO_FILES = SOLVER.replace("net: ", "train_net: ") + 'test_net: "net.prototxt"'


@pytest.mark.parametrize("train, files", [
    (lambda minicaffe: minicaffe("train", "net.prototxt", "--max-iter=2"), ["net.prototxt"]),
    (lambda minicaffe: minicaffe("train", "solver.prototxt", "--max-iter=2"), ["net.prototxt", "solver.prototxt"]),
    (lambda minicaffe: minicaffe("train", "--solver=fields.prototxt", "--max-iter=2"), ["fields.prototxt", "net.prototxt"]),
    (lambda minicaffe: caffe.get_solver("solver.prototxt").step(1), ["net.prototxt", "solver.prototxt"]),
    (lambda minicaffe: caffe.SGDSolver("solver.prototxt").step(1), ["net.prototxt", "solver.prototxt"]),
], ids=["net", "solver", "train_net and test_net", "get_solver", "SGDSolver"])
def test_each_file_is_read_once(minicaffe, folder, monkeypatch, train, files):
    (folder / "fields.prototxt").write_text(TWO_FILES)
    opened, real = [], open

    def counting(file, *arguments, **options):
        opened.extend(name for name in [os.path.basename(os.fsdecode(file))] if name.endswith(".prototxt"))
        return real(file, *arguments, **options)

    monkeypatch.setattr("builtins.open", counting)
    train(minicaffe)
    assert sorted(opened) == files


# ---- options from the descriptor

VALUES = {  # what is not in here is set to the text of its kind below
    "solver_mode": ("CPU", caffe_pb2.SolverParameter.CPU), "solver_type": ("ADAM", caffe_pb2.SolverParameter.ADAM),
    "snapshot_format": ("HDF5", caffe_pb2.SolverParameter.HDF5),
}
KINDS = {"TEXT": ("word", "word"), "true|false": ("true", True), "NUMBER": ("-0.5", -0.5), "N": ("3", 3)}


@pytest.mark.parametrize("field", list(solver_options.FIELDS), ids=lambda field: field.name)
def test_option_of_each_field(field):
    assert solver_options.FieldOption(field).help
    kind = solver_options.FieldOption(field).type
    text, value = VALUES.get(field.name) or KINDS.get(kind.name) or ("", None)
    option = solver_options.FieldOption(field).opts[0]
    arguments = ["f", option, text] + ([option, text] if solver_options.is_repeated(field) else [])
    for spelling in (option, "-" + option.strip("-").replace("-", "_")):
        arguments[1] = spelling
        params = train.make_context("train", list(arguments)).params
        given, _ = solver_options.given_fields(params)
        param = caffe_pb2.SolverParameter(stepvalue=[9, 9, 9])
        solver_options.set_fields(param, given)
        assert list(given) == [field.name]
        if solver_options.is_repeated(field):
            assert len(getattr(param, field.name)) == 2
        else:
            assert param.HasField(field.name)
            assert value is None or getattr(param, field.name) == value


def test_messages_and_states():
    params = train.make_context("train", ["f", "--train-state", 'stage: "a" level: 2']).params
    assert solver_options.given_fields(params)[0]["train_state"] == caffe_pb2.NetState(stage=["a"], level=2)
    param = caffe_pb2.SolverParameter(type="Adam")
    solver_options.set_fields(param, {"solver_type": caffe_pb2.SolverParameter.NESTEROV})
    assert not param.HasField("type") and param.solver_type == caffe_pb2.SolverParameter.NESTEROV
    logger, generator = logging.getLogger("minicaffe"), settings.generator
    state = generator.seed, generator.offset
    level = logger.level
    for error in (None, KeyError):
        try:
            with training_file.trial():
                assert not logger.isEnabledFor(logging.CRITICAL)
                generator.seed, generator.offset = 12345, 678
                if error:
                    raise error
        except KeyError:
            pass
        assert (generator.seed, generator.offset) == state and logger.level == level


@pytest.mark.parametrize("arguments, text", [
    (["--max-iter", "many"], "whole number"), (["--max-iter", "3 base_lr: 1"], "one value"), (["--max-iter", "1e3"], "whole number"),
    (["--solver-mode", "TPU"], "CPU, GPU"), (["--max-iter", "9999999999"], "2147483647"), (["--snapshot-diff=perhaps"], "true or false"),
    (["--train-state", "stag: 1"], "unknown field"), (["--batch-size", "0"], "1<=x<=2147483647"), (["--sigint-effect", "explode"], "snapshot")])
def test_wrong_values(arguments, text):
    result = CliRunner().invoke(train, ["f", *arguments])
    assert result.exit_code == 2 and text in result.stderr


def test_commands_for_missing_databases(tmp_path):
    """Or the folder in which a database of that name is."""
    (tmp_path / "models" / "lenet").mkdir(parents=True)
    (tmp_path / "data" / "mnist_train_lmdb").mkdir(parents=True)
    for source, file, end in (
            ("examples/mnist/mnist_train_lmdb", None, "minicaffe data mnist --out examples/mnist"),
            ("fashion_mnist_test_lmdb", None, "minicaffe data fashion-mnist --out ."),
            ("/my data/cifar10_train_leveldb", None, "minicaffe data cifar10 --out '/my data'"),
            ("ilsvrc12_train_lmdb", None, "check the path"),
            ("data/mnist_train_lmdb", f"{tmp_path}/models/lenet/net.prototxt",
             f"; it is there from {tmp_path}: run the command in that folder")):
        error = FileError(f"{source}: no such database; check the path", field="data_param.source", file=file)
        suggest_data_command(error)
        assert error.message.endswith(end)


@pytest.mark.parametrize("name, text, message", [
    ("base_lr", " ", "must have a value, NUMBER, got ' '"), ("solver_mode", "", "must have a value, CPU|GPU, got ''"),
    ("max_iter", "1 max_iter: 2", "")])
def test_empty_values(name, text, message):
    """An empty text is a value of a string and of a message alone."""
    fields = caffe_pb2.SolverParameter.DESCRIPTOR.fields_by_name
    options = {one: solver_options.FieldOption(fields[one]) for one in (name, "net", "net_param")}
    with pytest.raises(click.BadParameter) as caught:
        options[name].type.convert(text, options[name], None)
    assert caught.value.message.startswith(message)
    assert [options[one].type.convert("", options[one], None) for one in ("net", "net_param")] == ["", caffe_pb2.NetParameter()]


def test_names_that_are_not_utf8(minicaffe, tmp_path):
    """A solver, which is a prototxt, cannot name such a net."""
    name = os.fsdecode(b"net\xff.prototxt")
    (tmp_path / name).write_text("""name: "small"
layer { name: "in" type: "MemoryData" top: "x" top: "l" memory_data_param { batch_size: 2 channels: 1 height: 4 width: 4 } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 3 } }
layer { name: "loss" type: "SoftmaxWithLoss" bottom: "y" bottom: "l" top: "loss" }""")
    for command in "summary", "train":
        assert "its name is not UTF-8" in minicaffe(command, name, status=2)


def test_net_without_batches(folder):
    """A batch that is not divided needs no layer with a batch_size."""
    seen = []
    definition = upgrade.load("solver.prototxt")
    solver = training_file.build_solver(definition.param, file="solver.prototxt", changes=[lambda solver, net, *given: seen.append(net.state.phase)])
    assert seen == [caffe_pb2.TRAIN] and type(solver).__name__ == "SGDSolver"
