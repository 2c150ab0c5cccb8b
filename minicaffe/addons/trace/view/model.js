"use strict";
/* A trace in the page: what html.py computed, and which part of it there is at a moment.

A moment is a number of events: the state at moment i is the start after the first i events, as Trace.at(i) in Python. */

// html.py writes HEADS: for each state its word, the sides that are valid, and an explanation; and ROLES, of memory.
const STATES = Object.keys(HEADS), RECYCLED = STATES.indexOf("RECYCLED");
const SIDES = ["host", "device", "private"];
// The valid sides in each state: bit 0 host, bit 1 device, bit 2 private.
const VALID = STATES.map(state => HEADS[state][1].reduce((bits, side) => bits | 1 << SIDES.indexOf(side), 0));
const stateWord = state => HEADS[state] ? HEADS[state][0] : state;

class Trace {
  constructor(data) {
    Object.assign(this, data);
    this.count = this.events.length;
    this.memoryOf = new Map();
    for (const memory of this.memories) {
      memory.sides = memory.changes.reduce((sides, [, state]) => sides | VALID[state], 0);
      for (const name of [memory.name, ...memory.aliases]) if (!this.memoryOf.has(name)) this.memoryOf.set(name, memory);
    }
    this.sides = this.memories.reduce((all, m) => all | m.sides, 0) || 1;
    this.stepOf = new Int32Array(this.count + 1);
    this.steps.forEach((step, s) => this.stepOf.fill(s, step.first, this.steps[s + 1]?.first));
    this.placeOf = new Map(this.places.map(place => [place.name, place]));
    this.series = new Map();
  }

  /* The state of one memory at a moment. */
  head(memory, moment) { return memory.changes[memory.changes.findLastIndex(([first]) => first <= moment)][1]; }

  /* For one place: bytes in use of each role, null for a role without any, and bytes that the allocator holds, at each moment. */
  usage(name) {
    if (this.series.has(name)) return this.series.get(name);
    const {usage} = this.placeOf.get(name), size = this.count + 1;
    const each = changes => {
      const bytes = new Float64Array(size);
      changes.forEach(([first, value], k) => bytes.fill(value, first, changes[k + 1]?.[0]));
      return bytes;
    };
    const roles = ROLES.map(role => usage[role].length ? each(usage[role]) : null), reserved = each(usage.held);
    const live = Float64Array.from({length: size}, (_, m) => roles.reduce((sum, bytes) => sum + (bytes ? bytes[m] : 0), 0));
    const most = values => values.reduce((a, b) => Math.max(a, b), 0);
    const found = {roles, live, reserved, peak: most(live), most: most(reserved)};
    this.series.set(name, found);
    return found;
  }

  /* Segments of a place at a moment, each with its cells by address; the blocks in no segment are one of their own. */
  arena(name, moment) {
    const {segments, cells} = this.placeOf.get(name), own = {cells: [], tree: false, own: true};
    const found = segments.map(([address, bytes, tree, first, last]) => ({address, bytes, tree, first, last, cells: []}));
    for (const [number, address, bytes, used, requested, name, first, last] of cells)
      if (first <= moment && moment < last) (found[number] || own).cells.push({address, bytes, used, requested, name, first});
    own.bytes = own.cells.reduce((sum, cell) => sum + cell.bytes, 0);
    return [...found.filter(({first, last}) => first <= moment && moment < last), ...(own.cells.length ? [own] : [])];
  }

  titleOf(name) { return (this.memoryOf.get(name) || {title: name}).title; }

  /* Kind and words of an event. */
  event(i) { return this.texts[this.events[i]]; }
}
