import fc from 'fast-check';
import { expect, test } from 'vitest';
import { ChatCompletionRequest } from '#libs/contracts/calls/chat.ts';
import { CompletionRequest } from '#libs/contracts/calls/completions.ts';
import { EmbeddingRequest } from '#libs/contracts/calls/embeddings.ts';
import { toJsonSchema } from '#libs/contracts/json-schema.ts';
import { defaultJsonBodyLimits } from '#libs/http/bodies/json-body.ts';
import { headNames, type LargeBodyTask } from '#libs/http/bodies/large-body.ts';
import { parseJsonBytes } from '#libs/http/bodies/parse-json-bytes.ts';
import { scanMembers } from '#libs/kernel/json/json-members.ts';
import { placeholder } from '#libs/kernel/json/json-outline.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import { createBodyCheck } from '#libs/validation/lines/check-body.ts';
import { checkLargeBody } from './check-large-body.ts';

const isHeadName: ReadonlySet<string> = new Set(headNames);

/** Returns the result of a function, or the error that it throws. */
function resultOf<Result>(act: () => Result): Result | Error {
  try {
    return act();
  } catch (error) {
    return error as Error;
  }
}

type CheckTask = Omit<LargeBodyTask, 'pieces'>;

/** Parses the body in full, and scans it for its members. */
function checkInFull(bytes: Buffer, { limits, contract, usedBytes, leaseBytesMax }: CheckTask): object {
  const lease = {
    usedBytes,
    leaseBytesMax,
    charge: (more: number): void => void (lease.usedBytes += more),
    give: (less: number): void => void (lease.usedBytes -= less),
  };
  const value = parseJsonBytes(bytes, limits, lease);
  if (contract !== null) createBodyCheck('/v1/chat/completions')(value);
  const isObject = typeof value === 'object' && value !== null && !Array.isArray(value);
  const head = isObject ? Object.fromEntries(Object.entries(value).filter(([name]) => isHeadName.has(name))) : null;
  return { bytes, head, members: isObject ? scanMembers(bytes) : null, usedBytes: lease.usedBytes };
}

const long = fc
  .tuple(fc.integer({ min: 60, max: 300 }), fc.string({ unit: 'binary', maxLength: 4 }), fc.nat(3))
  .map(([count, piece, lead]) => `${'-'.repeat(lead)}${piece}`.padEnd(4, 'x').repeat(count));
const leaf = fc.oneof(fc.jsonValue({ maxDepth: 2 }), long);
const message = fc.record(
  { role: fc.constantFrom('user', 'assistant', 'stranger'), content: fc.oneof(long, leaf), name: leaf },
  { requiredKeys: ['role', 'content'] },
);
const name = fc.oneof(
  fc.constantFrom('model', 'stream', 'messages', 'max_tokens', 'x', '__proto__'),
  fc.string(),
  long,
);
const member = fc.oneof(
  fc.tuple(name, leaf),
  fc.tuple(fc.constant('messages'), fc.array(message, { maxLength: 3 })),
  fc.tuple(fc.constant('model'), fc.oneof(fc.constant('m'), long)),
);
const space = fc.constantFrom('', ' ', '\r\n\t');
const objectText = fc
  .tuple(fc.array(fc.tuple(member, space, space), { maxLength: 6 }), space)
  .map(([members, around]) => {
    const texts = members.map(
      ([[key, value], a, b]) => `${a}${JSON.stringify(key)}${b}:${a}${JSON.stringify(value, null, b)}${b}`,
    );
    return `${around}{${texts.join()}${around}}${around}`;
  });
const chatText = fc
  .array(message, { minLength: 1, maxLength: 4 })
  .map((messages) => JSON.stringify({ model: 'm', messages }));
const mark = fc.constantFrom(
  '"',
  '{',
  ']',
  ',',
  ':',
  '\\',
  '\u0001',
  '\u001f',
  '\n',
  '\\u00g0',
  '\\u12',
  '\\x',
  '\u007f',
  '1',
);
const text = fc.oneof(
  objectText,
  chatText,
  leaf.map((value) => JSON.stringify(value)),
  fc.tuple(fc.oneof(objectText, chatText), fc.nat()).map(([json, at]) => json.slice(0, at % (json.length + 1))),
  fc.tuple(fc.oneof(objectText, chatText), fc.nat(), mark).map(([json, at, inserted]) => {
    const place = at % (json.length + 1);
    return json.slice(0, place) + inserted + json.slice(place);
  }),
);

