import type { Clock } from '#libs/kernel/clock.ts';
import type { Exchange } from './exchange.ts';
import type { Effect, RetryAfter } from './faults.ts';
import type { Behaviour } from './model/generate.ts';
import { endOfCharacter } from './model/tokens.ts';
import { sendFrames, sendJson } from './send-answer.ts';
import type { Call, Failure, WireFormat } from './wire/wire-format.ts';

export type FaultyCall = {
  exchange: Exchange;
  call: Call;
  wire: WireFormat;
  behaviour: Behaviour;
  tokensPerSecond: number;
  /** The number of this call of its prompt, from 1. */
  attempt: number;
  credential: string;
  dripIntervalMs: number;
  clock: Clock;
};

// Long enough for what was written to reach a client on the same machine before the RST, which discards what is unread.
const beforeResetMs = 20;
const betweenPiecesMs = 2;
const html =
  '<!DOCTYPE html>\n<html><head><title>Please wait</title></head><body><h1>Checking your browser</h1></body></html>\n';
const manyScripts = 'Grüße aus 東京 und Київ 🙂 – naïve cafés, 한국어, עברית, 👩‍🚀 ja.';
const ok = 200;

/** Answers a call as its fault says (the table in faults.ts). Resolves when nothing more will be sent. */
export function applyFault(effect: Effect, faulty: FaultyCall): void | Promise<void> {
  const { exchange, call, wire, behaviour, tokensPerSecond } = faulty;
  const contentType = wire.streamContentType;
  const send = (changed: Behaviour): void | Promise<void> =>
    call.stream
      ? sendFrames(exchange, call.frames(changed), { contentType, tokensPerSecond })
      : sendJson(exchange, call.body(changed));
  const sendChanged = (change: (frames: string[]) => Iterable<string>): void | Promise<void> =>
    call.stream
      ? sendFrames(exchange, change([...call.frames(behaviour)]), { contentType, tokensPerSecond })
      : sendJson(exchange, call.body(behaviour));
  switch (effect.type) {
    case 'status':
      return sendStatus(effect, faulty);
    case 'hang':
      return undefined;
    case 'headers-then-hang':
      exchange.head(ok, ['content-type', call.stream ? contentType : 'application/json']);
      return exchange.write('').then(() => undefined);
    case 'stall':
    case 'cut':
    case 'reset':
      return sendHalf(effect.type, faulty);
    case 'reset-early':
      return exchange.reset();
    case 'slow-drip':
      return drip(faulty, effect.intervalMs ?? faulty.dripIntervalMs);
    case 'truncated-stream':
      return call.stream ? sendChanged(firstHalf) : sendJson(exchange, halfOf(call.body(behaviour)));
    case 'no-done':
      return sendChanged((frames) => frames.filter((frame) => frame !== wire.endFrame));
    case 'hold-open':
      return sendFrames(exchange, partsOf(call, behaviour), {
        contentType: call.stream ? contentType : 'application/json',
        tokensPerSecond,
        holdOpen: true,
      });
    case 'invalid-json':
      return call.stream
        ? sendChanged((frames) => frames.with(1, 'data: {"id":"broken","choices":[{\n\n'))
        : sendJson(exchange, halfOf(call.body(behaviour)));
    case 'html':
      return exchange.reply(ok, 'text/html; charset=utf-8', html);
    case 'empty':
      return exchange.reply(ok, undefined, '');
    case 'null':
      return sendJson(exchange, 'null');
    case 'wrong-content-type':
      return call.stream
        ? sendFrames(exchange, call.frames(behaviour), { contentType: 'text/plain', tokensPerSecond })
        : exchange.reply(ok, 'text/plain', call.body(behaviour));
    case 'error-in-stream':
      return call.stream
        ? sendChanged(() => [wire.errorFrame(overloaded)])
        : sendJson(exchange, wire.errorBody(overloaded));
    case 'error-in-stream-late':
      return sendChanged((frames) => [...firstHalf(frames), wire.errorFrame(overloaded)]);
    case 'error-event':
      return sendChanged((frames) => [...firstHalf(frames), wire.strayErrorFrame(overloaded)]);
    case 'json-to-stream':
      return sendJson(exchange, call.body(behaviour));
    case 'stream-to-json':
      return sendFrames(exchange, call.frames(behaviour), { contentType, tokensPerSecond });
    case 'content-filter':
      return send({ ...behaviour, contentFilter: true });
    case 'no-usage':
      return send({ ...behaviour, omitUsage: true });
    case 'wrong-model':
      return send({ ...behaviour, answersAs: 'sim-other' });
    case 'big':
      return send({ ...behaviour, text: 'x'.repeat(effect.bytes), inOnePiece: true });
    case 'crlf':
      return sendChanged((frames) => frames.map((frame) => frame.replaceAll('\n', '\r\n')));
    case 'comments':
      return sendChanged((frames) => frames.map((frame) => `: keep-alive\n\n${frame}`));
    case 'split-utf8':
      return sendSplit(faulty);
    case 'redirect':
      return exchange.reply(302, undefined, '', ['location', '/redirected']);
    case 'echo-key': {
      const message = `Incorrect API key provided: ${faulty.credential}.`;
      return exchange.reply(401, 'application/json', wire.errorBody({ status: 401, message, code: 'invalid_api_key' }));
    }
  }
}

