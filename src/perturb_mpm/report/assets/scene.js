// The only file that knows NiiVue: a sequence, the entropy over it, labels over both, and a drawing.

const IMAGE = 0;
const ENTROPY = 1;
const LABELS = 2;
const HIDDEN_BELOW_MINIMUM = 2; // a colormapType: colours from 0 to the top, none below cal_min
const DIM_GREY = "pmpm-grey"; // under the entropy
const OUTLINE_OPACITY = 0.95;
const PAINT_OPACITY = 0.75; // of voxels set by hand; their rim is opaque
const LEAST_OPACITY = 0.01; // a layer of opacity 0 is left out, and its outlines with it
const MOST_ZOOM = 12;
const LAYOUT = [
  { sliceType: 0, position: [0, 0, 0.6, 1] }, // axial
  { sliceType: 1, position: [0.6, 0, 0.4, 0.5] }, // coronal
  { sliceType: 2, position: [0.6, 0.5, 0.4, 0.5] }, // sagittal
];

function canDraw() {
  return document.createElement("canvas").getContext("webgl2") !== null;
}

class Scene {
  // colours: one [r, g, b] a label, the first of no account; palettes: name -> 256 [r, g, b];
  // brightestGrey: no grey under the entropy is brighter, or it would outshine it.
  constructor(canvas, { colours, palettes, brightestGrey, topBits, onMove }) {
    this.topBits = topBits;
    this.colours = colours;
    this.nv = new niivue.Niivue({
      logLevel: "silent",
      loadingText: "",
      backColor: [0, 0, 0, 1],
      crosshairColor: [0.55, 0.85, 1, 0.9],
      crosshairWidth: 0.8,
      crosshairWidthUnit: "mm",
      crosshairGap: 10,
      isRadiologicalConvention: true,
      sagittalNoseLeft: true,
      isNearestInterpolation: true,
      isOrientCube: false,
      isColorbar: false,
      dragAndDropEnabled: false,
      show3Dcrosshair: false,
      multiplanarShowRender: niivue.SHOW_RENDER.NEVER,
      fontSizeScaling: 0.5,
      viewModeHotKey: "none",
      clipPlaneHotKey: "none",
      cycleClipPlaneHotKey: "none",
    });
    this.nv.onLocationChange = (where) => onMove(Array.from(where.mm).slice(0, 3));
    for (const [name, palette] of Object.entries(palettes)) {
      this.nv.addColormap(`pmpm-${name}`, asColourMap(palette));
    }
    const dim = [0, brightestGrey];
    this.nv.addColormap(DIM_GREY, { R: dim, G: dim, B: dim, A: [0, 128], I: [0, 255] });
    this.canvas = canvas;
  }

  async open(image, entropy, labels, range) {
    await this.nv.attachToCanvas(this.canvas, false);
    for (const [name, volume] of [["image", image], ["entropy", entropy], ["labels", labels]]) {
      await this.nv.loadFromArrayBuffer(volume.buffer, `${name}.nii`);
    }
    const [base, bits, map] = this.nv.volumes;
    [base.cal_min, base.cal_max] = range;
    bits.colormapType = HIDDEN_BELOW_MINIMUM;
    map.setColormapLabel({
      R: this.colours.map((colour) => colour[0]),
      G: this.colours.map((colour) => colour[1]),
      B: this.colours.map((colour) => colour[2]),
      A: this.colours.map((_, label) => (label ? 255 : 0)),
      I: this.colours.map((_, label) => label),
      labels: this.colours.map(String),
    });
    this.nv.setSliceType(this.nv.sliceTypeMultiplanar);
    this.nv.setCustomLayout(LAYOUT);
    this.ordered = base.permRAS.join() === "1,2,3";
  }

  // Layers are set first and drawn once: each drawing fills textures of the whole volume.
  draw() {
    this.nv.updateGLVolume();
  }

  setImage(volume, range) {
    const base = this.nv.volumes[IMAGE];
    base.img = volume.data;
    base.hdr.scl_slope = volume.slope;
    [base.cal_min, base.cal_max] = range;
  }

  setEntropy({ volume, visible, threshold, opacity, colourMap }) {
    const bits = this.nv.volumes[ENTROPY];
    bits.img = volume.data;
    bits.opacity = visible ? opacity : 0;
    this.setGrey(visible ? DIM_GREY : "gray");
    if (bits.colormap !== `pmpm-${colourMap}`) bits.colormap = `pmpm-${colourMap}`;
    // After the colour map, which sets both ends anew.
    [bits.cal_min, bits.cal_max] = [Math.max(threshold, 1e-4), this.topBits];
  }

  setGrey(colourMap) {
    const base = this.nv.volumes[IMAGE];
    const range = [base.cal_min, base.cal_max];
    if (base.colormap !== colourMap) base.colormap = colourMap;
    [base.cal_min, base.cal_max] = range; // the colour map sets both ends anew
  }

  setLabels({ volume, visible, opacity }) {
    const map = this.nv.volumes[LABELS];
    map.img = volume.data;
    map.opacity = visible ? Math.max(opacity, LEAST_OPACITY) : 0;
    this.nv.opts.atlasOutline = OUTLINE_OPACITY;
  }

