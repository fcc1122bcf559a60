// Painting labels, and asking the server to solve again with what was painted held fixed.

const ASK_EVERY_MS = 250;
const MOST_UNDONE = 50;

class Correction {
  constructor(viewer, headers) {
    this.viewer = viewer;
    this.headers = headers;
    this.undone = []; // the drawing before each stroke, as runs
    this.saved = ""; // the runs that the server knows
    this.pen = "none";
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
    viewer.scene.startDrawing((action) => action === "draw" && this.drawn());
    this.addPens();
    this.addRegions();
    this.listen();
    const { runs, stale } = await this.ask("/edits");
    viewer.scene.replaceDrawing(drawingOf(runs, viewer.scene.drawing.length));
    this.last = runs;
    this.saved = stale ? "" : JSON.stringify(runs);
    this.tell(await this.ask("/status"));
    this.enable();
    viewer.root.dataset.correction = "ready";
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

  addRegions() {
    for (const region of this.viewer.settings.regions) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = region.words;
      button.addEventListener("click", () => this.viewer.goTo(region.mm));
      const item = document.createElement("li");
      item.append(button);
      this.part("regions").append(item);
    }
  }

  listen() {
    this.part("brush").addEventListener("input", () => this.choosePen(this.pen));
    this.part("undo").addEventListener("click", () => this.undo());
    this.part("update").addEventListener("click", () => this.send("/update", { runs: this.runs() }));
    this.part("revert").addEventListener("click", () => this.revert());
    this.part("original").addEventListener("change", () => this.refresh());
    this.choosePen("none");
  }

  choosePen(pen) {
    this.pen = pen;
    const size = Number(this.part("brush").value);
    this.part("brush-text").textContent = `${size} ${size === 1 ? "voxel" : "voxels"}`;
    const label = pen === "clear" ? null : Number(pen);
    this.viewer.scene.setPen(label, pen === "none" ? 0 : size);
  }

  runs() {
    return runsOf(this.viewer.scene.drawing);
  }

  drawn() {
    this.undone.push(this.last);
    if (this.undone.length > MOST_UNDONE) this.undone.shift();
    this.last = this.runs();
    this.enable();
  }

  undo() {
    this.last = this.undone.pop();
    const { scene } = this.viewer;
    scene.replaceDrawing(drawingOf(this.last, scene.drawing.length));
    this.enable();
  }

  revert() {
    if (window.confirm("Take all edits back, and remove the corrected maps?")) {
      this.send("/revert", {});
    }
  }

  enable() {
    const changed = JSON.stringify(this.last) !== this.saved;
    this.part("update").disabled = this.busy || !changed;
    this.part("undo").disabled = this.busy || this.undone.length === 0;
    this.part("revert").disabled = this.busy || (this.last.length === 0 && this.saved.length < 3);
    this.viewer.state.edited = this.last.reduce((sum, run) => sum + run[2], 0);
  }

  async send(path, body) {
    const sent = path === "/revert" ? [] : body.runs;
    this.busy = true;
    this.enable();
    try {
      let status = await this.ask(path, body);
      while (status.busy) {
        this.showProgress(status.done);
        await new Promise((resolve) => setTimeout(resolve, ASK_EVERY_MS));
        status = await this.ask("/status");
      }
      if (status.error) throw new Error(status.error);
      await this.done(status, sent);
    } catch (error) {
      this.say(`This was not saved: ${error.message}.`, true);
    } finally {
      this.busy = false;
      this.part("progress").hidden = true;
      this.enable();
    }
  }

  async done(status, sent) {
    const { scene } = this.viewer;
    this.saved = JSON.stringify(sent);
    if (sent.length === 0) {
      scene.replaceDrawing(new Uint8Array(scene.drawing.length));
      this.undone = [];
      this.last = [];
    }
    this.revision = status.revision;
    this.tell(status);
    await this.refresh();
    this.viewer.state.revision = status.revision;
  }

  // A new revision is a new address, so that the viewer's cache does not answer for it.
  async refresh() {
    const { viewer } = this;
    const { settings } = viewer;
    [settings.labelMap, settings.entropy, ...settings.shares].forEach((s) => viewer.forget(s));
    const original = this.part("original").checked;
    const query = original ? "" : `?revision=${this.revision || 0}`;
    settings.labelMap = { url: `/volumes/${original ? "run-" : ""}labels${query}` };
    settings.entropy = { url: `/volumes/${original ? "run-" : ""}entropy${query}` };
    settings.shares = settings.labels.map((_, k) => ({ url: `/volumes/share-${k}${query}` }));
    viewer.shown.shares = await Promise.all(settings.shares.map((s) => viewer.volume(s)));
    await viewer.refresh();
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
    if (!answer.ok) throw new Error(value.error);
    return value;
  }

  tell(status) {
    if (status.edited_voxels === 0) {
      this.say("Choose a label, drag over a slice, then press Update.");
      return;
    }
    this.say(
      `${status.edited_voxels} voxels set by hand changed the labels of ${status.moved_voxels} ` +
        "others. Saved as labels-corrected.nii.gz, entropy-corrected.nii.gz and edits.json.",
    );
  }

  showProgress(share) {
    this.part("progress").hidden = false;
    this.part("progress").value = share;
    this.say(`Solving again around the edits: ${Math.round(100 * share)} %`);
  }

  say(sentence, failed = false) {
    this.part("status").textContent = sentence;
    this.part("status").classList.toggle("pmpm-failed", failed);
  }
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

function drawingOf(runs, length) {
  const drawing = new Uint8Array(length);
  for (const [label, start, count] of runs) drawing.fill(label + 1, start, start + count);
  return drawing;
}
