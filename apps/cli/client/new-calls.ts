const pageSize = 100;
/** Of one look: more calls a second than a person can read are left out, and it says so. */
const shownMax = 500;

/**
 * Looks at the request log again and again: each look returns the calls that the looks before did not have, oldest first. The
 * first one returns none. `read` returns the newest so many. Calls are told apart by their ids and not by their order, because
 * processes write them some moments later than they happened.
 */
export function createNewCalls<Log extends { id: string }>(
  read: (limit: number) => Promise<readonly Log[]>,
  note: (line: string) => void,
): () => Promise<Log[]> {
  let seen: ReadonlySet<string> | null = null;
  return async () => {
    const before = seen;
    const isNew = ({ id }: Log): boolean => before?.has(id) === false;
    let page = await read(pageSize);
    if (page.length === pageSize && page.every(isNew)) page = await read(shownMax);
    if (page.length === shownMax && page.every(isNew)) note('… there were more calls than can be shown');
    seen = new Set(page.map(({ id }) => id));
    return page.filter(isNew).reverse();
  };
}
