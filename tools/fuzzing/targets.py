"""The kinds of cases: how one is made of a seed and random numbers, and what is done with it.

A run may end well or with a minicaffe.errors.Error; anything else that it raises is a fault of the project.
"""

import json
import os
import random
import shutil
import sys
import types
import zlib
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import minicaffe
from fuzzing import amplify, files, octets
from fuzzing.text import TextMutator, harmless
from minicaffe.addons.caffe2.tensor import Tensor
from minicaffe.blob import Blob, Dtype
from minicaffe.cli.upgrade import parse_binary
from minicaffe.data.datum import picture_of, read_datum
from minicaffe.data.image_list import ImageList
from minicaffe.data.mean_file import read_mean
from minicaffe.layer import layer_types
from minicaffe.proto import binary, caffe_pb2, upgrade
from minicaffe.proto.text import write_text
from minicaffe.solver import create_solver, load_solver

DATA_NET = """layer { name: "d" type: "Data" top: "data" top: "label" transform_param { %s }
  data_param { source: "%s" batch_size: 3 backend: LMDB prefetch: 1 } }"""
HDF5_NET = (files.NETS / "HDF5Data.prototxt").read_text()
SOLVERS = [files.SOLVER + 'net: "trained.prototxt"\nrandom_seed: 1\n'] + [
    f'type: "{kind}" {files.SOLVER.replace("momentum: 0.9", momentum)} test_iter: 2 test_interval: 1\n'
    f'net_param {{ {files.TRAINED} }}\n'
    'iter_size: 1 average_loss: 3 weight_decay: 0.01 regularization_type: "L1" clip_gradients: 5 weights: "model.caffemodel"'
    for kind, momentum in (("SGD", "momentum: 0.9"), ("Nesterov", "momentum: 0.9"), ("AdaGrad", ""), ("RMSProp", "rms_decay: 0.9"),
                           ("AdaDelta", "momentum: 0.9"), ("Adam", "momentum: 0.9 momentum2: 0.99"))]
SOLVERS += [f'solver_type: ADAM base_lr: 0.1 lr_policy: "{policy}" gamma: 0.5 power: 0.75 stepsize: 3 max_iter: 3 stepvalue: 1 '
            f'train_net_param {{ {files.TRAINED} }} test_net: "trained.prototxt" test_iter: 1 test_interval: 2 snapshot: 2 '
            'snapshot_prefix: "snap" snapshot_format: HDF5 debug_info: true display: 1'
            for policy in ("fixed", "exp", "inv", "multistep", "poly", "sigmoid")]


class Kind:
    """A kind of cases; `extension` is that of its files."""

    extension = "bin"
    share = 1.0  # of all cases, against the other kinds
    seeds = ()   # (name, bytes) of those that must work as they are

    def case(self, rng):
        """Return the bytes of a new case."""
        raise NotImplementedError

    def run(self, data):
        """Do with a case what a user would; the working directory is a `files.Folder`."""
        raise NotImplementedError


class Nets(Kind):
    """Prototxt of any age: the net is built, run forward and backward, saved and loaded."""

    extension, share = "prototxt", 10

    def __init__(self):
        seeds = {path.stem: path.read_text() for path in sorted(files.NETS.glob("*.prototxt"))}
        # HDF5Output refuses a second forward.
        self.seeds = [(name, text.encode()) for name, text in seeds.items() if name != "HDF5Output"]
        general = [_general_net(name, kind) for name, kind in layer_types().items() if name not in seeds]
        self.mutator = TextMutator([*seeds.values(), *general], caffe_pb2.NetParameter.DESCRIPTOR, [*layer_types(), "Nonsense"])

    def case(self, rng):
        return self.mutator.case(rng)

    def run(self, data):
        Path("case.prototxt").write_bytes(data)
        phase = minicaffe.TEST if zlib.crc32(data) % 4 == 0 else minicaffe.TRAIN
        run_net("case.prototxt", phase)


