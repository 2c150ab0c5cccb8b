"""The steps of SSD's `transform_param` on a picture and its boxes before crop, mirror, mean and scale (im_transforms.cpp).

    distort -> expand -> batch samplers -> resize -> noise

Pictures are arrays (height, width, channels). Objects are rows of label, instance, xmin, ymin, xmax, ymax, difficult, the box
in units of the picture. Different from Caffe: draws are a function of the seed and the record's number; raw pictures are
distorted and expanded like encoded ones; noise is added with probability `prob`, if given.
"""

import numpy as np

from minicaffe.addons.ssd import resize
from minicaffe.data.datum import opencv
from minicaffe.data.mean_file import read_mean
from minicaffe.errors import ConfigError, DataError, ShapeError
from minicaffe.proto import caffe_pb2

BOX_COLUMNS = slice(2, 6)
POSTERIZE_STEP = 64
BLUR_SIZE, BLUR_SIGMA = (7, 7), 1.5
CLAHE_LIMIT = 4.0


class Augmenter:
    """Applies the steps; its state is constant.

    The lower 64 bits of `seed` are used. Raises ConfigError with the field of the TransformationParameter that is out of range.
    """

    def __init__(self, param, seed=0, samplers=None):
        self.param, self.samplers = param, samplers
        self.seed = seed & 0xFFFFFFFFFFFFFFFF
        if param.HasField("resize_param"):
            resize.check_resize(param.resize_param, "transform_param.resize_param")
        if param.HasField("distort_param"):
            _check_distortion(param.distort_param)
        if param.HasField("noise_param"):
            _check_noise(param.noise_param)
        if param.HasField("expand_param"):
            resize.check_probability(param.expand_param, "prob", "transform_param.expand_param")
            if not 1 <= param.expand_param.max_expand_ratio < 1000:
                raise ConfigError(f"must be at least 1 and below 1000, got {param.expand_param.max_expand_ratio:g}",
                                  field="transform_param.expand_param.max_expand_ratio")
            if (param.mean_file and param.expand_param.prob > 0 and param.expand_param.max_expand_ratio > 1
                    and not (param.HasField("resize_param") and param.resize_param.prob >= 1)):
                raise ConfigError("gives each picture a size of its own, which no mean_file fits; give a mean_value for each "
                                  "channel in place of the mean file", field="transform_param.expand_param")
        emit = param.emit_constraint
        if emit.emit_type == caffe_pb2.EmitConstraint.MIN_OVERLAP:
            resize.check_probability(emit, "emit_overlap", "transform_param.emit_constraint")
        self.border_colour = np.array(param.mean_value or [0.0])   # of each channel, or of all
        if param.mean_file and param.HasField("expand_param"):
            self.border_colour = read_mean(param.mean_file).mean((1, 2))

    def picture(self, image, number):
        """Return a picture without objects, (H, W) or (H, W, C), after all steps."""
        return self(image.reshape(*image.shape[:2], -1), np.zeros((0, 7)), number)[0]

    def __call__(self, image, objects, number):
        """Return the picture and the objects that are left after all steps; boxes may reach over the edge."""
        param, key = self.param, np.array([self.seed, number & 0xFFFFFFFFFFFFFFFF], np.uint64)
        random = np.random.Generator(np.random.Philox(key=key))
        if param.HasField("distort_param"):
            image = distort(param.distort_param, image, random)
        if param.HasField("expand_param"):
            image, objects = self._expand(image, objects, random)
        if self.samplers is not None:
            image, objects = self._sample(image, objects, random)
        if param.HasField("resize_param") and random.random() < param.resize_param.prob:
            frame = resize.content_box(param.resize_param, *image.shape[:2])
            image = resize.resize_picture(param.resize_param, image, random)
            objects = objects.copy()
            objects[:, BOX_COLUMNS] = resize.boxes_from_frame(frame, objects[:, BOX_COLUMNS])
        if param.HasField("noise_param"):
            noise = param.noise_param
            if not noise.HasField("prob") or random.random() < noise.prob:
                image = add_noise(noise, image, random)
        return image, objects

    def _expand(self, image, objects, random):
        """Put the picture somewhere on a larger one of the mean's colour."""
        param = self.param.expand_param
        if random.random() >= param.prob:
            return image, objects
        ratio = random.uniform(1, param.max_expand_ratio)
        height, width, channels = image.shape
        rows, columns = int(height * ratio), int(width * ratio)
        if rows * columns > resize.MOST_PIXELS:
            raise ShapeError(f"a picture of {height} x {width} would become {rows} x {columns}; lower max_expand_ratio",
                             field="transform_param.expand_param")
        top, left = int(random.integers(rows - height + 1)), int(random.integers(columns - width + 1))
        colour = self.border_colour if len(self.border_colour) in (1, channels) else self.border_colour.mean(keepdims=True)
        larger = resize.add_border(image, top, rows - height - top, left, columns - width - left, np.resize(colour, channels))
        return larger, self.project(objects, np.array([-left / width, -top / height, (columns - left) / width,
                                                       (rows - top) / height]))

    def _sample(self, image, objects, random):
        """Cut out one of the parts that the samplers find, if there is any."""
        part = self.samplers.draw(objects[:, BOX_COLUMNS], random)
        if part is None:
            return image, objects
        height, width = image.shape[:2]
        left, top = int(part[0] * width), int(part[1] * height)
        right, bottom = max(int(part[2] * width), left + 1), max(int(part[3] * height), top + 1)
        left, top, right, bottom = min(left, width - 1), min(top, height - 1), min(right, width), min(bottom, height)
        frame = np.array([left / width, top / height, right / width, bottom / height])
        return image[top:bottom, left:right], self.project(objects, frame)

    def project(self, objects, frame):
        """Return the objects in the coordinates of a part `frame` of the picture: those that meet `emit_constraint`, clipped."""
        boxes = objects[:, BOX_COLUMNS]
        shown = np.ones(len(boxes), bool)
        if self.param.HasField("emit_constraint"):
            emit = self.param.emit_constraint
            if emit.emit_type == caffe_pb2.EmitConstraint.CENTER:
                centre = (boxes[:, :2] + boxes[:, 2:]) / 2
                shown = ((centre >= frame[:2]) & (centre <= frame[2:])).all(1)
            else:
                shown = resize.overlaps(boxes, frame[np.newaxis])[1][:, 0] > emit.emit_overlap
        clipped = np.clip(resize.boxes_to_frame(frame, boxes), 0, 1)
        shown &= (clipped[:, :2] < clipped[:, 2:]).all(1)
        objects = objects[shown]
        objects[:, BOX_COLUMNS] = clipped[shown]
        return objects

    def finish(self, objects, window, height, width):
        """Return the objects in the coordinates of the crop `window` of a picture of `height` x `width` (`Transformer.window`)."""
        top, left, rows, columns, flipped = window
        objects = self.project(objects, np.array([left / width, top / height, (left + columns) / width, (top + rows) / height]))
        if flipped:
            objects[:, [2, 4]] = 1 - objects[:, [4, 2]]
        param = self.param.resize_param
        if param.resize_mode == resize.Resize.FIT_SMALL_SIZE and param.height_scale:
            # The boxes are in units of a fixed size, whatever size the picture has.
            objects[:, BOX_COLUMNS] *= np.tile([columns / param.width_scale, rows / param.height_scale], 2)
        return objects


