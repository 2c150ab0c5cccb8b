"""Sources of data with random files and parameters: each batch over several epochs is what a list of the records gives.

``--examples 5000`` tries so many, from a random seed on; a failure names its seed, and ``--program SEED`` runs that one.
"""

import random

import numpy as np
import pytest

cv2 = pytest.importorskip("cv2", reason="sources of pictures need OpenCV: pip install -r tests/requirements.txt")
h5py = pytest.importorskip("h5py", reason="HDF5Data needs h5py: pip install -r tests/requirements.txt")

from models_of_sources import write_db  # noqa: E402

import minicaffe  # noqa: E402
from minicaffe.common import caffe  # noqa: E402
from minicaffe.data.transform import draw  # noqa: E402
from minicaffe.layers.data.sources import RankSharding  # noqa: E402
from minicaffe.net.net import Net  # noqa: E402
from minicaffe.proto import caffe_pb2  # noqa: E402
from minicaffe.proto.text import parse_text  # noqa: E402

NO_RECORD = 2**64 - 1


class Source:
    """A random source: `text` is its layer; a type defines `prepare`, `record` or `batch`, and `state`."""

    tops = 2

    def __init__(self, dice, folder):
        self.dice, self.folder = dice, folder
        self.random = np.random.default_rng(dice.randrange(1 << 30))
        self.count, self.batch_size, self.depth = dice.randint(1, 9), dice.choice([1, 2, 3, 5, 8]), dice.choice([1, 2, 4, 7])
        self.prepare()

    def first(self, seed):
        return 0

    def state(self, seed, position):
        return {"seed": seed, "position": position}

    def batch(self, seed, numbers, phase, start, together):
        data, labels = zip(*(self.record(seed, number, phase) for number in numbers))
        return [np.stack(data), np.stack(labels)][:self.tops]

    # ---- pictures

    def draw_pictures(self):
        """Random pictures of one size, or with a crop of several."""
        dice = self.dice
        self.crop = dice.choice([None, None, (4, 4), (3, 5), (1, 1), (6, 6)])
        self.one_size = self.crop is None or dice.random() < 0.5
        sizes = [(6, 6), (7, 6), (6, 9), (8, 8)]
        common = dice.choice(sizes)
        self.pictures = [self.random.integers(0, 256, (*(common if self.one_size else dice.choice(sizes)), 3), np.uint8) for _ in range(self.count)]
        self.size = common

    def transform_text(self, channels):
        dice = self.dice
        self.mirror, self.scale, self.mean = dice.random() < 0.5, dice.choice([1, 0.5, 0.00390625]), np.zeros((1, 1, 1))
        words = ["mirror: true"] * self.mirror + [f"scale: {self.scale}"] * (self.scale != 1)
        if self.crop is not None:
            h, w = self.crop
            words.append(f"crop_size: {h}" if h == w and dice.random() < 0.6 else f"crop_h: {h} crop_w: {w}")
        kind = dice.choice(["none", "one", "each", "file"] if self.one_size else ["none", "one", "each"])
        if kind == "one":
            self.mean = np.full((1, 1, 1), 100.5)
            words.append("mean_value: 100.5")
        elif kind == "each":
            self.mean = np.arange(channels).reshape(-1, 1, 1) * 20.0 + 3
            words += [f"mean_value: {value}" for value in self.mean.ravel()]
        elif kind == "file":
            shape = (channels, *self.size)
            self.mean = self.random.uniform(0, 200, shape).astype(np.float32)
            blob = caffe_pb2.BlobProto(num=1, channels=shape[0], height=shape[1], width=shape[2], data=self.mean.ravel().tolist())
            (self.folder / "mean.binaryproto").write_bytes(blob.SerializeToString())
            words.append(f'mean_file: "{self.folder}/mean.binaryproto"')
        return f"transform_param {{ {' '.join(words)} {self.more} }}"

    more = ""

    def transformed(self, picture, seed, number, phase):
        """Return what a net gets of a picture (H, W, C)."""
        pixels = picture.transpose(2, 0, 1).astype(np.float64)
        height, width = pixels.shape[1:]
        h, w = self.crop or (height, width)
        top, left = (height - h) // 2, (width - w) // 2
        if phase == minicaffe.TRAIN and self.crop:
            top, left = draw(seed, number, 1, height - h + 1), draw(seed, number, 2, width - w + 1)
        mean = np.broadcast_to(self.mean, pixels.shape)
        part = ((pixels - mean) * self.scale)[:, top:top + h, left:left + w]
        return part[:, :, ::-1] if self.mirror and draw(seed, number, 0, 2) else part