class Solvers(Kind):
    """Solver prototxt: two iterations with tests, a snapshot, and the way back."""

    extension, share = "prototxt", 2

    def __init__(self):
        self.seeds = [(f"solver {i}", text.encode()) for i, text in enumerate(SOLVERS)]
        self.mutator = TextMutator(SOLVERS, caffe_pb2.SolverParameter.DESCRIPTOR, [])

    def case(self, rng):
        return self.mutator.case(rng)

    def run(self, data):
        Path("case.prototxt").write_bytes(data)
        solver = load_solver("case.prototxt")
        solver.param.iter_size = min(solver.param.iter_size, 2)  # more of the same takes time only
        train(solver, 2)
        solver.restore(solver.snapshot()[1])


class Weights(Kind):
    """Caffemodels, binary or HDF5, for a net that is set up."""

    extension = "caffemodel"

    def __init__(self):
        self.net = None
        self.originals = None  # made in the worker's folder

    def case(self, rng):
        if self.originals is None:
            self.originals = [Path("model.caffemodel").read_bytes(), _old_weights(1), _old_weights(0)]
        return (octets.mutate_wire if rng.random() < 0.8 else octets.mutate)(rng.choice(self.originals), rng)

    def run(self, data):
        if self.net is None:
            self.net = minicaffe.Net("trained.prototxt", minicaffe.TRAIN)
            self.confined = minicaffe.Net("trained.prototxt", minicaffe.TRAIN, trusted=False)
        Path("case.caffemodel").write_bytes(data)
        attempt(lambda: self.net.copy_from("case.caffemodel"), self.net.forward, *self.further,
                lambda: self.confined.copy_from("case.caffemodel"))
        check_confined(self.confined.learnable_params)

    further = (lambda: write_text(upgrade.upgrade_net(parse_binary("case.caffemodel"))[0]),)


class HDF5Weights(Weights):
    extension = "h5"
    share = 0.5
    further = ()

    def case(self, rng):
        if self.originals is None:
            net = minicaffe.Net("trained.prototxt", minicaffe.TRAIN)
            tree = {"data": {name: {str(i): blob.cpu_data for i, blob in enumerate(blobs)} for name, blobs in net.params.items()}}
            self.originals = [tree, Path("model.h5").read_bytes()]
        return files.hdf5(files.odd_tree(self.originals[0], rng)) if rng.random() < 0.5 else octets.mutate(self.originals[1], rng)


class States(Kind):
    """Solver states, binary or HDF5, for a solver that is set up."""

    extension = "solverstate"

    def __init__(self):
        self.solver = None
        self.originals = {}

    def stateful(self, hdf5=False, trusted=True):
        Path("stateful.prototxt").write_text(files.TRAINED + files.STATEFUL)
        Path("stateful_solver.prototxt").write_text(
            f'net: "stateful.prototxt" {files.SOLVER} snapshot_format: {"HDF5" if hdf5 else "BINARYPROTO"}')
        param, _ = upgrade.read_solver_file("stateful_solver.prototxt")
        return create_solver(param, trusted=trusted, own_fields=["snapshot_prefix"])

    def original(self, hdf5):
        if hdf5 not in self.originals:
            solver = self.stateful(hdf5)
            solver.step(1)
            self.originals[hdf5] = Path(solver.snapshot()[1]).read_bytes()
        return self.originals[hdf5]

    def case(self, rng):
        data = self.original(False)
        if rng.random() < 0.3:
            return _with_resume_state(data, rng)
        return octets.mutate_wire(data, rng)

    def run(self, data):
        if self.solver is None:
            self.solver, self.confined = self.stateful(), self.stateful(trusted=False)
        Path("snap_iter_1.caffemodel").write_bytes(Path("model.caffemodel").read_bytes())
        Path("case.solverstate").write_bytes(data)
        attempt(lambda: self.confined.restore("case.solverstate"), lambda: self.solver.restore("case.solverstate"))
        check_confined([*self.confined.net.learnable_params, *self.confined.history])
        if self.solver.iter < 2**31 - 2:
            train(self.solver, 1)


