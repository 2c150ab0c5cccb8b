"""Interfaces for programs written for OpenCV: `dnn` replaces ``cv2.dnn``."""

MODULES = {"dnn": f"{__name__}.dnn"}
