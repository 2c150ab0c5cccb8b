"""Make the pictures that shapes.caffemodel was trained on, and those of docs/fine_tuning.md.

    python models/shapes/make_pictures.py [--out data] [--count 24000] [--seed 1]
    python models/shapes/make_pictures.py --new pictures [--count 180] [--seed 1]

The first form writes two databases: coloured pictures of one shape or letter each, on a plain or textured ground, in any place,
size and colour, and pictures of a texture alone; the class is the shape, letter or texture, `CLASSES`. The second writes a folder
for each of three classes that are not among those, `NEW`, with JPEG files. The same seed gives the same pictures.
"""

import argparse
from pathlib import Path

import cv2
import numpy as np

from minicaffe.data.datasets import raw_datum
from minicaffe.data.db import new_database

SIDE = 56           # pixels of a picture; net.prototxt cuts 48 x 48 out
DRAWN = 2 * SIDE    # masks and textures are drawn larger, so that their edges are smooth
TEST_SHARE = 12     # one picture in so many is for tests


# ---- shapes: a mask, float32 of (DRAWN, DRAWN), 0 outside and 1 inside, in the middle of the picture

def polar(radii):
    """Return the points of a closed outline whose radii, in parts of the half side, are at equal angles."""
    angles = np.arange(len(radii)) * 2 * np.pi / len(radii) - np.pi / 2
    return np.stack([np.cos(angles) * radii, np.sin(angles) * radii], 1)


def regular(corners):
    return [polar(np.full(corners, 0.8))]


def star(points, inner):
    return [polar(np.tile([0.85, inner], points))]


def box(x, y, width, height):
    return np.array([(x - width, y - height), (x + width, y - height), (x + width, y + height), (x - width, y + height)])


def disc(x, y, radius):
    return polar(np.full(60, radius)) + (x, y)


def heart():
    t = np.linspace(0, 2 * np.pi, 80)
    return [np.stack([0.8 * np.sin(t) ** 3, -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) / 20], 1)]


def fish():
    t = np.linspace(0, 2 * np.pi, 60)
    body = np.stack([0.62 * np.cos(t) - 0.2, 0.42 * np.sin(t)], 1)
    return [body, np.array([(0.3, 0), (0.85, -0.45), (0.7, 0), (0.85, 0.45)])]


def key():
    bow = [disc(-0.5, 0, 0.35), disc(-0.5, 0, 0.17)]
    return [*bow, box(0.35, 0, 0.52, 0.09), box(0.55, 0.2, 0.07, 0.14), box(0.8, 0.2, 0.07, 0.14)]


SHAPES = {      # name -> function that returns outlines; a point inside an even number of them is outside
    "disc": lambda: [disc(0, 0, 0.75)],
    "ring": lambda: [disc(0, 0, 0.8), disc(0, 0, 0.45)],
    "crescent": lambda: [np.concatenate([polar(np.full(60, 0.8))[:31], polar(np.full(60, 0.8))[30::-1] * (0.35, 1)])],
    "half disc": lambda: [polar(np.full(60, 0.8))[:31]],
    "triangle": lambda: regular(3),
    "square": lambda: [box(0, 0, 0.6, 0.6)],
    "frame": lambda: [box(0, 0, 0.7, 0.7), box(0, 0, 0.4, 0.4)],
    "bar": lambda: [box(0, 0, 0.9, 0.16)],
    "two bars": lambda: [box(0, -0.35, 0.8, 0.15), box(0, 0.35, 0.8, 0.15)],
    "pentagon": lambda: regular(5),
    "octagon": lambda: regular(8),
    "star of 5": lambda: star(5, 0.34),
    "star of 8": lambda: star(8, 0.45),
    "star of 3": lambda: star(3, 0.2),
    "cross": lambda: [box(0, 0, 0.8, 0.25), box(0, -0.525, 0.25, 0.275), box(0, 0.525, 0.25, 0.275)],
    "corner": lambda: [np.array([(-0.7, -0.7), (-0.3, -0.7), (-0.3, 0.3), (0.7, 0.3), (0.7, 0.7), (-0.7, 0.7)])],
    "drop": lambda: [np.concatenate([polar(np.full(60, 0.5))[12:49] + (0, 0.25), [(0, -0.9)]])],
    "hourglass": lambda: [np.array([(-0.6, -0.75), (0.6, -0.75), (-0.6, 0.75), (0.6, 0.75)])],
    "stairs": lambda: [np.array([(-0.7, 0.7), (-0.7, 0.25), (-0.25, 0.25), (-0.25, -0.25), (0.25, -0.25), (0.25, -0.7), (0.7, -0.7),
                                 (0.7, 0.7)])],
    "three discs": lambda: [disc(-0.45, 0.4, 0.32), disc(0.45, 0.4, 0.32), disc(0, -0.45, 0.32)],
}
LETTERS = "ABEGHKMRSXY2458"
TEXTURES = ["stripes", "checks", "dots", "circles", "bricks", "grid", "clouds", "grains", "waves", "cells"]
CLASSES = [*SHAPES, *(f"letter {letter}" for letter in LETTERS), *(f"texture of {name}" for name in TEXTURES)]
NEW = {"fish": fish, "heart": heart, "key": key}


