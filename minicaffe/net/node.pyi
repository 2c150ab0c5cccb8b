from typing import Any

from minicaffe.blob import Blob
from minicaffe.layer import Layer

class Node:
    bottom_needs: list[bool]
    needs_backward: bool
    layer: Layer
    bottoms: list[Blob]
    tops: list[Blob]
    file: str | None
    line: int | None
    name: str
    type: str
    param: Any
    blobs: list[Blob]
    loss_weights: list[float]
    def __init__(self, layer: Layer, bottoms: list[Blob], tops: list[Blob], file: str | None = None,
                 line: int | None = None) -> None: ...
    def with_place(self, error: Exception) -> Exception: ...

def overwrites_outputs(layer: Layer) -> bool: ...
def has_builtin_passes(layer: Layer) -> bool: ...
