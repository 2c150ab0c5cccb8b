"use strict";
/* A trace in the page: columns of events, the steps, and the state at any moment.

A moment is a number of events: the state at moment i is the start after the first i events, as Trace.at(i) in Python.
Blocks and arenas are replayed from the last checkpoint before the moment, which takes about a millisecond in a trace of 100,000
events. Heads are looked up in each memory's list of changes. */

// html.py writes HEADS: for each state its word, the sides that are valid, and an explanation.
const STATES = Object.keys(HEADS), RECYCLED = STATES.indexOf("RECYCLED");
const SIDES = ["host", "device", "private"];
// Which sides are valid in each state: bit 0 host, bit 1 device, bit 2 private.
const VALID = STATES.map(state => HEADS[state][1].reduce((bits, side) => bits | 1 << SIDES.indexOf(side), 0));
const stateWord = state => HEADS[state] ? HEADS[state][0] : state;
const ROLES = ["parameter", "activation", "gradient", "history", "input", "workspace", "other"];
const CHECKPOINT = 1000;

/* The memory of one place: an allocator's segments (`tree`: buddy allocator), their cells by address, and blocks in no segment. */
class Place {
  constructor() { this.segments = new Map(); this.cells = new Map(); this.loose = new Map(); }

  clone() {
    const copy = new Place();
    copy.segments = new Map(this.segments);
    copy.cells = new Map(this.cells);      // cells are never changed, only replaced, so that copies may share them
    copy.loose = new Map(this.loose);
    return copy;
  }

  hold(address, bytes, cells, tree) {
    this.segments.set(address, {bytes, tree});
    for (const cell of cells || [{address, bytes, used: false}])
      this.cells.set(cell.address, {bytes: cell.bytes, used: !!cell.used, asked: cell.asked || 0, name: cell.name || ""});
  }

  drop(from, bytes) {
    for (let at = from; at < from + bytes;) {
      const cell = this.cells.get(at);
      if (!cell) break;
      this.cells.delete(at);
      at += cell.bytes;
    }
  }

  apply(kind, address, bytes, name) {
    const cell = this.cells.get(address);
    switch (kind) {
      case "alloc":
        if (cell) this.cells.set(address, {bytes: cell.bytes, used: true, asked: bytes, name});
        else this.loose.set(address, {bytes, used: true, asked: bytes, name});
        break;
      case "free":
        if (cell) this.cells.set(address, {bytes: cell.bytes, used: false, asked: 0, name: ""});
        else this.loose.delete(address);
        break;
      case "split":
        if (cell && cell.bytes > bytes) {
          this.cells.set(address, {...cell, bytes});
          this.cells.set(address + bytes, {bytes: cell.bytes - bytes, used: false, asked: 0, name: ""});
        }
        break;
      case "merge":
        if (!cell) break;
        this.drop(address, bytes);
        this.cells.set(address, {bytes, used: false, asked: 0, name: ""});
        break;
      case "segment taken": case "pool taken":
        this.hold(address, bytes, null, kind === "pool taken");
        break;
      case "segment given back": case "pool given back":
        this.drop(address, bytes);
        this.segments.delete(address);
        break;
    }
  }
}

const ALLOCATOR_KINDS = new Set(["alloc", "free", "split", "merge", "segment taken", "pool taken",
  "segment given back", "pool given back"]);

class Trace {
  constructor(data) {
    this.data = data;
    const e = data.events;
    this.strings = data.strings;
    this.count = e.time.length;
    for (const column of ["kind", "place", "name", "detail"]) this[column] = Uint32Array.from(e[column]);
    for (const column of ["time", "address", "bytes"]) this[column] = Float64Array.from(e[column]);
    this.took = Float64Array.from(e.took || e.time.map(() => 0));
    data.events = null;             // they are in the columns above
    this.steps = data.steps;
    this.device = data.device;
    this.net = data.net;
    this.replaces = this.strings.map(s => ALLOCATOR_KINDS.has(s));
    this.findMemories();
    this.findPlaces();
    this.stepOf = this.findSteps();
    this.series = new Map();
  }

  findSteps() {
    const of = new Int32Array(this.count + 1).fill(-1);
    this.steps.forEach((step, s) => of.fill(s, step.first, step.last));
    for (let i = 0, last = 0; i <= this.count; i++) of[i] < 0 ? of[i] = last : last = of[i];
    return of;
  }