class HDF5States(States):
    extension = "h5"
    share = 0.5

    def case(self, rng):
        if rng.random() < 0.5:
            return octets.mutate(self.original(True), rng)
        history = {str(i): blob.cpu_data for i, blob in enumerate(self.stateful().history)}
        tree = {"iter": np.array([1], np.int32), "current_step": np.array([0], np.int32), "learned_net": "snap_iter_1.caffemodel",
                "resume_state": rng.choice(RESUME_STATES), "history": history}
        return files.hdf5(files.odd_tree(tree, rng))


class Means(Kind):
    """Files of one BlobProto: means, and the matrix of InfogainLoss."""

    extension, share = "binaryproto", 0.7

    def case(self, rng):
        return octets.mutate_wire(files.mean_seed(rng.choice([(3, 5, 6), (1, 5, 5), (3, 5, 6)])), rng)

    def run(self, data):
        Path("case.binaryproto").write_bytes(data)
        Path("case.prototxt").write_text(DATA_NET % ('mean_file: "case.binaryproto"', "lmdb"))
        infogain = (files.NETS / "InfogainLoss.prototxt").read_text().replace("h.binaryproto", "case.binaryproto")
        Path("infogain.prototxt").write_text(infogain)
        attempt(lambda: read_mean("case.binaryproto"), lambda: binary.read_blob("case.binaryproto"),
                lambda: run_net("infogain.prototxt", minicaffe.TRAIN), lambda: run_net("case.prototxt", minicaffe.TRAIN))


class Slots(Kind):
    """Files of a workspace, for an empty one and for one that holds blobs."""

    extension, share = "slots", 0.7

    def __init__(self):
        self.original = None

    def case(self, rng):
        if self.original is None:
            workspace = self.workspace()
            workspace.blob("blob").diff[...] = 1
            workspace.set("plain", [None, True, -300, 0.5, "text", b"bytes", (1, [2.5])])
            workspace.set("arrays", [np.arange(6).reshape(2, 3), np.ones(3, ">f2"), np.array([True, False]), np.float32(1)])
            workspace.set("tensors", [Tensor((2,), np.int16), Tensor()])
            workspace.save("case.slots")
            self.original = Path("case.slots").read_bytes()
        return (octets.mutate_wire if rng.random() < 0.8 else octets.mutate)(self.original, rng)

    @staticmethod
    def workspace():
        workspace = minicaffe.Workspace()
        workspace.set("blob", Blob((2, 3)))
        workspace.set("double", Blob((), Dtype.DOUBLE))
        return workspace

    def run(self, data):
        Path("case.slots").write_bytes(data)
        held = self.workspace()
        blob = held.blob("blob")
        try:
            attempt(lambda: minicaffe.Workspace().load("case.slots"), lambda: held.load("case.slots"))
        except minicaffe.errors.Error:
            if held.local_names() != ["blob", "double"] or blob.data.any():
                raise AssertionError("a load that failed has changed the workspace") from None
            raise
        if held.has("blob") and held.blob("blob") is not blob:
            raise AssertionError("a load has replaced a blob")


class Datums(Kind):
    """Records of an LMDB: raw, encoded, or nothing of the kind."""

    extension, share = "datum", 1.5

    def case(self, rng):
        if rng.random() < 0.05:
            size = rng.choice([(1 << 16, 1 << 16), (60000, 2), (1, (1 << 31) - 1), (30000, 30000), (0, 0)])
            return caffe_pb2.Datum(encoded=True, data=files.bomb_png(*size)).SerializeToString()
        seed = files.datum_seed(rng.random() < 0.5, rng.random() < 0.5, rng.choice((".png", ".jpg", ".bmp", ".tiff", ".webp")))
        return octets.mutate_wire(seed, rng)

    def run(self, data):
        shutil.rmtree("case_lmdb", ignore_errors=True)
        os.mkdir("case_lmdb")
        good = files.datum_seed(False)
        files.write_lmdb("case_lmdb", [data, good] if zlib.crc32(data) % 2 else [good, data])
        rule = "crop_size: 3 mirror: true" if zlib.crc32(data) % 3 else "mean_value: 1"
        Path("case.prototxt").write_text(DATA_NET % (rule, "case_lmdb"))
        attempt(lambda: read_datum(data), lambda: picture_of(read_datum(data)), lambda: run_net("case.prototxt", minicaffe.TRAIN))


