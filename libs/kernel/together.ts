/** More at once saves nothing further, and the process at the other end would stand still until the last is ready. */
const togetherMax = 8;

/**
 * Gathers what comes in one turn of the event loop and hands it over, one by one and in order, when the turn ends or
 * eight are there. For writes to sockets: each wakes the process at the other end, which is most of what it costs, and
 * when one follows another at once, most find it awake already. What is alone in its turn waits for nothing. `each` must
 * not throw.
 */
export function together<Item>(each: (item: Item) => void): (item: Item) => void {
  let gathered: Item[] = [];
  let isTurnEndAwaited = false;
  const handOver = (): void => {
    const ready = gathered;
    gathered = [];
    for (const item of ready) each(item);
  };
  const endTurn = (): void => {
    isTurnEndAwaited = false;
    handOver();
  };
  return (item) => {
    gathered.push(item);
    if (gathered.length === togetherMax) return handOver();
    if (isTurnEndAwaited) return;
    isTurnEndAwaited = true;
    setImmediate(endTurn);
  };
}
