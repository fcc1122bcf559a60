// Painting labels, and asking the server to solve again with what was painted fixed.

const ASK_EVERY_MS = 250;
const WATCH_EVERY_MS = 1000;
const BRUSH_STEP_MM = 2;
const CHANGE_WORTH_AN_ARROW_ML = 0.005;

class Correction {
  constructor(viewer, headers) {
    this.viewer = viewer;
    this.headers = headers;
    this.history = new StrokeHistory();
    this.base = { runs: [], revision: 0 }; // what the server had when these edits began
    this.saved = ""; // its runs as text, empty where an update has still to take them in
    this.pen = "none";
    this.chosen = -1; // of the list of locations
    this.places = [];
  }

  part(name) {
    return this.viewer.part(name);
  }

  async start() {
    const { viewer } = this;
    const tools = document.createElement("div");
    tools.className = "pmpm-tools";
    tools.append(document.getElementById("pmpm-correction-tools").content.cloneNode(true));
    viewer.part("stage").append(tools);
    if (!viewer.scene.ordered) {
      this.say("These volumes are turned in a way that cannot be painted on.", true);
      return;
    }
    const { labelMap, entropy, shares, samples } = viewer.settings;
    this.own = { labelMap, entropy, shares, samples }; // the run's
    this.shown = this.own; // with the edits
    viewer.scene.startDrawing();
    this.grid = new DrawingGrid(viewer.shown.labels);
    this.gestures = new Gestures(viewer, this);
    this.addPens();
    this.listen();
    this.takeIn(await this.ask("/edits"));
    this.takeUp((await this.ask("/draft")).draft);
    const status = await this.ask("/status");
    await this.show(status);
    await this.showLocations();
    this.tell(status);
    this.enable();
    viewer.root.dataset.correction = "ready";
    this.watch(status);
  }

  addPens() {
    const { labels } = this.viewer.settings;
    const pens = [["none", null, "Move the crosshair"]];
    labels.forEach((label, k) => pens.push([String(k), label.colour, `Set to ${label.name}`]));
    pens.push(["clear", null, "Take an edit back"]);
    for (const [value, colour, words] of pens) {
      const label = document.createElement("label");
      const input = document.createElement("input");
      Object.assign(input, { type: "radio", name: "pmpm-pen", value, checked: value === "none" });
      input.addEventListener("change", () => this.choosePen(value));
      label.append(input, ...(colour ? [swatch(colour)] : []), words);
      this.part("pens").append(label);
    }
  }

