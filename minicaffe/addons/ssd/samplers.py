"""Batch samplers: cut a random part out of a picture (SSD's sampler.cpp; `annotated_data_param.batch_sampler`).

Different from Caffe: a part must meet all limits of `sample_constraint` for the same object, and the draws are a function of
a seed.
"""

import sys

import numpy as np

from minicaffe.addons.ssd.resize import overlaps
from minicaffe.errors import ConfigError

LARGEST = sys.float_info.max
LIMITS = ("jaccard_overlap", "sample_coverage", "object_coverage")  # in the order of the results of `overlaps`
FIRST_TRIALS, MORE_TRIALS = 8, 64    # at once: most samplers find a part soon


class Samplers:
    """The samplers of one layer, of BatchSampler messages; those without `use_original_image` do nothing, as in Caffe.

    Raises ConfigError, naming `field`, for a scale outside (0, 1], a ratio that is not above 0, or a least value above the largest.
    """

    def __init__(self, params, field):
        self.samplers = []     # (param, (least, most) of each of `LIMITS`, or None without a constraint)
        for i, param in enumerate(params):
            place, constraint, limits = f"{field}[{i}]", param.sample_constraint, []
            _check(place, param.sampler, "scale", 1.0, "at most 1")
            _check(place, param.sampler, "aspect_ratio", LARGEST, "finite")
            for name in LIMITS:
                least, most = (getattr(constraint, key) if constraint.HasField(key) else np.nan   # compares false
                               for key in (f"min_{name}", f"max_{name}"))
                if least > most:
                    raise ConfigError(f"must be at least min_{name}, {least:g}, got {most:g}",
                                      field=f"{place}.sample_constraint.max_{name}")
                limits.append((least, most))
            if param.use_original_image:
                self.samplers.append((param, limits if constraint.ListFields() else None))

    def draw(self, boxes, random):
        """Return one of the parts found as (xmin, ymin, xmax, ymax) in units of the picture; None if none is.

        `boxes` are the objects, (n, 4); `random` is the Generator of the draws.
        """
        found = [part for param, limits in self.samplers for parts in _parts(param, limits, boxes, random)
                 for part in parts]
        return found[random.integers(len(found))] if found else None


def _parts(param, limits, boxes, random):
    """Yield arrays (n, 4) of the parts that a sampler finds, until it has `max_sample` of them; `limits`: see `_accepted`."""
    sampler, left = param.sampler, param.max_sample if param.HasField("max_sample") else None
    trials, count = param.max_trials, FIRST_TRIALS
    while trials and left != 0:
        count = min(trials, count)
        scale = random.uniform(sampler.min_scale, sampler.max_scale, (count, 1))
        ratio = random.uniform(sampler.min_aspect_ratio, sampler.max_aspect_ratio, (count, 1)).clip(scale**2, 1 / scale**2)
        sides = np.minimum(scale * np.sqrt(ratio) ** [1, -1], 1)
        corners = random.random((count, 2)) * (1 - sides)
        parts = np.concatenate([corners, corners + sides], 1)
        parts = parts[_accepted(limits, parts, boxes)][:left]
        left = None if left is None else left - len(parts)
        yield parts
        trials, count = trials - count, MORE_TRIALS


def _accepted(limits, parts, boxes):
    """Return for each part whether one box is within all limits, (least, most) of each of `LIMITS`, or `limits` is None."""
    if limits is None:
        return np.ones(len(parts), bool)
    wrong = np.zeros((len(parts), len(boxes)), bool)
    for (least, most), share in zip(limits, overlaps(parts, boxes)):
        wrong |= (share < least) | (share > most)
    return ~wrong.all(1)


def _check(place, sampler, name, largest, end):
    """Check a range that is above 0 and ends at `largest`, `end` in words."""
    least, most = getattr(sampler, "min_" + name), getattr(sampler, "max_" + name)
    if not 0 < least <= largest:
        raise ConfigError(f"must be above 0 and {end}, got {least:g}", field=f"{place}.sampler.min_{name}")
    if not least <= most <= largest:
        raise ConfigError(f"must be at least min_{name}, {least:g}, and {end}, got {most:g}", field=f"{place}.sampler.max_{name}")
