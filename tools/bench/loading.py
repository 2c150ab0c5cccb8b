"""Getting models and pictures in: loading weights, building nets, NetSpec, and the Data layer on JPEGs.

    python tools/bench/loading.py [--rounds 9] [--pictures 512] [--json FILE]

Run in the checkout's top folder. Weights are CaffeNet's 244 MB, against reading the file; the Data layer takes 256 x 256 JPEGs
from an LMDB, crops to 227 x 227 at random, mirrors and subtracts a mean on one thread, against a plain loop over lmdb and
cv2.imdecode that does the same. Both sides take turns. Building GoogLeNet and writing ResNet-152 by NetSpec have aims, not peers.
"""

import argparse
import importlib.util
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

import lmdb
import numpy as np

import minicaffe as caffe
from minicaffe.data.db import new_database
from minicaffe.net.net import Net, read_net
from minicaffe.proto import caffe_pb2

MODELS = Path(__file__).resolve().parents[2] / "models"
BATCH, SIDE, CROP, MEAN = 32, 256, 227, (104, 117, 123)


def turns(functions, rounds, before=None, pick=statistics.median):
    """Milliseconds of each function of a dict, called once before, then in turns; `before` is called off the clock."""
    times = {name: [] for name in functions}
    for number in range(rounds + 1):
        for name, function in functions.items():
            if before is not None:
                before(name)
            start = time.perf_counter()
            function()
            if number:
                times[name].append((time.perf_counter() - start) * 1000)
    return {name: pick(values) for name, values in times.items()}


def weights(folder, rounds):
    """Milliseconds to load CaffeNet's weights into its net, and to read the file into memory."""
    net = caffe.Net(str(MODELS / "caffenet" / "deploy.prototxt"), caffe.TEST)
    file = folder / "caffenet.caffemodel"
    net.save(str(file))
    return turns({"minicaffe": lambda: net.copy_from(str(file)), "peer": file.read_bytes}, rounds)


def construction(rounds):
    """Least milliseconds to read GoogLeNet's prototxt, and to build its net with fillers and without."""
    path = str(MODELS / "googlenet" / "deploy.prototxt")
    param, positions = read_net(path, caffe_pb2.TEST)
    bare = caffe_pb2.NetParameter()
    bare.CopyFrom(param)
    for layer in bare.layer:
        for own in (layer.convolution_param, layer.inner_product_param):
            if own.HasField("weight_filler"):
                own.ClearField("weight_filler")
    return turns({"read": lambda: read_net(path, caffe_pb2.TEST), "build": lambda: Net(param, file=path, positions=positions),
                  "build, zeros for weights": lambda: Net(bare)}, rounds, pick=min)


def net_spec(rounds):
    """Least milliseconds to write ResNet-152's deploy net by NetSpec."""
    spec = importlib.util.spec_from_file_location("make_resnet", MODELS / "resnet50" / "make.py")
    make = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make)
    return turns({"minicaffe": lambda: make.deploy(152)}, rounds, pick=min)


def make_pictures(path, count):
    """Write an LMDB of `count` smooth random JPEGs, about as large as photographs of that size are."""
    import cv2
    random = np.random.default_rng(0)
    with new_database(path, "LMDB") as db:
        for i in range(count):
            coarse = random.integers(0, 256, (32, 32, 3), np.uint8)
            picture = cv2.resize(coarse, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
            content = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 90])[1].tobytes()
            db.put(b"%08d" % i, caffe_pb2.Datum(data=content, encoded=True, label=i % 1000).SerializeToString())
    return len(content)


