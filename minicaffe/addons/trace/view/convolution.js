"use strict";

/* The arithmetic of "convolution up close": what minicaffe/layers/base/window.pyx and minicaffe/layers/pooling.pyx compute, the
layer as prototxt, and its settings in the address of the page. convolution.html draws it. */

// A convolution reads an image through windows; a deconvolution writes one. So `image` is the side that windows lie on, the bottom
// of a convolution or pooling and the top of a deconvolution, and `grid` the side with one element for each window.

const convolved = (size, kernel, stride, pad, dilation) => Math.trunc((size + 2 * pad - dilation * (kernel - 1) - 1) / stride) + 1;
const deconvolved = (size, kernel, stride, pad, dilation) => stride * (size - 1) + dilation * (kernel - 1) + 1 - 2 * pad;

/** Windows of a pooling along an axis: how many rounding gives, and whether the last one is dropped. */
function pooled(size, kernel, stride, pad, padded, rounding) {
  const counted = Math[rounding === "FLOOR" ? "floor" : "ceil"]((size + 2 * pad - kernel) / stride) + 1;
  const dropped = padded && (counted - 1) * stride >= size + pad;
  return {counted, dropped, windows: counted - dropped};
}

const offset = ([, C, H, W], c, h, w) => (c * H + h) * W + w;      // of image 0; Blob.offset
const count = (shape) => shape.reduce((a, b) => a * b, 1);
const filled = (n, f) => Array.from({length: n}, (_, i) => f(i));
const bottomValue = (i) => (7 * i + 3) % 10;                        // small whole numbers: sums are exact
const weightValue = (i) => (5 * i + 1) % 3 - 1;

/** Everything about a layer with settings s: shapes, values of all blobs, the column matrix. `error` if there is no such layer. */
function layer(s) {
  const pooling = s.operation === "pooling", transposed = s.operation === "deconvolution";
  const outputs = pooling ? s.channels : s.outputs, group = pooling ? s.channels : s.group;
  const dilation = pooling ? [1, 1] : s.dilation, inputs = [s.height, s.width];
  const padded = s.pad[0] > 0 || s.pad[1] > 0;
  const axis = (a) => [inputs[a], s.kernel[a], s.stride[a], s.pad[a]];
  const rounding = [0, 1].map((a) => pooling ? pooled(...axis(a), padded, s.rounding) : null);
  const sizes = [0, 1].map((a) => pooling ? rounding[a].windows : (transposed ? deconvolved : convolved)(...axis(a), dilation[a]));
  const bottom = [1, s.channels, ...inputs], top = [1, outputs, ...sizes];
  const result = {s, pooling, transposed, group, dilation, rounding, bottom, top};
  for (const a of [0, 1]) {
    if (pooling && s.pad[a] >= s.kernel[a]) return {...result, error: "pooling_param.pad: must be less than the kernel"};
    const covered = dilation[a] * (s.kernel[a] - 1) + 1, padded = inputs[a] + 2 * s.pad[a];
    if (sizes[a] < 1) return {...result,
      error: `the output would have size ${sizes[a]} along spatial axis ${a}, where the input has ${inputs[a]}`
        + (transposed || pooling ? "" : `: the window covers ${covered} pixels, the padded input has ${padded}`)};
  }
  const image = transposed ? result.top : result.bottom, grid = transposed ? result.bottom : result.top;
  const perGroup = {image: image[1] / group, grid: grid[1] / group};
  Object.assign(result, {image, grid, perGroup, x: filled(count(bottom), bottomValue)});
  // The pixel that tap (i, j) of window (p, q) reads or writes: of channel c, -1 outside of the image
  const at = (p, i, a) => p * s.stride[a] - s.pad[a] + i * dilation[a];
  const inside = (h, w) => h >= 0 && h < image[2] && w >= 0 && w < image[3];
  const pixel = (c, p, q, i, j) => inside(at(p, i, 0), at(q, j, 1)) ? offset(image, c, at(p, i, 0), at(q, j, 1)) : -1;
  const [kh, kw] = s.kernel, windows = grid[2] * grid[3], y = filled(count(result.top), () => 0);
  Object.assign(result, {at, inside, pixel, windows, y});
  if (pooling) return poolAll(result);
  result.weightShape = [grid[1], result.perGroup.image, kh, kw];
  result.w = filled(count(result.weightShape), weightValue);
  result.weightAt = (m, c, i, j) => ((m * result.perGroup.image + c % result.perGroup.image) * kh + i) * kw + j;
  result.rows = image[1] * kh * kw;
  result.row = (c, i, j) => (c * kh + i) * kw + j;
  result.columns = filled(result.rows * windows, () => 0);          // values
  result.pixels = filled(result.rows * windows, () => -1);          // indices in the image
  for (let c = 0; c < image[1]; ++c) for (let i = 0; i < kh; ++i) for (let j = 0; j < kw; ++j)
    for (let p = 0; p < grid[2]; ++p) for (let q = 0; q < grid[3]; ++q) {
      const cell = result.row(c, i, j) * windows + p * grid[3] + q, read = pixel(c, p, q, i, j);
      result.pixels[cell] = read;
      if (!transposed && read >= 0) result.columns[cell] = result.x[read];
      const g = Math.floor(c / result.perGroup.image);
      for (let m = g * result.perGroup.grid; m < (g + 1) * result.perGroup.grid; ++m) {
        const product = result.w[result.weightAt(m, c, i, j)];
        if (!transposed) y[offset(grid, m, p, q)] += product * result.columns[cell];
        else result.columns[cell] += product * result.x[offset(grid, m, p, q)];
      }
      if (transposed && read >= 0) y[read] += result.columns[cell];
    }
  return result;
}

