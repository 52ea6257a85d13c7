import type { ForwardRequest } from '#libs/calls/call.ts';
import { asRecord } from '#libs/calls/upstream/answers/usage.ts';
import type { ObjectKind } from './object-owners.ts';

/** How a call uses objects that the provider stores. */
export type ObjectRoute = {
  /** The ID in the path; null if it names none. */
  root: string | null;
  /** The call creates an object of this kind. */
  creates: ObjectKind | null;
  /** The answer is a page of objects of all workspaces. */
  lists: boolean;
  /** The call deletes the object of the path. */
  deletes: boolean;
};

const creating: ReadonlyMap<string, ObjectKind> = new Map([
  ['responses', 'response'],
  ['conversations', 'conversation'],
  ['assistants', 'assistant'],
  ['threads', 'thread'],
  ['threads/runs', 'thread'],
  ['vector_stores', 'vector_store'],
]);
/** POST paths that have a word in the position of the ID. */
const withoutId: ReadonlySet<string> = new Set(['threads/runs', 'responses/compact', 'responses/input_tokens']);
/** How many segments precede the ID. */
const idPositions: ReadonlyMap<string, number> = new Map([
  ['responses', 1],
  ['conversations', 1],
  ['assistants', 1],
  ['threads', 1],
  ['vector_stores', 1],
  ['files', 1],
  ['batches', 1],
  ['models', 1],
  ['fine_tuning', 2],
]);

/** null: the call does not use stored objects, although its body can name some. */
export function findObjectRoute({
  operation,
  relayed,
}: Pick<ForwardRequest, 'operation' | 'relayed'>): ObjectRoute | null {
  if (relayed === undefined) {
    return operation === 'responses' ? { root: null, creates: 'response', lists: false, deletes: false } : null;
  }
  const { method } = relayed;
  const path = relayed.path.split('?', 1)[0]?.slice(1) ?? '';
  const segments = path.split('/');
  const position = idPositions.get(segments[0] ?? '');
  if (position === undefined) return null;
  const isPost = method === 'POST';
  const named = isPost && withoutId.has(path) ? undefined : segments[position];
  return {
    root: named === undefined ? null : decodeURIComponent(named),
    creates: (isPost ? creating.get(path) : undefined) ?? null,
    lists: method === 'GET' && segments.length === 1,
    deletes: method === 'DELETE' && segments.length === position + 1,
  };
}

/** A response has a few dozen items at most. */
const createdMax = 200;

/**
 * Returns the IDs that an answer, or an event of a streamed one, assigns to new objects. The workspace can name these
 * IDs from now on. A response that the provider does not store (`store: false`) has none.
 */
export function createdObjects(kind: ObjectKind, answer: unknown): string[] {
  const outer = asRecord(answer);
  const source =
    'response' in outer ? asRecord(outer['response']) : 'item' in outer ? { output: [outer['item']] } : outer;
  if (source['store'] === false) return [];
  const ids: unknown[] = [];
  // A run that is created together with its thread names the thread.
  if (kind === 'thread') ids.push(source['thread_id'] ?? source['id']);
  else if (typeof outer['type'] !== 'string' || 'response' in outer) ids.push(source['id']);
  if (kind === 'response' && Array.isArray(source['output'])) {
    for (const item of source['output'].map(asRecord)) ids.push(item['id'], item['container_id']);
  }
  // Assistants and threads can be created together with a vector store.
  const search = asRecord(asRecord(source['tool_resources'])['file_search']);
  if (Array.isArray(search['vector_store_ids'])) ids.push(...(search['vector_store_ids'] as unknown[]));
  return ids.filter((id): id is string => typeof id === 'string' && id !== '' && id.length <= 200).slice(0, createdMax);
}
