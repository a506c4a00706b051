// Which point is nearest to the pointer, without looking at all of them.

const PER_CELL = 2;

/** Points in cells, so that a search looks at a few cells only. */
export class Grid {
  constructor(x, y) {
    this.x = x;
    this.y = y;
    const n = x.length;
    const [left, right] = extent(x);
    const [low, high] = extent(y);
    this.left = left;
    this.low = low;
    this.side = Math.max(1, Math.floor(Math.sqrt(n / PER_CELL)));
    this.wide = (right - left) / this.side || 1;
    this.tall = (high - low) / this.side || 1;
    // A counting sort: the points of a cell lie side by side in `order`.
    this.starts = new Int32Array(this.side * this.side + 1);
    const cells = new Int32Array(n);
    for (let i = 0; i < n; i += 1) {
      cells[i] = this.row(y[i]) * this.side + this.column(x[i]);
      this.starts[cells[i] + 1] += 1;
    }
    for (let cell = 0; cell < this.side * this.side; cell += 1) this.starts[cell + 1] += this.starts[cell];
    const free = this.starts.slice();
    this.order = new Int32Array(n);
    for (let i = 0; i < n; i += 1) this.order[free[cells[i]]++] = i;
  }

  column(x) { return Math.min(this.side - 1, Math.max(0, Math.floor((x - this.left) / this.wide))); }

  row(y) { return Math.min(this.side - 1, Math.max(0, Math.floor((y - this.low) / this.tall))); }

  /** The nearest point within a radius that passes, or −1. */
  nearest(x, y, radius, passes = () => true) {
    let best = -1;
    let least = radius * radius;
    const last = this.column(x + radius);
    const bottom = this.row(y - radius);
    const top = this.row(y + radius);
    for (let row = bottom; row <= top; row += 1) {
      const from = this.starts[row * this.side + this.column(x - radius)];
      const to = this.starts[row * this.side + last + 1];
      for (let at = from; at < to; at += 1) {
        const i = this.order[at];
        const far = (this.x[i] - x) ** 2 + (this.y[i] - y) ** 2;
        if (far <= least && passes(i)) {
          least = far;
          best = i;
        }
      }
    }
    return best;
  }

  /** The nearest point in a direction (dx, dy), within 45° of it; or −1. */
  towards(x, y, dx, dy, passes = () => true) {
    let best = -1;
    let least = Infinity;
    for (let i = 0; i < this.x.length; i += 1) {
      const along = (this.x[i] - x) * dx + (this.y[i] - y) * dy;
      const aside = Math.abs((this.x[i] - x) * dy - (this.y[i] - y) * dx);
      const far = along + 2 * aside;
      if (along > 0 && aside <= along && far < least && passes(i)) {
        least = far;
        best = i;
      }
    }
    return best;
  }
}

/** Least and greatest value. */
export function extent(values) {
  let least = Infinity;
  let most = -Infinity;
  for (const value of values) {
    if (value < least) least = value;
    if (value > most) most = value;
  }
  return values.length ? [least, most] : [0, 0];
}
