import { hash } from 'node:crypto';
import { mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, test, vi } from 'vitest';
import { createBatchFileValidator } from './batch-file-validator.ts';
import type { ValidationInput, ValidationResult } from './validation.ts';
import { splitChunk } from './json-lines.ts';

// The threads have a low priority, so they are slow on a machine that is busy with other tests.
vi.setConfig({ testTimeout: 60_000 });

const validator = createBatchFileValidator({ threads: 1 });
afterAll(() => validator.stop());

const toBodyObject = (fields: object = {}) => ({
  model: 'm',
  messages: [{ role: 'user', content: 'hello' }],
  ...fields,
});
const lineOf = (customId: string, fields: object = {}) =>
  JSON.stringify({ custom_id: customId, method: 'POST', url: '/v1/chat/completions', body: toBodyObject(), ...fields });

async function* inBuffers(bytes: Buffer, bufferBytes = 65_536): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += bufferBytes) yield bytes.subarray(at, at + bufferBytes);
}

const inputOf = (content: string | Buffer, more: Partial<ValidationInput> = {}): ValidationInput => ({
  open: () => inBuffers(Buffer.from(content)),
  endpoint: '/v1/chat/completions',
  hasDefaultTarget: true,
  virtualKeys: null,
  unable: new Map(),
  linesMax: null,
  linesPerChunk: 500,
  chunkBytesMax: 8_000_000,
  ...more,
});

const validate = (content: string | Buffer, more: Partial<ValidationInput> = {}) =>
  validator.validate(inputOf(content, more));

const errorsOf = (result: ValidationResult) => {
  if (result.valid) throw new Error('the file is valid');
  return result.errors.map(({ code, param, line }) => [line, code, param]);
};

test('every request has a leaf of the tree over the file, in its order', async () => {
  const lines = Array.from({ length: 2_000 }, (_line, index) => lineOf(`id-${index}`));
  const leaves: Buffer[] = [];
  // Blank lines are not requests, and a carriage return belongs to its line.
  const content = lines.join('\n\n').replace('\n', '\r\n');
  await validate(content, { onLeaves: (hashes) => leaves.push(Buffer.from(hashes)) });
  const expected = [`${lines[0]}\r`, ...lines.slice(1)].map((line) => hash('sha256', `\0${line}`, 'buffer'));
  expect(Buffer.concat(leaves)).toEqual(Buffer.concat(expected));
});

test('a good file is valid, with its chunks, count and model', async () => {
  const lines = ['a', 'b', 'c'].map((id) => lineOf(id));
  const [first = '', second = '', third = ''] = lines;
  expect(await validate(lines.join('\n'), { linesPerChunk: 2 })).toEqual({
    valid: true,
    isWhole: true,
    usage: [],
    lineCount: 3,
    model: 'm',
    prompts: [],
    chunks: [
      { offset: 0, length: first.length + 1 + second.length, firstLine: 1, lines: 2 },
      { offset: first.length + second.length + 2, length: third.length, firstLine: 3, lines: 1 },
    ],
  });
});

test('a file with different models has no single model', async () => {
  const other = lineOf('b', { body: toBodyObject({ model: 'n' }) });
  expect(await validate(`${lineOf('a')}\n${other}\n`)).toMatchObject({ valid: true, model: null });
});

test('what good lines will use is estimated by model, if that is asked for', async () => {
  const large = lineOf('b', { body: toBodyObject({ model: 'n', max_tokens: 7, n: 2 }) });
  const { usage } = await validate(`${lineOf('a')}\n${large}\nnot json\n`, { estimatesUsage: true });
  expect(usage).toEqual([
    { model: 'm', lines: 1, inputTokens: 6, outputTokensMax: 0, unboundedLines: 1 },
    { model: 'n', lines: 1, inputTokens: 6, outputTokensMax: 14, unboundedLines: 0 },
  ]);
});

test('more models than a hundred are one entry without a name', async () => {
  const lines = Array.from({ length: 150 }, (_each, index) =>
    lineOf(`l${index}`, { body: toBodyObject({ model: `m${index}` }) }),
  );
  const { usage } = await validate(lines.join('\n'), { estimatesUsage: true });
  expect(usage).toHaveLength(101);
  expect(usage.find(({ model }) => model === null)).toMatchObject({ lines: 50 });
});

