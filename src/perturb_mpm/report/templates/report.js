// A click on a location, or Enter while its row has the focus, asks the viewer to go there.
(() => {
  const go = (row) => {
    const detail = {
      mm: JSON.parse(row.dataset.mm),
      voxel: JSON.parse(row.dataset.voxel),
      rank: Number(row.dataset.rank),
    };
    window.dispatchEvent(new CustomEvent('pmpm:goto', { detail }));
    if (document.getElementById('viewer')) return;
    const location = document.getElementById(`location-${detail.rank}`);
    if (location) location.scrollIntoView({ behavior: 'smooth' });
  };
  for (const row of document.querySelectorAll('tr.location-row')) {
    row.addEventListener('click', (event) => {
      if (!event.target.closest('a')) go(row);
    });
    row.addEventListener('keydown', (event) => {
      if (event.key === 'Enter' && event.target === row) go(row);
    });
  }
})();
