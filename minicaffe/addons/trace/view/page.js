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
/* Press one of the buttons of a toggle. */
const press = (chosen, ...ids) => { for (const id of ids) $(id).setAttribute("aria-pressed", id === chosen); };

/* A list of many rows; only the visible rows are elements of the page. */
class List {
  constructor(box, row, height = 24) {
    Object.assign(this, {box, row, height, from: 0, count: 0});
    box.classList.add("list");
    this.spacer = box.appendChild(document.createElement("div"));
    box.addEventListener("scroll", () => this.draw());
  }
  set(from, to) {
    if (from !== this.from || to - from !== this.count) this.box.scrollTop = 0;
    [this.from, this.count] = [from, to - from];
    this.spacer.style.height = this.count * this.height + "px";
    this.draw();
  }
  show(number) {
    const top = (number - this.from) * this.height, box = this.box;
    if (top < box.scrollTop || top + this.height > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
  }
  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / this.height) - 4);
    const last = Math.min(this.count, first + Math.ceil((this.box.clientHeight || 300) / this.height) + 8);
    const rows = [];
    for (let i = first; i < last; i++) {
      const row = this.row(this.from + i);
      row.className = "row " + row.className;
      row.style.top = i * this.height + "px";
      rows.push(row);
    }
    this.spacer.replaceChildren(...rows);
  }
}

class View {
  constructor(data) {
    this.trace = new Trace(data);
    this.axis = new Axis(this.trace);
    this.step = 0;
    this.moment = 0;
    this.equal = false;
    document.body.classList.toggle("simulated", data.simulated);
    if (data.simulated) $("by-time").title = "time of the simulated device, which is no GPU";
    this.place = data.places[0].name;
    readColours();
    this.steps = new Steps($("steps").firstElementChild, this);
    this.usage = new Usage($("usage").firstElementChild, this);
    this.strips = new Strips($("strips").lastElementChild, this, $("strips"));
    this.arena = new Arena($("arena").firstElementChild, this);
    this.events = new List($("events"), i => this.eventRow(i));
    this.kernelsOf = "step";
    this.head();
    this.net = new NetPanel(this);
    this.listen();
    this.layout();
    if (!this.follow(location.hash)) data.open === undefined ? this.go(this.firstOf("forward")) : this.goMoment(data.open);
  }

  currentStep() { return this.trace.steps[this.step]; }
  firstOf(kind) { return Math.max(0, this.trace.steps.findIndex(s => s.kind === kind)); }
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
  goIteration(by) {
    if (!this.currentStep()) return;
    const now = this.currentStep().iteration, steps = this.trace.steps;
    const other = by > 0 ? steps.findIndex(s => s.iteration > now)
      : steps.findIndex(s => s.iteration === Math.max(steps[0].iteration, now - 1));
    if (other >= 0) this.go(other);
  }
  nextCopy() {
    const {count} = this.trace, isCopy = i => /^(copy|reorder)$/.test(this.trace.event(i)[0]);
    for (let k = 0; k < count; k++) if (isCopy((this.moment + k) % count)) return this.goMoment((this.moment + k) % count + 1);
  }

  /* Show the moment in all panels. */
  show() {
    const begun = performance.now();
    if (this.axis.show(this.moment)) for (const chart of [this.steps, this.usage, this.strips]) chart.stale = true;
    if (this.touchedOnly) this.chooseRows();
    for (const chart of [this.steps, this.usage, this.strips, this.arena]) chart.draw();
    this.where();
    this.stepPanel();
    this.legend();
    this.kernels();
    this.net.show();
    this.lastStep = performance.now() - begun;
  }

