"""Caffe2's workspace: typed slots by name, tensors, nets run by plans, and files of them (docs/workspace.md)."""

MODULES = {
    "Slot": f"{__name__}.slot:Slot",
    "Tensor": f"{__name__}.tensor:Tensor",
    "Workspace": f"{__name__}.workspace:Workspace",
    "plan": f"{__name__}.plan",
    "serialization": f"{__name__}.serialization",
}
