import { runInNewContext } from 'node:vm';
/* oxlint-disable unicorn/no-thenable -- the member's name is the interface's */
import fc from 'fast-check';
import { RE2JS } from 're2js';
import { compileConfig } from '#libs/calls/plan/compile-config.ts';
import { compileQuery } from '#libs/calls/plan/compile-query.ts';
import { editParams } from '#libs/calls/plan/edit-params.ts';
import type { PlanCall } from '#libs/calls/plan/plan.ts';
import { compilePattern } from '#libs/calls/protect/guardrails/checks/text-checks.ts';
import { openSseFraming } from '#libs/calls/upstream/answers/streams/sse-framing.ts';
import { ConfigInput } from '#libs/contracts/configs/config.ts';
import { QueryInput } from '#libs/contracts/configs/config-query.ts';
import { tryParse } from '#libs/contracts/parse.ts';
import { patternSize } from '#libs/contracts/pattern-size.ts';
import { createFormScan } from '#libs/http/bodies/form-scan.ts';
import { jsonErrorOffset } from '#libs/http/bodies/json-error-offset.ts';
import { countMembers, findDuplicateMember } from '#libs/kernel/json/duplicate-members.ts';
import { GatewayError } from '#libs/kernel/errors.ts';
import { scanElements, scanMembers, spliceMembers, type MemberEdits } from '#libs/kernel/json/json-members.ts';
import { measureJson } from '#libs/kernel/json/measure-json.ts';
import { cut, mutated } from './mutate.ts';

/** A parser of untrusted input, with what has to hold for any input. */
export type FuzzTarget = { name: string; property: fc.IRawProperty<unknown> };

const places = fc.array(fc.nat(4_000), { maxLength: 8 });

/** Throws unless the values are equal. Much faster than `expect`, which matters at thousands of runs a second. */
function same(found: unknown, wanted: unknown, what: string): void {
  const [left, right] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (left !== right) throw new Error(`${what}: ${left}, but expected ${right}`);
}

const byName = (members: Iterable<readonly [string, unknown]>): (readonly [string, unknown])[] =>
  [...members].toSorted(([a], [b]) => (a < b ? -1 : 1));

function attempt<Value>(run: () => Value): Value | Error {
  try {
    return run();
  } catch (error) {
    return error as Error;
  }
}

// --- JSON -----------------------------------------------------------------------------------------------------------

const jsonWords = [
  '"',
  '\\',
  '\\"',
  '\\u00',
  '\\ud800',
  '{',
  '}',
  '[',
  ']',
  ',',
  ':',
  '{"a":',
  '[1,',
  'null',
  '-',
  '1e5',
  ' ',
  '\n',
  '\u0000',
  'é',
  '😀',
];
const jsonText = fc
  .tuple(fc.jsonValue({ maxDepth: 5 }), fc.constantFrom(undefined, 1))
  .map(([value, indent]) => JSON.stringify(value, null, indent));
const objectText = fc
  .dictionary(fc.constantFrom('model', 'a', 'b', '', '__proto__', 'é', 'tab\t'), fc.jsonValue({ maxDepth: 3 }), {
    maxKeys: 6,
  })
  .map((value) => JSON.stringify(value));

/** Parses bytes that are JSON in UTF-8. Throws for others. */
type ParseJson = (bytes: Buffer) => unknown;

const toParser =
  (parse: (text: string) => unknown): ParseJson =>
  (bytes) =>
    parse(new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes));

/**
 * Judges an input, and once more with another parser if something is wrong: after an object with the name `x\\`, V8 13
 * and 14 read the name `x\t` of a similar object as `x\\`. A new realm has seen no other object.
 */
const judged =
  <Input>(judge: (input: Input, parseJson: ParseJson) => void) =>
  (input: Input): void => {
    try {
      judge(input, toParser(JSON.parse));
    } catch {
      const parse = runInNewContext('JSON.parse') as typeof JSON.parse;
      const parseAnew = (text: string): unknown => {
        const value = attempt((): unknown => parse(text));
        // Errors of the other realm are not instances of this one's class.
        if (Object.prototype.toString.call(value) === '[object Error]') throw new SyntaxError(String(value));
        return value;
      };
      judge(input, toParser(parseAnew));
    }
  };

