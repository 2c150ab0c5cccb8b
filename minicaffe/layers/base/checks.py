"""Checks that several layer types share: axes that must exist, sizes and stored states."""

import base64
import math

import numpy as np

from minicaffe.errors import ConfigError, DataError, ShapeError, located


def axis_of(blob, axis, field):
    """Return `axis` counted from the front. Raises ShapeError, naming `field`, unless ``-num_axes <= axis < num_axes``."""
    with located(field=field):
        return blob.canonical_axis(axis)


def axis_or_legacy(param, legacy, blob, field):
    """Return the axis, counted from the front, of a message with `axis` and its older, unsigned name `legacy` (concat_dim).

    Raises ConfigError or ShapeError if both are given, or the blob has no such axis.
    """
    if not param.HasField(legacy):
        return axis_of(blob, param.axis, f"{field}.axis")
    if param.HasField("axis"):
        raise ConfigError(f"give axis or {legacy}, its older name, not both", field=f"{field}.{legacy}")
    if getattr(param, legacy) >= blob.num_axes:  # unsigned: may be more than an axis can be
        raise ShapeError(f"axis {getattr(param, legacy)} is out of range for a blob with {blob.num_axes} axes, shape "
                         f"{list(blob.shape)}", field=f"{field}.{legacy}")
    return axis_of(blob, getattr(param, legacy), f"{field}.{legacy}")


def check_size(value, field, least=1, needed=False):
    """Raise ConfigError, naming `field`, unless ``least <= value <= 2^31 - 1``; `needed`: the default is out of range."""
    if not least <= value < 2**31:
        rule = f"{'given and ' * needed}at least {least}" if value < least else "at most 2^31 - 1"
        raise ConfigError(f"must be {rule}, got {value}", field=field)


def state_numbers(state, limits):
    """Return the numbers of a state, for `Layer.set_state`; the dict `limits` has their names and what they must be less than.

    Raises DataError if one is missing, or not a whole number from 0 to less than its limit.
    """
    numbers = []
    for name, limit in limits.items():
        number = state.get(name) if isinstance(state, dict) else None
        if type(number) is not int or not 0 <= number < limit:
            raise DataError(f"the stored state needs a '{name}' from 0 to {limit - 1}, it is {str(state)[:200]}; resume with the "
                            "net and data that wrote it")
        numbers.append(number)
    return numbers


def stored_blobs(names, blobs):
    """Return the values of blobs under their names, as a state for `Layer.get_state`."""
    return {name: {"shape": list(blob.shape), "data": base64.b64encode(blob.cpu_data.tobytes()).decode()}
            for name, blob in zip(names, blobs)}


def restore_blobs(state, names, blobs):
    """Write the values of a state that `stored_blobs` made to the blobs.

    Raises DataError or ShapeError, before anything is written, if the state is of another layer or shape.
    """
    values = []
    for name, blob in zip(names, blobs):
        try:
            data = base64.b64decode(state[name]["data"], validate=True)
            shape = tuple(state[name]["shape"])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"the state '{name}' is not what minicaffe writes ({error!r}); fetch the file again") from None
        dtype = blob.cpu_data.dtype
        if shape != blob.shape or len(data) != blob.count * dtype.itemsize:
            raise ShapeError(f"the state '{name}' was stored for shape {list(shape)}, the net has {list(blob.shape)} "
                             f"{dtype.name}; resume with the net that wrote it")
        values.append((blob, np.frombuffer(data, dtype).reshape(shape)))
    for blob, array in values:
        blob.data[...] = array


def log_of_base(base, field):
    """Return ln(base), where -1 means e. Raises ConfigError unless `base` is -1 or more than 0."""
    if base != -1 and not base > 0:
        raise ConfigError(f"must be -1 (for e) or more than 0, got {base:g}", field=field)
    return 1.0 if base == -1 else math.log(base)
