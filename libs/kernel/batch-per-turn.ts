/** A larger number saves no more time, and the process at the other end would be idle until the last one is ready. */
const itemsMax = 8;

/**
 * Collects the items of one turn of the event loop, and calls `each` for all of them in order when the turn ends or there
 * are eight. For writes to sockets: most of the cost of a write is waking the process at the other end, and when several
 * writes follow each other directly, only the first has to. `each` must not throw.
 */
export function batchPerTurn<Item>(each: (item: Item) => void): (item: Item) => void {
  let items: Item[] = [];
  let isScheduled = false;
  const flush = (): void => {
    const ready = items;
    items = [];
    for (const item of ready) each(item);
  };
  const endTurn = (): void => {
    isScheduled = false;
    flush();
  };
  return (item) => {
    items.push(item);
    if (items.length === itemsMax) return flush();
    if (isScheduled) return;
    isScheduled = true;
    setImmediate(endTurn);
  };
}
