// The controls around the scene. window.pmpm has its state.

const SIDES = [["L", "R"], ["P", "A"], ["I", "S"]];
const MOST_SHARES = 4; // more do not fit where the readout stands
const STEPS = {
  ArrowLeft: [1, 0, 0], // on screen the patient's right is on the left
  ArrowRight: [-1, 0, 0],
  ArrowUp: [0, 1, 0],
  ArrowDown: [0, -1, 0],
  PageUp: [0, 0, 1],
  PageDown: [0, 0, -1],
};

class Viewer {
  constructor(root, settings, headers) {
    this.root = root;
    this.settings = settings;
    this.headers = headers;
    this.cache = new Map();
    this.sample = 0; // 0: the most probable labels; k: the k-th sampled segmentation
    this.state = { ready: false, supported: true, error: null, mm: null };
    this.goal = settings.startMm;
    window.pmpm = this.state;
    window.addEventListener("pmpm:goto", (event) => this.goTo(event.detail.mm));
  }

  part(name) {
    return this.root.querySelector(`[data-part="${name}"]`);
  }

  async start() {
    if (!canDraw()) {
      this.state.supported = false;
      this.root.dataset.state = "without WebGL";
      this.say(this.settings.withoutWebgl);
      return;
    }
    this.say("The viewer is being loaded.");
    try {
      await this.open();
    } catch (error) {
      this.state.error = String(error);
      this.root.dataset.state = "failed";
      this.part("stage").hidden = true;
      this.say(`The viewer could not be shown: ${error.message}.`);
    }
  }

  say(sentence) {
    this.part("sentence").textContent = sentence;
    this.part("sentence").hidden = !sentence;
  }

  async open() {
    const { settings } = this;
    const [image, entropy, labels] = await Promise.all(
      [settings.images[0].source, settings.entropy, settings.labelMap].map((s) => this.volume(s)),
    );
    this.part("stage").hidden = false;
    this.scene = new Scene(this.part("canvas"), {
      colours: settings.labels.map((label) => label.colour),
      palettes: settings.palettes,
      brightestGrey: settings.brightestGrey,
      topBits: settings.topBits,
      onMove: (mm) => this.moved(mm),
    });
    this.shown = { image, entropy, labels, shares: null };
    await this.scene.open(image, entropy, labels, settings.images[0].range);
    this.fillControls();
    await this.refresh();
    this.scene.goTo(this.goal);
    this.listen();
    this.say("");
    this.state.ready = true;
    this.root.dataset.state = "ready";
    this.shown.shares = await Promise.all(settings.shares.map((s) => this.volume(s)));
    this.moved(this.state.mm);
  }

  // A source may also be {ready: a volume}.
  volume(source) {
    if (source.ready) return source.ready;
    const key = JSON.stringify(source);
    if (!this.cache.has(key)) {
      const read = readVolume(source, this.headers);
      read.catch(() => this.cache.delete(key));
      this.cache.set(key, read);
    }
    return this.cache.get(key);
  }

  fillControls() {
    const { settings } = this;
    settings.images.forEach((image, k) => this.part("sequence").add(new Option(image.name, k)));
    Object.keys(settings.palettes).forEach((name) =>
      this.part("colour-map").add(new Option(name, name)),
    );
    this.part("colour-map").value = settings.colourMap;
    this.part("threshold").max = settings.topBits.toFixed(2);
    this.part("threshold").value = settings.thresholdBits;
    this.part("top").textContent = `${Number(settings.topBits.toFixed(2))}`;
    settings.labels.slice(1).forEach((label) => {
      const item = document.createElement("li");
      item.append(swatch(label.colour), label.name);
      this.part("legend").append(item);
    });
    this.part("samples").hidden = settings.samples.length === 0;
    this.part("sample").max = settings.samples.length;
    this.part("note").textContent = settings.note;
    this.part("note").hidden = !settings.note;
    this.tellSample();
  }

  listen() {
    const redraw = () => this.soon();
    for (const name of ["sequence", "entropy-on", "labels-on", "colour-map"]) {
      this.part(name).addEventListener("change", redraw);
    }
    for (const name of ["brightness", "contrast", "threshold", "entropy-opacity", "labels-opacity"]) {
      this.part(name).addEventListener("input", redraw);
    }
    this.part("previous").addEventListener("click", () => this.step(-1));
    this.part("next").addEventListener("click", () => this.step(1));
    this.part("most-probable").addEventListener("click", () => this.step(-this.sample));
    this.part("sample").addEventListener("input", ({ target }) => this.step(Number(target.value) - this.sample));
    this.part("canvas").addEventListener("keydown", (event) => this.pressed(event), true);
  }

  // Before the volumes are there, the position waits for them.
  goTo(mm) {
    this.goal = mm;
    if (this.state.ready) this.scene.goTo(mm);
    this.root.scrollIntoView({ behavior: "instant", block: "nearest" });
  }

