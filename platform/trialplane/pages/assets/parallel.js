/*
 * Parallel coordinates: an axis for each column, and a line for each trial. Those of plotly.js are drawn in WebGL, and each
 * change waits until their pixels can be read, which takes seconds without a GPU. So the lines are on a canvas here.
 */

const MARGIN = { left: 70, right: 124, top: 60, bottom: 20 }; // pixels around the axes
const TICKS = 13; // values of an axis that each have a tick
const SHADES = 64; // colors of lines
const KEY_STEP = 0.05; // part of an axis by which a key moves a range
const CLICK = 3; // pixels that the pointer may move during a click
const GRIP = 24; // pixels beside an axis in which a drag begins

const svg = (name, attributes = {}, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

/** An axis over the values of `rows`. Logarithms and choices have ticks of their own. "none" is below the smallest value. */
class Axis {
  constructor(column, rows) {
    this.column = column;
    this.none = -Infinity;
    let low = Infinity, high = -Infinity, missing = false;
    const distinct = new Set();
    for (const row of rows) {
      if (!column.isPlaced(row)) { missing = true; continue; }
      const value = this.value(row);
      if (value < low) low = value;
      if (value > high) high = value;
      if (distinct.size <= TICKS) distinct.add(value);
    }
    if (low > high) [low, high] = [0, 1];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    this.none = low - 0.12 * (high - low);
    Object.assign(this, { low: missing ? this.none : low, high, ticks: this.ticksOf(low, high, [...distinct].sort((a, b) => a - b)) });
    if (missing) this.ticks.unshift([this.none, "none"]);
  }

  ticksOf(low, high, distinct) {
    const { texts, log } = this.column;
    if (texts) {
      const step = Math.ceil(texts.length / 30);
      return texts.map((text, i) => [i + 1, text]).filter(([code], i) => code >= low && code <= high && i % step === 0);
    }
    const areFar = distinct.length <= TICKS && distinct.every((value, i) => i === 0 || value - distinct[i - 1] >= (high - low) / TICKS);
    if (areFar && !log) return distinct.map((value) => [value, short(value)]);
    return [0, 1, 2, 3, 4].map((i) => low + (i * (high - low)) / 4).map((value) => [value, this.text(value)]);
  }

  /** The value of a row on the axis. */
  value(row) {
    if (!this.column.isPlaced(row)) return this.none;
    return this.column.log ? Math.log10(this.column.data[row]) : this.column.data[row];
  }

  /** The text of a value on the axis. */
  text(value) {
    return short(this.column.log ? 10 ** value : Number(value.toPrecision(3)));
  }
}

/**
 * Axes and lines. A range of an axis is chosen with the pointer or with keys; `choose` is called after each change of `ranges`.
 * `draw` returns the axes; `faint` and `lines`, the rows of lines from the best to the worst; `share`, the color of a row from
 * 0 to 1; and the `title` and `ticks` of the color bar.
 */
class ParallelChart extends Chart {
  constructor(label, height, draw, choose) {
    super(label, height, draw);
    this.element.setAttribute("role", "group"); // its axes are controls
    Object.assign(this, { height, choose, ranges: new Map(), grips: [] }); // ranges by column, as several may have the same name
    new ResizeObserver(() => { if (this.mounted && this.element.clientWidth !== this.width) this.update(); }).observe(this.element);
  }

  mount() {
    if (this.mounted || !this.element.isConnected) return;
    this.mounted = true;
    this.update();
  }

  unmount() {
    this.mounted = false;
    this.element.replaceChildren();
  }

  update() {
    if (!this.mounted) return this.mount();
    const content = this.draw(), { axes } = content;
    this.width = this.element.clientWidth;
    this.axes = axes;
    this.step = (this.width - MARGIN.left - MARGIN.right) / Math.max(1, axes.length - 1);
    const canvas = (name) => Object.assign(el("canvas", { class: name }), { width: Math.max(1, this.width * devicePixelRatio), height: this.height * devicePixelRatio });
    Object.assign(this, { faint: canvas("faint"), lines: canvas("lines") });
    const focused = this.grips.indexOf(document.activeElement);
    this.marks = axes.map(() => svg("rect", { class: "range", x: -4, width: 8, rx: 2 }));
    this.grips = axes.map((axis) => this.grip(axis));
    this.element.replaceChildren(this.faint, this.lines, svg("svg", { viewBox: `0 0 ${this.width} ${this.height}`, preserveAspectRatio: "none" }, ...axes.map((axis, i) => this.axis(axis, i)), this.colorBar(content)));
    this.grips[focused]?.focus({ preventScroll: true });
    this.stroke(this.faint, content.faint, () => css("--line"));
    this.updateLines(content);
  }

  /** Draws the lines and ranges again. */
  updateLines(content) {
    if (!this.mounted) return;
    content ??= this.draw();
    const colors = Array.from({ length: SHADES }, (_, i) => shadeOf(i / (SHADES - 1), content.isReversed));
    this.stroke(this.lines, content.lines, (row) => colors[Math.round(content.share(row) * (SHADES - 1))]);
    this.axes.forEach((axis, i) => {
      const range = this.ranges.get(axis.column);
      const [top, bottom] = range ? [this.y(axis, range[1]), this.y(axis, range[0])] : [0, 0];
      this.marks[i].setAttribute("y", top);
      this.marks[i].setAttribute("height", range ? Math.max(2, bottom - top) : 0);
      this.grips[i].setAttribute("aria-valuetext", range ? range.map((value) => axis.text(value)).join(" to ") : "all");
    });
  }

  y(axis, value) {
    return this.height - MARGIN.bottom - ((value - axis.low) / (axis.high - axis.low)) * (this.height - MARGIN.bottom - MARGIN.top);
  }

  stroke(canvas, rows, colorOf) {
    const context = canvas.getContext("2d", { willReadFrequently: true }); // drawn by the processor: quick everywhere
    context.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    context.lineWidth = rows.length > 200 ? 1 / devicePixelRatio : 1.5; // a line of one pixel is the quickest by far
    for (let i = rows.length - 1; i >= 0; i--) { // the best on top
      context.strokeStyle = colorOf(rows[i]);
      context.beginPath();
      this.axes.forEach((axis, j) => context.lineTo(MARGIN.left + j * this.step, this.y(axis, axis.value(rows[i]))));
      context.stroke();
    }
  }

  axis(axis, i) {
    const { name } = axis.column;
    const [top, bottom] = [MARGIN.top, this.height - MARGIN.bottom];
    const room = (i ? this.step : MARGIN.left) - 10;
    const ticks = axis.ticks.map(([value, text]) => svg("text", { class: "tick", x: -7, y: this.y(axis, value), dy: "0.35em" }, ...(axis.column.texts ? shortened(text, room) : [text])));
    return svg("g", { transform: `translate(${MARGIN.left + i * this.step} 0)` }, svg("line", { y1: top, y2: bottom }), ...ticks, this.marks[i],
      svg("text", { class: "name", y: top - 20 }, ...shortened(name, this.step)), this.grips[i]);
  }

  /** The part of an axis that takes the pointer and the keys. */
  grip(axis) {
    const grip = svg("rect", { class: "grip", x: -GRIP, width: 2 * GRIP, y: MARGIN.top, height: this.height - MARGIN.bottom - MARGIN.top, tabindex: 0, role: "slider",
      "aria-label": `Range of ${axis.column.name}`, "aria-orientation": "vertical", "aria-valuenow": 0 }, svg("title", {}, axis.column.name));
    grip.addEventListener("pointerdown", (event) => this.drag(event, axis, grip.getBoundingClientRect()));
    grip.addEventListener("keydown", (event) => this.key(event, axis));
    return grip;
  }

  /** Follows the pointer from outside of a range to a new one, from an edge to change it, and from its inside to move it. A click chooses all. */
  drag(event, axis, box) {
    if (event.button !== 0) return;
    const at = ({ clientY }) => axis.high - ((clientY - box.top) / box.height) * (axis.high - axis.low);
    const start = event.clientY, from = at(event), old = this.ranges.get(axis.column);
    const edge = old?.findIndex((value) => Math.abs(value - from) * box.height < 5 * (axis.high - axis.low)) ?? -1;
    const isInside = edge < 0 && old && from > old[0] && from < old[1];
    const fixed = edge < 0 ? from : old[1 - edge];
    let isClick = true;
    const move = (event) => {
      isClick &&= Math.abs(event.clientY - start) < CLICK;
      if (isClick) return;
      this.set(axis, isInside ? old.map((value) => value + at(event) - from) : [Math.min(fixed, at(event)), Math.max(fixed, at(event))]);
    };
    const stop = () => {
      removeEventListener("pointermove", move);
      if (isClick) this.set(axis, null);
    };
    addEventListener("pointermove", move); // of the window, as newer content may replace the axis meanwhile
    addEventListener("pointerup", stop, { once: true });
  }

  /** Arrows move a range, with Shift its upper edge; Escape chooses all. The first arrow chooses the upper or the lower fifth. */
  key(event, axis) {
    const up = { ArrowUp: 1, ArrowDown: -1 }[event.key], size = axis.high - axis.low, step = up * KEY_STEP * size;
    const range = this.ranges.get(axis.column);
    if (event.key === "Escape") this.set(axis, null);
    else if (!up) return;
    else if (!range) this.set(axis, up > 0 ? [axis.high - size / 5, axis.high] : [axis.low, axis.low + size / 5]);
    else this.set(axis, event.shiftKey ? [range[0], Math.max(range[0], range[1] + step)] : range.map((value) => value + step));
    event.preventDefault();
  }

  /** Sets a range, within its axis; null for all. Before the next frame, only the last change counts. */
  set(axis, range) {
    if (range) this.ranges.set(axis.column, range.map((value) => Math.max(axis.low, Math.min(axis.high, value))));
    else this.ranges.delete(axis.column);
    this.frame ??= requestAnimationFrame(() => { this.frame = null; this.choose(); });
  }

  colorBar({ title, ticks, isReversed }) {
    const [top, bottom] = [MARGIN.top, this.height - MARGIN.bottom], x = this.width - MARGIN.right + 50;
    const stops = [0, 0.25, 0.5, 0.75, 1].map((share) => svg("stop", { offset: share, "stop-color": shadeOf(share, isReversed) }));
    return svg("g", {}, svg("linearGradient", { id: "colors", x1: 0, x2: 0, y1: 1, y2: 0 }, ...stops), svg("rect", { x, y: top, width: 12, height: bottom - top, fill: "url(#colors)" }),
      svg("text", { class: "name bar title", x: this.width - 4, y: top - 44 }, title), ...ticks.map(([share, text]) => svg("text", { class: "tick bar", x: x + 18, y: bottom - share * (bottom - top), dy: "0.35em" }, text)));
  }
}

/** A text that fits into so many pixels, and all of it as a tooltip if it was cut. */
function shortened(text, pixels) {
  const room = Math.max(4, Math.floor(pixels / 7.5));
  return text.length > room ? [`${text.slice(0, room - 1)}…`, svg("title", {}, text)] : [text];
}

/** The color of a share, from 0 to 1, on the color scale of the theme. */
function shadeOf(share, isReversed) {
  const stops = scale(), at = isReversed ? 1 - share : share;
  const next = Math.max(1, stops.findIndex(([stop]) => stop >= at));
  const [[a, from], [b, to]] = [stops[next - 1], stops[next]];
  const part = (color, i) => parseInt(color.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgb(${[0, 1, 2].map((i) => Math.round(part(from, i) + ((at - a) / (b - a)) * (part(to, i) - part(from, i)))).join(" ")})`;
}
