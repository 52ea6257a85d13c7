import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import express from 'express';
import { expect, onTestFinished, test } from 'vitest';
import { serveFile } from './static-files.ts';

test('a file that is missing for a moment is served when it is there again', async () => {
  const folder = await mkdtemp(path.join(tmpdir(), 'sluice-static-'));
  const file = path.join(folder, 'page.js');
  const app = express();
  app.get('/', serveFile({ file, contentType: 'text/javascript', contentSecurityPolicy: '', cacheSeconds: 0 }));
  app.use(
    ((_error, _request, response, _next) => void response.status(500).end()) satisfies express.ErrorRequestHandler,
  );
  const server = createServer(app).listen(0, '127.0.0.1');
  await once(server, 'listening');
  onTestFinished(async () => {
    server.close();
    await rm(folder, { recursive: true });
  });
  const get = () => fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  expect((await get()).status).toBe(500);
  await writeFile(file, 'here');
  expect(await (await get()).text()).toBe('here');
});
