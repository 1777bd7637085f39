// Places for switches in a drawing: distances on paper follow distances in hops. The same network is always placed the
// same way, and what is placed stays where it is when something is added.

/** Steps of the iteration, at most and at least; large networks get fewer, since each takes a while. */
const MOST_STEPS = 80;
const LEAST_STEPS = 8;
const STEP_BUDGET = 3_000_000;
/** Distance of what is not connected, in hops beyond the longest. */
const APART = 1.5;
/** Factor by which one direction may be stretched more than the other. */
const STRETCH = 2.4;
/** Rounds in which boxes are moved apart, at most. */
const SEPARATIONS = 60;

/** Returns the hops between all nodes, by their place in `names`. */
function distances(names, links) {
  const index = new Map(names.map((name, i) => [name, i]));
  const near = names.map(() => new Set());
  for (const [one, other] of links) {
    const [a, b] = [index.get(one), index.get(other)];
    if (a === undefined || b === undefined || a === b) continue;
    near[a].add(b);
    near[b].add(a);
  }
  let longest = 1;
  const hops = names.map((_, from) => {
    const found = new Array(names.length).fill(Infinity);
    found[from] = 0;
    const queue = [from];
    for (const at of queue) {
      for (const next of near[at]) {
        if (found[next] !== Infinity) continue;
        found[next] = found[at] + 1;
        longest = Math.max(longest, found[next]);
        queue.push(next);
      }
    }
    return found;
  });
  for (const row of hops) for (let i = 0; i < row.length; i++) if (row[i] === Infinity) row[i] = longest + APART;
  return hops;
}

/** Returns the two of `candidates` that are farthest apart, by place. */
function poles(hops, candidates) {
  let best = [candidates[0], candidates.at(-1)];
  for (const one of candidates) {
    for (const other of candidates) if (hops[one][other] > hops[best[0]][best[1]]) best = [one, other];
  }
  return best;
}

function farthest(hops, from) {
  let best = 0;
  hops.forEach((_, i) => {
    const near = Math.min(...from.map((at) => hops[i][at]));
    if (near > Math.min(...from.map((at) => hops[best][at]))) best = i;
  });
  return best;
}

/** Places the nodes that `fixed` does not have, by stress majorization (Gansner, Koren and North, 2004). */
function relax(hops, points, fixed) {
  const n = points.length;
  const steps = Math.max(LEAST_STEPS, Math.min(MOST_STEPS, Math.round(STEP_BUDGET / (n * n))));
  for (let step = 0; step < steps; step++) {
    for (let i = 0; i < n; i++) {
      if (fixed[i]) continue;
      let [x, y, sum] = [0, 0, 0];
      for (let j = 0; j < n; j++) {
        if (j === i) continue;
        const wanted = hops[i][j];
        const weight = 1 / (wanted * wanted);
        const [dx, dy] = [points[i][0] - points[j][0], points[i][1] - points[j][1]];
        const apart = Math.max(1e-6, Math.hypot(dx, dy));
        x += weight * (points[j][0] + (wanted * dx) / apart);
        y += weight * (points[j][1] + (wanted * dy) / apart);
        sum += weight;
      }
      if (sum) points[i] = [x / sum, y / sum];
    }
  }
}

/** Turns the points so that one pole is to the left of the other, and the first node beside that line is above it. */
function turn(points, [left, right]) {
  const [ox, oy] = points[left];
  const angle = Math.atan2(points[right][1] - oy, points[right][0] - ox);
  const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
  const turned = points.map(([x, y]) => [(x - ox) * cos + (y - oy) * sin, (y - oy) * cos - (x - ox) * sin]);
  const beside = turned.find(([, y]) => Math.abs(y) > 1e-3);
  return beside && beside[1] > 0 ? turned.map(([x, y]) => [x, -y]) : turned;
}