class HDF5Files(Kind):
    """Files of the layer HDF5Data."""

    extension = "h5"
    share = 0.7

    def __init__(self):
        self.tree = {"data": np.random.default_rng(1).random((4, 2, 3)).astype(np.float32), "label": np.arange(4.0)}

    def case(self, rng):
        return files.hdf5(files.odd_tree(self.tree, rng)) if rng.random() < 0.4 else octets.mutate(files.hdf5(self.tree), rng)

    def run(self, data):
        Path("case.h5").write_bytes(data)
        Path("case.txt").write_text("data.h5\ncase.h5\n" if zlib.crc32(data) % 2 else "case.h5\n")
        Path("case.prototxt").write_text(HDF5_NET.replace("h5.txt", "case.txt").replace("true", "false"))
        attempt(lambda: run_net("case.prototxt", minicaffe.TRAIN), self.confined)

    @staticmethod
    def confined():
        net = minicaffe.Net("case.prototxt", minicaffe.TRAIN, trusted=False)
        for _ in range(4):
            net.forward()
            check_confined(net.tops[0])


class Lists(Kind):
    """Text files that layers read: lists of pictures and of HDF5 files, windows of pictures."""

    extension, share = "txt", 0.7

    def case(self, rng):
        lines = Path(rng.choice(("list.txt", "h5.txt", "windows.txt"))).read_bytes().split(b"\n")
        for _ in range(rng.choice((1, 1, 2))):
            at = rng.randrange(len(lines))
            kind = rng.randrange(5)
            if kind == 0:
                lines.insert(at, lines[rng.randrange(len(lines))])
            elif kind == 1:
                del lines[at]
            elif kind == 2:
                number = rng.choice((0, -1, 1, 2, 2**31, 2**32 + 1, 10**30, "nan", "inf", 1e9, "1e400", "\x000", "9" * 5000))
                words = lines[at].split(b" ")
                words[rng.randrange(len(words))] = str(number).encode()
                lines[at] = b" ".join(words)
            else:
                lines[at] = octets.mutate(lines[at], rng)
            lines = lines or [b""]
        return harmless(b"\n".join(lines)).replace(b"..", b".").replace(b"\n/", b"\n")

    def run(self, data):
        Path("case.txt").write_bytes(data)
        steps = []
        for name, source in (("ImageData", "list.txt"), ("WindowData", "windows.txt"), ("HDF5Data", "h5.txt")):
            Path(f"{name}.prototxt").write_text((files.NETS / f"{name}.prototxt").read_text().replace(source, "case.txt"))
            steps.append(lambda name=name: run_net(f"{name}.prototxt", minicaffe.TRAIN))
        attempt(*steps)


class Amplified(Kind):
    """Files that describe far more than they hold; nets of few layers are built."""

    extension, share = "json", 0.05
    seeds = [(f"amplified {name}", json.dumps({"file": name, "path": [field], "repeated": 0, "count": 10, "end": "\n"}).encode())
             for name, field in (("net.prototxt", "input_dim"), ("solver.prototxt", "test_net"), ("list.txt", ""))]

    def case(self, rng):
        return amplify.description(rng)

    def run(self, data):
        name, content = amplify.expand(data)
        path = f"amplified_{name}"  # beside the files of the folder
        Path(path).write_bytes(content)
        readers = {"net.prototxt": [upgrade.read_net_file, upgrade.load],
                   "solver.prototxt": [upgrade.read_solver_file, upgrade.load],
                   "case.caffemodel": [upgrade.read_weights, parse_binary], "case.solverstate": [binary.read_solver_state],
                   "case.binaryproto": [binary.read_blob, read_mean], "list.txt": [ImageList]}[name]
        if name == "net.prototxt" and content.count(b"layer") < 5000:
            readers.append(lambda path: minicaffe.Net(path, minicaffe.TEST))
        try:
            attempt(*(lambda read=read: read(path) for read in readers))
        finally:
            os.remove(path)


