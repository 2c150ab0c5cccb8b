"""trusted=False: a model file writes nothing, reads below the working directory only, and runs no module; nor does a solver file."""

import os
import re
from pathlib import Path

import h5py
import numpy as np
import pytest

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
    for folder in ("tree", "outside"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        with h5py.File("x.h5", "w") as file:
            file["x"] = np.ones((4, 3), np.float32)
        mean = caffe_pb2.BlobProto(data=[1.0] * 9)
        mean.shape.dim.extend([1, 1, 3, 3])
        for name in ("infogain.binaryproto", "mean.binaryproto"):
            with open(name, "wb") as file:
                file.write(mean.SerializeToString())
        with new_database("lmdb", "LMDB") as db:
            db.put(b"0", caffe_pb2.Datum(channels=1, height=3, width=3, data=bytes(9)).SerializeToString())
        with open("list.txt", "w") as file:
            file.write("x.h5\n")
    monkeypatch.chdir(tmp_path / "tree")
    os.symlink("../outside", "link")
    os.symlink("../outside/x.h5", "linked.h5")
    os.symlink("../outside/infogain.binaryproto", "linked.binaryproto")
    os.mkdir("half")
    os.symlink("../../outside/lmdb/data.mdb", "half/data.mdb")
    return tmp_path


def net(text, **options):
    with open("net.prototxt", "w") as file:
        file.write(IN + text)
    return caffe.Net("net.prototxt", caffe.TEST, **options)


def listed(*paths):
    """Write a list of files; return its name."""
    with open("paths.txt", "w") as file:
        file.write("\n".join(paths) + "\n")
    return "paths.txt"


def leaving(name, place):
    """Ways to name a file of the folder ``outside``."""
    return [f"../outside/{name}", f"{place}/outside/{name}", f"link/{name}", f"link/../tree/../outside/{name}", f"./half/../link/{name}"]


LAYERS = {
    "infogain_loss_param.source": ('layer {{ name: "x" type: "InfogainLoss" bottom: "a" bottom: "l" top: "x" infogain_loss_param {{ source: "{}" }} }}',
                                   "infogain.binaryproto"),
    "data_param.source": ('layer {{ name: "x" type: "Data" top: "x" data_param {{ source: "{}" backend: LMDB batch_size: 1 }} }}', "lmdb"),
    "transform_param.mean_file": ('layer {{ name: "x" type: "Data" top: "x" data_param {{ source: "lmdb" backend: LMDB batch_size: 1 }} '
                                  'transform_param {{ mean_file: "{}" }} }}', "mean.binaryproto"),
    "hdf5_data_param.source": ('layer {{ name: "x" type: "HDF5Data" top: "x" hdf5_data_param {{ source: "{}" batch_size: 1 }} }}', "list.txt"),
}


@pytest.mark.parametrize("field", LAYERS)
def test_layers_read_below_the_working_directory(place, field):
    text, name = LAYERS[field]
    net(text.format(name), trusted=False)
    net(text.format(f"./half/../{name}"), trusted=False)
    net(text.format(f"{place}/tree/{name}"), trusted=False)
    for path in leaving(name, place):
        net(text.format(path))
        with pytest.raises(ConfigError, match=rf"net.prototxt:2: layer 'x' \(\w+\): {field}: the net is not trusted, and asks to read"):
            net(text.format(path), trusted=False)
        assert state.trusted        # an error leaves nothing behind


def test_links_to_files(place):
    text = LAYERS["infogain_loss_param.source"][0]
    net(text.format("linked.binaryproto"))
    with pytest.raises(ConfigError, match="infogain_loss_param.source: the net is not trusted"):
        net(text.format("linked.binaryproto"), trusted=False)
    text = LAYERS["data_param.source"][0]
    net(text.format("half"))
    with pytest.raises(ConfigError, match="data_param.source: the net is not trusted, and asks to read 'half/data.mdb'"):
        net(text.format("half"), trusted=False)


def test_files_that_a_list_names(place):
    text = LAYERS["hdf5_data_param.source"][0]
    net(text.format(listed("x.h5", "./x.h5", f"{place}/tree/x.h5")), trusted=False)
    for path in [*leaving("x.h5", place), "linked.h5"]:
        net(text.format(listed("x.h5", path)))
        with pytest.raises(ConfigError, match=r"hdf5_data_param.source: the net is not trusted, and 'paths.txt' names '.*x?.h5' outside"):
            net(text.format(listed("x.h5", path)), trusted=False)


POINTS = ("external", "soft", "group", "stored", "virtual")


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


@pytest.mark.parametrize("kind", POINTS)
def test_what_an_hdf5_file_points_at(place, kind):
    with h5py.File("points.h5", "w") as file:
        file["own"] = np.ones((4, 3), np.float32)
        file["near"] = h5py.SoftLink("/own")
        point(kind, file, "x", "../outside/x.h5")
    text = LAYERS["hdf5_data_param.source"][0].format(listed("points.h5"))
    text = text.replace('top: "x"', 'top: "far/x"') if kind == "group" else text
    net(text)
    with pytest.raises(DataError, match=r"net.prototxt:2: .* hdf5_data_param.source: points.h5: '(far/)?x' lies in another file"):
        net(text, trusted=False)
    for name in ("own", "near"):
        net(text.replace('"far/x"', f'"{name}"').replace('top: "x"', f'top: "{name}"'), trusted=False)
    with pytest.raises(DataError, match="has no dataset 'none'"):
        net(text.replace('"far/x"', '"none"').replace('top: "x"', 'top: "none"'), trusted=False)


def test_a_ring_of_links_ends(place):
    with h5py.File("ring.h5", "w") as file:
        file["x"] = h5py.SoftLink("/y")
        file["y"] = h5py.SoftLink("/x")
    with pytest.raises(DataError, match="'x'"):
        net(LAYERS["hdf5_data_param.source"][0].format(listed("ring.h5")), trusted=False)


def test_pictures_of_lists(place):
    cv2 = pytest.importorskip("cv2")
    for folder in ("tree", "outside"):
        cv2.imwrite(str(place / folder / "p.png"), np.zeros((9, 9, 3), np.uint8))
    os.symlink("../outside/p.png", "linked.png")
    images = 'layer {{ name: "x" type: "ImageData" top: "x" top: "y" image_data_param {{ source: "{}" batch_size: 1 root_folder: "{}" }} }}'
    windows = ('layer {{ name: "x" type: "WindowData" top: "x" top: "y" transform_param {{ crop_size: 2 }} '
               'window_data_param {{ source: "{}" batch_size: 1 root_folder: "{}" fg_fraction: 0 }} }}')
    window = "# 0\n{}\n3\n9\n9\n1\n1 0.1 0 0 5 5"
    for text, entry in ((images, "{} 1"), (windows, window)):
        net(text.format(listed(entry.format("p.png")), ""), trusted=False)
        net(text.format(listed(entry.format("/p.png")), "half/.."), trusted=False)
        for path in [*leaving("p.png", place), "linked.png"]:
            net(text.format(listed(entry.format(path)), ""))
            with pytest.raises(ConfigError, match=r"_data_param.source: the net is not trusted, and 'paths.txt' names '.*p?.png' outside"):
                net(text.format(listed(entry.format(path)), ""), trusted=False)
        with pytest.raises(ConfigError, match="data_param.root_folder: the net is not trusted"):
            net(text.format(listed(entry.format("p.png")), "../outside/"), trusted=False)
        with pytest.raises(ConfigError, match="data_param.source: the net is not trusted"):  # '.' and './outside' make '../outside'
            net(text.format(listed(entry.format("./outside/p.png")), "."), trusted=False)


def test_files_of_detection_layers(place):
    shapes = "".join(f"shape {{ {dims} }} " for dims in ("dim: 1 dim: 1 dim: 1 dim: 7", "dim: 1 dim: 1 dim: 1 dim: 8"))
    text = (f'layer {{ name: "b" type: "Input" top: "p" top: "q" input_param {{ {shapes} }} }}\n'
            'layer { name: "x" type: "DetectionEvaluate" bottom: "p" bottom: "q" top: "x" detection_evaluate_param { num_classes: 2 '
            'background_label_id: 0 name_size_file: "%s" } }')
    for path in leaving("mean.binaryproto", place):
        with pytest.raises(ConfigError, match=r"layer 'x' \(DetectionEvaluate\): detection_evaluate_param.name_size_file: the net is not trusted, and asks"):
            net(text % path, trusted=False)


@pytest.mark.parametrize("layer, swapped", [
    ('type: "HDF5Data" top: "x" hdf5_data_param { source: "list.txt" batch_size: 4 }', "y.h5"),
    ('type: "ImageData" top: "x" top: "y" image_data_param { source: "pictures.txt" batch_size: 1 }', "q.png"),
    ('type: "WindowData" top: "x" top: "y" transform_param { crop_size: 2 } window_data_param { source: "windows.txt" batch_size: 1 '
     'fg_fraction: 0 }', "q.png"),
    ('type: "WindowData" top: "x" top: "y" transform_param { crop_size: 2 } window_data_param { source: "windows.txt" batch_size: 1 '
     'fg_fraction: 0 cache_images: true }', "q.png"),
    ('type: "Data" top: "x" data_param { source: "lmdb" backend: LMDB batch_size: 1 }', "lmdb/data.mdb"),
    ('type: "Data" top: "x" data_param { source: "lmdb" backend: LMDB batch_size: 1 } transform_param { mean_file: "mean.binaryproto" }',
     "mean.binaryproto")])
def test_file_replaced_by_link(place, layer, swapped):
    cv2 = pytest.importorskip("cv2")
    for folder in (place / "tree", place / "outside"):
        (folder / "y.h5").write_bytes((folder / "x.h5").read_bytes())
        for name in ("p.png", "q.png"):
            cv2.imwrite(str(folder / name), np.zeros((9, 9, 3), np.uint8))
    Path("list.txt").write_text("x.h5 y.h5\n")
    Path("pictures.txt").write_text("p.png 0\nq.png 0\n")
    Path("windows.txt").write_text("# 0\nq.png\n3\n9\n9\n1\n1 0.1 0 0 5 5\n")
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
        with new_database("level", "LEVELDB") as db:
            db.put(b"0", caffe_pb2.Datum(channels=1, height=3, width=3, data=bytes(9)).SerializeToString())
    except DependencyError as error:
        pytest.skip(str(error))
    text = LAYERS["data_param.source"][0].replace("LMDB", "LEVELDB").format("level")
    net(text)
    before = {path: path.read_bytes() for path in Path("level").iterdir()}
    with pytest.raises(ConfigError, match="data_param.backend: the net is not trusted, and LevelDB writes into 'level'"):
        net(text, trusted=False)
    with open("net.prototxt", "w") as file:  # for such a net the command counts the records first
        file.write(TRAINED + text.replace('name: "x"', 'name: "x" include { phase: TEST }').replace('top: "x"', 'top: "far"'))
    assert main(["train", "net.prototxt", "--max-iter", "1", "--untrusted"]) == 2
    assert "LevelDB writes into 'level'" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in Path("level").iterdir()} == before
    assert main(["train", "net.prototxt", "--max-iter", "1"]) == 0
    assert {path: path.read_bytes() for path in Path("level").iterdir()} != before