/** The window of output p along axis a, as minicaffe/ops/pooling/kernel.hpp cuts it: begin and end, also within the image. */
function poolWindow(L, p, a) {
  const start = p * L.s.stride[a] - L.s.pad[a], end = Math.min(start + L.s.kernel[a], L.bottom[2 + a] + L.s.pad[a]);
  return {start, end, first: Math.max(start, 0), last: Math.min(end, L.bottom[2 + a])};
}

function poolAll(L) {
  const [, C, OH, OW] = L.top;
  L.mask = filled(L.y.length, () => -1);
  for (let c = 0; c < C; ++c) for (let p = 0; p < OH; ++p) for (let q = 0; q < OW; ++q) {
    const v = poolWindow(L, p, 0), u = poolWindow(L, q, 1), o = offset(L.top, c, p, q);
    let best = -3.402823466e38, sum = 0;
    for (let h = v.first; h < v.last; ++h) for (let w = u.first; w < u.last; ++w) {
      const value = L.x[offset(L.bottom, c, h, w)];
      sum += value;
      if (value > best) { best = value; L.mask[o] = h * L.bottom[3] + w; }
    }
    L.y[o] = L.s.method === "MAX" ? best : sum / ((v.end - v.start) * (u.end - u.start));
  }
  return L;
}

/** The layer as a net in prototxt; tests build it. */
function prototxt(s) {
  const list = (name, pair) => pair[0] === pair[1] ? `${name}: ${pair[0]}` : `${name}: ${pair[0]} ${name}: ${pair[1]}`;
  const sides = (name, pair) => pair[0] === pair[1] ? `${name}${name === "kernel" ? "_size" : ""}: ${pair[0]}`
    : `${name}_h: ${pair[0]} ${name}_w: ${pair[1]}`;
  const type = {convolution: "Convolution", deconvolution: "Deconvolution", pooling: "Pooling"}[s.operation];
  const fields = s.operation === "pooling"
    ? [`pool: ${s.method}`, sides("kernel", s.kernel), sides("stride", s.stride), sides("pad", s.pad), `round_mode: ${s.rounding}`]
    : [`num_output: ${s.outputs}`, list("kernel_size", s.kernel), list("stride", s.stride), list("pad", s.pad),
       list("dilation", s.dilation), `group: ${s.group}`, "bias_term: false"];
  const shape = [1, s.channels, s.height, s.width].map((n) => `dim: ${n}`).join(" ");
  return `layer {\n  name: "data" type: "Input" top: "x"\n  input_param { shape { ${shape} } }\n}\n` +
    `layer {\n  name: "close" type: "${type}" bottom: "x" top: "y"\n` +
    `  ${s.operation === "pooling" ? "pooling" : "convolution"}_param {\n` +
    fields.map((field) => `    ${field}\n`).join("") + "  }\n}\n";
}

