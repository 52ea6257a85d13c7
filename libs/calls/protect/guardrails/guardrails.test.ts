import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest';
import { GuardrailList } from '#libs/contracts/configs/guardrails.ts';
import { createEgress, type Egress } from '#libs/calls/upstream/egress/egress.ts';
import { parseEgressAllow } from '#libs/calls/upstream/egress/egress-allow.ts';
import type { Operation } from '#libs/providers/provider.ts';
import { createLogger } from '#libs/kernel/logging/logger.ts';
import { createNameLookup } from '#libs/calls/upstream/egress/name-lookup.ts';
import { startNameServer } from '#test/name-server.ts';
import { hang, startUpstream, type Upstream } from '#test/upstream.ts';
import { createGuardrails, prepareGuardrails, type Guardrails } from './guardrails.ts';
import type { GuardrailSubject } from './texts/subject.ts';
import { createAnswerTexts } from './texts/answer-texts.ts';
import { outputTexts } from './texts/call-texts.ts';
import { createTextChecker } from './text-checker.ts';

const logger = createLogger({ name: 'test', level: 'silent' });
let upstream: Upstream;
let egress: Egress;
let guardrails: Guardrails;
const textChecker = createTextChecker({ threads: 1 });
const answerTexts = createAnswerTexts({ threads: 1 });
afterAll(() => Promise.all([textChecker.stop(), answerTexts.stop()]));

beforeEach(async () => {
  upstream = await startUpstream((reply) => reply.json(200, { verdict: true }));
  egress = createEgress({ allow: parseEgressAllow(`127.0.0.1:${upstream.port}`), connectTimeoutMs: 1_000 });
  guardrails = createGuardrails({
    egress,
    clock: { now: () => 0 },
    logger,
    textChecker,
    answerTexts,
  });
});
afterEach(async () => {
  await egress.stop();
  await upstream.stop();
});

const subject = (text: string, more: Partial<GuardrailSubject> = {}): GuardrailSubject => ({
  workspaceId: 'ws_test',
  traceId: null,
  operation: 'chat',
  model: 'gpt-test',
  provider: 'openai',
  metadata: { team: 'a' },
  headers: {},
  stream: false,
  request: { messages: [{ role: 'user', content: text }] },
  response: null,
  sizeBytes: text.length,
  signal: new AbortController().signal,
  ...more,
});

const responseOf = (body: object, operation: Operation = 'chat'): GuardrailSubject['response'] => ({
  status: 200,
  body: Buffer.from(JSON.stringify(body)),
  texts: outputTexts(operation, body as Record<string, unknown>),
});

const answered = (...contents: string[]): Partial<GuardrailSubject> => ({
  response: responseOf({ choices: contents.map((content) => ({ message: { role: 'assistant', content } })) }),
});

/** Returns the verdict of one check on a subject. */
async function verdictOf(check: object, on: GuardrailSubject): Promise<boolean | undefined> {
  const { results } = await guardrails.evaluate(GuardrailList.parse([check]), on);
  return results[0]?.verdict;
}

