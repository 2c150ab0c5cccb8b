"""What programs written for OpenCV find here: `dnn`, in place of ``cv2.dnn``."""
