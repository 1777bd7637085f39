// The last day of the uplinks, as the daemon has kept it.

/** Step of the points, in seconds: some 300 for a day, as many as a chart has room for. */
const STEP = 300;
/** Time after which they are read again, in milliseconds. */
const REFRESH = 60_000;
const NONE = { points: [] };

/** How a chart shows a day: its time, and the pause after which a line is broken, in milliseconds. */
export const DAY_VIEW = { windows: [86_400_000], gap: 1.5 * STEP * 1000 };

/** Rates of each uplink by name. */
export class Day {
  rows = new Map();
  shown = false;
  readAt = -Infinity;

  constructor(get) {
    this.get = get;
  }

  /** Reads what these uplinks have carried, if that is known from long ago. */
  async refresh(names) {
    if (!this.shown || performance.now() - this.readAt < REFRESH) return;
    this.readAt = performance.now();
    for (const name of names) {
      // An uplink that is refused keeps the points that it has; the next minute tries again.
      const { points } = await this.get("/v1/history", { uplink: name, step_s: STEP }).catch(() => ({ points: null }));
      if (!points) continue;
      // A daemon that has just begun has its first point in a second.
      if (!points.length) this.readAt = -Infinity;
      // A point is the mean of its whole step.
      const ends = ({ unix_ms: at }) => [at, at + STEP * 1000 - 1];
      const samples = (key) => ({ points: points.flatMap((point) => ends(point).map((at) => ({ at, value: point[key] }))) });
      this.rows.set(name, { down: samples("rx_bit_s"), up: samples("tx_bit_s") });
    }
  }

  of(name) {
    return this.rows.get(name) ?? { down: NONE, up: NONE };
  }
}
