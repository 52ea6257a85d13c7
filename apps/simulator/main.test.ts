import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

const main = fileURLToPath(new URL('main.ts', import.meta.url));

test('the process logs where it listens, answers, and exits with status 0 on SIGTERM', async () => {
  const child = spawn(process.execPath, [main], { env: { ...process.env, PORT: '0', LOG_LEVEL: 'info' } });
  let url = '';
  for await (const line of createInterface(child.stdout)) {
    url = String((JSON.parse(line) as { url?: string }).url);
    break;
  }
  expect((await fetch(`${url}/health`)).status).toBe(200);
  child.kill('SIGTERM');
  expect(await once(child, 'exit')).toEqual([0, null]);
});

test('an unusable configuration is named and ends the process with status 1', async () => {
  const child = spawn(process.execPath, [main], { env: { ...process.env, PORT: 'x' } });
  let errors = '';
  child.stderr.on('data', (piece: Buffer) => (errors += piece.toString()));
  expect(await once(child, 'close')).toEqual([1, null]);
  expect(errors).toContain('PORT');
});