  /* Find for each memory the moments at which its state changes, and the events that copy or reorder it. */
  findMemories() {
    this.memories = [];
    this.memoryOf = new Map();
    for (const memory of this.data.memories) {
      const one = {...memory, title: memory.title || memory.name, changes: [0],
                   states: [STATES.indexOf(this.data.start.heads[memory.name] || "UNINITIALIZED")],
                   copies: [], sides: 0};
      this.memories.push(one);
      for (const name of [memory.name, ...(memory.aliases || [])]) if (!this.memoryOf.has(name)) this.memoryOf.set(name, one);
    }
    const states = this.strings.map(s => {
      const found = /-> ([A-Z_]+)/.exec(s);
      return found ? STATES.indexOf(found[1]) : -1;
    });
    const [head, copy, reorder] = ["head", "copy", "reorder"].map(k => this.strings.indexOf(k));
    for (let i = 0; i < this.count; i++) {
      const kind = this.kind[i];
      if (kind !== head && kind !== copy && kind !== reorder) continue;
      const memory = this.memoryOf.get(this.strings[this.name[i]]);
      if (!memory) continue;
      if (kind !== head) memory.copies.push(i);
      else if (states[this.detail[i]] >= 0) {
        memory.changes.push(i + 1);
        memory.states.push(states[this.detail[i]]);
      }
    }
    for (const memory of this.memories) for (const state of memory.states) memory.sides |= VALID[state];
    this.sides = this.memories.reduce((all, m) => all | m.sides, 0) || 1;
  }

  /* The state of one memory at a moment. */
  head(memory, moment) { return memory.states[lastAtMost(memory.changes, moment)]; }

  findPlaces() {
    const start = new Map();
    for (const arena of this.data.start.arenas)
      for (const segment of arena.segments)
        placeIn(start, arena.place).hold(segment.address, segment.bytes, segment.blocks, arena.allocator === "buddy");
    for (const block of this.data.start.blocks) placeIn(start, block.place).apply("alloc", block.address, block.bytes, block.name);
    this.checkpoints = [start];
    const state = copyOf(start);
    for (let i = 0; i < this.count; i++) {
      if (i && i % CHECKPOINT === 0) this.checkpoints.push(copyOf(state));
      this.applyTo(state, i);
    }
    if (this.count % CHECKPOINT === 0 && this.count) this.checkpoints.push(copyOf(state));
    this.places = [...state.keys()];
  }

  applyTo(state, i) {
    if (!this.replaces[this.kind[i]]) return;
    placeIn(state, this.strings[this.place[i]])
        .apply(this.strings[this.kind[i]], this.address[i], this.bytes[i], this.strings[this.name[i]]);
  }

  /* All places after the first `moment` events. */
  at(moment) {
    if (this.found && this.found.moment === moment) return this.found.state;
    let number = Math.floor(moment / CHECKPOINT), from = number * CHECKPOINT, state;
    if (this.found && this.found.moment < moment && this.found.moment > from) {     // continue from the last state
      from = this.found.moment;
      state = this.found.state;
    } else state = copyOf(this.checkpoints[number]);
    for (let i = from; i < moment; i++) this.applyTo(state, i);
    this.found = {moment, state};
    return state;
  }

  /* The title of the memory with a name in events. With `block` several memories may have the name: then their common part. */
  titleOf(name, block = false) {
    const shared = block && this.memoryOf.has(`${name} #2`);
    return shared ? name.replace(/ data$/, "").replace(/^\[(.*)\]$/, "$1") : (this.memoryOf.get(name) || {title: name}).title;
  }

  roleOf(name) {
    const number = ROLES.indexOf((this.memoryOf.get(name) || {}).role);
    return number < 0 ? ROLES.indexOf("other") : number;
  }