// ---- Settings, and their form in the address ----

const START = {operation: "convolution", height: 5, width: 5, channels: 2, outputs: 2, kernel: [3, 3], stride: [2, 2], pad: [1, 1],
               dilation: [1, 1], group: 1, rounding: "CEIL", method: "MAX"};
const RANGES = {height: [1, 10], width: [1, 10], channels: [1, 4], outputs: [1, 4], kernel: [1, 5], stride: [1, 4], pad: [0, 3],
                dilation: [1, 3], group: [1, 4]};
const WORDS = {operation: ["convolution", "deconvolution", "pooling"], rounding: ["CEIL", "FLOOR"], method: ["MAX", "AVE"]};
const EXAMPLES = {
  "same size": {height: 6, width: 6, stride: [1, 1]},
  "stride 2": {},
  "dilation 2": {height: 8, width: 8, channels: 1, outputs: 1, stride: [1, 1], pad: [2, 2], dilation: [2, 2]},
  "two groups": {height: 4, width: 4, channels: 4, outputs: 4, stride: [1, 1], group: 2},
  "depthwise": {height: 5, width: 5, channels: 3, outputs: 3, stride: [1, 1], group: 3},
  "1 × 1": {height: 4, width: 4, channels: 4, outputs: 3, kernel: [1, 1], stride: [1, 1], pad: [0, 0]},
  "floor leaves a row": {height: 6, width: 6, channels: 1, outputs: 1, stride: [2, 2], pad: [0, 0]},
  "upsample × 2": {operation: "deconvolution", height: 3, width: 3, channels: 1, outputs: 1, kernel: [4, 4]},
  "LeNet's pooling": {operation: "pooling", height: 8, width: 8, channels: 1, kernel: [2, 2], stride: [2, 2], pad: [0, 0]},
  "ceil hangs over": {operation: "pooling", height: 6, width: 6, channels: 1, kernel: [3, 3], stride: [2, 2], pad: [0, 0]},
  "ceil, one dropped": {operation: "pooling", channels: 1, kernel: [2, 2], method: "AVE"},
};
const divisors = (a, b) => filled(Math.min(a, b), (i) => i + 1).filter((d) => a % d === 0 && b % d === 0);
const clamp = (value, [least, most]) => Math.min(most, Math.max(least, value));

function toHash(s) {
  return "#" + Object.entries(s).map(([name, value]) => `${name}=${Array.isArray(value) ? value.join("x") : value}`).join("&");
}

function fromHash(hash) {
  const s = structuredClone(START);
  for (const [name, text] of new URLSearchParams(hash.replace(/^#/, ""))) {
    if (WORDS[name]?.includes(text)) s[name] = text;
    const numbers = text.split("x").map(Number);
    if (!RANGES[name] || !numbers.every(Number.isInteger) || numbers.length > 2) continue;
    const inRange = numbers.map((n) => clamp(n, RANGES[name]));
    s[name] = Array.isArray(START[name]) ? [inRange[0], inRange.at(-1)] : inRange[0];
  }
  const groups = divisors(s.channels, s.outputs);
  s.group = groups.filter((d) => d <= s.group).at(-1);
  return s;
}