  pressed(event) {
    if (event.key === "Tab") return;
    event.stopImmediatePropagation();
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    this.scene.move(...step);
  }

  step(by) {
    const count = this.settings.samples.length + 1;
    this.sample = (this.sample + by + count) % count;
    this.tellSample();
    this.soon();
  }

  tellSample() {
    const { samples } = this.settings;
    const ml = samples[this.sample - 1]?.ml; // of the run's own, which are sorted by it
    const size = ml === undefined ? ` of ${samples.length}` : `: ${ml.toPrecision(3)} ml`;
    this.part("sample-text").textContent = this.sample
      ? `sample ${this.sample}${size}`
      : "most probable";
    this.part("sample").value = this.sample;
    this.part("most-probable").disabled = this.sample === 0;
    this.state.sample = this.sample;
  }

  // Sliders fire faster than volumes are drawn: one drawing a frame is enough.
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.refresh().catch((error) => this.say(`This could not be shown: ${error.message}.`));
    });
  }

  async refresh() {
    const { settings, scene } = this;
    const chosen = settings.images[Number(this.part("sequence").value)];
    const map = this.sample ? settings.samples[this.sample - 1] : settings.labelMap;
    const [image, entropy, labels] = await Promise.all(
      [chosen.source, settings.entropy, map].map((source) => this.volume(source)),
    );
    Object.assign(this.shown, { image, entropy, labels });
    const threshold = Number(this.part("threshold").value);
    this.part("threshold-text").textContent = `${threshold.toFixed(2)} bits`;
    this.drawScale(this.part("colour-map").value, threshold);
    scene.setImage(image, this.greyRange(chosen.range));
    scene.setEntropy({
      volume: entropy,
      visible: this.part("entropy-on").checked,
      threshold,
      opacity: Number(this.part("entropy-opacity").value),
      colourMap: this.part("colour-map").value,
    });
    scene.setLabels({
      volume: labels,
      visible: this.part("labels-on").checked,
      opacity: Number(this.part("labels-opacity").value),
    });
    scene.draw();
    this.say("");
    if (this.state.mm) this.moved(this.state.mm);
    this.state.drawn = (this.state.drawn || 0) + 1;
  }

  // The values drawn black and white: brightness moves both, contrast brings them together.
  greyRange([low, high]) {
    const half = (high - low) / 2 / 2 ** Number(this.part("contrast").value);
    const middle = (low + high) / 2 - (Number(this.part("brightness").value) * (high - low)) / 2;
    this.state.range = [middle - half, middle + half];
    return this.state.range;
  }

  drawScale(name, threshold) {
    const context = this.part("scale").getContext("2d");
    const pixels = context.createImageData(256, 1);
    this.settings.palettes[name].forEach((colour, k) => pixels.data.set([...colour, 255], 4 * k));
    context.putImageData(pixels, 0, 0);
    const share = Math.min(1, threshold / this.settings.topBits);
    this.part("hidden-part").style.width = `${100 * share}%`;
  }

  moved(mm) {
    const { shown, settings } = this;
    this.state.mm = mm;
    this.part("position").textContent = `${inWords(mm)} mm`;
    const at = indexAt(shown.labels, mm);
    this.state.label = at < 0 ? null : shown.labels.data[at];
    this.state.bits = at < 0 ? null : shown.entropy.data[at] * shown.entropy.slope;
    this.tellLabel(this.state.label);
    this.part("bits").textContent = at < 0 ? "–" : `${this.state.bits.toFixed(2)} bits`;
    const shares = (shown.shares || []).map((v) => (at < 0 ? 0 : v.data[at] * v.slope));
    this.part("shares").textContent = sharesInWords(shares, settings.labels) || "–";
  }

  tellLabel(label) {
    const known = label === null ? undefined : this.settings.labels[label];
    if (!known) this.part("label").replaceChildren("outside the volume");
    else this.part("label").replaceChildren(swatch(known.colour, label === 0), known.name);
  }
}

function inWords(mm) {
  const parts = mm.map((v, axis) => `${SIDES[axis][Math.round(v) >= 0 ? 1 : 0]} ${Math.abs(Math.round(v))}`);
  return parts.join(", ");
}

function sharesInWords(shares, labels) {
  return shares
    .map((share, label) => [share, labels[label].name])
    .filter(([share]) => share >= 0.005)
    .sort((one, other) => other[0] - one[0])
    .slice(0, MOST_SHARES)
    .map(([share, name]) => `${Math.round(100 * share)} % ${name}`)
    .join("\n");
}

function swatch(colour, empty = false) {
  const mark = document.createElement("span");
  mark.className = "pmpm-swatch";
  if (!empty) mark.style.backgroundColor = `rgb(${colour.join(" ")})`;
  return mark;
}