  layout() {
    const inner = $("steps").clientWidth;
    this.axis.width = Math.max(280, inner);
    const longest = this.trace.memories.reduce((most, m) => Math.max(most, m.sides ? m.title.length : 0), 0);
    gutter = inner < 520 ? 130 : Math.max(148, Math.min(inner * .38, 42 + 7.2 * longest));     // a letter is some 7 pixels wide
    $("legend").style.marginLeft = inner < 520 ? 0 : gutter - 16 + "px";
    this.steps.layout(44);
    this.usage.layout(window.innerWidth < 800 ? 130 : 190);
    this.chooseRows();
    this.strips.layout();
    this.stripsHeight();
  }
  chooseRows() {
    const touched = this.touchedOnly && new Set((this.currentStep() || {touched: []}).touched.map(t => t.memory));
    this.strips.rows = this.trace.memories.filter(m => m.sides && (!touched || touched.has(m.name)));
    this.stripsHeight();
    this.strips.stale = true;
  }
  stripsHeight() {
    const rows = Math.max(1, this.strips.rows.length) * ROW;
    $("strips").firstElementChild.style.height = rows + "px";
    $("strips").style.height = Math.min(rows + 1, Math.max(160, Math.min(480, window.innerHeight * .52))) + "px";
    this.strips.layout();
  }