class PlainLoop:
    """What one would write without Caffe: lmdb, Datum, cv2.imdecode, NumPy."""

    def __init__(self, path):
        import cv2
        self.cv2 = cv2
        self.environment = lmdb.open(str(path), readonly=True, lock=False)
        self.random = np.random.default_rng(0)
        self.data, self.label = np.empty((BATCH, 3, CROP, CROP), np.float32), np.empty(BATCH, np.float32)
        self.mean = np.array(MEAN, np.float32).reshape(3, 1, 1)
        self.records = iter(())

    def values(self):
        with self.environment.begin(buffers=True) as transaction:
            for _, value in transaction.cursor():
                yield value

    def __call__(self):
        for i in range(BATCH):
            value = next(self.records, None)
            if value is None:
                self.records = self.values()
                value = next(self.records)
            datum = caffe_pb2.Datum.FromString(bytes(value))
            picture = self.cv2.imdecode(np.frombuffer(datum.data, np.uint8), self.cv2.IMREAD_COLOR)
            y, x = self.random.integers(0, SIDE - CROP + 1, 2)
            picture = picture[y:y + CROP, x:x + CROP]
            if self.random.integers(2):
                picture = picture[:, ::-1]
            np.subtract(picture.transpose(2, 0, 1), self.mean, out=self.data[i])
            self.label[i] = datum.label


def pictures(folder, count, rounds):
    """Images per second of the Data layer, of the plain loop, and of decoding alone; bytes of a picture."""
    import cv2
    cv2.setNumThreads(1)
    caffe.set_num_threads(1)
    path = folder / "pictures_lmdb"
    size = make_pictures(path, count)
    n = caffe.NetSpec()
    n.data, n.label = caffe.layers.Data(
        ntop=2, data_param=dict(source=str(path), batch_size=BATCH, backend=caffe.params.Data.LMDB, prefetch=1),
        transform_param=dict(crop_size=CROP, mirror=True, mean_value=MEAN))
    net = caffe.Net(n.to_proto(), caffe.TRAIN)
    loop = PlainLoop(shutil.copytree(path, folder / "copy_lmdb"))  # LMDB opens a file once in a process
    contents = [np.frombuffer(caffe_pb2.Datum.FromString(bytes(value)).data, np.uint8) for value in loop.values()][:BATCH]
    batches = max(1, count // BATCH)

    def repeated(function):
        return lambda: [function() for _ in range(batches)]

    def use_up(name):
        """Take the batches that were made ready while the others had their turn."""
        for _ in range(3 if name == "minicaffe" else 0):
            net.forward()

    times = turns({"minicaffe": repeated(net.forward), "peer": repeated(loop),
                   "decoding alone": repeated(lambda: [cv2.imdecode(content, cv2.IMREAD_COLOR) for content in contents])},
                  rounds, use_up)
    return {name: batches * BATCH / milliseconds * 1000 for name, milliseconds in times.items()}, size


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pictures", type=int, default=512, help="records of the database")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    if options.pictures < BATCH:
        sys.exit(f"--pictures must be at least {BATCH}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates, size = pictures(folder, options.pictures, options.rounds)
        loaded = weights(folder, options.rounds)
    built, written = construction(options.rounds), net_spec(options.rounds)
    print(f"median of {options.rounds} turns, the least where there is no peer\n")
    print("| what | minicaffe | peer | ratio of time | aim |\n|---|---|---|---|---|")
    print(f"| load 244 MB of weights, against reading the file | {loaded['minicaffe']:.0f} ms | {loaded['peer']:.0f} ms "
          f"| {loaded['minicaffe'] / loaded['peer']:.2f}x | |")
    print(f"| Data layer, JPEGs of {size / 1000:.0f} KB, one thread, against lmdb + imdecode | {rates['minicaffe']:.0f}/s "
          f"| {rates['peer']:.0f}/s | {rates['peer'] / rates['minicaffe']:.2f}x | |")
    print(f"| decoding alone | | {rates['decoding alone']:.0f}/s | | |")
    print(f"| GoogLeNet: read | {built['read']:.1f} ms | | | |")
    print(f"| GoogLeNet: build and fill | {built['build']:.1f} ms | | | 60 ms |")
    print(f"| GoogLeNet: build with zeros | {built['build, zeros for weights']:.1f} ms | | | |")
    print(f"| NetSpec of ResNet-152 | {written['minicaffe']:.0f} ms | | | 1,000 ms |")
    if options.json:
        rows = {"weights_ms": loaded, "images_per_second": rates, "googlenet_ms": built, "resnet152_ms": written}
        Path(options.json).write_text(json.dumps({"options": vars(options), **rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
