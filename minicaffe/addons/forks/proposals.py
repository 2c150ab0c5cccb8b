"""Layers of the R-CNN family that compute boxes, (index of the image in the batch, x1, y1, x2, y2) in pixels, from predictions.

They pass no gradient: backward writes zeros, as in the forks. Nets of the forks train the layers before them by separate losses.
"""

import logging
import math

import numpy as np

from minicaffe.addons.forks.base import ForkLayer, check_planes
from minicaffe.addons.forks.messages import Field, checked_message
from minicaffe.addons.forks.rois import MAX_COORDINATE, check_rois, decode_boxes, read_rois, suppress
from minicaffe.common import TRAIN
from minicaffe.errors import ConfigError, DataError, ShapeError

log = logging.getLogger(__name__)

CODES = (Field("bbox_mean", [float], "added to the codes dx, dy, dw, dh after bbox_std; ignored without bbox_std"),
         Field("bbox_std", [float], "the codes are multiplied by it; ignored without bbox_mean"),
         Field("cls_aware", True, "changes nothing here"))


class BoxesLayer(ForkLayer):
    """Base of the types whose tops have one row for each box that is found: forward sets their shapes."""

    refuses_in_place = True
    backward_reads_bottoms = backward_reads_tops = False
    columns = ()    # shape of a row, for each top

    def setup(self, bottom, top):
        for blob, width in zip(top, self.columns):
            blob.reshape(1, *width)

    def write(self, top, *arrays):
        """Write the rows of an array to each top, in the shape that they need."""
        for blob, rows, width in zip(top, arrays, self.columns):
            blob.reshape(len(rows), *width)
            blob.data[...] = rows.reshape(blob.shape)

    def read_codes(self):
        """Return the mean and the standard deviation of codes, from bbox_reg_param."""
        values, _ = checked_message(self.fields, "bbox_reg_param", CODES)
        given = [name for name in ("bbox_mean", "bbox_std") if values[name]]
        if len(given) < 2:
            for name in given:
                log.warning("layer '%s': bbox_reg_param.%s is ignored, as in the forks, which need both of bbox_mean and bbox_std",
                            self.name, name)
            return np.zeros(4), np.ones(4)
        for name in given:
            if len(values[name]) != 4:
                raise ConfigError(f"give none or four, for dx, dy, dw, dh, got {len(values[name])}", field=f"bbox_reg_param.{name}")
        return np.array(values["bbox_mean"]), np.array(values["bbox_std"])


