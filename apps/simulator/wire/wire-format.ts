import type { IncomingHttpHeaders } from 'node:http';
import type { Behaviour } from '../model/generate.ts';
import type { Allowance } from '../rate-limit.ts';

/** A request that is refused or a failure that is simulated; every format writes it in its own shape. */
export type Failure = { status: number; message: string; type?: string; param?: string | null; code?: string | null };

/** Thrown while a request is decoded; becomes an answer with the failure's status. */
export class Refusal extends Error {
  override readonly name = 'Refusal';
  readonly failure: Failure;
  constructor(failure: Failure) {
    super(failure.message);
    this.failure = failure;
  }
}

/** A request as it arrived; `json` is the parsed form of `text`. */
export type Received = {
  method: string;
  path: string;
  headers: IncomingHttpHeaders;
  text: string;
  json: Record<string, unknown>;
};

/** A decoded request: who asks what, and how the model's answer is put on the wire. */
export type Call = {
  model: string;
  /** Of everything that decides the answer, so that a repeated call is recognised whatever its transport. */
  hash: number;
  user: string | undefined;
  stream: boolean;
  /** The whole answer as one body. */
  body(behaviour: Behaviour): string;
  /** The answer as the events of a stream, each complete on the wire, the ending (such as `[DONE]`) last. */
  frames(behaviour: Behaviour): Iterable<string>;
};

/** One provider's HTTP interface. Knows paths, shapes and headers; nothing of timing, faults or what the model says. */
export type WireFormat = {
  /** Operations by path; all are POST. A decoder throws Refusal. */
  operations: ReadonlyMap<string, (received: Received) => Call>;
  /** The GET resource of a path (models); undefined when there is none. `body` throws Refusal. */
  read(path: string): { route: string; body: () => string } | undefined;
  /** Whether the path is this format's, so that its errors have this format's shape. */
  owns(path: string): boolean;
  /** The caller's key, '' when there is none. */
  credential(headers: IncomingHttpHeaders): string;
  errorBody(failure: Failure): string;
  errorFrame(failure: Failure): string;
  /** An error in a form that other providers use and this format's clients must survive: a named, flat event. */
  strayErrorFrame(failure: Failure): string;
  endFrame: string;
  streamContentType: string;
  /** Flat list of names and values, as writeHead takes it. */
  headers(call: { requestId: string; processingMs: number; allowance: Allowance | undefined }): string[];
};

const credentialHeader = /authorization|cookie|key|token|secret|credential/;

/** What `sim-reflect` tells of a request beside its body. Values of headers that may hold a credential are left out. */
export function reflection({ method, path, headers }: Received): string {
  const shown = Object.entries(headers).map(([name, value]) => [
    name,
    credentialHeader.test(name) ? '[present]' : String(value),
  ]);
  return JSON.stringify({ method, path, headers: Object.fromEntries(shown) });
}
