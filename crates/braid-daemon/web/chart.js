// Live charts as SVG: the rates of the last five minutes, stacked.

import { setAttributes, setText, shape } from "./dom.js";
import { rate, texts } from "./texts.js";

/** Time that a chart shows, in milliseconds. */
export const WINDOW = 300_000;
/** Pause between two samples after which the line is broken. */
const GAP = 3500;

/** Samples of one rate by the daemon's clock. */
export class Samples {
  points = [];

  add(at, value) {
    this.points.push({ at, value });
    while (this.points.length && this.points[0].at < at - WINDOW) this.points.shift();
  }

  get last() {
    return this.points.at(-1)?.value ?? 0;
  }
}

/** Rounds up to 1, 2 or 5 times a power of ten, and to a megabit per second at least. */
export function ceiling(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e6)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

/** Draws areas on top of each other, in the order given. */
export class Chart {
  constructor(svg, { width, height, axis }) {
    this.svg = svg;
    this.size = { width, height };
    this.axis = axis;
    setAttributes(svg, { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" });
    this.grid = shape("g", { class: "grid" });
    this.areas = shape("g");
    this.labels = shape("g", { class: "labels", "aria-hidden": "true" });
    svg.append(this.areas, this.grid, this.labels);
    if (axis) this.drawAxis();
  }

  drawAxis() {
    const { width, height } = this.size;
    for (const part of [0.5, 1]) {
      const y = height - part * (height - 24) - 16;
      this.grid.append(shape("line", { x1: 0, x2: width, y1: y, y2: y }));
    }
    const label = (x, y, anchor) => {
      const text = shape("text", { x, y, "text-anchor": anchor });
      this.labels.append(text);
      return text;
    };
    const top = height - (height - 24) - 16;
    this.highest = label(4, top + 14, "start");
    this.half = label(4, top + (height - 24) / 2 + 14, "start");
    setText(label(4, height - 3, "start"), texts.minutesAgo);
    setText(label(width - 4, height - 3, "end"), texts.nowLabel);
  }

  /** Draws `series`, each with `samples` and `className`, up to the daemon's time `now`. Returns the highest total. */
  draw(series, now) {
    const { width, height } = this.size;
    const bottom = this.axis ? 16 : 0;
    const room = height - (this.axis ? 24 : 2);
    const times = [...new Set(series.flatMap(({ samples }) => samples.points.map(({ at }) => at)))].sort((a, b) => a - b);
    const values = series.map(({ samples }) => new Map(samples.points.map(({ at, value }) => [at, value])));
    const totals = times.map((at) => values.reduce((sum, of) => sum + (of.get(at) ?? 0), 0));
    const most = Math.max(0, ...totals);
    const scale = ceiling(most);
    const x = (at) => (width * (1 - (now - at) / WINDOW)).toFixed(1);
    const y = (value) => (height - bottom - (room * value) / scale).toFixed(1);
    let below = times.map(() => 0);
    series.forEach(({ className }, i) => {
      const above = times.map((at, k) => below[k] + (values[i].get(at) ?? 0));
      let area = this.areas.children[i];
      if (!area) {
        area = shape("path");
        this.areas.append(area);
      }
      setAttributes(area, { class: `area ${className}`, d: outline(times, above, below, x, y) });
      below = above;
    });
    while (this.areas.children.length > series.length) this.areas.lastElementChild.remove();
    if (this.axis) {
      setText(this.highest, rate(scale));
      setText(this.half, rate(scale / 2));
    }
    return most;
  }
}

/** Returns the path of an area between two lines, broken where samples are missing. */
function outline(times, above, below, x, y) {
  const parts = [];
  let from = 0;
  for (let i = 1; i <= times.length; i++) {
    if (i < times.length && times[i] - times[i - 1] <= GAP) continue;
    const run = times.slice(from, i).map((_, k) => from + k);
    if (run.length > 1) {
      const there = run.map((k) => `${x(times[k])},${y(above[k])}`);
      const back = run.reverse().map((k) => `${x(times[k])},${y(below[k])}`);
      parts.push(`M${there.join("L")}L${back.join("L")}Z`);
    }
    from = i;
  }
  return parts.join("");
}