class ProposalLayer(BoxesLayer):
    """The best boxes of a region proposal network (RPN), as ROIs.

    Each cell of the map has A anchors, one for each `ratio` and `scale`, scales within ratios. With B = `base_size` an anchor of
    ratio r and scale s has the width w s and the height h s, where w = round(sqrt(B B / r)) and h = round(w r). Its centre is
    ((B - 1) / 2, (B - 1) / 2) plus the cell's column and row times `feat_stride`. Codes move and scale the anchor; the box is
    clipped to the image. A box with a side less than `min_size` times the image's scale gets score 0. Of the `pre_nms_topn` best,
    those that a better one overlaps by more than `nms_thresh` are removed. The best `post_nms_topn` of the rest are returned. Both
    edges belong to a box.
    A score or a box that is not a number, or an image without size, raises DataError, which names the image.

    Different from its forks: boxes of equal score come in the order rows, columns, anchors; a batch may have several images, as in
    caffe-windows only. The anchors of caffe-windows are not rounded, and its `scale` is a size in pixels; its files look the
    same, so they get the anchors above. synopsys' fields (`anchor_scale`) are an error.

    Source: pvanet proposal_layer.cpp (Ren et al. 2015, Faster R-CNN).

    Parameters
    ----------
    bottom[0] : Blob, shape (N, 2 A, H, W)
        Probabilities: of the background for all anchors, then of objects.
    bottom[1] : Blob, shape (N, 4 A, H, W)
        Codes dx, dy, dw, dh of anchor 0, of anchor 1, and so on.
    bottom[2] : Blob, shape (1, 3) or (1, 4), or (N, 3) or (N, 4)
        Height and width of the image in pixels, and its scale, or the scale of its height and that of its width. Axes of
        size 1 may follow.
    top[0] : Blob, shape (K, 5)
        ROIs, by image and falling score; K is at least N.
    top[1] : Blob, shape (K), optional
        Their scores.
    """

    message = "proposal_param"
    fields_of_message = (
        Field("feat_stride", 16, "pixels of the input for one cell of the map", 1),
        Field("base_size", 16, "side of an anchor of ratio and scale 1", 1),
        Field("min_size", 16, "the least side of a box, in pixels of the image before its scale", 0),
        Field("ratio", [float], "height / width of anchors; at least one"),
        Field("scale", [float], "sizes of anchors; at least one"),
        Field("pre_nms_topn", 6000, "boxes that are compared", 1), Field("post_nms_topn", 300, "boxes that are returned", 1),
        Field("nms_thresh", 0.7, "overlap above which a box is removed", 0))
    exact_num_bottom_blobs = 3
    min_top_blobs = 1
    max_top_blobs = 2
    columns = (5,), ()

    def setup(self, bottom, top):
        super().setup(bottom, top)
        for name in ("ratio", "scale"):
            if not self.values[name] or not all(0 < value < math.inf for value in self.values[name]):
                raise self.value_error(name, "give at least one, finite and above 0")
        base, ratios = self.values["base_size"], np.array(self.values["ratio"])
        with np.errstate(over="ignore"):
            widths = np.floor(np.sqrt(base ** 2 / ratios) + 0.5)
            sides = np.column_stack([widths, np.floor(widths * ratios + 0.5)])
            sides = (sides[:, np.newaxis] * np.array(self.values["scale"])[:, np.newaxis]).reshape(-1, 2)
        if not sides.max() < MAX_COORDINATE:
            raise self.value_error("scale", f"with base_size and ratio gives an anchor of {sides.max():g} pixels, too large")
        self.anchors = (base - 1) / 2 + (sides[:, [0, 1, 0, 1]] - 1) / 2 * [-1, -1, 1, 1]

    def reshape(self, bottom, top):
        anchors = len(self.anchors)
        for i, (kind, count) in enumerate((("probabilities", 2), ("codes", 4))):
            check_planes(bottom[i], f"bottom[{i}]")
            if bottom[i].shape[1] != count * anchors:
                raise ShapeError(f"must have {count} {kind} for each of {anchors} anchors (ratio x scale), {count * anchors} "
                                 f"channels, got {list(bottom[i].shape)}", field=f"bottom[{i}]")
        scores, codes, info = (blob.shape for blob in bottom)
        if (scores[0], scores[2:]) != (codes[0], codes[2:]):
            raise ShapeError(f"has shape {list(codes)}, bottom[0] has {list(scores)}; images and map must be equal",
                             field="bottom[1]")
        if math.prod(info) not in (3, 4) and not (len(info) > 1 and info[0] == scores[0] and math.prod(info[1:]) in (3, 4)):
            raise ShapeError("must be height, width and scale, or two scales, for all images or each of "
                             f"{scores[0]}, got {list(info)}", field="bottom[2]")

    def forward(self, bottom, top):
        scores, codes, info = (blob.cpu_data for blob in bottom)
        info = info.reshape(1 if info.size in (3, 4) else len(info), -1)
        found = [self._boxes(image, scores[image], codes[image], info[min(image, len(info) - 1)]) for image in range(len(scores))]
        rois, scores = (np.concatenate(parts) for parts in zip(*found)) if found else (np.empty((0, 5)), np.empty(0))
        self.write(top, rois, scores)

    def _boxes(self, image, scores, codes, info):
        """Return the ROIs and scores of an image."""
        limits, scales = info[1::-1] - 1, info[[-1, 2]]     # x before y
        if not (np.isfinite(info).all() and (info > 0).all()):
            raise DataError(f"size and scale of image {image} must be finite and above 0, got {info.tolist()}", field="bottom[2]")
        count, (height, width) = len(self.anchors), scores.shape[1:]
        scores = scores[count:].transpose(1, 2, 0).ravel()
        cells = np.stack(np.meshgrid(np.arange(width), np.arange(height)), 2)[:, :, [0, 1, 0, 1]] * self.values["feat_stride"]
        anchors = (cells[:, :, np.newaxis] + self.anchors).astype(scores.dtype)
        centres, sides = decode_boxes(anchors, codes.reshape(count, 4, height, width).transpose(2, 3, 0, 1))
        boxes = np.stack([centres - sides / 2, centres + sides / 2], 3).reshape(-1, 2, 2).clip(0, limits)
        wrong = np.isnan(scores) | np.isnan(boxes).any((1, 2))
        for i in np.flatnonzero(wrong)[:1]:
            row, column, anchor = np.unravel_index(i, (height, width, count))
            what = ("score", "bottom[0]") if np.isnan(scores[i]) else ("box", "bottom[1]")
            raise DataError(f"the {what[0]} of anchor {anchor} at row {row}, column {column} of image {image} is not a number",
                            field=what[1])
        small = (boxes[:, 1] - boxes[:, 0] + 1 < self.values["min_size"] * scales).any(1)
        scores = np.where(small, 0, scores)
        best = np.argsort(-scores, kind="stable")[:self.values["pre_nms_topn"]]
        boxes = boxes.reshape(-1, 4)
        best = best[suppress(boxes[best], self.values["nms_thresh"], self.values["post_nms_topn"], pixels=1)]
        return np.insert(boxes[best], 0, image, axis=1), scores[best]


