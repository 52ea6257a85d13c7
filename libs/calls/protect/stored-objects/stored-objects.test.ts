import { Readable } from 'node:stream';
import { expect, test } from 'vitest';
import type { ForwardRequest, Outcome, Relayed, RelayedAnswer } from '#libs/calls/call.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { ObjectOwners } from './object-owners.ts';
import { createStoredObjects } from './stored-objects.ts';

const holder = { accountId: 'int_1', workspaceId: 'ws_1' };

/** Owners in memory. `fails`: the database is unavailable. */
function createOwners(own: readonly string[] = [], fails = false) {
  const ids = new Set(own);
  const owners: ObjectOwners = {
    ownedBy: async (_holder, asked) => {
      if (fails) throw new Error('no database');
      return new Set(asked.filter((id) => ids.has(id)));
    },
    record: async (_holder, _kind, made) => {
      if (fails) throw new Error('no database');
      for (const id of made) ids.add(id);
    },
    forget: async (_holder, id) => void ids.delete(id),
  };
  const warnings: string[] = [];
  const logger = { warn: (_fields: object, message: string) => warnings.push(message) } as unknown as Logger;
  return { ids, warnings, objects: createStoredObjects({ owners, logger }) };
}

const requestOf = (method: Relayed['method'], path: string): ForwardRequest =>
  ({
    operation: 'assistants',
    relayed: { method, path },
    body: Buffer.alloc(0),
    model: null,
    stream: false,
  }) as unknown as ForwardRequest;

function answer(chunks: Iterable<string> | AsyncIterable<string>, contentType = 'application/json'): RelayedAnswer {
  const headers = { 'content-type': contentType };
  const body = Readable.from(chunks, { objectMode: false });
  const done = Promise.resolve({ usage: null, model: null, error: null });
  const nothing = { providerRequestId: null, usage: null, model: null, finishReason: null };
  return { kind: 'relayed', status: 200, headers, attempts: [], ...nothing, body, done };
}

async function asText(outcome: Outcome): Promise<string> {
  if (outcome.kind !== 'relayed') throw new Error(`not relayed: ${JSON.stringify(outcome)}`);
  return Buffer.concat((await outcome.body.toArray()) as Buffer[]).toString();
}

test('a list is followed page by page until one has objects of the workspace', async () => {
  const { objects } = createOwners(['asst_250']);
  const asked: string[] = [];
  const outcome = await objects.through(
    { holder, target: { provider: 'openai' }, model: null },
    requestOf('GET', '/assistants?limit=2&order=asc'),
    async ({ relayed }) => {
      asked.push(relayed?.path ?? '');
      const from = asked.length * 100;
      const data = Array.from({ length: 100 }, (_, at) => ({ id: `asst_${from + at}` }));
      return answer([JSON.stringify({ object: 'list', data, has_more: true, last_id: data.at(-1)?.id })]);
    },
  );
  expect(JSON.parse(await asText(outcome))).toEqual({
    object: 'list',
    data: [{ id: 'asst_250' }],
    has_more: true,
    first_id: 'asst_250',
    last_id: 'asst_250',
  });
  expect(asked).toEqual(['/assistants?limit=2&order=asc', '/assistants?limit=100&order=asc&after=asst_199']);
});

test('a list that is not JSON is refused, because nothing can be left out of it', async () => {
  const { objects } = createOwners();
  const outcome = await objects.through(
    { holder, target: { provider: 'openai' }, model: null },
    requestOf('GET', '/assistants'),
    () => Promise.resolve(answer(['<html>'])),
  );
  expect(outcome).toMatchObject({ kind: 'failed', error: { code: 'upstream_invalid_response' } });
});

test('the ID of a stream is recorded before its reader gets it, wherever the stream is cut', async () => {
  const text = `data: ${JSON.stringify({ type: 'response.created', response: { id: 'resp_1', output: [] } })}\n\ndata: [DONE]\n\n`;
  for (let cut = 1; cut < text.length; cut += 7) {
    const { objects, ids } = createOwners();
    const outcome = await objects.through(
      { holder, target: { provider: 'openai' }, model: null },
      requestOf('POST', '/responses'),
      () => Promise.resolve(answer([text.slice(0, cut), text.slice(cut)], 'text/event-stream')),
    );
    let read = '';
    let isEarly = false;
    for await (const chunk of (outcome as RelayedAnswer).body) {
      read += String(chunk);
      // Only a complete event can be read.
      isEarly ||= read.includes('\n\n') && !ids.has('resp_1');
    }
    expect({ read, isEarly }).toEqual({ read: text, isEarly: false });
    expect([...ids]).toEqual(['resp_1']);
  }
});

const responseRequest = (body: object): ForwardRequest =>
  ({
    operation: 'responses',
    body: Buffer.from(JSON.stringify(body)),
    model: 'm',
    stream: true,
  }) as unknown as ForwardRequest;

