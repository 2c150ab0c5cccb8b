"""The batch samplers against a plain model, that draws the same numbers: each limit, the trials, the maximal number, the choice."""

import math

import numpy as np
import pytest

from minicaffe.addons.ssd.samplers import LIMITS, Samplers
from minicaffe.data.transform import draw
from minicaffe.errors import ConfigError
from minicaffe.proto import caffe_pb2


class Draws:
    """The random numbers of one picture, in order."""

    def __init__(self, seed):
        self.seed, self.counter = seed, 0

    def uniform(self, lo, hi):
        first, second = (draw(self.seed, self.counter, which, 1 << 32) for which in (0, 1))
        self.counter += 1
        return lo + (hi - lo) * ((first << 21 | second >> 11) * 2.0**-53)


def area(box):
    return max(box[2] - box[0], 0) * max(box[3] - box[1], 0)


def common(a, b):
    return area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])))


def measures(part, box):
    """Return jaccard_overlap, sample_coverage and object_coverage."""
    both = common(part, box)
    return both / (area(part) + area(box) - both), both / area(part), both / area(box)


def slow_parts(params, boxes, draws):
    """Return all parts that are found."""
    parts = []
    for param in params:
        if not param.use_original_image:
            continue
        sampler, limits, found = param.sampler, param.sample_constraint, 0
        given = [(getattr(limits, f"{end}_{name}"), end, i) for i, name in enumerate(LIMITS) for end in ("min", "max")
                 if limits.HasField(f"{end}_{name}")]
        for _ in range(param.max_trials):
            if param.HasField("max_sample") and found >= param.max_sample:
                break
            scale = draws.uniform(sampler.min_scale, sampler.max_scale)
            ratio = draws.uniform(sampler.min_aspect_ratio, sampler.max_aspect_ratio)
            ratio = min(max(ratio, scale**2), 1 / scale**2)
            width, height = min(scale * math.sqrt(ratio), 1), min(scale / math.sqrt(ratio), 1)
            left, top = draws.uniform(0, 1 - width), draws.uniform(0, 1 - height)
            part = left, top, left + width, top + height
            if not given or any(all(measures(part, box)[i] >= limit if end == "min" else measures(part, box)[i] <= limit
                                    for limit, end, i in given) for box in boxes):
                parts.append(part)
                found += 1
    return parts


def random_sampler(random):
    """Return a BatchSampler with none, one or several limits."""
    param = caffe_pb2.BatchSampler(max_trials=int(random.integers(0, 12)), use_original_image=bool(random.random() < 0.85))
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
            draws = Draws(start)
            parts = slow_parts(params, corners.tolist(), draws)
            got = samplers.draw(corners, start)
            if not parts:
                assert got is None
                none += 1
                continue
            which = min(int(draws.uniform(0, len(parts))), len(parts) - 1)
            np.testing.assert_allclose(got, parts[which], rtol=1e-12)
            chosen.add(which)
    assert none > 5 and len(chosen) > 3


@pytest.mark.parametrize("name", LIMITS)
def test_parts_at_their_limits(name):
    for end, limit in (("min", 1), ("max", 1), ("max", 0.99)):
        param = caffe_pb2.BatchSampler(max_trials=1)
        param.sampler.min_scale = param.sampler.max_scale = 1
        setattr(param.sample_constraint, f"{end}_{name}", limit)
        got = Samplers([param], "x").draw(np.array([[0.0, 0, 1, 1]]), 0)
        assert got == ((0, 0, 1, 1) if limit == 1 else None)


def test_ratio_without_a_limit():
    param = caffe_pb2.BatchSampler()
    param.sampler.max_aspect_ratio = np.inf
    with pytest.raises(ConfigError, match=r"^x\[0\].sampler.max_aspect_ratio: must be at least min_aspect_ratio, 1, and finite, got inf$"):
        Samplers([param], "x")
    param.sampler.min_aspect_ratio = np.inf
    with pytest.raises(ConfigError, match=r"^x\[0\].sampler.min_aspect_ratio: must be above 0 and finite, got inf$"):
        Samplers([param], "x")
