import type { IncomingHttpHeaders } from 'node:http';
import type { Behaviour } from '../model/generate.ts';
import type { Allowance } from '../rate-limit.ts';

/** A request that is refused or a failure that is simulated; every format writes it in its own shape. */
export type Failure = {
  status: number;
  message: string;
  type?: string;
  param?: string | null;
  code?: string | null;
  /** When to retry, for formats that say it in the body. */
  retryAfterMs?: number;
  /** The body as it is, for routes whose errors do not have their format's shape. */
  body?: string;
  /** Headers that belong to this failure alone, as flat names and values. */
  headers?: readonly string[];
};

/** Thrown while a request is decoded; becomes an answer with the failure's status. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly failure: Failure;
  constructor(failure: Failure, options?: ErrorOptions) {
    super(failure.message, options);
    this.failure = failure;
  }
}

/** A request as it arrived. `json` is the parsed form of `text`; both are empty where a route reads another body. */
export type Received = {
  method: string;
  path: string;
  /** As it arrived, without the question mark. */
  query: string;
  headers: IncomingHttpHeaders;
  bytes: Uint8Array;
  text: string;
  json: Record<string, unknown>;
  /** The fields and files of a multipart body, where the route reads one. */
  form?: FormData;
};

/** One complete event of a stream: text, or bytes where the format's framing is binary. A stream has one kind only. */
export type Frame = string | Uint8Array;

/** How a format's streams look, beside the events of a good answer. */
export type StreamForm = {
  contentType: string;
  /** How this provider tells of an error when the status is out already; `first`: nothing came before it. */
  errorFrame(failure: Failure, first?: boolean): Frame;
  /** An error in a form that other providers use and this format's clients must survive. */
  strayErrorFrame(failure: Failure): Frame;
  /** An event that is framed well and whose payload is not JSON. */
  brokenFrame: Frame;
  /** What may come between events and means nothing; undefined where the framing has no such thing. */
  idleFrame: Frame | undefined;
  /** The frame damaged on its way; absent where the framing could not tell. */
  damage?(frame: Frame): Frame;
};

/** A decoded request: who asks what, and how the model's answer is put on the wire. */
export type Call = {
  model: string;
  /** Of everything that decides the answer, so that a repeated call is recognised whatever its transport. */
  hash: number;
  user: string | undefined;
  stream: boolean;
  /** The whole answer as one body; `contentType` says of what kind, JSON when absent. May throw Refusal. */
  body(behaviour: Behaviour): Frame;
  contentType?: string;
  /** Headers of this answer alone, as flat names and values. */
  headers?: readonly string[];
  /** The answer as the events of a stream, each complete on the wire, the ending (such as `[DONE]`) last. */
  frames(behaviour: Behaviour): Iterable<Frame>;
  /** Where this call's stream differs from the others of its format. */
  form?: StreamForm;
};

/** What lies at a path. `name` is its name in the statistics and one of a closed set. */
export type Route =
  /** A model is asked, or something that fails and waits like one. */
  | { name: string; reads: 'json' | 'form' | 'anything'; call: (received: Received) => Call | Promise<Call> }
  /** A list or an object that is always there; no fault, latency or limit applies. May throw Refusal. */
  | { name: string; resource: (received: Received) => string }
  /** The path exists, for other methods. */
  | { name: string; allow: string };

/** One provider's HTTP interface. Knows paths, shapes and headers; nothing of timing, faults or what the model says. */
export type WireFormat = {
  find(method: string, path: string): Route | undefined;
  /** The caller's key, '' when there is none; undefined when none is needed or it is known to be good. */
  credential(headers: IncomingHttpHeaders, query: string): string | undefined;
  /** The refusal of a request without a key, or (`shown` is what may be repeated of it) with a wrong one. */
  refuseCredential(problem: 'missing' | 'wrong', shown: string): Failure;
  errorBody(failure: Failure, requestId: string): string;
  form: StreamForm;
  /** Retry times are told in the body; no Retry-After header is sent. */
  retryInBody?: boolean;
  /** Flat list of names and values, as writeHead takes it. */
  headers(call: { requestId: string; processingMs: number; allowance: Allowance | undefined }): string[];
  /** Headers of a failure, such as its type. */
  errorHeaders?(failure: Failure): string[];
};

const credentialHeader = /authorization|cookie|key|token|secret|credential/;

/** What `sim-reflect` tells of a request beside its body. Values of headers that may hold a credential are left out. */
export function reflection({ method, path, headers }: Received): string {
  return JSON.stringify({ method, path, headers: shownHeaders(headers) });
}

/** The headers by name, the values of those that may hold a credential replaced by `[present]`. */
export function shownHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const shown = Object.entries(headers).map(([name, value]) => [
    name,
    credentialHeader.test(name) ? '[present]' : String(value),
  ]);
  return Object.fromEntries(shown) as Record<string, string>;
}
