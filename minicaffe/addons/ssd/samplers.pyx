"""Batch samplers: cut a random part out of a picture (SSD's sampler.cpp; `annotated_data_param.batch_sampler`).

Different from Caffe: a part must meet all limits of `sample_constraint` for the same object, and the draws are a function of
a seed.
"""

from libc.stdint cimport uint64_t
from libcpp.vector cimport vector

import math
import sys

from minicaffe.errors import ConfigError

cdef extern from "minicaffe/addons/ssd/samplers.hpp" nogil:
    struct Box "mc::cpu::Box<double>":
        double xmin, ymin, xmax, ymax
    struct SamplerRule "mc::SamplerRule":
        double min_scale, max_scale, min_ratio, max_ratio
        double least[3]
        double greatest[3]
        long long most, trials
    long long sample_part "mc::sample_part"(const SamplerRule* rules, long long count, const vector[Box]& objects, uint64_t seed,
                                            Box* chosen)

LARGEST = sys.float_info.max
LIMITS = ("jaccard_overlap", "sample_coverage", "object_coverage")  # as SamplerRule numbers them


cdef class Samplers:
    """The samplers of one layer, of BatchSampler messages; those without `use_original_image` do nothing, as in Caffe.

    Raises ConfigError, naming `field`, for a scale outside (0, 1], a ratio that is not above 0, or a least value above the largest.
    """

    cdef vector[SamplerRule] rules

    def __init__(self, params, field):
        cdef SamplerRule rule
        for i, param in enumerate(params):
            place, sampler, limits = f"{field}[{i}]", param.sampler, param.sample_constraint
            _check(place, sampler, "scale", 1.0, "at most 1")
            _check(place, sampler, "aspect_ratio", LARGEST, "finite")
            for k, name in enumerate(LIMITS):
                rule.least[k], rule.greatest[k] = _limit(limits, "min_" + name), _limit(limits, "max_" + name)
                if rule.least[k] > rule.greatest[k]:
                    raise ConfigError(f"must be at least min_{name}, {rule.least[k]:g}, got {rule.greatest[k]:g}",
                                      field=f"{place}.sample_constraint.max_{name}")
            if not param.use_original_image:
                continue
            rule.min_scale, rule.max_scale = sampler.min_scale, sampler.max_scale
            rule.min_ratio, rule.max_ratio = sampler.min_aspect_ratio, sampler.max_aspect_ratio
            rule.most = param.max_sample if param.HasField("max_sample") else -1
            rule.trials = param.max_trials
            self.rules.push_back(rule)

    def __len__(self):
        return self.rules.size()

    def draw(self, boxes, seed):
        """Return a random one of the parts found as (xmin, ymin, xmax, ymax) in units of the picture; None if none is.

        `boxes` are the objects, float64 of (n, 4); `seed`, below 2**64, is that of the draws.
        """
        cdef const double[:, ::1] corners = boxes
        cdef vector[Box] objects
        cdef Box box, chosen
        cdef uint64_t start = seed
        cdef long long found
        cdef Py_ssize_t i
        with nogil:
            for i in range(corners.shape[0]):
                box.xmin, box.ymin, box.xmax, box.ymax = corners[i, 0], corners[i, 1], corners[i, 2], corners[i, 3]
                objects.push_back(box)
            found = sample_part(self.rules.data(), self.rules.size(), objects, start, &chosen)
        return (chosen.xmin, chosen.ymin, chosen.xmax, chosen.ymax) if found else None


def _limit(limits, name):
    return getattr(limits, name) if limits.HasField(name) else math.nan


def _check(place, sampler, name, largest, end):
    """Check a range that is above 0 and ends at `largest`, `end` in words."""
    least, most = getattr(sampler, "min_" + name), getattr(sampler, "max_" + name)
    if not 0 < least <= largest:
        raise ConfigError(f"must be above 0 and {end}, got {least:g}", field=f"{place}.sampler.min_{name}")
    if not least <= most <= largest:
        raise ConfigError(f"must be at least min_{name}, {least:g}, and {end}, got {most:g}", field=f"{place}.sampler.max_{name}")