def test_nothing_is_written_and_nothing_run(place, monkeypatch):
    output = 'layer { name: "x" type: "HDF5Output" bottom: "a" bottom: "l" hdf5_output_param { file_name: "out.h5" } }'
    with pytest.raises(ConfigError, match="hdf5_output_param.file_name: the net is not trusted, and asks to write"):
        net(output, trusted=False)
    assert not os.path.exists("out.h5")
    monkeypatch.syspath_prepend(place / "tree")
    (place / "tree" / "evil_module.py").write_text("open('ran', 'w')\nimport minicaffe\nclass L(minicaffe.Layer):\n"
                                                   "    def reshape(self, bottom, top):\n        top[0].reshape(1)\n")
    python = 'layer { name: "x" type: "Python" bottom: "a" top: "x" python_param { module: "evil_module" layer: "L" } }'
    with pytest.raises(ConfigError, match="python_param.module: the model file asks to run module 'evil_module'"):
        net(python, trusted=False)
    assert not os.path.exists("ran")
    monkeypatch.setattr(state, "allow_python_layers", True)
    net(python, trusted=False)
    assert os.path.exists("ran")
    monkeypatch.setattr(state, "allow_python_layers", None)
    net(python, trusted=False)  # it is imported now


# ---- solvers

SOLVER = 'base_lr: 0.1 lr_policy: "fixed" max_iter: 2\n'
TRAINED = """layer { name: "d" type: "DummyData" top: "x" top: "y" dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "b" inner_product_param { num_output: 3 } }
layer { name: "l" type: "EuclideanLoss" bottom: "b" bottom: "y" top: "l" }
"""