describe('local checks', () => {
  test.each([
    [{ regexMatch: { rule: '^\\d{3}$' } }, '123', '1234'],
    [{ regexMatch: { rule: 'secret', not: true } }, 'open', 'a secret'],
    [{ contains: { words: ['x', 'y'] } }, 'only y', 'neither'.replace('y', '')],
    [{ contains: { words: ['x', 'y'], operator: 'all' } }, 'y and x', 'x alone'],
    [{ contains: { words: ['Apple'], operator: 'none' } }, 'pears', 'an Apple'],
    [{ contains: { words: ['Apple'], not: true } }, 'pears', 'an Apple'],
    [{ wordCount: { minWords: 2, maxWords: 3 } }, ' two  words\n', 'one'],
    [{ wordCount: { max: 2, not: true } }, 'one two three', 'one two'],
    [{ sentenceCount: { minSentences: 2, maxSentences: 2 } }, 'Pi is 3.14. Really?!', 'One. Two. Three'],
    [{ characterCount: { maxCharacters: 3 } }, 'é😀x', 'four'],
    [{ jsonKeys: { keys: ['a', 'b.c'], operator: 'all' } }, '{"a":1,"b":{"c":2}}', '{"a":1,"b":{}}'],
    [{ jsonKeys: { keys: ['a'], operator: 'none' } }, '{"b":1}', '{"a":1}'],
    [{ jsonSchema: { schema: { type: 'object', required: ['a'] } } }, '```json\n{"a":1}\n```', '{"b":1}'],
    [{ jsonSchema: { schema: { type: 'object' }, not: true } }, 'no JSON at all', 'Here: {"a":1}.'],
    [{ validUrls: {} }, 'see https://example.com/a?b=c. and http://8.8.8.8', 'see https://localhost/ or http://a..b'],
    [{ validUrls: { not: true } }, 'http://nodot', 'https://example.com'],
    [{ containsCode: { format: 'SQL' } }, 'so:\n```postgresql\nselect 1\n```', '```python\nselect\n```\nSQL'],
    [{ containsCode: { format: 'C#' } }, '~~~ C# {.x}\nvar a;', '```\n```csharp\n```'],
    [{ containsCode: { format: 'js', not: true } }, '``js``', 'x\n  ```JavaScript title\n'],
    [{ endsWith: { suffix: 'Over' } }, 'Roger. Over.', 'Over and out'],
    [{ endsWith: { suffix: '?', not: true } }, 'No? No.', 'No?'],
    [{ isAllLowerCase: {} }, 'straße, 1', 'Ä'],
    [{ alluppercase: {} }, 'ÄH 1', 'Äh'],
    [{ alluppercase: { not: true } }, 'ÄH, so', 'OH'],
    [{ checks: [{ id: 'default.isAllLowerCase' }] }, 'a', 'A'],
  ])('%j passes %j and fails %j', async (check, good, bad) => {
    expect(await verdictOf(check, subject(good))).toBe(true);
    expect(await verdictOf(check, subject(bad))).toBe(false);
  });

  test('models, metadata and request types are judged on the call itself', async () => {
    const on = subject('x');
    expect(await verdictOf({ modelWhitelist: { models: ['gpt-test'] } }, on)).toBe(true);
    expect(await verdictOf({ modelWhitelist: { models: ['other'] } }, on)).toBe(false);
    expect(await verdictOf({ modelWhitelist: { models: ['gpt-test'], not: true } }, on)).toBe(false);
    const named = { ...on, publicModel: 'cheap' };
    expect(await verdictOf({ modelWhitelist: { models: ['cheap'] } }, named)).toBe(true);
    expect(await verdictOf({ modelWhitelist: { models: ['cheap'], not: true } }, named)).toBe(false);
    expect(await verdictOf({ modelWhitelist: { models: ['gpt-test'], not: true } }, named)).toBe(false);
    expect(await verdictOf({ requiredMetadataKeys: { metadataKeys: ['team'] } }, on)).toBe(true);
    expect(await verdictOf({ requiredMetadataKeys: { metadataKeys: ['team', 'toString'] } }, on)).toBe(false);
    expect(await verdictOf({ allowedRequestTypes: { allowedTypes: ['chatComplete'] } }, on)).toBe(true);
    expect(await verdictOf({ allowedRequestTypes: { allowedTypes: ['embed'] } }, on)).toBe(false);
    expect(await verdictOf({ allowedRequestTypes: { blockedTypes: ['chat'] } }, on)).toBe(false);
  });

  const noApples = { contains: { words: ['Apple'], operator: 'none' } };
  test('keywords of JSON Schema do not count as words of the caller', async () => {
    const words = [
      'function',
      'object',
      'user',
      'properties',
      'type',
      'description',
      'string',
      'json_schema',
      'strict',
    ];
    const check = { contains: { words, operator: 'none' } };
    const definition = {
      name: 'f',
      strict: true,
      parameters: { type: 'object', properties: { a: { type: ['string', 'null'], description: '' } } },
    };
    const format = { type: 'json_schema', json_schema: { name: 'x', strict: true, schema: { type: 'object' } } };
    const tools = [{ type: 'function', function: definition }];
    const request = { messages: [{ role: 'user', content: 'go on' }], tools, response_format: format };
    expect(await verdictOf(check, subject('', { request }))).toBe(true);
  });

  test('forbidden words are found in the arguments of the calls of an answer', async () => {
    const chat = (message: object) => ({ response: responseOf({ choices: [{ message }] }) });
    const calls = { content: null, tool_calls: [{ function: { name: 'f', arguments: '{"a":"Apple"}' } }] };
    expect(await verdictOf(noApples, subject('', chat(calls)))).toBe(false);
    expect(await verdictOf(noApples, subject('', chat({ content: 'pear' })))).toBe(true);
    const responses = (...output: object[]) => ({
      operation: 'responses' as const,
      response: responseOf({ output }, 'responses'),
    });
    const said = { type: 'message', content: [{ type: 'output_text', text: 'Apple' }] };
    expect(await verdictOf(noApples, subject('', responses(said)))).toBe(false);
    expect(await verdictOf(noApples, subject('', responses({ type: 'function_call', arguments: 'Apple' })))).toBe(
      false,
    );
    expect(await verdictOf(noApples, subject('', responses({ type: 'reasoning', summary: [] })))).toBe(true);
    expect(
      await verdictOf({ jsonKeys: { keys: ['a'] } }, subject('', responses({ ...said, content: '{"a":1}' }))),
    ).toBe(true);
  });

  test('only the last message is counted', async () => {
    const request = {
      messages: [
        { role: 'user', content: 'many many words' },
        { role: 'user', content: 'one' },
      ],
    };
    expect(await verdictOf({ wordCount: { max: 1 } }, subject('', { request }))).toBe(true);
  });

  test('an output passes when each of its choices does', async () => {
    const check = { contains: { words: ['ok'] } };
    expect(await verdictOf(check, subject('', answered('ok', 'also ok')))).toBe(true);
    expect(await verdictOf(check, subject('', answered('ok', 'no')))).toBe(false);
  });

  test('an image fails a check of texts, and passes where the guardrail allows media', async () => {
    const ask = (text: string) => {
      const content = [
        { type: 'text', text },
        { type: 'image_url', image_url: { url: 'https://example.com/a.png' } },
      ];
      return subject('', { request: { messages: [{ role: 'user', content }] } });
    };
    const { results } = await guardrails.evaluate(GuardrailList.parse([noApples]), ask('pear'));
    expect(results[0]?.checks[0]).toMatchObject({
      verdict: false,
      data: { explanation: expect.stringMatching(/image_url.*allow_media/) as string },
    });
    const allowing = { ...noApples, allow_media: true };
    expect(await verdictOf(allowing, ask('pear'))).toBe(true);
    expect(await verdictOf(allowing, ask('Apple'))).toBe(false);
  });

  test('token ids cannot be read and do not pass; embeddings have no text and pass', async () => {
    const check = { contains: { words: ['x'], operator: 'none' } };
    const ids = subject('', { operation: 'completions', request: { prompt: [[1, 2]] } });
    expect(await verdictOf(check, ids)).toBe(false);
    expect(await verdictOf({ ...check, allow_media: true }, ids)).toBe(false);
    const embedding = { operation: 'embeddings' as const, response: responseOf({ data: [] }, 'embeddings') };
    expect(await verdictOf(check, subject('', embedding))).toBe(true);
  });
});

