// Draws the map. Points are drawn once, a few thousand per frame, into a canvas that is not shown;
// while the view moves, that picture is moved, and what was hovered is drawn on top.

const SLICE = 5; // milliseconds of drawing per frame
const AT_A_TIME = 500; // points between looks at the clock
const CALM = 110; // milliseconds without movement until points are drawn again

export class Plot {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.view = { x: 0, y: 0, scale: 1 };
    this.picture = null; // { canvas, view, width, height }
    this.points = { x: [], y: [], label: [] };
    this.atoms = { x: [], y: [] };
    this.overlay = () => {};
    this.asked = false;
    this.style = { colours: [], atom: "#888", chosen: null };
  }

  resize() {
    this.ratio = Math.min(2, window.devicePixelRatio || 1);
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
  }

  /** Place on the canvas, in CSS pixels. */
  place(x, y, view = this.view) {
    return [(x - view.x) * view.scale + this.width / 2, this.height / 2 - (y - view.y) * view.scale];
  }

  /** The other way round. */
  at(px, py) {
    return [(px - this.width / 2) / this.view.scale + this.view.x, (this.height / 2 - py) / this.view.scale + this.view.y];
  }

  /** Show everything in a box. */
  fit([left, right], [low, high]) {
    const margin = 26;
    const scale = Math.min((this.width - 2 * margin) / (right - left || 1), (this.height - 2 * margin) / (high - low || 1));
    this.view = { x: (left + right) / 2, y: (low + high) / 2, scale };
    this.redraw();
  }

  /** Zoom by a factor about a place that stays where it is. */
  zoom(factor, px = this.width / 2, py = this.height / 2) {
    const [x, y] = this.at(px, py);
    const scale = this.view.scale * factor;
    this.view = { scale, x: x - (px - this.width / 2) / scale, y: y + (py - this.height / 2) / scale };
    this.moved();
  }

  pan(dx, dy) {
    const { x, y, scale } = this.view;
    this.view = { scale, x: x - dx / scale, y: y + dy / scale };
    this.moved();
  }

  /** The view has changed: move the picture now, draw the points again when it is calm. */
  moved() {
    clearTimeout(this.calm);
    this.calm = setTimeout(() => this.redraw(), CALM);
    this.frame();
  }

  /** Only what lies on top has changed. */
  frame() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.compose();
    });
  }

  compose() {
    const { context, picture, ratio } = this;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    if (picture) {
      const grown = this.view.scale / picture.view.scale;
      const [x, y] = this.place(picture.view.x, picture.view.y);
      const [wide, tall] = [picture.width * grown, picture.height * grown];
      context.drawImage(picture.canvas, x - wide / 2, y - tall / 2, wide, tall);
    }
    this.overlay(context);
  }

  /** Draw all points into a new picture, in slices; it is shown when it is done. */
  redraw() {
    if (!this.width) return;
    const sheet = document.createElement("canvas");
    sheet.width = this.canvas.width;
    sheet.height = this.canvas.height;
    const brush = sheet.getContext("2d");
    brush.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    const view = { ...this.view };
    const job = (this.job = {});
    const radius = this.radius();
    const stamps = this.style.colours.map((colour) => this.stamp(colour, radius));
    const order = this.order();
    let next = 0;
    const slice = () => {
      if (job !== this.job) return; // a newer picture is being drawn
      const end = performance.now() + SLICE;
      while (next < order.length && performance.now() < end) {
        const stop = Math.min(order.length, next + AT_A_TIME);
        for (; next < stop; next += 1) this.dot(brush, order[next], view, stamps, radius);
      }
      if (next < order.length) return requestAnimationFrame(slice);
      brush.globalAlpha = 1;
      this.rings(brush, view);
      this.picture = { canvas: sheet, view, width: this.width, height: this.height };
      return this.compose();
    };
    slice();
  }

  /** A chosen class is drawn last, on top of the others. */
  order() {
    const { chosen } = this.style;
    if (this.all?.length !== this.points.x.length) this.all = Int32Array.from(this.points.x.keys());
    const { all } = this;
    if (chosen === null) return all;
    const label = this.points.label;
    return [...all.filter((i) => label[i] !== chosen), ...all.filter((i) => label[i] === chosen)];
  }

  dot(brush, i, view, stamps, radius) {
    const [px, py] = this.place(this.points.x[i], this.points.y[i], view);
    if (px < -radius || py < -radius || px > this.width + radius || py > this.height + radius) return;
    const label = this.points.label[i];
    const { chosen } = this.style;
    brush.globalAlpha = chosen === null ? 0.85 : label === chosen ? 1 : 0.1;
    const side = 2 * radius + 2;
    brush.drawImage(stamps[label] || stamps[0], px - side / 2, py - side / 2, side, side);
  }

  /** Dots are small where there are many. */
  radius() {
    const n = this.points.x.length;
    return n <= 1500 ? 4 : n <= 10000 ? 2.75 : 1.9;
  }

  ring() {
    return this.atoms.x.length <= 500 ? 6.5 : 4.5;
  }

  stamp(colour, radius) {
    const side = 2 * radius + 2;
    const made = document.createElement("canvas");
    made.width = made.height = Math.ceil(side * this.ratio);
    const brush = made.getContext("2d");
    brush.scale(made.width / side, made.width / side);
    brush.fillStyle = colour;
    brush.beginPath();
    brush.arc(side / 2, side / 2, radius, 0, 2 * Math.PI);
    brush.fill();
    return made;
  }

  rings(brush, view) {
    brush.strokeStyle = this.style.atom;
    const radius = this.ring();
    brush.lineWidth = radius > 5 ? 1.25 : 1;
    brush.globalAlpha = this.style.chosen === null ? 0.75 : 0.25;
    brush.beginPath();
    for (let i = 0; i < this.atoms.x.length; i += 1) {
      const [px, py] = this.place(this.atoms.x[i], this.atoms.y[i], view);
      brush.moveTo(px + radius, py);
      brush.arc(px, py, radius, 0, 2 * Math.PI);
    }
    brush.stroke();
  }
}
