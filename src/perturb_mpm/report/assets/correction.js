// Painting labels, and asking the server to solve again with what was painted fixed.

const ASK_EVERY_MS = 250;
const WATCH_EVERY_MS = 1000;
const MOST_UNDONE = 50;

class Correction {
  constructor(viewer, headers) {
    this.viewer = viewer;
    this.headers = headers;
    this.undone = []; // the drawing before each stroke, as runs
    this.base = { runs: [], revision: 0 }; // what the server had when these edits began
    this.saved = ""; // its runs as text, empty where an update has still to take them in
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
    const { labelMap, entropy, shares, samples } = viewer.settings;
    this.own = { labelMap, entropy, shares, samples }; // the run's
    this.shown = this.own; // with the edits
    viewer.scene.startDrawing((action) => action === "draw" && this.drawn());
    this.addPens();
    this.listen();
    this.takeIn(await this.ask("/edits"));
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
    const { locations } = await this.ask("/locations");
    const items = locations.map((location) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = location.words;
      button.addEventListener("click", () => this.viewer.goTo(location.mm));
      const item = document.createElement("li");
      item.append(button);
      return item;
    });
    this.part("locations").replaceChildren(...items);
  }

  async showVolumes() {
    const { volumes } = await this.ask("/volumes-ml");
    const rows = volumes.map(({ name, before_ml: before, after_ml: after }) => {
      const row = document.createElement("tr");
      const head = document.createElement("th");
      head.scope = "row";
      head.textContent = name;
      const cells = [ml(before), ml(after), changeInWords(after - before)].map((words) => {
        const cell = document.createElement("td");
        cell.textContent = words;
        return cell;
      });
      row.append(head, ...cells);
      return row;
    });
    this.part("volume-rows").replaceChildren(...rows);
  }

  listen() {
    this.part("brush").addEventListener("input", () => this.choosePen(this.pen));
    this.part("undo").addEventListener("click", () => this.undo());
    this.part("update").addEventListener("click", () => this.send("/update", this.runs()));
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
      this.send("/revert", []);
    }
  }

  enable() {
    const changed = JSON.stringify(this.last) !== this.saved;
    this.part("update").disabled = this.busy || !changed;
    this.part("undo").disabled = this.busy || this.undone.length === 0;
    this.part("revert").disabled = this.busy || (this.last.length === 0 && this.saved.length < 3);
    this.viewer.state.edited = this.last.reduce((sum, run) => sum + run[2], 0);
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
    this.undone = [];
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
      this.undone = [];
      this.last = [];
    }
    this.base = { runs: sent };
    this.saved = JSON.stringify(sent);
    const now = await this.ask("/edits");
    if (JSON.stringify(now.runs) === this.saved) this.base = now;
    else this.takeIn(now); // another window has changed them already
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
    if (!this.busy) this.tell(now);
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
    if (status.edited_voxels === 0) {
      this.say(`Choose a label, drag over a slice, then press Update.${getting}`);
      return;
    }
    this.say(
      `${status.edited_voxels} voxels set by hand changed the labels of ${status.moved_voxels} ` +
        `others. Saved beside the run: labels-corrected.nii.gz, report-corrected.html and more.${getting}`,
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

function changeInWords(change) {
  if (Math.abs(change) < 0.005) return "–";
  return `${change > 0 ? "+" : "−"}${Math.abs(change).toFixed(2)}`;
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