test('a check that was enough ends with the lines that it has read', async () => {
  const lines = Array.from({ length: 40_000 }, (_each, index) => lineOf(`l${index}`)).join('\n');
  const result = await validate(lines, { enough: AbortSignal.abort() });
  expect(result).toMatchObject({ valid: true, isWhole: false });
  expect(result.lineCount).toBeGreaterThan(0);
  expect(result.lineCount).toBeLessThan(40_000);
});

test('four lines that each lack a field give four errors', async () => {
  const fields = ['custom_id', 'method', 'url', 'body'];
  const lines = fields.map((field, index) => lineOf(String(index), { [field]: undefined }));
  expect(errorsOf(await validate(lines.join('\n')))).toEqual(
    fields.map((field, index) => [index + 1, 'missing_required_parameter', field]),
  );
});

test('a malformed line 2 is the one error', async () => {
  expect(await validate(`${lineOf('a')}\nnot json\n${lineOf('c')}\n`)).toEqual({
    valid: false,
    isWhole: true,
    usage: [],
    lineCount: 3,
    errors: [{ code: 'invalid_json_line', message: 'This line is not parseable as valid JSON.', param: null, line: 2 }],
  });
});

test('errors count the lines of the file and chunks its requests, with blank lines and CRLF', async () => {
  const content = `\r\n \t\n${lineOf('a')}\r\n\n${lineOf('b')}\r\n\r\n${lineOf('c')}`;
  const good = await validate(content, { linesPerChunk: 1 });
  if (!good.valid) throw new Error(JSON.stringify(good.errors));
  const bytes = Buffer.from(content);
  const ids = good.chunks.flatMap(({ offset, length, firstLine }) =>
    splitChunk(bytes.subarray(offset, offset + length), firstLine).map(({ line, bytes: request }) => [
      line,
      (JSON.parse(request.toString()) as { custom_id: string }).custom_id,
    ]),
  );
  expect(ids).toEqual([
    [1, 'a'],
    [2, 'b'],
    [3, 'c'],
  ]);
  expect(errorsOf(await validate(content.replace('"c"', '5')))).toEqual([[7, 'invalid_type', 'custom_id']]);
});

test.each([
  ['an empty file', ''],
  ['line feeds only', '\n\n'],
  ['blank lines only', '  \r\n\t\n '],
])('%s is empty', async (_name, content) => {
  expect(await validate(content)).toEqual({
    valid: false,
    isWhole: true,
    usage: [],
    lineCount: 0,
    errors: [
      {
        code: 'empty_file',
        message: 'The input file is empty. Please ensure that the batch contains at least one request.',
        param: null,
        line: null,
      },
    ],
  });
});

test('a limit of lines allows that many and rejects one more', async () => {
  const content = `${lineOf('a')}\n${lineOf('b')}\n\n${lineOf('c')}\n`;
  expect((await validate(content, { linesMax: 3 })).valid).toBe(true);
  const result = await validate(content, { linesMax: 2 });
  expect(errorsOf(result)).toEqual([[null, 'too_many_tasks', null]]);
  expect(result.lineCount).toBe(2);
});

test('a byte order mark is only an error of line 1', async () => {
  expect(errorsOf(await validate(`\uFEFF${lineOf('a')}\n${lineOf('b')}\n`))).toEqual([[1, 'invalid_json_line', null]]);
});

test.each([
  ['over many lines', `[\n${Array.from({ length: 200 }, (_, index) => lineOf(`a${index}`)).join(',\n')}\n]\n`],
  ['on one line', `[${lineOf('a')},${lineOf('b')}]`],
  ['on one line, with a line feed and blank lines', `[${lineOf('a')}]\n\r\n\n`],
  ['after blank lines and a byte order mark', `\uFEFF \r\n\t\n [\n${lineOf('a')}\n]`],
])('a file that is one JSON array %s gets one error that says how to write it', async (_name, content) => {
  expect(await validate(content)).toMatchObject({
    valid: false,
    errors: [
      {
        code: 'invalid_json_line',
        message: expect.stringMatching(/^The file begins with '\[', .* write one JSON object per line/) as string,
        param: null,
        line: 1,
      },
    ],
  });
});

