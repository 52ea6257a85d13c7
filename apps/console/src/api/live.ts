import type { Query, QueryClient } from '@tanstack/react-query';
import { useSyncExternalStore } from 'react';
import type { Answer } from './types.ts';
import { serverPath } from './server-url.ts';

export type LiveState = 'connecting' | 'live' | 'lost';

/** The time between two refreshes of the same data: a batch can have hundreds of events per second. */
const refreshMs = 700;

/** The delay after an answer such as 503, after which browsers do not reconnect automatically. */
const retryMs = 2_000;

/**
 * The server sends a heartbeat every two seconds, so a stream that is silent for this long is lost, even if the browser does
 * not notice it.
 */
const silenceMs = 6_000;

let state: LiveState = 'connecting';
const stateListeners = new Set<() => void>();

function setState(next: LiveState): void {
  state = next;
  for (const listener of stateListeners) listener();
}

/** Whether changes arrive immediately, for the indicator in the frame. */
export const useLiveState = (): LiveState =>
  useSyncExternalStore(
    (listener) => {
      stateListeners.add(listener);
      return () => stateListeners.delete(listener);
    },
    () => state,
  );

/**
 * Follows changes and refreshes the data that the pages show. The first element of a query's key is the noun of the events
 * that change it (`batch`, `config`; `calls` for the request log); the second one is `list`, or the ID of one record.
 * Reconnects automatically and then refreshes all data. Returns a function that stops it.
 */
export function followChanges(queries: QueryClient): () => void {
  const changed = new Map<string, Set<string>>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let wasLost = false;

  /**
   * Queries whose data changed while they were being read. They are read again afterwards: if a slow read were restarted, it
   * would never end.
   */
  const late = new Set<Query>();

  const refresh = (): void => {
    timer = undefined;
    const nouns = new Map(changed);
    changed.clear();
    const isOld = (query: Query): boolean => {
      const [noun, which] = query.queryKey;
      const ids = nouns.get(String(noun));
      return late.has(query) || (ids !== undefined && (ids.has('*') || which === 'list' || ids.has(String(which))));
    };
    const old = queries.getQueryCache().findAll({ predicate: isOld });
    late.clear();
    for (const query of old) {
      if (query.state.fetchStatus === 'fetching') late.add(query);
      else void queries.invalidateQueries({ queryKey: query.queryKey, exact: true });
    }
    if (late.size > 0) timer = setTimeout(refresh, refreshMs);
  };
  const note = (noun: string, id: string): void => {
    const ids = changed.get(noun) ?? new Set();
    changed.set(noun, ids.add(id));
    timer ??= setTimeout(refresh, refreshMs);
  };

  let silence: ReturnType<typeof setTimeout> | undefined;
  const lose = (): void => {
    setState('lost');
    wasLost = true;
  };
  /** An event has arrived. A frozen server keeps its connections open, so only silence shows that it is frozen. */
  const heard = (): void => {
    clearTimeout(silence);
    silence = setTimeout(() => {
      lose();
      connection.reconnect();
    }, silenceMs);
  };

  const connection = follow('/v1/session/changes', (source) => {
    heard();
    source.addEventListener('open', () => {
      setState('live');
      heard();
      // Changes during the lost connection are not reported.
      if (wasLost) void queries.invalidateQueries();
      wasLost = false;
    });
    source.addEventListener('heartbeat', heard);
    source.addEventListener('calls', () => {
      heard();
      note('calls', '*');
    });
    source.addEventListener('change', ({ data }: MessageEvent<string>) => {
      heard();
      const { noun, id } = JSON.parse(data) as { noun: string; id: string };
      note(noun, id);
      note('event', id);
    });
    source.addEventListener('error', () => {
      lose();
      // The connection was refused, perhaps because the session has ended.
      if (source.readyState === EventSource.CLOSED) void queries.invalidateQueries({ queryKey: ['session'] });
    });
  });
  reconnect = connection.reconnect;
  return () => {
    clearTimeout(timer);
    clearTimeout(silence);
    connection.stop();
  };
}

let reconnect = (): void => {};

/** Reconnects now and reads all data again, for a user who does not want to wait for the next attempt. */
export function retryNow(queries: QueryClient): void {
  reconnect();
  void queries.invalidateQueries();
}

/** Follows the state of the installation. Reconnects automatically. Returns a function that stops it. */
export const followSystem = (onState: (state: Answer<'/v1/admin/system'>) => void): (() => void) =>
  follow('/v1/admin/system', (source) => {
    source.addEventListener('message', ({ data }: MessageEvent<string>) => onState(JSON.parse(data)));
  }).stop;

/** Opens a stream of events, and reopens it whenever it ends; `listen` gets each new source. */
function follow(url: string, listen: (source: EventSource) => void): { reconnect: () => void; stop: () => void } {
  let source: EventSource | null = null;
  let retry: ReturnType<typeof setTimeout> | undefined;
  const connect = (): void => {
    const opened = new EventSource(serverPath + url);
    source = opened;
    listen(opened);
    opened.addEventListener('error', () => {
      // After a lost connection, the browser reconnects automatically.
      if (opened === source && opened.readyState === EventSource.CLOSED) retry = setTimeout(connect, retryMs);
    });
  };
  const stop = (): void => {
    clearTimeout(retry);
    source?.close();
  };
  connect();
  return {
    stop,
    reconnect() {
      stop();
      connect();
    },
  };
}