def gray(picture):
    """As the decoder makes it; cvtColor rounds otherwise."""
    return cv2.imdecode(np.frombuffer(encoded(picture), np.uint8), cv2.IMREAD_GRAYSCALE)[..., None]


def encoded(picture):
    return cv2.imencode(".png", picture)[1].tobytes()


class Database(Source):
    def prepare(self):
        dice = self.dice
        self.draw_pictures()
        kind = dice.choice(["raw", "raw", "float", "encoded", "forced color", "forced gray", "raw gray"])
        self.labels = self.random.integers(-3, 1000, self.count)
        self.seen, records = [], []
        for i, picture in enumerate(self.pictures):
            record = caffe_pb2.Datum(label=int(self.labels[i]))
            plain = gray(picture) if kind == "raw gray" or kind.startswith("forced") and i % 2 else picture
            if kind in ("encoded", "forced color", "forced gray"):
                record.encoded, record.data = True, encoded(plain)
            else:
                record.height, record.width, record.channels = plain.shape
                if kind == "float":
                    plain = plain / np.float32(7)
                    record.float_data.extend(plain.transpose(2, 0, 1).ravel().tolist())
                else:
                    record.data = plain.transpose(2, 0, 1).tobytes()
            records.append(record)
            if kind == "forced color" and plain.shape[2] == 1:
                plain = np.repeat(plain, 3, 2)
            self.seen.append(gray(plain) if kind == "forced gray" and plain.shape[2] == 3 else plain)
        self.more = {"forced color": "force_color: true", "forced gray": "force_gray: true"}.get(kind, "")
        self.tops = dice.choice([1, 2, 2])
        write_db(self.folder / "db", "LMDB", records)
        self.text = (f'type: "Data" data_param {{ source: "{self.folder}/db" backend: LMDB batch_size: {self.batch_size} prefetch: {self.depth} '
                     f"rand_skip: {dice.choice([0, 3])} }} {self.transform_text(self.seen[0].shape[2])}")

    def record(self, seed, number, phase):
        i = number % self.count
        return self.transformed(self.seen[i], seed, number, phase), self.labels[i]


class Pictures(Source):
    def prepare(self):
        dice = self.dice
        self.draw_pictures()
        self.skip, self.shuffle, color, self.width = dice.choice([0, 0, 1, 5, 40]), dice.random() < 0.6, dice.random() < 0.7, dice.choice([None, None, 1, 3])
        resize = dice.choice([None, None, (7, 6)])
        if resize:
            self.size, self.one_size = resize, True
        self.seen, lines = [], []
        self.labels = self.random.integers(-5, 99, self.count) if self.width is None else self.random.integers(-50, 50, (self.count, self.width)) / 4
        root = dice.random() < 0.4
        for i, picture in enumerate(self.pictures):
            stored = gray(picture) if dice.random() < 0.3 else picture
            cv2.imwrite(str(self.folder / f"{i}.png"), stored)
            shown = (np.repeat(stored, 3, 2) if stored.shape[2] == 1 else stored) if color else gray(stored) if stored.shape[2] == 3 else stored
            if resize:
                shown = cv2.resize(shown, resize[::-1]).reshape(*resize, -1)
            self.seen.append(shown)
            lines.append(f"{'' if root else f'{self.folder}/'}{i}.png " + " ".join(map(str, np.atleast_1d(self.labels[i]))) + "\n")
        (self.folder / "list.txt").write_text("".join(lines))
        words = [f'root_folder: "{self.folder}/"'] * root + [f"label_size: {self.width}"] * (self.width is not None)
        words += [f"new_height: {resize[0]} new_width: {resize[1]}"] if resize else []
        self.text = (f'type: "ImageData" image_data_param {{ source: "{self.folder}/list.txt" batch_size: {self.batch_size} rand_skip: {self.skip} '
                     f"shuffle: {str(self.shuffle).lower()} is_color: {str(color).lower()} {' '.join(words)} }} data_param {{ prefetch: {self.depth} }} "
                     + self.transform_text(3 if color else 1))

    def first(self, seed):
        return draw(seed, NO_RECORD, 0, self.skip) if self.skip else 0

    def record(self, seed, number, phase):
        epoch, i = divmod(number, self.count)
        if self.shuffle:
            i = np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, epoch], np.uint64))).permutation(self.count)[i]
        return self.transformed(self.seen[i], seed, number, phase), self.labels[i]


