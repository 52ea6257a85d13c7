/**
 * Gathers what comes in one turn of the event loop and hands it over, one by one and in order, when the turn ends. For
 * writes to sockets: each wakes the process at the other end, which is most of what it costs, and when one follows
 * another at once, most find it awake already. What is alone in its turn waits for nothing. `each` must not throw.
 */
export function together<Item>(each: (item: Item) => void): (item: Item) => void {
  let gathered: Item[] = [];
  const handOver = (): void => {
    const ready = gathered;
    gathered = [];
    for (const item of ready) each(item);
  };
  return (item) => {
    if (gathered.length === 0) setImmediate(handOver);
    gathered.push(item);
  };
}
