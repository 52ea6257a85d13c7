import { Readable } from 'node:stream';
import type { Attempt, ForwardRequest, Outcome, RelayedAnswer, StreamAnswer, Target } from '#libs/calls/call.ts';
import { openSseFraming } from '#libs/calls/upstream/answers/streams/sse-framing.ts';
import { asRecord } from '#libs/calls/upstream/answers/usage.ts';
import { asGatewayError, GatewayError } from '#libs/kernel/errors.ts';
import type { Logger } from '#libs/kernel/logging/logger.ts';
import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import { findProvider } from '#libs/providers/registry.ts';
import { namedObjects } from './named-objects.ts';
import type { Holder, ObjectKind, ObjectOwners } from './object-owners.ts';
import { createdObjects, findObjectRoute, type ObjectRoute } from './object-route.ts';

type Make = (request: ForwardRequest) => Promise<Outcome>;

/**
 * Separates the objects of workspaces that share one account of a provider: a workspace can name, list and delete only
 * the objects that it created itself.
 */
export type StoredObjects = {
  /**
   * Makes a call with the credential of such an account. Never rejects for a refusal: a call that names an object of
   * another workspace fails with `not_found`.
   */
  through: (
    call: { holder: Holder; target: Pick<Target, 'models' | 'model' | 'provider'>; model: string | null },
    request: ForwardRequest,
    make: Make,
  ) => Promise<Outcome>;
  /** Throws not_found for a model that another workspace fine-tuned in an account that the two share. */
  requireModel: (owner: ModelOwner, model: string) => Promise<void>;
  /** Returns the models of a list without those that other workspaces fine-tuned. */
  withoutForeign: <Model extends { id: string }>(owner: ModelOwner, models: readonly Model[]) => Promise<Model[]>;
  /** Records models that a workspace fine-tuned. */
  recordModels: (owner: ModelOwner, models: readonly string[]) => Promise<void>;
};

/** A workspace and the credential that it uses. */
export type ModelOwner = { workspaceId: string; credential: Pick<Target, 'sharedAccount' | 'models'> };

/**
 * Whether a model was fine-tuned in the account, by the form of OpenAI's names. The organisation can list such a model for
 * all workspaces of its integration.
 */
const isTuned = (model: string, { models }: Pick<Target, 'models'>): boolean =>
  /^ft:/i.test(model) && models?.listed.get(model) !== true;

/**
 * The largest answer that is held to be read. A larger one passes, and the objects that it creates are not recorded.
 */
const heldBytesMax = 67_108_864;
/** A page of a list has at most 100 objects, possibly none of them the workspace's. */
const pagesMax = 10;
const pageSize = '100';

export function createStoredObjects({ owners, logger }: { owners: ObjectOwners; logger: Logger }): StoredObjects {
  const requireOwn = async (holder: Holder, named: ReadonlySet<string>): Promise<void> => {
    const ids = [...named];
    const own = await owners.ownedBy(holder, ids).catch((cause: unknown) => {
      const message = 'The owner of the objects in this call cannot be looked up at the moment. Try again shortly.';
      throw new GatewayError('unavailable', 'database_unavailable', message, { retryAfterMs: 1_000, cause });
    });
    const foreign = ids.find((id) => !own.has(id));
    if (foreign !== undefined) throw notOwn(foreign);
  };

  /** An answer that was paid for is sent even if the objects that it created cannot be recorded. */
  const record = async (holder: Holder, kind: ObjectKind, ids: readonly string[]): Promise<void> => {
    try {
      const stores = ids.filter((id) => kind !== 'vector_store' && id.startsWith('vs_'));
      await owners.record(holder, 'vector_store', stores);
      await owners.record(holder, kind, stores.length === 0 ? ids : ids.filter((id) => !stores.includes(id)));
    } catch (error) {
      logger.warn({ err: error, workspace_id: holder.workspaceId, kind }, 'a stored object could not be recorded');
    }
  };

  const recorded = async (
    holder: Holder,
    kind: ObjectKind,
    outcome: Outcome,
    memory: MemoryLease | undefined,
  ): Promise<Outcome> => {
    if (outcome.kind === 'json') await record(holder, kind, createdObjects(kind, parsed(outcome.body)));
    const note = (ids: readonly string[]): Promise<void> => record(holder, kind, ids);
    if (outcome.kind === 'stream') return { ...outcome, events: recordEvents(outcome.events, kind, note) };
    if (outcome.kind !== 'relayed') return outcome;
    const type = outcome.headers['content-type'] ?? '';
    if (type.includes('text/event-stream')) return withBody(outcome, recordStream(outcome.body, kind, note));
    if (type.includes('json')) {
      const tooLarge = (): void => logger.warn({ kind }, 'an answer is too large to record the object that it creates');
      return withBody(outcome, recordWhole(outcome.body, kind, { note, memory, tooLarge }));
    }
    return outcome;
  };

  return {
    async through({ holder, target, model }, request, make) {
      const isStateless = isTranslatedResponse(request, target.provider);
      const route = isStateless ? null : findObjectRoute(request);
      try {
        const named = isStateless ? new Set<string>() : namedObjects(request);
        if (route !== null && route.root !== null) named.add(route.root);
        for (const one of [model, request.model, target.model]) if (one && isTuned(one, target)) named.add(one);
        if (named.size > 0) await requireOwn(holder, named);
        if (route?.lists) return await readOwnPages(owners, holder, request, make);
      } catch (error) {
        return { kind: 'failed', error: asGatewayError(error), attempts: [] };
      }
      const outcome = await make(request);
      if (route === null || outcome.kind === 'failed' || outcome.status >= 400) return outcome;
      if (route.deletes) await forget(holder, route);
      return route.creates === null ? outcome : recorded(holder, route.creates, outcome, request.memory);
    },
    async requireModel({ workspaceId, credential }, model) {
      const { sharedAccount: accountId } = credential;
      if (accountId === undefined || !isTuned(model, credential)) return;
      await requireOwn({ accountId, workspaceId }, new Set([model]));
    },
    async withoutForeign({ workspaceId, credential }, models) {
      const { sharedAccount: accountId } = credential;
      const tuned = models.map(({ id }) => id).filter((id) => isTuned(id, credential));
      if (accountId === undefined || tuned.length === 0) return [...models];
      const own = await owners.ownedBy({ accountId, workspaceId }, tuned);
      return models.filter(({ id }) => own.has(id) || !isTuned(id, credential));
    },
    async recordModels({ workspaceId, credential: { sharedAccount: accountId } }, models) {
      if (accountId !== undefined) await owners.record({ accountId, workspaceId }, 'model', models);
    },
  };

  async function forget(holder: Holder, { root }: ObjectRoute): Promise<void> {
    try {
      if (root !== null) await owners.forget(holder, root);
    } catch (error) {
      logger.warn({ err: error }, 'the owner of a deleted object could not be removed');
    }
  }
}