test('a first line that is an array by itself is one error, and the other lines have their own', async () => {
  expect(errorsOf(await validate(`[1] \r\n{bad\n${lineOf('a')}\nnull\n`))).toEqual([
    [1, 'invalid_json_line', null],
    [2, 'invalid_json_line', null],
    [4, 'invalid_json_line', null],
  ]);
});

test.each([
  ['little-endian with a mark', Buffer.from(`\uFEFF${lineOf('a')}\n`, 'utf16le')],
  ['little-endian without one', Buffer.from(`${lineOf('a')}\n`, 'utf16le')],
  ['big-endian', Buffer.from(`\uFEFF${lineOf('a')}\n`, 'utf16le').swap16()],
])('UTF-16, %s, is an error of the whole file', async (_name, content) => {
  expect(await validate(content)).toMatchObject({
    errors: [{ code: 'invalid_request', message: 'Invalid file for Batch API. Must be utf-8 encoded', line: null }],
  });
});

test('invalid UTF-8 is an error of its line', async () => {
  const broken = Buffer.from(lineOf('b'));
  broken[broken.indexOf('hello')] = 0xff;
  const content = Buffer.concat([Buffer.from(`${lineOf('a')}\n`), broken, Buffer.from(`\n${lineOf('ü')}\n`)]);
  const result = await validate(content);
  expect(errorsOf(result)).toEqual([[2, 'invalid_json_line', null]]);
  expect(result).toMatchObject({ errors: [{ message: expect.stringContaining('not valid UTF-8') as string }] });
});

test('a line that nests too deep is an error, and one at the limit is not', async () => {
  const nested = (depth: number) =>
    lineOf('a').replace('"hello"', `"hello","x":${'['.repeat(depth)}${']'.repeat(depth)}`);
  // The line, its body, the messages and the message are four levels.
  expect((await validate(nested(60))).valid).toBe(true);
  expect(errorsOf(await validate(nested(61)))).toEqual([[1, 'invalid_json_line', null]]);
  expect(errorsOf(await validate(`${'['.repeat(1_000_000)}\n${lineOf('b')}`))).toEqual([
    [1, 'invalid_json_line', null],
  ]);
});

describe('long lines', () => {
  const small = createBatchFileValidator({ threads: 1, limits: { lineBytesMax: 400, sliceBytes: 1_000 } });
  afterAll(() => small.stop());
  const padded = (customId: string, lengthBytes: number) => {
    const line = lineOf(customId, { pad: '' });
    return line.replace('"pad":""', `"pad":"${'x'.repeat(lengthBytes - line.length)}"`);
  };

  test.each([7, 100, 65_536])(
    'one at the limit passes, longer ones are errors, in buffers of %d bytes',
    async (bufferBytes) => {
      const content = [
        padded('a', 400),
        padded('b', 401),
        lineOf('c'),
        padded('d', 5_000),
        padded('e', 50_000),
        `${padded('f', 400)}\r`,
        lineOf('g', { method: 'PUT' }),
      ];
      const input = inputOf(content.join('\n'));
      const result = await small.validate({
        ...input,
        open: () => inBuffers(Buffer.from(content.join('\n')), bufferBytes),
      });
      expect(errorsOf(result)).toEqual([
        [2, 'line_too_long', null],
        [4, 'line_too_long', null],
        [5, 'line_too_long', null],
        [7, 'invalid_method', 'method'],
      ]);
      expect(result).toMatchObject({
        lineCount: 7,
        errors: [
          { message: 'This line is 401 bytes long. A line can have at most 400 bytes.' },
          { message: 'This line is 5000 bytes long. A line can have at most 400 bytes.' },
          { message: 'This line is 50000 bytes long. A line can have at most 400 bytes.' },
          {},
        ],
      });
    },
  );
});

