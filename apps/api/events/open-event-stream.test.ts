import { Writable } from 'node:stream';
import type { Request, Response } from 'express';
import { expect, test } from 'vitest';
import type { Caller } from '#libs/http/caller.ts';
import { followWorkspace } from './open-event-stream.ts';

test('a client that had gone before its stream began holds no place among the open streams', async () => {
  const written = new Writable({ write: (_piece, _encoding, done) => done() });
  written.on('error', () => undefined);
  const response = Object.assign(written, { setHeader: () => {}, flushHeaders: () => {} }) as unknown as Response;
  const gone = new Promise((resolve) => response.on('close', resolve));
  response.destroy();
  await gone;
  let stopped = 0;
  const watch = {
    next: () => Promise.resolve({ hasEvents: true, newestCall: null, isOver: false }),
    stop: () => void (stopped += 1),
  };
  const authenticate = () => Promise.reject(new Error('not asked'));
  const request = {} as Request;
  const start = { position: 0 } as never;
  const frames = { sendEvents: () => Promise.reject(new Error('not sent')), callFrame: () => '' };
  const caller = { workspaceId: 'ws_1' } as Caller;
  const followed = { request, response, caller, watch, start, mayFollow: () => true };
  await followWorkspace({ authenticate, stallTimeoutMs: 1_000 }, followed, frames);
  expect(stopped).toBe(1);
});
