"""Gradients that backward computes against differences of forward: ``minicaffe gradcheck`` and ``minicaffe.gradcheck``."""

COMMANDS = {
    "gradcheck": ("Look into a net", f"{__name__}.command:gradcheck", "Compare the gradients of a net with differences."),
}
MODULES = {"gradcheck": f"{__name__}.gradient_check:gradcheck"}
