"""trusted=False: a model file writes nothing, reads below the working directory only, and runs no module; nor does a solver file."""

import os
import re
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from helpers import layer_text

import minicaffe as caffe
from minicaffe.cli import main
from minicaffe.common import caffe as state
from minicaffe.data.db import new_database
from minicaffe.errors import ConfigError, DataError, DependencyError, Error
from minicaffe.proto import caffe_pb2, upgrade
from minicaffe.solver import create_solver, load_solver

PACKAGE = Path(__file__).resolve().parents[2] / "minicaffe"
IN = 'layer { name: "in" type: "Input" top: "a" top: "l" input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } } }\n'


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory ``tree`` beside a folder ``outside``, both with the same files; ``tree`` has links to the other."""
    mean = caffe_pb2.BlobProto(data=[1.0] * 9, shape={"dim": [1, 1, 3, 3]}).SerializeToString()
    for folder in ("outside", "tree"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        with h5py.File("x.h5", "w") as file:
            file["x"] = np.ones((4, 3), np.float32)
        for name, content in ("infogain.binaryproto", mean), ("mean.binaryproto", mean), ("list.txt", b"x.h5\n"):
            Path(name).write_bytes(content)
        make_database("lmdb", "LMDB")
    for link, target in ("link", "outside"), ("linked.h5", "outside/x.h5"), ("linked.binaryproto", "outside/infogain.binaryproto"):
        os.symlink(f"../{target}", link)
    os.mkdir("half")
    os.symlink("../../outside/lmdb/data.mdb", "half/data.mdb")
    return tmp_path


def make_database(path, backend):
    with new_database(path, backend) as db:
        db.put(b"0", caffe_pb2.Datum(channels=1, height=3, width=3, data=bytes(9)).SerializeToString())


def net(text, **options):
    Path("net.prototxt").write_text(IN + text)
    return caffe.Net("net.prototxt", caffe.TEST, **options)


def listed(*paths):
    """Write a list of files; return its name."""
    Path("paths.txt").write_text("\n".join(paths) + "\n")
    return "paths.txt"


def leaving(name, place):
    """Ways to name a file of the folder ``outside``."""
    return [f"../outside/{name}", f"{place}/outside/{name}", f"link/{name}", f"link/../tree/../outside/{name}", f"./half/../link/{name}"]


LMDB = 'data_param { source: "%s" backend: LMDB batch_size: 1 }'
LAYERS = {
    "infogain_loss_param.source": (layer_text("InfogainLoss", "x", "a l", more='infogain_loss_param { source: "%s" }'), "infogain.binaryproto"),
    "data_param.source": (layer_text("Data", "x", more=LMDB), "lmdb"),
    "transform_param.mean_file": (layer_text("Data", "x", more=LMDB % "lmdb" + 'transform_param { mean_file: "%s" }'), "mean.binaryproto"),
    "hdf5_data_param.source": (layer_text("HDF5Data", "x", more='hdf5_data_param { source: "%s" batch_size: 1 }'), "list.txt"),
}


@pytest.mark.parametrize("field", LAYERS)
def test_layers_read_below_the_working_directory(place, field):
    text, name = LAYERS[field]
    for path in name, f"./half/../{name}", f"{place}/tree/{name}":
        net(text % path, trusted=False)
    for path in leaving(name, place):
        net(text % path)
        with pytest.raises(ConfigError, match=rf"net.prototxt:2: layer 'x' \(\w+\): {field}: the net is not trusted, and asks to read"):
            net(text % path, trusted=False)
        assert state.trusted        # an error leaves nothing behind


def test_links_to_files(place):
    for field, name, reads in ("infogain_loss_param.source", "linked.binaryproto", ""), ("data_param.source", "half", ", and asks to read 'half/data.mdb'"):
        text = LAYERS[field][0] % name
        net(text)
        with pytest.raises(ConfigError, match=f"{field}: the net is not trusted{reads}"):
            net(text, trusted=False)


def test_files_that_a_list_names(place):
    text = LAYERS["hdf5_data_param.source"][0]
    net(text % listed("x.h5", "./x.h5", f"{place}/tree/x.h5"), trusted=False)
    for path in [*leaving("x.h5", place), "linked.h5"]:
        net(text % listed("x.h5", path))
        with pytest.raises(ConfigError, match=r"hdf5_data_param.source: the net is not trusted, and 'paths.txt' names '.*x?.h5' outside"):
            net(text % listed("x.h5", path), trusted=False)


def point(kind, group, name, far):
    """Put into an HDF5 group what leads, each kind in its way, to the dataset `name` of the file `far`; return its path there."""
    with h5py.File(far) as file:
        shape, dtype, offset = file[name].shape, file[name].dtype, file[name].id.get_offset()
        size = file[name].nbytes
    if kind == "external":
        group[name] = h5py.ExternalLink(far, f"/{name}")
    elif kind == "soft":
        group.file["far"] = h5py.ExternalLink(far, "/")
        group[name] = h5py.SoftLink(f"/far/{name}")
    elif kind == "group":
        group["far"] = h5py.ExternalLink(far, "/")
        return f"far/{name}"
    elif kind == "stored":
        group.create_dataset(name, shape, dtype, external=[(far, offset, size)])
    else:
        layout = h5py.VirtualLayout(shape, dtype)
        layout[...] = h5py.VirtualSource(far, name, shape)
        group.create_virtual_dataset(name, layout)
    return name


@pytest.mark.parametrize("kind", ["external", "soft", "group", "stored", "virtual"])
def test_what_an_hdf5_file_points_at(place, kind):
    with h5py.File("points.h5", "w") as file:
        file["own"] = np.ones((4, 3), np.float32)
        file["near"] = h5py.SoftLink("/own")
        name = point(kind, file, "x", "../outside/x.h5")
    text = (LAYERS["hdf5_data_param.source"][0] % listed("points.h5")).replace('top: "x"', 'top: "%s"')
    net(text % name)
    for top, message in (name, r"net.prototxt:2: .* hdf5_data_param.source: points.h5: '(far/)?x' lies in another file"), ("none", "has no dataset 'none'"):
        with pytest.raises(DataError, match=message):
            net(text % top, trusted=False)
    for top in ("own", "near"):
        net(text % top, trusted=False)


def test_a_ring_of_links_ends(place):
    with h5py.File("ring.h5", "w") as file:
        file["x"], file["y"] = h5py.SoftLink("/y"), h5py.SoftLink("/x")
    with pytest.raises(DataError, match="'x'"):
        net(LAYERS["hdf5_data_param.source"][0] % listed("ring.h5"), trusted=False)


WINDOW = "# 0\n{}\n3\n9\n9\n1\n1 0.1 0 0 5 5\n"


def test_pictures_of_lists(place):
    cv2 = pytest.importorskip("cv2")
    for folder in ("tree", "outside"):
        cv2.imwrite(str(place / folder / "p.png"), np.zeros((9, 9, 3), np.uint8))
    os.symlink("../outside/p.png", "linked.png")
    given = 'source: "{}" batch_size: 1 root_folder: "{}"'
    for text, entry in (('type: "ImageData" top: "x" top: "y" image_data_param {{ ' + given, "{} 1"),
                        ('type: "WindowData" top: "x" top: "y" transform_param {{ crop_size: 2 }} window_data_param {{ fg_fraction: 0 ' + given, WINDOW)):
        def made(path, root="", trusted=False, text=text, entry=entry):
            return net('layer { name: "x" ' + text.format(listed(entry.format(path)), root) + "} }", trusted=trusted)

        made("p.png"), made("/p.png", "half/..")
        for path in [*leaving("p.png", place), "linked.png"]:
            made(path, trusted=True)
            with pytest.raises(ConfigError, match=r"_data_param.source: the net is not trusted, and 'paths.txt' names '.*p?.png' outside"):
                made(path)
        for path, root, field in ("p.png", "../outside/", "root_folder"), ("./outside/p.png", ".", "source"):     # '.' and './outside' make '../outside'
            with pytest.raises(ConfigError, match=f"data_param.{field}: the net is not trusted"):
                made(path, root)


def test_files_of_detection_layers(place):
    shapes = "".join(f"shape {{ dim: 1 dim: 1 dim: 1 dim: {size} }} " for size in (7, 8))
    text = layer_text("Input", "b", "", "p q", f"input_param {{ {shapes} }}") + layer_text(
        "DetectionEvaluate", "x", "p q", more='detection_evaluate_param { num_classes: 2 background_label_id: 0 name_size_file: "%s" }')
    for path in leaving("mean.binaryproto", place):
        with pytest.raises(ConfigError, match=r"layer 'x' \(DetectionEvaluate\): detection_evaluate_param.name_size_file: the net is not trusted, and asks"):
            net(text % path, trusted=False)


WINDOWS = 'type: "WindowData" top: "x" top: "y" transform_param { crop_size: 2 } window_data_param { source: "windows.txt" batch_size: 1 fg_fraction: 0 %s }'
RECORDS = 'type: "Data" top: "x" data_param { source: "lmdb" backend: LMDB batch_size: 1 } '


@pytest.mark.parametrize("layer, swapped", [
    ('type: "HDF5Data" top: "x" hdf5_data_param { source: "list.txt" batch_size: 4 }', "y.h5"),
    ('type: "ImageData" top: "x" top: "y" image_data_param { source: "pictures.txt" batch_size: 1 }', "q.png"),
    (WINDOWS % "", "q.png"), (WINDOWS % "cache_images: true", "q.png"), (RECORDS, "lmdb/data.mdb"),
    (RECORDS + 'transform_param { mean_file: "mean.binaryproto" }', "mean.binaryproto")])
def test_file_replaced_by_link(place, layer, swapped):
    cv2 = pytest.importorskip("cv2")
    for folder in (place / "tree", place / "outside"):
        (folder / "y.h5").write_bytes((folder / "x.h5").read_bytes())
        for name in ("p.png", "q.png"):
            cv2.imwrite(str(folder / name), np.zeros((9, 9, 3), np.uint8))
    Path("list.txt").write_text("x.h5 y.h5\n")
    Path("pictures.txt").write_text("p.png 0\nq.png 0\n")
    Path("windows.txt").write_text(WINDOW.format("q.png"))
    nets = {trusted: net(f'layer {{ name: "d" {layer} }}', trusted=trusted) for trusted in (True, False)}
    os.unlink(swapped)
    os.symlink(place / "outside" / swapped, swapped)
    nets[True].forward()
    nets[True].forward()
    with pytest.raises(Error, match=r"layer 'd' \(\w+\): .*the net is not trusted"):
        for _ in range(3):
            nets[False].forward()


def test_leveldb_is_refused_as_it_writes(place, capsys):
    try:
        make_database("level", "LEVELDB")
    except DependencyError as error:
        pytest.skip(str(error))
    text = LAYERS["data_param.source"][0].replace("LMDB", "LEVELDB") % "level"
    net(text)
    before = {path: path.read_bytes() for path in Path("level").iterdir()}
    with pytest.raises(ConfigError, match="data_param.backend: the net is not trusted, and LevelDB writes into 'level'"):
        net(text, trusted=False)
    # For such a net the command counts the records first
    Path("net.prototxt").write_text(TRAINED + text.replace('name: "x"', 'name: "x" include { phase: TEST }').replace('top: "x"', 'top: "far"'))
    assert main(["train", "net.prototxt", "--max-iter", "1", "--untrusted"]) == 2
    assert "LevelDB writes into 'level'" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("level").iterdir()} == before
    assert main(["train", "net.prototxt", "--max-iter", "1"]) == 0
    assert {path: path.read_bytes() for path in Path("level").iterdir()} != before


def test_nothing_is_written_and_nothing_run(place, monkeypatch):
    with pytest.raises(ConfigError, match="hdf5_output_param.file_name: the net is not trusted, and asks to write"):
        net(layer_text("HDF5Output", "x", "a l", "", 'hdf5_output_param { file_name: "out.h5" }'), trusted=False)
    assert not os.path.exists("out.h5")
    monkeypatch.syspath_prepend(place / "tree")
    Path("evil_module.py").write_text("open('ran', 'w')\nimport minicaffe\nclass L(minicaffe.Layer):\n"
                                      "    def reshape(self, bottom, top):\n        top[0].reshape(1)\n")
    python = layer_text("Python", "x", "a", more='python_param { module: "evil_module" layer: "L" }')
    with pytest.raises(ConfigError, match="python_param.module: the model file asks to run module 'evil_module'"):
        net(python, trusted=False)
    assert not os.path.exists("ran")
    for allowed in True, None:      # at the end it is imported
        monkeypatch.setattr(state, "allow_python_layers", allowed)
        net(python, trusted=False)
        assert os.path.exists("ran")


# ---- solvers

SOLVER = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 2\n'
TRAINED = layer_text("DummyData", "d", "", "x y", "dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 } }") + layer_text(
    "InnerProduct", "ip", "x", "b", "inner_product_param { num_output: 3 }") + layer_text("EuclideanLoss", "l", "b y")


@pytest.fixture
def trained(place):
    for folder in (place / "tree", place / "outside"):
        (folder / "train.prototxt").write_text(TRAINED)
        caffe.Net(str(folder / "train.prototxt"), caffe.TRAIN).save(str(folder / "w.caffemodel"))

    def write(fields):
        Path("solver.prototxt").write_text(SOLVER + fields)
        return "solver.prototxt"
    write.place = place
    return write


def test_a_solvers_files(trained):
    load_solver(trained('net: "train.prototxt" weights: "w.caffemodel"'), trusted=False)
    for fields, field in (('net: "../outside/train.prototxt"', "net"), ('train_net: "link/train.prototxt"', "train_net"),
                          ('net: "train.prototxt" test_net: "../outside/train.prototxt" test_iter: 1 test_interval: 1', r"test_net\[0\]"),
                          ('net: "train.prototxt" weights: "w.caffemodel,../outside/w.caffemodel"', r"weights\[0\]"),
                          (f'net: "train.prototxt" weights: "{trained.place}/outside/w.caffemodel"', r"weights\[0\]")):
        load_solver(trained(fields))
        with pytest.raises(ConfigError, match=rf"solver.prototxt:2: {field}: the solver is not trusted, and asks to read"):
            load_solver(trained(fields), trusted=False)


def test_nets_of_untrusted_solver(trained):
    writes = TRAINED + layer_text("HDF5Output", "o", "x y", "", 'hdf5_output_param { file_name: "out.h5" }')
    Path("writes.prototxt").write_text(writes)
    tested = 'net: "train.prototxt" test_iter: 1 test_interval: 1 '
    for fields in (f"net_param {{ {writes} }}", 'net: "writes.prototxt"', tested + 'test_net: "writes.prototxt"', tested + f"test_net_param {{ {writes} }}"):
        with pytest.raises(ConfigError, match="hdf5_output_param.file_name: the net is not trusted"):
            load_solver(trained(fields.replace("\n", " ")), trusted=False)
    assert not os.path.exists("out.h5")


def test_untrusted_solver_sets_no_snapshot_path(trained):
    given = trained('net: "train.prototxt"\nsnapshot_prefix: "theirs"')
    for solver in (load_solver, caffe.SGDSolver, caffe.get_solver):
        with pytest.raises(ConfigError, match=r"solver.prototxt:3: snapshot_prefix: the solver is not trusted, and asks to write "
                                              ".*--snapshot-prefix, or own_fields of Solver"):
            solver(given, trusted=False)
    param, positions = upgrade.read_solver_file(given)
    with pytest.raises(ConfigError, match="snapshot_prefix: the solver is not trusted"):
        create_solver(param, trusted=False)  # without a file its origin is unknown
    param.snapshot_prefix = "mine"
    create_solver(param, file=given, positions=positions, trusted=False, own_fields=["snapshot_prefix"]).solve()
    load_solver(trained('net: "train.prototxt"'), trusted=False).solve()  # beside the file that the program named
    assert {path.name for path in Path().glob("*_iter_*")} == {f"{name}_iter_2.{kind}" for name in ("mine", "solver") for kind in ("caffemodel", "solverstate")}


def test_a_state_names_a_model_elsewhere(trained):
    solver = load_solver(trained('net: "train.prototxt"'))
    solver.param.snapshot_prefix = str(trained.place / "outside" / "s")
    _, state_path = solver.snapshot()
    load_solver("solver.prototxt", trusted=False).restore(state_path)  # the model lies beside its state
    os.rename(state_path, "moved.solverstate")
    load_solver("solver.prototxt").restore("moved.solverstate")
    with pytest.raises(ConfigError, match=r"moved.solverstate: learned_net: the solver state is not trusted, and asks to read"):
        load_solver("solver.prototxt", trusted=False).restore("moved.solverstate")


STORED = [("model", "data/ip/0"), ("state", "history/0"), ("state", "iter")]
NAMED = [("model", "data"), ("model", "data/ip"), ("state", "history"), ("state", "current_step"), ("state", "learned_net"),
         ("state", "resume_state")]


@pytest.mark.parametrize("which, name, kind", [(*entry, kind) for entry in STORED for kind in ("external", "soft", "stored", "virtual")]
                         + [(*entry, "link") for entry in NAMED])
def test_links_in_hdf5_weights_and_states(trained, which, name, kind):
    """Neither parameters nor the state of a solver are taken from a file that the HDF5 file leads to."""
    given = trained('net: "train.prototxt"\nsnapshot_format: HDF5')
    paths = dict(zip(("model", "state"), load_solver(given).snapshot()))
    group, _, last = name.rpartition("/")
    far = f"{trained.place}/outside/far.h5"
    with h5py.File(far, "w") as outside, h5py.File(paths[which], "a") as file:
        file.copy(name, outside, last)
        del file[name]
        if kind == "link":
            file[name] = h5py.ExternalLink(far, last)
    if kind != "link":
        with h5py.File(paths[which], "a") as file:
            point(kind, file[group or "/"], last, far)

    def load(trusted):
        net, solver = caffe.Net("train.prototxt", caffe.TRAIN, trusted=trusted), load_solver(given, trusted=trusted)
        for target, use in [(net, net.copy_from), (net, net.load_hdf5), (solver.net, solver.net.copy_from)] if which == "model" else [
                (solver.net, solver.restore)]:
            before = [blob.data.copy() for blob in target.learnable_params]
            try:
                use(paths[which])
            finally:
                assert trusted or all((blob.data == old).all() for blob, old in zip(target.learnable_params, before))

    load(True)
    with pytest.raises(DataError, match=rf"{paths[which]}: .*'{name}' lies in another file, and the net is not trusted; load it"):
        load(False)


# ---- the command line

@pytest.mark.no_plan("extract_features reads a blob from the middle of the net, and has no plan")
@pytest.mark.parametrize("command", [["test", "--model", "net.prototxt", "--weights", "w.caffemodel", "--iterations", "1"],
                                     ["time", "net.prototxt", "--iterations", "1"], ["train", "net.prototxt", "--max-iter", "1"],
                                     ["extract_features", "w.caffemodel", "net.prototxt", "b", "db", "1"]])
def test_commands_take_untrusted(trained, command, capsys):
    reads = (LAYERS["data_param.source"][0] % "../outside/lmdb").replace('"x"', '"far"')
    Path("net.prototxt").write_text(TRAINED + reads + layer_text("Silence", "s", "far", ""))
    assert main([*command, "--untrusted"]) == 2
    assert "data_param.source: the net is not trusted, and asks to read '../outside/lmdb'" in capsys.readouterr().err
    assert main(command) == 0, capsys.readouterr().err


def test_train_takes_paths_from_options(trained, capsys):
    solver = trained('net: "../outside/train.prototxt"\nsnapshot_prefix: "theirs"')
    for options, fault in (([], "snapshot_prefix"), (["--snapshot-prefix", "mine"], "net")):
        assert main(["train", solver, "--untrusted", *options]) == 2
        assert f"{fault}: the solver is not trusted" in capsys.readouterr().err
    assert main(["train", solver, "--untrusted", "--snapshot-prefix", "mine", "--net", "../outside/train.prototxt"]) == 0
    assert os.path.exists("mine_iter_2.caffemodel")


def test_command_imports_named_modules_only(trained, capsys, monkeypatch):
    monkeypatch.syspath_prepend(trained.place / "tree")
    monkeypatch.setattr(state, "allow_python_layers", None)
    Path("their_module.py").write_text("raise RuntimeError('ran')\n")
    Path("net.prototxt").write_text(IN + layer_text("Python", "p", "a", more='python_param { module: "their_module" layer: "L" }'))
    for options in ([], ["--untrusted"]):
        assert main(["time", "net.prototxt", "--iterations", "1", *options]) == 2
        assert "asks to run module 'their_module'" in capsys.readouterr().err
    assert main(["time", "net.prototxt", "--iterations", "1", "--untrusted", "--allow-python-layers"]) == 1
    assert "ran" in capsys.readouterr().err


def test_many_paths_are_checked_quickly(place):
    """A list of ImageNet's size has 1.3 million lines; per line a check may cost a few microseconds."""
    os.mkdir("many")
    paths, begin = [f"many/{i}.png" for i in range(5000)], time.process_time()
    with state.trusting(False):
        state.check_listed(paths, "list", "field")
        assert time.process_time() - begin < 2
        with pytest.raises(Error, match="outside"):
            state.check_listed([*paths, "many/../../x"], "list", "field")


