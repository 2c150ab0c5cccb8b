"use strict";
/* The page: one moment, which all panels show, and the controls that change it. */

const $ = id => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes))
    key === "class" ? element.className = value : element.setAttribute(key, value);
  element.append(...children);
  return element;
};
/* An entry of a legend: a mark in the colour `name` of the style, and words. */
const legendEntry = (name, ...words) => {
  const mark = make("i");
  mark.style.background = `var(--${name})`;
  return make("li", {}, mark, ...words);
};
const NEAR = 100;       // events before and after the moment that are rows of the list

class View {
  constructor(data) {
    this.trace = new Trace(data);
    this.axis = new Axis(this.trace);
    this.step = 0;
    this.moment = 0;
    document.body.classList.toggle("simulated", data.simulated);
    this.place = data.places[0].name;
    readColours();
    this.steps = new Steps($("steps").firstElementChild, this);
    this.usage = new Usage($("usage").firstElementChild, this);
    this.strips = new Strips($("strips").lastElementChild, this, $("strips"));
    this.charts = [this.steps, this.usage, this.strips];
    this.arena = new Arena($("arena").firstElementChild, this);
    this.head();
    this.net = new NetPanel(this);
    this.listen();
    this.layout();
    if (!this.follow(location.hash)) this.go(Math.max(0, this.trace.steps.findIndex(step => step.kind === "forward")));
  }

  currentStep() { return this.trace.steps[this.step]; }
  last() { return Math.max(0, this.trace.steps.length - 1); }

  /* Go to the step or event in the page's address, #step=12 or #event=340; false if it has none. */
  follow(hash) {
    const [, what, number] = /^#(step|event)=(\d+)$/.exec(hash) || [];
    if (what) what === "event" ? this.goMoment(+number) : this.go(+number);
    return !!what;
  }
  /* Go to the end of a step. */
  go(step) {
    this.step = Math.max(0, Math.min(this.last(), step));
    const now = this.currentStep();
    this.moment = now ? now.last : 0;
    this.show();
  }
  /* Go to a moment inside of a step: after the first `moment` events. */
  goMoment(moment) {
    this.moment = Math.max(0, Math.min(this.trace.count, moment));
    this.step = Math.max(0, this.trace.stepOf[Math.max(0, this.moment - 1)]);
    this.show();
  }
  /* Go to the next step of a layer. */
  goLayer(node) {
    const {steps} = this.trace;
    const next = steps.findIndex((step, s) => s > this.step && step.node === node);
    const found = next >= 0 ? next : steps.findIndex(step => step.node === node);
    if (found >= 0) this.go(found);
  }
  nextCopy() {
    const {count} = this.trace, isCopy = i => /^(copy|reorder)$/.test(this.trace.event(i)[0]);
    for (let k = 0; k < count; k++) if (isCopy((this.moment + k) % count)) return this.goMoment((this.moment + k) % count + 1);
  }
  back() {
    const step = this.currentStep();
    this.go(step && this.moment < step.last && this.moment > step.first ? this.step : this.step - 1);
  }

  /* Show the moment in all panels. */
  show() {
    if (this.axis.show(this.moment)) for (const chart of this.charts) chart.stale = true;
    for (const chart of [...this.charts, this.arena]) chart.draw();
    const step = this.currentStep() || {first: 0, last: 0}, {axis} = this;
    const from = axis.x(Math.max(step.first, axis.from)), to = axis.x(Math.min(step.last, axis.to));
    for (const [name, x] of Object.entries({from, wide: Math.max(2, to - from), at: Math.round(axis.x(this.moment))}))
      $("time-panel").style.setProperty(`--${name}`, x + "px");
    this.where();
    this.stepPanel();
    this.legend();
    this.net.show();
  }