describe('repeated custom_ids', () => {
  test('the later line gets the error, with the id', async () => {
    const content = `${lineOf('a')}\n\n${lineOf('x"y')}\n${lineOf('x"y')}\n${lineOf('x"y')}`;
    const message = `The custom_id 'x"y' for this request is a duplicate of another request. The custom_id parameter must be unique for each request in a batch.`;
    const error = { code: 'duplicate_custom_id', message, param: 'custom_id' };
    expect(await validate(content)).toEqual({
      valid: false,
      isWhole: true,
      usage: [],
      lineCount: 4,
      errors: [
        { ...error, line: 4 },
        { ...error, line: 5 },
      ],
    });
  });

  test('lines with other errors are compared as well', async () => {
    const bad = lineOf('a', { method: 'GET' });
    expect(errorsOf(await validate(`${bad}\n${lineOf('a')}\n`))).toEqual([
      [1, 'invalid_method', 'method'],
      [2, 'duplicate_custom_id', 'custom_id'],
    ]);
  });

  test('duplicates 200,000 lines apart are found, in memory and in files', async () => {
    const lines = Array.from({ length: 200_000 }, (_, index) => lineOf(`request-${index}`));
    lines[199_999] = lineOf('request-3');
    lines[199_998] = lineOf('request-150000');
    const content = Buffer.from(lines.join('\n'));
    const expected = [
      [199_999, 'duplicate_custom_id', 'custom_id'],
      [200_000, 'duplicate_custom_id', 'custom_id'],
    ];
    const inMemory = await validate(content);
    expect(errorsOf(inMemory)).toEqual(expected);
    const folder = await mkdtemp(join(tmpdir(), 'sluice-test-'));
    const spilling = createBatchFileValidator({
      threads: 1,
      temporaryDirectory: folder,
      limits: { digestsInMemoryMax: 10_000 },
    });
    let spilled = 0;
    const watch = async ({ lines: seen }: { lines: number }) => {
      if (seen > 150_000) spilled = Math.max(spilled, (await readdir(folder)).length);
    };
    const progress: Promise<void>[] = [];
    expect(await spilling.validate(inputOf(content, { onProgress: (seen) => progress.push(watch(seen)) }))).toEqual(
      inMemory,
    );
    await Promise.all(progress);
    expect(spilled).toBe(1);
    expect(await readdir(folder)).toEqual([]);
    await spilling.stop();
    await rm(folder, { recursive: true });
  });
});

test('at most 100 errors are reported, and the last item counts the rest', async () => {
  const lines = Array.from({ length: 150 }, (_, index) => lineOf('same', index === 120 ? { method: 'GET' } : {}));
  const result = await validate(`{\n${lines.join('\n')}\n`);
  if (result.valid) throw new Error('the file is valid');
  expect(result.errors).toHaveLength(101);
  expect(result.errors[0]).toMatchObject({ line: 1, code: 'invalid_json_line' });
  expect(result.errors[99]).toMatchObject({ line: 101, code: 'duplicate_custom_id' });
  // 1 unreadable line, 149 duplicates and 1 wrong method.
  expect(result.errors[100]).toEqual({
    code: 'more_errors',
    message: 'And 51 more errors. Correct these first.',
    param: null,
    line: null,
  });
});