class DecodeBBoxLayer(BoxesLayer):
    """ROIs that codes have moved and scaled, for the next stage of a cascade.

    The codes of a ROI are ``bbox_std code + bbox_mean`` of its columns 4 to 7, those of objects. They move the ROI's centre by
    (dx, dy) times its sides and multiply its sides, which count both edges, by (exp dw, exp dh). In phase TEST all ROIs are kept.
    Phase TRAIN removes those whose overlap with their object is `gt_iou_thr` or more, and boxes with x2 < x1 or y2 < y1.
    A ROI or a decoded box that is not finite raises DataError, which names it.

    Different from its forks: if phase TRAIN removes all, the top has no rows; it is not an error.

    Source: cascade-rcnn decode_bbox_layer.cpp (Cai and Vasconcelos 2018, Cascade R-CNN).

    Parameters
    ----------
    bottom[0] : Blob, shape (R, 8) or (R, 8, 1, 1)
        Codes of the background, then of objects.
    bottom[1] : Blob, shape (R, 5) or (R, 5, 1, 1)
        ROIs; R may be 0.
    bottom[2] : Blob, shape (R, ...), in phase TRAIN only
        Objects; the last value of each row is its overlap with the ROI.
    top[0] : Blob, shape (R, 5, 1, 1)
        ROIs, not clipped to the image.
    """

    message = "decode_bbox_param"
    fields_of_message = (Field("gt_iou_thr", 0.95, "TRAIN removes ROIs that overlap their object by this or more", 0),)
    min_bottom_blobs = 2
    max_bottom_blobs = 3
    exact_num_top_blobs = 1
    columns = (5, 1, 1),

    def setup(self, bottom, top):
        super().setup(bottom, top)
        self.mean, self.std = self.read_codes()
        if len(bottom) != (3 if self.phase == TRAIN else 2):
            raise ConfigError(f"give codes and ROIs, and in phase TRAIN their objects too, got {len(bottom)} in "
                              f"{'TRAIN' if self.phase == TRAIN else 'TEST'}", field="bottom")

    def reshape(self, bottom, top):
        count = check_rois(bottom[1])
        if not bottom[0].shape or bottom[0].shape[0] != count or math.prod(bottom[0].shape[1:]) != 8:
            raise ShapeError(f"must be 8 codes for each of {count} ROIs, got {list(bottom[0].shape)}", field="bottom[0]")
        if len(bottom) > 2 and (not bottom[2].shape or bottom[2].shape[0] != count or 0 in bottom[2].shape[1:]):
            raise ShapeError(f"must have a row for each of {count} ROIs, got {list(bottom[2].shape)}", field="bottom[2]")

    def forward(self, bottom, top):
        rois = read_rois(bottom[1])
        codes = bottom[0].cpu_data.reshape(-1, 8)[:, 4:] * self.std + self.mean
        boxes = rois[:, 1:].astype(float)
        centres, sides = decode_boxes(boxes, codes)
        first = centres - 0.5 - (sides - 1) / 2     # decode_boxes puts the centre of pixel 0 at 1/2
        result = np.concatenate([rois[:, :1], first, first + sides - 1], 1)
        for i in np.flatnonzero(~np.isfinite(result.astype(rois.dtype)).all(1))[:1]:
            raise DataError(f"the box of ROI {i} is not finite; its codes are {codes[i].tolist()}", field="bottom[0]")
        if len(bottom) > 2:
            overlap = bottom[2].cpu_data.reshape(len(rois), -1)[:, -1] if len(rois) else rois[:, 0]
            result = result[(result[:, 1:3] <= result[:, 3:]).all(1) & (overlap < self.values["gt_iou_thr"])]
        self.write(top, result)