  /* For one place: bytes in use of each role, and bytes that the allocator holds, at each moment. */
  usage(place) {
    if (this.series.has(place)) return this.series.get(place);
    const size = this.count + 1;
    const roles = ROLES.map(() => new Float64Array(size)), live = new Float64Array(size), reserved = new Float64Array(size);
    const now = new Float64Array(ROLES.length);
    const state = (this.checkpoints[0].get(place) || new Place()).clone();
    const roleOf = this.strings.map(s => this.roleOf(s));
    const blocks = new Map();           // address -> [role, bytes], of the blocks in use
    let held = 0, total = 0;
    const take = (address, bytes, role) => { blocks.set(address, [role, bytes]); now[role] += bytes; total += bytes; };
    const note = i => { for (let r = 0; r < now.length; r++) roles[r][i] = now[r]; live[i] = total; reserved[i] = held; };
    for (const [address, cell] of [...state.cells, ...state.loose])
      if (cell.used) take(address, cell.asked || cell.bytes, this.roleOf(cell.name));
    for (const segment of state.segments.values()) held += segment.bytes;
    for (const block of state.loose.values()) held += block.bytes;
    note(0);
    for (let i = 0; i < this.count; i++) {
      if (this.replaces[this.kind[i]] && this.strings[this.place[i]] === place) {
        const kind = this.strings[this.kind[i]], address = this.address[i], bytes = this.bytes[i];
        const loose = state.loose.has(address);
        state.apply(kind, address, bytes, "");
        if (kind === "alloc") {
          if (blocks.has(address)) { const [role, old] = blocks.get(address); now[role] -= old; total -= old; }
          take(address, bytes, roleOf[this.name[i]]);
          if (state.loose.has(address) && !loose) held += bytes;
        } else if (kind === "free" && blocks.has(address)) {
          const [role, old] = blocks.get(address);
          now[role] -= old; total -= old;
          blocks.delete(address);
          if (loose) held -= old;
        } else if (kind.endsWith(" taken")) held += bytes;
        else if (kind.endsWith(" given back")) held -= bytes;
      }
      note(i + 1);
    }
    const found = {roles, live, reserved, peak: live.reduce((a, b) => Math.max(a, b), 0),
                   most: reserved.reduce((a, b) => Math.max(a, b), 0)};
    this.series.set(place, found);
    return found;
  }

  /* Segments of a place at a moment, each with its cells by address; a block in no segment is a segment of its own. */
  arena(place, moment) {
    const here = this.at(moment).get(place);
    if (!here) return [];
    const segments = [...here.segments].sort((a, b) => a[0] - b[0]).map(([address, {bytes, tree}]) => {
      const cells = [];
      for (let at = address; at < address + bytes;) {
        const cell = here.cells.get(at);
        if (!cell) break;
        cells.push({address: at, ...cell});
        at += cell.bytes;
      }
      return {address, bytes, cells, tree, own: false};
    });
    const loose = [...here.loose].map(([address, cell]) => ({address, ...cell})).sort((a, b) => a.address - b.address);
    return loose.length
      ? [...segments, {address: loose[0].address, bytes: loose.reduce((sum, c) => sum + c.bytes, 0), cells: loose,
                       tree: false, own: true}]
      : segments;
  }

  event(i) {
    const s = this.strings;
    return {number: i, time: this.time[i], kind: s[this.kind[i]], place: s[this.place[i]],
            address: this.address[i], bytes: this.bytes[i],
            name: s[this.name[i]], detail: s[this.detail[i]], took: this.took[i],
            title: this.titleOf(s[this.name[i]], /^(alloc|free)$/.test(s[this.kind[i]]))};
  }

  /* Number of the schedule's row with the layer of a step; -1 if there is none, or several, as layers may have one name. */
  rowOf(step) {
    const {rows} = this.data.schedule || {rows: []}, node = step && this.net.nodes[step.node], found = [];
    if (node) rows.forEach((row, i) => { if (row.direction === step.kind && row.layers.includes(node.name)) found.push(i); });
    return found.length === 1 ? found[0] : -1;
  }

  /* The name of a step. */
  nameOf(step) { return step.layer || (this.net.nodes.length ? step.kind : "the record"); }

  /* Numbers of the events of a kind in a range. */
  find(kind, first = 0, last = this.count) {
    const number = this.strings.indexOf(kind), found = [];
    if (number >= 0) for (let i = first; i < last; i++) if (this.kind[i] === number) found.push(i);
    return found;
  }
}

function placeIn(state, name) { return state.get(name) || state.set(name, new Place()).get(name); }
function copyOf(state) { return new Map([...state].map(([place, memory]) => [place, memory.clone()])); }

/* Index of the last element of a sorted list that is at most `value`. */
function lastAtMost(list, value) {
  let low = 0, high = list.length;
  while (low < high) { const middle = (low + high) >> 1; list[middle] <= value ? low = middle + 1 : high = middle; }
  return Math.max(0, low - 1);
}