  head() {
    const {name, about, places, steps} = this.trace;
    $("net-name").textContent = name;
    $("about").textContent = about;
    $("place").replaceChildren(...places.map(({name, title}) => make("option", {value: name}, title)));
    $("place").value = this.place;
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
    $("back").disabled = $("first").disabled = this.step === 0 && (!step || this.moment === step.last);
    $("next").disabled = $("last").disabled = this.step === this.last() && (!step || this.moment === step.last);
    $("play").disabled = !step;
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
    const there = ROLES.map((role, r) => [role, usage.roles[r]])
      .filter(([role, values]) => (this.ever = this.ever || {})[this.place + role] ??= values.some(v => v > 0));
    $("legend").replaceChildren(...there.map(([role, values]) => legendEntry(role, role, make("b", {}, bytesText(values[m])))),
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
    $("step-lines").replaceChildren(...step.lines.map(line => make("p", {class: timedClass(line)}, line)));
    const reasons = Object.keys(trace.why).map(Number).filter(i => step.first <= i && i < step.last);
    const here = reasons.includes(this.moment - 1) ? [this.moment - 1] : reasons.slice(0, 3);
    $("why").replaceChildren(
      ...here.map(i => make("article", {}, make("h4", {}, `Why this ${trace.event(i)[0]}?`), make("p", {}, trace.why[i]))),
      ...(reasons.length > here.length ? [make("p", {class: "hint"},
        `${plural(reasons.length, "copy", "copies")} in this step; the key c shows the next.`)] : []));

    $("touched").tBodies[0].replaceChildren(...(step.touched.length
      ? step.touched.map(t => make("tr", {class: t.before === t.after ? "same" : ""},
          make("td", {}, trace.titleOf(t.memory)), make("td", {}, this.glyph(t.before)), make("td", {}, "→"),
          make("td", {}, this.glyph(t.after))))
      : [make("tr", {}, make("td", {class: "hint"}, "no state changes"))]));
    this.events.set(step.first, step.last);
    $("events").setAttribute("aria-activedescendant", `event-${this.moment - 1}`);
    if (this.moment > step.first) this.events.show(this.moment - 1);
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

  eventRow(i) {
    const [kind, words] = this.trace.event(i);
    return make("div", {role: "option", id: `event-${i}`, title: words, "data-event": i,
                        class: i >= this.moment ? "later" : "",
                        "aria-selected": i === this.moment - 1, "aria-posinset": i - this.events.from + 1,
                        "aria-setsize": this.events.count},
                make("span", {}, kind), words);
  }

  kernels() {
    const {trace} = this, step = this.currentStep(), all = this.kernelsOf === "all";
    press(all ? "kernels-all" : "kernels-step", "kernels-step", "kernels-all");
    const launched = trace.launches.length;
    $("kernel-hint").textContent = !launched ? (trace.kind === "cpu"
      ? "On the CPU layers compute with loops and engines, without kernels."
      : "No launch was recorded.")
      : all ? "All kernels of the trace, those that took longest first."
        : "The kernels and library calls of this step, in order. "
          + "A kernel that computes little for each byte is at its limit if it moves them as fast as a plain copy.";
    const table = $("kernels");
    table.hidden = !launched;
    if (!launched || all && table.dataset.shows === "all") return;
    table.dataset.shows = all ? "all" : "step";
    const rows = all ? trace.totals : trace.computing(step.first, step.last).slice(0, 500)
      .map(([i, name]) => [name, trace.event(i)[1].slice(name.length + 2)]);
    const columns = all ? ["kernel", "launches", "time and bytes"] : ["kernel", "launch"];
    table.tHead.replaceChildren(make("tr", {}, ...columns.map(name => make("th", {scope: "col"}, name))));
    table.tBodies[0].replaceChildren(...(rows.length ? rows.map(([name, ...cells]) => {
      const known = trace.kernels[name], button = known && (known.source || known.ptx)
        ? make("button", {type: "button", "data-kernel": name}, name) : make("span", {class: "code"}, name);
      return make("tr", {}, make("td", {}, button), ...cells.map(text => make("td", {class: timedClass(text)}, text)));
    }) : [make("tr", {}, make("td", {class: "hint", colspan: columns.length}, "This step starts no kernel."))]));
  }

  showKernel(name, ptx) {
    const known = this.trace.kernels[name], dialog = $("source");
    $("source-title").textContent = name;
    $("show-source").disabled = !known.source; $("show-ptx").disabled = !known.ptx;
    const as = ptx && known.ptx || !known.source ? "ptx" : "source";
    press(`show-${as}`, "show-source", "show-ptx");
    dialog.querySelector("pre").textContent = known[as];
    dialog.dataset.kernel = name;
    if (!dialog.open) dialog.showModal();
  }

  goNext(fits) {
    const steps = this.trace.steps;
    for (let k = 1; k <= steps.length; k++) {
      const s = (this.step + k) % steps.length;
      if (fits(steps[s])) return this.go(s);
    }
  }
  goLayer(node) { this.goNext(step => step.node === node); }

  play(on = !this.playing) {
    clearInterval(this.timer);
    this.playing = on;
    $("play-sign").textContent = on ? "❚❚" : "▶";
    $("play-word").textContent = on ? "Pause" : "Play";
    $("where").setAttribute("aria-live", on ? "off" : "polite");      // thirty announcements a second are too many to listen to
    if (!on) return;
    if (this.step === this.last()) this.go(0);
    this.timer = setInterval(() => this.step < this.last() ? this.go(this.step + 1) : this.play(false), 1000 / +$("speed").value);
  }
  forward() { this.go(this.step + 1); }
  backward() {
    const step = this.currentStep();
    this.go(step && this.moment < step.last && this.moment > step.first ? this.step : this.step - 1);
  }

  setAxis(by) {
    this.axis.by = by;
    press(`by-${by}`, "by-events", "by-time");
    this.redraw();
  }
  zoom(factor, around = this.moment) {
    factor ? this.axis.zoom(factor, Math.max(this.axis.from, Math.min(this.axis.to, around))) : this.axis.whole();
    this.redraw();
  }
  redraw() {
    for (const chart of [this.steps, this.usage, this.strips]) chart.stale = true;
    this.show();
  }
  theme() {
    const root = document.documentElement,
          dark = root.dataset.theme ? root.dataset.theme === "dark"
            : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    this.recolour();
  }
  recolour() { hatches.clear(); readColours(); this.redraw(); }

  listen() {
    const click = (id, act) => $(id).addEventListener("click", act);
    click("first", () => this.go(0));
    click("last", () => this.go(this.last()));
    click("back", () => this.backward());
    click("next", () => this.forward());
    click("play", () => this.play());
    click("theme", () => this.theme());
    click("help-button", () => $("help").showModal());
    click("by-events", () => this.setAxis("events"));
    click("by-time", () => this.setAxis("time"));
    click("zoom-in", () => this.zoom(.5));
    click("zoom-out", () => this.zoom(2));
    click("zoom-all", () => this.zoom(0));
    for (const [id, equal] of [["to-scale", false], ["equal", true]]) click(id, () => {
      this.equal = equal;
      press(id, "to-scale", "equal");
      this.arena.draw();
    });
    for (const [id, of] of [["kernels-step", "step"], ["kernels-all", "all"]])
      click(id, () => { this.kernelsOf = of; this.kernels(); });
    click("kernels", e => {
      const chosen = e.target.closest("[data-kernel]");
      if (chosen) this.showKernel(chosen.dataset.kernel);
    });
    click("show-source", () => this.showKernel($("source").dataset.kernel));
    click("show-ptx", () => this.showKernel($("source").dataset.kernel, true));
    click("events", e => { const row = e.target.closest("[data-event]"); if (row) this.goMoment(+row.dataset.event + 1); });
    $("speed").addEventListener("change", () => this.playing && this.play(true));
    $("place").addEventListener("change", () => { this.place = $("place").value; this.redraw(); });
    $("touched-only").addEventListener("change", () => {
      this.touchedOnly = $("touched-only").checked;
      this.chooseRows();
      this.show();
    });
    $("strips").addEventListener("scroll", () => { this.strips.stale = true; this.strips.draw(); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    new ResizeObserver(() => { this.layout(); this.show(); }).observe($("time-panel"));
    document.addEventListener("keydown", event => this.key(event));
    window.addEventListener("hashchange", () => this.follow(location.hash));
    this.pointers();
    this.search();
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
    for (const chart of [this.steps, this.usage, this.strips, this.arena]) {
      const at = event => {
        const box = chart.canvas.getBoundingClientRect();
        return [event.clientX - box.left, event.clientY - box.top];
      };
      chart.canvas.addEventListener("pointermove", event => {
        if (chart !== this.arena && event.buttons & 1 && this.dragging === chart) this.drag(chart, at(event)[0]);
        explain(event, chart.hit(...at(event)));
      });
      chart.canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
      if (chart === this.arena) continue;
      chart.canvas.addEventListener("pointerdown", event => {
        if (event.button || at(event)[0] < gutter) return;
        this.dragging = chart;
        chart.canvas.setPointerCapture(event.pointerId);
        this.drag(chart, at(event)[0]);
      });
      chart.canvas.addEventListener("wheel", event => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.25 : .8, this.axis.moment(at(event)[0]));
      }, {passive: false});
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
    if (event.ctrlKey || event.metaKey || event.altKey
        || on("input:not([type=checkbox]), select, textarea") || document.querySelector("dialog[open]")) return;
    const act = {
      ArrowRight: () => event.shiftKey ? this.goMoment(this.moment + 1) : this.forward(),
      ArrowLeft: () => event.shiftKey ? this.goMoment(this.moment - 1) : this.backward(),
      Home: () => this.go(0), End: () => this.go(this.last()), "]": () => this.goIteration(1), "[": () => this.goIteration(-1),
      ArrowDown: on("#events") && (() => this.goMoment(this.moment + 1)),
      ArrowUp: on("#events") && (() => this.goMoment(this.moment - 1)),
      " ": !on("button, [type=checkbox]") && (() => this.play()), c: () => this.nextCopy(),
      "+": () => this.zoom(.5), "=": () => this.zoom(.5), "-": () => this.zoom(2), "0": () => this.zoom(0),
      "/": () => $("search").focus(), t: () => this.theme(), "?": () => $("help").showModal(),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    if (!" /?t".includes(event.key)) this.play(false);
    act();
  }

  /* What the search finds: [name, description, action when it is chosen]. */
  searchEntries() {
    const {trace} = this;
    const layers = trace.nodes.map(([name, type], i) => [name, `layer, ${type}`, () => this.goLayer(i)]);
    const memories = trace.memories.map(m => [m.title, `${m.role}, ${bytesText(m.bytes)}`, () => this.showMemory(m)]);
    const kernels = trace.totals.map(([name, count]) => [name, `kernel, ${plural(count, "launch", "launches")}`, () => {
      const there = trace.launches.filter(launch => launch[1] === name);
      this.goMoment((there.find(([event]) => event + 1 > this.moment) ?? there[0])[0] + 1);
    }]);
    return [...layers, ...memories, ...kernels];
  }
  showMemory(memory) {
    this.touchedOnly = $("touched-only").checked = false;
    this.chooseRows();
    const row = this.strips.rows.indexOf(memory);
    $("strips").scrollTop = row * ROW - $("strips").clientHeight / 2;
    const next = memory.changes.find(([first]) => first > this.moment) ?? memory.changes[1];
    next === undefined ? this.show() : this.goMoment(next[0]);
    $("strips").scrollIntoView({block: "nearest"});
  }
  search() {
    const input = $("search"), found = $("found");
    let chosen = 0, rows = [];
    const close = () => { found.hidden = true; input.setAttribute("aria-expanded", false); };
    const draw = () => {
      const words = input.value.trim().toLowerCase();
      this.index = this.index || this.searchEntries();
      const all = words
        ? this.index.filter(([name, about]) =>
          words.split(/\s+/).every(w => `${name} ${about}`.toLowerCase().includes(w)))
        : [];
      rows = all.slice(0, 40);
      const remark = words && !all.length ? `Nothing is called ${input.value}.`
        : all.length > rows.length ? `and ${all.length - rows.length} more`
        : "";
      chosen = Math.min(chosen, Math.max(0, rows.length - 1));
      found.replaceChildren(...rows.map(([name, about], i) =>
        make("li", {role: "option", "aria-selected": i === chosen, "data-row": i, id: `found-${i}`},
          make("b", {}, name), make("span", {}, about))),
        ...(remark ? [make("li", {role: "option", "aria-disabled": true}, remark)] : []));
      found.hidden = !words;
      input.setAttribute("aria-expanded", !!words);
      rows.length ? input.setAttribute("aria-activedescendant", `found-${chosen}`) : input.removeAttribute("aria-activedescendant");
      found.children[chosen]?.scrollIntoView({block: "nearest"});
    };
    const take = i => { if (!rows[i]) return; const act = rows[i][2]; input.value = ""; close(); input.blur(); act(); };
    input.addEventListener("input", () => { chosen = 0; draw(); });
    input.addEventListener("keydown", event => {
      if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        event.preventDefault();
        chosen = (chosen + (event.key === "ArrowDown" ? 1 : rows.length - 1)) % Math.max(1, rows.length);
        draw();
      }
      else if (event.key === "Enter") take(chosen);
      else if (event.key === "Escape") { input.value = ""; close(); input.blur(); }
    });
    input.addEventListener("blur", () => setTimeout(close, 150));
    found.addEventListener("pointerdown", event => {
      const row = event.target.closest("[data-row]");
      if (row) { event.preventDefault(); take(+row.dataset.row); }
    });
  }

  /* What the page shows now, for tests and the console. */
  state() {
    const {trace, moment, step, place} = this;
    return {moment, step, place, events: trace.count, steps: trace.steps.length,
            playing: !!this.playing, lastStep: this.lastStep, ready: this.ready,
            heads: Object.fromEntries(trace.memories.map(m => [m.name, STATES[trace.head(m, moment)]])),
            copies: Object.fromEntries(trace.memories.map(m => [m.name, m.copies.filter(([i]) => i < moment).length])),
            blocks: this.arena.drawn.map(one => ({...one})),
            usage: Object.fromEntries(ROLES.map((role, r) => [role, trace.usage(place).roles[r][moment]])),
            reserved: trace.usage(place).reserved[moment], scale: this.usage.most,
            lit: this.net.marked(),
            rows: this.strips.rows.map(m => m.name)};
  }
}

/* Times of the simulated device are grey. */
function timedClass(text) { return /\bsimulated: /.test(text) ? "timed" : ""; }
function plural(n, one, many = one + "s") { return `${n} ${n === 1 ? one : many}`; }
{
  const begun = performance.now();
  const view = new View(JSON.parse($("trace").textContent));
  $("trace").remove();          // its data are in the columns of Trace
  view.ready = performance.now() - begun;
  window.view = Object.freeze({state: () => view.state(), go: step => view.go(step), goMoment: moment => view.goMoment(moment),
    choose: place => {
    $("place").value = place; $("place").dispatchEvent(new Event("change"));
  }});
}