/** Reads pages of the provider's list until one has objects of the workspace. */
async function readOwnPages(
  owners: ObjectOwners,
  holder: Holder,
  request: ForwardRequest,
  make: Make,
): Promise<Outcome> {
  const attempts: Attempt[] = [];
  let asked = request;
  for (let pages = 1; ; pages += 1) {
    const outcome = await make(asked);
    if (outcome.kind !== 'relayed' || outcome.status >= 400)
      return { ...outcome, attempts: [...attempts, ...outcome.attempts] };
    attempts.push(...outcome.attempts);
    const bytes = await collect(outcome.body, request.memory);
    const page = asRecord(parsed(bytes));
    const { data, has_more: hasMore, last_id: lastId } = page;
    if (!Array.isArray(data)) return { kind: 'failed', error: notAList(), attempts };
    const ids = data.map((entry) => asRecord(entry)['id']).filter((id) => typeof id === 'string');
    const own = await owners.ownedBy(holder, ids);
    const kept = data.filter((entry) => own.has(asRecord(entry)['id'] as string));
    const mayFollow = hasMore === true && typeof lastId === 'string' && !/[?&]before=/.test(asked.relayed?.path ?? '');
    if (kept.length === 0 && mayFollow && pages < pagesMax) {
      asked = pageAfter(asked, lastId);
      continue;
    }
    const [first, last] = [asRecord(kept[0])['id'], asRecord(kept.at(-1))['id']];
    const answer = { ...page, data: kept, first_id: first ?? null, last_id: last ?? (mayFollow ? lastId : null) };
    const body = Buffer.from(JSON.stringify(answer));
    const headers = { ...outcome.headers, 'content-length': String(body.length) };
    return { ...outcome, attempts, headers, body: Readable.from([body], { objectMode: false }) };
  }
}

/**
 * Whether a response comes from a provider without the Responses API. Such a request cannot name stored objects, because its
 * translation refuses them, and its answer creates none.
 */
const isTranslatedResponse = ({ operation, relayed }: ForwardRequest, providerId: string): boolean => {
  const provider = findProvider(providerId);
  return (
    relayed === undefined &&
    operation === 'responses' &&
    provider !== undefined &&
    provider.operations.responses === undefined
  );
};

/** The answer is the same for an object that does not exist and for one of another workspace. */
const notOwn = (id: string): GatewayError =>
  new GatewayError(
    'not_found',
    'stored_object_not_found',
    `This workspace has created no object '${id.slice(0, 200)}' at the provider. Several workspaces share the provider's ` +
      'account, and each can use only the objects that it created through the gateway. To share objects, use a virtual key ' +
      'of this workspace, or ask the organisation to set share_stored_objects on the integration.',
  );

