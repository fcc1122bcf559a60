// In a report everything is in the page itself, NiiVue too, gzipped to keep the file small.

async function startReport() {
  const settings = JSON.parse(document.getElementById("pmpm-settings").textContent);
  const viewer = new Viewer(document.getElementById("pmpm-viewer"), settings, {});
  if (canDraw()) await addNiivue();
  await viewer.start();
}

async function addNiivue() {
  const code = new TextDecoder().decode(await unzipped(bytesOfElement("pmpm-niivue")));
  const script = document.createElement("script");
  script.textContent = code;
  document.head.append(script);
}

startReport();
