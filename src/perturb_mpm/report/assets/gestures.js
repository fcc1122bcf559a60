// Mouse, pen and fingers on a glass over the slices: the crosshair, painting, zoom, pan, brightness.

const ZOOM_A_STEP = 1.25;
const GREY_A_PIXEL = 1 / 200;

class Gestures {
  // ``tool`` says what one finger or the left button does now: {down, move, up, cancel}.
  constructor(viewer, tool) {
    this.viewer = viewer;
    this.scene = viewer.scene;
    this.tool = tool;
    this.pointers = new Map(); // id -> [x, y]
    this.glass = document.createElement("div");
    this.glass.className = "pmpm-glass";
    this.cursor = document.createElement("div");
    this.cursor.className = "pmpm-cursor";
    this.cursor.hidden = true;
    viewer.part("canvas").after(this.glass, this.cursor);
    for (const name of ["pointerdown", "pointermove", "pointerup", "pointercancel"]) {
      this.glass.addEventListener(name, (event) => this[name](event));
    }
    this.glass.addEventListener("pointerleave", () => this.showCursor(null));
    this.glass.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.glass.addEventListener("contextmenu", (event) => event.preventDefault());
  }

  place(event) {
    const box = this.glass.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  pointerdown(event) {
    event.preventDefault();
    this.glass.setPointerCapture(event.pointerId);
    this.viewer.part("canvas").focus({ preventScroll: true });
    this.pointers.set(event.pointerId, this.place(event));
    if (this.pointers.size > 1) {
      if (this.doing === this.tool) this.tool.cancel();
      this.doing = "pinch";
    } else if (event.button === 1 || event.shiftKey) this.doing = "pan";
    else if (event.button === 2) this.doing = "grey";
    else {
      this.doing = this.tool;
      this.tool.down(this.place(event));
    }
  }

  pointermove(event) {
    const [before, now] = [this.pointers.get(event.pointerId), this.place(event)];
    this.showCursor(now);
    if (!before) return;
    if (this.doing === "pinch") {
      const earlier = pair(this.pointers);
      this.pointers.set(event.pointerId, now);
      const later = pair(this.pointers);
      this.scene.pan(earlier.middle, later.middle);
      this.scene.zoom(later.middle, later.apart / Math.max(earlier.apart, 1));
      return;
    }
    this.pointers.set(event.pointerId, now);
    if (this.doing === "pan") this.scene.pan(before, now);
    else if (this.doing === "grey") this.changeGrey(now[0] - before[0], now[1] - before[1]);
    else if (this.doing === this.tool) this.tool.move(now);
  }

  pointerup(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.doing === this.tool) this.tool.up();
    if (this.pointers.size === 0) this.doing = null;
  }

  pointercancel(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    if (this.doing === this.tool) this.tool.cancel();
    if (this.pointers.size === 0) this.doing = null;
  }

  // A trackpad's pinch arrives as a wheel with Ctrl.
  wheel(event) {
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      this.scene.zoom(this.place(event), Math.exp(-event.deltaY / 300));
    } else if (event.deltaY) {
      this.scene.stepSlice(this.place(event), event.deltaY > 0 ? -1 : 1);
    }
    this.showCursor(this.place(event));
  }

  // To the right is more contrast, up is brighter.
  changeGrey(right, down) {
    for (const [name, by] of [["contrast", right], ["brightness", -down]]) {
      const slider = this.viewer.part(name);
      slider.value = Number(slider.value) + by * GREY_A_PIXEL * (name === "contrast" ? 2 : 1);
      slider.dispatchEvent(new Event("input"));
    }
  }

  // The outline of the brush.
  showCursor(place) {
    const pixels = place && this.tool.diameterMm ? this.scene.pixelsPerMm(place) : 0;
    this.cursor.hidden = !pixels;
    if (!pixels) return;
    const size = Math.max(4, this.tool.diameterMm * pixels);
    const [x, y] = place.map((v) => v - size / 2);
    Object.assign(this.cursor.style, { width: `${size}px`, height: `${size}px` });
    this.cursor.style.transform = `translate(${x}px, ${y}px)`;
  }
}

// The first two fingers: how far apart they are, and their middle.
function pair(pointers) {
  const [[x, y], [u, v]] = [...pointers.values()];
  return { apart: Math.hypot(u - x, v - y), middle: [(x + u) / 2, (y + v) / 2] };
}