# ---- nothing is forgotten

def test_docs_name_existing_tests():
    root = PACKAGE.parent
    last_column = re.findall(r"\| ([^|\n]*) \|$", (root / "docs/trust.md").read_text(), re.MULTILINE)
    named = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+)`", " ".join(last_column))
    assert len(named) > 20
    for file, name in named:
        assert f"\ndef {name}(" in (root / (file or "tests/net/test_trusted.py")).read_text(), f"{name} is no test"


# Where Caffe had them before transform_param; upgrades move them there.
MOVED = {f"{name}_param.mean_file" for name in ("data", "image_data", "window_data")}
PATH_NAMES = re.compile("file|source|folder|director|path|prefix")


def test_every_read_path_checked():
    """A string field that is called like a path, and is read by a layer's source, is in a call of the check there."""
    sources = [path.read_text() for path in (PACKAGE / "layers").rglob("*") if path.suffix in (".py", ".pyx")]
    found = []
    for field in caffe_pb2.LayerParameter.DESCRIPTOR.fields:
        for inner in field.message_type.fields if field.message_type else ():
            name = f"{field.name}.{inner.name}"
            if inner.cpp_type != inner.CPPTYPE_STRING or not PATH_NAMES.search(inner.name) or name in MOVED:
                continue
            if any(field.name in text and f".{inner.name}" in text for text in sources):
                found.append(name)
                assert any(re.search(rf'check_(path|listed)\([^\n]*"{name}"', text) for text in sources), f"{name} is not checked"
    assert set(found) >= {"data_param.source", "transform_param.mean_file", "hdf5_output_param.file_name", "infogain_loss_param.source"}