# ---- distortions of colour

def _check_distortion(param):
    place = "transform_param.distort_param"
    for name in ("brightness", "contrast", "hue", "saturation", "random_order"):
        resize.check_probability(param, f"{name}_prob", place)
    for name in ("brightness_delta", "hue_delta"):
        if not 0 <= getattr(param, name) < 1e6:
            raise ConfigError(f"must be at least 0 and below 1e6, got {getattr(param, name):g}", field=f"{place}.{name}")
    for name in ("contrast", "saturation"):
        lower, upper = getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper")
        if not 0 <= lower <= upper < 1e6:
            raise ConfigError(f"must be below 1e6 and at least {name}_lower, which must be at least 0, got {upper:g} and {lower:g}",
                              field=f"{place}.{name}_upper")


def distort(param, image, random):
    """Return a uint8 picture with changed brightness, contrast, saturation, hue and order of channels.

    Half of the time contrast comes second, else fourth, where it acts on the new colours (Howard, 2013).
    """
    def factor(name):
        return random.uniform(getattr(param, f"{name}_lower"), getattr(param, f"{name}_upper"))

    def offset(name):
        delta = getattr(param, f"{name}_delta")
        return random.uniform(-delta, delta)

    _need_bytes(image, "distort_param")
    steps = [
        ("brightness", lambda image: _linear(image, 1, offset("brightness"))),
        ("saturation", lambda image: _linear_in_hsv(image, 1, factor("saturation"), 0, "saturation_prob")),
        ("hue", lambda image: _linear_in_hsv(image, 0, 1, offset("hue"), "hue_prob")),
        ("random_order", lambda image: np.ascontiguousarray(image[:, :, random.permutation(image.shape[2])]))]
    steps.insert(1 if random.random() < 0.5 else 3, ("contrast", lambda image: _linear(image, factor("contrast"), 0)))
    for name, step in steps:
        if random.random() < getattr(param, f"{name}_prob"):
            image = step(image)
    return image


