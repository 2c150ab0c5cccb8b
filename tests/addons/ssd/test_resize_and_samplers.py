"""Resizing pictures and the boxes on them, and the batch samplers; tests/addons/ssd/test_annotated_data.py sees that pictures and boxes go together."""

import itertools
import math

import numpy as np
import pytest

from minicaffe.addons.ssd import resize
from minicaffe.addons.ssd.samplers import FIRST_TRIALS, LIMITS, MORE_TRIALS, Samplers
from minicaffe.errors import ConfigError, ShapeError
from minicaffe.proto import caffe_pb2

pytest.importorskip("cv2")
Resize = caffe_pb2.ResizeParameter
RANDOM = np.random.default_rng(0)


def test_surroundings_of_any_number_of_channels():
    for channels in 1, 3, 4, 6:
        image = RANDOM.integers(0, 256, (4, 5, channels), np.uint8)
        colour = np.arange(channels) * 10 + 5.4
        wanted = np.tile(colour.round(), (7, 12, 1))
        wanted[1:5, 3:8] = image
        larger = resize.add_border(image, 1, 2, 3, 4, colour)
        np.testing.assert_array_equal(larger, wanted)
        assert larger.dtype == np.uint8


def test_shapes():
    warp, small, large = Resize.WARP, Resize.FIT_SMALL_SIZE, Resize.FIT_LARGE_SIZE_AND_PAD
    for mode, size, wanted in ((warp, (20, 40), (30, 30)), (small, (20, 40), (30, 60)), (small, (40, 20), (60, 30)), (small, (7, 7), (30, 30)),
                               (large, (20, 40), (15, 30)), (large, (40, 20), (30, 15)), (large, (1, 1000), (1, 30))):
        assert resize.resized_shape(Resize(resize_mode=mode, height=30, width=30), *size) == wanted, (mode, size)


def test_padding():
    image = np.arange(2 * 8 * 3, dtype=np.uint8).reshape(2, 8, 3)
    # The row beside the picture is its last one again, or the one before.
    for pad, beside in ((Resize.CONSTANT, np.full((8, 3), 9)), (Resize.REPEAT_NEAREST, image[1]), (Resize.MIRRORED, image[0])):
        param = Resize(resize_mode=Resize.FIT_LARGE_SIZE_AND_PAD, height=6, width=8, pad_mode=pad, pad_value=[9])
        padded = resize.resize_picture(param, image, RANDOM)
        np.testing.assert_array_equal(padded[2:4], image)
        np.testing.assert_array_equal(padded[4], beside)
        assert pad != Resize.CONSTANT or (padded[:2] == 9).all() and (padded[4:] == 9).all()


def test_the_largest_picture(monkeypatch):
    monkeypatch.setattr(resize, "MOST_PIXELS", 30 * 60)
    param = Resize(resize_mode=Resize.FIT_SMALL_SIZE, height=30, width=30)
    assert resize.resize_picture(param, np.zeros((20, 40, 3), np.uint8), RANDOM).shape == (30, 60, 3)
    with pytest.raises(ShapeError, match="resize_param: a picture of 20 x 41 would become 30 x 61"):
        resize.resize_picture(param, np.zeros((20, 41, 3), np.uint8), RANDOM)
    resize.check_resize(Resize(height=30, width=60), "resize_param")
    with pytest.raises(ConfigError, match="resize_param.height: 31 x 60 pixels are too many for one picture"):
        resize.check_resize(Resize(height=31, width=60), "resize_param")
    param = Resize(resize_mode=Resize.FIT_SMALL_SIZE, height=1000, width=1000)
    with pytest.raises(ShapeError, match="resize_param: a picture of 1 x 10000 would become 1000 x 10000000"):
        resize.resize_picture(param, np.zeros((1, 10000, 3), np.uint8), RANDOM)


def test_boxes_there_and_back():
    boxes, frame = RANDOM.uniform(0, 1, (5, 4)), np.array([0.1, 0.2, 0.7, 0.5])
    np.testing.assert_allclose(resize.boxes_to_frame(frame, resize.boxes_from_frame(frame, boxes)), boxes, rtol=1e-12)
    param = Resize(resize_mode=Resize.FIT_LARGE_SIZE_AND_PAD, height=30, width=30)
    np.testing.assert_allclose(resize.content_box(param, 10, 30), [0, 1 / 3, 1, 2 / 3])
    np.testing.assert_allclose(resize.boxes_to_pixels(param, np.array([[0.5, 0.5, 0.75, 2 / 3]]), 10, 30), [[15, 5, 22.5, 10]])
    param = Resize(resize_mode=Resize.FIT_SMALL_SIZE, height=30, width=30, height_scale=50, width_scale=60)
    box = np.array([[0.1, 0.1, 0.2, 3]])
    np.testing.assert_allclose(resize.boxes_to_pixels(param, box, 100, 200), [[6, 5, 12, 100]])
    for param in Resize(resize_mode=Resize.FIT_SMALL_SIZE, height=30, width=30), Resize(height=30, width=30, height_scale=50, width_scale=60):
        np.testing.assert_allclose(resize.boxes_to_pixels(param, box, 100, 200), [[20, 10, 40, 100]])
    np.testing.assert_allclose(resize.boxes_to_pixels(None, np.array([[-1, 0.5, 0.5, 2]]), 100, 200), [[0, 50, 100, 100]])