describe('what a tenant may write', () => {
  const prepare = (check: object) => () => prepareGuardrails(egress, GuardrailList.parse([check]));

  test.each([
    [{ regexMatch: { rule: '(?=x)' } }, /RE2/],
    [{ regexMatch: { rule: '(a)\\1' } }, /RE2/],
    [{ jsonSchema: { schema: { $ref: 'http://169.254.169.254/x' } } }, /another document/],
    [{ jsonSchema: { schema: { properties: { a: { pattern: '(a+)+$' } } } } }, /regexMatch/],
    [{ webhook: { webhookURL: 'http://169.254.169.254/' } }, /not allowed/],
    [{ webhook: { webhookURL: 'http://10.0.0.1/x' } }, /not allowed/],
    [{ webhook: { webhookURL: 'https://example.com', headers: { Host: 'x' } } }, /header 'Host'/],
    [{ jwt: { jwksUri: 'https://example.com', audience: 'sluice' } }, /needs 'issuer'/],
    [{ jwt: { jwksUri: 'https://example.com', issuer: 'https://idp' } }, /needs 'audience'/],
  ])('%j is refused', (check, message) => {
    expect(prepare(check)).toThrow(
      expect.objectContaining({ kind: 'invalid_request', message: expect.stringMatching(message) as string }),
    );
  });

  test('a schema that nests too deeply or is too large is refused', () => {
    let deep: object = {};
    for (let depth = 0; depth < 40; depth += 1) deep = { items: deep };
    expect(prepare({ jsonSchema: { schema: deep } })).toThrow(/is nested more than/);
    const large = { properties: { a: { const: 'x'.repeat(70_000) } } };
    expect(prepare({ jsonSchema: { schema: large } })).toThrow(/larger than/);
  });

  test('properties may be named like keywords', () => {
    expect(prepare({ jsonSchema: { schema: { properties: { pattern: { type: 'string' } } } } })).not.toThrow();
  });

  test('an expression that backtracks exponentially elsewhere is checked quickly, even on a long text', async () => {
    const text = `${'a'.repeat(100_000)}!`;
    expect(await verdictOf({ regexMatch: { rule: '^(a+)+$' } }, subject(text))).toBe(false);
    expect(await verdictOf({ regexMatch: { rule: '^(a|a)*!$' } }, subject(text))).toBe(true);
  });

  test('a schema that would take very long is stopped, and does not pass', async () => {
    const $defs: Record<string, object> = { d0: { type: 'object' } };
    for (let n = 1; n < 40; n += 1)
      $defs[`d${n}`] = { allOf: [{ $ref: `#/$defs/d${n - 1}` }, { $ref: `#/$defs/d${n - 1}` }] };
    const check = { jsonSchema: { schema: { $defs, $ref: '#/$defs/d39' } } };
    const { results } = await guardrails.evaluate(GuardrailList.parse([check]), subject('{}'));
    expect(results[0]).toMatchObject({ verdict: false, checks: [{ data: { code: 'guardrail_timeout' } }] });
  });
});