  goTo(mm) {
    this.nv.scene.crosshairPos = this.nv.mm2frac(mm).map((v) => Math.min(1, Math.max(0, v)));
    this.nv.createOnLocationChange();
    this.nv.drawScene();
  }

  // What lies under a pixel of the canvas: its tile, the voxel (not rounded) and mm; null for none.
  pick([x, y]) {
    const ratio = this.nv.uiData.dpr || 1;
    const frac = this.nv.canvasPos2frac([x * ratio, y * ratio]);
    if (frac[0] < 0) return null;
    const tile = this.nv.screenSlices[this.nv.tileIndex(x * ratio, y * ratio)];
    const axis = 2 - tile.axCorSag; // across the slice
    const dims = this.nv.back.dims.slice(1, 4);
    const voxel = dims.map((count, k) => frac[k] * count - 0.5);
    voxel[axis] = Math.floor(Math.min(frac[axis], 0.999999) * dims[axis]);
    return { axis, voxel, frac: Array.from(frac).slice(0, 3), mm: Array.from(this.nv.frac2mm(frac)) };
  }

  pixelsPerMm([x, y]) {
    const ratio = this.nv.uiData.dpr || 1;
    const tile = this.nv.screenSlices[this.nv.tileIndex(x * ratio, y * ratio)];
    if (!tile?.fovMM?.[0]) return 0;
    return Math.abs(tile.leftTopWidthHeight[2] / tile.fovMM[0]) / ratio;
  }

  goToPixel(place) {
    const found = this.pick(place);
    if (!found) return;
    this.nv.scene.crosshairPos = found.frac;
    this.nv.createOnLocationChange();
    this.nv.drawScene();
  }

  stepSlice(place, by) {
    const step = [0, 0, 0];
    step[this.pick(place)?.axis ?? 2] = by;
    this.move(...step);
  }

  // NiiVue shows (range - pan) / zoom of every axis, in mm.
  get view() {
    return Array.from(this.nv.scene.pan2Dxyzmm);
  }

  set view(view) {
    this.nv.setPan2Dxyzmm(view);
  }

  // What is under the pixel stays there; the other slices zoom around the crosshair.
  zoom(place, factor) {
    const [x, y, z, before] = this.view;
    const after = Math.min(MOST_ZOOM, Math.max(1, before * factor));
    if (after === 1) {
      this.view = [0, 0, 0, 1];
      return;
    }
    const mm = this.pick(place)?.mm ?? this.nv.frac2mm(this.nv.scene.crosshairPos);
    this.view = [...[x, y, z].map((pan, k) => pan + mm[k] * (before - after)), after];
  }

  pan(from, to) {
    const [one, other] = [this.pick(from), this.pick(to)];
    if (!one || !other || one.axis !== other.axis) return;
    const [x, y, z, zoom] = this.view;
    this.view = [...[x, y, z].map((pan, k) => pan + (other.mm[k] - one.mm[k]) * zoom), zoom];
  }

  move(x, y, z) {
    this.nv.moveCrosshairInVox(x, y, z);
  }

  // Values of the drawing are label + 1; 0 is a voxel that nobody has set.
  startDrawing() {
    const shades = [[0, 0, 0], ...this.colours];
    this.nv.setDrawingEnabled(true);
    this.nv.setDrawColormap({
      R: shades.map((colour) => colour[0]),
      G: shades.map((colour) => colour[1]),
      B: shades.map((colour) => colour[2]),
      A: shades.map((_, value) => (value ? 255 : 0)),
      I: shades.map((_, value) => value),
      labels: shades.map(() => ""),
    });
    this.nv.drawRimOpacity = 1;
    this.nv.setDrawOpacity(PAINT_OPACITY);
    this.nv.opts.drawingEnabled = false; // brushes are our own
    this.paintOnTop();
  }

  // NiiVue lays overlays over the drawing. Where something is painted they give way to it.
  paintOnTop() {
    const { gl, sliceMMShader } = this.nv;
    const isFragment = (shader) =>
      gl.getShaderParameter(shader, gl.SHADER_TYPE) === gl.FRAGMENT_SHADER;
    const source = gl.getShaderSource(gl.getAttachedShaders(sliceMMShader.program).find(isFragment));
    const painted = "color.a = max(drawOpacity, color.a);";
    if (source.includes(painted)) {
      this.nv.setCustomSliceShader(source.replace(painted, `${painted} ocolor.a = 0.0;`));
    }
  }

  get drawing() {
    return this.nv.drawBitmap;
  }

  replaceDrawing(values) {
    this.nv.drawBitmap.set(values);
    this.showDrawing();
  }

  showDrawing() {
    this.nv.refreshDrawing(true);
  }
}

function asColourMap(palette) {
  const levels = [...palette.keys()]; // every colour, so that none is off the scale
  return {
    R: levels.map((level) => palette[level][0]),
    G: levels.map((level) => palette[level][1]),
    B: levels.map((level) => palette[level][2]),
    A: levels.map((level) => (level ? 255 : 0)),
    I: levels,
  };
}
