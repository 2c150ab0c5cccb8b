"""Places for memory: host, pinned host, and each CUDA device (PaddlePaddle's CPUPlace and CUDAPlace).

A place is a value: equal places are one key of the registry. It holds no memory and does not depend on a driver.
"""

from dataclasses import dataclass
from typing import ClassVar

from minicaffe.errors import ConfigError, WrongTypeError, shown


@dataclass(frozen=True, slots=True)
class CPUPlace:
    """Ordinary host memory."""

    on_host: ClassVar[bool] = True  # whether the host can dereference a pointer to it


@dataclass(frozen=True, slots=True)
class PinnedPlace:
    """Page-locked host memory, which a device copies to and from directly."""

    on_host: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class CUDAPlace:
    """Memory of CUDA device `device`. Raises ConfigError if `device` is negative; WrongTypeError if it is not an int."""

    device: int = 0
    on_host: ClassVar[bool] = False

    def __post_init__(self):
        if not isinstance(self.device, int):
            raise WrongTypeError(f"a device number must be an int, got {shown(self.device)}", field="CUDAPlace.device")
        if self.device < 0:
            raise ConfigError(f"a device number must be at least 0, got {self.device}", field="CUDAPlace.device")

    def __repr__(self):
        return f"CUDAPlace({self.device})"


def check_place(place, call):
    """Raise WrongTypeError unless `place` is a place; `call` begins the message: ``memory.use``."""
    if not isinstance(place, CPUPlace | PinnedPlace | CUDAPlace):
        meant = f"; device {place} is CUDAPlace({place})" if type(place) is int and place >= 0 else ""
        raise WrongTypeError(f"{call} needs a place, CPUPlace(), PinnedPlace() or CUDAPlace(i), got {shown(place)}{meant}")
