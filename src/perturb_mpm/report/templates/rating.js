// The reader's rating: kept in this browser under the page's address, where the page of a cohort
// finds it too; downloaded as a file that `perturb-mpm cohort --ratings` reads.
(() => {
  const section = document.getElementById('rating');
  const form = section.querySelector('form');
  const said = form.querySelector('output');
  const key = `perturb-mpm rating ${window.location.pathname}`;
  const COLUMNS = ['case', 'run', 'rating', 'initials', 'note', 'rated_at'];

  const read = () => {
    try { return JSON.parse(window.localStorage.getItem(key)); } catch { return null; }
  };
  const now = () => {
    const values = new FormData(form);
    return {
      format: 'perturb-mpm rating',
      case: section.dataset.case,
      run: section.dataset.run,
      rating: values.get('rating') || '',
      initials: values.get('initials').trim(),
      note: values.get('note').trim(),
      rated_at: new Date().toISOString(),
    };
  };
  const save = () => {
    try {
      window.localStorage.setItem(key, JSON.stringify(now()));
      said.textContent = 'saved in this browser';
    } catch {
      said.textContent = 'this browser does not keep it: download it';
    }
  };
  const text = (rating, format) => {
    if (format === 'json') return `${JSON.stringify(rating, null, 2)}\n`;
    const cells = COLUMNS.map((name) => rating[name].replace(/\s+/g, ' '));
    return `${COLUMNS.join('\t')}\n${cells.join('\t')}\n`;
  };
  const download = (format) => {
    if (!form.elements.rating.value) {
      said.textContent = 'choose fine, to be fixed or to be excluded first';
      return;
    }
    const link = document.createElement('a');
    const content = URL.createObjectURL(new Blob([text(now(), format)], { type: 'text/plain' }));
    link.setAttribute('href', content);
    link.download = `${section.dataset.case.replace(/[^\w.-]+/g, '_')}_rating.${format}`;
    link.click();
    URL.revokeObjectURL(content);
  };
  const clear = () => {
    form.reset();
    try { window.localStorage.removeItem(key); } catch { /* nothing was kept */ }
    said.textContent = 'cleared';
  };

  const before = read();
  if (before && before.run === section.dataset.run) {
    for (const name of ['rating', 'note', 'initials']) form.elements[name].value = before[name] || '';
    said.textContent = `rated ${String(before.rated_at).slice(0, 10)}`;
  } else if (before) {
    said.textContent = `an earlier run of this case was rated: ${before.rating}`;
  }
  form.addEventListener('input', save);
  form.addEventListener('submit', (event) => event.preventDefault());
  for (const button of form.querySelectorAll('button')) {
    button.addEventListener('click', () => (button.dataset.format ? download(button.dataset.format) : clear()));
  }
  section.hidden = false;

  // The page of a cohort says in its links how to come back.
  const back = /^#back=((?:\.\.\/)+[\w.-]+\.html)$/.exec(window.location.hash);
  if (back) {
    const link = document.getElementById('back');
    link.setAttribute('href', back[1]);
    link.hidden = false;
  }
})();