const overloaded: Failure = {
  status: 503,
  message: 'The server had an error while processing your request. Sorry about that!',
  type: 'server_error',
  code: 'server_error',
};

function sendStatus(effect: Extract<Effect, { type: 'status' }>, { exchange, wire, attempt, clock }: FaultyCall): void {
  const status = effect.statuses[(attempt - 1) % effect.statuses.length] ?? 500;
  if (effect.html === true) return exchange.reply(status, 'text/html; charset=utf-8', html);
  const own = retryHeaders(effect.retryAfter, clock);
  if (effect.code === 'insufficient_quota') own.push('x-should-retry', 'false');
  return exchange.reply(status, 'application/json', wire.errorBody(failureOf(status, effect.code)), own);
}

function retryHeaders(retryAfter: RetryAfter, clock: Clock): string[] {
  if (retryAfter === 'absent') return [];
  if (retryAfter === 'ms') return ['retry-after-ms', '50'];
  if (retryAfter === 'date') return ['retry-after', new Date(clock.now() + 2_000).toUTCString()];
  return ['retry-after', String(retryAfter.seconds)];
}

function failureOf(status: number, code: string | undefined): Failure {
  if (code === 'insufficient_quota') {
    const message = 'You exceeded your current quota, please check your plan and billing details.';
    return { status, message, type: 'insufficient_quota', code };
  }
  switch (status) {
    case 429:
      return {
        status,
        message: 'Rate limit reached for requests. Please try again later.',
        code: 'rate_limit_exceeded',
      };
    case 401:
      return { status, message: 'Incorrect API key provided.', code: 'invalid_api_key' };
    case 404:
      return { status, message: 'The model does not exist or you do not have access to it.', code: 'model_not_found' };
    case 503:
      return {
        status,
        message: 'The engine is currently overloaded, please try again later.',
        code: 'server_is_overloaded',
      };
    default:
      return { status, message: `Simulated failure with status ${status}.` };
  }
}

function partsOf(call: Call, behaviour: Behaviour): string[] {
  return call.stream ? [...call.frames(behaviour)] : [call.body(behaviour)];
}

function firstHalf(frames: readonly string[]): string[] {
  return frames.slice(0, Math.max(1, Math.floor(frames.length / 2)));
}

function halfOf(body: string): string {
  return body.slice(0, endOfCharacter(body, Math.ceil(body.length / 2)));
}

/** Headers that promise the whole answer, half of it, and then the given end. */
async function sendHalf(end: 'stall' | 'cut' | 'reset', faulty: FaultyCall): Promise<void> {
  const { exchange, call, behaviour } = faulty;
  const parts = partsOf(call, behaviour);
  headFor(faulty, parts.join(''));
  const sent = await exchange.write(call.stream ? firstHalf(parts).join('') : halfOf(parts[0] ?? ''));
  if (!sent || end === 'stall') return;
  if (end === 'cut') exchange.cut();
  else if (await exchange.pause(beforeResetMs)) exchange.reset();
}

async function drip(faulty: FaultyCall, intervalMs: number): Promise<void> {
  const { exchange, call, behaviour } = faulty;
  const bytes = Buffer.from(partsOf(call, behaviour).join(''));
  headFor(faulty, bytes);
  for (let at = 0; at < bytes.length; at++) {
    if (!(await exchange.write(bytes.subarray(at, at + 1))) || !(await exchange.pause(intervalMs))) return;
  }
  exchange.end();
}

/** Cuts after the first byte of each character that has more than one. */
async function sendSplit(faulty: FaultyCall): Promise<void> {
  const { exchange, call, behaviour } = faulty;
  const bytes = Buffer.from(partsOf(call, { ...behaviour, text: manyScripts }).join(''));
  headFor(faulty, bytes);
  let from = 0;
  for (const [at, byte] of bytes.entries()) {
    if (byte < 0xc0) continue;
    if (!(await exchange.write(bytes.subarray(from, at + 1))) || !(await exchange.pause(betweenPiecesMs))) return;
    from = at + 1;
  }
  if (await exchange.write(bytes.subarray(from))) exchange.end();
}

function headFor({ exchange, call, wire }: FaultyCall, whole: string | Uint8Array): void {
  exchange.head(
    ok,
    call.stream
      ? ['content-type', wire.streamContentType, 'cache-control', 'no-cache']
      : ['content-type', 'application/json', 'content-length', String(Buffer.byteLength(whole))],
  );
}
