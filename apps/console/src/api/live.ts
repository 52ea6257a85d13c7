import type { QueryClient } from '@tanstack/react-query';
import { useSyncExternalStore } from 'react';
import type { EventObject } from './types.ts';

export type LiveState = 'connecting' | 'live' | 'lost';

/** Between two refreshes of the same data: a batch has hundreds of events a second. */
const refreshMs = 700;

let state: LiveState = 'connecting';
const stateListeners = new Set<() => void>();

function setState(next: LiveState): void {
  state = next;
  for (const listener of stateListeners) listener();
}

/** Whether changes arrive at once, for the sign in the frame. */
export const useLiveState = (): LiveState =>
  useSyncExternalStore(
    (listener) => {
      stateListeners.add(listener);
      return () => stateListeners.delete(listener);
    },
    () => state,
  );

/**
 * Follows the event log and refreshes what the pages show. The first element of a query's key is the noun of the events that
 * change it (`batch`, `config`; `calls` for the request log); the second one is `list`, or the id of one record.
 * Connects again by itself and then refreshes everything. Returns how to stop.
 */
export function followEvents(queries: QueryClient): () => void {
  const changed = new Map<string, Set<string>>();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let source: EventSource | null = null;
  let retry: ReturnType<typeof setTimeout> | undefined;
  let wasLost = false;

  const refresh = (): void => {
    timer = undefined;
    const nouns = new Map(changed);
    changed.clear();
    void queries.invalidateQueries({
      predicate: ({ queryKey: [noun, which] }) => {
        const ids = nouns.get(String(noun));
        return ids !== undefined && (ids.has('*') || which === 'list' || ids.has(String(which)));
      },
    });
  };
  const note = (noun: string, id: string): void => {
    const ids = changed.get(noun) ?? new Set();
    changed.set(noun, ids.add(id));
    timer ??= setTimeout(refresh, refreshMs);
  };

  const connect = (): void => {
    source = new EventSource('/v1/events/stream?calls=true');
    source.addEventListener('open', () => {
      setState('live');
      // What happened while the connection was lost came as events, but calls did not.
      if (wasLost) void queries.invalidateQueries();
      wasLost = false;
    });
    source.addEventListener('calls', () => note('calls', '*'));
    source.addEventListener('message', ({ data }: MessageEvent<string>) => {
      const event = JSON.parse(data) as EventObject;
      note(event.type.split('.')[0] ?? '', event.stream);
      note('event', event.stream);
    });
    source.addEventListener('error', () => {
      setState('lost');
      wasLost = true;
      // The browser connects again by itself after a lost connection, but not after an answer such as 503.
      if (source?.readyState !== EventSource.CLOSED) return;
      clearTimeout(retry);
      retry = setTimeout(connect, 2_000);
    });
  };
  connect();
  return () => {
    clearTimeout(timer);
    clearTimeout(retry);
    source?.close();
  };
}
