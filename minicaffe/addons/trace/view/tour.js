"use strict";
/* The tour of the page, on the first visit: a box that explains the panels one by one. All keys of the page work during it. */

const TOUR = [      // element, title, text
  ["transport", "steps", "A trace is a list of steps: a layer that runs forward or backward, or an update of the parameters. "
    + "The arrow keys show the next and the previous step, space plays them. All panels show the same moment."],
  ["net", "the net", "The layer of this step and its blobs are red. A click on a layer shows its next step. "
    + "The buttons above make a large net smaller, or show it over the whole width."],
  ["steps", "the order of the steps", "One cell for each step; its colour is its direction. Click or drag to select a step. "
    + "The keys + and − zoom, 0 shows all."],
  ["usage", "memory", "Live bytes, by what the memory is for. "
    + "The dashed line is what the allocator holds: live blocks and its cache."],
  ["strips", "states", "A row for each memory, a lane for each side: host, device, private. A lane is filled while that side has "
    + "the current values. A dot is a copy; the key c shows the next one and its reason."],
  ["step-panel", "this step", "What the step computes, how long it takes, why it copies, which states it changes, and its events."],
  ["arena", "blocks", "The memory of the allocator at this moment. The colour of a block is that of its role. "
    + "Hatched blocks are free."],
  ["kernel-panel", "values and kernels", "Above: the values of a blob, if the trace has them. Here: the kernels of this step. "
    + "The key / searches layers, blobs and kernels. The key ? lists all keys and words, and starts this tour again."],
];

class Tour {
  constructor() {
    const click = (id, act) => $(id).addEventListener("click", act);
    click("tour-start", () => { $("help").close(); this.show(0); });
    click("tour-back", () => this.show(this.stop - 1));
    click("tour-next", () => this.show(this.stop + 1));
    click("tour-end", () => this.end());
  }

  /* Show stop number `stop` of those whose panel is shown for this trace; after the last one the tour ends. */
  show(stop) {
    const stops = TOUR.filter(([id]) => !$(id).closest("[hidden]")), [id, title, text] = stops[stop] || [];
    document.querySelector(".toured")?.classList.remove("toured");
    $("tour").hidden = !id;
    if (!id) return this.seen(true);
    this.stop = stop;
    $("tour-title").textContent = `${stop + 1} of ${stops.length}: ${title}`;
    $("tour-text").textContent = text;
    $("tour-back").disabled = !stop;
    $("tour-next").textContent = stop + 1 < stops.length ? "Next" : "Done";
    $(id).classList.add("toured");
    $(id).scrollIntoView({block: "center"});
    $("tour-next").focus({preventScroll: true});
  }
  end() { if (!$("tour").hidden) this.show(-1); }

  /* Whether the tour was seen. `now` stores that it was; if the browser refuses to store it, it counts as seen. */
  seen(now) {
    try {
      if (now) localStorage.setItem("minicaffe-tour", "seen");
      return !!localStorage.getItem("minicaffe-tour");
    } catch { return true; }
  }
}
