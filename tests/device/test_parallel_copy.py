"""copy_array is NumPy's assignment, whatever the two arrays are; only what is contiguous and of one type and shape is copied by threads."""

import numpy as np
import pytest

from minicaffe.device.parallel_copy import copy_array

LARGE = 1 << 19     # elements of more bytes than one thread copies


def numbers(shape, dtype=np.float32):
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


@pytest.mark.parametrize(("target", "source"), [
    (np.zeros((2, 3), np.float32), numbers((2, 3))),
    (np.zeros((4, 3), np.float32), numbers(3)),             # one type, another shape: each row
    (np.zeros((4, 3), np.float32), numbers((1, 3))),
    (np.zeros((4, 3), np.float32), numbers((4, 1))),
    (np.zeros(3, np.float32), numbers((1, 1, 3))),
    (np.zeros((2, 3), np.float32), numbers((2, 3), np.int32)),      # as many bytes, another type
    (np.zeros((2, 3), np.float64), numbers((2, 3))),
    (np.zeros((2, 3), np.uint8), numbers((2, 3), np.int8) - 3),
    (np.zeros((3, 2), np.float32).T, numbers((2, 3))),
    (np.zeros((2, 3), np.float32), numbers((3, 2)).T),
    (np.zeros((2, 6), np.float32)[:, ::2], numbers((2, 3))),
    (np.zeros((2, 3), np.float32), numbers((4, 3))[::2]),
    (np.zeros((2, 3), np.float32), numbers((2, 3))[:, ::-1]),
    (np.zeros((2, 2), object), np.array([[1, "a"], [None, 2.5]], object)),
    (np.zeros((), np.float32), numbers(())),
    (np.zeros((0, 3), np.float32), numbers((0, 3))),
    (np.zeros((3, LARGE), np.float32), numbers(LARGE)),
    (np.zeros(LARGE + 1, np.float32), numbers(LARGE + 1)),
    (np.zeros(3 * LARGE + 7, np.uint8), numbers(3 * LARGE + 7, np.uint8)),
], ids=lambda a: f"{a.dtype}{list(a.shape)}{list(a.strides)}")  # fmt: skip
def test_as_numpy_assigns(target, source):
    expected, before = np.zeros(target.shape, target.dtype), source.copy()
    expected[...] = source
    copy_array(target, source)
    np.testing.assert_array_equal(target, expected)
    np.testing.assert_array_equal(source, before)
    assert target.dtype == expected.dtype


def test_shapes_that_do_not_broadcast():
    for target, source in ((2, 3), (3, 2)), ((3,), (2, 3)), ((6,), (2, 3)), ((2, 3), (6,)), ((0,), (3,)):
        made = np.zeros(target, np.float32)
        with pytest.raises(ValueError, match="broadcast"):
            copy_array(made, numbers(source) + 1)
        assert not made.any()


@pytest.mark.parametrize("shift", [-1, 1, 1000, LARGE])
def test_parts_of_one_array(shift):
    """Each element is read before it is overwritten, in both directions."""
    memory = numbers(3 * LARGE)
    expected = memory[LARGE + shift:2 * LARGE + shift].copy()
    copy_array(memory[LARGE:2 * LARGE], memory[LARGE + shift:2 * LARGE + shift])
    np.testing.assert_array_equal(memory[LARGE:2 * LARGE], expected)