@pytest.fixture
def trained(place):
    for folder in ("tree", "outside"):
        (place / folder / "train.prototxt").write_text(TRAINED)
        caffe.Net(str(place / folder / "train.prototxt"), caffe.TRAIN).save(str(place / folder / "w.caffemodel"))

    def write(fields):
        (place / "tree" / "solver.prototxt").write_text(SOLVER + fields)
        return "solver.prototxt"
    write.place = place
    return write


def files(folder):
    return {path.name for path in folder.iterdir()}


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
    layer = 'layer { name: "o" type: "HDF5Output" bottom: "x" bottom: "y" hdf5_output_param { file_name: "out.h5" } }'
    inline = "net_param { " + TRAINED + layer + " }"
    (trained.place / "tree" / "writes.prototxt").write_text(TRAINED + layer)
    for fields in (inline, 'net: "writes.prototxt"', 'net: "train.prototxt" test_net: "writes.prototxt" test_iter: 1 test_interval: 1',
                   'net: "train.prototxt" test_iter: 1 test_interval: 1 ' + inline.replace("net_param", "test_net_param")):
        with pytest.raises(ConfigError, match="hdf5_output_param.file_name: the net is not trusted"):
            load_solver(trained(fields), trusted=False)
    assert not os.path.exists("out.h5")


