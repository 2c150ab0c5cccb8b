"use strict";
/* The panel of values: statistics, histogram and pictures of one array, and the samples of all layers, if the trace has them. */

class Values {
  constructor(view) {
    const {values} = view.trace.data, choices = $("array");
    this.view = view;
    this.arrays = new Map((values ? values.arrays : []).map(array => [array.title, array]));
    choices.append(...[...this.arrays.keys()].map(title => make("option", {value: title}, title)));
    choices.addEventListener("change", () => this.showArray());
    $("array-panel").hidden = !values;
    if (values) $("array-iteration").textContent = values.iteration == null ? "one more run" : `iteration ${values.iteration}`;
    $("blob-hint").textContent = values ? ", on a blob its values" : "";
    $("touched").addEventListener("click", event => {
      const cell = event.target.closest("[data-memory]");
      if (cell) this.choose(view.trace.titleOf(cell.dataset.memory));
    });
    $("values").addEventListener("click", event => {
      const row = event.target.closest("[data-go]");
      if (row) view.goLayer(view.trace.net.nodes.findIndex(node => node.name === row.dataset.go));
    });
  }

  show() {
    const samples = this.view.trace.data.samples || [], step = this.view.currentStep();
    $("value-panel").hidden = !samples.length && !this.arrays.size || !step;
    $("samples").hidden = !samples.length;
    if (!step) return;
    this.showArray();
    if (samples.length) this.showSamples(samples, step);
  }

  choose(title) {
    if (!this.arrays.has(title)) return;
    $("array").value = title;
    this.showArray();
    $("value-panel").scrollIntoView({block: "nearest"});
  }

  /* The title of the first array that the step writes and that has values. */
  titleOfStep() {
    const step = this.view.currentStep(), node = this.view.trace.net.nodes[step.node];
    const names = step.kind === "update" ? step.parameters || [] : !node ? []
      : step.kind === "backward" ? [...node.bottoms, ...node.params].map(name => `${name} diff`) : node.tops;
    return names.find(name => this.arrays.has(name));
  }

  showArray() {
    const ofStep = this.titleOfStep(), title = $("array").value || ofStep, array = this.arrays.get(title);
    $("array").options[0].textContent = `of this step${ofStep ? `: ${ofStep}` : ""}`;
    $("array-values").hidden = !array;
    if (!array || title === this.shown) return;
    this.shown = title;
    const {maps, shape, histogram} = array, highest = Math.max(1, ...histogram);
    $("array-about").textContent = `${title}: ${shape.join(" × ") || "scalar"}, of layer ${array.layer}. `
      + `From ${valueText(array.min)} to ${valueText(array.max)}, mean ${valueText(array.mean)}, norm ${valueText(array.norm)}, `
      + `zeros ${digits(array.zeros * 100)} %, not finite: ${array.wrong.toLocaleString("en")}.`;
    const bars = histogram.map((n, i) => [i, n / highest * 10])
      .map(([i, height]) => `<rect x="${i}" y="${10 - height}" width=".9" height="${height}"/>`);
    $("array-histogram").innerHTML = `<svg viewBox="0 0 ${histogram.length || 1} 10" preserveAspectRatio="none" aria-hidden="true">`
      + `${bars.join("")}</svg>`;
    $("array-low").textContent = valueText(array.min);
    $("array-high").textContent = valueText(array.max);
    $("array-maps").replaceChildren(...pictures(maps, title));
    $("array-remark").textContent = maps.count > 1
      ? `${maps.count} of ${maps.of} ${maps.what}. Black is the least value, white the largest.`
      : `${shape.length > 1 ? "A row for each index of the first axis. " : ""}Black is the least value, white the largest.`;
  }

  /* Show a row for each blob and gradient that was sampled in this iteration. */
  showSamples(samples, step) {
    const iterations = [...new Set(samples.map(s => s.iteration))], name = s => s.blob ?? `${s.parameter ?? s.diff} diff`;
    const norm = s => s.not_finite === 1 ? null : s.norm;      // of the finite values; null if there are none
    const iteration = iterations.findLast(i => i <= step.iteration) ?? iterations[0];
    $("value-iteration").textContent = iteration;
    if (!this.histories) {
      this.histories = new Map();
      for (const s of samples) {
        const key = `${s.layer} ${name(s)}`;
        this.histories.set(key, [...(this.histories.get(key) || []), norm(s)]);
      }
    }
    const share = value => value == null ? "–" : `${digits(value * 100)} %`;
    $("values").tBodies[0].replaceChildren(...samples.filter(s => s.iteration === iteration).map(s => {
      const cell = (text, bad) => make("td", {class: bad ? "n bad" : "n"}, text);
      const row = make("tr", {"data-go": s.layer, class: s.layer === step.layer ? "lit" : ""},
        make("td", {class: "code"}, name(s)), make("td", {}, make("button", {type: "button"}, s.layer)),
        make("td", {class: "n"}), cell(share(s.zeros)), cell(share(s.saturated)), cell(share(s.not_finite), s.not_finite > 0));
      row.children[2].innerHTML = sparkline(this.histories.get(`${s.layer} ${name(s)}`));
      row.children[2].append(` ${valueText(norm(s))}`);
      return row;
    }));
  }
}

/* Return a canvas for each picture; values that are not finite are red. */
function pictures(maps, title) {
  const levels = Uint8Array.from(atob(maps.levels), c => c.charCodeAt(0)), plane = maps.height * maps.width;
  const zoom = Math.max(1, Math.floor((maps.count > 1 ? 76 : 380) / Math.max(maps.width, maps.height)));
  return Array.from({length: Math.min(maps.count, Math.floor(levels.length / plane))}, (_, m) => {
    const canvas = make("canvas", {width: maps.width, height: maps.height, role: "img", "aria-label": `picture ${m} of ${title}`});
    const context = canvas.getContext("2d"), image = context.createImageData(maps.width, maps.height);
    for (let i = 0; i < plane; i++) {
      const level = levels[m * plane + i];
      image.data.set(level === 255 ? [194, 37, 92, 255] : [level, level, level, 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
    canvas.style.width = maps.width * zoom + "px";
    return canvas;
  });
}

/* Return the SVG of a line through numbers, without axes. */
function sparkline(numbers) {
  const finite = numbers.filter(Number.isFinite), low = Math.min(...finite), high = Math.max(...finite);
  if (finite.length < 2) return "";
  const points = numbers.map((n, i) => Number.isFinite(n)
    ? `${(i / (numbers.length - 1) * 56 + 2).toFixed(1)}`
      + ` ${(high > low ? 14 - (n - low) / (high - low) * 12 : 8).toFixed(1)}`
    : null);
  return `<svg width="60" height="16" aria-hidden="true"><path d="M${points.filter(Boolean).join(" L")}"/></svg>`;
}
