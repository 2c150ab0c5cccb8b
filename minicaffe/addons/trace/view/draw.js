"use strict";
/* The pictures of the page, each on a canvas: steps, bytes over time, states over time, arenas at a moment.

The first three share one axis, so that one line through all of them is one moment. They do not change with the moment: its line,
and the band of its step, are elements of the page above and below them. */

let gutter = 148;       // pixels left of the axis, for labels; less on a small screen

let colours = {};
/* The style's colours for a canvas. The browser resolves `var(--x)`, as it may depend on light and dark. */
function readColours() {
  const names = ["ink", "soft", "faint", "line", "panel", "cache", "forward", "backward", "update", "between", ...SIDES, ...ROLES];
  const probe = document.body.appendChild(document.createElement("i"));
  for (const name of names) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}

/* A size in the words of Python's size_text. */
function bytesText(bytes) {
  let unit = 0;
  for (; unit < 4 && bytes >= (unit ? 999.5 : 1024); unit++) bytes /= 1024;
  return `${unit && bytes < 99.95 ? bytes.toFixed(1) : Math.round(bytes)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

/* The shared axis: moments from `from` to `to`. */
class Axis {
  constructor(trace) {
    this.trace = trace;
    this.width = 600;
    this.whole();
  }
  whole() { this.from = 0; this.to = this.trace.count; }
  x(moment) { return gutter + (moment - this.from) / Math.max(1, this.to - this.from) * (this.width - gutter - 8); }
  moment(x) {
    const share = Math.min(1, Math.max(0, (x - gutter) / (this.width - gutter - 8)));
    return Math.round(this.from + share * (this.to - this.from));
  }
  zoom(factor, around) {
    const least = Math.min(this.trace.count, 20), all = this.trace.count;
    const span = Math.min(all, Math.max(least, Math.round((this.to - this.from) * factor)));
    const share = (around - this.from) / Math.max(1, this.to - this.from);
    this.from = Math.max(0, Math.min(all - span, Math.round(around - share * span)));
    this.to = this.from + span;
  }
  /* Move so that `moment` is inside; true if that was needed. */
  show(moment) {
    const span = this.to - this.from;
    if (moment >= this.from && moment <= this.to) return false;
    this.from = Math.max(0, Math.min(this.trace.count - span, Math.round(moment - span / 2)));
    this.to = this.from + span;
    return true;
  }
}

/* A canvas that fits its box at the screen's resolution. `paint(context, width, height)` draws all of it. */
class Picture {
  constructor(canvas) { this.canvas = canvas; this.width = this.height = 0; }
  fit(width, height) {
    const ratio = window.devicePixelRatio || 1;
    const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
    if (this.canvas.width !== w || this.canvas.height !== h) {
      this.canvas.width = w; this.canvas.height = h;
      this.canvas.style.width = width + "px"; this.canvas.style.height = height + "px";
    }
    [this.width, this.height, this.ratio] = [width, height, ratio];
  }
  context() {
    const c = this.canvas.getContext("2d");
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    c.textBaseline = "middle";
    return c;
  }
}

const FONT = px => `${px}px ui-sans-serif, system-ui, sans-serif`;
const MONO = px => `${px}px ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace`;

/* Text cut to `width`, with an ellipsis at its end or, with `inside`, in its middle; empty if fewer than three letters fit. */
function clipped(c, text, width, inside = false) {
  const cut = n => text.slice(0, inside ? Math.floor(n * .4) : n) + "…"
      + (inside ? text.slice(text.length - Math.ceil(n * .6)) : "");
  if (c.measureText(text).width <= width) return text;
  let low = 0, high = text.length;
  while (low < high) { const m = (low + high + 1) >> 1; c.measureText(cut(m)).width <= width ? low = m : high = m - 1; }
  return low < 3 ? "" : cut(low);
}

/* A picture along the axis. */
class Chart extends Picture {
  constructor(canvas, view) {
    super(canvas);
    this.view = view;
    this.stale = true;
  }
  layout(height) { this.fit(this.view.axis.width, height); this.stale = true; }
  draw() {
    if (!this.stale || !this.width) return;
    this.paint(this.context());
    this.stale = false;
  }
}

/* One cell for each step, in the colour of what it does. */
class Steps extends Chart {
  paint(c) {
    const {axis, trace} = this.view, top = 16, height = this.height - top - 3;
    c.font = FONT(11);
    let iteration = null, free = 0;
    for (const step of trace.steps) {
      if (step.last < axis.from || step.first > axis.to) continue;
      const a = Math.max(gutter, axis.x(step.first)), b = Math.min(this.width - 8, axis.x(step.last));
      if (step.iteration !== iteration) {
        iteration = step.iteration;
        if (a >= free) {
          c.fillStyle = colours.soft;
          const text = `iteration ${iteration}`, wide = c.measureText(text).width;
          if (a + wide < this.width) c.fillText(text, a, 7);
          free = a + wide + 12;
        }
      }
      const gap = b - a > 4 ? 1 : 0;
      c.fillStyle = colours[step.kind] || colours.between;
      c.fillRect(a, top, Math.max(.6, b - a - gap), height);
      if (b - a > 26) {
        c.fillStyle = inkOn(colours[step.kind] || colours.between);
        c.fillText(clipped(c, step.name, b - a - 8), a + 4, top + height / 2 + .5);
      }
    }
    c.fillStyle = colours.soft; c.font = FONT(12);
    c.fillText("steps", 16, top + height / 2);
  }
  hit(x) {
    if (x < gutter) return null;
    const {trace, axis} = this.view, step = trace.steps[trace.stepOf[Math.min(trace.count, axis.moment(x))]];
    return step && [`${step.name} · ${step.kind}`,
                    `iteration ${step.iteration}, ${step.last - step.first} events; ${step.lines[1]}`];
  }
}

/* Live bytes, stacked by role; they set the scale. What the allocator holds is a dashed line, at the edge if it is more. */
class Usage extends Chart {
  paint(c) {
    const {axis, trace, place} = this.view, top = 10, bottom = this.height - 6, right = this.width - 8;
    const usage = trace.usage(place), most = this.most = Math.max(1, usage.peak * 1.15);
    const step = 2 ** Math.max(0, Math.ceil(Math.log2(most / 3))),
          y = v => bottom - Math.min(1, v / (most * 1.04)) * (bottom - top);
    c.font = MONO(11); c.textAlign = "right";
    for (let v = 0; v <= most * 1.04; v += step) {
      c.strokeStyle = colours.line; c.lineWidth = 1;
      c.beginPath(); c.moveTo(gutter, Math.round(y(v)) + .5); c.lineTo(right, Math.round(y(v)) + .5); c.stroke();
      c.fillStyle = colours.soft; c.fillText(v ? bytesText(v) : "0", gutter - 8, Math.min(bottom - 3, y(v)));
    }
    c.textAlign = "left";
    // Of the moments that share a pixel, the one with the most bytes is drawn, so that no peak is lost.
    const columns = [];
    for (let x = gutter; x <= right; x++) {
      const a = axis.moment(x), b = Math.max(a + 1, axis.moment(x + 1));
      let best = a;
      for (let m = a; m < b && m <= axis.to; m++) if (usage.live[m] > usage.live[best]) best = m;
      columns.push(best);
    }
    columns.forEach((m, i) => {
      let below = 0;
      usage.roles.forEach((values, role) => {
        if (!values || !values[m]) return;
        c.fillStyle = colours[ROLES[role]];
        c.fillRect(gutter + i, y(below + values[m]), 1.5, y(below) - y(below + values[m]));   // overlap: no seams
        below += values[m];
      });
    });
    c.strokeStyle = colours.ink; c.lineWidth = 1.25; c.setLineDash([5, 3]); c.beginPath();
    columns.forEach((m, i) => { c.lineTo(gutter + i, y(usage.reserved[m])); c.lineTo(gutter + i + 1, y(usage.reserved[m])); });
    c.stroke(); c.setLineDash([]);
  }
  hit(x) {
    if (x < gutter) return null;
    const {axis, trace, place} = this.view, m = axis.moment(x), usage = trace.usage(place);
    const parts = ROLES.flatMap((role, r) => usage.roles[r]?.[m] ? [`${role} ${bytesText(usage.roles[r][m])}`] : []);
    return [`${bytesText(usage.live[m])} live, ${bytesText(usage.reserved[m])} held`, parts.join(", ")];
  }
}

const hatches = new Map();
function hatch(c, colour) {
  if (hatches.has(colour)) return hatches.get(colour);
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const t = tile.getContext("2d");
  t.strokeStyle = colour; t.lineWidth = 1.2;
  for (const d of [-8, 0, 8]) { t.beginPath(); t.moveTo(d, 8); t.lineTo(d + 8, 0); t.stroke(); }
  const made = c.createPattern(tile, "repeat");
  hatches.set(colour, made);
  return made;
}

/* A row for each memory: which sides are valid when, and the copies between them. */
const ROW = 24;
class Strips extends Chart {
  constructor(canvas, view, box) {
    super(canvas, view);
    this.box = box;
    this.rows = view.trace.memories.filter(memory => memory.sides);
  }
  lanes() { return SIDES.map((side, s) => [side, s]).filter(([, s]) => this.view.trace.sides >> s & 1); }
  paint(c) {
    const {axis} = this.view, right = this.width - 8, lanes = this.lanes();
    const offset = this.box.scrollTop, thick = Math.min(9, Math.floor((ROW - 6) / lanes.length) - 1);
    const above = Math.round((ROW - 1 - lanes.length * (thick + 1)) / 2);
    for (let r = Math.floor(offset / ROW); r < this.rows.length && r * ROW - offset < this.height; r++) {
      const memory = this.rows[r], top = r * ROW - offset;
      c.strokeStyle = colours.line; c.lineWidth = 1;
      c.beginPath(); c.moveTo(0, Math.round(top + ROW) - .5); c.lineTo(this.width, Math.round(top + ROW) - .5); c.stroke();
      c.font = MONO(11.5);
      c.fillStyle = colours[memory.role] || colours.other;
      c.fillRect(16, top + 6, 3, ROW - 12);
      c.fillStyle = colours.ink;
      c.fillText(clipped(c, memory.title, gutter - 36, true), 25, top + ROW / 2);
      let known = 0;
      for (let k = 0; k < memory.changes.length && memory.changes[k][0] <= axis.to; k++) {
        const [first, state] = memory.changes[k], end = memory.changes[k + 1]?.[0] ?? this.view.trace.count;
        const a = Math.max(gutter, axis.x(Math.max(axis.from, first))), b = Math.min(right, axis.x(Math.min(end, axis.to)));
        if (end < axis.from) { known = state === RECYCLED ? 0 : known | VALID[state]; continue; }
        if (state === RECYCLED) {
          c.fillStyle = hatch(c, colours.faint); c.fillRect(a, top + 3, b - a, ROW - 7);
          known = 0;
        } else {
          lanes.forEach(([side, s], l) => {
            const y = top + above + l * (thick + 1);
            c.fillStyle = colours[side];
            if (VALID[state] >> s & 1) c.fillRect(a, y, Math.max(.7, b - a), thick);
            else if (known >> s & 1) {
              c.globalAlpha = .45; c.fillRect(a, y + Math.floor(thick / 2), Math.max(.7, b - a), 1); c.globalAlpha = 1;
            }
          });
          known |= VALID[state];
        }
      }
      let last = -9;
      c.fillStyle = colours.ink;
      for (const [i, from, to] of memory.copies) {
        if (i < axis.from || i > axis.to) continue;
        const x = axis.x(i + .5);
        if (x - last < 3) continue;
        last = x;
        const y = s => {
          const l = lanes.findIndex(([, n]) => n === s);
          return top + above + Math.max(0, l) * (thick + 1) + thick / 2;
        };
        c.strokeStyle = colours.ink; c.lineWidth = 1.2;
        c.beginPath(); c.moveTo(x, y(from)); c.lineTo(x, y(to)); c.stroke();
        c.beginPath(); c.arc(x, y(to), 2.4, 0, 7); c.fill();
      }
    }
  }
  hit(x, y) {
    const memory = this.rows[Math.floor((y + this.box.scrollTop) / ROW)], {trace, axis} = this.view;
    if (!memory) return null;
    const about = `${bytesText(memory.bytes)}, ${memory.role}`
      + (memory.aliases.length ? `; also ${memory.aliases.join(", ")}` : "");
    if (x < gutter) return [memory.title, about];
    const [word, , meaning] = HEADS[STATES[trace.head(memory, axis.moment(x))]];
    return [`${memory.title}: ${word}`, `${meaning}; ${about}`];
  }
}

/* The arenas of a place: each segment is a bar cut into its cells; that of the buddy allocator is a tree of halves. */
class Arena extends Picture {
  constructor(canvas, view) { super(canvas); this.view = view; this.drawn = []; }
  draw() {
    const {trace, place, moment} = this.view, width = Math.max(200, this.canvas.parentElement.clientWidth);
    const segments = trace.arena(place, moment);
    const rows = segments.map(s => ({segment: s, tree: s.tree, height: 18 + (s.tree ? (depth(s) + 1) * 17 : 34) + 12}));
    this.fit(width, Math.max(60, rows.reduce((sum, r) => sum + r.height, 0)));
    const c = this.context();
    this.drawn = [];
    let top = 0;
    if (!segments.length) {
      c.font = FONT(13); c.fillStyle = colours.soft;
      c.fillText("No memory is held here at this moment.", 2, 24);
    }
    const cells = segments.flatMap(s => s.cells), used = cells.filter(cell => cell.used).length;
    this.canvas.setAttribute("aria-label", `${plural(used, "block")} in use and ${cells.length - used} free, at this moment`);
    for (const {segment, tree, height} of rows) {
      const free = segment.cells.reduce((sum, cell) => sum + (cell.used ? 0 : cell.bytes), 0),
            used = segment.cells.filter(cell => cell.used).length;
      c.font = MONO(11); c.fillStyle = colours.soft;
      const title = segment.own ? `blocks of their own · ${bytesText(segment.bytes)} · ${used} in use`
        : `${tree ? "pool" : "segment"} ${hex(segment.address)} · ${bytesText(segment.bytes)}`
          + ` · ${used} in use · ${bytesText(free)} free`;
      c.fillText(clipped(c, title, width - 4), 1, top + 8);
      if (tree) this.tree(c, segment, top + 18, width);
      else this.bar(c, segment, top + 18, width);
      top += height;
    }
  }
  bar(c, segment, top, width) {
    const {cells} = segment, least = Math.min(3, width / cells.length);
    // A free block that is nearly all of a segment, as in an arena of 1 GiB, is drawn as long as all others, with a text about it.
    const tail = cells.find(cell => !cell.used && cell.bytes > .95 * segment.bytes && cells.length > 1);
    const rest = tail ? segment.bytes - tail.bytes : 0, all = tail ? 2 * rest : segment.bytes;
    let x = 0;
    for (const cell of cells) {
      const w = least + (cell === tail ? rest : cell.bytes) / all * (width - least * cells.length);
      this.cell(c, cell, x, top, w, 34, cell === tail ? ", drawn shorter" : "");
      x += w;
    }
  }
  tree(c, pool, top, width) {
    const split = new Set();
    for (const cell of pool.cells) {
      const level = levelOf(pool, cell), start = (cell.address - pool.address) / pool.bytes;
      for (let l = 0; l < level; l++) split.add(`${l} ${Math.floor(start * 2 ** l + 1e-9)}`);
    }
    c.font = MONO(10);
    for (const key of split) {
      const [level, number] = key.split(" ").map(Number), w = width / 2 ** level, x = number * w;
      if (w < 1) continue;
      c.strokeStyle = colours.faint; c.lineWidth = 1;
      c.strokeRect(x + .5, top + level * 17 + .5, Math.max(0, w - 2), 14);
      c.fillStyle = colours.soft;
      c.textAlign = "center";
      c.fillText(clipped(c, bytesText(pool.bytes / 2 ** level), w - 8), x + w / 2, top + level * 17 + 8);
      c.textAlign = "left";
    }
    for (const cell of pool.cells)
      this.cell(c, cell, (cell.address - pool.address) / pool.bytes * width, top + levelOf(pool, cell) * 17,
                cell.bytes / pool.bytes * width, 16);
  }
  cell(c, cell, x, y, w, h, remark = "") {
    const {trace} = this.view, [title, role] = trace.blocks[cell.name] || ["", "other"], gap = w > 5 ? 1.5 : w > 2 ? .6 : 0;
    this.drawn.push({address: cell.address, bytes: cell.used ? cell.requested : cell.bytes, used: cell.used,
                     name: cell.name, title, fresh: this.isFresh(cell), size: cell.bytes, x, y, w, h});
    if (cell.used) {
      c.fillStyle = colours[role];
      c.fillRect(x, y, Math.max(.8, w - gap), h);
      if (w > 34) {
        c.fillStyle = inkOn(colours[role]);
        c.font = MONO(11);
        c.fillText(clipped(c, title || bytesText(cell.requested), w - 10), x + 5, h > 20 ? y + 11 : y + h / 2 + .5);
        if (h > 20) c.fillText(clipped(c, bytesText(cell.requested), w - 10), x + 5, y + 24);
      }
    } else {
      c.fillStyle = hatch(c, colours.cache);
      c.fillRect(x, y, Math.max(.8, w - gap), h);
      if (w > 3) { c.strokeStyle = colours.faint; c.lineWidth = 1; c.strokeRect(x + .5, y + .5, Math.max(0, w - gap - 1), h - 1); }
      if (w > 64) {
        c.font = MONO(11);
        const text = clipped(c, `free ${bytesText(cell.bytes)}${remark}`, w - 12), wide = c.measureText(text).width;
        c.fillStyle = colours.panel; c.fillRect(x + 3, y + h / 2 - 7, wide + 6, 14);
        c.fillStyle = colours.soft; c.fillText(text, x + 6, y + h / 2 + .5);
      }
    }
    if (this.isFresh(cell)) {
      c.strokeStyle = colours.ink; c.lineWidth = 2;
      c.strokeRect(x + 1, y + 1, Math.max(1, w - gap - 2), h - 2);
    }
  }
  /* Whether the step has allocated a block, which is then outlined. */
  isFresh(cell) { return cell.used && cell.first > (this.view.currentStep() || {first: 0}).first; }
  hit(x, y) {
    const cell = this.drawn.find(d => x >= d.x && x < d.x + Math.max(1, d.w) && y >= d.y && y < d.y + d.h);
    if (!cell) return null;
    return cell.used
      ? [cell.title || "a block",
         `${bytesText(cell.bytes)}, in a block of ${bytesText(cell.size)} at ${hex(cell.address)}`
         + (cell.fresh ? "; allocated in this step" : "")]
      : ["free", `${bytesText(cell.size)} at ${hex(cell.address)}, kept for the next request that fits`];
  }
}

const hex = n => "0x" + n.toString(16);
const levelOf = (pool, cell) => Math.max(0, Math.round(Math.log2(pool.bytes / cell.bytes)));
const depth = pool => pool.cells.reduce((most, cell) => Math.max(most, levelOf(pool, cell)), 0);

/* Black or white: the one with more contrast on a colour "rgb(r, g, b)", at least 4.5. */
function inkOn(colour) {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map(v => v / 255)
      .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b > .179 ? "#000000" : "#ffffff";
}
