import type { Dispatcher } from 'undici';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import type { Timeouts } from '#libs/calls/timeouts.ts';
import { CallAbort } from '#libs/kernel/call-signal.ts';
import { Deadlines } from '#libs/kernel/deadlines.ts';
import { createLazyFaults } from '../provider-faults.ts';
import type { CallHandler } from './connection-call.ts';
import type { Egress } from './egress.ts';
import { startExchange, type Flow } from './exchange.ts';

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'setInterval', 'clearInterval', 'performance'] });
});
afterEach(() => void vi.useRealTimers());

const deadlines: Timeouts = { connectMs: 2_000, answerMs: 5_000, totalMs: 9_000, headersMs: 60_000, idleMs: 60_000 };

/** An exchange whose connection the test controls. `errors` are the codes that its sink gets. */
function start(timeouts: Partial<Timeouts> = {}) {
  const errors: (string | null)[] = [];
  const socket = { abort: vi.fn<() => void>(), pause: () => {}, resume: () => {} };
  const controller = socket as unknown as Dispatcher.DispatchController;
  const signal = new CallAbort();
  const handlers: CallHandler[] = [];
  const flows: Flow[] = [];
  startExchange(
    { dispatch: (_options, handler) => void handlers.push(handler), deadlines: new Deadlines() } as Pick<
      Egress,
      'dispatch' | 'deadlines'
    > as Egress,
    { origin: 'http://h.example', path: '/', method: 'GET', headers: [], body: null },
    { timeouts: { ...deadlines, ...timeouts }, signal, faults: createLazyFaults('h', []), workspaceId: 'ws' },
    {
      head: (_status, _headers, flow) => void flows.push(flow),
      data: () => {},
      end: () => {},
      fail: ({ code }) => void errors.push(code),
    },
  );
  const connect = (): void => handlers[0]?.onRequestStart(controller, {});
  const answer = (): Flow => {
    handlers[0]?.onResponseStart(controller, 200, {});
    return flows[0] as Flow;
  };
  return { errors, socket, signal, connect, answer };
}

test('each deadline of an attempt applies in its phase, and no earlier than its time', () => {
  const [waiting, sent, answered] = [start(), start(), start()];
  sent.connect();
  answered.connect();
  answered.answer().answered();
  const errors = () => [waiting, sent, answered].map((exchange) => exchange.errors);
  vi.advanceTimersByTime(1_999);
  expect(errors()).toEqual([[], [], []]);
  vi.advanceTimersByTime(101);
  expect(errors()).toEqual([['upstream_connect_timeout'], [], []]);
  vi.advanceTimersByTime(3_000);
  expect(errors()).toEqual([['upstream_connect_timeout'], ['upstream_answer_timeout'], []]);
  vi.advanceTimersByTime(3_899);
  expect(answered.errors).toEqual([]);
  vi.advanceTimersByTime(101);
  expect(answered.errors).toEqual(['upstream_total_timeout']);
  expect(sent.socket.abort).toHaveBeenCalledOnce();
  expect(answered.socket.abort).toHaveBeenCalledOnce();
});

test('a deadline of the answer can be shorter than that of the connection', () => {
  const { errors } = start({ answerMs: 40 });
  vi.advanceTimersByTime(39);
  expect(errors).toEqual([]);
  vi.advanceTimersByTime(1);
  expect(errors).toEqual(['upstream_answer_timeout']);
});

test('an exchange that is finished has a second to end its answer, and reports nothing more', () => {
  const { errors, socket, signal, connect, answer } = start();
  connect();
  answer().finish();
  signal.abort(new Error('left'));
  vi.advanceTimersByTime(999);
  expect(socket.abort).not.toHaveBeenCalled();
  vi.advanceTimersByTime(101);
  expect(socket.abort).toHaveBeenCalledOnce();
  expect(errors).toEqual([]);
});

test('an exchange ends when its signal aborts', () => {
  const { errors, socket, signal, connect } = start();
  connect();
  signal.abort(new Error('left'));
  expect(errors).toEqual(['call_aborted']);
  expect(socket.abort).toHaveBeenCalledOnce();
});