class Videos(Kind):
    """The file of the layer VideoData: a playlist of others under any name, the name of a numbered sequence, or a film."""

    extension, share = "video", 0.3
    names = (b"images/%d.png", b"images/%01d.png", b"images/%s%s%n", b"images/0.png", b"%d", b"concat:film.avi|film.avi", b"images",
             b"list.txt", b"mean.binaryproto", b"file:film.avi")
    lists = (b"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:5\n#EXTINF:1.0,\nfilm.avi\n#EXT-X-ENDLIST\n",
             b"#EXTM3U\n#EXT-X-STREAM-INF:BANDWIDTH=1\ncase.video\n", b"#EXTM3U\nfilm.avi\nimages/0.png\n",
             b"ffconcat version 1.0\nfile film.avi\nduration 1\nfile film.avi\n", b"ffconcat version 1.0\nfile 'images/0.png'\n",
             b"ffconcat version 1.0\nfile case.video\n")

    def case(self, rng):
        kind = rng.randrange(4)
        if kind == 0:
            return rng.choice(self.names)
        if kind == 1:
            return octets.mutate(Path("film.avi").read_bytes(), rng)
        playlist = rng.choice(self.lists)
        return harmless(octets.mutate(playlist, rng) if kind == 2 else playlist)

    def run(self, data):
        Path("case.video").write_bytes(data)
        path = data.decode() if data in self.names else "case.video"
        Path("case.prototxt").write_text(f"""layer {{ name: "v" type: "VideoData" top: "data"
          data_param {{ batch_size: 2 prefetch: 1 }} video_data_param {{ video_type: VIDEO video_file: "{path}" }} }}""")
        try:
            minicaffe.Net("case.prototxt", minicaffe.TRAIN, trusted=False)
        except minicaffe.errors.ConfigError:
            pass
        else:
            raise AssertionError("a net that is not trusted has opened a video")
        run_net("case.prototxt", minicaffe.TRAIN)


