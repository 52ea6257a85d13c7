import { expect, test } from 'vitest';
import { createLogger } from './logger.ts';
import { Secret } from './secret.ts';
import { version } from '../version.ts';

function logged(fields: object): Record<string, unknown> {
  const lines: string[] = [];
  const logger = createLogger({ name: 'test', level: 'info' }, { write: (line: string) => void lines.push(line) });
  logger.info(fields, 'happened');
  return JSON.parse(lines[0] ?? '') as Record<string, unknown>;
}

test('a line has the fields, the message, the time, the name of its level, the process and its release', () => {
  expect(logged({ status: 200, model: null })).toMatchObject({
    status: 200,
    model: null,
    msg: 'happened',
    level: 'info',
    version,
    process: 'test',
    pid: process.pid,
    time: expect.stringMatching(/^\d{4}-\d\d-\d\dT/),
  });
});

test.each(['authorization', 'password', 'secret', 'api_key', 'key', 'headers'])(
  'a field named %s is redacted wherever it lies',
  (name) => {
    const fields = { plain: 1, [name]: 'hunter2', one: { [name]: 'hunter2', two: [{ [name]: { deep: 'hunter2' } }] } };
    const line = logged(fields);
    expect(JSON.stringify(line)).not.toContain('hunter2');
    expect(line).toMatchObject({
      plain: 1,
      [name]: '[redacted]',
      one: { [name]: '[redacted]', two: [{ [name]: '[redacted]' }] },
    });
    expect(fields[name]).toBe('hunter2');
  },
);

test('nested objects keep their plain fields, and values with a JSON form of their own keep that', () => {
  expect(logged({ range: { from: 1, to: [2, null] }, at: new Date(0), mine: new Secret('hunter2') })).toMatchObject({
    range: { from: 1, to: [2, null] },
    at: '1970-01-01T00:00:00.000Z',
    mine: '[redacted]',
  });
});

test('an object that contains itself is cut off', () => {
  const loop: Record<string, unknown> = { name: 'loop' };
  loop['again'] = loop;
  expect(JSON.stringify(logged({ loop }))).toContain('[too deep]');
});

test('an error is logged with name, code, message and stack, without the secrets that its texts quote', () => {
  const error = Object.assign(new Error('connect postgres://sluice:hunter2@db/x failed'), { code: 'ECONNREFUSED' });
  const { err } = logged({ err: error }) as { err: Record<string, string> };
  expect(err).toMatchObject({ name: 'Error', code: 'ECONNREFUSED' });
  expect(err['stack']).toContain('logger.test.ts');
  expect(JSON.stringify(err)).not.toContain('hunter2');
});

test('an error beside a secret is still logged in full', () => {
  const line = logged({ err: new Error('broken'), key: 'hunter2' });
  expect(line).toMatchObject({ err: { message: 'broken' }, key: '[redacted]' });
});