class Windows(Source):
    """Windows have the size of the crop, so that they are not resized."""

    def prepare(self):
        dice, side = self.dice, self.dice.choice([3, 5])
        self.crop, self.one_size = (side, side), False
        self.pictures = [self.random.integers(0, 256, (dice.randint(side, 9), dice.randint(side, 9), 3), np.uint8) for _ in range(self.count)]
        low, high, self.fraction = dice.choice([0.3, 0.5]), dice.choice([0.5, 0.7]), dice.choice([0, 0.25, 0.34, 0.5, 1])
        self.objects, self.background, lines = [], [], []
        for i, picture in enumerate(self.pictures):
            cv2.imwrite(str(self.folder / f"{i}.png"), picture)
            height, width = picture.shape[:2]
            windows = []
            for k in range(dice.randint(0, 4) if i else 8):
                overlap = [0, 1][k] if k < 2 and not i else dice.choice([0, 0.1, 0.3, 0.5, 0.6, 0.7, 1])
                kind, left, top = dice.randint(1, 9), dice.randint(0, width - side), dice.randint(0, height - side)
                windows.append(f"{kind} {overlap} {left} {top} {left + side - 1} {top + side - 1}\n")
                if np.float32(overlap) >= np.float32(high):
                    self.objects.append((i, kind, left, top))
                elif np.float32(overlap) < np.float32(low):
                    self.background.append((i, 0, left, top))
            lines.append(f"# {i}\n{self.folder}/{i}.png\n3\n{height}\n{width}\n{len(windows)}\n{''.join(windows)}")
        (self.folder / "windows.txt").write_text("".join(lines))
        self.mirror, self.scale, mean = dice.random() < 0.5, dice.choice([1, 0.25]), dice.choice([[], [30.5], [1, 2, 3]])
        self.mean = np.array(mean or [0.0]).reshape(-1, 1, 1)
        self.text = (f'type: "WindowData" window_data_param {{ source: "{self.folder}/windows.txt" batch_size: {self.batch_size} fg_fraction: {self.fraction} '
                     f"fg_threshold: {high} bg_threshold: {low} scale: {self.scale} cache_images: {str(dice.random() < 0.5).lower()} }} transform_param {{ "
                     f"crop_size: {side} mirror: {str(self.mirror).lower()} {' '.join(f'mean_value: {m}' for m in mean)} }} data_param {{ prefetch: {self.depth} }}")

    def batch(self, seed, numbers, phase, start, together):
        data, labels = [], []
        for number in numbers:
            behind = (number - start) % together < together - int(np.float32(together) * np.float32(self.fraction))
            table = self.background if behind else self.objects
            i, label, left, top = table[draw(seed, number, 1, len(table))]
            part = (self.pictures[i][top:top + self.crop[0], left:left + self.crop[0]].transpose(2, 0, 1) - self.mean) * self.scale
            data.append(part[:, :, ::-1] if self.mirror and draw(seed, number, 0, 2) else part)
            labels.append(label)
        return [np.stack(data), np.array(labels)]


class Boxes(Source):
    def prepare(self):
        dice = self.dice
        self.draw_pictures()
        self.crop, self.one_size = None, True
        self.pictures = [cv2.resize(picture, self.size[::-1]) for picture in self.pictures]
        self.boxes, records = [], []
        for picture in self.pictures:
            record = caffe_pb2.AnnotatedDatum(type=caffe_pb2.AnnotatedDatum.BBOX)
            record.datum.CopyFrom(caffe_pb2.Datum(encoded=True, data=encoded(picture)))
            found = []
            for _ in range(dice.randint(0, 2)):
                group = record.annotation_group.add(group_label=dice.randint(1, 9))
                for k in range(dice.randint(0, 2)):
                    (left, right), (top, bottom) = np.sort(self.random.uniform(0, 1, (2, 2)).astype(np.float32), 1)
                    hard = dice.random() < 0.3
                    group.annotation.add(instance_id=k, bbox=dict(xmin=left, ymin=top, xmax=right, ymax=bottom, difficult=hard))
                    found.append((group.group_label, k, left, top, right, bottom, hard))
            self.boxes.append(found)
            records.append(record)
        write_db(self.folder / "db", "LMDB", records)
        self.text = (f'type: "AnnotatedData" data_param {{ source: "{self.folder}/db" backend: LMDB batch_size: {self.batch_size} prefetch: {self.depth} }} '
                     f"annotated_data_param {{ }} {self.transform_text(3)}")

    def batch(self, seed, numbers, phase, start, together):
        data, rows = [], []
        for place, number in enumerate(numbers):
            i = number % self.count
            flip = self.mirror and draw(seed, number, 0, 2)
            data.append(self.transformed(self.pictures[i], seed, number, phase))
            for label, k, left, top, right, bottom, hard in self.boxes[i]:
                rows.append((place, label, k, *((1 - right, top, 1 - left, bottom) if flip else (left, top, right, bottom)), hard))
        return [np.stack(data), np.array(rows or [[-1] * 8], float)[None, None]]


