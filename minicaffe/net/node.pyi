from typing import Any

from minicaffe.blob import Blob
from minicaffe.layer import Layer

ALONE: int
JOINED: int
CARRIED: int
LOST: int

class Node:
    bottom_needs: list[bool]
    needs_backward: bool
    layer: Layer
    bottoms: list[Blob]
    tops: list[Blob]
    followers: list[Node]
    moves: bool
    in_place: int
    fused: int
    into: str | None
    ran: int
    file: str | None
    line: int | None
    name: str
    type: str
    param: Any
    blobs: list[Blob]
    computes: list[str]
    loss_weights: list[float]
    def __init__(self, layer: Layer, bottoms: list[Blob], tops: list[Blob], file: str | None = None,
                 line: int | None = None) -> None: ...
    def carries(self) -> bool: ...
    def placed(self, error: Exception) -> Exception: ...

def link_followers(nodes: list[Node]) -> None: ...
def unchanged(layer: Layer) -> bool: ...
