// Volumes as the page gets them: NIfTI-1, little-endian, voxels ordered to the right, front and top.

const TYPES = { 2: Uint8Array, 4: Int16Array, 16: Float32Array };

// A source is {element: id of a script that holds base64} or {url: address on the local server}.
async function readVolume(source, headers) {
  const bytes = source.element ? bytesOfElement(source.element) : await bytesAt(source.url, headers);
  const file = isGzipped(bytes) ? await unzipped(bytes) : bytes;
  return parseNifti(file.buffer);
}

function bytesOfElement(id) {
  const text = atob(document.getElementById(id).textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

async function bytesAt(url, headers) {
  const answer = await fetch(url, { headers, cache: "no-store" });
  if (!answer.ok) throw new Error(`${url} was answered with ${answer.status}`);
  return new Uint8Array(await answer.arrayBuffer());
}

function isGzipped(bytes) {
  return bytes[0] === 0x1f && bytes[1] === 0x8b;
}

async function unzipped(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function parseNifti(buffer) {
  const view = new DataView(buffer);
  if (view.getInt32(0, true) !== 348) throw new Error("a volume is not little-endian NIfTI-1");
  const dims = [42, 44, 46].map((at) => view.getInt16(at, true));
  const Kind = TYPES[view.getInt16(70, true)];
  if (!Kind) throw new Error("a volume is of a type that the viewer does not know");
  const rows = [280, 296, 312].map((at) => [0, 4, 8, 12].map((k) => view.getFloat32(at + k, true)));
  const start = view.getFloat32(108, true);
  return {
    buffer,
    dims,
    toMm: rows,
    slope: view.getFloat32(112, true) || 1,
    data: new Kind(buffer, start, dims[0] * dims[1] * dims[2]),
  };
}

// What a correction changes: positions in a volume, and there entropy, label and the share of each label.
function parseChanges(buffer) {
  const count = new DataView(buffer).getUint32(0, true);
  const labels = 4 + 8 * count;
  return {
    positions: new Uint32Array(buffer, 4, count),
    entropy: new Float32Array(buffer, 4 + 4 * count, count),
    labels: new Uint8Array(buffer, labels, count),
    share: (label) => new Uint8Array(buffer, labels + count * (label + 1), count),
  };
}

// A copy of a volume with other values at some positions.
function patched(volume, positions, values) {
  const data = volume.data.slice();
  positions.forEach((position, k) => {
    data[position] = values[k];
  });
  return { ...volume, data };
}

// The flat index of the voxel that holds a point, and -1 outside the volume.
function indexAt(volume, mm) {
  const voxel = solve3(volume.toMm, mm).map((v) => Math.round(v));
  const inside = voxel.every((v, axis) => v >= 0 && v < volume.dims[axis]);
  return inside ? voxel[0] + volume.dims[0] * (voxel[1] + volume.dims[1] * voxel[2]) : -1;
}

// The voxel v of A v + t = mm, by Cramer's rule.
function solve3(rows, mm) {
  const [a, b, c] = [0, 1, 2].map((k) => rows.map((row) => row[k]));
  const d = rows.map((row, axis) => mm[axis] - row[3]);
  const all = determinant(a, b, c);
  return [determinant(d, b, c) / all, determinant(a, d, c) / all, determinant(a, b, d) / all];
}

function determinant(a, b, c) {
  return (
    a[0] * (b[1] * c[2] - b[2] * c[1]) -
    b[0] * (a[1] * c[2] - a[2] * c[1]) +
    c[0] * (a[1] * b[2] - a[2] * b[1])
  );
}