def mask_of(outlines):
    mask = np.zeros((DRAWN, DRAWN), np.uint8)
    for outline in outlines:
        one = np.zeros_like(mask)
        cv2.fillPoly(one, [((outline + 1) * DRAWN / 2 * 16).round().astype(np.int32)], 255, cv2.LINE_AA, 4)
        # The parts of a shape are joined; a part that lies inside an earlier one is a hole.
        inside = (mask[one > 0] > 0).mean() > 0.99
        mask = cv2.subtract(mask, one) if inside else cv2.max(mask, one)
    return mask.astype(np.float32) / 255


def letter_mask(letter, random):
    mask = np.zeros((DRAWN, DRAWN), np.uint8)
    font = [cv2.FONT_HERSHEY_SIMPLEX, cv2.FONT_HERSHEY_DUPLEX, cv2.FONT_HERSHEY_COMPLEX][random.integers(3)]
    thick = int(random.integers(6, 14))
    (width, height), _ = cv2.getTextSize(letter, font, 3.2, thick)
    cv2.putText(mask, letter, ((DRAWN - width) // 2, (DRAWN + height) // 2), font, 3.2, 255, thick, cv2.LINE_AA)
    return mask.astype(np.float32) / 255


def place(mask, random, turn):
    """Return `mask` turned by at most `turn` degrees, stretched, in a random size and place."""
    size, angle = random.uniform(0.45, 0.95), np.radians(random.uniform(-turn, turn))
    rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shape = rotation @ np.diag([size * random.uniform(0.8, 1.2), size * random.uniform(0.8, 1.2)])
    shape[0, 1] += size * random.uniform(-0.2, 0.2)
    room = (1 - size) * DRAWN / 2
    middle = DRAWN / 2 + random.uniform(-1, 1, 2) * room
    offset = middle - shape @ [DRAWN / 2, DRAWN / 2]
    return cv2.warpAffine(mask, np.column_stack([shape, offset]), (DRAWN, DRAWN), flags=cv2.INTER_LINEAR)


# ---- textures: a field of numbers from 0 to 1, float32 of (DRAWN, DRAWN)

def clouds(random, cells):
    """Return smooth noise with `cells` bright and dark places along a side."""
    noise = cv2.resize(random.normal(size=(cells, cells)).astype(np.float32), (DRAWN, DRAWN), interpolation=cv2.INTER_CUBIC)
    return (noise - noise.min()) / (noise.max() - noise.min())


def texture(kind, random):
    y, x = np.mgrid[:DRAWN, :DRAWN].astype(np.float32)
    angle, period = random.uniform(0, np.pi), random.uniform(10, 30)
    u = (np.cos(angle) * x + np.sin(angle) * y) / period + random.uniform()
    v = (np.cos(angle) * y - np.sin(angle) * x) / period + random.uniform()
    sharp = random.uniform(2, 12)

    def edge(wave):
        return 1 / (1 + np.exp(-sharp * wave))

    def to_line(place):     # the distance to the nearest whole number
        return np.minimum(place % 1, 1 - place % 1)

    two_pi = 2 * np.pi
    if kind == "stripes":
        field = edge(np.sin(two_pi * u) + random.uniform(-0.6, 0.6))
    elif kind == "checks":
        field = edge(2 * np.sin(np.pi * u) * np.sin(np.pi * v))
    elif kind == "dots":
        field = edge(5 * (random.uniform(0.2, 0.4) - np.hypot(u % 1 - 0.5, v % 1 - 0.5)))
    elif kind == "circles":
        away = np.hypot(x - random.uniform(0, DRAWN), y - random.uniform(0, DRAWN)) / period
        field = edge(np.sin(two_pi * away))
    elif kind == "bricks":
        field = edge(12 * (np.minimum(to_line(v), 2 * to_line(u / 2 + np.floor(v) / 2)) - 0.1))
    elif kind == "grid":
        field = edge(12 * (random.uniform(0.08, 0.18) - np.minimum(to_line(u), to_line(v))))
    elif kind == "clouds":
        field = clouds(random, int(random.integers(4, 9)))
    elif kind == "grains":
        field = clouds(random, int(random.integers(28, 56)))
    elif kind == "waves":
        field = edge(np.sin(two_pi * (u + random.uniform(0.25, 0.5) * np.sin(two_pi * v / random.uniform(1.5, 3)))))
    else:       # cells: the distance to the nearest of random points
        points = random.uniform(0, DRAWN, (int(random.integers(12, 40)), 2)).astype(np.float32)
        away = np.hypot(x[..., None] - points[:, 0], y[..., None] - points[:, 1]).min(-1)
        field = away / away.max()
    return field.astype(np.float32)


def surface(random, kind, contrast=1.0):
    """Return a coloured surface, float32 of (DRAWN, DRAWN, 3): a texture, or for None one colour with a gradient of light."""
    first = random.uniform(0, 255, 3)
    second = first + contrast * (random.uniform(0, 255, 3) - first)
    if kind is None:
        slope = random.uniform(-0.25, 0.25, 2)
        y, x = np.mgrid[:DRAWN, :DRAWN] / DRAWN - 0.5
        return (first * (1 + slope[0] * x + slope[1] * y)[..., None]).astype(np.float32)
    if contrast == 1:       # the texture is the class: it must be visible
        while np.abs(second - first).max() < 80:
            second = random.uniform(0, 255, 3)
    return (first + texture(kind, random)[..., None] * (second - first)).astype(np.float32)


def any_surface(random):
    kind = TEXTURES[random.integers(len(TEXTURES))] if random.uniform() < 0.6 else None
    return surface(random, kind, random.uniform(0.1, 0.6))


def draw(mask, random, turn):
    """Return a picture of a shape, float32 of (DRAWN, DRAWN, 3)."""
    mask = place(mask, random, turn)[..., None]
    ground, filling = any_surface(random), any_surface(random)
    weight = mask.sum() + 1e-6
    for _ in range(20):     # the shape must differ from the ground
        if np.abs((mask * (filling - ground)).sum((0, 1)) / weight).max() > 50:
            break
        filling = any_surface(random)
    return ground + mask * (filling - ground)


def finish(picture, random):
    """Return a picture in its final size, uint8 of (SIDE, SIDE, 3), with blur, noise and brightness as of a camera."""
    if random.uniform() < 0.5:
        picture = cv2.GaussianBlur(picture, (0, 0), random.uniform(0.5, 2.5))
    picture = cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
    picture = picture * random.uniform(0.7, 1.15) + random.normal(0, random.uniform(0, 14), picture.shape)
    return picture.clip(0, 255).astype(np.uint8)


def picture_of(label, random):
    """Return a picture of class `label` of `CLASSES`."""
    kind, _, name = CLASSES[label].rpartition(" ")
    if CLASSES[label] in SHAPES:
        return finish(draw(mask_of(SHAPES[CLASSES[label]]()), random, 180), random)
    if kind == "letter":
        return finish(draw(letter_mask(name, random), random, 30), random)
    return finish(surface(random, name), random)


def write_databases(out, count, seed):
    """Write the train and test LMDB of `count` pictures and labels.txt into the folder `out`."""
    random = np.random.default_rng(seed)
    out.mkdir(parents=True, exist_ok=True)
    for split, size in (("train", count - count // TEST_SHARE), ("test", count // TEST_SHARE)):
        target = out / f"shapes_{split}_lmdb"
        with new_database(target, "LMDB", force=True) as db:
            for i in range(size):
                label = int(random.integers(len(CLASSES)))
                db.put(b"%08d" % i, raw_datum(picture_of(label, random).transpose(2, 0, 1), label))
        print(f"{target}: {size} pictures")


def write_new(folder, count, seed):
    """Write `count` pictures of the classes `NEW` as JPEG files into a folder for each class."""
    random = np.random.default_rng(seed)
    for name, outlines in NEW.items():
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count // len(NEW)):
            cv2.imwrite(str(folder / name / f"{i:03}.jpg"), finish(draw(mask_of(outlines()), random, 180), random))
    print(f"{folder}: {count // len(NEW)} pictures of each of {', '.join(NEW)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder for the databases (default: data)")
    parser.add_argument("--new", type=Path, metavar="FOLDER", help="write the pictures of three new classes instead, into folders")
    parser.add_argument("--count", type=int, help="pictures in all (default: 24,000; with --new 180)")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if given.new:
        write_new(given.new, given.count or 60 * len(NEW), given.seed)
    else:
        write_databases(given.out, given.count or 24000, given.seed)


if __name__ == "__main__":
    main()
