"""Detection nets of the SSD fork: layer types, pictures with boxes, mean average precision, ``minicaffe detect``."""

LAYERS = {
    "AnnotatedData": f"{__name__}.annotated_data:AnnotatedDataLayer",
    "DetectionEvaluate": f"{__name__}.detection_evaluate:DetectionEvaluateLayer",
    "DetectionOutput": f"{__name__}.detection_output:DetectionOutputLayer",
    "MultiBoxLoss": f"{__name__}.multi_box_loss:MultiBoxLossLayer",
    "Normalize": f"{__name__}.normalize:NormalizeLayer",
    "Permute": f"{__name__}.permute:PermuteLayer",
    "PriorBox": f"{__name__}.prior_box:PriorBoxLayer",
    "PriorBoxClustered": f"{__name__}.prior_box:PriorBoxClusteredLayer",
    "SmoothL1Loss": f"{__name__}.smooth_l1_loss:SmoothL1LossLayer",
    "VideoData": f"{__name__}.video_data:VideoDataLayer",
}
COMMANDS = {
    "detect": ("Use a trained net", f"{__name__}.detect:detect", "Find boxes on pictures by a net of SSD.", "parallel"),
    "convert_annoset": ("Data", f"{__name__}.annosets:convert_annoset", "Make a database of pictures with boxes."),
}
MODULES = {"model_libs": f"{__name__}.model_libs"}