  layout() {
    const inner = $("steps").clientWidth, {strips} = this;
    this.axis.width = Math.max(280, inner);
    const longest = strips.rows.reduce((most, memory) => Math.max(most, memory.title.length), 0);
    gutter = inner < 520 ? 130 : Math.max(148, Math.round(Math.min(inner * .38, 42 + 7.2 * longest)));    // 7 pixels a letter
    $("legend").style.marginLeft = inner < 520 ? 0 : gutter - 16 + "px";
    this.steps.layout(44);
    this.usage.layout(window.innerWidth < 800 ? 130 : 190);
    const height = Math.max(1, strips.rows.length) * ROW;
    $("strips").firstElementChild.style.height = height + "px";
    $("strips").style.height = Math.min(height + 1, Math.max(160, Math.min(480, window.innerHeight * .52))) + "px";
    strips.layout(Math.min(height, Math.max(120, $("strips").clientHeight)));
  }

  head() {
    const {name, about, places, steps} = this.trace;
    $("net-name").textContent = name;
    $("about").textContent = about;
    $("place").replaceChildren(...places.map(({name, title}) => make("option", {value: name}, title)));
    const kinds = new Set(steps.map(step => step.kind));
    $("step-legend").replaceChildren(...["forward", "backward", "update", "between"].filter(kind => kinds.has(kind))
      .map(kind => legendEntry(kind, kind === "between" ? "between layers" : kind)));
    $("side-legend").replaceChildren(
      ...this.strips.lanes().map(([side]) => legendEntry(side, side === "private" ? "private: in an engine's own layout" : side)),
      make("li", {}, make("i", {class: "hatched"}), "recycled: used by other blobs"));
    $("steps").setAttribute("aria-valuemax", this.last());
  }

  where() {
    const step = this.currentStep(), {trace} = this;
    $("back").disabled = this.step === 0 && (!step || this.moment === step.last);
    $("next").disabled = this.step === this.last() && (!step || this.moment === step.last);
    if (!step) { $("where-what").textContent = "nothing was recorded"; return; }
    $("where-what").textContent = `${step.name}${step.layer && step.layer !== step.kind ? " · " + step.kind : ""}`;
    const inside = this.moment === step.last ? "" : `, event ${this.moment - step.first} of ${step.last - step.first}`;
    $("where-more").textContent = `iteration ${step.iteration} · step ${this.step} of ${trace.steps.length}${inside}`
      + (step.loss == null ? "" : ` · loss ${typeof step.loss === "number" ? step.loss.toPrecision(4) : step.loss}`);
    $("steps").setAttribute("aria-valuenow", this.step);
    $("steps").setAttribute("aria-valuetext", $("where-what").textContent + ", " + $("where-more").textContent);
  }

  legend() {
    const usage = this.trace.usage(this.place), m = this.moment, addresses = this.place === "CPUPlace()" ? " of addresses" : "";
    $("legend").replaceChildren(
      ...ROLES.flatMap((role, r) => usage.roles[r] ? [legendEntry(role, role, make("b", {}, bytesText(usage.roles[r][m])))] : []),
      make("li", {}, "live", make("b", {}, bytesText(usage.live[m])), `, at most ${bytesText(usage.peak)}`),
      make("li", {}, make("i", {class: "held"}), "held", make("b", {}, bytesText(usage.reserved[m])),
        `: live and cache, at most ${bytesText(usage.most)}${addresses}`));
    const buddy = this.trace.arena(this.place, m).some(segment => segment.tree), {title} = this.trace.placeOf.get(this.place);
    $("arena-hint").textContent = `Memory of ${title.replace("host", "the host")} at this moment. `
      + (buddy ? "A pool is halved until a request just fits; two free halves become one again. "
        : "Each bar is a segment, which is cut into blocks. ")
      + "The colour of a block is that of its role; a hatched block is free (cache); an outlined one was allocated in this step.";
  }