function eventsOf(...events: object[]): Outcome {
  const batches = events.map((event) => [JSON.stringify(event)]);
  const head = { status: 200, headers: {}, attempts: [], providerRequestId: null, usage: null, model: null };
  const stream = { ...head, kind: 'stream', finishReason: null, events: Readable.from(batches) };
  return { ...stream, done: Promise.resolve({}) } as unknown as Outcome;
}

test.each([
  ['openai', ['resp_1', 'ws_1']],
  ['anthropic', []],
])('the IDs in a stream of %s are recorded before its reader gets them: %j', async (provider, expected) => {
  const { objects, ids } = createOwners();
  const item = { type: 'response.output_item.done', item: { id: 'ws_1', type: 'web_search_call' } };
  const outcome = await objects.through({ holder, target: { provider }, model: null }, responseRequest({}), () =>
    Promise.resolve(eventsOf({ type: 'response.created', response: { id: 'resp_1', output: [] } }, item)),
  );
  if (outcome.kind !== 'stream') throw new Error(`not a stream: ${outcome.kind}`);
  const known: string[][] = [];
  for await (const _batch of outcome.events) known.push([...ids]);
  expect(known.at(-1)).toEqual(expected);
  expect(known[0]).toEqual(expected.slice(0, 1));
});

test('foreign reasoning names nothing at a provider that never gets it, but an object of another workspace is refused', async () => {
  const { objects } = createOwners();
  const ask = (provider: string, body: object): Promise<Outcome> =>
    objects.through({ holder, target: { provider }, model: null }, responseRequest(body), () =>
      Promise.resolve(eventsOf()),
    );
  const reasoning = { type: 'reasoning', id: 'rs_1', summary: [] };
  const foreign = { ...reasoning, encrypted_content: 'sluice.claude.x' };
  expect((await ask('openai', { input: [foreign] })).kind).toBe('stream');
  expect((await ask('openai', { input: [reasoning] })).kind).toBe('failed');
  expect((await ask('openai', { previous_response_id: 'resp_1' })).kind).toBe('failed');
  // Its translation refuses everything that is stored, and sends no reasoning with an ID.
  expect((await ask('anthropic', { input: [reasoning] })).kind).toBe('stream');
});

test('a paid answer is sent although the object that it creates cannot be recorded', async () => {
  const { objects, warnings } = createOwners([], true);
  const outcome = await objects.through(
    { holder, target: { provider: 'openai' }, model: null },
    requestOf('POST', '/threads'),
    () => Promise.resolve(answer(['{"id":"thread_1"}'])),
  );
  expect(await asText(outcome)).toBe('{"id":"thread_1"}');
  expect(warnings).toEqual(['a stored object could not be recorded']);
});

test('a call that names an object is refused while its owner cannot be looked up', async () => {
  const { objects } = createOwners(['thread_1'], true);
  const outcome = await objects.through(
    { holder, target: { provider: 'openai' }, model: null },
    requestOf('GET', '/threads/thread_1'),
    () => Promise.reject(new Error('it was made')),
  );
  expect(outcome).toMatchObject({ kind: 'failed', error: { kind: 'unavailable' } });
});

test('a reader that leaves before the first byte cancels the call', async () => {
  const { objects } = createOwners();
  const made = answer(['{}']);
  const outcome = await objects.through(
    { holder, target: { provider: 'openai' }, model: null },
    requestOf('POST', '/threads'),
    () => Promise.resolve(made),
  );
  (outcome as RelayedAnswer).body.destroy();
  await new Promise((resolve) => made.body.once('close', resolve));
  expect(made.body.destroyed).toBe(true);
});

test('a deleted object belongs to no workspace any more', async () => {
  const { objects, ids } = createOwners(['thread_1']);
  await objects.through(
    { holder, target: { provider: 'openai' }, model: null },
    requestOf('DELETE', '/threads/thread_1'),
    () => Promise.resolve(answer(['{}'])),
  );
  expect([...ids]).toEqual([]);
});

test('models that others fine-tuned are hidden, unless the organisation lists them', async () => {
  const { objects } = createOwners(['ft:gpt:own']);
  const models = { allowsOthers: true, listed: new Map([['ft:gpt:listed', true]]), custom: [], bases: new Map() };
  const owner = { workspaceId: 'ws_1', credential: { sharedAccount: 'int_1', models } };
  const all = ['gpt', 'ft:gpt:own', 'ft:gpt:listed', 'FT:gpt:foreign'].map((id) => ({ id }));
  expect(await objects.withoutForeign(owner, all)).toEqual(all.slice(0, 3));
  await expect(objects.requireModel(owner, 'ft:gpt:foreign')).rejects.toMatchObject({ kind: 'not_found' });
  await objects.requireModel(owner, 'ft:gpt:own');
  await objects.requireModel({ ...owner, credential: {} }, 'ft:gpt:foreign');
});