class Tables(Source):
    def prepare(self):
        dice = self.dice
        self.lengths, self.shuffle = [dice.randint(1, 5) for _ in range(dice.randint(1, 4))], dice.random() < 0.6
        self.count = sum(self.lengths)
        self.rows = [self.random.uniform(-1, 1, (n, 2, 3)).astype(np.float32) for n in self.lengths]
        for i, rows in enumerate(self.rows):
            with h5py.File(self.folder / f"{i}.h5", "w") as file:
                file["data"], file["label"] = rows, rows[:, 0, 0]
        (self.folder / "files.txt").write_text(dice.choice([" ", "\n", "\n\n"]).join(f"{self.folder}/{i}.h5" for i in range(len(self.rows))))
        self.tops = dice.choice([1, 2])
        self.text = f'type: "HDF5Data" hdf5_data_param {{ source: "{self.folder}/files.txt" batch_size: {self.batch_size} shuffle: {str(self.shuffle).lower()} }}'

    def place(self, seed, number):
        """Return the epoch, the place of the file in it, and the number of its rows that are before."""
        epoch, row = divmod(number, self.count)
        order = np.random.default_rng([seed, epoch]).permutation(len(self.rows)) if self.shuffle else np.arange(len(self.rows))
        for place, i in enumerate(order):
            if row < self.lengths[i]:
                return epoch, place, row, i
            row -= self.lengths[i]
        raise AssertionError(number)

    def record(self, seed, number, phase):
        epoch, place, row, i = self.place(seed, number)
        if self.shuffle:
            row = np.random.default_rng([seed, epoch, place + 1]).permutation(self.lengths[i])[row]
        return self.rows[i][row], self.rows[i][row, 0, 0]


