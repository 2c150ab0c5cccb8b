"""Answers to chapter 9."""


def convolution_cost(shape, num_output, kernel, stride, pad):
    n, c, h, w = shape
    out_h, out_w = ((size + 2 * pad - kernel) // stride + 1 for size in (h, w))
    weights, top = num_output * c * kernel ** 2, n * num_output * out_h * out_w
    return 2 * weights * n * out_h * out_w, 4 * (n * c * h * w + weights + top)


def attainable(operations, nbytes, peak, bandwidth):
    return min(peak, bandwidth * operations / nbytes)


def lane_index(n, c, h, w, shape, lanes):
    _, channels, height, width = shape
    groups = -(-channels // lanes)
    return (((n * groups + c // lanes) * height + h) * width + w) * lanes + c % lanes


def reorders(layouts):
    private, made = None, 0
    for layout in layouts:
        if layout not in ("plain", private):
            private, made = layout, made + 1
    return made
