// Runs in a page, before its own scripts: test/console/measure-page.ts reads what it keeps.
const watched = { tasks: [], progress: [], paces: [], timesLeft: [] };
globalThis.watched = watched;

new PerformanceObserver((list) => {
  for (const { duration } of list.getEntries()) watched.tasks.push(duration);
}).observe({ entryTypes: ['longtask'] });

const note = (values, text) => {
  if (text && values.at(-1) !== text) values.push(text);
};
new MutationObserver(() => {
  const bar = document.querySelector('[role=progressbar]');
  if (bar === null) return;
  note(watched.progress, bar.getAttribute('aria-valuenow'));
  for (const tile of document.querySelectorAll('.tile')) {
    if (tile.querySelector('.label')?.textContent !== 'Pace') continue;
    note(watched.paces, tile.querySelector('.value')?.textContent);
    note(watched.timesLeft, tile.querySelector('.note')?.textContent);
  }
}).observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