const contract = fc.constantFrom(null, '/v1/chat/completions');
const leaseBytesMax = fc.constantFrom(3_000, Number.POSITIVE_INFINITY);
/** Four bytes are compared at a time if the first of them is aligned. */
const aligned = (json: string, lead: number): Buffer =>
  Buffer.concat([Buffer.alloc(8_192 + lead), Buffer.from(json)]).subarray(8_192 + lead);

test('in one pass, a body has the findings and errors of a parse, a measurement and a scan for its members', () => {
  fc.assert(
    fc.property(text, contract, leaseBytesMax, fc.nat(4), (json, checks, bytesMax, lead) => {
      const bytes = aligned(json, lead);
      const task = { contract: checks, usedBytes: 100, leaseBytesMax: bytesMax };
      const limits = { ...defaultJsonBodyLimits, depthMax: 5, membersMax: 40 };
      const found = resultOf(() => checkLargeBody(bytes, { ...task, limits }));
      expect(found).toEqual(resultOf(() => checkInFull(bytes, { ...task, limits })));
      const quickly = resultOf(() => checkLargeBody(bytes, { ...task, limits: { ...limits, quickWorkMax: 40 } }));
      expect(quickly).toEqual(measureJson(bytes, { ...limits, workMax: 40 }).excess === 'work' ? null : found);
    }),
    { numRuns: 2_000 },
  );
});

test('a body that is not UTF-8 is refused, also inside a long string', () => {
  const bytes = Buffer.concat([Buffer.from(`{"a":"${'x'.repeat(500)}`), Buffer.from([0xc3]), Buffer.from('"}')]);
  const task = { contract: null, usedBytes: 0, leaseBytesMax: 1_000_000, limits: defaultJsonBodyLimits };
  expect(() => checkLargeBody(bytes, task)).toThrow('not valid UTF-8');
});

test('a name that is as long as a replaced string can be repeated only in another object', () => {
  const [key, other] = ['k'.repeat(1_000), `${'k'.repeat(999)}l`];
  const check = (json: string): unknown =>
    checkLargeBody(Buffer.from(json), {
      contract: null,
      usedBytes: 0,
      leaseBytesMax: 1_000_000,
      limits: defaultJsonBodyLimits,
    });
  expect(check(`{"${key}":"${key}","${other}":{"${key}":"${key}"}}`)).toMatchObject({ members: { length: 2 } });
  expect(() => check(`{"${key}":1,"x":2,"${key}":3}`)).toThrow('appears twice');
});

/** The schemas of strings in a JSON Schema that limit more than the type. */
function limitedStrings(node: unknown): Record<string, unknown>[] {
  if (typeof node !== 'object' || node === null) return [];
  const own = node as Record<string, unknown>;
  const isLimited = own['type'] === 'string' && Object.keys(own).some((name) => limits.has(name));
  return [...(isLimited ? [own] : []), ...Object.values(own).flatMap(limitedStrings)];
}
const limits: ReadonlySet<string> = new Set(['minLength', 'maxLength', 'pattern', 'format', 'contentEncoding']);

test('a contract that limits a string refuses placeholders, so that the whole body is checked', () => {
  const contracts = [ChatCompletionRequest, CompletionRequest, EmbeddingRequest].map(toJsonSchema);
  const limited = contracts
    .flatMap(limitedStrings)
    .filter(
      ({ minLength, ...more }) => minLength !== 1 || more['maxLength'] !== undefined || more['pattern'] !== undefined,
    );
  expect(limited.length).toBeGreaterThan(0);
  for (const { minLength, maxLength } of limited) {
    expect(maxLength).toBeLessThan(placeholder.length);
    expect(minLength ?? 0).toBeLessThanOrEqual(1);
  }
});
