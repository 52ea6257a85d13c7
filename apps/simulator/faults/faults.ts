/** The damage to one answer. A status is sent instead of an answer; the other effects damage the answer. */
export type Effect =
  | { type: 'status'; statuses: readonly number[]; retryAfter: RetryAfter; code?: string; html?: boolean }
  | { type: 'big'; bytes: number }
  | { type: 'slow-drip'; intervalMs: number | undefined }
  | { type: 'stream-error'; status: number; late: boolean }
  | { type: PlainEffect };

type PlainEffect =
  | 'hang'
  | 'headers-then-hang'
  | 'stall'
  | 'truncated-stream'
  | 'no-done'
  | 'hold-open'
  | 'cut'
  | 'reset'
  | 'reset-early'
  | 'invalid-json'
  | 'damaged-frame'
  | 'html'
  | 'empty'
  | 'null'
  | 'wrong-content-type'
  | 'error-in-stream'
  | 'error-in-stream-late'
  | 'error-event'
  | 'json-to-stream'
  | 'stream-to-json'
  | 'content-filter'
  | 'wrong-json'
  | 'no-usage'
  | 'wrong-model'
  | 'crlf'
  | 'comments'
  | 'split-utf8'
  | 'redirect'
  | 'echo-key';

export type RetryAfter = 'absent' | 'ms' | 'date' | { seconds: number };

/** When the fault happens. The attempts of each prompt are counted, so that a retry can succeed. */
export type Occasion =
  | { type: 'always' }
  /** The first `attempts` calls of each prompt. */
  | { type: 'first'; attempts: number }
  /** The first call of this percentage of prompts fails; the call after a failed one succeeds. */
  | { type: 'flaky'; percent: number }
  /** This percentage of all calls, including retries. */
  | { type: 'storm'; percent: number };

export type Fault = { effect: Effect; occasion: Occasion };

type Row = {
  /** The name in the description, with `N` in place of a number. */
  name: string;
  what: string;
  pattern: RegExp;
  effect: (number: number) => Effect;
  /** The number of calls of a prompt that it affects. */
  attempts?: number;
};

const plain = (name: PlainEffect, what: string): Row => ({
  name,
  what,
  pattern: new RegExp(`^${name}$`),
  effect: () => ({ type: name }),
});

const limited = (name: string, what: string, retryAfter: RetryAfter): Row => ({
  name,
  what,
  pattern: new RegExp(`^${name}$`),
  effect: () => ({ type: 'status', statuses: [429], retryAfter }),
});

// Failures of providers: rate limits, server errors, hangs, slow answers, broken streams and broken bodies.
const rows: readonly Row[] = [
  limited('429', '429 with Retry-After: 1', { seconds: 1 }),
  {
    name: '429-after-N',
    what: '429 with Retry-After: N (seconds)',
    pattern: /^429-after-(\d{1,6})$/,
    effect: (seconds) => ({ type: 'status', statuses: [429], retryAfter: { seconds } }),
  },
  limited('429-ms', '429 with retry-after-ms: 50 and no Retry-After', 'ms'),
  limited('429-date', '429 with Retry-After as an HTTP date, two seconds ahead', 'date'),
  limited('429-none', '429 without any hint of when to retry', 'absent'),
  limited('429-negative', '429 with Retry-After: -5', { seconds: -5 }),
  {
    name: '429-quota',
    what: '429 insufficient_quota with x-should-retry: false',
    pattern: /^429-quota$/,
    effect: () => ({ type: 'status', statuses: [429], retryAfter: 'absent', code: 'insufficient_quota' }),
  },
  {
    name: '5xx-burst',
    what: '500, 502, 503 and 529 in turn for the first four calls of each prompt, then the answer',
    pattern: /^5xx-burst$/,
    attempts: 4,
    effect: () => ({ type: 'status', statuses: [500, 502, 503, 529], retryAfter: 'absent' }),
  },
  {
    name: 'NNN',
    what: 'any error status from 400 to 599 with an error body of its kind, like sim-fault-503',
    pattern: /^([45]\d\d)$/,
    effect: (status) => ({ type: 'status', statuses: [status], retryAfter: 'absent' }),
  },
  {
    name: 'html-NNN',
    what: 'an error status with an HTML page as its body, like a load balancer’s',
    pattern: /^html-([45]\d\d)$/,
    effect: (status) => ({ type: 'status', statuses: [status], retryAfter: 'absent', html: true }),
  },
  plain('hang', 'accepts the request and never answers'),
  plain('headers-then-hang', 'sends only the headers'),
  plain('stall', 'sends the first half and then nothing; the connection stays open'),
  {
    name: 'slow-drip',
    what: 'the correct answer, one byte per second (slow-drip-Nms: one every N ms)',
    pattern: /^slow-drip(?:-(\d{1,5})ms)?$/,
    effect: (intervalMs) => ({ type: 'slow-drip', intervalMs: Number.isNaN(intervalMs) ? undefined : intervalMs }),
  },
  plain('truncated-stream', 'half of the events, then a clean end without [DONE]; half of the body if not streaming'),
  plain('no-done', 'the whole stream except [DONE]'),
  plain('hold-open', 'the whole stream with [DONE], and then the response is never ended'),
  plain('cut', 'half of the answer, then FIN in the middle of the HTTP body'),
  plain('reset', 'half of the answer, then RST'),
  plain('reset-early', 'RST instead of any reply'),
  plain('invalid-json', '200 with a body that is not JSON; in a stream an event in the middle is not'),
  plain('damaged-frame', 'an event in the middle is damaged: a wrong checksum (Bedrock); for others like invalid-json'),
  plain('html', '200 with an HTML page, also for a stream'),
  plain('empty', '200 with an empty body'),
  plain('null', '200 with the JSON value null'),
  plain('wrong-content-type', 'the correct answer as text/plain'),
  plain('error-in-stream', 'a stream whose first event is an error; 200 with an error body if not streaming'),
  plain('error-in-stream-late', 'a stream with an error after half of its events, then the end'),
  {
    name: 'error-in-stream-NNN',
    what: 'like error-in-stream, with the error of a status, like error-in-stream-429',
    pattern: /^error-in-stream-([45]\d\d)$/,
    effect: (status) => ({ type: 'stream-error', status, late: false }),
  },
  {
    name: 'error-in-stream-late-NNN',
    what: 'like error-in-stream-late, with the error of a status',
    pattern: /^error-in-stream-late-([45]\d\d)$/,
    effect: (status) => ({ type: 'stream-error', status, late: true }),
  },
  plain('error-event', 'like error-in-stream-late, in the form `event: error` with a flat body'),
  plain('json-to-stream', 'a whole JSON answer to a request for a stream'),
  plain('stream-to-json', 'a stream to a request for a whole JSON answer'),
  plain('content-filter', 'half of an answer with finish_reason content_filter'),
  plain('wrong-json', 'a JSON object without any of the members that were asked for'),
  plain('no-usage', 'the correct answer without usage'),
  plain('wrong-model', 'the answer names another model (sim-other)'),
  {
    name: 'big-event',
    what: 'an answer of 10 MiB, in one event when streaming (big-event-N: N MiB, at most 256)',
    pattern: /^big-event(?:-(\d{1,3}))?$/,
    effect: (size) => ({ type: 'big', bytes: Math.min(Number.isNaN(size) ? 10 : size, 256) * 1_048_576 }),
  },
  plain('crlf', 'a stream whose lines end with CRLF'),
  plain('comments', 'a stream with keep-alive comments between its events'),
  plain('split-utf8', 'an answer in several scripts, written in pieces that end in the middle of a character'),
  plain('redirect', '302 to /redirected on this server, where /stats counts who followed'),
  plain('echo-key', '401 with the bearer key in its message'),
];

