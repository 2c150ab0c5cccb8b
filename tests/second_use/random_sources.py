"""Random sources of data: files, the text of a layer that reads them, and a plain model of what it must give."""

import cv2
import h5py
import numpy as np

from minicaffe.common import TRAIN
from minicaffe.data.db import open_db
from minicaffe.data.transform import draw
from minicaffe.proto import caffe_pb2

NO_RECORD = 2**64 - 1


def write_db(path, kind, records):
    with open_db(str(path), kind, "w") as db:
        for i, record in enumerate(records):
            db.put(b"%08d" % i, record.SerializeToString())


class Source:
    """A random source, but for what is `fixed`: `text` is its layer; a type defines `prepare`, and `record` or `batch`."""

    tops = 2

    def __init__(self, dice, folder, **fixed):
        self.dice, self.folder, self.fixed = dice, folder, fixed
        self.random = np.random.default_rng(dice.randrange(1 << 30))
        self.count, self.batch_size = self.choose("count", range(1, 10)), self.choose("batch_size", [1, 2, 3, 5, 8])
        self.depth = self.choose("depth", [1, 2, 4, 7])
        self.prepare()

    def choose(self, name, values):
        return self.fixed.get(name, self.dice.choice(values))

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
        if phase == TRAIN and self.crop:
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
    backend = "LMDB"

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
        write_db(self.folder / "db", self.backend, records)
        self.text = (f'type: "Data" data_param {{ source: "{self.folder}/db" backend: {self.backend} batch_size: {self.batch_size} prefetch: {self.depth} '
                     f"rand_skip: {dice.choice([0, 3])} }} {self.transform_text(self.seen[0].shape[2])}")

    def record(self, seed, number, phase):
        i = number % self.count
        return self.transformed(self.seen[i], seed, number, phase), self.labels[i]


class LevelDB(Database):
    backend = "LEVELDB"


class Pictures(Source):
    def prepare(self):
        dice = self.dice
        self.draw_pictures()
        self.skip, self.shuffle, color = dice.choice([0, 0, 1, 5, 40]), self.choose("shuffle", [True, True, False]), dice.random() < 0.7
        self.width = dice.choice([None, None, 1, 3])
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
        self.lengths, self.shuffle = self.choose("lengths", [[3, 1, 3], [5], [1, 1, 2], [2, 4, 1, 5]]), self.choose("shuffle", [True, True, False])
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


class Video(Source):
    def prepare(self):
        self.crop, self.one_size, self.size, self.count = self.dice.choice([None, (5, 5), (20, 31)]), True, (32, 32), 7
        writer = cv2.VideoWriter(str(self.folder / "film.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 10.0, self.size)
        for picture in self.random.integers(0, 256, (self.count, 8, 8, 3), np.uint8):
            writer.write(cv2.resize(picture, self.size))
        writer.release()
        capture = cv2.VideoCapture(str(self.folder / "film.avi"))
        self.frames = [capture.read()[1] for _ in range(self.count)]
        self.text = (f'type: "VideoData" video_data_param {{ video_type: VIDEO video_file: "{self.folder}/film.avi" skip_frames: 1 }} '
                     f"data_param {{ batch_size: {self.batch_size} prefetch: {self.depth} }} {self.transform_text(3)}")

    def record(self, seed, number, phase):
        return self.transformed(self.frames[number * 2 % self.count], seed, number, phase), 0


SOURCES = {"Data": Database, "ImageData": Pictures, "WindowData": Windows, "AnnotatedData": Boxes, "VideoData": Video, "HDF5Data": Tables,
           "LevelDB": LevelDB}
