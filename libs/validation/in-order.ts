/**
 * Starts `work` for each item with at most `inFlight` under way, and gives the results in the order of the items. The
 * source is not asked for more while the results are not taken. The first failure ends it.
 */
export async function* inOrder<Item, Result>(
  source: AsyncIterable<Item>,
  work: (item: Item) => Promise<Result>,
  inFlight: number,
): AsyncGenerator<Result> {
  const running: Promise<Result>[] = [];
  for await (const item of source) {
    const result = work(item);
    // It may fail while an earlier one is awaited; whoever awaits it still gets the failure.
    result.catch(() => undefined);
    running.push(result);
    const oldest = running.length >= inFlight ? running.shift() : undefined;
    if (oldest !== undefined) yield await oldest;
  }
  yield* running;
}
