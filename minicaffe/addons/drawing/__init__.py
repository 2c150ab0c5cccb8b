"""Pictures of nets: ``minicaffe draw``, and ``minicaffe.draw``, pycaffe's ``caffe.draw``, which also the view of a trace uses."""

COMMANDS = {"draw": ("Look into a net", f"{__name__}.command:draw", "Draw a net.")}
MODULES = {"draw": f"{__name__}.draw"}
