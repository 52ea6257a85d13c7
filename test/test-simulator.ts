import { connect } from 'node:net';
import OpenAI from 'openai';
import { afterAll } from 'vitest';
import type { SimulatorOptions } from '#apps/simulator/options.ts';
import { createSimulator } from '#apps/simulator/server.ts';
import { asProviders } from './conformance/as-providers.ts';

export type Json = Record<string, unknown>;

/**
 * A simulator that judges requests as the providers do, for the tests of one file, stopped after them, with functions to call
 * it.
 *
 * The simulator's own tests cover the features on which the product's tests rely without noticing failures: that bad
 * requests are rejected, that faults and latencies happen, that calls are counted, and that answers have the members of
 * real ones. Its other features are covered by the product's tests that use it (test/api, test/conformance).
 */
export async function startTestSimulator(options: Partial<SimulatorOptions> = {}) {
  const simulator = createSimulator({ ...asProviders(options.clock), ...options });
  const { url } = await simulator.start();
  afterAll(() => simulator.stop());
  const post = (path: string, body: unknown, headers: Record<string, string> = {}): Promise<Response> =>
    fetch(url + path, {
      method: 'POST',
      headers: { authorization: 'Bearer sk-test', 'content-type': 'application/json', ...headers },
      body: typeof body === 'string' ? body : JSON.stringify(body),
      redirect: 'manual',
    });
  return {
    url,
    simulator,
    post,
    openai: new OpenAI({ apiKey: 'sk-test', baseURL: `${url}/v1`, maxRetries: 0 }),
    /** Posts to chat completions with one user message. */
    chat: (fields: Json, headers: Record<string, string> = {}): Promise<Response> =>
      post(
        '/v1/chat/completions',
        { model: 'sim-text', messages: [{ role: 'user', content: 'Hello' }], ...fields },
        headers,
      ),
    /** The data that arrives on a raw socket, piece by piece, and how the socket ended. */
    raw: (body: Json): Promise<{ pieces: Buffer[]; text: string; error: string | undefined }> => rawPost(url, body),
  };
}

function rawPost(url: string, body: Json): Promise<{ pieces: Buffer[]; text: string; error: string | undefined }> {
  const { hostname, port } = new URL(url);
  const payload = JSON.stringify({ messages: [{ role: 'user', content: 'Hello' }], ...body });
  return new Promise((resolve) => {
    const pieces: Buffer[] = [];
    let error: string | undefined;
    const socket = connect(Number(port), hostname, () => {
      socket.write(
        `POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer sk-test\r\ncontent-length: ${Buffer.byteLength(payload)}\r\n\r\n${payload}`,
      );
    });
    socket.on('data', (piece: Buffer) => pieces.push(piece));
    socket.on('error', (cause: NodeJS.ErrnoException) => (error = cause.code));
    socket.on('close', () => resolve({ pieces, text: Buffer.concat(pieces).toString(), error }));
  });
}

/** The `data` payloads of a stream's text. */
export function dataOf(stream: string): string[] {
  return stream
    .split('\n\n')
    .filter((event) => event.startsWith('data: '))
    .map((event) => event.slice('data: '.length));
}

/** A stream's events: the name, if it has one, and the parsed data. */
export function eventsOf(stream: string): { event: string | undefined; data: Json }[] {
  return stream
    .split(/\r?\n\r?\n/)
    .filter((event) => event.includes('data: '))
    .map((event) => ({
      event: /^event: (.*)$/m.exec(event)?.[1],
      data: JSON.parse(/^data: (.*)$/m.exec(event)?.[1] ?? '') as Json,
    }));
}