function scannersAgree(bytes: Buffer, parseJson: ParseJson): void {
  const parsed = attempt(() => parseJson(bytes));
  const offset = jsonErrorOffset(bytes);
  if (offset < 0 || offset > bytes.length) throw new Error(`the error is at ${offset} of ${bytes.length} bytes`);
  const measure = measureJson(bytes, { depthMax: 1_000, membersMax: 1_000_000 });
  for (const [name, figure] of Object.entries(measure)) {
    if (typeof figure === 'number' && name !== 'depth' && !(figure >= 0)) throw new Error(`${name} is ${figure}`);
  }
  const members = attempt(() => scanMembers(bytes));
  if (members instanceof Error && !(members instanceof GatewayError)) throw members;
  if (parsed instanceof Error) return;
  if (offset !== bytes.length) throw new Error(`valid JSON has an error at ${offset}`);
  const isObject = typeof parsed === 'object' && parsed !== null && !Array.isArray(parsed);
  if (isObject === members instanceof Error)
    throw new Error('the member scan and the parser differ on whether it is an object');
  const duplicate = findDuplicateMember(bytes);
  same(duplicate !== null, measure.members !== countMembers(parsed), 'a duplicate member');
  if (!(members instanceof Error)) {
    const found = new Map(
      members.map(({ name, valueStart, valueEnd }) => [name, parseJson(bytes.subarray(valueStart, valueEnd))]),
    );
    same(byName(found), byName(Object.entries(parsed as object)), 'members');
  }
  if (Array.isArray(parsed)) same([...scanElements(bytes)].map(parseJson), parsed, 'elements');
}

function splicesAsParsed({ bytes, edits }: { bytes: Buffer; edits: MemberEdits }, parseJson: ParseJson): void {
  const parsed = attempt(() => parseJson(bytes));
  if (parsed instanceof Error || typeof parsed !== 'object' || parsed === null || Array.isArray(parsed)) return;
  const spliced = spliceMembers(bytes, edits);
  const wanted = new Map(Object.entries(parsed));
  for (const [name, raw] of Object.entries(edits)) {
    if (raw === undefined) wanted.delete(name);
    else wanted.set(name, JSON.parse(raw));
  }
  same(byName(Object.entries(parseJson(spliced) as object)), byName(wanted), 'the edited object');
  const untouched = (from: Buffer): string[] =>
    scanMembers(from).flatMap(({ name, nameStart, valueEnd }) =>
      name in edits ? [] : [from.toString('hex', nameStart, valueEnd)],
    );
  same(untouched(spliced), untouched(bytes), 'the bytes of members that are not edited');
}

const edits: fc.Arbitrary<MemberEdits> = fc.dictionary(
  fc.constantFrom('model', 'a', 'new', 'é'),
  fc.option(
    fc.jsonValue({ maxDepth: 2 }).map((value) => JSON.stringify(value)),
    { nil: undefined },
  ),
  { maxKeys: 3 },
);

// --- Forms and event streams ----------------------------------------------------------------------------------------

const part = (disposition: string, content: string): string =>
  `--X\r\nContent-Disposition: form-data; ${disposition}\r\n\r\n${content}\r\n`;
const formText = fc
  .array(
    fc.constantFrom(part('name="model"', '@a/b'), part('name="file"; filename="a"', 'x\r\n--Xy'), part('name=n', '')),
    { maxLength: 4 },
  )
  .map((parts) => `${parts.join('')}--X--\r\n`);
const formWords = [
  '\r\n',
  '--X',
  '--X--',
  '\r\n--X',
  '\r\n\r\n',
  'name="model"',
  '; filename=',
  'content-disposition:',
  '"',
  ';',
];