describe('lines that are costly to check', () => {
  const slowSchema = (title: string) => ({
    title,
    patternProperties: Object.fromEntries(Array.from({ length: 4_000 }, (_, i) => [`p${i}`, {}])),
    additionalProperties: false,
  });
  const slowLine = (customId: string) => {
    const format = { type: 'json_schema', json_schema: { name: 'x', schema: slowSchema(customId) } };
    return lineOf(customId, { body: toBodyObject({ response_format: format }) });
  };

  test('a schema that compiles too slowly is an error of its line, and the other lines are checked', async () => {
    const strict = createBatchFileValidator({ threads: 1, limits: { schemaTimeoutMs: 50 } });
    const result = await strict.validate(inputOf(`${lineOf('a')}\n${slowLine('b')}\n${lineOf('c', { url: '/x' })}\n`));
    expect(errorsOf(result)).toEqual([
      [2, 'invalid_request', 'body.response_format'],
      [3, 'invalid_url', 'url'],
    ]);
    await strict.stop();
  });

  test('a line that hangs its thread only costs that thread', async () => {
    const limits = { schemaTimeoutMs: 60_000, sliceTimeoutMs: 4_000, lineTimeoutMs: 1_500 };
    const killing = createBatchFileValidator({ threads: 1, limits });
    await killing.validate(inputOf(lineOf('first'))); // This starts the thread.
    const result = await killing.validate(
      inputOf(`${lineOf('a')}\n\n${slowLine('b')}\n${lineOf('a')}\n${lineOf('d', { url: '/x' })}\n`),
    );
    expect(result).toMatchObject({ lineCount: 4 });
    expect(errorsOf(result)).toEqual([
      [3, 'invalid_request', 'body'],
      [4, 'duplicate_custom_id', 'custom_id'],
      [5, 'invalid_url', 'url'],
    ]);
    await killing.stop();
  });

  test.each(['[],', '{},', '{"a":1},', '[[[[]]]],'])('a line of 4 MiB of %s fits into a thread', async (unit) => {
    const bomb = lineOf('b', { pad: [] }).replace('"pad":[]', `"pad":[${unit.repeat(4_190_000 / unit.length)}0]`);
    expect((await validate(`${lineOf('a')}\n${bomb}\n`)).valid).toBe(true);
  });

  test('a short file does not wait for such a line of a large one', async () => {
    const limits = { schemaTimeoutMs: 50_000, sliceTimeoutMs: 50_000, lineTimeoutMs: 50_000, sliceBytes: 1_000 };
    const slow = createBatchFileValidator({ threads: 1, limits });
    const ended = new AbortController();
    const begun = Promise.withResolvers<void>();
    const content = `${lineOf('a', { pad: 'x'.repeat(1_000) })}\n${slowLine('b')}\n`;
    const large = slow.validate(inputOf(content, { signal: ended.signal, onProgress: () => begun.resolve() }));
    await begun.promise;
    expect(await slow.validate(inputOf(lineOf('c')))).toMatchObject({ valid: true });
    ended.abort(new Error('cancelled'));
    await expect(large).rejects.toThrow('cancelled');
    await slow.stop();
  });

  test('the check of a file full of such lines ends early', async () => {
    const limits = { schemaTimeoutMs: 10, costlyLinesMax: 2, sliceBytes: 1_000 };
    const strict = createBatchFileValidator({ threads: 1, limits });
    const content = Array.from({ length: 50 }, (_, index) => slowLine(`s${index}`)).join('\n');
    const result = await strict.validate(inputOf(content));
    expect(errorsOf(result)[0]).toEqual([null, 'validation_stopped', null]);
    expect(result.lineCount).toBeLessThan(10);
    await strict.stop();
  });
});

test('threads with so little memory that a line could end the process are rejected', () => {
  expect(() => createBatchFileValidator({ threadMemoryMb: 255 })).toThrow('256');
});

test('an aborted check throws the reason, closes the file and frees the threads', async () => {
  const controller = new AbortController();
  const reason = new Error('the batch was cancelled');
  let closed = false;
  async function* endless(): AsyncGenerator<Buffer> {
    try {
      for (let index = 0; ; index += 1) yield Buffer.from(`${lineOf(String(index))}\n`.repeat(500));
    } finally {
      closed = true;
    }
  }
  const onProgress = () => controller.abort(reason);
  const input = inputOf('', { open: endless, signal: controller.signal, onProgress });
  await expect(validator.validate(input)).rejects.toBe(reason);
  expect(closed).toBe(true);
  expect((await validate(lineOf('a'))).valid).toBe(true);
  await expect(validator.validate(inputOf(lineOf('a'), { signal: controller.signal }))).rejects.toBe(reason);
});

test('an error of the file is thrown', async () => {
  const failure = new Error('the blob is gone');
  async function* failing(): AsyncGenerator<Buffer> {
    yield Buffer.from(`${lineOf('a')}\n`);
    throw failure;
  }
  await expect(validator.validate(inputOf('', { open: failing }))).rejects.toBe(failure);
});

test('several files are checked at once by the same thread, each with its own progress', async () => {
  const content = Array.from({ length: 20_000 }, (_, index) => lineOf(`r${index}`)).join('\n');
  const seen: { bytes: number; lines: number }[][] = [[], []];
  const results = await Promise.all(
    seen.map((list) => validate(content, { onProgress: (progress) => list.push(progress) })),
  );
  expect(results.map((result) => [result.valid, result.lineCount])).toEqual([
    [true, 20_000],
    [true, 20_000],
  ]);
  for (const list of seen) {
    expect(list.length).toBeGreaterThan(1);
    expect(list.at(-1)).toEqual({ bytes: Buffer.byteLength(content), lines: 20_000 });
  }
});
