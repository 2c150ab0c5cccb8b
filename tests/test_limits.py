"""Limits that the documentation states, at, below and above: those of all options and arguments that take a number, and of the environment."""

import os
import subprocess
import sys

import click
import pytest
from tiny import commands

import minicaffe
from minicaffe import cli
from minicaffe.addons.ssd.annosets import convert_annotated
from minicaffe.cli import options
from minicaffe.cli.solver_options import FieldOption
from minicaffe.data import convert
from minicaffe.errors import ConfigError, ShapeError, WrongTypeError, switched_on
from minicaffe.inspection.replace_sources import replace_sources
from minicaffe.proto import caffe_pb2

NET = """layer { name: "x" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "ip" inner_product_param { num_output: 1 } }
layer { name: "loss" type: "Reduction" bottom: "ip" top: "loss" loss_weight: 1 }"""

@pytest.fixture
def net(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.prototxt").write_text(NET)
    (tmp_path / "a.png").touch()
    (tmp_path / "solver.prototxt").write_text('net: "net.prototxt" test_iter: 1 test_interval: 1 max_iter: 1 base_lr: 0.1 lr_policy: "fixed"')
    return "net.prototxt"


def name_of(param):
    """Return the first name of a parameter, an option's with its dashes."""
    return param.opts[0] if isinstance(param, click.Option) else param.human_readable_name


def numbers(kind):
    """Return the words of each command and each option or argument of it that takes a number."""
    found = []
    for words, command in commands():
        command.import_modules()
        found += [(words, param) for param in command.params if isinstance(param, kind) and (
            isinstance(param.type, click.types.IntParamType | click.types.FloatParamType)
            or isinstance(param, FieldOption) and param.type.name in ("N", "NUMBER"))]
    return found


def wrong_values(param):
    """Yield values just outside the limits of a parameter, and what is no number."""
    kind = param.type
    of_integers = isinstance(kind, click.types.IntParamType) or kind.name == "N"
    step = 1 if of_integers else 1e-6
    for bound, is_open, sign in ((getattr(kind, "min", None), "min_open", -1), (getattr(kind, "max", None), "max_open", 1)):
        if bound is not None:
            yield bound if getattr(kind, is_open) else bound + sign * step
    yield from ("x", "", *(("1.5", "nan") if of_integers else ("nan", "inf", "1e400") if isinstance(kind, options.Real) else ()))


@pytest.mark.parametrize(("words", "param"), numbers(click.Option), ids=lambda value: " ".join(value) if isinstance(value, tuple) else name_of(value))
def test_numbers_of_commands(words, param, capsys):
    name = name_of(param).replace("_", "-")
    for value in wrong_values(param):
        arguments = [*words, f"{name}={value}"] if name.startswith("--") else [*words, name, f"{value}"]
        assert cli.main(arguments) == 2, value
        err = capsys.readouterr().err
        assert f"Invalid value for '{param.opts[0]}'" in err and f"{value}" in err, err
    for bound in ("min", "max"):
        value = getattr(param.type, bound, None)
        if value is not None and not getattr(param.type, f"{bound}_open"):
            assert param.type.convert(str(value), param, None) == value


def test_numbers_without_an_option():
    for _, param in numbers(click.Argument):
        for value in wrong_values(param):
            with pytest.raises(click.BadParameter):
                param.type.convert(str(value), param, None)
        assert param.type.convert("0", param, None) == 0
    assert options.MOST_THREADS == 1024
    minicaffe.set_num_threads(1024)
    with pytest.raises(ConfigError, match="must be 1 to 1024, got 1025"):
        minicaffe.set_num_threads(1025)


@pytest.mark.parametrize("level", [-1 << 31, (1 << 31) - 1])
def test_level(net, level):
    assert minicaffe.Net(net, minicaffe.TEST, level=level)
    with pytest.raises(ConfigError, match=r"level: must be from -2\^31 to 2\^31 - 1, got -?214748364[89]"):
        minicaffe.Net(net, minicaffe.TEST, level=level + (1 if level > 0 else -1))


@pytest.mark.parametrize(("given", "error", "message"), [
    ({"timeout": -1}, ConfigError, "timeout: must be a number of seconds, or 0 for no limit, got -1"),
    ({"timeout": float("nan")}, ConfigError, "timeout: must be a number of seconds"), ({"timeout": "x"}, WrongTypeError, "timeout must be a number"),
    ({"warmup": 1.5, "scale_lr": "linear"}, WrongTypeError, "warmup must be an int"), ({"warmup": -1, "scale_lr": "linear"}, ConfigError, "warmup: must be a number")])
def test_numbers_of_distribute(net, given, error, message):
    solver = minicaffe.solver.create_solver(caffe_pb2.SolverParameter(net=net, base_lr=0.1, lr_policy="fixed", snapshot_prefix="s"))
    with pytest.raises(error, match=message):
        solver.distribute(**given)


@pytest.mark.parametrize(("arguments", "message"), [
    (["train", "solver.prototxt", "--test-batch-size", "1"], "--test-batch-size: cannot be 1"),
    (["train", "net.prototxt", "--max-iter="], "'--max-iter': must have a value, N, got ''"),
    (["train", "net.prototxt", "--watch=-1"], "'--watch': -1 is not in the range x>=0"),
    (["classify", "a.png", "--images-dim", "0,1"], "each must be at least 1, got '0,1'"),
    (["classify", "a.png", "--images-dim", "2147483648,1"], "--images-dim: a side must be below 2^31")])
def test_limits_of_commands(net, arguments, message, capsys):
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("batch", "refused"), [(0, True), (1, False), ((1 << 31) - 1, False), (1 << 31, True)])
def test_batch_of_a_net_without_data(batch, refused):
    param = minicaffe.proto.text.parse_text(NET, caffe_pb2.NetParameter)[0]
    if not refused:
        assert replace_sources(param, batch=batch)[0].layer[0].dummy_data_param.shape[0].dim[0] == batch
        return
    with pytest.raises(ConfigError, match=rf"batch: must be from 1 to 2\^31 - 1, got {batch}"):
        replace_sources(param, batch=batch)