  async showLocations() {
    const { title, locations } = await this.ask("/locations");
    this.part("locations-title").textContent = title;
    this.places = locations;
    this.chosen = -1;
    const items = locations.map((location, k) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = location.words;
      button.addEventListener("click", () => this.goToPlace(k));
      const item = document.createElement("li");
      item.append(button);
      return item;
    });
    this.part("locations").replaceChildren(...items);
  }

  goToPlace(k) {
    const count = this.places.length;
    if (!count) return;
    this.chosen = (k + count) % count;
    const buttons = [...this.part("locations").querySelectorAll("button")];
    buttons.forEach((button, n) => button.toggleAttribute("aria-current", n === this.chosen));
    buttons[this.chosen].scrollIntoView({ block: "nearest" });
    this.viewer.goTo(this.places[this.chosen].mm);
    this.viewer.state.place = this.chosen;
  }

  async showVolumes() {
    const { volumes } = await this.ask("/volumes-ml");
    const most = Math.max(...volumes.map((each) => largestMl(each)), 1e-6);
    const rows = volumes.flatMap((each) => volumeRows(each, most));
    this.gained = gainedWords(volumes);
    this.part("volume-rows").replaceChildren(...rows);
  }

  listen() {
    const clicks = {
      undo: () => this.undo(),
      redo: () => this.redo(),
      fill: () => this.fill(),
      update: () => this.update(),
      revert: () => this.revert(),
      download: () => this.download(),
      keys: () => this.part("help").showModal(),
    };
    for (const [name, act] of Object.entries(clicks)) this.part(name).addEventListener("click", act);
    this.part("brush").addEventListener("input", () => this.choosePen(this.pen));
    this.part("original").addEventListener("change", () => this.refresh());
    window.addEventListener("keydown", (event) => this.pressed(event), true);
    window.addEventListener("beforeunload", (event) => {
      if (this.isUnsaved) event.preventDefault();
    });
    this.choosePen("none");
  }

  choosePen(pen) {
    this.pen = pen;
    const mm = Number(this.part("brush").value);
    this.part("brush-text").textContent = `${mm} mm across`;
    this.diameterMm = pen === "none" ? 0 : mm;
    this.viewer.part("canvas").nextSibling.classList.toggle("pmpm-painting", pen !== "none");
    if (this.last) this.enable();
  }

  pickPen(pen) {
    const input = this.part("pens").querySelector(`[value="${pen}"]`);
    if (!input) return;
    input.checked = true;
    this.choosePen(pen);
  }

  pressed(event) {
    const { target, key } = event;
    if (this.part("help").open || target.closest?.("select, textarea, input[type=text]")) return;
    if (event.altKey || this.gestures.doing) return;
    const act = event.ctrlKey || event.metaKey ? this.commands(event) : this.keys(key);
    if (!act) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    act();
  }

  commands({ key, shiftKey }) {
    const name = { z: shiftKey ? "redo" : "undo", y: "redo" }[key.toLowerCase()];
    return name && (() => this.part(name).click());
  }

  keys(key) {
    if (/^[0-9]$/.test(key)) return () => this.pickPen(key);
    const click = (name) => () => this.part(name).click();
    const resize = (by) => () => {
      this.part("brush").value = Number(this.part("brush").value) + by;
      this.choosePen(this.pen);
    };
    const zoom = (factor) => () => this.viewer.scene.zoom([-1, -1], factor);
    return {
      e: () => this.pickPen("clear"),
      x: () => this.pickPen("none"),
      "[": resize(-BRUSH_STEP_MM),
      "]": resize(BRUSH_STEP_MM),
      b: () => this.part(this.part("ball").checked ? "flat" : "ball").click(),
      f: click("fill"),
      u: click("update"),
      n: () => this.goToPlace(this.chosen + 1),
      p: () => this.goToPlace(this.chosen - 1),
      o: click("original"),
      "+": zoom(ZOOM_A_STEP),
      "=": zoom(ZOOM_A_STEP),
      "-": zoom(1 / ZOOM_A_STEP),
      r: zoom(0),
      "?": click("keys"),
    }[key.toLowerCase()];
  }

  // What the left button or one finger does.
  down(place) {
    if (this.pen === "none") {
      this.viewer.scene.goToPixel(place);
      return;
    }
    const found = this.viewer.scene.pick(place);
    if (!found || this.busy) return;
    this.stroke = new Stroke(this.viewer.scene.drawing, this.penValue);
    this.axis = found.axis;
    this.point = found.voxel;
    this.dragTo(found);
  }

  move(place) {
    if (this.pen === "none") this.viewer.scene.goToPixel(place);
    const found = this.stroke && this.viewer.scene.pick(place);
    if (found?.axis === this.axis) this.dragTo(found);
  }

  up() {
    if (!this.stroke) return;
    const runs = this.stroke.runs();
    this.stroke = null;
    this.viewer.scene.showDrawing();
    if (runs.length) this.drawn(runs);
  }

  cancel() {
    if (!this.stroke) return;
    this.stroke.takeBack();
    this.stroke = null;
    this.viewer.scene.showDrawing();
  }

  get penValue() {
    return this.pen === "clear" ? 0 : Number(this.pen) + 1;
  }

  dragTo({ voxel, axis }) {
    const flatAxis = this.part("flat").checked ? axis : null;
    drag(this.stroke, this.grid, this.point, voxel, this.diameterMm / 2, flatAxis);
    this.point = voxel;
    if (this.drawingSoon) return;
    this.drawingSoon = true; // the whole drawing goes to the graphics card: once a frame is enough
    requestAnimationFrame(() => {
      this.drawingSoon = false;
      this.viewer.scene.showDrawing();
    });
  }

  fill() {
    const stroke = new Stroke(this.viewer.scene.drawing, this.penValue);
    const slices = fillBetween(stroke, this.grid, this.axis ?? 2);
    const runs = stroke.runs();
    this.viewer.scene.showDrawing();
    if (runs.length) this.drawn(runs);
    const name = this.viewer.settings.labels[Number(this.pen)].name;
    this.say(
      slices
        ? `${slices} ${slices === 1 ? "slice" : "slices"} filled with ${name}: look at them, then press Update.`
        : `Nothing to fill: paint ${name} in two slices with others between them.`,
      !slices,
    );
  }

  runs() {
    return runsOf(this.viewer.scene.drawing);
  }

  drawn(runs) {
    this.history.add(runs);
    this.changed();
  }

  undo() {
    this.history.undo(this.viewer.scene.drawing);
    this.viewer.scene.showDrawing();
    this.changed();
  }

  redo() {
    this.history.redo(this.viewer.scene.drawing);
    this.viewer.scene.showDrawing();
    this.changed();
  }

  changed() {
    this.last = this.runs();
    this.enable();
    if (this.isUnsaved) this.say("Painted, and not saved yet: press Update.");
    this.keepDraft();
    if (this.part("at-once").checked && this.isUnsaved && !this.busy) this.update();
  }

  update() {
    this.send("/update", this.runs());
  }

  get isUnsaved() {
    return this.last !== undefined && JSON.stringify(this.last) !== JSON.stringify(this.base.runs);
  }

  // Strokes are kept beside the run, so that undo works after the page was closed.
  async keepDraft() {
    const { strokes, done } = this.history;
    this.draft = { base: this.base.runs, runs: this.last, strokes, done };
    if (this.sendingDraft) return;
    this.sendingDraft = true;
    try {
      while (this.draft) {
        const draft = this.draft;
        this.draft = null;
        await this.ask("/draft", { draft });
        this.viewer.state.draft = countVoxels(draft.runs);
      }
    } catch {
      this.draft = null; // too much, or no server: what is saved by Update does not depend on it
    } finally {
      this.sendingDraft = false;
    }
  }

  // Go on with strokes that were not saved, unless the edits have changed since.
  takeUp(draft) {
    if (!draft || JSON.stringify(draft.base) !== JSON.stringify(this.base.runs)) return;
    const { scene } = this.viewer;
    this.history = new StrokeHistory(draft.strokes, draft.done);
    scene.replaceDrawing(drawingOf(draft.runs, scene.drawing.length));
    this.last = this.runs();
  }

  async download() {
    const answer = await fetch("/archive", { headers: this.headers, cache: "no-store" });
    if (!answer.ok) {
      this.say(`This could not be downloaded: ${(await answer.json()).error}.`, true);
      return;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await answer.blob());
    link.download = this.viewer.settings.archiveName;
    link.click();
    URL.revokeObjectURL(link.href);
  }

  revert() {
    if (window.confirm("Take all edits back, and remove the corrected maps?")) {
      this.send("/revert", []);
    }
  }

  enable() {
    const { busy, history } = this;
    const label = /^[0-9]+$/.test(this.pen);
    this.part("update").disabled = busy || JSON.stringify(this.last) === this.saved;
    this.part("undo").disabled = busy || !history.canUndo;
    this.part("redo").disabled = busy || !history.canRedo;
    this.part("fill").disabled = busy || !label || this.last.length === 0;
    this.part("revert").disabled = busy || (this.last.length === 0 && this.saved.length < 3);
    this.part("download").disabled = busy || this.saved.length < 3;
    this.viewer.state.edited = countVoxels(this.last);
  }

  // What was painted here since ``base`` stays; all else becomes what the server has.
  takeIn(now) {
    const { scene } = this.viewer;
    const length = scene.drawing.length;
    const [before, after] = [this.base, now].map(({ runs }) => drawingOf(runs, length));
    const mine = scene.drawing;
    scene.replaceDrawing(after.map((value, i) => (mine[i] === before[i] ? value : mine[i])));
    this.base = now;
    this.saved = now.stale ? "" : JSON.stringify(now.runs);
    this.history = new StrokeHistory();
    this.last = this.runs();
  }

  async send(path, runs) {
    this.busy = true;
    this.enable();
    this.part("progress").classList.remove("pmpm-idle");
    try {
      let status = await this.ask(path, { runs, revision: this.base.revision });
      while (status.busy) {
        if (status.revision !== this.revision) await this.show(status);
        this.showProgress(status);
        await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
        status = await this.ask("/status");
      }
      await this.show(status);
      if (status.error) throw new Error(status.error);
      await this.done(status, runs);
    } catch (error) {
      this.say(`This was not saved: ${error.message}.`, true);
      // Where the server does not answer, that sentence stays.
      await (error.conflict ? this.reconcile() : this.rebase()).catch(() => {});
    } finally {
      this.busy = false;
      this.part("progress").classList.add("pmpm-idle");
      this.enable();
    }
  }

  async done(status, sent) {
    const { scene, state } = this.viewer;
    if (sent.length === 0) {
      scene.replaceDrawing(new Uint8Array(scene.drawing.length));
      if (!this.history.canRedo) this.history = new StrokeHistory(); // else all of it was undone
      this.last = [];
    }
    this.base = { runs: sent };
    this.saved = JSON.stringify(sent);
    const now = await this.ask("/edits");
    if (JSON.stringify(now.runs) === this.saved) this.base = now;
    else this.takeIn(now); // another window has changed them already
    await this.keepDraft();
    this.tell(status);
    await this.showLocations();
    state.updates = (state.updates || 0) + 1;
  }

  // After a failed update the server has the edits it had before, under another number.
  async rebase() {
    const now = await this.ask("/edits");
    if (JSON.stringify(now.runs) === JSON.stringify(this.base.runs)) this.base = now;
  }

  // Another window saved edits that this one has not seen: show them together with those made here.
  async reconcile() {
    this.takeIn(await this.ask("/edits"));
    await this.show(await this.ask("/status"));
    await this.showLocations();
    this.say(
      "This was not saved: the correction was changed in another window or tab. " +
        "Both are shown together now: look at them, then press the button again.",
      true,
    );
  }

  // Only what differs from the run's maps comes from the server.
  async show(status) {
    const { viewer, own } = this;
    const answer = await fetch("/changes", { headers: this.headers, cache: "no-store" });
    const changes = parseChanges(await answer.arrayBuffer());
    const change = async (source, values) => ({
      ready: patched(await viewer.volume(source), changes.positions, values),
    });
    this.revision = status.revision;
    if (changes.positions.length === 0) {
      this.shown = own;
    } else {
      const query = `?revision=${status.revision}`;
      this.shown = {
        labelMap: await change(own.labelMap, changes.labels),
        entropy: await change(own.entropy, changes.entropy),
        shares: await Promise.all(own.shares.map((s, label) => change(s, changes.share(label)))),
        samples: own.samples.map(({ url }) => ({ url: `${url}${query}` })),
      };
    }
    await this.refresh();
    await this.showVolumes();
    viewer.state.revision = status.revision;
  }

  async refresh() {
    const { viewer } = this;
    Object.assign(viewer.settings, this.part("original").checked ? this.own : this.shown);
    viewer.shown.shares = await Promise.all(viewer.settings.shares.map((s) => viewer.volume(s)));
    await viewer.refresh();
  }

  // Until the samples are there, an update has to wait for them after its first picture.
  async watch(status) {
    let now = status;
    while (now.preparing) {
      if (!this.busy) this.tell(now);
      await new Promise((resolve) => setTimeout(resolve, WATCH_EVERY_MS));
      now = await this.ask("/status");
    }
    if (this.busy) return;
    this.tell(now);
    if (status.preparing) await this.showLocations(); // ranked by the samples from now on
  }

  async ask(path, body) {
    const options = { headers: { ...this.headers }, cache: "no-store" };
    if (body !== undefined) {
      options.method = "POST";
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new Error("perturb-mpm view no longer answers; is it still running?");
    }
    const value = await answer.json();
    if (!answer.ok) throw Object.assign(new Error(value.error), { conflict: value.conflict });
    return value;
  }

  tell(status) {
    const getting = status.preparing
      ? ` Drawing the run's samples for corrections: ${Math.round(100 * status.ready)} %.`
      : "";
    if (status.stale) {
      this.say(`The files beside the run lack some of these edits: press Update.${getting}`, true);
      return;
    }
    if (this.isUnsaved) {
      this.say(`Some of what is painted is not saved yet: press Update.${getting}`);
      return;
    }
    if (status.edited_voxels === 0) {
      this.say(`Choose a label, drag over a slice, then press Update.${getting}`);
      return;
    }
    this.say(
      `${status.edited_voxels} voxels set by hand changed the labels of ${status.moved_voxels} ` +
        `others. ${this.gained}Saved: labels-corrected.nii.gz, report-corrected.html and more.${getting}`,
    );
  }

  showProgress({ stage, done, final, moved_voxels: moved }) {
    this.part("progress").value = done;
    const far = done > 0 ? ` (${Math.round(100 * done)} %)` : "";
    const first = final ? "" : `First picture: ${moved} other voxels follow. `;
    this.say(`${first}${stage ? `Now ${stage}${far}.` : ""}`);
  }

  say(sentence, failed = false) {
    this.part("status").textContent = sentence;
    this.part("status").classList.toggle("pmpm-failed", failed);
  }
}