class OnnxModels(Kind):
    """Models of ONNX that become nets."""

    extension, share = "onnx", 0.5

    def __init__(self):
        from onnx import helper, numpy_helper, shape_inference

        import minicaffe.addons.export.onnx  # noqa: F401 (needs the package onnx)
        random_state = np.random.default_rng(1)

        def weight(*shape):
            return random_state.normal(0, 1, shape).astype(np.float32)

        def model(shape, *nodes):
            made, tensors = [], []
            for i, (kind, constants, attributes) in enumerate(nodes):
                names = [f"x{i}", *(value if isinstance(value, str) else f"w{i}{j}" for j, value in enumerate(constants))]
                tensors += [numpy_helper.from_array(np.asarray(value), name) for name, value in zip(names[1:], constants)
                            if not isinstance(value, str)]
                made.append(helper.make_node(kind, names, [f"x{i + 1}"], name=f"n{i}", **attributes))
            graph = helper.make_graph(made, "g", [helper.make_tensor_value_info("x0", 1, shape)],
                                      [helper.make_tensor_value_info(f"x{len(nodes)}", 1, None)], tensors)
            made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
            return shape_inference.infer_shapes(made).SerializeToString()

        whole = np.array([0, -1], np.int64)
        self.originals = [
            model((2, 3, 6, 5), ("Conv", [weight(4, 3, 3, 3), weight(4)], {"pads": [1, 1, 0, 1], "strides": [2, 1]}),
                  ("Relu", [], {}),
                  ("MaxPool", [], {"kernel_shape": [2, 2], "ceil_mode": 1}), ("Flatten", [], {}), ("Gemm", [weight(32, 3)], {})),
            model((2, 4, 4, 4), ("BatchNormalization", [np.abs(weight(4)) for _ in range(4)], {}), ("Reshape", [whole], {}),
                  ("MatMul", [weight(64, 2)], {}), ("Softmax", [], {})),
            model((3, 2, 4), ("LSTM", [weight(1, 20, 4), weight(1, 20, 5)], {"hidden_size": 5}), ("Squeeze", [whole[:1] + 1], {}),
                  ("Slice", [whole[:1], whole[:1] + 2], {})),
            model((2, 3, 4, 4), ("Resize", [weight(0), np.array([1, 1, 2, 2], np.float32)], {"mode": "linear"}),
                  ("ConvTranspose", [weight(3, 2, 2, 2)], {"strides": [2, 2]}), ("ReduceMean", [], {"axes": [2, 3]})),
            model((1, 4, 4, 6), ("Pad", [np.array([0, 0, 1, 2, 0, 0, 0, 3], np.int64)], {}),
                  ("MaxPool", [], {"kernel_shape": [2, 3]}),
                  ("Slice", [whole[:1] + 1, whole[:1] + 3, whole[:1] + 2], {}), ("Elu", [], {"alpha": 0.5})),
            model((1, 8, 2, 2), ("DepthToSpace", [], {"blocksize": 2}), ("Clip", [], {}),
                  ("Add", [weight(2, 1, 1, 1)], {}), ("Resize", ["", np.array([1, 1, 3.5, 2], np.float32)], {"mode": "nearest"}))]
        self.seeds = [(f"onnx {i}", data) for i, data in enumerate(self.originals)]

    def case(self, rng):
        return (octets.mutate_wire if rng.random() < 0.8 else octets.mutate)(rng.choice(self.originals), rng)

    def run(self, data):
        Path("case.onnx").write_bytes(data)
        minicaffe.addons.export.onnx.load("case.onnx")


def kinds():
    """Return an instance of each kind by name."""
    module = types.ModuleType("fuzz_python_layer")
    module.Twice, module.Broken = files.Twice, files.Broken
    sys.modules[module.__name__] = module
    onnx = {"onnx": OnnxModels()} if find_spec("onnx") and find_spec("onnxruntime") else {}
    return {"net": Nets(), "solver": Solvers(), "weights": Weights(), "hdf5weights": HDF5Weights(), "state": States(),
            "hdf5state": HDF5States(), "mean": Means(), "slots": Slots(), "datum": Datums(), "hdf5data": HDF5Files(),
            "list": Lists(), "video": Videos(), "amplified": Amplified(), **onnx}


def make(all_kinds, chosen, seed, number):
    """Return kind and bytes of case `number`: a function of the seed and the number."""
    rng = random.Random(f"{seed} {number}")
    name = rng.choices(chosen, [all_kinds[name].share for name in chosen])[0]
    return name, all_kinds[name].case(rng)


# ---- what is done with nets and solvers


def run_net(path, phase):
    """Build a net; two passes forward and backward, saving and loading."""
    net = minicaffe.Net(path, phase)
    for layer in net.layers:
        if layer.type == "MemoryData":
            shape = (layer.batch_size, *layer.item_shape)
            layer.reset(np.zeros(shape, np.float32), np.zeros(shape[0], np.float32))
    last = len(net.layers) - 1
    for _ in range(2):
        net.forward_from_to(0, last)
        net.backward_from_to(last, 0)
    net.update()
    net.reshape()
    net.save("saved.caffemodel", True)
    net.copy_from("saved.caffemodel")
    net.save_hdf5("saved.h5", True)
    net.copy_from("saved.h5")


def train(solver, iterations):
    """Let a solver do a few iterations, with at most twenty batches of tests."""
    batches = []

    def action():
        batches.append(1)
        return "stop" if len(batches) > 20 else "none"

    solver.action = action
    solver.step(iterations)


