"""Pictures of nets in files: ``minicaffe draw`` and ``minicaffe.draw``, which is pycaffe's ``caffe.draw``."""

COMMANDS = {"draw": ("Look into a net", f"{__name__}.command:draw", "Draw a net.")}
MODULES = {"draw": f"{__name__}.draw"}