def test_untrusted_solver_sets_no_snapshot_path(trained):
    given = trained('net: "train.prototxt"\nsnapshot_prefix: "theirs"')
    for solver in (load_solver, caffe.SGDSolver, caffe.get_solver):
        with pytest.raises(ConfigError, match=r"solver.prototxt:3: snapshot_prefix: the solver is not trusted, and asks to write .*own_fields"):
            solver(given, trusted=False)
    param, positions = upgrade.read_solver_file(given)
    with pytest.raises(ConfigError, match="snapshot_prefix: the solver is not trusted"):
        create_solver(param, trusted=False)  # without a file its origin is unknown
    param.snapshot_prefix = "mine"
    create_solver(param, file=given, positions=positions, trusted=False, own_fields=["snapshot_prefix"]).solve()
    before = files(trained.place / "tree")
    assert {"mine_iter_2.caffemodel", "mine_iter_2.solverstate"} <= before and not any(name.startswith("theirs") for name in before)
    load_solver(trained('net: "train.prototxt"'), trusted=False).solve()  # beside the file that the program named
    assert files(trained.place / "tree") - before == {"solver_iter_2.caffemodel", "solver_iter_2.solverstate"}


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
    reads = LAYERS["data_param.source"][0].format("../outside/lmdb").replace('"x"', '"far"', 2).replace('top: "x"', 'top: "far"')
    (trained.place / "tree" / "net.prototxt").write_text(TRAINED + reads + 'layer { name: "s" type: "Silence" bottom: "far" }')
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
    (trained.place / "tree" / "their_module.py").write_text("raise RuntimeError('ran')\n")
    net('layer { name: "x" type: "Silence" bottom: "a" bottom: "l" }')
    with open("net.prototxt", "a") as file:
        file.write('layer { name: "p" type: "Python" bottom: "a" top: "p" python_param { module: "their_module" layer: "L" } }')
    for options in ([], ["--untrusted"]):
        assert main(["time", "net.prototxt", "--iterations", "1", *options]) == 2
        assert "asks to run module 'their_module'" in capsys.readouterr().err
    assert main(["time", "net.prototxt", "--iterations", "1", "--untrusted", "--allow-python-layers"]) == 1
    assert "ran" in capsys.readouterr().err


def test_many_paths_are_checked_quickly(place):
    """A list of ImageNet's size has 1.3 million lines; per line a check may cost a few microseconds."""
    import time
    os.makedirs("many", exist_ok=True)
    paths = [f"many/{i}.png" for i in range(20000)]
    begin = time.perf_counter()
    with state.trusting(False):
        state.check_listed(paths, "list", "field")
    assert time.perf_counter() - begin < 5
    with state.trusting(False), pytest.raises(Error, match="outside"):
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