class Machine:
    """A source through random steps, and where it must be: `seed`, `position`, and `turns` and `end` of a test that is shared."""

    def __init__(self, kind, seed, folder, gpu):
        self.dice = random.Random(seed)
        self.source, self.gpu = kind(self.dice, folder), gpu
        self.phase = self.dice.choice([minicaffe.TRAIN, minicaffe.TEST])
        self.turns = self.end = None
        self.net = self.build()
        self.layer = self.net.layers[0]
        self.seed, self.position = self.layer.seed, self.source.first(self.layer.seed)
        assert self.layer.position == self.position

    def build(self):
        tops = 'top: "data" ' + 'top: "label"' * (self.source.tops > 1)
        param = parse_text(f'layer {{ name: "in" {tops} {self.source.text} }}', caffe_pb2.NetParameter)[0]
        param.state.phase = self.phase
        return Net(param)

    def forward(self, count):
        for _ in range(count):
            size, position = self.source.batch_size, self.position
            if self.turns is None and self.phase == minicaffe.TRAIN:
                together = step = size * caffe.solver_count
                numbers = [n for n in range(position, position + step) if n % caffe.solver_count == caffe.solver_rank]
            else:
                ranks, rank = self.turns or (1, 0)
                step, first = size * ranks, position + rank * size
                numbers = list(range(first, min(first + size, self.end if self.end is not None else first + size)))
                together = len(numbers)
            if not numbers:
                return
            self.net.forward_from_to(0, 0)
            for blob, wanted in zip(self.net.tops[0], self.source.batch(self.seed, numbers, self.phase, position, together), strict=True):
                assert blob.shape == wanted.shape, (blob.name, blob.shape, wanted.shape)
                np.testing.assert_allclose(blob.cpu_data, wanted, rtol=1e-5, atol=1e-4, err_msg=f"{blob.name} at {position}")
            self.position += step
            assert self.layer.position == self.position

    # ---- steps

    def seek(self):
        self.seed = self.dice.choice([self.seed, 3, (1 << 40) + 1])
        self.position = self.dice.choice([self.position, self.dice.randrange(4 * self.source.count + 1)])
        self.layer.set_state(self.source.state(self.seed, self.position))

    def resume(self):
        """In a new net."""
        state = self.layer.get_state()
        minicaffe.set_random_seed(self.dice.randrange(100))
        self.net = self.build()
        self.layer = self.net.layers[0]
        self.layer.set_state(state)

    def ranks(self):
        caffe.solver_count = self.dice.randint(1, 4)
        caffe.solver_rank = self.dice.randrange(caffe.solver_count)

    def share_a_test(self):
        ranks = self.dice.randint(1, 3)
        self.turns, began = (ranks, self.dice.randrange(ranks)), self.position
        records = self.dice.choice([None, self.dice.randint(1, 2 * self.source.count)])
        self.end = None if records is None else began + records
        turn = self.turns[1] + self.layer.position // self.layer.batch_size
        sharding = RankSharding(self.net, ranks, turn % ranks, records)
        self.forward(self.dice.randint(0, 3))
        batches = self.dice.randint(0, 4)
        sharding.end(batches)
        self.position = began + batches * self.source.batch_size
        if records is not None:
            self.position = min(self.position, began + records)
        self.turns = self.end = None

    def mode(self):
        self.dice.choice([minicaffe.set_mode_cpu, minicaffe.set_mode_gpu] if self.gpu else [minicaffe.set_mode_cpu])()

    def release(self):
        self.net.release()

    def run(self):
        steps = [self.seek, self.seek, self.resume, self.ranks, self.share_a_test, self.mode, self.release]
        self.forward(self.dice.randint(1, 4))
        for step in self.dice.choices(steps, k=self.dice.randint(1, 5)):
            step()
            self.forward(self.dice.randint(0, 4))
        self.forward(2)
        self.net.release()


KINDS = {"Data": Database, "ImageData": Pictures, "WindowData": Windows, "AnnotatedData": Boxes, "HDF5Data": Tables}


@pytest.mark.parametrize("name", KINDS)
def test_random_sources(programs, gpu, tmp_path, name):
    def run(seed):
        minicaffe.set_mode_cpu()
        minicaffe.set_random_seed(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        machine = None
        try:
            machine = Machine(KINDS[name], seed, folder, gpu)
            machine.run()
        except Exception as error:
            error.add_note(machine.source.text if machine else "while it was made")
            raise
        finally:
            caffe.solver_count, caffe.solver_rank = 1, 0
            minicaffe.set_mode_cpu()
    programs(run, 15)


def test_random_memory_data(programs, gpu):
    """Arrays of the program in turn; new ones begin at their begin."""
    def run(seed):
        dice, random_ = random.Random(seed), np.random.default_rng(seed)
        batch, item = dice.randint(1, 4), (dice.randint(1, 3), dice.randint(1, 3), 2)
        net = Net(parse_text(f"""layer {{ name: "in" type: "MemoryData" top: "data" top: "label" memory_data_param {{ batch_size: {batch}
            channels: {item[0]} height: {item[1]} width: {item[2]} }} }}""", caffe_pb2.NetParameter)[0])
        for _ in range(dice.randint(1, 4)):
            count = batch * dice.randint(1, 4)
            data, labels = random_.uniform(-1, 1, (count, *item)).astype(np.float32), random_.integers(0, 9, count).astype(np.float32)
            net.layers[0].reset(data, labels if dice.random() < 0.5 else labels.reshape(-1, 1, 1, 1))
            for i in range(dice.randint(0, 7)):
                if gpu and dice.random() < 0.3:
                    dice.choice([minicaffe.set_mode_cpu, minicaffe.set_mode_gpu])()
                net.forward_from_to(0, 0)
                begin = i * batch % count
                np.testing.assert_array_equal(net.blobs["data"].cpu_data, data[begin:begin + batch])
                np.testing.assert_array_equal(net.blobs["label"].cpu_data.ravel(), labels[begin:begin + batch])
        minicaffe.set_mode_cpu()
    programs(run, 100)
