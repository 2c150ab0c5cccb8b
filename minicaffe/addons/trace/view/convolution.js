"use strict";

/* The arithmetic of "convolution up close": what minicaffe/layers/base/window.pyx computes, the layer as prototxt, and its settings
in the address of the page. convolution.html draws it. */

const offset = ([, C, H, W], c, h, w) => (c * H + h) * W + w;      // of image 0; Blob.offset
const filled = (n, f) => Array.from({length: n}, (_, i) => f(i));
const values = (shape, f) => filled(shape.reduce((a, b) => a * b, 1), f);
const bottomValue = (i) => (7 * i + 3) % 10;                        // small whole numbers: sums are exact
const weightValue = (i) => (5 * i + 1) % 3 - 1;

/** Everything about a layer with settings s: shapes, values of all blobs, the column matrix. `error` if there is no such layer. */
function layer(s) {
  const {kernel, stride, pad, dilation, group} = s, covered = dilation * (kernel - 1) + 1;
  const size = (n) => Math.trunc((n + 2 * pad - covered) / stride) + 1;
  const bottom = [1, s.channels, s.height, s.width], top = [1, s.outputs, size(s.height), size(s.width)];
  for (const a of [0, 1]) if (top[2 + a] < 1) return {s, bottom, top,
    error: `the output would have size ${top[2 + a]} along spatial axis ${a}, where the input has ${bottom[2 + a]}: `
      + `the window covers ${covered} pixels, the padded input has ${bottom[2 + a] + 2 * pad}`};
  const perGroup = {bottom: s.channels / group, top: s.outputs / group};
  // The pixel that tap (i, j) of window (p, q) reads, of channel c: -1 outside of the image
  const at = (p, i) => p * stride - pad + i * dilation;
  const inside = (h, w) => h >= 0 && h < s.height && w >= 0 && w < s.width;
  const pixel = (c, p, q, i, j) => inside(at(p, i), at(q, j)) ? offset(bottom, c, at(p, i), at(q, j)) : -1;
  const weightShape = [s.outputs, perGroup.bottom, kernel, kernel], rows = s.channels * kernel * kernel, windows = top[2] * top[3];
  const weightAt = (m, c, i, j) => ((m * perGroup.bottom + c % perGroup.bottom) * kernel + i) * kernel + j;
  const row = (c, i, j) => (c * kernel + i) * kernel + j;
  const x = values(bottom, bottomValue), w = values(weightShape, weightValue), y = values(top, () => 0);
  const pixels = filled(rows * windows, () => -1);                  // of the column matrix: indices in the bottom
  for (let c = 0; c < s.channels; ++c) for (let i = 0; i < kernel; ++i) for (let j = 0; j < kernel; ++j)
    for (let p = 0; p < top[2]; ++p) for (let q = 0; q < top[3]; ++q) {
      const read = pixel(c, p, q, i, j), g = Math.floor(c / perGroup.bottom);
      pixels[row(c, i, j) * windows + p * top[3] + q] = read;
      for (let m = g * perGroup.top; m < (g + 1) * perGroup.top && read >= 0; ++m)
        y[offset(top, m, p, q)] += w[weightAt(m, c, i, j)] * x[read];
    }
  const columns = pixels.map((read) => read < 0 ? 0 : x[read]);
  return {s, covered, bottom, top, perGroup, at, inside, weightShape, weightAt, rows, windows, row, x, w, y, pixels, columns};
}

/** The layer as a net in prototxt; tests build it. */
function prototxt(s) {
  const shape = [1, s.channels, s.height, s.width].map((n) => `dim: ${n}`).join(" ");
  return `layer {\n  name: "data" type: "Input" top: "x"\n  input_param { shape { ${shape} } }\n}\n` +
    `layer {\n  name: "close" type: "Convolution" bottom: "x" top: "y"\n  convolution_param {\n` +
    `    num_output: ${s.outputs} kernel_size: ${s.kernel} stride: ${s.stride} pad: ${s.pad}\n` +
    `    dilation: ${s.dilation} group: ${s.group} bias_term: false\n  }\n}\n`;
}

// Settings: first value, least, most
const SETTINGS = {kernel: [3, 1, 5], stride: [2, 1, 4], pad: [1, 0, 3], dilation: [1, 1, 3], group: [1, 1, 4],
                  height: [5, 1, 10], width: [5, 1, 10], channels: [2, 1, 4], outputs: [2, 1, 4]};
const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

const toHash = (s) => "#" + Object.entries(s).map(([name, value]) => `${name}=${value}`).join("&");

/** The settings in an address; a group that does not divide the channels becomes the next less one that does. */
function fromHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, "")), s = {};
  for (const [name, [first, least, most]] of Object.entries(SETTINGS)) {
    const number = given.has(name) ? Number(given.get(name)) : first;
    s[name] = Number.isInteger(number) ? clamp(number, least, most) : first;
  }
  while (s.channels % s.group || s.outputs % s.group) --s.group;
  return s;
}
