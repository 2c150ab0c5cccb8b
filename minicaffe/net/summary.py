"""The words of a table about the layers of a net."""

CONVOLUTIONS = ("Convolution", "Deconvolution", "Im2col", "ConvolutionDepthwise", "DepthwiseConvolution")


def params(layer):
    """Return the parameters that are not as usual: ``(name 2xLR 0xDECAY, ...)``."""
    shown = []
    for param in layer.param:
        parts = [param.name] if param.name else []
        parts += [f"{param.lr_mult:g}xLR"] if param.HasField("lr_mult") and param.lr_mult != 1 else []
        parts += [f"{param.decay_mult:g}xDECAY"] if param.HasField("decay_mult") and param.decay_mult != 1 else []
        shown.append(" ".join(parts) or "-")
    return f"({', '.join(shown)})" if any(text != "-" for text in shown) else ""


def sizes(layer):
    """Return ``kernel/stride+pad num_output/group`` of a convolution or pooling, usual values left out."""
    if layer.type in CONVOLUTIONS:
        param = layer.convolution_param
        text = _window(param, *("x".join(map(str, sizes)) for sizes in (param.kernel_size, param.stride, param.pad)))
        return text + (f" {param.num_output}" if param.num_output else "") + (f"/{param.group}" if param.group != 1 else "")
    if layer.type == "Pooling":
        param = layer.pooling_param
        return "global" if param.global_pooling else _window(param, str(param.kernel_size), str(param.stride), str(param.pad))
    return str(layer.inner_product_param.num_output) if layer.type == "InnerProduct" else ""


def _window(param, kernel, stride, pad):
    sides = {name: f"{getattr(param, f'{name}_h')}x{getattr(param, f'{name}_w')}" for name in ("kernel", "stride", "pad")
             if param.HasField(f"{name}_h") or param.HasField(f"{name}_w")}
    kernel, stride, pad = sides.get("kernel", kernel), sides.get("stride", stride), sides.get("pad", pad)
    return kernel + (f"/{stride}" if stride not in ("", "1") else "") + (f"+{pad}" if pad not in ("", "0") else "")
