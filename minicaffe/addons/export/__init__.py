"""Nets in other forms: deploy, ONNX, PyTorch, folded (docs/taking_your_net_elsewhere.md); from ONNX (docs/bringing_a_net.md)."""

COMMANDS = {
    "deploy": ("Convert a net", f"{__name__}.deploy_command:deploy", "Make the net that predicts from a training net."),
    "export": ("Convert a net", f"{__name__}.commands:export", "Write a net as a model of ONNX, or a module of PyTorch."),
    "fold": ("Convert a net", f"{__name__}.commands:fold", "Fold BatchNorm, Scale and Bias into weights before them."),
    "import": ("Convert a net", f"{__name__}.commands:import_", "Turn a model of ONNX into a prototxt and a caffemodel."),
}
MODULES = {"onnx": f"{__name__}.onnx", "pytorch": f"{__name__}.pytorch"}