describe('what would take too long', () => {
  test('a format with exponential backtracking is stopped, and does not pass', async () => {
    const check = { jsonSchema: { schema: { properties: { link: { format: 'url' } } } } };
    const text = JSON.stringify({ link: `http://${'a'.repeat(200)}!` });
    const { results } = await guardrails.evaluate(GuardrailList.parse([check]), subject(text));
    expect(results[0]).toMatchObject({ verdict: false, checks: [{ data: { code: 'guardrail_timeout' } }] });
    expect(await verdictOf(check, subject('{"link":"http://example.com"}'))).toBe(true);
  });

  const slow = { regexMatch: { rule: 'a[ab]{900}\\d', not: true } };
  // No part of it is repeated, so that the engine cannot reuse what it remembers of another part.
  let seed = 1;
  const long = Array.from({ length: 1_000_000 }, () => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed > 1_073_741_824 ? 'a' : 'b';
  }).join('');

  test('an expression that repeats a thousand times over a long text is stopped, and does not pass', async () => {
    const { results } = await guardrails.evaluate(GuardrailList.parse([slow]), subject(long));
    expect(results[0]).toMatchObject({
      verdict: false,
      checks: [{ data: { code: 'guardrail_timeout', explanation: expect.stringContaining('did not finish within') } }],
    });
    expect(await verdictOf(slow, subject('short'))).toBe(true);
  });

  test('all checks of a call share one time limit; the next call has its own', async () => {
    const list = GuardrailList.parse(
      [...Array.from({ length: 20 }, () => slow), { contains: { words: ['a'] } }].slice(-20),
    );
    const { results } = await guardrails.evaluate(list, subject(long));
    expect(results.at(-1)).toMatchObject({
      verdict: false,
      checks: [{ data: { code: 'guardrail_timeout', explanation: expect.stringContaining('did not finish within') } }],
    });
    expect(await verdictOf({ contains: { words: ['a'] } }, subject(long))).toBe(true);
  });

  test('a call is checked while the expression of another one is still running', async () => {
    const order: string[] = [];
    const judge = async (name: string, check: object, text: string): Promise<void> => {
      await guardrails.evaluate(GuardrailList.parse([check]), subject(text));
      order.push(name);
    };
    await Promise.all([judge('slow', slow, long), judge('quick', { contains: { words: ['a'] } }, 'a')]);
    expect(order).toEqual(['quick', 'slow']);
  });

  test('an answer that nests deeper than the stack allows fails its schema and nothing else', async () => {
    const check = {
      jsonSchema: { schema: { $defs: { list: { items: { $ref: '#/$defs/list' } } }, $ref: '#/$defs/list' } },
    };
    const deep = '['.repeat(100_000) + ']'.repeat(100_000);
    expect(await verdictOf(check, subject('x', answered(deep)))).toBe(false);
  });
});