def attempt(*steps):
    """Take all steps, and raise the first error of minicaffe that one of them met."""
    first = None
    for step in steps:
        try:
            step()
        except minicaffe.errors.Error as error:
            first = first or error
    if first is not None:
        raise first


def check_confined(blobs):
    """Raise AssertionError if a number of the file outside the folder came into a net or solver that is not trusted."""
    if any((blob.cpu_data == files.SECRET[0]).any() for blob in blobs):
        raise AssertionError("a file outside the folder was read")


# ---- seeds that take some making


def _general_net(name, kind):
    """Return a net for a layer type without a seed of its own: as many blobs as the class says it takes."""
    def number(*attributes):
        values = [getattr(kind, attribute) for attribute in attributes]
        return max([value for value in values if isinstance(value, int)], default=1)

    bottoms = range(max(0, number("exact_num_bottom_blobs", "min_bottom_blobs")))
    tops = range(max(0, number("exact_num_top_blobs", "min_top_blobs")))
    data = "".join(f' top: "x{i}"' for i in bottoms)
    source = f'layer {{ name: "data" type: "DummyData"{data} dummy_data_param {{ shape {{ dim: 2 dim: 4 dim: 6 dim: 5 }} }} }}\n'
    layer = "".join([f' bottom: "x{i}"' for i in bottoms] + [f' top: "y{i}"' for i in tops])
    return (source if bottoms else "") + f'layer {{ name: "layer" type: "{name}"{layer} }}\n'


def _old_weights(version):
    """Return a caffemodel of V1 or V0 with weights for the layer ``ip``."""
    net = caffe_pb2.NetParameter(name="old")
    entry = net.layers.add()
    layer = entry if version == 1 else entry.layer
    layer.name = "ip"
    if version == 1:
        layer.type = caffe_pb2.V1LayerParameter.INNER_PRODUCT
    else:
        layer.type = "innerproduct"
    for shape in ((1, 1, 3, 40), (1, 1, 1, 3)):
        blob = layer.blobs.add(num=shape[0], channels=shape[1], height=shape[2], width=shape[3])
        blob.data.extend([0.5] * (shape[2] * shape[3]))
    return net.SerializeToString()


RESUME_STATES = (
    "", "{", "null", "[]", "7", "[" * 100_000, '{"generator": {}}',
    '{"generator": {"seed": 1, "offset": 2}, "train": {}, "test": []}',
    '{"generator": {"seed": -1, "offset": 2}, "train": {}, "test": []}', '{"generator": 5, "train": {}, "test": 4}',
    *(f'{{"generator": {{"seed": 1, "offset": 2}}, "train": {{"{layer}": {state}}}, "test": []}}'
      for layer in ("source", "h5", "rnn", "ip", "missing") for state in (
            "null", "5", "[]", "{}", '"x"', '{"seed": 1, "position": -5}', '{"seed": "a", "position": 1}',
            '{"seed": 1, "position": 99999999999999999999999}', '{"seed": 1.5, "position": 1e400}', '{"seed": 1, "position": NaN}',
            '{"seed": 1, "epoch": -1, "place": -3, "row": 77, "offset": -9}',
            '{"seed": 1, "epoch": 0, "place": 9, "row": 0, "offset": 0}',
            '{"seed": -1, "epoch": [], "place": 0.5, "row": true, "offset": null}',
            '{"seed": 1, "epoch": 0, "place": 0, "row": -2, "offset": 1}',
            '{"h": 5}', '{"h": {"shape": 5, "data": ""}}', '{"h": {"shape": [1, 2, 2], "data": "????"}}',
            '{"h": {"shape": [[]], "data": "AAAA"}}', '{"h": {"shape": [1, 2, 2], "data": "AAAAAAAAAAAAAAAAAAAAAA=="}}')))


def _with_resume_state(data, rng):
    state = caffe_pb2.SolverState.FromString(data)
    state.resume_state = rng.choice(RESUME_STATES)
    return state.SerializeToString()
