"""Interfaces for programs written for OpenCV: `dnn` replaces ``cv2.dnn``."""