def _linear(image, factor, offset):
    """factor x + offset, rounded and kept within 0..255."""
    return opencv().addWeighted(image, factor, image, 0, offset).reshape(image.shape)


def _linear_in_hsv(image, plane, factor, offset, name):
    """As `_linear`, for one plane of the picture in the colour space HSV."""
    cv2 = opencv()
    _need_colour(image, f"distort_param.{name}")
    hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    hsv[:, :, plane] = _linear(np.ascontiguousarray(hsv[:, :, plane]), factor, offset)
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2BGR)


# ---- noise

def _check_noise(param):
    place = "transform_param.noise_param"
    resize.check_probability(param, "prob", place)
    resize.check_probability(param.saltpepper_param, "fraction", f"{place}.saltpepper_param")
    if param.saltpepper and param.saltpepper_param.fraction > 0 and not param.saltpepper_param.value:
        raise ConfigError("give the value of the pixels, one for all channels or one for each",
                          field=f"{place}.saltpepper_param.value")
    if not param.jpeg <= 100:
        raise ConfigError(f"must be a quality up to 100, got {param.jpeg:g}", field=f"{place}.jpeg")
    if param.convert_to_hsv and param.convert_to_lab:
        raise ConfigError("give convert_to_hsv or convert_to_lab, not both", field=f"{place}.convert_to_lab")


def add_noise(param, image, random):
    """Return a uint8 picture after the steps of `noise_param`, in the order below; float32 after `convert_to_lab`."""
    cv2 = opencv()
    _need_bytes(image, "noise_param")
    colour = image.shape[2] == 3
    if param.decolorize and colour:
        image = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), cv2.COLOR_GRAY2BGR)
    if param.gauss_blur:
        image = cv2.GaussianBlur(image, BLUR_SIZE, BLUR_SIGMA).reshape(image.shape)   # OpenCV drops the axis of one channel
    if param.hist_eq:
        image = _on_brightness(image, cv2.equalizeHist)
    if param.clahe:
        image = _on_brightness(image, cv2.createCLAHE(clipLimit=CLAHE_LIMIT).apply)
    if param.jpeg > 0:
        _, content = cv2.imencode(".jpg", image, [cv2.IMWRITE_JPEG_QUALITY, int(param.jpeg)])
        image = cv2.imdecode(content, cv2.IMREAD_UNCHANGED).reshape(image.shape)
    if param.erode:
        image = cv2.erode(image, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (3, 3))).reshape(image.shape)
    if param.posterize:
        image = image // POSTERIZE_STEP * POSTERIZE_STEP + POSTERIZE_STEP // 2
    if param.inverse:
        image = 255 - image
    if param.saltpepper:
        image = _salt_and_pepper(param.saltpepper_param, image, random)
    if param.convert_to_hsv:
        _need_colour(image, "noise_param.convert_to_hsv")
        image = cv2.cvtColor(image, cv2.COLOR_BGR2HSV)
    if param.convert_to_lab:
        _need_colour(image, "noise_param.convert_to_lab")
        image = cv2.cvtColor(image.astype(np.float32) / 255, cv2.COLOR_BGR2Lab)
    return image


def _on_brightness(image, change):
    """Change a gray picture, or the brightness of one in colour."""
    cv2 = opencv()
    if image.shape[2] != 3:
        return np.stack([change(np.ascontiguousarray(image[:, :, c])) for c in range(image.shape[2])], 2)
    planes = cv2.cvtColor(image, cv2.COLOR_BGR2YCrCb)
    planes[:, :, 0] = change(np.ascontiguousarray(planes[:, :, 0]))
    return cv2.cvtColor(planes, cv2.COLOR_YCrCb2BGR)


def _salt_and_pepper(param, image, random):
    height, width, channels = image.shape
    count = int(param.fraction * height * width)
    if not count:
        return image
    if len(param.value) not in (1, channels):
        raise ConfigError(f"give one, or one for each of the {channels} channels, got {len(param.value)}",
                          field="transform_param.noise_param.saltpepper_param.value")
    image = image.copy()
    image[random.integers(height, size=count), random.integers(width, size=count)] = np.clip(param.value, 0, 255)
    return image


def _need_bytes(image, field):
    if image.dtype != np.uint8:
        raise DataError(f"holds a picture of {image.dtype}; {field} works on pictures of bytes")


def _need_colour(image, field):
    if image.shape[2] != 3:
        raise DataError(f"holds a picture of {image.shape[2]} channels; {field} needs 3")


augmenter = Augmenter   # of data layers of the core (minicaffe/proto/unknown.py)
