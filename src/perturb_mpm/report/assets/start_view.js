// On the local server volumes come by request, and every request carries the token.

async function startView() {
  const settings = JSON.parse(document.getElementById("pmpm-settings").textContent);
  const headers = { "X-Perturb-Mpm-Token": settings.token };
  const viewer = new Viewer(document.getElementById("pmpm-viewer"), settings, headers);
  await viewer.start();
  if (viewer.state.ready) await new Correction(viewer, headers).start();
}

startView();