/** Returns the place of each name, in hops. `links` are pairs of names; of two names in `ends` one is at the left and
 *  one at the right. Names in `before` keep the place that they have there. */
export function arrange(names, links, ends = [], before = new Map()) {
  const sorted = [...names].sort();
  if (!sorted.length) return new Map();
  const hops = distances(sorted, links);
  const fixed = sorted.map((name) => before.has(name));
  const places = sorted.map((_, i) => i);
  const preferred = places.filter((i) => ends.includes(sorted[i]));
  const [left, right] = poles(hops, preferred.length > 1 ? preferred : places);
  const above = farthest(hops, [left, right]);
  const below = farthest(hops, [left, right, above]);
  // Nodes alike are moved apart a little, or nothing would ever part them.
  let points = sorted.map((name, i) => before.get(name) ?? [hops[left][i] - hops[right][i], hops[above][i] - hops[below][i] + (i % 7) * 0.02]);
  if (fixed.some(Boolean)) {
    // New ones begin beside their neighbours.
    points = points.map((point, i) => {
      const near = places.filter((j) => fixed[j] && hops[i][j] === 1).map((j) => points[j]);
      if (fixed[i] || !near.length) return point;
      return [0, 1].map((axis) => near.reduce((sum, at) => sum + at[axis], 0) / near.length + 0.3 + (i % 7) * 0.02);
    });
  }
  relax(hops, points, fixed);
  if (!fixed.some(Boolean)) points = turn(points, [left, right]);
  return new Map(sorted.map((name, i) => [name, points[i]]));
}

/** Scales places into a drawing of this size, its margins left out. A high drawing has them turned by a quarter. */
export function fit(places, width, height, margin) {
  const high = height > width;
  const points = [...places].map(([name, [x, y]]) => [name, high ? [y, x] : [x, y]]);
  const room = [width - 2 * margin[0], height - 2 * margin[1]];
  const sides = [0, 1].map((axis) => {
    const values = points.map(([, point]) => point[axis]);
    return { low: Math.min(...values), span: Math.max(...values) - Math.min(...values) };
  });
  const scales = sides.map(({ span }, axis) => (span > 1e-6 ? room[axis] / span : Infinity));
  const least = Math.min(...scales);
  const used = scales.map((scale) => (Number.isFinite(least) ? Math.min(scale, least * STRETCH) : 1));
  const placed = points.map(([name, point]) => {
    const at = [0, 1].map((axis) => {
      const { low, span } = sides[axis];
      return margin[axis] + (room[axis] - span * used[axis]) / 2 + (point[axis] - low) * used[axis];
    });
    return [name, at];
  });
  return new Map(placed);
}

/** Moves what lies on each other apart, each a box of this size, within the drawing. */
export function separate(points, [wide, high], width, height) {
  const placed = [...points].map(([name, [x, y]]) => ({ name, x, y }));
  for (let round = 0; round < SEPARATIONS; round++) {
    let moved = false;
    placed.forEach((one, i) => {
      for (const other of placed.slice(i + 1)) {
        const [dx, dy] = [other.x - one.x, other.y - one.y];
        const [overX, overY] = [wide - Math.abs(dx), high - Math.abs(dy)];
        if (overX <= 0 || overY <= 0) continue;
        moved = true;
        // Along the side on which less is missing.
        const axis = overX * high < overY * wide ? "x" : "y";
        const push = (axis === "x" ? overX * (dx < 0 ? -1 : 1) : overY * (dy < 0 ? -1 : 1)) / 2;
        one[axis] -= push;
        other[axis] += push;
      }
    });
    for (const at of placed) {
      at.x = Math.min(Math.max(at.x, wide / 2), Math.max(wide / 2, width - wide / 2));
      at.y = Math.min(Math.max(at.y, high / 2), Math.max(high / 2, height - high / 2));
    }
    if (!moved) break;
  }
  return new Map(placed.map(({ name, x, y }) => [name, [x, y]]));
}
