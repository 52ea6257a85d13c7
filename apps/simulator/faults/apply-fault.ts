import type { Clock } from '#libs/kernel/clock.ts';
import type { Exchange } from '../exchange.ts';
import type { Effect, RetryAfter } from './faults.ts';
import type { Behaviour } from '../model/generate.ts';
import { endOfCharacter } from '../model/tokens.ts';
import { sendBody, sendFrames } from '../send-answer.ts';
import type { Call, Failure, Frame, StreamForm, WireFormat } from '../wire/wire-format.ts';

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

// Long enough for the written bytes to reach a client on the same machine before the RST, which discards unread bytes.
const beforeResetMs = 20;
const betweenPiecesMs = 2;
const html =
  '<!DOCTYPE html>\n<html><head><title>Please wait</title></head><body><h1>Checking your browser</h1></body></html>\n';
const manyScripts = 'Grüße aus 東京 und Київ 🙂 – naïve cafés, 한국어, עברית, 👩‍🚀 ja.';
const ok = 200;

/** Answers a call with its fault (see the table in faults.ts). Resolves when the answer has ended. */
export function applyFault(effect: Effect, faulty: FaultyCall): void | Promise<void> {
  const { exchange, call, wire, behaviour, tokensPerSecond } = faulty;
  const form = formOf(faulty);
  const { contentType } = form;
  const send = (changed: Behaviour): void | Promise<void> =>
    call.stream
      ? sendFrames(exchange, call.frames(changed), { contentType, tokensPerSecond })
      : sendBody(exchange, call.body(changed), call);
  const sendChanged = (change: (frames: Frame[]) => Iterable<Frame>): void | Promise<void> =>
    call.stream
      ? sendFrames(exchange, change([...call.frames(behaviour)]), { contentType, tokensPerSecond })
      : sendBody(exchange, call.body(behaviour), call);
  switch (effect.type) {
    case 'status':
      return sendStatus(effect, faulty);
    case 'hang':
      return undefined;
    case 'headers-then-hang':
      exchange.head(ok, ['content-type', call.stream ? contentType : wholeType(call)]);
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
      return call.stream ? sendChanged(firstHalf) : sendBody(exchange, halfOf(call.body(behaviour)));
    case 'no-done':
      return sendChanged((frames) => frames.slice(0, -1));
    case 'hold-open':
      return sendFrames(exchange, partsOf(call, behaviour), {
        contentType: call.stream ? contentType : wholeType(call),
        tokensPerSecond,
        holdOpen: true,
      });
    case 'invalid-json':
      return call.stream
        ? sendChanged((frames) => replaceMiddle(frames, () => form.brokenFrame))
        : sendBody(exchange, halfOf(call.body(behaviour)));
    case 'damaged-frame':
      return sendChanged((frames) => replaceMiddle(frames, (frame) => form.damage?.(frame) ?? form.brokenFrame));
    case 'html':
      return exchange.reply(ok, 'text/html; charset=utf-8', html);
    case 'empty':
      return exchange.reply(ok, undefined, '');
    case 'null':
      return sendBody(exchange, 'null');
    case 'wrong-content-type':
      return call.stream
        ? sendFrames(exchange, call.frames(behaviour), { contentType: 'text/plain', tokensPerSecond })
        : exchange.reply(ok, 'text/plain', call.body(behaviour));
    case 'error-in-stream':
    case 'error-in-stream-late':
      return sendStreamError(faulty, overloaded, effect.type === 'error-in-stream-late');
    case 'stream-error':
      return sendStreamError(faulty, toFailure(effect.status, undefined), effect.late);
    case 'error-event':
      return sendChanged((frames) => [...firstHalf(frames), form.strayErrorFrame(overloaded)]);
    case 'json-to-stream':
      return sendBody(exchange, call.body(behaviour));
    case 'stream-to-json':
      return sendFrames(exchange, call.frames(behaviour), { contentType, tokensPerSecond });
    case 'content-filter':
      return send({ ...behaviour, contentFilter: true });
    case 'wrong-json':
      return send({ ...behaviour, text: '{"wrong":true}' });
    case 'no-usage':
      return send({ ...behaviour, omitUsage: true });
    case 'wrong-model':
      return send({ ...behaviour, answersAs: 'sim-other' });
    case 'big':
      return send({ ...behaviour, text: 'x'.repeat(effect.bytes), inOnePiece: true });
    case 'crlf':
      return sendChanged((frames) => frames.map((frame) => withCrlf(frame)));
    case 'comments':
      return sendChanged((frames) =>
        frames.flatMap((frame) => (form.idleFrame === undefined ? [frame] : [form.idleFrame, frame])),
      );
    case 'split-utf8':
      return sendSplit(faulty);
    case 'redirect':
      return exchange.reply(302, undefined, '', ['location', '/redirected']);
    case 'echo-key': {
      const failure = wire.refuseCredential('wrong', faulty.credential);
      return sendFailure(faulty, { ...failure, message: `${failure.message} (${faulty.credential})` });
    }
  }
}

function sendStreamError(faulty: FaultyCall, failure: Failure, late: boolean): void | Promise<void> {
  const { exchange, call, wire, behaviour, tokensPerSecond } = faulty;
  const form = formOf(faulty);
  if (!call.stream) {
    return sendBody(exchange, late ? call.body(behaviour) : wire.errorBody(failure, exchange.requestId));
  }
  const before = late ? firstHalf([...call.frames(behaviour)]) : [];
  const { contentType } = form;
  return sendFrames(exchange, [...before, form.errorFrame(failure, !late)], { contentType, tokensPerSecond });
}

