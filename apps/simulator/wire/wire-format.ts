import type { IncomingHttpHeaders } from 'node:http';
import type { Behaviour } from '../model/generate.ts';
import type { Allowance } from '../faults/rate-limit.ts';

/** A rejected request or a simulated failure, independent of any format. */
export type Failure = {
  status: number;
  message: string;
  type?: string;
  param?: string | null;
  code?: string | null;
  /** When to retry, for formats that have it in the body. */
  retryAfterMs?: number;
  /** The raw body, for routes whose errors do not have their format's shape. */
  body?: string;
  /** Headers of this failure only, as flat names and values. */
  headers?: readonly string[];
};

/** Thrown while a request is decoded. It becomes a response with the failure's status. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly failure: Failure;
  constructor(failure: Failure, options?: ErrorOptions) {
    super(failure.message, options);
    this.failure = failure;
  }
}

/** A request as it arrived. `json` is the parsed form of `text`; both are empty if the route reads another kind of body. */
export type Received = {
  method: string;
  path: string;
  /** The raw query, without the question mark. */
  query: string;
  headers: IncomingHttpHeaders;
  bytes: Uint8Array;
  text: string;
  json: Record<string, unknown>;
  /** The fields and files of a multipart body, if the route reads one. */
  form?: FormData;
};

/** One complete event of a stream: text, or bytes if the framing is binary. A stream has only one kind. */
export type Frame = string | Uint8Array;

/** The parts of a format's streams other than the events of a normal answer. */
export type StreamForm = {
  contentType: string;
  /** The form in which this provider sends an error after the status; `first`: no event came before it. */
  errorFrame(failure: Failure, first?: boolean): Frame;
  /** An error in a form that other providers use and that this format's clients must handle. */
  strayErrorFrame(failure: Failure): Frame;
  /** A correctly framed event whose payload is not JSON. */
  brokenFrame: Frame;
  /** A frame without meaning that can occur between events; undefined if the framing has no such frame. */
  idleFrame: Frame | undefined;
  /** A damaged frame; absent if the framing cannot detect damage. */
  damage?(frame: Frame): Frame;
};

/** A decoded request, and the encoding of the model's answer. */
export type Call = {
  model: string;
  /** The hash of everything that determines the answer, so that a repeated call is recognised in every format. */
  hash: number;
  user: string | undefined;
  stream: boolean;
  /** The whole answer as one body of type `contentType` (JSON if absent). Can throw Refusal. */
  body(behaviour: Behaviour): Frame;
  contentType?: string;
  /** Headers of this answer only, as flat names and values. */
  headers?: readonly string[];
  /** The answer as the complete events of a stream, including the end (like `[DONE]`). */
  frames(behaviour: Behaviour): Iterable<Frame>;
  /** The ways in which this call's stream differs from others of its format. */
  form?: StreamForm;
};

/** A route. `name` identifies it in the statistics and is one of a fixed set. */
export type Route =
  /** A call to a model, or to another route that has faults and latency like one. */
  | { name: string; reads: 'json' | 'form' | 'anything'; call: (received: Received) => Call | Promise<Call> }
  /** A list or an object without faults, latency or limits. Can throw Refusal. */
  | { name: string; resource: (received: Received) => string }
  /** The path exists, but only for other methods. */
  | { name: string; allow: string };

/** One provider's HTTP API: paths, formats and headers, but not timing, faults or the content of answers. */
export type WireFormat = {
  find(method: string, path: string): Route | undefined;
  /** The caller's key, '' if there is none; undefined if no key is needed or if it was verified. */
  credential(headers: IncomingHttpHeaders, query: string): string | undefined;
  /**
   * The error for a request with a missing or wrong key. Only the part of the key in `shown` can be repeated in the error.
   */
  refuseCredential(problem: 'missing' | 'wrong', shown: string): Failure;
  errorBody(failure: Failure, requestId: string): string;
  form: StreamForm;
  /** The retry time is in the body; no Retry-After header is sent. */
  retryInBody?: boolean;
  /** A flat list of names and values, as writeHead expects it. */
  headers(call: { requestId: string; processingMs: number; allowance: Allowance | undefined }): string[];
  /** Headers for a failure, such as its type. */
  errorHeaders?(failure: Failure): string[];
};

/** Finds the format that a request is written in. */
export type FindWire = (path: string, query: string, headers: IncomingHttpHeaders) => WireFormat | undefined;

const credentialHeader = /authorization|cookie|key|token|secret|credential/;

/**
 * The members that `sim-reflect` returns in addition to the body of a request. Header values that could be credentials are
 * left out.
 */
export function reflection({ method, path, headers }: Received): string {
  return JSON.stringify({ method, path, headers: shownHeaders(headers) });
}

/** The headers by name. Values that could be credentials are replaced by `[present]`. */
export function shownHeaders(headers: IncomingHttpHeaders): Record<string, string> {
  const shown = Object.entries(headers).map(([name, value]) => [
    name,
    credentialHeader.test(name) ? '[present]' : String(value),
  ]);
  return Object.fromEntries(shown) as Record<string, string>;
}