class BoxOutputLayer(BoxesLayer):
    """The boxes that several maps of a net predict, each map for objects of one size.

    A cell's score is that of its best class, without class 0, minus that of class 0. Cells with less than `fg_thr` give no box.
    The codes of a cell are ``bbox_std code + bbox_mean``. The centre of its box is at x = field_w clamp(dx, 1 / field_xyr) +
    (column + 1/2) rate, and its width is field_w exp(clamp(dw, log field_whr)), where clamp(x, y) is x within -y to y. Its y and
    height are computed likewise. The first corner is the centre minus half of the size, at least 0. Then the size is clipped to the
    image, which is W rate wide. Boxes with a side less than `min_size` are removed. The best `max_nms_num` of an image are
    compared: a box that a better one overlaps by more than `iou_thr` is removed. The best `max_post_nms_num` are returned; 0 means
    all.
    A score or codes that are not a number raise DataError, which names image and cell.

    Different from its fork: boxes of equal score come in the order of bottoms, rows and columns.

    Source: mscnn box_output_layer.cpp (Cai et al. 2016, MS-CNN).

    Parameters
    ----------
    bottom[j] : Blob, shape (N, classes + 4, H, W)
        Scores before the softmax, then codes dx, dy, dw, dh.
    top[0] : Blob, shape (K, 5)
        ROIs by image and falling score; (0, 1, 1, 10, 10) if there are none.
    top[1] : Blob, shape (K, 6), optional
        The same with the score as last column; a row of zeros if there are none.
    """

    message = "box_output_param"
    fields_of_message = (
        Field("fg_thr", 0.0, "the least score"), Field("iou_thr", 0.5, "overlap above which a box is removed", 0),
        Field("nms_type", "IOU", "what intersections are divided by: the union (IOU), smaller area (IOMU), better box (IOFU)",
              choices=("IOU", "IOMU", "IOFU")),
        Field("field_h", [int], "height of the objects of each bottom", 1), Field("field_w", [int], "width of them", 1),
        Field("downsample_rate", [int], "pixels of the image for one cell of each bottom", 1),
        Field("field_whr", 2.0, "a side is at most field_whr times that of the field, and at least 1 / field_whr times"),
        Field("field_xyr", 2.0, "the centre moves by at most 1 / field_xyr of the field"),
        Field("max_nms_num", 0, "boxes that are compared", 0), Field("max_post_nms_num", 0, "boxes that are returned", 0),
        Field("min_size", 15.0, "the least side of a box", 0))
    min_bottom_blobs = 1
    min_top_blobs = 1
    max_top_blobs = 2
    columns = (5,), (6,)

    def setup(self, bottom, top):
        super().setup(bottom, top)
        self.mean, self.std = self.read_codes()
        for name in ("field_h", "field_w", "downsample_rate"):
            if len(self.values[name]) != len(bottom):
                raise self.value_error(name, f"give one for each of the {len(bottom)} bottoms")
        if not 1 <= self.values["field_whr"] < math.inf:
            raise self.value_error("field_whr", "must be finite and at least 1")
        if not 0 < self.values["field_xyr"] < math.inf:
            raise self.value_error("field_xyr", "must be finite and above 0")

    def reshape(self, bottom, top):
        for i, blob in enumerate(bottom):
            check_planes(blob, f"bottom[{i}]")
            if blob.shape[1] < 6:
                raise ShapeError(f"must have the scores of at least 2 classes and 4 codes, got {list(blob.shape)}",
                                 field=f"bottom[{i}]")
            if blob.shape[:2] != bottom[0].shape[:2]:
                raise ShapeError(f"has shape {list(blob.shape)}, bottom[0] has {list(bottom[0].shape)}; images and channels must "
                                 "be equal", field=f"bottom[{i}]")

    def forward(self, bottom, top):
        rows = np.concatenate([self._rows(blob.cpu_data, i) for i, blob in enumerate(bottom)])
        found, max_boxes = [], self.values["max_post_nms_num"] or None
        for image in range(bottom[0].shape[0]):
            image_rows = rows[rows[:, 0] == image]
            image_rows = image_rows[np.argsort(-image_rows[:, 5], kind="stable")[:self.values["max_nms_num"] or None]]
            kept = suppress(image_rows[:, 1:5], self.values["iou_thr"], max_boxes, divisor=self.values["nms_type"])
            found.append(image_rows[kept])
        rows = np.concatenate(found) if found else rows
        self.write(top, *((rows[:, :5], rows) if len(rows) else (np.array([[0, 1, 1, 10, 10]]), np.zeros((1, 6)))))

    def _rows(self, data, index):
        """Return (image, x1, y1, x2, y2, score) of the boxes of a bottom."""
        field_h, field_w, rate = (self.values[name][index] for name in ("field_h", "field_w", "downsample_rate"))
        data = data.transpose(0, 2, 3, 1)
        score = data[..., 1:-4].max(3) - data[..., 0]
        for image, row, column in np.argwhere(np.isnan(score) | np.isnan(data[..., -4:]).any(3))[:1]:
            raise DataError(f"row {row}, column {column} of image {image} is not a number", field=f"bottom[{index}]")
        cells = np.argwhere(score >= self.values["fg_thr"])
        image, row, column = cells.T
        codes = data[image, row, column, -4:].astype(float) * self.std + self.mean
        move, stretch = 1 / self.values["field_xyr"], math.log(self.values["field_whr"])
        sides = np.exp(codes[:, 2:].clip(-stretch, stretch)) * [field_w, field_h]
        centres = codes[:, :2].clip(-move, move) * [field_w, field_h] + (cells[:, :0:-1] + 0.5) * rate
        first = np.maximum(centres - sides / 2, 0)
        sides = np.minimum(sides, np.array([data.shape[2], data.shape[1]]) * rate - first)
        large = (sides >= self.values["min_size"]).all(1)
        return np.column_stack([image, first, first + sides, score[image, row, column]])[large]