function readsFormInPieces({ bytes, at, stopsAtFile }: { bytes: Buffer; at: number[]; stopsAtFile: boolean }): void {
  const scan = (pieces: readonly Buffer[]) => {
    const scanning = createFormScan('X', stopsAtFile);
    pieces.some((piece) => scanning.push(piece));
    return scanning.found();
  };
  const whole = scan([bytes]);
  same(scan(cut(bytes, at)), whole, 'the model of a form in pieces');
  if (whole !== null) same(bytes.toString('utf8', whole.start, whole.end), whole.text, 'the bytes of the model');
}

const eventText = fc
  .array(
    fc.constantFrom(
      'data: {"a":1}\n\n',
      'event: error\ndata: x\n\n',
      ': ping\n\n',
      'data: a\r\ndata: b\r\n\r\n',
      'data:é😀\r\r',
      'id: 1\n\n',
      'data: [DONE]\n\n',
    ),
    { maxLength: 6 },
  )
  .map((events) => events.join(''));
const eventWords = ['\n', '\r', '\r\n', '\n\n', 'data:', 'data', 'event:', ': ', '\u0000', '\ufeff', 'é', '😀'];
const eventCharsMax = 40;

function readsEventsInPieces({ bytes, at }: { bytes: Buffer; at: number[] }): void {
  const read = (pieces: readonly Buffer[]) => {
    const events: string[] = [];
    const framing = openSseFraming({
      onEvent: ({ event, data }) => events.push(`${event ?? ''}|${data}`),
      onComment: () => {},
      eventCharsMax,
      tooLarge: () => new GatewayError('provider_failed', 'too_large', 'An event is too large.'),
    });
    const failure = attempt(() => {
      for (const piece of pieces) framing.push(piece);
      framing.end();
    });
    if (failure instanceof Error && !(failure instanceof GatewayError || failure instanceof TypeError)) throw failure;
    return { events, failed: failure instanceof Error };
  };
  const whole = read([bytes]);
  const pieces = read(cut(bytes, at));
  // A limit counts what is buffered, so one large piece may pass where two smaller ones do not. Events never differ.
  const shared = Math.min(whole.events.length, pieces.events.length);
  same(pieces.events.slice(0, shared), whole.events.slice(0, shared), 'the events of a stream in pieces');
  if (!whole.failed && !pieces.failed) same(pieces.events, whole.events, 'the events of a stream in pieces');
}

// --- The languages of configs ---------------------------------------------------------------------------------------

/** Mostly what a language accepts, and now and then something that it has to refuse. */
const mostly = <Value>(valid: fc.Arbitrary<Value>, invalid: fc.Arbitrary<unknown>): fc.Arbitrary<unknown> =>
  fc.oneof({ weight: 40, arbitrary: valid }, { weight: 1, arbitrary: invalid });
const scalar = fc.oneof(
  fc.constantFrom('pro', '', '5', 'a.b', '__proto__', 'm', 'user'),
  fc.integer(),
  fc.double(),
  fc.boolean(),
  fc.constant(null),
);
const pattern = fc
  .array(
    fc.constantFrom(
      'a',
      'ab',
      '-',
      '\\.',
      '\\d',
      '\\pL',
      '[ab]',
      '[^a]',
      '[]a]',
      '[[:alpha:]]',
      '(',
      '(?:',
      '(?i)',
      ')',
      '|',
      '?',
      '*',
      '+',
      '{2}',
      '{0,3}',
      '{',
      '}',
      '.',
      '^',
      '$',
      '\\b',
      '\\Q',
      '\\E',
      '\\',
    ),
    { maxLength: 9 },
  )
  .map((pieces) => pieces.join(''));