function sendStatus(effect: Extract<Effect, { type: 'status' }>, faulty: FaultyCall): void {
  const { exchange, wire, attempt, clock } = faulty;
  const status = effect.statuses[(attempt - 1) % effect.statuses.length] ?? 500;
  if (effect.html === true) return exchange.reply(status, 'text/html; charset=utf-8', html);
  const headers = wire.retryInBody === true ? [] : retryHeaders(effect.retryAfter, clock);
  if (effect.code === 'insufficient_quota') headers.push('x-should-retry', 'false');
  const retryAfterMs = retryMs(effect.retryAfter);
  return sendFailure(faulty, {
    ...toFailure(status, effect.code),
    headers,
    ...(retryAfterMs === undefined ? {} : { retryAfterMs }),
  });
}

function sendFailure({ exchange, wire }: FaultyCall, failure: Failure): void {
  exchange.reply(failure.status, 'application/json', wire.errorBody(failure, exchange.requestId), [
    ...(failure.headers ?? []),
    ...(wire.errorHeaders?.(failure) ?? []),
  ]);
}

function formOf({ call, wire }: FaultyCall): StreamForm {
  return call.form ?? wire.form;
}

function wholeType(call: Call): string {
  return call.contentType ?? 'application/json';
}

function partsOf(call: Call, behaviour: Behaviour): Frame[] {
  return call.stream ? [...call.frames(behaviour)] : [call.body(behaviour)];
}

function bytesOf(parts: readonly Frame[]): Buffer {
  return Buffer.concat(parts.map((part) => (typeof part === 'string' ? Buffer.from(part) : part)));
}

function firstHalf(frames: readonly Frame[]): Frame[] {
  return frames.slice(0, Math.max(1, Math.floor(frames.length / 2)));
}

/** Replaces a frame in the middle, or the only one. */
function replaceMiddle(frames: readonly Frame[], change: (frame: Frame) => Frame): Frame[] {
  const at = Math.floor(frames.length / 2);
  return frames.map((frame, index) => (index === at ? change(frame) : frame));
}

function withCrlf(frame: Frame): Frame {
  return typeof frame === 'string' ? frame.replaceAll(/\r?\n/g, '\r\n') : frame;
}

function halfOf(body: Frame): Frame {
  const half = Math.ceil(body.length / 2);
  return typeof body === 'string' ? body.slice(0, endOfCharacter(body, half)) : body.subarray(0, half);
}

/** Sends the headers of the whole answer and half of the body, then ends in the given way. */
async function sendHalf(end: 'stall' | 'cut' | 'reset', faulty: FaultyCall): Promise<void> {
  const { exchange, call, behaviour } = faulty;
  const parts = partsOf(call, behaviour);
  headFor(faulty, bytesOf(parts));
  const sent = await exchange.write(call.stream ? bytesOf(firstHalf(parts)) : halfOf(parts[0] ?? ''));
  if (!sent || end === 'stall') return;
  if (end === 'cut') exchange.cut();
  else if (await exchange.pause(beforeResetMs)) exchange.reset();
}

async function drip(faulty: FaultyCall, intervalMs: number): Promise<void> {
  const { exchange, call, behaviour } = faulty;
  const bytes = bytesOf(partsOf(call, behaviour));
  headFor(faulty, bytes);
  for (let at = 0; at < bytes.length; at++) {
    if (!(await exchange.write(bytes.subarray(at, at + 1))) || !(await exchange.pause(intervalMs))) return;
  }
  exchange.end();
}

/** Splits after the first byte of each multi-byte character. */
async function sendSplit(faulty: FaultyCall): Promise<void> {
  const { exchange, call, behaviour } = faulty;
  const bytes = bytesOf(partsOf(call, { ...behaviour, text: manyScripts }));
  headFor(faulty, bytes);
  let from = 0;
  for (const [at, byte] of bytes.entries()) {
    if (byte < 0xc0) continue;
    if (!(await exchange.write(bytes.subarray(from, at + 1))) || !(await exchange.pause(betweenPiecesMs))) return;
    from = at + 1;
  }
  if (await exchange.write(bytes.subarray(from))) exchange.end();
}

function headFor(faulty: FaultyCall, whole: Uint8Array): void {
  const { exchange, call } = faulty;
  exchange.head(
    ok,
    call.stream
      ? ['content-type', formOf(faulty).contentType, 'cache-control', 'no-cache']
      : ['content-type', wholeType(call), 'content-length', String(whole.length)],
  );
}

const dateAheadMs = 2_000;

const overloaded: Failure = {
  status: 503,
  message: 'The server had an error while processing your request. Sorry about that!',
  type: 'server_error',
  code: 'server_error',
};

/** The headers that announce when to retry, as flat names and values. */
function retryHeaders(retryAfter: RetryAfter, clock: Clock): string[] {
  if (retryAfter === 'absent') return [];
  if (retryAfter === 'ms') return ['retry-after-ms', '50'];
  if (retryAfter === 'date') return ['retry-after', new Date(clock.now() + dateAheadMs).toUTCString()];
  return ['retry-after', String(retryAfter.seconds)];
}

/** The same time in milliseconds, for formats that have it in the body. */
function retryMs(retryAfter: RetryAfter): number | undefined {
  if (retryAfter === 'absent') return undefined;
  if (retryAfter === 'ms') return 50;
  return retryAfter === 'date' ? dateAheadMs : retryAfter.seconds * 1_000;
}

/** The failure that belongs to a status, independent of any format. */
function toFailure(status: number, code: string | undefined): Failure {
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