function ml(volume) {
  return volume.toFixed(volume < 10 ? 2 : 1);
}

function largestMl({ before_ml: before, after_ml: after, ...each }) {
  const ends = [each.before_interval_ml, each.after_interval_ml].flatMap((ends) => ends ?? []);
  return Math.max(before, after, ...ends);
}

// A sentence on the volume that the run knows least; empty where intervals are not known.
function gainedWords(volumes) {
  const width = (ends) => ends[1] - ends[0];
  const [first, ...others] = volumes.filter((v) => v.before_interval_ml && v.after_interval_ml);
  if (!first) return "";
  const wider = (one, other) => width(other.before_interval_ml) > width(one.before_interval_ml);
  const least = others.reduce((one, other) => (wider(one, other) ? other : one), first);
  const { before_interval_ml: before, after_interval_ml: after } = least;
  if (width(before) === 0) return "";
  const percent = Math.round(100 * (width(after) / width(before) - 1));
  const change = percent === 0 ? "as wide" : `${Math.abs(percent)} % ${percent < 0 ? "narrower" : "wider"}`;
  const told = (volume, ends) => `${ml(volume)} (${ends.map(ml).join("–")})`;
  return (
    `Volume of ${least.name} in ml: ${told(least.before_ml, before)} → ` +
    `${told(least.after_ml, after)}, its interval ${change}. `
  );
}

