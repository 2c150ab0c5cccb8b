"use strict";
/* The drawing of the net, if the trace has one: the layer of the step is marked, a click on a layer shows its next step. */

class NetPanel {
  constructor(view) {
    const {nodes, drawing} = view.trace, box = $("net");
    this.view = view;
    $("net-panel").hidden = !drawing;
    if (drawing) {
      const svg = withoutScript(new DOMParser().parseFromString(drawing, "image/svg+xml").documentElement);
      svg.setAttribute("role", "group");
      svg.classList.toggle("large", +svg.getAttribute("width") > 460);
      box.replaceChildren(svg);
    }
    this.layers = nodes.map((_, i) => box.querySelector(`[data-node="${i}"]`));
    this.blobs = [...box.querySelectorAll("g.blob")].map(g => [g, [g.dataset.blob, ...JSON.parse(g.dataset.aliases || "[]")]]);
    for (const layer of this.layers) {
      layer?.setAttribute("tabindex", 0);
      layer?.setAttribute("role", "button");
    }
    const choose = event => {
      const chosen = event.target.closest("[data-node]");
      if (chosen) view.goLayer(+chosen.dataset.node);
    };
    box.addEventListener("click", choose);
    box.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        event.stopPropagation();
        choose(event);
      }
    });
  }

  /* Mark the layer of the step, those that are computed with it, and the blobs that it touches. */
  show() {
    const {trace} = this.view, step = this.view.currentStep() || {touched: []}, panel = $("net-panel");
    const touched = new Set(step.touched.map(t => (trace.memoryOf.get(t.memory) || {}).blob));
    this.layers.forEach((layer, i) => {
      if (!layer) return;
      const now = step.node === i;
      now ? layer.setAttribute("aria-current", "step") : layer.removeAttribute("aria-current");
      layer.classList.toggle("with", step.with === trace.nodes[i]);
      if (!now) return;
      const [inner, outer] = [layer.getBoundingClientRect(), panel.getBoundingClientRect()];
      if (inner.top < outer.top + 50 || inner.bottom > outer.bottom - 20)
        panel.scrollTop += inner.top - outer.top - outer.height / 2;
      const wide = $("net").getBoundingClientRect();
      if (inner.left < wide.left || inner.right > wide.right)
        $("net").scrollLeft += (inner.left + inner.right - wide.left - wide.right) / 2;
    });
    for (const [g, names] of this.blobs) g.classList.toggle("touched", names.some(name => touched.has(name)));
  }

  /* The names of the layers that are marked. */
  marked() { return this.view.trace.nodes.filter((_, i) => this.layers[i]?.hasAttribute("aria-current")); }
}

/* Remove scripts and links from a drawing; it is from an untrusted file. */
function withoutScript(svg) {
  for (const element of [svg, ...svg.querySelectorAll("*")]) {
    if (/^(script|foreignObject|a|image|use|iframe)$/i.test(element.localName)) element.remove();
    for (const attribute of [...element.attributes]) if (/^on|href$/i.test(attribute.name)) element.removeAttribute(attribute.name);
  }
  return svg;
}