const validPattern = pattern.filter((rule) => !(attempt(() => RE2JS.compile(rule)) instanceof Error));
const operand = fc.oneof(scalar, pattern, fc.array(scalar, { maxLength: 3 }), fc.constant({}));
const operators = fc.oneof(
  fc.record({ $eq: mostly(scalar, operand), $ne: mostly(scalar, operand) }, { requiredKeys: ['$eq'] }),
  fc.record({ $gt: mostly(fc.oneof(fc.double(), fc.string()), operand) }),
  fc.record({ $lte: mostly(fc.oneof(fc.integer(), fc.constantFrom('5', 'm')), operand) }),
  fc.record({ $in: mostly(fc.array(scalar, { minLength: 1, maxLength: 3 }), operand) }),
  fc.record({ $nin: mostly(fc.array(scalar, { minLength: 1, maxLength: 3 }), operand) }),
  fc.record({ $regex: mostly(validPattern, pattern) }),
);
const field = mostly(
  fc.constantFrom(
    'metadata.plan',
    'metadata.n',
    'params.model',
    'params.messages[0].role',
    'params.messages[*].x',
    'params.__proto__',
    'url.pathname',
  ),
  fc.constantFrom('metadata.', 'params.[', '$not', 'x', ''),
) as fc.Arbitrary<string>;
const condition = fc
  .tuple(field, mostly(fc.oneof(scalar, operators), operand), mostly(fc.constant({}), fc.constant({ $where: 1 })))
  .map(([name, wanted, more]) => ({ [name]: wanted, ...(more as object) }));
const { query } = fc.letrec<{ query: object }>((tie) => ({
  query: fc.oneof(
    { maxDepth: 3, withCrossShrink: true },
    condition,
    fc.tuple(condition, condition).map(([left, right]) => ({ ...left, ...right })),
    fc.array(tie('query'), { minLength: 1, maxLength: 3 }).map((parts) => ({ $and: parts })),
    fc.array(tie('query'), { minLength: 1, maxLength: 3 }).map((parts) => ({ $or: parts })),
  ),
}));
const calls: readonly PlanCall[] = [
  {
    pathname: '/v1/chat/completions',
    metadata: { plan: 'pro', n: '5' },
    params: { model: 'm', messages: [{ role: 'user' }] },
  },
  { pathname: '/v1/embeddings', metadata: null, params: {} },
];

const search = (rule: string, text: string): boolean => RE2JS.compile(rule).test(text);

function evaluatesQuery(value: object): void {
  const result = tryParse(QueryInput, value);
  if (!result.ok) return requireProblem(result.problem);
  const matches = compileQuery(result.value);
  for (const call of calls) {
    if (typeof matches(call, search) !== 'boolean') throw new Error('a query did not answer with yes or no');
  }
  // De Morgan's law over the language: a query and its only operand are the same question.
  for (const call of calls) {
    same(compileQuery({ $and: [result.value] })(call, search), matches(call, search), '$and of one');
    same(compileQuery({ $or: [result.value] })(call, search), matches(call, search), '$or of one');
  }
}

function requireProblem({ message, code }: { message: string; code: string | null }): void {
  if (message.length < 10 || message.length > 5_000 || code === null) throw new Error(`an unusable error: ${message}`);
}