const occasions = [
  { name: 'sim-fault-FAULT', what: 'every call fails' },
  { name: 'sim-fault-FAULT-then-ok-N', what: 'the first N calls of each prompt fail, the next succeeds' },
  { name: 'sim-flaky-P', what: 'P % of the prompts fail at first with 500; the call after a failed one succeeds' },
  { name: 'sim-flaky-P-FAULT', what: 'the same with another fault' },
  { name: 'sim-storm-P', what: 'P % of all calls, including retries, get 429 with Retry-After: 1' },
  { name: 'sim-storm-P-FAULT', what: 'the same with another fault' },
] as const;

/**
 * Describes every fault, under its name in a model's name or in the header x-simulator-fault. `GET /` shows the
 * descriptions.
 */
export function describeFaults(): { occasions: typeof occasions; faults: { name: string; what: string }[] } {
  return { occasions, faults: rows.map(({ name, what }) => ({ name: `sim-fault-${name}`, what })) };
}

/**
 * The fault that a model's name requests; undefined for an ordinary name. A name that merely starts like a fault's results
 * in 'unknown', so that a misspelt fault does not act as a healthy model.
 */
export function parseFaultName(name: string): Fault | 'unknown' | undefined {
  const chance = /^sim-(flaky|storm)-(\d{1,3})(?:-(.+))?$/.exec(name);
  if (chance !== null) {
    const [, type, percent, inner = type === 'flaky' ? '500' : '429'] = chance;
    const found = findRow(inner);
    if (found === undefined || Number(percent) > 100) return 'unknown';
    return { effect: found.effect, occasion: { type: type === 'flaky' ? 'flaky' : 'storm', percent: Number(percent) } };
  }
  if (!/^sim-(?:fault|flaky|storm)\b/.test(name)) return undefined;
  const match = /^sim-fault-(.+?)(?:-then-ok-(\d{1,4}))?$/.exec(name);
  const found = findRow(match?.[1] ?? '');
  if (found === undefined) return 'unknown';
  const attempts = match?.[2] === undefined ? found.attempts : Number(match[2]);
  return { effect: found.effect, occasion: attempts === undefined ? { type: 'always' } : { type: 'first', attempts } };
}

function findRow(name: string): { effect: Effect; attempts: number | undefined } | undefined {
  for (const row of rows) {
    const match = row.pattern.exec(name);
    if (match === null) continue;
    return { effect: row.effect(match[1] === undefined ? Number.NaN : Number(match[1])), attempts: row.attempts };
  }
  return undefined;
}