const notAList = (): GatewayError =>
  new GatewayError(
    'provider_failed',
    'upstream_invalid_response',
    'The provider did not return a list, so the objects of this workspace cannot be selected.',
  );

function parsed(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString());
  } catch {
    return null;
  }
}

async function collect(body: Readable, memory: MemoryLease | undefined): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > heldBytesMax) throw notAList();
    memory?.charge(chunk.length);
    chunks.push(chunk);
  }
  return Buffer.concat(chunks, bytes);
}

function pageAfter(request: ForwardRequest, lastId: string): ForwardRequest {
  const { relayed } = request;
  if (relayed === undefined) return request;
  const [path = '', query = ''] = relayed.path.split('?', 2);
  const params = new URLSearchParams(query);
  params.set('after', lastId);
  params.set('limit', pageSize);
  return { ...request, relayed: { ...relayed, path: `${path}?${params.toString()}` } };
}

/** Destroying the new body cancels the call, as destroying the old one did. */
function withBody(outcome: RelayedAnswer, pieces: AsyncIterable<Buffer>): RelayedAnswer {
  const body = Readable.from(pieces, { objectMode: false });
  body.once('close', () => outcome.body.destroy());
  body.on('error', () => {}); // The reader gets the error. Until there is a reader, no other listener would handle it.
  return { ...outcome, body };
}

type Note = (ids: readonly string[]) => Promise<void>;

/** Holds an answer until the objects that it creates are recorded, so that its reader can name them immediately. */
async function* recordWhole(
  body: Readable,
  kind: ObjectKind,
  { note, memory, tooLarge }: { note: Note; memory: MemoryLease | undefined; tooLarge: () => void },
): AsyncIterable<Buffer> {
  const held: Buffer[] = [];
  let bytes = 0;
  let isHeld = true;
  for await (const chunk of body as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (isHeld && bytes <= heldBytesMax && memory?.tryCharge(chunk.length) !== false) {
      held.push(chunk);
      continue;
    }
    if (isHeld) tooLarge();
    isHeld = false;
    yield* held.splice(0);
    yield chunk;
  }
  if (!isHeld) return;
  await note(createdObjects(kind, parsed(Buffer.concat(held, bytes))));
  yield* held;
}

const eventCharsMax = 16_777_216;

/** Finds the IDs that the events of one stream assign to new objects, each once. */
class CreatedInStream {
  readonly #kind: ObjectKind;
  readonly #known = new Set<string>();
  /** Whether the provider stores the objects of this stream. */
  isStored = true;

  constructor(kind: ObjectKind) {
    this.#kind = kind;
  }

  find(data: string): string[] {
    if (!this.isStored || !mayCreate(this.#kind, data)) return [];
    const event = parsed(Buffer.from(data));
    this.isStored = asRecord(asRecord(event)['response'])['store'] !== false;
    const ids = createdObjects(this.#kind, event).filter((id) => !this.#known.has(id));
    for (const id of ids) this.#known.add(id);
    return ids;
  }
}

/** Passes the bytes of a stream on. A piece that completes an event with a new ID waits until the ID is recorded. */
async function* recordStream(body: Readable, kind: ObjectKind, note: Note): AsyncIterable<Buffer> {
  const created = new CreatedInStream(kind);
  let found: string[] = [];
  const framing = openSseFraming({
    onEvent: ({ data }) => void found.push(...created.find(data)),
    onComment: () => {},
    eventCharsMax,
    tooLarge: () => new RangeError('an event is too large to read'),
  });
  for await (const chunk of body as AsyncIterable<Buffer>) {
    try {
      if (created.isStored) framing.push(chunk);
    } catch {
      // The piece is not the text of events, or an event is too large. The stream passes nevertheless.
      created.isStored = false;
    }
    const fresh = found;
    found = [];
    if (fresh.length > 0) await note(fresh);
    yield chunk;
  }
}

/** Passes the payloads of a stream on. Payloads with a new ID wait until the ID is recorded. */
function recordEvents(events: StreamAnswer['events'], kind: ObjectKind, note: Note): AsyncIterable<readonly string[]> {
  const created = new CreatedInStream(kind);
  const source = events[Symbol.asyncIterator]();
  // Not a generator: a generator that is left before it has started would not notify its source.
  const iterator: AsyncIterator<readonly string[]> = {
    async next() {
      const step = await source.next();
      const ids = step.done === true ? [] : step.value.flatMap((payload) => created.find(payload));
      if (ids.length > 0) await note(ids);
      return step;
    },
    async return() {
      await source.return?.();
      return { done: true, value: undefined };
    },
  };
  return { [Symbol.asyncIterator]: () => iterator };
}

/** Most events are pieces of text. Only those of these forms are parsed. */
const mayCreate = (kind: ObjectKind, data: string): boolean =>
  kind === 'response'
    ? data.includes('"response"') || data.includes('"item"')
    : /"object":\s*"thread(?:\.run)?"/.test(data);