describe('webhooks', () => {
  const hook = (more: object = {}) => ({
    webhook: { webhookURL: new URL('/check?a=b', upstream.url).href, headers: { 'x-token': 't' }, ...more },
  });

  test('a webhook gets the call and decides about it', async () => {
    expect(await verdictOf(hook(), subject('hello'))).toBe(true);
    const [request] = upstream.requests;
    expect(request).toMatchObject({ method: 'POST', path: '/check?a=b' });
    expect(request?.headers['x-token']).toBe('t');
    expect(JSON.parse(request?.body.toString() ?? '')).toEqual({
      eventType: 'beforeRequestHook',
      request: { json: { messages: [{ role: 'user', content: 'hello' }] }, text: 'hello', isStreamingRequest: false },
      response: null,
      provider: 'openai',
      requestType: 'chat',
      metadata: { team: 'a' },
    });
    upstream.script((reply) => reply.json(200, { verdict: false, data: { why: 'no' } }));
    const { results } = await guardrails.evaluate(GuardrailList.parse([hook()]), subject('hello'));
    expect(results[0]?.checks[0]).toMatchObject({ verdict: false, data: { data: { why: 'no' } } });
  });

  test.each([
    ['an error', { status: 500, body: '{"verdict":true}', headers: {} }],
    ['a redirect', { status: 302, body: '', headers: { location: 'http://127.0.0.1/' } }],
    ['no JSON', { status: 200, body: '<html>', headers: {} }],
    ['no verdict', { status: 200, body: '{"verdict":"true"}', headers: {} }],
    ['an answer without end', { status: 200, body: `{"verdict":true,"data":"${'x'.repeat(300_000)}"}`, headers: {} }],
  ])('%s fails the check, unless the config says otherwise', async (_what, { status, body, headers }) => {
    upstream.script((reply) => reply.respond(status, body, headers));
    expect(await verdictOf(hook(), subject('x'))).toBe(false);
    expect(await verdictOf(hook({ failOnError: false }), subject('x'))).toBe(true);
  });

  test('a webhook that hangs is given up after its timeout', async () => {
    upstream.script(hang);
    expect(await verdictOf(hook({ failOnError: true, timeout: 30 }), subject('x'))).toBe(false);
  });

  test('webhooks that hang wait at most as long as one call may wait in total', async () => {
    upstream.script(hang);
    const hurried = createGuardrails({
      egress,
      clock: { now: () => 0 },
      logger,
      textChecker,
      answerTexts,
      webhooksMs: 50,
    });
    const check = { webhook: { webhookURL: upstream.url.href, timeout: 30_000, failOnError: true } };
    const { results } = await hurried.evaluate(GuardrailList.parse([check, check, check]), subject('hello'));
    expect(results.map(({ verdict }) => verdict)).toEqual([false, false, false]);
  });

  test('a caller who leaves ends the wait', async () => {
    upstream.script(hang);
    const controller = new AbortController();
    const asking = guardrails.evaluate(GuardrailList.parse([hook()]), subject('x', { signal: controller.signal }));
    await upstream.until(() => upstream.requests.length === 1);
    controller.abort();
    await expect(asking).rejects.toMatchObject({ code: 'call_aborted' });
  });
});