  stepPanel() {
    const step = this.currentStep(), {trace} = this;
    if (!step) return;
    $("step-lines").replaceChildren(...step.lines.map(line => make("p", {class: /\bsimulated: /.test(line) ? "timed" : ""}, line)));
    const reasons = Object.keys(trace.why).map(Number).filter(i => step.first <= i && i < step.last);
    const here = reasons.includes(this.moment - 1) ? [this.moment - 1] : reasons.slice(0, 3), more = reasons.length - here.length;
    $("why").replaceChildren(
      ...here.map(i => make("article", {}, make("h4", {}, `Why this ${trace.event(i)[0]}?`), make("p", {}, trace.why[i]))),
      ...(more ? [make("p", {class: "hint"}, `${plural(more, "more copy", "more copies")}; c shows the next`)] : []));

    $("touched").tBodies[0].replaceChildren(...(step.touched.length
      ? step.touched.map(t => make("tr", {class: t.before === t.after ? "same" : ""},
          make("td", {}, trace.titleOf(t.memory)), make("td", {}, this.glyph(t.before)), make("td", {}, "→"),
          make("td", {}, this.glyph(t.after))))
      : [make("tr", {}, make("td", {class: "hint"}, "no state changes"))]));
    this.showEvents(step);
    const kernel = trace.kernels[trace.launches[this.moment - 1]];
    $("source").hidden = !kernel;
    if (kernel) {
      $("source-title").textContent = `${kernel.functor}, in ${kernel.header}`;
      $("source").querySelector("pre").textContent = kernel.source;
    }
  }

  glyph(state) {
    const valid = VALID[STATES.indexOf(state)] || 0;
    const cells = this.strips.lanes().map(([side, s]) => {
      const i = make("i");
      if (valid >> s & 1) { i.style.background = `var(--${side})`; i.style.borderColor = `var(--${side})`; }
      return i;
    });
    return make("span", {class: "state", title: state},
      make("span", {class: "glyph", "aria-hidden": "true"}, ...cells), " ",
      make("small", {}, stateWord(state) || "?"));
  }

  /* The events of a step. Of a long one, those around the moment and a row for the others on each side. */
  showEvents(step) {
    const first = Math.max(step.first, this.moment - NEAR), last = Math.min(step.last, this.moment + NEAR), box = $("events");
    const row = (i, ...words) => make("div", {
      role: "option", id: `event-${i}`, "data-event": i, class: `row${i >= this.moment ? " later" : ""}`, title: words.at(-1),
      "aria-selected": i === this.moment - 1, "aria-posinset": i - step.first + 1, "aria-setsize": step.last - step.first,
    }, make("span", {}, words[0]), ...words.slice(1));
    const rows = Array.from({length: last - first}, (_, k) => row(first + k, ...this.trace.event(first + k)));
    if (first > step.first) rows.unshift(row(first - 1, "…", `${plural(first - step.first, "earlier event")}`));
    if (last < step.last) rows.push(row(last, "…", `${plural(step.last - last, "more event")}`));
    box.replaceChildren(...rows);
    box.setAttribute("aria-activedescendant", `event-${this.moment - 1}`);
    const chosen = $(`event-${this.moment - 1}`);
    if (chosen && (chosen.offsetTop < box.scrollTop || chosen.offsetTop + chosen.offsetHeight > box.scrollTop + box.clientHeight))
      box.scrollTop = chosen.offsetTop - box.clientHeight / 2;
  }

  zoom(factor, around = this.moment) {
    factor ? this.axis.zoom(factor, Math.max(this.axis.from, Math.min(this.axis.to, around))) : this.axis.whole();
    this.redraw();
  }
  redraw() {
    for (const chart of this.charts) chart.stale = true;
    this.show();
  }