def test_size_of_pictures(monkeypatch, tmp_path):
    monkeypatch.setenv("MINICAFFE_MAX_BLOB_BYTES", "12")
    assert convert.resize_size(2, 2) == (2, 2)
    with pytest.raises(ShapeError, match="resize_width and resize_height: a picture of 5 x 1 would take 15 bytes"):
        convert.resize_size(5, 1)
    with pytest.raises(ShapeError, match=r"what: a side must be below 2\^31, got 1 x 2147483648"):
        convert.check_picture((1, 1 << 31), "what")
    for name in ("min_dim", "max_dim"):
        with pytest.raises(ConfigError, match=f"{name}: must be at least 1, or 0 for none, got -1"):
            convert_annotated("", "list", str(tmp_path / "db"), label_type="txt", **{name: -1})


@pytest.mark.parametrize("variable", ["MINICAFFE_EXACT", "MINICAFFE_DETERMINISTIC", "MINICAFFE_CUDNN_TUNE"])
def test_switches_of_the_environment(monkeypatch, variable):
    for text, on in (("0", False), ("1", True), ("", False)):
        monkeypatch.setenv(variable, text)
        assert switched_on(variable) is on and switched_on(variable, default=True) is (on or text == "")
    for text in ("2", "off", "-1", "9" * 20):
        monkeypatch.setenv(variable, text)
        with pytest.raises(ConfigError, match=f"{variable}: must be 0 or 1, got '{text}'"):
            switched_on(variable)


@pytest.mark.parametrize(("isa", "known"), [("avx2", True), ("", True), ("AVX2", False), ("0", False)])
def test_isa_of_the_environment(monkeypatch, caplog, isa, known):
    monkeypatch.setenv("MINICAFFE_ISA", isa)
    monkeypatch.delenv("GLOG_minloglevel", raising=False)
    minicaffe.pycaffe.settings.follow_environment()
    assert (f"MINICAFFE_ISA must be baseline, avx2, avx512, got '{isa}'; it is ignored" in caplog.text) is not known


SETTINGS = [    # others are in tests/sim
    ("devices=8", ""), ("devices=9", "must be 0 to 8"), ("memory=0", "up to 64GiB"), ("memory=64GiB", ""), ("memory=65GiB", "up to 64GiB"),
    *((f"{flag}=2", "must be 0 or 1") for flag in ("race", "uninitialized", "leak", "deferred"))]
EACH_IN_A_CHILD = """
import os, sys
from minicaffe import cuda
for settings in sys.argv[1:]:
    if os.fork() == 0:
        os.environ["MINICAFFE_SIM"] = settings
        print(cuda.count(), flush=True)
        os._exit(0)
    print("status", os.wait()[1], "of", settings, file=sys.stderr, flush=True)
"""


@pytest.mark.slow(1)
def test_settings_of_the_simulated_device():
    done = subprocess.run([sys.executable, "-c", EACH_IN_A_CHILD, *dict(SETTINGS)], capture_output=True, text=True,
                          env={**os.environ, "MINICAFFE_DEVICE": "sim", "MINICAFFE_SIM": ""})
    errors = done.stderr
    for settings, message in SETTINGS:
        error, end, errors = errors.partition(f" of {settings}\n")
        assert end and (message in error if message else error == "status 0"), done.stderr