describe('URLs that must exist', () => {
  test('with onlyDNS a host must have a public address, in time', async () => {
    const names = await startNameServer({
      'there.example.com': { addresses: ['93.184.216.34'] },
      'private.example.com': { addresses: ['10.0.0.1'] },
      'slow.example.com': 'hang',
    });
    const lookup = createNameLookup({ servers: [names.address], timeoutMs: 20 });
    const guarded = createGuardrails({
      egress: createEgress({ allow: parseEgressAllow(''), lookup }),
      clock: { now: () => 0 },
      logger,
      textChecker,
      answerTexts,
    });
    const verdict = async (text: string, parameters: object = {}, more = {}): Promise<boolean | undefined> => {
      const list = GuardrailList.parse([{ validUrls: { onlyDNS: true, ...parameters } }]);
      return (await guarded.evaluate(list, subject(text, more))).results[0]?.verdict;
    };
    const [there, nowhere] = ['https://there.example.com/a', 'https://nowhere.example.com'];
    expect(await verdict(`see ${there} and https://8.8.8.8`)).toBe(true);
    expect(await verdict(`see ${there} and ${nowhere}`)).toBe(false);
    expect(await verdict('https://private.example.com')).toBe(false);
    expect(await verdict('http://127.0.0.1')).toBe(false);
    expect(await verdict('https://slow.example.com')).toBe(false);
    expect(await verdict(there, { not: true })).toBe(false);
    expect(await verdict(nowhere, { not: true })).toBe(true);
    expect(await verdict('x', {}, answered(there, nowhere))).toBe(false);
    expect(await verdict('x', {}, answered(there, there))).toBe(true);
    const many = Array.from({ length: 51 }, (_, n) => `https://n${n}.example.com`).join(' ');
    const asked = names.questions().length;
    expect(await verdict(many)).toBe(false);
    expect(names.questions()).toHaveLength(asked);
    await names.stop();
  });
});

describe('verdicts', () => {
  const no = { contains: { words: ['never said'] } };

  test('a guardrail that denies takes precedence over one that only reports, and all results are returned', async () => {
    const list = GuardrailList.parse([
      { ...no, id: 'mine', on_fail: { feedback: { value: -5 } } },
      { ...no, deny: true },
      { characterCount: { min: 1 }, deny: true, name: 'counted' },
    ]);
    const { outcome, results } = await guardrails.evaluate(list, subject('hello'));
    expect(outcome).toBe('denied');
    expect(results.map(({ id, verdict, deny }) => [id, verdict, deny])).toEqual([
      ['mine', false, false],
      ['input_guardrail_2', false, true],
      ['input_guardrail_3', true, true],
    ]);
    expect(results[0]?.feedback).toEqual({ value: -5 });
    expect(results[2]?.name).toBe('counted');
  });

  test('without deny a failure is reported, and a check that failed is not shown as passed', async () => {
    expect((await guardrails.evaluate(GuardrailList.parse([no]), subject('hello'))).outcome).toBe('failed');
    expect((await guardrails.evaluate([], subject('hello'))).outcome).toBe('passed');
  });

  test('async guardrails hold a limited number of bytes of bodies; those beyond are skipped', async () => {
    const list = GuardrailList.parse([{ webhook: { webhookURL: upstream.url.href, timeout: 1_000 }, async: true }]);
    upstream.script(hang);
    const large = { sizeBytes: 40_000_000 };
    for (let n = 0; n < 3; n += 1) await guardrails.evaluate(list, subject('x', large));
    await guardrails.settled();
    expect(upstream.requests).toHaveLength(1);
    await guardrails.evaluate(list, subject('x', large));
    await guardrails.settled();
    expect(upstream.requests).toHaveLength(2);
  });

  test('an async guardrail decides nothing, and the answer does not wait for it', async () => {
    upstream.script(hang);
    const webhookURL = upstream.url.href;
    const list = GuardrailList.parse([
      { webhook: { webhookURL, timeout: 50, failOnError: true }, deny: true, async: true },
    ]);
    expect(await guardrails.evaluate(list, subject('hello'))).toEqual({ outcome: 'passed', results: [] });
    await guardrails.settled();
    expect(upstream.requests).toHaveLength(1);
  });
});
