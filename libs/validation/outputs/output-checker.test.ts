import { afterAll, expect, test } from 'vitest';
import { createOutputChecker } from './output-checker.ts';

const checker = createOutputChecker({ threads: 1 });
afterAll(() => checker.stop());

const format = Buffer.from('{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"integer"}}}');
const check = (content: string, signal = new AbortController().signal) => {
  const answer = Buffer.from(JSON.stringify({ choices: [{ finish_reason: 'stop', message: { content } }] }));
  return checker.check({ operation: 'chat', format, answer }, { workspaceId: 'ws_1', signal });
};

test('answers are checked in a thread, and the bytes of the caller stay', async () => {
  expect(await Promise.all([check('1'), check('"x"'), check('2')])).toEqual([
    { kind: 'passed' },
    { kind: 'failed', problem: 'the content must be integer.', isFinal: false },
    { kind: 'passed' },
  ]);
  expect(format.length).toBeGreaterThan(0);
});

test('an answer that breaks the thread fails, and a caller that leaves gets its reason', async () => {
  const broken = { operation: 'chat' as const, format, answer: Buffer.from('{') };
  const { signal } = new AbortController();
  expect(await checker.check(broken, { workspaceId: 'ws_1', signal })).toMatchObject({ kind: 'failed', isFinal: true });
  await expect(check('1', AbortSignal.abort(new Error('left')))).rejects.toThrow('left');
});
