// What brushes, interpolation and undo do to a drawing: label + 1 of each voxel set by hand, else 0.

const MOST_STROKES = 100;

// The grid of a drawing: numbers of voxels and their sizes in mm, along the three axes.
class DrawingGrid {
  constructor(volume) {
    this.dims = volume.dims;
    this.spacing = [0, 1, 2].map((k) => Math.hypot(...volume.toMm.map((row) => row[k])));
  }

  index(i, j, k) {
    return i + this.dims[0] * (j + this.dims[1] * k);
  }
}

// One stroke writes each voxel once, and knows what was there before.
class Stroke {
  constructor(drawing, value) {
    this.drawing = drawing;
    this.value = value;
    this.before = new Map();
  }

  set(index, value = this.value) {
    const old = this.drawing[index];
    if (old === value) return;
    if (!this.before.has(index)) this.before.set(index, old);
    this.drawing[index] = value;
  }

  takeBack() {
    for (const [index, old] of this.before) this.drawing[index] = old;
  }

  // Runs [first voxel, number of voxels, before, after].
  runs() {
    const runs = [];
    for (const index of [...this.before.keys()].sort((a, b) => a - b)) {
      const [before, after] = [this.before.get(index), this.drawing[index]];
      const last = runs.at(-1);
      if (last && last[0] + last[1] === index && last[2] === before && last[3] === after) last[1]++;
      else if (before !== after) runs.push([index, 1, before, after]);
    }
    return runs;
  }
}

// Set what lies within a radius in mm of a point, in voxels that need not be whole. A flat brush
// stays in the slice across ``flatAxis``; null is a ball.
function dab(stroke, grid, point, radius, flatAxis) {
  const { dims, spacing } = grid;
  const reach = spacing.map((mm, axis) => (axis === flatAxis ? 0 : Math.ceil(radius / mm)));
  const middle = point.map((v, axis) => Math.min(dims[axis] - 1, Math.max(0, Math.round(v))));
  const [low, high] = [-1, 1].map((sign) =>
    middle.map((v, axis) => Math.min(dims[axis] - 1, Math.max(0, v + sign * reach[axis]))),
  );
  stroke.set(grid.index(...middle));
  for (let k = low[2]; k <= high[2]; k++) {
    for (let j = low[1]; j <= high[1]; j++) {
      for (let i = low[0]; i <= high[0]; i++) {
        const away = [i, j, k].map((v, axis) =>
          axis === flatAxis ? 0 : (v - point[axis]) * spacing[axis],
        );
        if (Math.hypot(...away) <= radius) stroke.set(grid.index(i, j, k));
      }
    }
  }
}

// Dabs along a line, close enough to leave no gaps.
function drag(stroke, grid, from, to, radius, flatAxis) {
  const mm = Math.hypot(...to.map((v, axis) => (v - from[axis]) * grid.spacing[axis]));
  const steps = Math.max(1, Math.ceil(mm / Math.max(radius / 2, Math.min(...grid.spacing) / 2)));
  for (let step = 1; step <= steps; step++) {
    const point = to.map((v, axis) => from[axis] + ((v - from[axis]) * step) / steps);
    dab(stroke, grid, point, radius, flatAxis);
  }
}

// Fill the slices between painted ones: distances to the outline, in mm and negative inside, are
// interpolated from slice to slice, and their zero is the new outline. Voxels that have another
// label by hand stay. Returns how many slices were filled.
function fillBetween(stroke, grid, axis) {
  const { value, drawing } = stroke;
  const [u, v] = [0, 1, 2].filter((other) => other !== axis);
  const [width, height] = [grid.dims[u], grid.dims[v]];
  const at = (slice, i, j) => {
    const place = [0, 0, 0];
    [place[axis], place[u], place[v]] = [slice, i, j];
    return grid.index(...place);
  };
  const painted = [];
  for (let slice = 0; slice < grid.dims[axis]; slice++) {
    const inside = new Uint8Array(width * height);
    for (let j = 0; j < height; j++) {
      for (let i = 0; i < width; i++) inside[i + width * j] = drawing[at(slice, i, j)] === value;
    }
    if (inside.includes(1)) painted.push({ slice, inside });
  }
  let filled = 0;
  for (let n = 1; n < painted.length; n++) {
    const [one, other] = [painted[n - 1], painted[n]];
    if (other.slice === one.slice + 1) continue;
    const [a, b] = [one, other].map(({ inside }) =>
      signedDistance(inside, width, height, grid.spacing[u], grid.spacing[v]),
    );
    for (let slice = one.slice + 1; slice < other.slice; slice++) {
      const t = (slice - one.slice) / (other.slice - one.slice);
      filled++;
      for (let j = 0; j < height; j++) {
        for (let i = 0; i < width; i++) {
          const here = at(slice, i, j);
          const cell = i + width * j;
          if ((1 - t) * a[cell] + t * b[cell] < 0 && drawing[here] === 0) stroke.set(here);
        }
      }
    }
  }
  return filled;
}

// Distance in mm to the border of a shape, negative inside.
function signedDistance(inside, width, height, mmAcross, mmDown) {
  const outside = inside.map((value) => 1 - value);
  const [toInside, toOutside] = [inside, outside].map((shape) =>
    distance(shape, width, height, mmAcross, mmDown),
  );
  return toInside.map((mm, cell) => (inside[cell] ? -toOutside[cell] : mm));
}

// Distance in mm to the nearest cell of a shape: rows first, then the lower envelope of parabolas.
function distance(shape, width, height, mmAcross, mmDown) {
  const FAR = 1e12;
  const squares = Float64Array.from(shape, (value) => (value ? 0 : FAR));
  const along = (start, step, count, mm) => {
    const f = Float64Array.from({ length: count }, (_, q) => squares[start + q * step]);
    const hull = [0];
    const from = [-Infinity];
    const meet = (p, q) => (f[q] - f[p] + mm * mm * (q * q - p * p)) / (2 * mm * mm * (q - p));
    for (let q = 1; q < count; q++) {
      while (hull.length && meet(hull.at(-1), q) <= from.at(-1)) {
        hull.pop();
        from.pop();
      }
      from.push(hull.length ? meet(hull.at(-1), q) : -Infinity);
      hull.push(q);
    }
    let piece = 0;
    for (let q = 0; q < count; q++) {
      while (piece + 1 < hull.length && from[piece + 1] < q) piece++;
      squares[start + q * step] = f[hull[piece]] + (mm * (q - hull[piece])) ** 2;
    }
  };
  for (let j = 0; j < height; j++) along(width * j, 1, width, mmAcross);
  for (let i = 0; i < width; i++) along(i, width, height, mmDown);
  return squares.map((square) => Math.sqrt(Math.min(square, FAR)));
}

// Strokes that were done, and how many of them are not undone.
class StrokeHistory {
  constructor(strokes = [], done = strokes.length) {
    this.strokes = strokes;
    this.done = done;
  }

  get canUndo() {
    return this.done > 0;
  }

  get canRedo() {
    return this.done < this.strokes.length;
  }

  add(runs) {
    this.strokes.splice(this.done, Infinity, runs);
    if (this.strokes.length > MOST_STROKES) this.strokes.shift();
    this.done = this.strokes.length;
  }

  undo(drawing) {
    for (const [start, count, before] of this.strokes[--this.done]) {
      drawing.fill(before, start, start + count);
    }
  }

  redo(drawing) {
    for (const [start, count, , after] of this.strokes[this.done++]) {
      drawing.fill(after, start, start + count);
    }
  }
}