  listen() {
    const click = (id, act) => $(id).addEventListener("click", act);
    click("back", () => this.back());
    click("next", () => this.go(this.step + 1));
    click("help-button", () => $("help").showModal());
    click("zoom-in", () => this.zoom(.5));
    click("zoom-out", () => this.zoom(2));
    click("zoom-all", () => this.zoom(0));
    click("events", e => { const row = e.target.closest("[data-event]"); if (row) this.goMoment(+row.dataset.event + 1); });
    $("place").addEventListener("change", () => { this.place = $("place").value; this.redraw(); });
    $("strips").addEventListener("scroll", () => { this.strips.stale = true; this.strips.draw(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { hatches.clear(); readColours(); this.redraw(); });
    new ResizeObserver(() => { this.layout(); this.show(); }).observe($("time-panel"));
    document.addEventListener("keydown", event => this.key(event));
    window.addEventListener("hashchange", () => this.follow(location.hash));
    this.pointers();
  }

  pointers() {
    const tip = $("tip");
    const explain = (event, lines) => {
      tip.hidden = !lines;
      if (!lines) return;
      tip.replaceChildren(make("b", {}, lines[0]), lines[1] || "");
      const [w, h] = [tip.offsetWidth, tip.offsetHeight];
      tip.style.left = Math.max(4, Math.min(window.innerWidth - w - 8, event.clientX + 14)) + "px";
      tip.style.top = (event.clientY + h + 24 > window.innerHeight ? event.clientY - h - 12 : event.clientY + 16) + "px";
    };
    for (const chart of [...this.charts, this.arena]) {
      const {canvas} = chart, timed = chart !== this.arena;
      canvas.addEventListener("pointermove", event => {
        if (timed && canvas.hasPointerCapture(event.pointerId)) this.drag(chart, event.offsetX);
        explain(event, chart.hit(event.offsetX, event.offsetY));
      });
      canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
      if (timed) canvas.addEventListener("pointerdown", event => {
        if (event.button || event.offsetX < gutter) return;
        canvas.setPointerCapture(event.pointerId);
        this.drag(chart, event.offsetX);
      });
    }
  }
  /* The steps move by whole steps, the other charts by events. */
  drag(chart, x) {
    const moment = this.axis.moment(x);
    if (chart === this.steps) this.go(this.trace.stepOf[Math.min(this.trace.count, moment)]);
    else this.goMoment(moment);
  }

  key(event) {
    const on = selector => event.target instanceof Element && event.target.matches(selector);     // it may be the document
    if (event.ctrlKey || event.metaKey || event.altKey || on("select") || $("help").open) return;
    const act = {
      ArrowRight: () => event.shiftKey ? this.goMoment(this.moment + 1) : this.go(this.step + 1),
      ArrowLeft: () => event.shiftKey ? this.goMoment(this.moment - 1) : this.back(),
      Home: () => this.go(0), End: () => this.go(this.last()),
      ArrowDown: on("#events") && (() => this.goMoment(this.moment + 1)),
      ArrowUp: on("#events") && (() => this.goMoment(this.moment - 1)), c: () => this.nextCopy(),
      "+": () => this.zoom(.5), "=": () => this.zoom(.5), "-": () => this.zoom(2), "0": () => this.zoom(0),
      "?": () => $("help").showModal(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /* What the page shows now, for tests and the console. */
  state() {
    const {trace, moment, step, place} = this;
    return {moment, step, place, events: trace.count, steps: trace.steps.length, ready: this.ready,
            heads: Object.fromEntries(trace.memories.map(m => [m.name, STATES[trace.head(m, moment)]])),
            copies: Object.fromEntries(trace.memories.map(m => [m.name, m.copies.filter(([i]) => i < moment).length])),
            blocks: this.arena.drawn.map(one => ({...one})),
            usage: Object.fromEntries(ROLES.map((role, r) => [role, trace.usage(place).roles[r]?.[moment] ?? 0])),
            reserved: trace.usage(place).reserved[moment], scale: this.usage.most, lit: this.net.marked()};
  }
}

function plural(n, one, many = one + "s") { return `${n} ${n === 1 ? one : many}`; }

const begun = performance.now(), view = new View(JSON.parse($("trace").textContent));
$("trace").remove();    // its data are in the columns of Trace
view.ready = performance.now() - begun;
