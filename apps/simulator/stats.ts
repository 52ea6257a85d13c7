/** The body of GET /stats. `calls` counts by the request's `user` or by prompt hash, if counting was requested. */
export type StatsSnapshot = {
  requests: Record<string, number>;
  statuses: Record<string, Record<string, number>>;
  open_connections: number;
  connections: number;
  open_requests: number;
  aborted_requests: number;
  calls: Record<string, number>;
  calls_dropped: number;
};

const keyLengthMax = 256;

/**
 * Counters of one simulator. Routes are a closed set, so only `calls` can grow: past `countedKeysMax` keys, further
 * keys are counted together in `calls_dropped`.
 */
export function createStats({ countedKeysMax }: { countedKeysMax: number }) {
  const requests = new Map<string, number>();
  const statuses = new Map<string, Map<number, number>>();
  const calls = new Map<string, number>();
  let openConnections = 0;
  let connections = 0;
  let openRequests = 0;
  let abortedRequests = 0;
  let callsDropped = 0;
  return {
    connected(): void {
      connections++;
      openConnections++;
    },
    disconnected(): void {
      openConnections--;
    },
    received(route: string): void {
      openRequests++;
      requests.set(route, (requests.get(route) ?? 0) + 1);
    },
    /** Requests that are not yet answered. */
    inFlight: (): number => openRequests,
    /** The status was sent; the answer can still be in flight. */
    answered(route: string, status: number): void {
      let byStatus = statuses.get(route);
      if (byStatus === undefined) statuses.set(route, (byStatus = new Map()));
      byStatus.set(status, (byStatus.get(status) ?? 0) + 1);
    },
    /** The answer has ended; `aborted` if the client disconnected before that. */
    finished(aborted: boolean): void {
      openRequests--;
      if (aborted) abortedRequests++;
    },
    called(name: string): void {
      const key = name.slice(0, keyLengthMax);
      const count = calls.get(key);
      if (count === undefined && calls.size >= countedKeysMax) callsDropped++;
      else calls.set(key, (count ?? 0) + 1);
    },
    snapshot: (): StatsSnapshot => ({
      requests: Object.fromEntries(requests),
      statuses: Object.fromEntries([...statuses].map(([route, byStatus]) => [route, Object.fromEntries(byStatus)])),
      open_connections: openConnections,
      connections,
      open_requests: openRequests,
      aborted_requests: abortedRequests,
      calls: Object.fromEntries(calls),
      calls_dropped: callsDropped,
    }),
    /** Resets all counts; open requests are still counted as open. */
    reset(): void {
      requests.clear();
      statuses.clear();
      calls.clear();
      connections = openConnections;
      abortedRequests = 0;
      callsDropped = 0;
    },
  };
}

export type Stats = ReturnType<typeof createStats>;