def measures(part, box):
    """Return jaccard_overlap, sample_coverage and object_coverage."""
    def area(box):
        return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)

    both = area((*map(max, part[:2], box[:2]), *map(min, part[2:], box[2:])))
    return both / (area(part) + area(box) - both), both / area(part), both / area(box)


def slow_parts(params, boxes, random):
    """Return all parts that are found, with the numbers that the samplers draw: each limit, the trials, the maximal number, the choice."""
    parts = []
    for param in params:
        sampler, limits, found = param.sampler, param.sample_constraint, 0
        given = [(getattr(limits, f"{end}_{name}"), end, i) for i, name in enumerate(LIMITS) for end in ("min", "max")
                 if limits.HasField(f"{end}_{name}")]
        for trial in range(param.max_trials if param.use_original_image else 0):
            at = trial if trial < FIRST_TRIALS else (trial - FIRST_TRIALS) % MORE_TRIALS    # among those that are drawn at once
            if at == 0:
                if param.HasField("max_sample") and found == param.max_sample:
                    break
                count = min(param.max_trials - trial, MORE_TRIALS if trial else FIRST_TRIALS)
                scales = random.uniform(sampler.min_scale, sampler.max_scale, count)
                ratios = random.uniform(sampler.min_aspect_ratio, sampler.max_aspect_ratio, count)
                places = random.random((count, 2))
            scale, ratio, (x, y) = (numbers[at] for numbers in (scales, ratios, places))
            ratio = min(max(ratio, scale**2), 1 / scale**2)
            width, height = min(scale * math.sqrt(ratio), 1), min(scale / math.sqrt(ratio), 1)
            left, top = x * (1 - width), y * (1 - height)
            part = left, top, left + width, top + height
            fits = not given or any(all(measures(part, box)[i] >= limit if end == "min" else measures(part, box)[i] <= limit
                                        for limit, end, i in given) for box in boxes)
            if fits and not (param.HasField("max_sample") and found == param.max_sample):
                parts.append(part)
                found += 1
    return parts


def random_sampler(random):
    """Return a BatchSampler with none, one or several limits."""
    param = caffe_pb2.BatchSampler(max_trials=int(random.choice([0, 3, FIRST_TRIALS, 11, FIRST_TRIALS + MORE_TRIALS + 3])), use_original_image=bool(random.random() < 0.85))
    if random.random() < 0.7:
        param.max_sample = int(random.integers(0, 4))
    least, most = np.sort(random.uniform(0.1, 1, 2))
    param.sampler.min_scale, param.sampler.max_scale = least, most
    param.sampler.min_aspect_ratio, param.sampler.max_aspect_ratio = np.sort(random.uniform(0.3, 4, 2))
    for name in random.permutation(LIMITS)[:random.integers(0, 3)]:
        least, most = np.sort(random.uniform(0, 0.9, 2))
        which = random.integers(3)      # the least alone, the largest alone, or both
        if which != 1:
            setattr(param.sample_constraint, f"min_{name}", least * 0.5)
        if which != 0:
            setattr(param.sample_constraint, f"max_{name}", most)
    return param


@pytest.mark.parametrize("seed", range(6))
def test_random_samplers_like_a_plain_model(seed):
    random, chosen, none = np.random.default_rng(seed), set(), 0
    for _ in range(40):
        params = [random_sampler(random) for _ in range(random.integers(1, 4))]
        corners = np.sort(random.random((random.integers(0, 4), 2, 2)), 1).reshape(-1, 4)     # xmin ymin xmax ymax
        samplers = Samplers(params, "batch_sampler")
        assert len(samplers.samplers) == sum(param.use_original_image for param in params)
        for start in (3, 1 << 40, 2**64 - 1):
            slow, fast = np.random.default_rng(start), np.random.default_rng(start)
            parts, got = slow_parts(params, corners.tolist(), slow), samplers.draw(corners, fast)
            if not parts:
                assert got is None
                none += 1
                continue
            which = slow.integers(len(parts))
            np.testing.assert_allclose(got, parts[which], rtol=1e-12, atol=1e-15)
            chosen.add(int(which))
    assert none > 5 and len(chosen) > 3


def test_parts_at_their_limits():
    for name, (end, limit) in itertools.product(LIMITS, (("min", 1), ("max", 1), ("max", 0.99))):
        param = caffe_pb2.BatchSampler(max_trials=1, sampler={"min_scale": 1, "max_scale": 1}, sample_constraint={f"{end}_{name}": limit})
        got = Samplers([param], "x").draw(np.array([[0.0, 0, 1, 1]]), np.random.default_rng(0))
        assert got is None if limit != 1 else got.tolist() == [0, 0, 1, 1], name
    param = caffe_pb2.BatchSampler(sampler={"max_aspect_ratio": np.inf})
    with pytest.raises(ConfigError, match=r"^x\[0\].sampler.max_aspect_ratio: must be at least min_aspect_ratio, 1, and finite, got inf$"):
        Samplers([param], "x")
    param.sampler.min_aspect_ratio = np.inf
    with pytest.raises(ConfigError, match=r"^x\[0\].sampler.min_aspect_ratio: must be above 0 and finite, got inf$"):
        Samplers([param], "x")