const params = fc.dictionary(
  fc.constantFrom('model', 'max_tokens', 'metadata', '__proto__', 'n', 'messages'),
  fc.jsonValue({ maxDepth: 2 }),
  { maxKeys: 2 },
);
const shared = {
  retry: mostly(fc.record({ attempts: fc.integer({ min: 0, max: 5 }) }), fc.record({ attempts: fc.double() })),
  cache: fc.constantFrom('simple', null, { mode: 'simple', max_age: 60 }),
  override_params: params,
  default_params: params,
  drop_params: mostly(
    fc.array(fc.constantFrom('user', 'messages[*].name', 'messages[0]', 'metadata.a'), { maxLength: 3 }),
    fc.array(fc.constantFrom('a..b', '[', '__proto__'), { maxLength: 2 }),
  ),
  request_timeout: mostly(fc.integer({ min: 1, max: 60_000 }), fc.integer()),
};
const names = ['first', 'second', 'third'];
const { config } = fc.letrec<{ config: object }>((tie) => {
  const targets = fc
    .array(fc.tuple(tie('config'), fc.double({ min: 0, max: 2, noNaN: true })), { minLength: 1, maxLength: 3 })
    .map((nodes) => nodes.map(([node, weight], index) => ({ ...node, name: names[index], weight })));
  const strategy = fc.oneof(
    fc.record({ mode: mostly(fc.constantFrom('fallback', 'loadbalance'), fc.constantFrom('none', 'conditional', 5)) }),
    fc.record({
      mode: fc.constant('fallback'),
      on_status_codes: mostly(
        fc.array(fc.integer({ min: 400, max: 599 }), { minLength: 1, maxLength: 2 }),
        fc.array(fc.integer()),
      ),
    }),
    fc.record({
      mode: fc.constant('conditional'),
      conditions: fc.array(fc.record({ query, then: mostly(fc.constant('first'), fc.constantFrom(...names)) }), {
        minLength: 1,
        maxLength: 2,
      }),
      default: fc.constant('first'),
    }),
  );
  return {
    config: fc.oneof(
      { maxDepth: 3, withCrossShrink: true },
      fc.record(
        { virtual_key: mostly(fc.constant('a'), fc.constantFrom('', 5)), ...shared },
        { requiredKeys: ['virtual_key'] },
      ),
      fc.record(
        { provider: mostly(fc.constant('@a'), fc.constantFrom('@', 'nobody')), ...shared },
        { requiredKeys: ['provider'] },
      ),
      fc.record({ targets, strategy, ...shared }, { requiredKeys: ['targets', 'strategy'] }),
    ),
  };
});

function compilesWhatItAccepts(value: object): void {
  const result = tryParse(ConfigInput, value, 'config');
  if (!result.ok) return requireProblem(result.problem);
  const { leaves } = compileConfig(result.value);
  const body = { model: 'm', messages: [{ role: 'user', name: 'n' }] };
  for (const leaf of leaves) JSON.parse(JSON.stringify(editParams(leaf, body)));
}

function findsWhatRe2Finds({ rule, texts }: { rule: string; texts: string[] }): void {
  const size = patternSize(rule);
  if (!(size >= 0)) throw new Error(`the size of the expression is ${size}`);
  const regex = attempt(() => RE2JS.compile(rule));
  const found = attempt(() => compilePattern(rule));
  same(found instanceof Error, regex instanceof Error, 'whether the expression is valid');
  if (found instanceof Error || regex instanceof Error) {
    if (!(found instanceof GatewayError)) throw found;
    return;
  }
  for (const text of texts) same(found(text), regex.test(text), `a match in ${JSON.stringify(text)}`);
  if (size * 2 + 20 < regex.programSize()) throw new Error(`its size is ${regex.programSize()}, estimated as ${size}`);
}

const over = <Value>(arbitrary: fc.Arbitrary<Value>, holds: (value: Value) => void): FuzzTarget['property'] =>
  fc.property(arbitrary, holds);

/** Everything that `npm run test:fuzz` runs. */
export const fuzzTargets: readonly FuzzTarget[] = [
  { name: 'json', property: over(mutated(fc.oneof(jsonText, objectText), jsonWords), judged(scannersAgree)) },
  {
    name: 'splice',
    property: over(fc.record({ bytes: mutated(objectText, jsonWords), edits }), judged(splicesAsParsed)),
  },
  {
    name: 'form',
    property: over(
      fc.record({ bytes: mutated(formText, formWords), at: places, stopsAtFile: fc.boolean() }),
      readsFormInPieces,
    ),
  },
  {
    name: 'sse',
    property: over(fc.record({ bytes: mutated(eventText, eventWords), at: places }), readsEventsInPieces),
  },
  { name: 'query', property: over(query, evaluatesQuery) },
  { name: 'config', property: over(config, compilesWhatItAccepts) },
  {
    name: 'pattern',
    property: over(
      fc.record({
        rule: pattern,
        texts: fc.array(fc.string({ unit: fc.constantFrom('a', 'b', 'A', '-', '.', '1', '{', '}'), maxLength: 6 }), {
          maxLength: 4,
        }),
      }),
      findsWhatRe2Finds,
    ),
  },
];
