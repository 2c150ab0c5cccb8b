"""The batch samplers against a plain model, that draws the same numbers: each limit, the trials, the maximal number, the choice."""

import math

import numpy as np
import pytest

from minicaffe.addons.ssd.samplers import FIRST_TRIALS, LIMITS, MORE_TRIALS, Samplers
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2


def area(box):
    return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)


def common(a, b):
    return area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))


def measures(part, box):
    """Return jaccard_overlap, sample_coverage and object_coverage."""
    both = common(part, box)
    return both / (area(part) + area(box) - both), both / area(part), both / area(box)


def slow_parts(params, boxes, random):
    """Return all parts that are found."""
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
        assert len(samplers) == sum(param.use_original_image for param in params)
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


@pytest.mark.parametrize("name", LIMITS)
def test_parts_at_their_limits(name):
    for end, limit in (("min", 1), ("max", 1), ("max", 0.99)):
        param = caffe_pb2.BatchSampler(max_trials=1)
        param.sampler.min_scale = param.sampler.max_scale = 1
        setattr(param.sample_constraint, f"{end}_{name}", limit)
        got = Samplers([param], "x").draw(np.array([[0.0, 0, 1, 1]]), np.random.default_rng(0))
        assert got is None if limit != 1 else got.tolist() == [0, 0, 1, 1]


def test_ratio_without_a_limit():
    param = caffe_pb2.BatchSampler()
    param.sampler.max_aspect_ratio = np.inf
    with pytest.raises(ConfigError, match=r"^x\[0\].sampler.max_aspect_ratio: must be at least min_aspect_ratio, 1, and finite, got inf$"):
        Samplers([param], "x")
    param.sampler.min_aspect_ratio = np.inf
    with pytest.raises(ConfigError, match=r"^x\[0\].sampler.min_aspect_ratio: must be above 0 and finite, got inf$"):
        Samplers([param], "x")
