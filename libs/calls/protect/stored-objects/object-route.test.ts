import { expect, test } from 'vitest';
import type { CallOperation, Relayed } from '#libs/calls/call.ts';
import { createdObjects, findObjectRoute } from './object-route.ts';

const routeOf = (method: Relayed['method'], path: string, operation: CallOperation = 'assistants') =>
  findObjectRoute({ operation, relayed: { method, path } as Relayed });

test.each<[Relayed['method'], string, string]>([
  ['GET', '/responses/resp_1', 'resp_1'],
  ['POST', '/responses/resp_1/cancel', 'resp_1'],
  ['GET', '/responses/resp_1/input_items?limit=2', 'resp_1'],
  ['GET', '/conversations/conv_1/items/msg_1', 'conv_1'],
  ['POST', '/threads/thread_1/runs', 'thread_1'],
  ['GET', '/threads/runs', 'runs'],
  ['GET', '/vector_stores/vs_1/files/file-1/content', 'vs_1'],
  ['GET', '/files/file-1/content', 'file-1'],
  ['GET', '/fine_tuning/jobs/ftjob-1/events', 'ftjob-1'],
  ['DELETE', '/models/ft%3Agpt%2Fx', 'ft:gpt/x'],
])('%s %s is about the object %s', (method, path, root) => {
  expect(routeOf(method, path)?.root).toBe(root);
});

test.each<[Relayed['method'], string]>([
  ['POST', '/responses'],
  ['POST', '/responses/compact'],
  ['POST', '/responses/input_tokens'],
  ['POST', '/threads/runs'],
  ['GET', '/assistants?limit=2'],
])('%s %s names no object in its path', (method, path) => {
  expect(routeOf(method, path)?.root).toBeNull();
});

test('operations without stored objects have no such route', () => {
  for (const path of ['/images/generations', '/audio/speech', '/moderations', '/rerank'])
    expect(routeOf('POST', path)).toBeNull();
  expect(findObjectRoute({ operation: 'chat' })).toBeNull();
});

test('lists, deletions and creations are told apart', () => {
  expect(routeOf('GET', '/assistants?limit=2')).toMatchObject({ lists: true, creates: null, deletes: false });
  expect(routeOf('DELETE', '/threads/thread_1')).toMatchObject({ deletes: true });
  expect(routeOf('DELETE', '/threads/thread_1/messages/msg_1')).toMatchObject({ deletes: false });
  expect(routeOf('POST', '/vector_stores')).toMatchObject({ creates: 'vector_store', lists: false });
  expect(routeOf('POST', '/vector_stores/vs_1')).toMatchObject({ creates: null });
});

test('an answer says which objects it creates', () => {
  const output = [{ id: 'rs_1' }, { id: 'ci_1', container_id: 'cntr_1' }];
  expect(createdObjects('response', { id: 'resp_1', output })).toEqual(['resp_1', 'rs_1', 'ci_1', 'cntr_1']);
  expect(createdObjects('response', { id: 'resp_1', store: false, output })).toEqual([]);
  expect(createdObjects('thread', { id: 'run_1', object: 'thread.run', thread_id: 'thread_1' })).toEqual(['thread_1']);
  const files = { file_search: { vector_store_ids: ['vs_1'] } };
  expect(createdObjects('assistant', { id: 'asst_1', tool_resources: files })).toEqual(['asst_1', 'vs_1']);
});

test('so do the events of a stream', () => {
  const created = { type: 'response.created', response: { id: 'resp_1', output: [] } };
  expect(createdObjects('response', created)).toEqual(['resp_1']);
  expect(createdObjects('response', { type: 'response.output_item.done', item: { id: 'msg_1' } })).toEqual(['msg_1']);
  expect(createdObjects('thread', { id: 'thread_1', object: 'thread' })).toEqual(['thread_1']);
  expect(createdObjects('response', { type: 'response.output_text.delta', item_id: 'msg_1' })).toEqual([]);
  for (const answer of [null, 1, 'x', [], {}, { id: 7 }]) expect(createdObjects('response', answer)).toEqual([]);
});