// A row of numbers, "18 (5–40)", and under it the intervals as bars: the run's above the one now.
function volumeRows(each, most) {
  const row = document.createElement("tr");
  const head = document.createElement("th");
  head.scope = "row";
  head.textContent = each.name;
  row.append(head);
  const changed = Math.abs(each.after_ml - each.before_ml) >= CHANGE_WORTH_AN_ARROW_ML;
  const states = [
    ["before", each.before_ml, each.before_interval_ml],
    ["after", each.after_ml, each.after_interval_ml],
  ];
  for (const [when, volume, ends] of states) {
    const cell = document.createElement("td");
    const number = document.createElement(when === "after" && changed ? "b" : "span");
    number.textContent = ml(volume);
    const interval = document.createElement("small");
    interval.textContent = ends ? `${ml(ends[0])}–${ml(ends[1])}` : "–";
    cell.append(number, interval);
    row.append(cell);
  }
  if (!each.before_interval_ml) return [row];
  const bars = document.createElement("tr");
  bars.setAttribute("aria-hidden", "true");
  const cell = document.createElement("td");
  cell.colSpan = 3;
  for (const [when, volume, ends] of states) {
    const scale = document.createElement("div");
    scale.className = "pmpm-interval";
    const bar = document.createElement("span");
    bar.className = `pmpm-${when}`;
    const [low, high] = ends ?? [volume, volume];
    bar.style.left = `${(100 * low) / most}%`;
    bar.style.width = `${(100 * (high - low)) / most}%`;
    const mark = document.createElement("i");
    mark.style.left = `${(100 * volume) / most}%`;
    scale.append(bar, mark);
    cell.append(scale);
  }
  bars.append(cell);
  return [row, bars];
}

// Runs are [label, first voxel, number of voxels] of equal values; a drawing holds label + 1.
function runsOf(drawing) {
  const runs = [];
  for (let i = 0; i < drawing.length; i++) {
    const value = drawing[i];
    if (value === 0) continue;
    const start = i;
    while (drawing[i + 1] === value) i++;
    runs.push([value - 1, start, i - start + 1]);
  }
  return runs;
}

function countVoxels(runs) {
  return runs.reduce((sum, run) => sum + run[2], 0);
}

function drawingOf(runs, length) {
  const drawing = new Uint8Array(length);
  for (const [label, start, count] of runs) drawing.fill(label + 1, start, start + count);
  return drawing;
}
