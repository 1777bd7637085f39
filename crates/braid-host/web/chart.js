// Charts as SVG: rates over the last minutes or the last day, stacked.

import { setAttributes, setText, shape } from "./dom.js";
import { ago, now as presently, roundRate, span } from "./format.js";

/** Times that a chart shows, in milliseconds: the first that has room for all samples. */
const WINDOWS = [60_000, 120_000, 300_000];
const LONGEST = WINDOWS.at(-1);
/** Room for the labels below a chart with an axis, and above every chart, in pixels. */
const FOOT = 18;
const HEAD = 4;
/** Pause between two samples after which the line is broken. */
const GAP = 3500;

/** Samples of one rate by the daemon's clock. */
export class Samples {
  points = [];

  add(at, value) {
    this.points.push({ at, value });
    while (this.points.length && this.points[0].at < at - LONGEST) this.points.shift();
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
  /** With an `axis` the chart has lines and labels. */
  constructor(svg, axis) {
    this.svg = svg;
    this.areas = shape("g");
    this.grid = shape("g", { class: "grid" });
    this.labels = shape("g", { class: "labels", "aria-hidden": "true" });
    svg.append(this.areas, this.grid, this.labels);
    // To ask for the size while a snapshot is shown would lay the page out anew for each chart.
    new ResizeObserver(([{ contentRect: { width, height } }]) => (this.size = [Math.round(width), Math.round(height)])).observe(svg);
    if (!axis) return;
    this.axis = [1, 0.5].map((part) => ({ part, line: this.grid.appendChild(shape("line")), text: this.labels.appendChild(shape("text", { x: 4 })) }));
    this.from = this.labels.appendChild(shape("text", { x: 4 }));
    this.to = this.labels.appendChild(shape("text", { "text-anchor": "end" }));
    setText(this.to, presently);
  }

  /** Draws `series`, each with `samples` and `className`, up to the daemon's time `now`. Returns the highest total. */
  draw(series, now, { windows = WINDOWS, gap = GAP } = {}) {
    // The drawing's units are pixels, so that labels and lines keep their size.
    const [width, height] = this.size ?? [this.svg.clientWidth, this.svg.clientHeight];
    setAttributes(this.svg, { viewBox: `0 0 ${width} ${height}` });
    const bottom = height - (this.axis ? FOOT : 0);
    const times = [...new Set(series.flatMap(({ samples }) => samples.points.map(({ at }) => at)))].sort((a, b) => a - b);
    const values = series.map(({ samples }) => new Map(samples.points.map(({ at, value }) => [at, value])));
    const totals = times.map((at) => values.reduce((sum, of) => sum + (of.get(at) ?? 0), 0));
    const most = Math.max(0, ...totals);
    const scale = ceiling(most);
    const window = windows.find((span) => span >= now - (times[0] ?? now)) ?? windows.at(-1);
    const x = (at) => (width * (1 - (now - at) / window)).toFixed(1);
    const y = (value) => (bottom - ((bottom - HEAD) * value) / scale).toFixed(1);
    let below = times.map(() => 0);
    series.forEach(({ className }, i) => {
      const above = times.map((at, k) => below[k] + (values[i].get(at) ?? 0));
      const area = this.areas.children[i] ?? this.areas.appendChild(shape("path"));
      setAttributes(area, { class: `area ${className}`, d: outline(times, above, below, x, y, gap) });
      below = above;
    });
    while (this.areas.children.length > series.length) this.areas.lastElementChild.remove();
    if (this.axis) this.drawAxis(width, height, scale, y, window);
    return most;
  }

  drawAxis(width, height, scale, y, window) {
    for (const { part, line, text } of this.axis) {
      const at = y(part * scale);
      setAttributes(line, { x1: 0, x2: width, y1: at, y2: at });
      setAttributes(text, { y: Number(at) + 14 });
      setText(text, roundRate(part * scale));
    }
    setAttributes(this.from, { y: height - 3 });
    setAttributes(this.to, { x: width - 4, y: height - 3 });
    setText(this.from, ago(span(window)));
  }
}

/** Returns the path of an area between two lines, broken where samples are missing. */
function outline(times, above, below, x, y, gap) {
  const parts = [];
  let from = 0;
  for (let i = 1; i <= times.length; i++) {
    if (i < times.length && times[i] - times[i - 1] <= gap) continue;
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
